"""The product, as the histories run it: the only module here that knows how its parts are put together today.

A service is a process of the schedule. It looks at its table, lets the dispatcher choose, and sweeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, cast

from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import sweep
from compactor.commit.table_search import TableSearch
from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.debt.manifest_debt import manifests_of
from compactor.debt.table_changes import CommitTimes, counts_of
from compactor.errors import CommitUnknownError, FirnlineError, StoppedError
from compactor.events import Event, GroupCommitted, GroupRewritten, RunCommitted, RunFailed, RunPlanned
from compactor.iceberg.tables import TableView, file_sizes
from compactor.lease.owner import Owner
from compactor.lease.right import CommitRight
from compactor.partitions import PartitionKey
from compactor.patience.holds import Holds
from compactor.planning.budget import Charge, Grant
from compactor.planning.partition_judge import judge_of
from compactor.runs.dispatcher import Dispatcher, Gate, TableQueue
from compactor.runs.file_holds import FileHolds
from compactor.runs.lifelines import Lifelines
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import RewriteWorker
from compactor.settings.tree import Settings
from compactor.storage.state_files import StateFolder
from compactor.table_names import TableName
from tests.simulator.catalogs import NAME, UUID, SimulatedCache, SimulatedCatalogs
from tests.simulator.java import Handle, Step
from tests.simulator.schedule import Schedule
from tests.simulator.spark import SimulatedSession
from tests.simulator.store import StateInMemory
from tests.simulator.world import World

LEASE_SECONDS: Final = 60.0
SWEEP_SECONDS: Final = 15.0
GRACE_SECONDS: Final = 1800.0
RETRY_SECONDS: Final = 5.0
SWITCH_CHECK_SECONDS: Final = 15.0


@dataclass
class Life:
    """What a service may do. `fenced`: another has taken over; `paused`: by a person; `ended`: it has stopped.

    `since`: when a person has changed that.
    """

    fenced: bool = False
    paused: bool = False
    enabled: bool = True
    stopping: bool = False
    ended: bool = False
    since: float = 0.0

    @property
    def is_off(self) -> bool:
        return self.paused or not self.enabled


@dataclass
class Service:
    """One process with the product's own parts. `step`: what happens at each call of catalog, store or executors."""

    world: World
    plan: Schedule
    settings: Settings
    folder: StateInMemory
    owner: Owner
    step: Step
    waited: Callable[[str, float], None]
    life: Life = field(default_factory=Life)
    debt: TableDebt | None = None

    def __post_init__(self) -> None:
        world, step = self.world, self.step
        self.catalogs = SimulatedCatalogs(world, step)
        self.cache = SimulatedCache(world)
        self.board = DebtBoard(Holds(self._now))
        files = FileHolds(self.board.holds)
        self.records = InFlightRecords("file:///in-flight", self.owner, LEASE_SECONDS, self._now)
        self.records._folder = cast("StateFolder", self.folder)
        self.right = CommitRight(deployment="here", confirm=self._confirm, lost=self._lost)
        session: Any = SimulatedSession(world, self._load, step)
        slots = SlotPool(2)
        lifelines = Lifelines(self._now)
        publish = self._heard
        self.rewriter = Rewriter(
            session,
            self.catalogs,
            self.cache,
            self.records,
            slots,
            LEASE_SECONDS,
            SWITCH_CHECK_SECONDS,
            commit=self.settings.commit,
            listener=publish,
            clock=self._now,
            ticks=self._now,
            right=self.right,
            lifelines=lifelines,
            files=files,
            most_replaces=lambda table: (
                self.settings.policy.for_table(table.name, table.properties).consecutive_replaces
            ),
        )
        planner = TablePlanner(
            self.rewriter,
            self.settings,
            self.board,
            planned=lambda _table: None,
            owns=lambda _table: self.life.enabled,
        )
        self.worker = RewriteWorker(planner, self.rewriter, self._announced)
        self.dispatcher = Dispatcher(
            TableQueue(self.board, RETRY_SECONDS, gate=Gate(paused=lambda _table: self.life.paused)),
            self._work,
            concurrent_runs=2,
            slots=slots,
            lifelines=lifelines,
        )
        self.search = TableSearch(self.catalogs)
        self._asked, self._busy = True, False
        self._finished: dict[str, float] = {}
        self._told = defaultdict[str, set[int]](set)
        self._done: TableDebt | None = None

    # --- what the parts ask for ---------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.plan.now

    def _confirm(self) -> None:
        self.step("confirm")
        lost = self._lost()
        if lost is not None:
            raise lost

    def _lost(self) -> StoppedError | None:
        return StoppedError("another service has taken over") if self.life.fenced else None

    def _load(self) -> Handle:
        self.step("load in Java")
        return Handle(self.world, UUID, self.step)

    def _announced(self, _table: TableName) -> None:
        self._asked = True

    def _heard(self, event: Event) -> None:
        """Note when outputs are finished, and what becomes of them."""
        if isinstance(event, GroupCommitted):
            self._told[event.rewritten.run_id].add(event.snapshot_id)
        elif (
            isinstance(event, RunFailed)
            and event.reaction != CommitUnknownError.reaction
            and event.stage != "manifests"
        ):
            self.world.check_failed(event.run_id, self._told[event.run_id])
        if isinstance(event, RunPlanned):
            self.world.planned[event.run_id] = self.plan.now
        elif isinstance(event, GroupRewritten):
            self._finished[event.run_id] = self.plan.now
        elif isinstance(event, RunCommitted | RunFailed) and event.run_id in self._finished:
            seconds = self.plan.now - self._finished.pop(event.run_id)
            self.waited("commit", seconds - 2 * self.settings.commit.hold_seconds)

    def _work(self, debt: TableDebt, stopping: Callable[[], bool], grant: Grant, charge: Charge) -> None:
        """The table worker's; one at a time."""
        if self._busy:
            self.world.violated("two runs of one table at a time")
        if debt is self._done:
            self.world.violated("one run more for what a run has settled")
        self._busy = True
        try:
            self.worker.work(debt, stopping, grant, charge)
            self._done = debt
        finally:
            self._busy = False

    # --- the process --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """What the process does until it must stop."""
        self.dispatcher.start()
        next_sweep = next_look = self.plan.now
        while not self.life.stopping and self._lost() is None:
            if self.plan.now >= next_sweep:
                self.sweep()
                next_sweep = self.plan.now + SWEEP_SECONDS * self.plan.patience
            if self._asked or self.plan.now >= next_look:
                self._look()
                next_look = self.plan.now + SWEEP_SECONDS * self.plan.patience
            self.plan.polls(lambda: self._asked or self.life.stopping or self.life.fenced, 5.0)
        self.life.ended = self.dispatcher.stop(30.0)

    def _look(self) -> None:
        """Count the table, as the ledger does, and put its debt on the board."""
        self._asked = False
        try:
            table = self.catalogs.load(NAME)
            self.debt = self._counted(table)
        except FirnlineError:
            return
        self.board.put(self.debt)
        self.dispatcher.wake()

    def _counted(self, table: TableView) -> TableDebt:
        values = self.settings.policy.for_table(NAME, table.properties)
        sizes, now = file_sizes(values, table.properties), self.plan.now
        judge, layouts = judge_of(table, values, sizes), table.layouts()
        times = CommitTimes.of(table.metadata)
        counts: dict[PartitionKey, PartitionCounts] = {}
        for entries in self.cache.read(table, table.manifests()):
            for entry in filter(attrgetter("is_live"), entries):
                of_file = counts_of(entry, sizes, times.written_ms(entry.snapshot_id, entry.data_sequence_number))
                counts[entry.key] = counts[entry.key] + of_file if entry.key in counts else of_file
        partitions = {}
        for key, each in counts.items():
            judged = judge.of(key, each, now - each.changed_ms / 1000)
            readable = layouts[key.spec_id].readable(key)
            partitions[key] = PartitionDebt(key, readable, None, each, judged.due, judged.why, judged.large_bytes)
        return TableDebt(
            NAME,
            table.snapshot.snapshot_id if table.snapshot else None,
            partitions,
            acted_on=self.life.enabled,
            counted_at=now,
            manifests=manifests_of(table, self.settings.manifests),
            basis=values,
        )

    def sweep(self) -> int:
        """One look at the records of ended runs; returns the number of deleted files."""
        removed = sweep(
            self.records,
            self.catalogs,
            self.cache,
            now=self.plan.now,
            grace_seconds=GRACE_SECONDS,
            confirm=self.right.confirm,
            search=self.search,
            listener=self._heard,
        )
        found = sum(removed.values())
        if found:
            self.world.tell(f"a sweep deletes {found} files")
        return found
