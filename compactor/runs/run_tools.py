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
from compactor.planning.budget import Charge, Spent
from compactor.reasons import Reason
from compactor.runs.bundles import Pace
from compactor.runs.commit_hold import MISSES, CommitHold, MissedError, Silence
from compactor.runs.dropped_groups import has_expired
from compactor.runs.given_up_files import GivenUpFiles
from compactor.runs.lifelines import Lifelines
from compactor.runs.rollback_watch import RollbackWatch
from compactor.runs.silence import Unanswered
from compactor.runs.slots import SlotPool
from compactor.runs.supervisor import RunWatch, Switches
from compactor.runs.turns import locked, unpublished_first, writer_first
from compactor.settings.tree import CommitSettings

LOG = logging.getLogger("firnline")
Done = TypeVar("Done")
ROLLBACKS = 8
"""Commits of the same work that the catalog rolls back, one after the other, before the run ends."""


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
        unanswered: Files that the next run of a table comes to last.
        given_up: Files that are left alone, because a rewrite failed or killed the process.
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
    unanswered: Unanswered = field(default_factory=Unanswered)
    given_up: GivenUpFiles = field(default_factory=GivenUpFiles)

    def in_time(
        self,
        table: TableView,
        snapshot_id: int | None,
        run_id: str,
        watch: RunWatch,
        charge: Charge,
        send: Callable[[float | None], Done],
        *,
        at_once: bool = False,
    ) -> Done:
        """Hold the commit of finished work, and send it unless its moment has passed; then hold it for the next one.

        What does not answer before it is sent is asked again for a while.

        Args:
            table: As it was planned.
            snapshot_id: The planned snapshot.
            run_id: Of the run.
            watch: Tells when the run must stop.
            charge: Called with the costs.
            send: Sends the commit; until when it is in time, by the steady clock (None: at any time).
            at_once: A writer has just committed; send it first without a wait, unless Flink's maintenance holds its
                lock.

        Raises:
            FirnlineError: by class the reaction.
        """
        missed, silence = 0, Silence()
        while True:
            good_until = None
            try:
                again = missed > 0 or silence.failures > 0
                if again or not at_once or self.locks.holder(table.name) is not None:
                    good_until = self.hold(table, run_id, watch, charge, missed=again)
                return send(good_until if missed < MISSES else None)
            except MissedError:
                missed += 1
            except RetryError as error:
                pause = silence.pause(error, self.ticks())
                unreadable = error.reason is Reason.MANIFEST_UNREADABLE
                if pause is None or (unreadable and has_expired(table, snapshot_id, self.catalogs)):
                    raise
                self._wait(table, run_id, watch, error, pause)

    def _wait(self, table: TableView, run_id: str, watch: RunWatch, error: RetryError, seconds: float) -> None:
        name = table.name
        LOG.info("%s: run %s is not committed yet: %s; next attempt in %.0f s", name, run_id, error, seconds)
        self.lifelines.moved(name)
        if watch.stopped.wait(seconds):
            raise StoppedError(f"run {run_id} of {name} was stopped while its commit waited") from error

    def hold(
        self, table: TableView, run_id: str, watch: RunWatch, charge: Charge, *, missed: bool = False
    ) -> float | None:
        """Wait for the right moment of a run's commit, unless the run is stopped before; until when it lasts.

        A lock is looked at again after the wait for a writer: it may have been taken during the wait. `missed`: the
        commit has missed its moment, maybe because a branch is to be published or a writer must commit first; that is
        waited for too.

        Raises:
            LaterError: it is another's turn for too long.
            RetryError: a lock cannot be read.
        """
        look = self._look(table, charge)

        def theirs() -> LaterError | None:
            later = locked(table.name, self.locks)
            if later is None and missed:
                with suppress(RetryError):  # the catalog does not answer: the commit itself will say why
                    return self._others_first(look(), run_id)
            return later

        hold = CommitHold(
            look=look,
            theirs=theirs,
            stopped=watch.stopped.wait,
            moved=lambda: self.lifelines.moved(table.name),
            waits=lambda seconds: self.listener(CommitWaits(run_id, table.name, seconds)),
            clock=self.clock,
            ticks=self.ticks,
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

    def rolled_back(
        self, table: TableView, run_id: str, landed: Landed, times: int, watch: RunWatch, charge: Charge
    ) -> bool:
        """Whether the catalog rolls the run's newest commit back, for a writer that was under way.

        `times`: how often the run has sent this commit.

        Raises:
            RetryError: it did so `ROLLBACKS` times; nothing is committed.
        """
        name = table.name
        if not self.commit.hold_seconds or not self.rolls_back(table):
            return False
        rollback_watch = RollbackWatch(
            look=self._look(table, charge),
            stopped=watch.stopped.wait,
            moved=lambda: self.lifelines.moved(name),
            clock=self.clock,
            ticks=self.ticks,
        )
        rolled_back = rollback_watch.rolled_back(*landed, self.commit.hold_seconds)
        if rolled_back:
            self.listener(CommitRolledBack(run_id, name, landed.snapshot_id))
        if rolled_back and times == ROLLBACKS:
            raise RetryError(
                f"{name}: the catalog rolled the commit back {ROLLBACKS} times for writers: they commit too often at "
                "present",
                reason=Reason.COMMIT_REFUSED,
            )
        return rolled_back

    def _look(self, table: TableView, charge: Charge) -> Callable[[], TableView]:
        def look() -> TableView:
            charge(Spent(catalog_calls=1))
            return self.catalogs.load(table.name, table.ref)

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
