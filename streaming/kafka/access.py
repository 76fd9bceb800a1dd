"""Permissions of this principal on the broker, checked without writing a record."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from kafka.admin import MemberToRemove, NewTopic
from kafka.errors import GroupAuthorizationFailedError, KafkaError, RetriableError, for_code

from compactor.errors import InputError, RetryError
from compactor.reasons import Reason
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import NOT_ALLOWED, admin_client, no_broker

UNKNOWN_TOPIC = 3
COORDINATOR_SECONDS = 15.0  # the first use of any group in a cluster creates the topic of all groups
RETRY_SECONDS = 0.5


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

    def check_group(self, group: str) -> None:
        """Check that this principal may join the consumer group, without joining it.

        Raises:
            InputError: this principal may not READ the group.
            RetryError: the broker reports another error.
        """
        # Joining would divide the tables anew. Removing a member that does not exist needs the same permission.
        nobody = [MemberToRemove(member_id=f"probe-{uuid.uuid4().hex}")]
        deadline = time.monotonic() + COORDINATOR_SECONDS
        while True:
            try:
                self._admin.remove_group_members(group, nobody)
            except GroupAuthorizationFailedError as error:
                raise InputError(
                    f"group {group}: the broker does not allow this principal to READ it", reason=Reason.NOT_ALLOWED
                ) from error
            except KafkaError as error:
                if not isinstance(error, RetriableError) or time.monotonic() > deadline:
                    raise RetryError(f"group {group}: {type(error).__name__}: {error}") from error
                time.sleep(RETRY_SECONDS)
            else:
                return

    def check_creation(self, name: str) -> None:
        """Check by a validate-only request that the topic could be created.

        Raises:
            InputError: the broker refuses.
        """
        try:
            self._admin.create_topics([NewTopic(name)], validate_only=True)
        except Exception as error:
            raise InputError(f"topic {name} does not exist and may not be created: {error}") from error
