"""Permissions of this principal on the broker, checked without writing a record."""

from __future__ import annotations

from dataclasses import dataclass

from kafka.admin import NewTopic
from kafka.errors import KafkaError, for_code

from compactor.errors import InputError, RetryError
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import NOT_ALLOWED, admin_client, no_broker

UNKNOWN_TOPIC = 3


@dataclass(frozen=True)
class TopicAccess:
    """A topic: its partitions, and the operations (READ, WRITE, …) that this principal may perform."""

    exists: bool
    partitions: int = 0
    operations: frozenset[str] = frozenset()


class KafkaAccess:
    def __init__(self, kafka: KafkaSettings) -> None:
        self._topics: dict[str, TopicAccess] = {}
        try:
            self._admin = admin_client(kafka)
        except Exception as error:
            raise no_broker(kafka, error) from error

    def close(self) -> None:
        self._admin.close()

    def topic(self, name: str) -> TopicAccess:
        """The topic; queried once, then cached.

        Raises:
            InputError: this principal may not DESCRIBE the topic.
            RetryError: the broker reports another error.
        """
        if name not in self._topics:
            (found,) = self._admin.describe_topics([name])
            code = found["error_code"]
            if code == NOT_ALLOWED:
                raise InputError(f"topic {name}: the broker does not allow this principal to DESCRIBE it")
            if code not in {0, UNKNOWN_TOPIC}:
                raise RetryError(f"topic {name}: {for_code(code).__name__}")
            operations = frozenset(found.get("authorized_operations") or ())
            self._topics[name] = TopicAccess(code == 0, len(found["partitions"]), operations)
        return self._topics[name]

    def names(self) -> list[str]:
        """Names of the topics that this principal may DESCRIBE, sorted.

        Raises:
            RetryError: the broker reports an error.
        """
        try:
            return sorted(self._admin.list_topics())
        except KafkaError as error:
            raise RetryError(f"topics cannot be listed: {type(error).__name__}: {error}") from error

    def check_creation(self, name: str) -> None:
        """Check by a validate-only request that the topic could be created.

        Raises:
            InputError: the broker refuses.
        """
        try:
            self._admin.create_topics([NewTopic(name)], validate_only=True)
        except Exception as error:
            raise InputError(f"topic {name} does not exist and may not be created: {error}") from error
