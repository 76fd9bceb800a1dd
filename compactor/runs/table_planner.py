"""The first half of a table worker: load the table, ask its switches, plan, and decline what does not pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from compactor.debt.board import DebtBoard, PartitionDebt, TableDebt, earliest
from compactor.errors import FirnlineError, GiveUpError, InputError, LaterError, StoppedError
from compactor.events import PartitionsSkipped, RunFailed, RunSkipped, SkippedPartition
from compactor.iceberg.other_compactors import DAY_SECONDS, flink_converts, other_compactors, unlisted_before
from compactor.iceberg.tables import TableMissingError, TableView, file_sizes
from compactor.partitions import PartitionKey
from compactor.patience.holds import What
from compactor.planning.budget import NO_GRANT, Grant
from compactor.planning.conversion import (
    MAYBE_BESIDE,
    NOTHING_TO_CONVERT,
    Conversion,
    not_beside,
    plan_conversion,
    within_grant,
)
from compactor.planning.delete_rules import DeleteRules
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import AS_THE_SERVICE, TablePlan, plan_table
from compactor.reasons import Reason
from compactor.runs.file_holds import DIED
from compactor.runs.run_tools import RunTools
from compactor.runs.turns import Turns
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName

NEVER = 2**31 - 1
"""Equality delete files that no data file has: Flink's converter removes them, no rewrite need."""


