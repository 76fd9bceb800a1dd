"""Kafka options in their dotted names → Spark's options and kafka-python's arguments: translated in one place."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.errors import InputError, RetryError
from compactor.reasons import Reason
from compactor.settings.tree import KafkaSettings

LOG = logging.getLogger("firnline")
# kafka-python takes snake_case names; these differ by more than spelling, or only exist on the Java side.
PYTHON_NAMES = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
NOT_ALLOWED = 29  # error code of the broker
BOOTSTRAP_MS = 10_000  # kafka-python waits 30 s for a broker that is not there; `bootstrap.timeout.ms` says otherwise
JAVA_ONLY = ("sasl.jaas.config", "isolation.level", "group.id", "auto.offset.reset", "ssl.truststore.type")


def source_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source. Control topics are transactional: only committed records are read.

    A list of topics would end the query when one is missing; a pattern finds a topic with the first batch after its
    creation, and reads it from its beginning, but lists all topics of the cluster. So it is used for control topics,
    which others create. Checkpoints hold offsets by topic, whichever way it was found.
    """
    topics = dict.fromkeys((kafka.commit_topic, *kafka.control_topics))
    pattern = {"subscribePattern": f"^(?:{'|'.join(map(re.escape, topics))})$"}
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        **(pattern if kafka.control_topics else {"subscribe": kafka.commit_topic}),
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
    """See that the topics exist. Missing ones are created where `create` allows, but for control topics: their sinks
    create them, and they are read from then on.

    `told`: topics of refresh hooks.

    Raises:
        RetryError: no broker answers.
        InputError: a topic is missing and may not or cannot be created, or may not be seen; the message names the key.
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
                _wait_for(admin, topic)
        for key, topic in wanted.items():
            if topic not in existing:
                _create(admin, key, topic, create=create)
    finally:
        admin.close()


def _wait_for(admin: KafkaAdminClient, topic: str) -> None:
    """Log that a control topic is missing; a topic that may not be seen would be missing forever."""
    (found,) = admin.describe_topics([topic])
    if found["error_code"] == NOT_ALLOWED:
        raise InputError(
            f"kafka.control_topics: the broker does not allow us to DESCRIBE topic {topic!r}; allow READ on it",
            reason=Reason.NOT_ALLOWED,
        )
    LOG.warning(
        "kafka.control_topics: topic %s does not exist yet; it is waited for, and read from its beginning once it "
        "exists",
        topic,
    )


def _create(admin: KafkaAdminClient, key: str, topic: str, *, create: bool) -> None:
    cause = "observe mode creates nothing"
    if create:
        try:
            admin.create_topics([NewTopic(topic)], wait_for_metadata=True)
        except Exception as error:  # noqa: BLE001 - any refusal ends in the same remedy
            cause = str(error)
        else:
            return
    raise InputError(f"{key}: topic {topic!r} does not exist ({cause}); create it first", reason=Reason.NO_TOPIC)


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
        reason=Reason.KAFKA_UNAVAILABLE,
    )
