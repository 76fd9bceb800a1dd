"""What this principal may do on the broker, found out without writing a record."""

from __future__ import annotations

from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import for_code

from compactor.errors import InputError, RetryError
from compactor.settings import KafkaSettings
from streaming.kafka_clients import client_arguments, no_broker

UNKNOWN_TOPIC, NOT_ALLOWED = 3, 29
READ_MS = 10_000


@dataclass(frozen=True)
class TopicAccess:
    """A topic as the broker shows it: its partitions, and the operations (READ, WRITE, …) that we may do on it."""

    exists: bool
    partitions: int = 0
    operations: frozenset[str] = frozenset()


class KafkaAccess:
    """One connection for administration, one consumer when something is to be read."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._topics: dict[str, TopicAccess] = {}
        try:
            self._admin = KafkaAdminClient(**client_arguments(kafka))
        except Exception as error:
            raise no_broker(kafka, error) from error

    def close(self) -> None:
        """End the connection."""
        self._admin.close()

    def topic(self, name: str) -> TopicAccess:
        """The topic, looked at once.

        Raises:
            InputError: we may not even know whether it exists.
            RetryError: the broker cannot tell now.
        """
        if name not in self._topics:
            (found,) = self._admin.describe_topics([name])
            code = found["error_code"]
            if code == NOT_ALLOWED:
                raise InputError(f"topic {name}: the broker does not allow us to DESCRIBE it")
            if code not in {0, UNKNOWN_TOPIC}:
                raise RetryError(f"topic {name}: {for_code(code).__name__}")
            operations = frozenset(found.get("authorized_operations") or ())
            self._topics[name] = TopicAccess(code == 0, len(found["partitions"]), operations)
        return self._topics[name]

    def check_creation(self, name: str) -> None:
        """See that the topic could be created, by a request that only asks.

        Raises:
            InputError: it could not.
        """
        try:
            self._admin.create_topics([NewTopic(name)], validate_only=True)
        except Exception as error:
            raise InputError(f"topic {name} does not exist and may not be created: {error}") from error

    def read_one(self, topic: str) -> str:
        """Read a record as the service does, without a consumer group; what there is, in words.

        Raises:
            RetryError: there are records, and none came.
        """
        arguments = client_arguments(self._kafka)
        consumer = KafkaConsumer(**arguments, group_id=None, enable_auto_commit=False, isolation_level="read_committed")
        try:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            consumer.assign(partitions)
            starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            records = sum(ends[partition] - starts[partition] for partition in partitions)
            if records == 0:
                return "it is empty"
            consumer.seek_to_beginning()
            if not consumer.poll(timeout_ms=READ_MS, max_records=1):
                raise RetryError(f"topic {topic} holds {records:,} records, none could be read in {READ_MS // 1000} s")
            return f"read one of {records:,} records"
        finally:
            consumer.close()
