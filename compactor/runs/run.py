"""One run of one table: note outputs → rewrite file groups → check rows → commit → clean up.

The order is the safety: outputs are on record before the first byte, rows are checked before the commit, and a failure
after the commit was sent deletes no output whose fate is unknown. A long run commits in parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from pyspark.sql import SparkSession

from compactor.commit.in_flight import InFlightRecords, Record
from compactor.commit.replace import Landed
from compactor.commit.snapshots import CommitSummary
from compactor.commit.statistics import carry_statistics
from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, LaterError, RetryError, StoppedError
from compactor.events import (
    CommitHeld,
    CommitRolledBack,
    CommitWaits,
    GroupCommitted,
    GroupDropped,
    Listener,
    RunMoved,
    ignore,
)
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.manifests.cache import ManifestCache
from compactor.planning.budget import COMMIT_CALLS, Charge, Spent, requests_of, uncharged
from compactor.planning.engine import Engine
from compactor.planning.plan_table import TablePlan
from compactor.planning.planner import batches
from compactor.reasons import Reason
from compactor.rewrite.tasks.runner import OutputTaskRunner, WrittenOutput
from compactor.rewrite.tasks.spark_scan import run_folder
from compactor.runs.bundles import Pace
from compactor.runs.commit_groups import Committed, CommitTools, commit_groups
from compactor.runs.commit_hold import MISSES, CommitHold, MissedError
from compactor.runs.dropped_groups import reclassify_conflicts, without_strays
from compactor.runs.lifelines import Lifelines
from compactor.runs.output_jobs import OutputJobs
from compactor.runs.output_record import OutputRecords
from compactor.runs.results import DroppedGroup, GroupResult, NoGroupLeftError, RunResult, as_planned
from compactor.runs.rollback_watch import RollbackWatch
from compactor.runs.slots import SlotPool
from compactor.runs.supervisor import RunSupervisor, RunWatch, Switches, stall_explained
from compactor.runs.turns import locked, unpublished_first
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import JavaTable

ROLLBACKS = 8
"""Commits of the same work that the catalog rolls back, one after the other, before the run ends."""
Progress = Callable[[int, int, int], None]
"""Called with (output tasks done, output tasks in all, input bytes done)."""


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

    def hold(
        self, table: TableView, run_id: str, watch: RunWatch, charge: Charge, *, missed: bool = False
    ) -> float | None:
        """Wait for the right moment of a run's commit, unless the run is stopped before; until when it lasts.

        A lock is looked at again after the wait for a writer: it may have been taken during the wait. `missed`: the
        commit has missed its moment, maybe because a branch is to be published first; that is waited for too.

        Raises:
            LaterError: it is another's turn for too long.
            RetryError: a lock cannot be read.
        """
        look = self._look(table, charge)

        def theirs() -> LaterError | None:
            later = locked(table.name, self.locks)
            if later is None and missed:
                with suppress(RetryError):  # the catalog does not answer: the commit itself will say why
                    return unpublished_first(look(), self.clock())
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

    def check_turn(self, table: TableView) -> None:
        """Make sure that no branch is to be published before a commit to `table`, which was loaded for it.

        Raises:
            MissedError: there is one.
        """
        later = unpublished_first(table, self.clock())
        if later is not None:
            raise MissedError(str(later), reason=later.reason)

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
        )

    def rolls_back(self, table: TableView) -> bool:
        """Whether the catalog may roll a commit back for a writer that is under way."""
        is_polaris = self.catalogs.is_polaris(table.name.catalog)
        return self.commit.rolls_back(is_polaris=is_polaris, row_lineage=table.keeps_row_lineage)

    def about_to_send(self, record: Record, switches: Switches, *, again: bool) -> None:
        """Keep the run's outputs on record, then make sure that this service may still commit.

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
        self.records.renew(record, sending=True)
        self.right.confirm()  # last: it may take long, and nothing may come between it and the commit


