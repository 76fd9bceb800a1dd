"""What the commit loop works with: what is committed (`Committable`), where (`Pending`), and the process's tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Generic, Protocol, TypeVar

from compactor.commit.history import CommitSummary
from compactor.commit.in_flight import InFlightRecords, Record
from compactor.commit.updates import Update
from compactor.events import Listener, ignore
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.manifests.cache import ManifestCache
from compactor.planning.budget import Charge, uncharged
from compactor.planning.conflicts import changes_since, is_traced
from compactor.runs.lifelines import Lifelines
from compactor.runs.supervisor import ALWAYS_ON, RunWatch, Switches
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import JavaTable


@dataclass
class Head:
    """The branch before an attempt to commit.

    Attributes:
        table: As it is now.
        attempt: 1 for the first.
    """

    table: TableView
    attempt: int
    java: JavaTable
    cache: ManifestCache

    @cached_property
    def changes(self) -> Sequence[FileEntry]:
        """Of the commits since the plan. Raises as `changes_since`."""
        return changes_since(self.table, self.java.view, self.java.snapshot_id, self.cache)

    @cached_property
    def traced(self) -> bool:
        """Whether the metadata lists all these commits. If not, Iceberg cannot validate from the plan: the commit has
        to name this head as the snapshot up to which others were taken into account.
        """
        return is_traced(self.table, self.java.snapshot_id)


class Prepared(Protocol):
    """What one `Committable.prepare` has made. `files`: locations of the files that it adds, once it has landed."""

    @property
    def update(self) -> Update: ...

    @property
    def files(self) -> Collection[str]: ...

    def check_outputs(self) -> None:
        """Called right before it is sent: look at the files that it adds.

        Raises:
            ReplanError: some are missing; with the reason CONFLICT it is prepared again.
            FirnlineError: the store does not answer.
        """


P = TypeVar("P", bound=Prepared)
P_co = TypeVar("P_co", bound=Prepared, covariant=True)


class Committable(Protocol[P_co]):
    """What is committed.

    Attributes:
        summary: Of all attempts.
        waits_for_writers: Whether it waits for its turn and for row-level writers.
        stage: Set by the loop: "hold" while it waits, "commit" while it prepares and sends.
    """

    stage: str

    @property
    def summary(self) -> CommitSummary: ...

    @property
    def waits_for_writers(self) -> bool: ...

    def prepare(self, head: Head) -> P_co | None:
        """Leave out what cannot be committed beside what others have committed, and write delete files for the rest;
        None: nothing is left.

        Raises:
            FirnlineError: by class and reason, it is called again (`decisions.py`), or the commit ends.
        """


@dataclass(frozen=True)
class Landed(Generic[P]):
    """A commit.

    `prepared`: what has landed: of the newest attempt, or of an earlier one whose commit arrived late. `seconds`: how
    long all attempts took, without waits for others.
    """

    snapshot_id: int
    prepared: P
    seconds: float


@dataclass(frozen=True)
class Pending:
    """Finished work that waits for its commit.

    Attributes:
        java: The table, loaded at the planned snapshot.
        record: Of its outputs; None: it has none.
        watch: Tells when the run must stop.
        switches: Asked before each attempt.
        charge: Called with the costs.
    """

    java: JavaTable
    run_id: str
    record: Record | None = None
    watch: RunWatch = field(default_factory=RunWatch)
    switches: Switches = ALWAYS_ON
    charge: Charge = uncharged


@dataclass(frozen=True)
class CommitTools:
    """What all commits of a process share.

    Attributes:
        records: Of outputs.
        right: Confirmed before each commit and each deletion.
        locks: Locks of other maintenance, looked at before each commit.
        most_replaces: How many `replace` snapshots may follow one another on a table (`policy.consecutive_replaces`).
        lifelines: When each run last made progress.
        clock: Seconds since the epoch, to compare with the times of commits. `ticks`: a steady clock.
    """

    catalogs: Catalogs
    cache: ManifestCache = field(default_factory=partial(ManifestCache, 0))
    records: InFlightRecords | None = None
    settings: CommitSettings = field(default_factory=CommitSettings)
    right: CommitRight = UNLIMITED
    locks: Locks = NO_LOCKS
    most_replaces: Callable[[TableView], int | None] = lambda _table: None
    lifelines: Lifelines = field(default_factory=Lifelines)
    listener: Listener = ignore
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic

    def summary(self, table: TableView, run_id: str, engines: Sequence[str], part: str = "1/1") -> CommitSummary:
        """What a commit says of itself; `part`: "2/3" is the second of three commits of the run."""
        return CommitSummary(
            run_id=run_id,
            engines=tuple(engines),
            part=part,
            rollback_on_conflict=self.rolls_back(table),
            deployment=self.right.deployment,
            own=self.settings.snapshot_properties,
        )

    def rolls_back(self, table: TableView) -> bool:
        """Whether the catalog may roll a commit back for a writer that is under way."""
        is_polaris = self.catalogs.is_polaris(table.name.catalog)
        return self.settings.rolls_back(is_polaris=is_polaris, row_lineage=table.keeps_row_lineage)
