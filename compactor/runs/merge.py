"""A merge of a table's manifests: the kind of job that touches no data file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compactor.debt.board import TableDebt
from compactor.debt.manifest_debt import manifests_of
from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, LaterError, RetryError, StoppedError
from compactor.events import ManifestsRewritten
from compactor.iceberg.tables import TableView
from compactor.patience.holds import What
from compactor.planning.budget import cost_of_merge
from compactor.planning.replace_order import tail_of
from compactor.reasons import Reason
from compactor.runs.frame import Job, Part
from compactor.runs.kinds import Desk, Step, Turn
from compactor.runs.manifests import rewrite_manifests
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import Switches
from compactor.runs.turns import Turns
from compactor.table_names import TableName


class Merge(Job[None]):
    """One merge of manifests. It has no pieces: Iceberg merges while it prepares the commit. What it writes is no
    output that a record must list: what was not sent is deleted, and manifests that no snapshot has cost little.
    """

    verb, kind, holds = "merging manifests of", "manifests", What.FILES

    def __init__(
        self, tools: RunTools, table: TableView, specs: Sequence[int], switches: Switches, turn: Turn, turns: Turns
    ) -> None:
        super().__init__(tools, table, str(uuid.uuid4()), switches, turn.charge)
        self._specs = specs
        self._turns = turns
        self.result: ManifestsRewritten | None = None
        self.later: LaterError | None = None
        """Why it must wait; published."""

    def commit(self, _part: Part) -> bool:
        tools = self.tools
        try:
            self.result = rewrite_manifests(
                tools.session,
                self.table,
                self._specs,
                self.run_id,
                tools.committing,
                self.check_turn,
                self.watch,
                self.charge,
            )
        except LaterError as later:
            self.later = later
            return False
        except RetryError as error:
            if self.watch.stopped.is_set():
                raise self._stopped() from error
            raise
        return True

    def check_turn(self) -> None:
        """Right before the commit.

        Raises:
            StoppedError: the merge was stopped.
            LaterError: as of `Turns.check`.
        """
        if self.watch.stopped.is_set() or self.switches.stopping():
            raise self._stopped()
        self._turns.check(self.tools.catalogs.load(self.table.name), manifests=True)

    def _stopped(self) -> StoppedError:
        return StoppedError(f"{self.what} was stopped before its commit")


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
class Merges:
    """Merges manifests where that pays. `first`: only those that have waited for too long, right after a commit of
    another writer: a writer's commit is followed by one of ours, and files may be due after each.
    """

    desk: Desk
    due: DueManifests
    first: bool
    name: str = "merges of manifests"

    def is_due(self, turn: Turn) -> bool:
        """Requests go first."""
        planner, debt = self.desk.planner, turn.debt
        waited = self.due.seconds(debt, planner.tools.clock())
        if waited is None or not self.first:
            return waited is not None
        if debt.requested or not debt.due or waited < planner.settings.manifests.wait_seconds:
            return False
        return tail_of(turn.table.history).count == 0

    def work(self, turn: Turn) -> Step | None:
        """Merges from a fresh look.

        Raises:
            StoppedError: the table is switched off; published.
            LaterError: the table is left to another compactor, or the merge must wait for a writer; published.
        """
        name = turn.debt.table
        try:
            merge = self._merge(turn)
        except LaterError as later:
            if not self.first or later.reason is not Reason.REPLACES_IN_A_ROW:
                raise
            return Step()  # only manifests must wait, because another `replace` came before the commit
        except StoppedError:
            raise
        except FirnlineError as error:
            self.due.begin_again(name)
            # If it was committed after all, files wait for the next commit of a writer.
            unknown = isinstance(error, CommitUnknownError)
            return Step(ends=unknown, failed=None if isinstance(error, GiveUpError) else error)
        if merge is None or merge.result is None:
            return None
        self.due.begin_again(name)
        self.desk.tools.listener(merge.result)
        self.desk.announce(name)
        return Step(commits=1, ends=True)

    def _merge(self, turn: Turn) -> Merge | None:
        planner, tools, debt = self.desk.planner, self.desk.tools, turn.debt
        table = planner.tools.catalogs.load(debt.table)
        counts = manifests_of(table, planner.settings.manifests)
        if not counts.due:
            return None
        planner.check_switches(debt, table)
        planner.turns.check(table, manifests=True)
        cost = cost_of_merge(counts)
        if turn.commits and not turn.left.covers(cost):
            return None
        turn.charge(replace(cost, catalog_calls=0, commits=0))  # also if it fails half-way; the commit charges the rest
        # One commit; the next spec waits for a writer's.
        merge = Merge(tools, table, counts.due_specs[:1], turn.switches, turn, planner.turns)
        self.desk.carry_out(merge)
        if merge.later is not None:
            raise merge.later
        return merge
