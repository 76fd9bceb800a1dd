"""Kafka options in their dotted names → Spark's options and kafka-python's arguments: translated in one place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.errors import InputError, RetryError
from compactor.settings import KafkaSettings

# kafka-python takes snake_case names; these differ by more than spelling, or only exist on the Java side.
PYTHON_NAMES = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
BOOTSTRAP_MS = 10_000  # kafka-python waits 30 s for a broker that is not there; `bootstrap.timeout.ms` says otherwise
JAVA_ONLY = ("sasl.jaas.config", "isolation.level", "group.id", "auto.offset.reset", "ssl.truststore.type")


def source_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source. Control topics are transactional: only committed records are read."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(dict.fromkeys((kafka.commit_topic, *kafka.control_topics))),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",  # events are hints: what retention took away, the sweep finds
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(kafka.max_events_per_batch),
        **{f"kafka.{key}": value for key, value in kafka.options.items()},
    }


def sink_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka sink for dead letters."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "topic": kafka.dead_letter_topic,
        **{f"kafka.{key}": value for key, value in kafka.options.items()},
    }


def producer(kafka: KafkaSettings) -> KafkaProducer:
    """A producer of canonical events and dead letters.

    Raises:
        RetryError: no broker answers.
    """
    try:
        return KafkaProducer(acks="all", linger_ms=5, max_block_ms=15_000, **client_arguments(kafka))
    except Exception as error:
        raise no_broker(kafka, error) from error


def ensure_topics(kafka: KafkaSettings, *, create: bool, told: Iterable[str] = ()) -> None:
    """See that the topics exist: Spark's source fails on a missing one. Missing ones are created where `create` allows.

    `told`: topics of refresh hooks.

    Raises:
        RetryError: no broker answers.
        InputError: a topic is missing and may not or cannot be created; the message names the key.
    """
    try:
        admin = KafkaAdminClient(**client_arguments(kafka))
        existing = set(admin.list_topics())
    except Exception as error:
        raise no_broker(kafka, error) from error
    wanted = {"kafka.commit_topic": kafka.commit_topic}
    if create:
        wanted["kafka.dead_letter_topic"] = kafka.dead_letter_topic
        wanted |= {f"hooks: topic {topic}": topic for topic in told}
    try:
        for topic in kafka.control_topics:
            if topic not in existing:
                raise InputError(
                    f"kafka.control_topics: topic {topic!r} does not exist; create it, or start its sink first",
                    reason="no_topic",
                )
        for key, topic in wanted.items():
            if topic not in existing:
                _create(admin, key, topic, create=create)
    finally:
        admin.close()


def _create(admin: KafkaAdminClient, key: str, topic: str, *, create: bool) -> None:
    cause = "observe mode creates nothing"
    if create:
        try:
            admin.create_topics([NewTopic(topic)], wait_for_metadata=True)
        except Exception as error:  # noqa: BLE001 - any refusal ends in the same remedy
            cause = str(error)
        else:
            return
    raise InputError(f"{key}: topic {topic!r} does not exist ({cause}); create it first", reason="no_topic")


def client_arguments(kafka: KafkaSettings) -> dict[str, Any]:
    """Arguments that every client of kafka-python takes."""
    translated = {
        PYTHON_NAMES.get(key, key.replace(".", "_")): value
        for key, value in kafka.options.items()
        if key not in JAVA_ONLY
    }
    defaults = {"bootstrap_timeout_ms": BOOTSTRAP_MS}
    return {"bootstrap_servers": kafka.bootstrap_servers.split(","), **defaults, **translated}


def no_broker(kafka: KafkaSettings, error: Exception) -> RetryError:
    """The error to raise where no broker could be reached."""
    return RetryError(
        f"no Kafka broker answers at {kafka.bootstrap_servers}: {error}; check kafka.bootstrap_servers",
        reason="kafka_unavailable",
    )
