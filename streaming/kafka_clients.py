"""Kafka options in their dotted names → Spark's options and kafka-python's arguments: translated in one place."""

from __future__ import annotations

from typing import Any

from kafka import KafkaProducer

from compactor.errors import RetryError
from compactor.settings import KafkaSettings

# kafka-python takes snake_case names; these differ by more than spelling, or only exist on the Java side.
PYTHON_NAMES = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
JAVA_ONLY = ("sasl.jaas.config", "isolation.level", "group.id", "auto.offset.reset", "ssl.truststore.type")


def source_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source. Control topics are transactional: only committed records are read."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": kafka.commit_topic,
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
    arguments: dict[str, Any] = {
        PYTHON_NAMES.get(key, key.replace(".", "_")): value
        for key, value in kafka.options.items()
        if key not in JAVA_ONLY
    }
    try:
        return KafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers.split(","),
            acks="all",
            linger_ms=5,
            max_block_ms=15_000,
            **arguments,
        )
    except Exception as error:
        raise RetryError(
            f"no Kafka broker answers at {kafka.bootstrap_servers}: {error}; check kafka.bootstrap_servers",
            reason="kafka_unavailable",
        ) from error