@dataclass(frozen=True)
class TablePlanner:
    """Plans due tables from a fresh look.

    `planned` is called with each table that was planned. `owns`: whether the table is this service's. `look`: asks for
    a look at a table that was not found. Files that `tools.files` holds are left as they are for a while, so that the
    others of their partition can be merged.
    """

    tools: RunTools
    settings: WorkSettings
    board: DebtBoard
    planned: Callable[[TableName], None]
    owns: Callable[[TableName], bool] = lambda _table: True
    look: Callable[[TableName], None] = lambda _table: None

    @property
    def turns(self) -> Turns:
        """Whether it is our turn to write."""
        tools = self.tools
        return Turns(self.settings, tools.listener, tools.clock, tools.locks)

    def load(self, debt: TableDebt) -> TableView:
        """The table as it is now. One that is not found is looked at: looks and listings tell whether it is gone.

        Raises:
            StoppedError: the table is switched off; published.
            LaterError: the table is left to another compactor, a Flink job holds its lock, or the next commit must
                wait for a writer's; published.
            FirnlineError: the table cannot be loaded; published.
        """
        try:
            with self._failures_published(debt):
                table = self.tools.catalogs.load(debt.table)
        except TableMissingError:  # for a moment, perhaps: the look drops requests of a table that is gone
            self.look(debt.table)
            raise
        except InputError:  # another attempt would fail in the same way
            self.served(debt)
            raise
        self.check_switches(debt, table)
        with self._failures_published(debt):
            self.turns.check(table, requested=bool(debt.requested))
        return table

    def check_switches(self, debt: TableDebt, table: TableView) -> None:
        """Whether the table may be rewritten by us; if not, its first open request ends.

        Raises:
            StoppedError: the table is switched off; published.
            LaterError: the table is left to another compactor; published.
        """
        switched_off = not self.acts_on(table)
        if not switched_off and not self.is_left_to_another(table):
            return
        if self.owns(debt.table):  # a table that became another service's keeps its requests
            self.served(debt)
        if switched_off:
            self.tools.listener(RunSkipped(table=debt.table, reason=Reason.SWITCHED_OFF))
            raise StoppedError(f"{debt.table} is switched off")
        self.tools.listener(RunSkipped(table=debt.table, reason=Reason.OTHER_COMPACTOR))
        raise LaterError(f"{debt.table} is left to another compactor")

    def conversion(self, debt: TableDebt, table: TableView, grant: Grant = NO_GRANT) -> Conversion:
        """The equality deletes of a table to convert before anything is rewritten; requests go first.

        `grant`: what does not fit it is left to later runs.

        Raises:
            FirnlineError: the table cannot be planned; published.
        """
        with_deletes = [each for each in debt.due if each.counts.equality_deletes]
        if first_request(debt) is not None or not with_deletes:
            return NOTHING_TO_CONVERT
        if flink_converts(table.history):
            why = "its equality deletes are left to Flink's converter"
            self._leave_deletes(debt, table, with_deletes, Reason.FLINK_CONVERTER, why)
            return NOTHING_TO_CONVERT
        with self._failures_published(debt):
            policy = self.settings.policy.for_table(debt.table, table.properties)
            rules = DeleteRules(policy, file_sizes(policy, table.properties))
            if not any(rules.conversion_due(each.counts) for each in with_deletes):
                return NOTHING_TO_CONVERT
            beside = _beside_another(table, self.tools.clock())
            if beside is not None:
                self._leave_deletes(debt, table, with_deletes, Reason.OTHER_COMPACTOR, beside)
                return NOTHING_TO_CONVERT
            inventory = take_inventory(table, self.tools.cache)
            conversion = plan_conversion(inventory, self.tools.files.left_out(table, What.SEARCH))
        refused = [each for each in with_deletes if each.key in conversion.refused_in]
        if refused:
            skipped = tuple(skipped_partition(each, conversion.refused_in[each.key]) for each in refused)
            self.tools.listener(
                PartitionsSkipped(debt.table, inventory.snapshot_id, Reason.CONVERSION_REFUSED, skipped)
            )
        return within_grant(conversion, grant)

    def _leave_deletes(
        self, debt: TableDebt, table: TableView, partitions: Sequence[PartitionDebt], reason: Reason, why: str
    ) -> None:
        skipped = tuple(skipped_partition(each, why) for each in partitions)
        snapshot_id = table.snapshot.snapshot_id if table.snapshot else None
        self.tools.listener(PartitionsSkipped(debt.table, snapshot_id, reason, skipped))

    def plan(self, debt: TableDebt, table: TableView, grant: Grant = NO_GRANT) -> TablePlan | None:
        """A plan of `table`; None (and published) when nothing is due.

        The first open request of `debt` goes first: all small files that its filter selects, or of the whole table.

        Raises:
            FirnlineError: the table cannot be planned; published.
        """
        try:
            with self._failures_published(debt):
                plan = self._plan(table, debt, grant)
        except InputError:  # another attempt would fail in the same way
            self.served(debt)
            raise
        if first_request(debt) is None:
            self._decline(debt, plan)
        if plan.has_work:
            return plan
        self.tools.listener(RunSkipped(table=debt.table, reason=Reason.NOTHING_DUE))
        self.served(debt)
        return None

    def acts_on(self, table: TableView) -> bool:
        """Whether the table is this service's, and settings and table property let it be rewritten."""
        return self.owns(table.name) and self.settings.tables.acts_on(table.name, table.properties)

    def is_left_to_another(self, table: TableView) -> bool:
        """Whether another compactor works on the table, and the settings leave the table to it."""
        leave = self.settings.tables.other_compactors == "leave"
        return leave and bool(other_compactors(table.metadata, self.tools.clock()))

    def served(self, debt: TableDebt) -> None:
        """The first open request was done, or cannot be done."""
        requested = first_request(debt)
        if requested is not None:
            self.board.finish_request(debt.table, requested)

    def part_served(self, debt: TableDebt, files_left: int) -> None:
        """A run has done a part of the first open request, and left some files: the request ends with its last part."""
        requested = first_request(debt)
        if requested is not None and not self.board.request_goes_on(debt.table, requested, files_left):
            self.served(debt)

    def _plan(self, table: TableView, debt: TableDebt, grant: Grant) -> TablePlan:
        request, requested = replace(AS_THE_SERVICE, grant=grant), first_request(debt)
        if requested is not None:
            request = replace(request, where=requested or None, force=True)
        # A person's request does not leave out what got no answer: that must not end it.
        left_out = self.tools.files.left_out(table, given_up=requested is not None)
        if requested is not None and not self.board.request_has_begun(debt.table, requested):
            # The first run of a person's request tries all files, but for those that would kill the process once more.
            left_out = {path: why for path, why in left_out.items() if why == DIED}
        request = replace(request, without=left_out)
        policy = self.settings.policy.for_table(debt.table, table.properties)
        if requested is None and flink_converts(table.history):
            policy = policy.model_copy(update={"equality_delete_threshold": NEVER})
        plan = plan_table(table, policy, self.tools.cache, request, wall_clock=self.tools.clock)
        self.planned(debt.table)
        return plan

    @contextmanager
    def _failures_published(self, debt: TableDebt) -> Iterator[None]:
        """Publish an error and raise it; unexpected errors as GiveUpError."""
        try:
            yield
        except LaterError:
            raise  # published already, as a skipped run
        except FirnlineError as error:
            self.tools.listener(RunFailed.of(error, "", debt.table, "plan"))
            raise
        except Exception as error:
            failure = GiveUpError(f"planning {debt.table} failed: {error}", reason=Reason.UNEXPECTED)
            self.tools.listener(RunFailed.of(failure, "", debt.table, "plan", str(error)))
            raise failure from error

    def decline(self, debt: TableDebt, left: Mapping[PartitionKey, str], plan: TablePlan) -> None:
        """These partitions of `plan` are not due again until they change, or what was put off may be tried again."""
        self.board.decline(debt, left, plan.selected, self._next_attempt(plan.table, self.tools.clock()))

    def _next_attempt(self, table: TableView, now: float) -> float:
        """When files that are held, or conversions that are left to others, may be tried; infinite: never.

        An idle table changes no more: without a time, it would wait for ever.
        """
        converts = self.settings.policy.for_table(table.name, table.properties).convert_equality_deletes is not None
        left = _beside_another_until(table, now) if converts else None
        until = earliest(left, self.tools.files.until(table.name, What.FILES, What.SEARCH))
        return math.inf if until is None else until

    def _decline(self, debt: TableDebt, plan: TablePlan) -> None:
        """Partitions that the plan leaves alone although their counts are due are not due again until they change."""
        left = plan.left_alone(partition.key for partition in debt.due)
        self.decline(debt, left, plan)
        skipped = tuple(skipped_partition(each, left[each.key]) for each in debt.due if each.key in left)
        if skipped:
            self.tools.listener(
                PartitionsSkipped(table=debt.table, snapshot_id=plan.snapshot_id, reason="declined", partitions=skipped)
            )


def _beside_another(table: TableView, now: float) -> str | None:
    """Why equality deletes are not converted: another compactor rewrites the table too, or may do so."""
    others = other_compactors(table.metadata, now)
    if others:
        return not_beside(others[0].name)
    return None if unlisted_before(table.history, now) is None else MAYBE_BESIDE


def _beside_another_until(table: TableView, now: float) -> float | None:
    """When `_beside_another` ends if nothing more is committed, in seconds since the epoch; None: it does not hold."""
    times = [each.last for each in other_compactors(table.metadata, now)]
    unlisted = unlisted_before(table.history, now)
    times += [] if unlisted is None else [unlisted]
    return max(times) + DAY_SECONDS if times else None


def first_request(debt: TableDebt) -> str | None:
    """The filter of the first open request; empty for the whole table, None without a request."""
    return debt.requested[0] if debt.requested else None


def skipped_partition(debt: PartitionDebt, why: str) -> SkippedPartition:
    """The event record of a partition that is left alone."""
    return SkippedPartition(
        key=debt.key, partition=debt.partition, why=why, files=debt.counts.small_files, bytes=debt.counts.small_bytes
    )