class Run:
    """One run while it is under way. `stage` and `commits` say how far it is; `result` what it did so far."""

    def __init__(
        self,
        tools: RunTools,
        plan: TablePlan,
        run_id: str,
        switches: Switches,
        progress: Progress | None = None,
        charge: Charge = uncharged,
    ) -> None:
        self.stage = "rewrite"
        self.commits = 0
        self._tools = tools
        self._plan = plan
        self._run_id = run_id
        self._switches = switches
        self._progress = progress
        self._charge = charge
        self._outputs = OutputRecords(tools.records, tools.catalogs, tools.cache, tools.right)
        self._snapshot_after: int | None = None
        self._delete_files_removed = 0
        self._rewrite_seconds = self._commit_seconds = 0.0
        self._tasks_done = self._bytes_done = 0
        self._results: list[GroupResult] = []
        self._dropped: list[DroppedGroup] = []
        self._lost_a_race = False
        self._sends = count(1)
        self._lock = threading.Lock()

    @property
    def result(self) -> RunResult:
        """What the run did so far."""
        return RunResult(
            run_id=self._run_id,
            table=self._plan.table.name,
            snapshot_before=self._plan.snapshot_id,
            snapshot_after=self._snapshot_after,
            groups=tuple(self._results),
            plan_seconds=self._plan.seconds,
            rewrite_seconds=self._rewrite_seconds,
            commit_seconds=self._commit_seconds,
            dropped=tuple(self._dropped),
            commits=self.commits,
            delete_files_removed=self._delete_files_removed,
        )

    def carry_out(self, snapshot_id: int) -> RunResult:
        """Rewrite and commit the plan, which was made at `snapshot_id`.

        Raises:
            FirnlineError: by class the reaction; `commits` says how many commits came before.
        """
        tools, name = self._tools, self._plan.table.name
        self._plan, strays = without_strays(self._plan, tools.cache)
        self._drop(strays)
        if strays and not self._plan.groups:
            raise NoGroupLeftError(strays)
        table = JavaTable.load(tools.session, self._plan.table, snapshot_id)
        runner = OutputTaskRunner(tools.session, table, self._plan, self._run_id)
        supervisor = RunSupervisor(
            tools.records, self._cancel, tools.lease_seconds, tools.check_seconds, lambda: tools.lifelines.stalled(name)
        )
        around = self._outputs.around(
            self._run_id, self._plan.table, runner.output_files, runner.output_folders, runner.most_attempts
        )
        with around as record, supervisor.watch(record, self._switches) as watch:
            parts = self._parts()
            with stall_explained(watch, f"the run of {name}"):
                for number, groups in enumerate(parts, 1):
                    finished = self._rewrite(runner, watch, groups) if groups else []
                    if finished or not groups:
                        self._commit(table, record, watch, finished, f"{number}/{len(parts)}")
            if self._dropped and self.commits == 0:
                raise _nothing_committed(self._dropped)
        self._clean_up(record, written_twice=runner.repeated)
        return self.result

    def _parts(self) -> list[Sequence[int]]:
        """Numbers of the file groups of each commit; one commit without groups where only delete files are due."""
        settings = self._tools.commit
        groups = [planned.file_group for planned in self._plan.groups]
        made = batches(groups, settings.groups, settings.bytes, settings.max_commits)
        most = self._plan.most_commits
        if most is not None and len(made) > most:
            made = batches(groups, settings.groups, settings.bytes, most)
        return list(made) or [()]

    def _rewrite(self, runner: OutputTaskRunner, watch: RunWatch, numbers: Sequence[int]) -> list[GroupResult]:
        """Rewrite these file groups. Returns those whose rows add up; the others are dropped."""
        self.stage = "rewrite"
        started = self._tools.ticks()
        jobs = OutputJobs(
            runner=runner,
            plan=self._plan,
            run_id=self._run_id,
            slots=self._tools.slots,
            pace=self._tools.pace,
            stopped=watch.stopped,
            cancel=self._cancel,
            done=self._note,
            moved=self._moved,
            read=self._charge_files,
        )
        finished, failed = jobs.rewrite(numbers)
        for group in finished:
            self._tools.listener(group.rewritten)
        if failed:
            self._drop(reclassify_conflicts(self._plan, failed, self._tools.catalogs, self._tools.cache))
        self._rewrite_seconds += self._tools.ticks() - started
        return finished

    def _commit(
        self, table: JavaTable, record: Record, watch: RunWatch, finished: Sequence[GroupResult], part: str
    ) -> None:
        """Commit finished file groups, without those that another commit touched.

        What the catalog rolls back for a writer is committed again right after that writer's commit.
        """
        committed = self._sent_in_time(table, record, watch, finished, part)
        for times in count(1):
            if committed.landed is None or not self._rolled_back(committed.landed, times, watch):
                break
            committed = self._sent_in_time(table, record, watch, committed.kept, part, at_once=True)
        self._results += [replace(group, parts=()) for group in committed.kept]
        if committed.landed is None:
            return
        self.commits += 1
        self._tools.records.note_committed(self._run_id, committed.files)
        self._snapshot_after = committed.landed.snapshot_id
        self._delete_files_removed += committed.delete_files_removed
        for group in committed.kept:
            self._tools.listener(
                GroupCommitted(
                    rewritten=group.rewritten,
                    snapshot_id=committed.landed.snapshot_id,
                    delete_files_removed=committed.delete_files_removed,
                    rows_carried=group.rows_carried,
                    rows_rebased=group.rows_rebased,
                )
            )

    def _sent_in_time(
        self,
        table: JavaTable,
        record: Record,
        watch: RunWatch,
        finished: Sequence[GroupResult],
        part: str,
        *,
        at_once: bool = False,
    ) -> Committed:
        """Hold the commit, and send it unless its moment has passed; then hold it for the next one.

        `at_once`: a writer has just committed; send it first without a wait.
        """
        for missed in count():
            good_until = None
            if missed or not at_once:
                self.stage = "hold"
                good_until = self._tools.hold(self._plan.table, self._run_id, watch, self._charge, missed=missed > 0)
            with suppress(MissedError):
                return self._sent(table, record, watch, finished, part, good_until if missed < MISSES else None)
            self._lost_a_race = True  # delete files of this attempt may be left
        raise AssertionError("unreachable: a commit without a moment misses none")

    def _sent(
        self,
        table: JavaTable,
        record: Record,
        watch: RunWatch,
        finished: Sequence[GroupResult],
        part: str,
        good_until: float | None = None,
    ) -> Committed:
        started = self._tools.ticks()
        self._moved()
        self._tools.records.renew(record)
        self.stage = "commit"
        with watch.commit(self._plan.table.name, wanted=self._switches.on):
            self._charge(Spent(catalog_calls=COMMIT_CALLS))
            try:
                committed = self._send(table, finished, part, record, good_until)
            except CommitUnknownError:
                self._charge(Spent(commits=1))
                raise
        self._drop(committed.dropped)
        self._commit_seconds += self._tools.ticks() - started
        if committed.landed:
            self._charge(Spent(commits=1))
        return committed

    def _rolled_back(self, landed: Landed, times: int, watch: RunWatch) -> bool:
        self.stage = "hold"
        rolled_back = self._tools.rolled_back(self._plan.table, self._run_id, landed, times, watch, self._charge)
        self._lost_a_race = self._lost_a_race or rolled_back
        return rolled_back

    def _send(
        self,
        table: JavaTable,
        groups: Sequence[GroupResult],
        part: str,
        record: Record,
        good_until: float | None,
    ) -> Committed:
        engines = [output.engine.kind.value for group in groups for output in group.parts]
        summary = self._tools.summary(self._plan.table, self._run_id, engines, part)
        attempts, sends = count(), next(self._sends)

        def about_to_send() -> None:
            attempt = next(attempts)
            if attempt:  # the first one is charged before its preparation, which may find nothing to send
                self._charge(Spent(catalog_calls=COMMIT_CALLS))
            if good_until is not None and self._tools.ticks() > good_until:
                raise MissedError(f"the commit of run {self._run_id} was prepared too late after a writer's commit")
            self._tools.about_to_send(record, self._switches, again=attempt > 0 or sends > 1)

        def deletes_at(race: int) -> str:
            """In the run's own folder, which the record lists: what no snapshot references is deleted with it."""
            self._lost_a_race = self._lost_a_race or race > 1
            return f"{run_folder(table, self._run_id)}/deletes-{part.replace('/', '-')}-{sends}-{race}"

        tools = CommitTools(self._tools.catalogs, self._tools.cache, deletes_at, about_to_send, self._tools.check_turn)
        committed = commit_groups(table, self._plan, groups, summary, tools)
        if committed.landed:
            carry_statistics(table, committed.landed.snapshot_id, self._tools.right.confirm)
        return committed

    def _clean_up(self, record: Record, *, written_twice: bool) -> None:
        """Delete outputs of dropped file groups, of tasks that ran twice, and of lost races: no snapshot has them."""
        by_spark = any(group.rewritten.engine == Engine.SPARK.value for group in self._results)
        rolls_back = self.commits > 0 and self._tools.rolls_back(self._plan.table)
        if self._dropped or written_twice:
            self._outputs.abandon(record, rolls_back=rolls_back)  # a task may still write
        else:
            self._outputs.close(record, clean=self._lost_a_race or by_spark, rolls_back=rolls_back)

    def _drop(self, dropped: Sequence[DroppedGroup]) -> None:
        self._dropped += dropped
        for drop in dropped:
            self._tools.listener(
                GroupDropped(
                    run_id=self._run_id,
                    table=self._plan.table.name,
                    key=drop.planned.file_group.key,
                    reason=drop.error.reason,
                    reaction=drop.error.reaction,
                    message=str(drop.error),
                    plan=as_planned(self._plan, drop.planned),
                )
            )

    def _charge_files(self, files: int, outputs: int, size: int) -> None:
        self._charge(Spent(size, requests_of(files, outputs, size)))

    def _moved(self) -> None:
        self._tools.lifelines.moved(self._plan.table.name)

    def _note(self, output: WrittenOutput) -> None:
        self._moved()
        with self._lock:
            self._tasks_done += 1
            self._bytes_done += output.bytes_in
            tasks = sum(len(planned.file_group.tasks) for planned in self._plan.groups)
            moved = RunMoved(
                run_id=self._run_id,
                table=self._plan.table.name,
                tasks_done=self._tasks_done,
                tasks=tasks,
                bytes_done=self._bytes_done,
                bytes=self._plan.bytes,
            )
            self._tools.listener(moved)
            if self._progress:
                self._progress(self._tasks_done, tasks, self._bytes_done)

    def _cancel(self) -> None:
        self._tools.session.sparkContext.cancelJobGroup(self._run_id)


def _nothing_committed(dropped: Sequence[DroppedGroup]) -> FirnlineError:
    """Why a run committed nothing: another attempt may help unless every file group was given up."""
    others = [drop.error for drop in dropped if not isinstance(drop.error, GiveUpError)]
    return others[0] if others else NoGroupLeftError(dropped)
