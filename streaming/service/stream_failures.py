"""Why a streaming query ended, and what to do: try again, or set its checkpoint aside. Pure.

A query that ends is always started again. If its checkpoint may be the cause, it is set aside: first the query goes on
at the last offsets that it reported; if that fails too, at the end of the topics. A sweep counts what it skips.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """Cause of the end of a query; a metric label."""

    BROKER = "kafka_unavailable"
    TOPIC = "no_topic"
    DENIED = "not_allowed"
    DISK = "no_space"
    HANDLER = "unavailable"
    RECREATED = "topic_recreated"
    OTHER = "unexpected"

    @property
    def remedy(self) -> str:
        """What the operator can do."""
        return _REMEDIES[self]

    @property
    def outside(self) -> bool:
        """Whether a restart of the service cannot help."""
        return self is not Cause.OTHER


_REMEDIES: Final = {
    Cause.BROKER: "check that the brokers of kafka.bootstrap_servers run and can be reached",
    Cause.TOPIC: "a topic is missing: create it again, or restart firnline, which creates its own topics",
    Cause.DENIED: "the broker refuses this principal: check kafka.options and the ACLs of the topics",
    Cause.DISK: "the volume of state.checkpoint is full or cannot be written: make room",
    Cause.HANDLER: "a catalog or a topic that is written to does not answer: see the error",
    Cause.RECREATED: "nothing to do: the new topic is read from its beginning, and a sweep counts what was lost",
    Cause.OTHER: "see the error; if it stays, the checkpoint is set aside and rebuilt from the tables",
}

# In this order: the first that is found in the exceptions decides. Each is part of a class name or message of Java.
_SIGNS: Final = (
    (Cause.HANDLER, ("raised by the Python Proxy",)),
    (Cause.DISK, ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied")),
    (Cause.DENIED, ("AuthorizationException", "AuthenticationException")),
    (
        Cause.TOPIC,
        ("UnknownTopicOrPartition", "UNKNOWN_TOPIC", "InvalidTopicException", "does not exist on the broker"),
    ),
    (
        Cause.BROKER,
        (
            "org.apache.kafka.common.errors",
            "org.apache.kafka.common.KafkaException",
            "KAFKA_DATA_LOSS",
            "Failed to construct kafka",
            "Failed to create new KafkaAdminClient",
        ),
    ),
)


def cause_of(exceptions: str) -> Cause:
    """The cause, from the classes and messages of a Java exception and of its causes."""
    return next((cause for cause, signs in _SIGNS if any(sign in exceptions for sign in signs)), Cause.OTHER)


class Checkpoint(StrEnum):
    """What becomes of the checkpoint before the next start."""

    KEEP = "keep"
    SET_ASIDE = "set_aside"
    """Start with a new one at the offsets last reported."""
    SET_ASIDE_AND_SKIP = "set_aside_and_skip"
    """Start with a new one at the end of the topics."""


@dataclass(frozen=True)
class Failures:
    """Ends of a query in a row. `unexplained`: those whose cause may be the checkpoint, or an event in it."""

    in_a_row: int = 0
    unexplained: int = 0
    cause: Cause | None = None
    since: float = 0.0

    def failed(self, cause: Cause, now: float) -> Failures:
        """The query has ended once more. `now`: seconds of a steady clock."""
        return replace(
            self,
            in_a_row=self.in_a_row + 1,
            unexplained=self.unexplained + (cause is Cause.OTHER),
            cause=cause,
            since=self.since if self.in_a_row else now,
        )

    @property
    def checkpoint(self) -> Checkpoint:
        """Whether to set the checkpoint aside now: after the second, fourth, eighth … unexplained end in a row."""
        count = self.unexplained
        if self.cause is not Cause.OTHER or count < 2 or count & (count - 1):  # noqa: PLR2004 - powers of two
            return Checkpoint.KEEP
        return Checkpoint.SET_ASIDE if count == 2 else Checkpoint.SET_ASIDE_AND_SKIP  # noqa: PLR2004


@dataclass(frozen=True)
class Gap:
    """Events that retention removed from a topic before they were read. `count`: offsets."""

    topic: str
    count: int


Offsets = dict[str, dict[str, int]]
"""Next offset by topic and partition, as Spark writes it."""

OLDEST: Final = -2
NEWEST: Final = -1
"""Instead of an offset, in Spark's `startingOffsets`."""


def gaps(start: Offsets, oldest: Offsets) -> list[Gap]:
    """What a batch from `start` could not read. `oldest`: the oldest offsets that the topics still have."""
    found = []
    for topic, partitions in start.items():
        still = oldest.get(topic, {})
        removed = sum(max(0, still.get(number, 0) - offset) for number, offset in partitions.items())
        if removed:
            found.append(Gap(topic, removed))
    return found


def starting_offsets(partitions: Mapping[str, int], ends: Offsets, anew: Collection[str]) -> Offsets:
    """Where a query goes on after topics were created again: these at their beginning, the others where it was.

    `partitions`: their number by topic. `ends`: the offsets that the query has reached.
    """
    return {
        topic: {
            str(number): OLDEST if topic in anew else ends.get(topic, {}).get(str(number), NEWEST)
            for number in range(count)
        }
        for topic, count in partitions.items()
    }


def added_partitions(start: Offsets, end: Offsets) -> dict[str, int]:
    """Topics with more partitions than before, with their number now."""
    return {topic: len(end[topic]) for topic, known in start.items() if len(end.get(topic, {})) > len(known) > 0}
