"""What the ledger knows of one table, what a look has to answer, and what follows from it. Frozen values."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from compactor.debt.board import earliest
from compactor.errors import FirnlineError
from compactor.events import Event
from compactor.iceberg.tables import KnownVersion
from compactor.table_names import TableName
from streaming.ledger.metadata_folders import metadata_version
from streaming.ledger.rhythm import UNKNOWN, Commits, Rhythm

if TYPE_CHECKING:
    from streaming.ledger.board_writer import TableFacts

MOST_ANNOUNCED = 16
"""Announcements that one look checks."""


class Now(NamedTuple):
    """One moment: seconds of a clock that only runs, for waits; and seconds since the epoch.

    `behind`: whether events wait that could not be read yet: then commits are found by looks.
    """

    ticks: float
    time: float
    behind: bool = False


class Lane(IntEnum):
    """Why a table is looked at, most urgent first."""

    EVENT = 0
    SWEEP = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class Asked:
    """What a look has to answer.

    `oldest_event`: time of the oldest announced commit, seconds since the epoch. `calls`: whether to ask the catalog;
    False: judge again what was counted, because partitions become due by time too. `announced`: snapshots and metadata
    files that events told of. `tries`: looks that did not find them, because events can come before their commit.
    `requested`: a requested rewrite of an unknown table waits for the answer. Few do, so no flood displaces the look.
    """

    lane: Lane = Lane.SWEEP
    oldest_event: float | None = None
    calls: bool = True
    announced: frozenset[int | str] = frozenset()
    tries: int = 0
    requested: bool = False

    def joined(self, other: Asked | None) -> Asked:
        """One look for both."""
        if other is None:
            return self
        oldest = earliest(self.oldest_event, other.oldest_event)
        announced = self.announced | other.announced
        if len(announced) > MOST_ANNOUNCED:
            announced = frozenset()  # so many commits: the next one asks for a look too
        tries = min(self.tries, other.tries)
        lane, requested = min(self.lane, other.lane), self.requested or other.requested
        return Asked(lane, oldest, self.calls or other.calls, announced, tries, requested)


class Later(NamedTuple):
    """A look that is asked for at a time, in seconds of the ticks. Other looks do not wait for it."""

    at: float
    asked: Asked


class Outcome(StrEnum):
    """What a look found."""

    COUNTED = "counted"
    UNCHANGED = "unchanged"
    COUNTING = "counting"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Count:
    """The last count of a table.

    `seen`: ids of the newest snapshots of its main branch, 8 bytes each; `settings`: the sections that `facts` were
    made with; `loaded_at`: when the last look began, in seconds since the epoch; `generation`: of the database that has
    the counts.
    """

    version: KnownVersion
    facts: TableFacts
    seen: array[int]
    settings: tuple[object, ...]
    loaded_at: float
    generation: int

    def has(self, snapshot_id: int, announced_at: float) -> bool:
        """Whether the count covers this snapshot, so that its announcement is no news.

        `announced_at`: seconds since the epoch. An announcement after the last look is news: it can tell of a rollback
        to this snapshot, or of a change of the table's properties.
        """
        return announced_at <= self.loaded_at and snapshot_id in self.seen

    def without(self, announced: frozenset[int | str]) -> frozenset[int | str]:
        """Which of these snapshots and metadata files the last look did not find, nor any later file."""
        version = metadata_version(self.version.metadata_location)

        def is_there(each: int | str) -> bool:
            if isinstance(each, int):
                return each in self.seen
            announced_version = metadata_version(each)
            return version is None or announced_version is None or announced_version <= version

        return frozenset(each for each in announced if not is_there(each))


@dataclass(frozen=True)
class Looked:
    """A look's result.

    Attributes:
        error: What failed, or why the table is missing.
        doubtful: The name could not be loaded and was never counted: it may be none.
        count: What the next look compares with; None: it must count.
        more: Whether a long count goes on.
        commits: What a count has found of the table's commits.
        place: The table's metadata file, of a count.
    """

    outcome: Outcome
    error: FirnlineError | None = None
    doubtful: bool = False
    count: Count | None = None
    more: bool = False
    commits: Commits | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """All that the ledger knows of one name. Times are of the ticks.

    Attributes:
        listed: Whether the last listing of its catalog has it, and it is ours.
        read: Whether a look has read it, and none has missed it since.
        answered: Whether a look has counted it, or told why not.
        count: The last count; None: the next look counts from the saved state.
        rhythm: When it is committed to, and whether events tell of it.
        planned: Whether it was planned: then looks read new manifests before the next plan needs them.
        failures: Looks in a row that failed.
        missing_until: Until when events of a name that no look found ask for no further look.
        swept_at: When the schedule asked last for a look; None: it has not yet.
        wanted: What the next look has to answer; None: nobody asks.
        later: A look that is asked for later.
        not_before: No look before this time: a pause, or a back-off.
        looking: Whether a thread looks at it now.
    """

    listed: bool = False
    read: bool = False
    answered: bool = False
    count: Count | None = None
    rhythm: Rhythm = UNKNOWN
    planned: bool = False
    failures: int = 0
    missing_until: float = 0.0
    swept_at: float | None = None
    wanted: Asked | None = None
    later: Later | None = None
    not_before: float = 0.0
    looking: bool = False

    @property
    def known(self) -> bool:
        """Whether it is a table: else its name may be one that an event made up."""
        return self.listed or self.read

    @property
    def scheduled(self) -> bool:
        """Whether it is looked at without anybody asking."""
        return self.known or self.failures > 0

    def idle(self, ticks: float) -> bool:
        """Whether nothing is known of the name, and nobody asks for it any more."""
        waits = self.looking or self.wanted is not None or self.later is not None
        return not self.scheduled and not waits and self.missing_until <= ticks


NO_RECORD = TableRecord()


@dataclass(frozen=True)
class Forget:
    """Drop the table from the board, since it is ignored now. Its state stays on disk."""

    table: TableName


@dataclass(frozen=True)
class Lost:
    """Drop the table from the board, since it does not exist. `with_state`: its saved counts too.

    `called`: the name by which the catalog has it: its requests go there.
    """

    table: TableName
    error: FirnlineError
    keep_requests: bool
    with_state: bool
    called: TableName | None = None


@dataclass(frozen=True)
class Stale:
    """Mark the table's debt as old, since it could not be read. `oldest_event`: as of `Asked`."""

    table: TableName
    error: FirnlineError
    oldest_event: float | None = None


Action = Forget | Lost | Stale | Event
"""What follows from a decision; an event is to be published."""
