"""Why a streaming query ended, and what to do: try again, or set its checkpoint aside. Pure.

A query that ends is always started again. If its checkpoint may be the cause, it is set aside: first the query goes on
at the last offsets that it reported; if that fails too, at the end of the topics. A batch that cannot be read is
skipped after four ends. A sweep counts what is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

from compactor.spark.java_table import SHUT_DOWN
from streaming.ledger.batch_rows import BatchUnreadableError

MOST_SHOWN: Final = 500
UNREAD_ENDS: Final = 4
"""Ends at one batch that cannot be read, after which it is skipped: within half a minute for commit events."""


class Cause(StrEnum):
    """Cause of the end of a query; a metric label."""

    SPARK = "spark_lost"
    BROKER = "kafka_unavailable"
    TOPIC = "no_topic"
    DENIED = "not_allowed"
    DISK = "no_space"
    HANDLER = "unavailable"
    RECREATED = "topic_recreated"
    UNREADABLE = "batch_unreadable"
    OTHER = "unexpected"

    @property
    def remedy(self) -> str:
        """What the operator can do."""
        return _REMEDIES[self]

    @property
    def outside(self) -> bool:
        """Whether neither a restart of the service nor another offset can help."""
        return self not in {Cause.OTHER, Cause.UNREADABLE}


_REMEDIES: Final = {
    Cause.SPARK: "Spark has stopped; firnline ends too, and must be started again",
    Cause.BROKER: "check that the brokers of kafka.bootstrap_servers run and can be reached",
    Cause.TOPIC: "a topic is missing: create it again, or restart firnline, which creates its own topics",
    Cause.DENIED: "the broker refuses this principal: check kafka.options and the ACLs of the topics",
    Cause.DISK: "the volume of state.checkpoint is full or cannot be written: make room",
    Cause.HANDLER: "a catalog or a topic that is written to does not answer: see the error",
    Cause.RECREATED: "nothing to do: the new topic is read from its beginning, and a sweep counts what was lost",
    Cause.UNREADABLE: (
        "a record of the batch cannot be read: find its producer by the error; after the fourth end the batch is "
        "skipped, and a sweep counts its commits"
    ),
    Cause.OTHER: "see the error; if it stays, the checkpoint is set aside and rebuilt from the tables",
}

_IN_BATCH: Final = "raised by the Python Proxy"
"""Said of every exception within a batch."""
_UNREAD: Final = f"\n{BatchUnreadableError.__module__}.{BatchUnreadableError.__qualname__}: "
"""As a traceback ends. No event can forge it: names have no line breaks."""
_CORRUPT: Final = ("when fetching the next record", "Encountered corrupt message", "is invalid, cause:")
"""Of what Kafka's consumer says of a record that it cannot decode. Its class is that of a broker's failure."""

# In this order: the first that is found in the exceptions decides. Each is part of a class name or message of Java.
_SIGNS: Final = (
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
            "no Kafka broker answers",
            "KAFKA_DATA_LOSS",
            "Cannot fetch record for offset",
            "Failed to construct kafka",
            "Failed to create new KafkaAdminClient",
        ),
    ),
)


def cause_of(exceptions: str) -> Cause:
    """The cause, from the classes and messages of a Java exception and of its causes."""
    if any(sign in exceptions for sign in SHUT_DOWN):
        return Cause.SPARK
    unread = _UNREAD in exceptions
    if _IN_BATCH in exceptions and not unread:
        return Cause.HANDLER
    if unread and any(sign in exceptions for sign in _CORRUPT):
        return Cause.UNREADABLE
    unknown = Cause.UNREADABLE if unread else Cause.OTHER
    return next((cause for cause, signs in _SIGNS if any(sign in exceptions for sign in signs)), unknown)


def shown(error: str) -> str:
    """One line of an exception of Spark, for the log: of one within a batch, the line that ends Python's traceback."""
    lines = error.partition("=== Streaming Query")[0].splitlines()
    if any(_IN_BATCH in line for line in lines):
        ends = [line for before, line in pairwise(lines) if before[:1] == " " != line[:1]]
        lines = ends[-1:] or lines
    return lines[0][:MOST_SHOWN] if lines else "no reason was given"


