"""A rewrite of file groups: the kind of job that merges small files. A long one commits in parts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from compactor.commit.in_flight import new_run_id
from compactor.debt.board import TableDebt
from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.events import GroupCommitted, GroupDropped, RunCommitted, RunMoved, RunPlanned, RunSkipped
from compactor.manifests.live_files import reads
from compactor.partitions import PartitionKey, partition_text
from compactor.patience.holds import What
from compactor.planning.budget import Charge, Spent, requests_of, uncharged
from compactor.planning.engine import Engine
from compactor.planning.plan_table import TablePlan
from compactor.planning.planner import batches
from compactor.reasons import Reason
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.runner import OutputTaskRunner, WrittenOutput
from compactor.runs.bundles import WORK_OF_A_FILE
from compactor.runs.commit_groups import GroupCommit
from compactor.runs.dropped_groups import reclassify_conflicts, without_strays
from compactor.runs.failures import Next, failure_of
from compactor.runs.frame import Job, Part, carry_out
from compactor.runs.kinds import Desk, Step, Turn
from compactor.runs.output_record import Outputs
from compactor.runs.pool import Ran, Room
from compactor.runs.results import (
    DroppedGroup,
    GroupResult,
    NoGroupLeftError,
    NotTriedError,
    RunResult,
    as_planned,
    checked_result,
    paths_of,
)
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import ALWAYS_ON, Switches
from compactor.runs.table_planner import first_request
from compactor.spark.java_table import JavaTable

LOG = logging.getLogger("firnline")
SMALLER_FILES: Final = ", or lower the target file size"
Progress = Callable[[int, int, int], None]
"""Called with (output tasks done, output tasks in all, input bytes done)."""


class Rewrite(Job[WrittenOutput]):
    """One rewrite while it is under way. `result`: what it did so far."""

    verb, kind, holds = "rewriting", "rewrite", What.FILES
    _java: JavaTable
    _runner: OutputTaskRunner

    def __init__(
        self,
        tools: RunTools,
        plan: TablePlan,
        run_id: str,
        switches: Switches = ALWAYS_ON,
        charge: Charge = uncharged,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(tools, plan.table, run_id, switches, charge)
        self.plan = plan
        self._progress = _Progress(tools, plan, run_id, progress)
        self._finished: list[GroupResult] = []
        self._failed_commits = 0
        self._lost_a_race = False
        self.result = RunResult(
            run_id=run_id, table=plan.table.name, snapshot_before=plan.snapshot_id, snapshot_after=None, groups=(),
            plan_seconds=plan.seconds, rewrite_seconds=0.0, commit_seconds=0.0,
        )  # fmt: skip

    def begin(self) -> Outputs:
        """File groups to which stray deletes apply are left out first."""
        tools = self.tools
        self.plan, strays = without_strays(self.plan, tools.cache)
        tools.files.note(self.table, [(drop.paths, drop.error) for drop in strays], What.FILES)
        self._drop(strays)
        if strays and not self.plan.groups:
            raise NoGroupLeftError(strays)
        self._java = JavaTable.load(tools.session, self.table, self.plan.snapshot_id or 0)
        self._runner = OutputTaskRunner(self._java, self.plan, self.run_id)
        in_order = [sorted(part.pieces, key=self.seconds, reverse=True) for part in self.parts()]
        self._runner.expect([piece for pieces in in_order for piece in pieces])
        return Outputs(self._runner.output_files, self._runner.output_folders, self._runner.most_attempts)

    @contextmanager
    def around(self) -> Iterator[None]:
        """A process that is killed leaves file groups that are suspects."""
        groups = [paths_of(planned) for planned in self.plan.groups]
        with self.tools.files.under_way(self.table, groups):
            yield

    def parts(self) -> Sequence[Part]:
        """See `Job`; one part without pieces where only delete files are due."""
        settings, most = self.tools.commit, self.plan.most_commits
        groups = [planned.file_group for planned in self.plan.groups]
        made = batches(groups, settings.groups, settings.bytes, settings.max_commits)
        if most is not None and len(made) > most:
            made = batches(groups, settings.groups, settings.bytes, most)
        pieces = [
            [TaskId(number, index) for number in numbers for index in range(len(groups[number].tasks))]
            for numbers in list(made) or [()]
        ]
        return [Part(f"{number}/{len(pieces)}", each) for number, each in enumerate(pieces, 1)]

    # --- pieces -------------------------------------------------------------------------------------------------------

    def seconds(self, piece: TaskId) -> float:
        return self.tools.pace.seconds(*self._work_of(piece))

    def is_alone(self, piece: TaskId) -> bool:
        """File groups that may have killed the last process share no Spark job."""
        return piece.group in self._suspects or self.plan.groups[piece.group].engine.kind is Engine.SPARK

    def prepare(self, bundle: Sequence[TaskId]) -> None:
        self._runner.prepare(bundle)

    def run(self, bundle: Sequence[TaskId], room: Room) -> Mapping[TaskId, WrittenOutput | Exception | Next]:
        """Write outputs. What `splice` and `encode` refuse, Spark writes, alone."""
        suspects = {piece.group: self.paths(piece.group) for piece in bundle if piece.group in self._suspects}
        with self.tools.files.alone(self.table, suspects, room.waits):
            if suspects and room.waits():  # the job has ended while it waited for another suspect
                return {}
            try:
                not_begun = self._runner.write_ahead(bundle)
            except Exception:
                self._charge_reads(bundle)
                raise
            begun = [piece for piece in bundle if piece not in not_begun]
            refused = [piece for piece in begun if self._runner.needs_spark(piece)]
            if len(begun) == 1:
                refused, at_once = [], refused
            else:
                begun, at_once = [piece for piece in begun if piece not in refused], []
            self._charge_reads(begun)
            if not at_once:
                room.free()
            return {**dict.fromkeys(refused, Next.ALONE), **{piece: self._written(piece) for piece in begun}}

    def failure(self, piece: TaskId, error: Exception) -> FirnlineError:
        group = self.plan.groups[piece.group].file_group
        what = f"rewriting a file group of {self.table.name} ({partition_text(group.partition)})"
        return failure_of(what, error, [file.entry.path for file in group.tasks[piece.position]], SMALLER_FILES)

    def _written(self, piece: TaskId) -> WrittenOutput | Exception:
        try:
            written = self._runner.rewrite(piece)
        except Exception as error:  # noqa: BLE001 - the pool decides what follows
            return error
        self.tools.pace.learn(*self._work_of(piece), written.seconds)
        self.moved()
        self._progress.note(written)
        return written

    def _charge_reads(self, pieces: Sequence[TaskId]) -> None:
        """Charge what a Spark job has read, or may have read before it failed."""
        costs = [reads(self.plan.groups[piece.group].file_group.tasks[piece.position])[-1] for piece in pieces]
        size = sum(size for *_, size in costs)
        self.charge(Spent(size, requests_of(sum(files + deletes for files, deletes, _ in costs), len(pieces), size)))

    def _work_of(self, piece: TaskId) -> tuple[Engine, int]:
        planned = self.plan.groups[piece.group]
        files = planned.file_group.tasks[piece.position]
        return planned.engine.kind, sum(file.size + WORK_OF_A_FILE for file in files)

    @cached_property
    def _suspects(self) -> frozenset[int]:
        return self.tools.files.suspects(self.table.name, [paths_of(planned) for planned in self.plan.groups])

    # --- checks -------------------------------------------------------------------------------------------------------

    def checked(self, part: Part, ran: Ran[WrittenOutput]) -> Mapping[int, FirnlineError]:
        """Rows in, rows deleted and rows out add up."""
        failed, outputs = dict(ran.failed), sorted(ran.done.items())
        self._finished = []
        for number in dict.fromkeys(piece.group for piece in part.pieces):
            parts = [output for piece, output in outputs if piece.group == number]
            try:
                if number not in failed:
                    self._finished.append(checked_result(self.run_id, self.plan, self.plan.groups[number], parts))
            except GiveUpError as mismatch:
                failed[number] = mismatch
        for group in self._finished:
            self.tools.listener(group.rewritten)
        tried = {number: error for number, error in failed.items() if not isinstance(error, NotTriedError)}
        if tried:
            failed |= reclassify_conflicts(self.plan, tried, self.tools.catalogs, self.tools.cache)
        self.result = replace(self.result, rewrite_seconds=self.result.rewrite_seconds + ran.seconds)
        return failed

    def paths(self, group: int) -> Collection[str]:
        return frozenset(paths_of(self.plan.groups[group]))

    def leave(self, failed: Mapping[int, FirnlineError]) -> None:
        self._drop([DroppedGroup(self.plan.groups[number], error) for number, error in failed.items()])

    def _drop(self, dropped: Sequence[DroppedGroup]) -> None:
        self.result = replace(self.result, dropped=(*self.result.dropped, *dropped))
        not_tried = [drop for drop in dropped if isinstance(drop.error, NotTriedError)]
        if not_tried:
            LOG.warning("%s: %d file groups: %s", self.table.name, len(not_tried), not_tried[0].error)
        for drop in dropped:
            if drop in not_tried:
                continue
            self.tools.listener(
                GroupDropped(
                    run_id=self.run_id,
                    table=self.table.name,
                    key=drop.planned.file_group.key,
                    reason=drop.error.reason,
                    reaction=drop.error.reaction,
                    message=str(drop.error),
                    plan=as_planned(self.plan, drop.planned),
                )
            )

    # --- commit -------------------------------------------------------------------------------------------------------

    def commit(self, part: Part) -> bool:
        """Finished file groups are left out if that fails, as long as so many commits may fail."""
        if part.pieces and not self._finished:
            return False
        try:
            return self._commit(part)
        except (RetryError, ReplanError, GiveUpError) as error:
            self._failed_commits += 1
            if self._failed_commits > self.tools.commit.max_failed_commits:
                raise
            # The files are not at fault: they wait as those without an answer do.
            waits = RetryError(f"the commit of its rewrite failed: {error}", reason=error.reason)
            dropped = [DroppedGroup(group.planned, error) for group in self._finished]
            if not isinstance(error, ReplanError):
                self.tools.files.note(self.table, [(drop.paths, waits) for drop in dropped], self.holds)
            self._drop(dropped)
            return False

    def _commit(self, part: Part) -> bool:
        """Commit finished file groups, except groups that another commit touched."""
        tools = self.tools.committing
        engines = [output.engine.kind.value for group in self._finished for output in group.parts]
        summary = tools.summary(self.table, self.run_id, engines, part.name)
        job = GroupCommit(self._java, self.plan, self._finished, summary, self.charge, tools.listener)
        try:
            landed = self.send(job, self._java)
        except FirnlineError:
            self._lost_a_race = True  # delete files of this attempt may be left
            self.stage = job.stage
            raise
        self._lost_a_race = self._lost_a_race or job.attempts > 1
        self._drop(job.dropped if landed is None else landed.prepared.dropped)
        if landed is None:
            return False
        before, kept, removed = self.result, landed.prepared.kept, len(landed.prepared.dangling)
        self.result = replace(
            before,
            groups=(*before.groups, *(replace(group, parts=()) for group in kept)),
            commit_seconds=before.commit_seconds + landed.seconds,
            commits=before.commits + 1,
            snapshot_after=landed.snapshot_id,
            delete_files_removed=before.delete_files_removed + removed,
        )
        for group in kept:
            self.tools.listener(
                GroupCommitted(
                    rewritten=group.rewritten,
                    snapshot_id=landed.snapshot_id,
                    delete_files_removed=removed,
                    rows_carried=group.rows_carried,
                    rows_rebased=group.rows_rebased,
                )
            )
        return True

    # --- end ----------------------------------------------------------------------------------------------------------

    @property
    def leftovers(self) -> bool | None:
        """Outputs of dropped file groups, of tasks that ran twice, and of lost races."""
        if self.result.dropped or self._runner.repeated:
            return None
        by_spark = any(group.rewritten.engine == Engine.SPARK.value for group in self.result.groups)
        return self._lost_a_race or by_spark

    def end(self) -> None:
        """Another attempt may help unless every file group was given up."""
        dropped = self.result.dropped
        if not dropped or self.commits:
            return
        tried = [drop for drop in dropped if not isinstance(drop.error, NotTriedError)]
        others = [drop.error for drop in tried or dropped if not isinstance(drop.error, GiveUpError)]
        raise others[0] if others else NoGroupLeftError(tried, dropped)

    def publish_planned(self) -> None:
        """Publish that the rewrite begins."""
        plan = self.plan
        files = sum(len(group.file_group.files) for group in plan.groups)
        self.tools.listener(RunPlanned(self.run_id, self.table.name, len(plan.groups), files, plan.bytes, plan.seconds))

    def publish_committed(self, waiting_since: float | None) -> None:
        """Publish how the rewrite ended. `waiting_since`: when the oldest event that it answers was published."""
        done = self.result
        if done.snapshot_after is None:  # another commit came first and removed the same delete files
            self.tools.listener(RunSkipped(table=self.table.name, reason=Reason.NOTHING_DUE))
            return
        groups = [group.rewritten for group in done.groups]
        self.tools.listener(
            RunCommitted(
                run_id=done.run_id,
                table=done.table,
                snapshot_id=done.snapshot_after,
                groups=len(groups),
                files_in=sum(group.files_in for group in groups),
                files_out=sum(group.files_out for group in groups),
                bytes_in=sum(group.bytes_in for group in groups),
                bytes_out=sum(group.bytes_out for group in groups),
                plan_seconds=done.plan_seconds,
                rewrite_seconds=done.rewrite_seconds,
                commit_seconds=done.commit_seconds,
                event_to_compacted_seconds=(
                    None if waiting_since is None else max(0.0, self.tools.clock() - waiting_since)
                ),
                delete_files_removed=done.delete_files_removed,
            )
        )


def rewrite(
    tools: RunTools,
    plan: TablePlan,
    switches: Switches = ALWAYS_ON,
    charge: Charge = uncharged,
    run_id: str | None = None,
    progress: Progress | None = None,
    waiting_since: float | None = None,
    do: Callable[[Rewrite], object] = carry_out,
) -> RunResult:
    """Carry out a plan from `plan_table`. It can be stopped at any time except while it commits.

    A file group that cannot be rewritten, or that another commit touched, is dropped and the others go on. The run
    fails when none is left.

    Args:
        tools: Of the process.
        plan: What to do.
        switches: Whether it may go on; the table's switch is asked once more before each commit.
        charge: Called with each cost when it arises.
        run_id: A new one if None.
        progress: Called after each output task.
        waiting_since: When the oldest event that the run answers was published (seconds since the epoch).
        do: Carries the job out.

    Raises:
        FirnlineError: by class the reaction; nothing more was committed (unless it is a CommitUnknownError).
    """
    may_go_on = Switches(switches.enabled, lambda: switches.stopping() or tools.right.lost() is not None)
    job = Rewrite(tools, plan, run_id or new_run_id(plan.table), may_go_on, charge, progress)
    if plan.has_work and plan.snapshot_id is not None:
        job.publish_planned()
        do(job)
        job.publish_committed(waiting_since)
    return job.result


class _Progress:
    """Counts the output tasks that are done, and tells. Thread-safe."""

    def __init__(self, tools: RunTools, plan: TablePlan, run_id: str, told: Progress | None) -> None:
        tasks = sum(len(planned.file_group.tasks) for planned in plan.groups)
        self._lock = threading.Lock()
        self._now = RunMoved(run_id, plan.table.name, tasks_done=0, tasks=tasks, bytes_done=0, bytes=plan.bytes)
        self._publish, self._told = tools.listener, told

    def note(self, output: WrittenOutput) -> None:
        """An output is written."""
        with self._lock:
            now = self._now
            done, size = now.tasks_done + 1, now.bytes_done + output.bytes_in
            self._now = now = replace(now, tasks_done=done, bytes_done=size)
            self._publish(now)
            if self._told:
                self._told(now.tasks_done, now.tasks, now.bytes_done)


@dataclass(frozen=True)
class Rewrites:
    """Rewrites data files that are due or requested."""

    desk: Desk
    name: str = "rewrites"

    def is_due(self, turn: Turn) -> bool:
        return bool(turn.debt.due or turn.debt.requested)

    def work(self, turn: Turn) -> Step | None:
        planner, tools, debt = self.desk.planner, self.desk.tools, turn.debt
        plan = planner.plan(debt, turn.table, turn.left)
        if plan is None:
            return None
        tools.lifelines.moved(debt.table)
        try:
            done = rewrite(
                tools, plan, turn.switches, turn.charge, waiting_since=debt.waiting_since, do=self.desk.carry_out
            )
        except GiveUpError as error:  # another attempt would fail too, and block the table's other work
            dropped = error.dropped if isinstance(error, NoGroupLeftError) else None
            planner.part_served(debt, 0 if dropped is None else plan.files_left + _overtaken_files(dropped))
            if dropped is not None:
                self._decline(debt, plan, dropped)
            raise
        planner.board.settled(debt.table)
        planner.part_served(debt, plan.files_left + _overtaken_files(done.dropped))
        self._decline(debt, plan, done.dropped)
        if done.snapshot_after is not None:
            self.desk.announce(debt.table)
        return Step(commits=done.commits)

    def _decline(self, debt: TableDebt, plan: TablePlan, dropped: Sequence[DroppedGroup]) -> None:
        """Partitions left alone, or whose files are held, are not due again until they change; then without the files.

        A partition with other groups that wait for the next run stays due.
        """
        if first_request(debt) is not None:
            return
        waiting = {each.planned.file_group.key for each in dropped if isinstance(each.error, ReplanError)}
        causes = ((each.planned.file_group.key, str(each.error)) for each in dropped)
        held: dict[PartitionKey, str] = {key: why for key, why in causes if key not in waiting}
        left_alone = plan.left_alone(partition.key for partition in debt.due)
        self.desk.planner.decline(debt, {**left_alone, **held}, plan)


def _overtaken_files(dropped: Sequence[DroppedGroup]) -> int:
    """Files of groups that other commits overtook, or that got no answer: another run can rewrite them."""
    overtaken = (drop.planned.file_group for drop in dropped if not isinstance(drop.error, GiveUpError))
    return sum(len(group.files) for group in overtaken)
