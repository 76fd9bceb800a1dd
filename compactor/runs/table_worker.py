"""The table worker: what happens to one due table. The dispatcher chooses the table; a worker does the rest.

`RewriteWorker` tries the kinds of jobs in their order. A writer's commit is followed by one of them.
`ObserveWorker`: load → plan → report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compactor.debt.board import TableDebt
from compactor.errors import FirnlineError, LaterError, StoppedError
from compactor.events import RunWouldRewrite
from compactor.planning.budget import Charge, Grant
from compactor.runs.convert import Conversions
from compactor.runs.frame import Job, carry_out
from compactor.runs.kinds import Desk, Kind, Turn
from compactor.runs.merge import DueManifests, Merges
from compactor.runs.rewrite import Rewrites
from compactor.runs.rewriter import Rewriter
from compactor.runs.table_planner import TablePlanner
from compactor.table_names import TableName

Announce = Callable[[TableName], None]
"""Called with a table after a commit to it."""
Stopping = Callable[[], bool]


@dataclass(frozen=True)
class RewriteWorker:
    """Does what is due, in the order of `kinds`. `carry_out` does a job: see `frame.py`."""

    planner: TablePlanner
    rewriter: Rewriter
    announce: Announce
    carry_out: Callable[[Job[Any]], object] = carry_out

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """All kinds of jobs, in order of precedence. Manifests that have waited for an hour go first once."""
        desk, manifests = Desk(self.planner, self.rewriter, self.announce, self.carry_out), DueManifests()
        return (
            Merges(desk, manifests, first=True),
            Conversions(desk),
            Rewrites(desk),
            Merges(desk, manifests, first=False),
        )

    def work(self, debt: TableDebt, stopping: Stopping, grant: Grant, charge: Charge) -> None:
        """Do what is due now, within `grant`; each cost is charged when it arises, also of runs that fail. Several
        threads call it, each for another table.

        Raises:
            FirnlineError: by class the reaction; already published.
        """
        turn, tried = Turn(self.planner, debt, stopping, grant, charge), set[str]()
        failed: FirnlineError | None = None
        for kind in self.kinds:
            if turn.left.commits == 0 or kind.name in tried or not kind.is_due(turn):
                continue
            if stopping():
                raise StoppedError(f"{kind.name} of {debt.table} are not begun now")
            self.rewriter.lifelines.moved(debt.table)
            try:
                step = kind.work(turn)
            except LaterError as later:  # the table may have to wait for longer than for what failed
                raise failed or later  # noqa: B904
            if step is None:
                continue
            tried.add(kind.name)
            turn.forget_table()
            turn.commits += step.commits
            failed = None if turn.commits else failed or step.failed  # a commit shows that catalog and store are well
            if step.ends:
                break
        if failed is not None:
            raise failed


@dataclass(frozen=True)
class ObserveWorker:
    """Plans what is due and publishes it; writes nothing."""

    planner: TablePlanner

    def work(self, debt: TableDebt, _stopping: Stopping, _grant: Grant, _charge: Charge) -> None:
        plan = self.planner.plan(debt, self.planner.load(debt))
        if plan is None:
            return
        self.planner.served(debt)
        self.planner.tools.listener(
            RunWouldRewrite(
                table=debt.table,
                groups=len(plan.groups),
                files=sum(len(group.file_group.files) for group in plan.groups),
                files_after=sum(len(group.file_group.tasks) for group in plan.groups),
                bytes=plan.bytes,
            )
        )
