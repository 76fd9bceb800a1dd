"""The table worker: what happens to one due table. The dispatcher chooses the table; a worker does the rest.

`RewriteWorker`: load → plan → decline → rewrite → announce → merge manifests. `ObserveWorker`: load → plan → report.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from compactor.commit.manifest_rewrite import rewrite_manifests
from compactor.debt.board import TableDebt
from compactor.debt.manifest_debt import manifests_of
from compactor.errors import FirnlineError, GiveUpError
from compactor.events import RunFailed, RunWouldRewrite
from compactor.partitions import PartitionKey
from compactor.planning.budget import CATALOG_CALLS, Grant, Spent, requests_of
from compactor.planning.plan_table import TablePlan
from compactor.runs.results import DroppedGroup, NoGroupLeftError, RunResult
from compactor.runs.rewriter import Rewriter
from compactor.runs.table_planner import TablePlanner, first_request
from compactor.table_names import TableName

Announce = Callable[[TableName], None]
"""Called with a table after a commit to it."""
Stopping = Callable[[], bool]


class TableWorker(Protocol):
    """Works on one due table at a time; several threads call it for several tables."""

    def work(self, debt: TableDebt, stopping: Stopping, grant: Grant) -> Spent:
        """Do what is due now, within `grant`; returns what it cost.

        Raises:
            FirnlineError: by class the reaction; already published.
        """
        ...


@dataclass(frozen=True)
class RewriteWorker:
    """Rewrites what is due: first data files, then manifests."""

    planner: TablePlanner
    rewriter: Rewriter
    announce: Announce

    def work(self, debt: TableDebt, stopping: Stopping, grant: Grant) -> Spent:
        """See `TableWorker`."""
        spent = Spent()
        if debt.due or debt.requested:
            plan = self.planner.plan(debt, grant)
            spent = Spent() if plan is None else self._rewrite(debt, plan, stopping)
        if debt.manifests is not None and debt.manifests.due and not stopping():
            self._rewrite_manifests(debt.table)
        return spent

    def _rewrite(self, debt: TableDebt, plan: TablePlan, stopping: Stopping) -> Spent:
        planner = self.planner

        def enabled() -> bool:
            return planner.acts_on(planner.catalogs.load(debt.table))

        try:
            result = self.rewriter.run(plan, enabled=enabled, stopping=stopping, waiting_since=debt.waiting_since)
        except GiveUpError as error:  # another attempt would fail too, and block the table's other work
            planner.served(debt)
            if isinstance(error, NoGroupLeftError):
                self._decline(debt, plan, error.dropped)
            raise
        planner.board.settled(debt.table)
        planner.served(debt)
        self._decline(debt, plan, result.dropped)
        if result.snapshot_after is not None:
            self.announce(debt.table)
        return _spent(result)

    def _decline(self, debt: TableDebt, plan: TablePlan, dropped: Sequence[DroppedGroup]) -> None:
        """Partitions left alone or given up are not due again until they change."""
        if first_request(debt) is not None:
            return
        given_up: dict[PartitionKey, str] = {
            drop.planned.file_group.key: str(drop.error) for drop in dropped if isinstance(drop.error, GiveUpError)
        }
        left_alone = plan.left_alone(partition.key for partition in debt.due)
        self.planner.board.decline(debt, {**left_alone, **given_up})

    def _rewrite_manifests(self, name: TableName) -> None:
        """Merge manifests where that pays, from a fresh look. A failure is published and ends only this step."""
        planner, run_id = self.planner, str(uuid.uuid4())
        try:
            table = planner.catalogs.load(name)
            counts = manifests_of(table, planner.settings.manifests)
            if not counts.due or not planner.acts_on(table) or planner.is_left_to_another(table):
                return
            rewriter = self.rewriter
            done = rewrite_manifests(rewriter.session, table, counts.due_specs, run_id, right=rewriter.right)
            planner.listener(done)
        except FirnlineError as error:
            planner.listener(RunFailed.of(error, run_id, name, "manifests"))
            return
        self.announce(name)


@dataclass(frozen=True)
class ObserveWorker:
    """Plans what is due and publishes it; writes nothing."""

    planner: TablePlanner

    def work(self, debt: TableDebt, _stopping: Stopping, _grant: Grant) -> Spent:
        """See `TableWorker`."""
        plan = self.planner.plan(debt)
        if plan is None:
            return Spent()
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
        return Spent()


def _spent(result: RunResult) -> Spent:
    size = sum(group.rewritten.bytes_in for group in result.groups)
    files_in = sum(group.rewritten.files_in for group in result.groups)
    files_out = sum(group.rewritten.files_out for group in result.groups)
    return Spent(size, requests_of(files_in, files_out, size), CATALOG_CALLS * result.commits)