class Checkpoint(StrEnum):
    """What becomes of the checkpoint before the next start."""

    KEEP = "keep"
    SET_ASIDE = "set_aside"
    """Start with a new one at the offsets last reported."""
    SET_ASIDE_AND_SKIP = "set_aside_and_skip"
    """Start with a new one at the end of the topics."""
    SKIP_BATCH = "skip_batch"
    """Start with a new one behind the batch that cannot be read."""


@dataclass(frozen=True)
class Failures:
    """Ends of a query in a row. `unexplained`: those whose cause may be the checkpoint.

    `unread`: those at the batch `batch`, because it cannot be read.
    """

    in_a_row: int = 0
    unexplained: int = 0
    cause: Cause | None = None
    since: float = 0.0
    unread: int = 0
    batch: str = ""

    def failed(self, cause: Cause, now: float, batch: str = "") -> Failures:
        """The query has ended once more. `now`: seconds of a steady clock. `batch`: identifies the batch, if any."""
        failures = replace(
            self,
            in_a_row=self.in_a_row + 1,
            unexplained=self.unexplained + (cause is Cause.OTHER),
            cause=cause,
            since=self.since if self.in_a_row else now,
        )
        if cause is not Cause.UNREADABLE:
            return failures
        return replace(failures, unread=1 + (self.unread if batch == self.batch else 0), batch=batch)

    @property
    def checkpoint(self) -> Checkpoint:
        """Whether to set the checkpoint aside now: after the second, fourth, eighth … unexplained end in a row.

        Or to skip a batch: after the fourth end at it, and after each later one until it could be skipped.
        """
        if self.cause is Cause.UNREADABLE:
            return Checkpoint.SKIP_BATCH if self.unread >= UNREAD_ENDS else Checkpoint.KEEP
        count = self.unexplained
        if self.cause is not Cause.OTHER or count < 2 or count & (count - 1):  # noqa: PLR2004 - powers of two
            return Checkpoint.KEEP
        return Checkpoint.SET_ASIDE if count == 2 else Checkpoint.SET_ASIDE_AND_SKIP  # noqa: PLR2004


@dataclass(frozen=True)
class Gap:
    """Events of a topic that a query never reads. `count`: offsets."""

    topic: str
    count: int


Offsets = dict[str, dict[str, int]]
"""Next offset by topic and partition, as Spark writes it."""

OLDEST: Final = -2
NEWEST: Final = -1
"""Instead of an offset, in Spark's `startingOffsets`."""


@dataclass(frozen=True)
class BatchOffsets:
    """The batch at which a query ended. Empty: it ended in none. `start` is empty for the first of a checkpoint too."""

    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)

    @classmethod
    def of(cls, start: str, end: str) -> BatchOffsets:
        """From the offsets of Spark's exception: a list with the JSON of each source, or `-`."""
        return cls(_only_source(start), _only_source(end))

    @property
    def lacks(self) -> list[Gap]:
        """What is never read if the batch is skipped."""
        found = {topic: sum(self._counts(topic).values()) for topic in self.end}
        return [Gap(topic, count) for topic, count in found.items() if count]

    def _counts(self, topic: str) -> dict[str, int]:
        known = self.start.get(topic, {})
        return {number: max(0, end - known.get(number, 0)) for number, end in self.end[topic].items()}

    def __str__(self) -> str:
        return ", ".join(
            f"{topic}-{number} from {self.end[topic][number] - count} to {self.end[topic][number]}"
            for topic in self.end
            for number, count in self._counts(topic).items()
            if count
        )


def _only_source(offsets: str) -> Offsets:
    try:
        (found,) = json.loads(offsets)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


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
    """Where a query with a new checkpoint goes on: where it was; in topics that were created again, at their beginning.

    `partitions`: their number by topic, of those that exist: Spark wants each of them, and no other. `ends`: the
    offsets that the query has reached. A partition that has none was added after that; without any, all were read.
    """
    added = OLDEST if ends else NEWEST
    return {
        topic: {
            str(number): OLDEST if topic in anew else ends.get(topic, {}).get(str(number), added)
            for number in range(count)
        }
        for topic, count in partitions.items()
    }


def added_partitions(start: Offsets, end: Offsets) -> dict[str, int]:
    """Topics with more partitions than before, with their number now."""
    return {topic: len(end[topic]) for topic, known in start.items() if len(end.get(topic, {})) > len(known) > 0}
