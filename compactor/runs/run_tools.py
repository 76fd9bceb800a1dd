"""What all runs of a process share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from compactor.commit.in_flight import InFlightRecords
from compactor.events import Listener, ignore
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.manifests.cache import ManifestCache
from compactor.runs.bundles import Pace
from compactor.runs.committable import CommitTools
from compactor.runs.file_holds import FileHolds
from compactor.runs.lifelines import Lifelines
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings


@dataclass(frozen=True)
class RunTools:
    """What all runs of a process share.

    Attributes:
        slots: Spark tasks at once, of all runs. They never change a result.
        lease_seconds: How long an in-flight record protects outputs without being renewed.
        check_seconds: Between two looks at the table's switch while a run works.
        commit: When a long run commits in parts.
        pace: How fast output tasks were so far.
        right: Confirmed before each commit and each deletion.
        lifelines: When each run last made progress.
        locks: Locks of other maintenance, looked at before each commit.
        most_replaces: How many `replace` snapshots may follow one another on a table (`policy.consecutive_replaces`).
        files: Data files that are left out for a while, because a rewrite or search failed or killed the process.
    """

    session: SparkSession
    catalogs: Catalogs
    cache: ManifestCache
    records: InFlightRecords
    slots: SlotPool
    lease_seconds: float
    check_seconds: float
    commit: CommitSettings = field(default_factory=CommitSettings)
    listener: Listener = ignore
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    pace: Pace = field(default_factory=Pace)
    right: CommitRight = UNLIMITED
    lifelines: Lifelines = field(default_factory=Lifelines)
    locks: Locks = NO_LOCKS
    most_replaces: Callable[[TableView], int | None] = lambda _table: None
    files: FileHolds = field(default_factory=FileHolds)

    @property
    def committing(self) -> CommitTools:
        """What commits work with."""
        return CommitTools(
            catalogs=self.catalogs,
            cache=self.cache,
            records=self.records,
            settings=self.commit,
            right=self.right,
            locks=self.locks,
            most_replaces=self.most_replaces,
            lifelines=self.lifelines,
            listener=self.listener,
            clock=self.clock,
            ticks=self.ticks,
        )
