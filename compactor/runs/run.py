"""One run of one table: note outputs → rewrite file groups → check rows → commit → clean up.

The order is the safety: outputs are on record before the first byte, rows are checked before the commit, and a failure
after the commit was sent deletes no output whose fate is unknown. A long run commits in parts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from compactor.commit.in_flight import Record
from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.events import (
    GroupCommitted,
    GroupDropped,
    RunMoved,
)
from compactor.patience.holds import What
from compactor.planning.budget import Charge, Spent, requests_of, uncharged
from compactor.planning.engine import Engine
from compactor.planning.plan_table import TablePlan
from compactor.planning.planner import batches
from compactor.rewrite.tasks.runner import OutputTaskRunner, WrittenOutput
from compactor.runs.commit_groups import GroupCommit
from compactor.runs.committable import Pending
from compactor.runs.committing import commit
from compactor.runs.dropped_groups import given_up, reclassify_conflicts, without_strays
from compactor.runs.output_jobs import OutputJobs
from compactor.runs.output_record import OutputRecords
from compactor.runs.results import (
    NO_ANSWER,
    DroppedGroup,
    GroupResult,
    NoGroupLeftError,
    NotTriedError,
    RunResult,
    as_planned,
    not_tried,
    paths_of,
)
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import RunSupervisor, RunWatch, Switches, stall_explained
from compactor.runs.unavailable import Unavailable
from compactor.spark.java_table import JavaTable

LOG = logging.getLogger("firnline")
Progress = Callable[[int, int, int], None]
"""Called with (output tasks done, output tasks in all, input bytes done)."""


class _Part(NamedTuple):
    """One commit of a run; `name`: "2/3" is the second of three."""

    name: str
    pending: Pending


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
        self.commits = 0
        self._tools = tools
        self._plan = plan
        self._run_id = run_id
        self._switches = switches
        self._progress = progress
        self._charge = charge
        self._outputs = OutputRecords(tools.records, tools.catalogs, tools.cache, tools.right, tools.listener)
        self._snapshot_after: int | None = None
        self._delete_files_removed = 0
        self._rewrite_seconds = self._commit_seconds = 0.0
        self._tasks_done = self._bytes_done = self._failed_commits = 0
        self._results: list[GroupResult] = []
        self._dropped: list[DroppedGroup] = []
        self._store = Unavailable()
        self._lost_a_race = False
        self._committing: GroupCommit | None = None
        self._lock = threading.Lock()

    @property
    def stage(self) -> str:
        """What it does: rewrite, or wait for its commit (hold), or commit."""
        return "rewrite" if self._committing is None else self._committing.stage

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
        runner = OutputTaskRunner(table, self._plan, self._run_id)
        supervisor = RunSupervisor(
            tools.records, self._cancel, tools.lease_seconds, tools.check_seconds, lambda: tools.lifelines.stalled(name)
        )
        around = self._outputs.around(
            self._run_id, self._plan.table, runner.output_files, runner.output_folders, runner.most_attempts
        )
        under_way = tools.files.under_way(self._plan.table, [*map(paths_of, self._plan.groups)])
        with under_way, around as record, supervisor.watch(record, self._switches) as watch:
            parts = self._parts()
            with stall_explained(watch, f"the run of {name}"):
                for number, groups in enumerate(parts, 1):
                    if self._store.is_certain:
                        self._drop([not_tried(self._plan.groups[each], NO_ANSWER) for each in groups])
                        continue
                    finished = self._rewrite(runner, watch, groups) if groups else ()
                    if finished or not groups:
                        pending = Pending(table, self._run_id, record, watch, self._switches, self._charge)
                        self._try_commit(_Part(f"{number}/{len(parts)}", pending), finished)
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

    def _rewrite(self, runner: OutputTaskRunner, watch: RunWatch, numbers: Sequence[int]) -> Sequence[GroupResult]:
        """Rewrite these file groups. Returns those whose rows add up; the others are dropped. Those of them that were
        tried are left out of the next runs for a while.

        Raises:
            FirnlineError: by class the reaction.
        """
        self._committing = None
        started = self._tools.ticks()
        paths = [frozenset(paths_of(planned)) for planned in self._plan.groups]
        suspects = self._tools.files.suspects(self._plan.table.name, paths)
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
            store=self._store,
            suspects={number: paths[number] for number in suspects},
            alone=partial(self._tools.files.alone, self._plan.table),
        )
        finished, failed = jobs.rewrite(numbers)
        for group in finished:
            self._tools.listener(group.rewritten)
        if failed:
            dropped = reclassify_conflicts(self._plan, failed, self._tools.catalogs, self._tools.cache)
            is_well = bool(finished) or self.commits > 0
            self._drop([self._given_up_if_it_fails_again(drop) if is_well else drop for drop in dropped])
        self._rewrite_seconds += self._tools.ticks() - started
        return finished

    def _given_up_if_it_fails_again(self, drop: DroppedGroup) -> DroppedGroup:
        """A group without an answer twice in a row, while others were rewritten, is given up: the fault is its own."""
        failures = self._tools.files.failures(self._plan.table.name, frozenset(drop.paths))
        return given_up(drop) if failures and isinstance(drop.error, RetryError) else drop

    def _try_commit(self, part: _Part, finished: Sequence[GroupResult]) -> None:
        """Commit finished file groups. They are dropped if that fails, as long as so many commits may fail.

        Raises:
            FirnlineError: by class the reaction; always if it is unknown whether the commit has landed.
        """
        try:
            self._commit(part, finished)
        except (RetryError, ReplanError, GiveUpError) as error:
            self._failed_commits += 1
            if self._failed_commits > self._tools.commit.max_failed_commits:
                raise
            self._drop([DroppedGroup(group.planned, error) for group in finished])

    def _commit(self, part: _Part, finished: Sequence[GroupResult]) -> None:
        """Commit finished file groups, except groups that another commit touched."""
        tools = self._tools.committing
        engines = [output.engine.kind.value for group in finished for output in group.parts]
        summary = tools.summary(self._plan.table, self._run_id, engines, part.name)
        job = GroupCommit(part.pending.java, self._plan, finished, summary, self._charge, self._tools.listener)
        self._committing = job
        try:
            landed = commit(job, part.pending, tools)
        except FirnlineError:
            self._lost_a_race = True  # delete files of this attempt may be left
            raise
        self._lost_a_race = self._lost_a_race or job.attempts > 1
        if landed is None:
            self._drop(job.dropped)
            return
        done = landed.prepared
        self._drop(done.dropped)
        self._results += [replace(group, parts=()) for group in done.kept]
        self.commits += 1
        self._commit_seconds += landed.seconds
        self._store.end()
        self._snapshot_after = landed.snapshot_id
        self._delete_files_removed += len(done.dangling)
        for group in done.kept:
            self._tools.listener(
                GroupCommitted(
                    rewritten=group.rewritten,
                    snapshot_id=landed.snapshot_id,
                    delete_files_removed=len(done.dangling),
                    rows_carried=group.rows_carried,
                    rows_rebased=group.rows_rebased,
                )
            )

    def _clean_up(self, record: Record, *, written_twice: bool) -> None:
        """Delete outputs of dropped file groups, of tasks that ran twice, and of lost races: no snapshot has them."""
        by_spark = any(group.rewritten.engine == Engine.SPARK.value for group in self._results)
        rolls_back = self.commits > 0 and self._tools.committing.rolls_back(self._plan.table)
        if self._dropped or written_twice:
            self._outputs.abandon(record, rolls_back=rolls_back)  # a task may still write
        else:
            self._outputs.close(record, clean=self._lost_a_race or by_spark, rolls_back=rolls_back)

    def _drop(self, dropped: Sequence[DroppedGroup]) -> None:
        self._dropped += dropped
        failed = [(drop.paths, drop.error) for drop in dropped if not isinstance(drop.error, ReplanError)]
        self._tools.files.note(self._plan.table, failed, What.FILES)
        not_tried_now = [drop for drop in dropped if isinstance(drop.error, NotTriedError)]
        if not_tried_now:
            LOG.warning("%s: %d file groups: %s", self._plan.table.name, len(not_tried_now), not_tried_now[0].error)
        for drop in dropped:
            if drop in not_tried_now:
                continue
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
    tried = [drop for drop in dropped if not isinstance(drop.error, NotTriedError)]
    others = [drop.error for drop in tried or dropped if not isinstance(drop.error, GiveUpError)]
    return others[0] if others else NoGroupLeftError(tried, dropped)
