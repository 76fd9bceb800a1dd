"""What the table worker asks of each kind of job, and what it tells it: the turn of one due table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from compactor.debt.board import TableDebt
from compactor.errors import FirnlineError
from compactor.iceberg.tables import TableView
from compactor.planning.budget import PLAN_CALLS, Charge, Grant, Spent
from compactor.runs.frame import Job, carry_out
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import Switches
from compactor.runs.table_planner import TablePlanner
from compactor.table_names import TableName


class Step(NamedTuple):
    """What a kind of job has done in a turn.

    Attributes:
        commits: How many.
        ends: Nothing else is done in this turn: readers get one new snapshot at a time.
        failed: Another attempt may succeed; it is brought about if nothing is committed in this turn.
    """

    commits: int = 0
    ends: bool = False
    failed: FirnlineError | None = None


@dataclass(frozen=True)
class Desk:
    """What all kinds of jobs work with. `announce` is called with a table after a commit to it. `carry_out` does a job:
    see `frame.py`.
    """

    planner: TablePlanner
    tools: RunTools
    announce: Callable[[TableName], object]
    carry_out: Callable[[Job[Any]], object] = carry_out


class Turn:
    """The turn of one due table: what is due, what it may cost, and the table as it was loaded last.

    `stopping`: whether the work must end. `charge` is called with each cost when it arises, also of jobs that fail.
    """

    def __init__(
        self, planner: TablePlanner, debt: TableDebt, stopping: Callable[[], bool], grant: Grant, charge: Charge
    ) -> None:
        self.debt = debt
        self.switches = Switches(partial(_enabled, planner, debt.table), stopping)
        self._planner = planner
        self._grant = grant
        self._charge = charge
        self._costs: list[Spent] = []
        self._table: TableView | None = None
        self.commits = 0
        """Of this turn."""

    def charge(self, spent: Spent) -> None:
        """A cost has arisen, in any thread."""
        self._costs.append(spent)
        self._charge(spent)

    @property
    def left(self) -> Grant:
        """What is left of the grant."""
        return self._grant.less(sum(self._costs, Spent()))

    @property
    def table(self) -> TableView:
        """The table, if files of it may be rewritten now.

        Raises:
            FirnlineError: as of `TablePlanner.load`.
        """
        if self._table is None:
            first = not self._costs
            self.charge(Spent(catalog_calls=1))
            self._table = self._planner.load(self.debt)
            if first:
                self.charge(Spent(catalog_calls=PLAN_CALLS - 1))  # a table that waits for others is loaded often
        return self._table

    def forget_table(self) -> None:
        """Something was tried: the next kind loads the table again."""
        self._table = None


class Kind(Protocol):
    """A kind of job. A turn tries each name once."""

    @property
    def name(self) -> str:
        """What it does, in the plural, for messages."""
        ...

    def is_due(self, turn: Turn) -> bool:
        """Whether something may be due."""
        ...

    def work(self, turn: Turn) -> Step | None:
        """Do what is due; None: nothing was. Failures are published.

        Raises:
            FirnlineError: the turn ends; by class the reaction.
        """
        ...


def _enabled(planner: TablePlanner, name: TableName) -> bool:
    return planner.acts_on(planner.tools.catalogs.load(name))
