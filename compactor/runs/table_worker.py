"""The table worker: what happens to one due table. The dispatcher chooses the table; a worker does the rest.

`RewriteWorker`: load → convert equality deletes; if nothing was converted: plan → decline → rewrite; announce, merge
manifests. Manifests that have waited for too long are merged first, right after another writer's commit.
`ObserveWorker`: load → plan → report.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from compactor.commit.in_flight import new_run_id
from compactor.debt.board import TableDebt
from compactor.debt.manifest_debt import manifests_of
from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, LaterError, ReplanError, StoppedError
from compactor.events import RunFailed, RunSkipped, RunWouldRewrite
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionKey
from compactor.patience.holds import What
from compactor.planning.budget import PLAN_CALLS, Charge, Grant, Spent, cost_of_merge
from compactor.planning.conversion import Conversion
from compactor.planning.plan_table import TablePlan
from compactor.planning.replace_order import tail_of
from compactor.reasons import Reason
from compactor.runs.convert import Converting
from compactor.runs.job_errors import is_no_answer
from compactor.runs.manifests import rewrite_manifests
from compactor.runs.results import DroppedGroup, NoGroupLeftError
from compactor.runs.rewriter import Rewriter
from compactor.runs.supervisor import Switches
from compactor.runs.table_planner import TablePlanner, first_request
from compactor.spark.java_table import unforeseen
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
Announce = Callable[[TableName], None]
"""Called with a table after a commit to it."""
Stopping = Callable[[], bool]


class TableWorker(Protocol):
    """Works on one due table at a time; several threads call it for several tables."""

    def work(self, debt: TableDebt, stopping: Stopping, grant: Grant, charge: Charge) -> None:
        """Do what is due now, within `grant`; each cost is charged when it arises, also of runs that fail.

        Raises:
            FirnlineError: by class the reaction; already published.
        """
        ...


class DueManifests:
    """Since when the manifests of each table have been due (seconds since the epoch), as far as this process knows."""

    def __init__(self) -> None:
        self._since: dict[TableName, float] = {}

    def seconds(self, debt: TableDebt, now: float) -> float | None:
        """How long they have been due; None if they are not."""
        if debt.due_manifests is None:
            self._since.pop(debt.table, None)
            return None
        since = self._since[debt.table] = min(self._since.get(debt.table, now), now)
        return now - since

    def begin_again(self, table: TableName) -> None:
        """They were merged, or could not be: if they are still due, they wait as long again."""
        self._since.pop(table, None)


@dataclass(frozen=True)
class RewriteWorker:
    """Rewrites what is due: first data files, then manifests.

    A writer's commit is followed by one of them. Where files are due after each, manifests that have been due for
    an hour go first once.
    """

    planner: TablePlanner
    rewriter: Rewriter
    announce: Announce
    due_manifests: DueManifests = field(default_factory=DueManifests)

    def work(self, debt: TableDebt, stopping: Stopping, grant: Grant, charge: Charge) -> None:
        """See `TableWorker`."""
        commits, first, costs, failed = 0, False, list[Spent](), list[FirnlineError]()
        charge = _noting(costs, charge)
        waited = self.due_manifests.seconds(debt, self.planner.clock())
        if debt.due or debt.requested:
            charge(Spent(catalog_calls=1))
            table = self.planner.load(debt)
            charge(Spent(catalog_calls=PLAN_CALLS - 1))  # a table that waits for others is loaded often
            self._moved(debt)
            first = self._manifests_go_first(debt, table, waited)
            if first:
                if self._merge_manifests_first(debt, stopping, grant.less(sum(costs, Spent())), charge, failed):
                    return  # files wait for the next commit of another writer
                charge(Spent(catalog_calls=1))
                table = self.planner.load(debt)
            conversion = self.planner.conversion(debt, table, grant)
            if conversion.deletes:
                if self._convert(table, conversion, stopping, charge, failed):
                    return  # what else is due is found by the next look: readers get one new snapshot at a time
                charge(Spent(catalog_calls=1))
                table = self.planner.load(debt)
            plan = self.planner.plan(debt, table, grant.less(sum(costs, Spent())))
            self._moved(debt)
            if plan is not None:
                commits = self._rewrite(debt, plan, stopping, charge)
                if commits:
                    failed.clear()  # catalog and store are well
        may_commit = grant.commits is None or commits < grant.commits
        if debt.due_manifests is not None and may_commit and not first:
            left = grant.less(sum(costs, Spent()))
            self._merge_manifests_last(debt, stopping, left, charge, failed, last=commits > 0)
        if failed:
            raise failed[0]

    def _manifests_go_first(self, debt: TableDebt, table: TableView, waited: float | None) -> bool:
        """Whether manifests have waited for so long that they follow this commit of another writer. Requests go first.

        `waited`: for how many seconds they have been due; None: they are not.
        """
        if waited is None or debt.requested or waited < self.planner.settings.manifests.wait_seconds:
            return False
        return tail_of(table.history).count == 0

    def _merge_manifests_first(
        self, debt: TableDebt, stopping: Stopping, left: Grant, charge: Charge, failed: list[FirnlineError]
    ) -> bool:
        """Merge manifests; whether that was committed. After a failure, which is published, files need not wait; if
        another attempt may succeed, it is added to `failed`. Nor need they if only manifests must wait, because another
        `replace` came before the commit: then manifests go first again after the next commit of a writer.

        Raises:
            StoppedError, LaterError: as of `_rewrite_manifests`; files may not be rewritten either.
            CommitUnknownError: it may have been committed; then files wait for the next commit of a writer.
        """
        if stopping():
            raise StoppedError(f"the manifests of {debt.table} are not merged now")
        try:
            done = self._rewrite_manifests(debt, left, charge, last=False)
        except StoppedError:
            raise
        except LaterError as later:
            if later.reason is not Reason.REPLACES_IN_A_ROW:
                raise
            return False
        except FirnlineError as error:
            self.due_manifests.begin_again(debt.table)
            if isinstance(error, CommitUnknownError):
                raise
            failed.append(error)
            return False
        self.due_manifests.begin_again(debt.table)
        return done

    def _merge_manifests_last(
        self,
        debt: TableDebt,
        stopping: Stopping,
        left: Grant,
        charge: Charge,
        failed: list[FirnlineError],
        *,
        last: bool,
    ) -> None:
        """Merge manifests after all else. They may have to wait for longer than what failed.

        Raises:
            FirnlineError: as of `_rewrite_manifests`.
        """
        if stopping():
            raise StoppedError(f"the manifests of {debt.table} are not merged now")
        try:
            merged = self._rewrite_manifests(debt, left, charge, last=last)
        except LaterError:
            if not failed:
                raise
        else:
            if merged:
                failed.clear()

    def _moved(self, debt: TableDebt) -> None:
        """The run makes progress: a step has ended."""
        self.rewriter.lifelines.moved(debt.table)

    def _convert(
        self, table: TableView, conversion: Conversion, stopping: Stopping, charge: Charge, failed: list[FirnlineError]
    ) -> bool:
        """Convert equality deletes; returns whether that was committed.

        A failure is published, and raised unless it was given up, or the store did not answer, which is added to
        `failed`: then the table's other work goes on.
        """
        planner, run_id = self.planner, new_run_id(table)
        switches = Switches(partial(self._enabled, table.name), stopping)
        converting = Converting(self.rewriter, table, conversion, run_id, switches, charge=charge)
        try:
            done = converting.convert()
        except Exception as error:
            what = f"converting deletes of {table.name}"
            failure = error if isinstance(error, FirnlineError) else unforeseen(what, error)
            planner.listener(RunFailed.of(failure, run_id, table.name, "convert", str(error)))
            if is_no_answer(failure):  # to these searches, or only to the commit
                failed.append(failure)
            elif isinstance(failure, GiveUpError):
                if not converting.refused:
                    files = [file.entry.path for file in conversion.files]
                    planner.files.note(table, [(files, failure)], What.SEARCH)
            elif failure is error:
                raise
            else:
                raise failure from error
            return False
        if converting.refused:
            LOG.warning("%s: %s equality deletes are not converted: %s", table.name, done.deletes_left, done.why)
            planner.listener(RunSkipped(table=table.name, reason=Reason.CONVERSION_REFUSED))
        if done.snapshot_after is None:
            return False
        planner.board.settled(table.name)
        planner.listener(done.as_event())
        self.announce(table.name)
        return True

    def _enabled(self, name: TableName) -> bool:
        return self.planner.acts_on(self.planner.catalogs.load(name))

    def _rewrite(self, debt: TableDebt, plan: TablePlan, stopping: Stopping, charge: Charge) -> int:
        """Rewrite; returns the number of commits."""
        planner = self.planner
        enabled = partial(self._enabled, debt.table)
        try:
            result = self.rewriter.run(
                plan, enabled=enabled, stopping=stopping, waiting_since=debt.waiting_since, charge=charge
            )
        except GiveUpError as error:  # another attempt would fail too, and block the table's other work
            dropped = error.dropped if isinstance(error, NoGroupLeftError) else None
            planner.part_served(debt, 0 if dropped is None else plan.files_left + _overtaken_files(dropped))
            if dropped is not None:
                self._decline(debt, plan, dropped)
            raise
        planner.board.settled(debt.table)
        planner.part_served(debt, plan.files_left + _overtaken_files(result.dropped))
        self._decline(debt, plan, result.dropped)
        if result.snapshot_after is not None:
            self.announce(debt.table)
        return result.commits

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
        self.planner.decline(debt, {**left_alone, **held}, plan)

    def _rewrite_manifests(self, debt: TableDebt, left: Grant, charge: Charge, *, last: bool) -> bool:
        """Merge manifests where that pays, from a fresh look; whether that was committed. A failure is published.

        Args:
            debt: Of the table.
            left: Of the run's grant. A merge that exceeds it is put off if something was committed before.
            charge: Called with the costs.
            last: Something was committed before. Then a failure ends only this step: the look after that commit brings
                another attempt.

        Raises:
            StoppedError: the table is switched off; published.
            LaterError: the table is left to another compactor, or the merge must wait for a writer; published.
            FirnlineError: another attempt may succeed, and only this error brings one.
        """
        planner, run_id, name = self.planner, str(uuid.uuid4()), debt.table
        try:
            table = planner.catalogs.load(name)
            counts = manifests_of(table, planner.settings.manifests)
            if not counts.due:
                return False
            planner.check_switches(debt, table)
            planner.turns.check(table, manifests=True)
            cost = cost_of_merge(counts)
            if last and not left.covers(cost):
                return False
            charge(replace(cost, commits=0))  # also if it fails half-way
            rewriter, specs = self.rewriter, counts.due_specs[:1]  # one commit; the next spec waits for a writer's
            turn = partial(self._check_turn, name)
            done = rewrite_manifests(rewriter.session, table, specs, run_id, rewriter.committing, check_turn=turn)
            charge(Spent(commits=cost.commits))
            planner.listener(done)
        except (LaterError, StoppedError):  # published as skipped
            raise
        except FirnlineError as error:
            if isinstance(error, CommitUnknownError):
                charge(Spent(commits=1))
            planner.listener(RunFailed.of(error, run_id, name, "manifests"))
            if last or isinstance(error, GiveUpError):
                return False
            raise
        self.announce(name)
        return True

    def _check_turn(self, name: TableName) -> None:
        """Make sure that a merge of manifests may still be committed. Raises as `Turns.check`."""
        self.planner.turns.check(self.planner.catalogs.load(name), manifests=True)


def _overtaken_files(dropped: Sequence[DroppedGroup]) -> int:
    """Files of groups that other commits overtook, or that got no answer: another run can rewrite them."""
    overtaken = (drop.planned.file_group for drop in dropped if not isinstance(drop.error, GiveUpError))
    return sum(len(group.files) for group in overtaken)


def _noting(costs: list[Spent], charge: Charge) -> Charge:
    """A charge that also notes each cost."""

    def noted(spent: Spent) -> None:
        costs.append(spent)
        charge(spent)

    return noted


@dataclass(frozen=True)
class ObserveWorker:
    """Plans what is due and publishes it; writes nothing."""

    planner: TablePlanner

    def work(self, debt: TableDebt, _stopping: Stopping, _grant: Grant, _charge: Charge) -> None:
        """See `TableWorker`."""
        plan = self.planner.plan(debt, self.planner.load(debt))
        if plan is None:
            return
        self.planner.served(debt)
        self.planner.listener(
            RunWouldRewrite(
                table=debt.table,
                groups=len(plan.groups),
                files=sum(len(group.file_group.files) for group in plan.groups),
                files_after=sum(len(group.file_group.tasks) for group in plan.groups),
                bytes=plan.bytes,
            )
        )
