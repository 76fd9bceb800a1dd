"""What all runs of a process share: sessions, records and locks, and when a commit may be sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark.sql import SparkSession

from compactor.commit.in_flight import InFlightRecords, Record
from compactor.commit.replace import Landed
from compactor.commit.sends import Sent
from compactor.commit.snapshots import CommitSummary
from compactor.errors import FirnlineError, LaterError, RetryError, StoppedError
from compactor.events import (
    CommitHeld,
    CommitRolledBack,
    CommitWaits,
    Listener,
    ignore,
)
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.manifests.cache import ManifestCache
from compactor.patience.backoff import SOON
from compactor.patience.deadline import Deadline
from compactor.planning.budget import Charge, Spent
from compactor.reasons import Reason
from compactor.runs.bundles import Pace
from compactor.runs.commit_hold import MISSES, SILENT, CommitHold, MissedError, commit_deadline
from compactor.runs.dropped_groups import has_expired
from compactor.runs.file_holds import FileHolds
from compactor.runs.lifelines import Lifelines
from compactor.runs.rollback_watch import RollbackWatch
from compactor.runs.slots import SlotPool
from compactor.runs.supervisor import RunWatch, Switches
from compactor.runs.turns import locked, unpublished_first, writer_first
from compactor.settings.tree import CommitSettings

LOG = logging.getLogger("firnline")
Done = TypeVar("Done")


@dataclass(frozen=True)
class Pending:
    """A finished rewrite or conversion that waits for its commit.

    Attributes:
        table: As it was planned.
        snapshot_id: The planned snapshot.
        watch: Tells when the run must stop.
        charge: Called with the costs.
        deadline: Every wait takes its time from it.
    """

    table: TableView
    snapshot_id: int | None
    run_id: str
    watch: RunWatch
    charge: Charge
    deadline: Deadline


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

    def pending(
        self, table: TableView, snapshot_id: int | None, run_id: str, watch: RunWatch, charge: Charge
    ) -> Pending:
        """A commit that begins to wait now."""
        return Pending(table, snapshot_id, run_id, watch, charge, commit_deadline(self.commit.hold_seconds, self.ticks))

    def in_time(self, pending: Pending, send: Callable[[float | None], Done], *, at_once: bool = False) -> Done:
        """Hold the commit of finished work, and send it unless its moment has passed; then hold it for the next one.

        What does not answer before it is sent is asked again until the deadline. Nothing of the commit can have landed
        then: else the error is a CommitUnknownError.

        Args:
            pending: The commit.
            send: Sends it; until when it is in time, by the steady clock (None: at any time).
            at_once: A writer has just committed; send it first without a wait, unless Flink's maintenance holds its
                lock.

        Raises:
            FirnlineError: by class the reaction.
        """
        table = pending.table
        missed = failures = 0
        while True:
            good_until = None
            try:
                again = missed > 0 or failures > 0
                if again or not at_once or self.locks.holder(table.name) is not None:
                    good_until = self.hold(pending, missed=again)
                return send(good_until if missed < MISSES else None)
            except MissedError:
                missed += 1
            except RetryError as error:
                failures += 1
                unreadable = error.reason is Reason.MANIFEST_UNREADABLE
                if error.reason not in SILENT or pending.deadline.is_over:
                    raise
                if unreadable and has_expired(table, pending.snapshot_id, self.catalogs):
                    raise
                self._wait(pending, error, SOON.seconds(failures))

    def _wait(self, pending: Pending, error: RetryError, seconds: float) -> None:
        name, run_id = pending.table.name, pending.run_id
        LOG.info("%s: run %s is not committed yet: %s; next attempt in %.0f s", name, run_id, error, seconds)
        self.lifelines.moved(name)
        if pending.watch.stopped.wait(seconds):
            raise StoppedError(f"run {run_id} of {name} was stopped while its commit waited") from error

    def hold(self, pending: Pending, *, missed: bool = False) -> float | None:
        """Wait for the right moment of a run's commit, unless the run is stopped before; until when it lasts.

        A lock is looked at again after the wait for a writer: it may have been taken during the wait. `missed`: the
        commit has missed its moment, maybe because a branch is to be published or a writer must commit first; that is
        waited for too.

        Raises:
            LaterError: it is another's turn until the deadline.
            RetryError: a lock cannot be read.
        """
        look, table, run_id = self._look(pending), pending.table, pending.run_id

        def theirs() -> LaterError | None:
            later = locked(table.name, self.locks)
            if later is None and missed:
                with suppress(RetryError):  # the catalog does not answer: the commit itself will say why
                    return self._others_first(look(), run_id)
            return later

        hold = CommitHold(
            look=look,
            theirs=theirs,
            stopped=pending.watch.stopped.wait,
            moved=lambda: self.lifelines.moved(table.name),
            waits=lambda seconds: self.listener(CommitWaits(run_id, table.name, seconds)),
            clock=self.clock,
            deadline=pending.deadline,
        )
        hold.until_our_turn()
        held = hold.wait(self.commit.hold_seconds)
        if held.seconds:
            self.listener(CommitHeld(run_id, table.name, held.seconds, after_writer=held.after_writer))
            hold.until_our_turn()
        return held.good_until

    def check_turn(self, table: TableView, run_id: str) -> None:
        """Make sure that no branch is to be published, and no writer must commit, before a commit of this run.

        `table` was loaded for the commit.

        Raises:
            MissedError: another goes first.
        """
        later = self._others_first(table, run_id)
        if later is not None:
            raise MissedError(str(later), reason=later.reason)

    def _others_first(self, table: TableView, run_id: str) -> LaterError | None:
        return unpublished_first(table, self.clock()) or writer_first(table, self.most_replaces(table), run_id)

    def rolled_back(self, pending: Pending, landed: Landed) -> bool:
        """Whether the catalog rolls the run's newest commit back, for a writer that was under way.

        Raises:
            RetryError: it does so until the deadline; nothing is committed.
        """
        name = pending.table.name
        if not self.commit.hold_seconds or not self.rolls_back(pending.table):
            return False
        rollback_watch = RollbackWatch(
            look=self._look(pending),
            stopped=pending.watch.stopped.wait,
            moved=lambda: self.lifelines.moved(name),
            clock=self.clock,
            deadline=pending.deadline,
        )
        rolled_back = rollback_watch.rolled_back(*landed, self.commit.hold_seconds)
        if rolled_back:
            self.listener(CommitRolledBack(pending.run_id, name, landed.snapshot_id))
        if rolled_back and pending.deadline.is_over:
            raise RetryError(
                f"{name}: the catalog rolls the commit back again and again for writers: they commit too often now",
                reason=Reason.COMMIT_REFUSED,
            )
        return rolled_back

    def _look(self, pending: Pending) -> Callable[[], TableView]:
        def look() -> TableView:
            pending.charge(Spent(catalog_calls=1))
            return self.catalogs.load(pending.table.name, pending.table.ref)

        return look

    def summary(self, table: TableView, run_id: str, engines: Sequence[str], part: str = "1/1") -> CommitSummary:
        """What a commit says of itself; `part`: "2/3" is the second of three commits of the run."""
        return CommitSummary(
            run_id=run_id,
            engines=tuple(engines),
            part=part,
            rollback_on_conflict=self.rolls_back(table),
            deployment=self.right.deployment,
            own=self.commit.snapshot_properties,
        )

    def rolls_back(self, table: TableView) -> bool:
        """Whether the catalog may roll a commit back for a writer that is under way."""
        is_polaris = self.catalogs.is_polaris(table.name.catalog)
        return self.commit.rolls_back(is_polaris=is_polaris, row_lineage=table.keeps_row_lineage)

    def about_to_send(self, record: Record, switches: Switches, sending: Sent, *, again: bool) -> None:
        """Put what is sent on the record of the run's outputs, then make sure that this service may still commit.

        `again`: an attempt was sent before, maybe minutes ago; the table's switch and the locks are asked again.

        Raises:
            StoppedError: the table was switched off or paused since, or the process is stopping.
            MissedError: another maintenance has taken its lock on the table since.
            FirnlineError: the service may not commit, or that cannot be told.
        """
        name = record.table
        if switches.stopping() or (again and not switches.enabled()):
            raise StoppedError(f"{name} was switched off or paused before the commit; it was not sent")
        if again and self.locks.holder(name) is not None:
            raise MissedError(f"Flink's maintenance has taken its lock on {name}; run {record.run_id} is not committed")
        self.records.renew(record, sending=sending)
        try:
            self.right.confirm()  # last: it may take long, and nothing may come between it and the commit
        except FirnlineError:
            self.records.note_unsent(record.run_id, sending)
            raise
