"""A real table with equality deletes, and a worker whose jobs end as a test says, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from compactor.debt.board import TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.errors import FirnlineError, GiveUpError, LaterError
from compactor.events import Event, GroupRewritten, Listener, ManifestsRewritten
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.patience.holds import What
from compactor.planning.budget import NO_GRANT, Grant, Spent
from compactor.planning.conversion import Conversion
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.runs import frame
from compactor.runs.convert import Converting
from compactor.runs.file_holds import FileHolds
from compactor.runs.merge import Merge
from compactor.runs.results import DroppedGroup, GroupResult, NoGroupLeftError, RunResult
from compactor.runs.rewrite import Rewrite
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import RewriteWorker
from compactor.settings.tree import ManifestSettings
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene

WHY = "data file x has no field ids, and the table no name mapping"
POLICY = {
    "strategy": "threshold",
    "min_input_files": 2,
    "convert_equality_deletes": 1,
    "equality_delete_threshold": 1000,
    "delete_file_threshold": 1000,
}
ANY_GAIN = ManifestSettings.model_construct(rewrite=True, min_count=2, min_reduction=1 + 1e-9, wait_seconds=3600.0)
DUE, NOT_DUE = ManifestCounts(100, 100, due_specs=(0,), why="many"), ManifestCounts(1, 1)
"""As the ledger counted them."""
Outcome = Callable[[Converting], object]
"""What a conversion ends with, without the search."""


def _fails(job: Converting, searches: int, error: FirnlineError) -> None:
    job.refused = True
    files = [file.entry.path for search in job.conversion.searches[:searches] for file in search]
    job.tools.files.note(job.table, [(files, error)], What.SEARCH)


def refused(job: Converting) -> None:
    _fails(job, 1, GiveUpError(WHY))
    job.charge(Spent(bytes=70))
    job.result = replace(job.result, deletes_left=1, why=WHY)


def fails(error: Exception, searches: int = 0) -> Outcome:
    """So many searches fail with this error, and the conversion too."""

    def outcome(job: Converting) -> None:
        if searches:
            _fails(job, searches, cast("FirnlineError", error))
        raise error

    return outcome


def done(job: Converting) -> None:
    job.result = replace(job.result, snapshot_after=2, deletes_removed=1)


def paths_of(plan: TablePlan) -> dict[PartitionKey, set[str]]:
    groups = [each.file_group for each in plan.groups]
    return {group.key: {file.entry.path for file in group.files} for group in groups}


def merged(planned: PlannedGroup) -> GroupResult:
    """All files of the group in one."""
    group = planned.file_group
    size = (len(group.files), 1, group.bytes, group.bytes, group.rows, 0, group.rows)
    return GroupResult(planned, GroupRewritten("run", NAME, group.key, "splice", "test", *size, seconds=0.0), ())


def tools_of(scene: Scene, listener: Listener) -> Rewriter:
    """Tools without Spark."""
    nothing: Any = None
    return Rewriter(
        nothing, scene.catalogs, ManifestCache(1 << 20), nothing, SlotPool(1), 60.0, 60.0,
        listener=listener, clock=lambda: scene.now, files=FileHolds(scene.board.holds),
    )  # fmt: skip


class Working:
    """A real table with equality deletes in partition `a`, the ledger, and a worker whose rewrites move no bytes.

    `hopeless`: data files that cannot be rewritten. `result`: of rewrites, in place of what is planned.
    `merge_error`: how merges of manifests fail.
    """

    def __init__(self, folder: Path, outcome: Outcome, **policy: Any) -> None:
        self.scene = Scene(folder, policy={**POLICY, **policy})
        self.outcome = outcome
        self.searched: list[Conversion] = []
        self.events: list[Event] = []
        self.plans: list[TablePlan] = []
        self.later: list[LaterError] = []
        self.charged: list[Spent] = []
        self.merges: list[Merge] = []
        self.announced = self.commits = self.reads = 0
        self.rewrites = False
        self.hopeless: frozenset[str] = frozenset()
        self.merge_error: FirnlineError | None = None
        self.result: RunResult | None = None
        settings = self.scene.settings.model_copy(update={"manifests": ANY_GAIN})
        tools = tools_of(self.scene, self.events.append)
        planner = TablePlanner(tools, settings, self.scene.board, planned=lambda _: None)
        self.worker = RewriteWorker(planner, tools, self.announce, self.carry_out)
        self.scene.history.append_unreal("a", [10, 10])
        self.delete_by_value()

    def announce(self, _table: object) -> None:
        self.announced += 1

    def carry_out(self, job: frame.Job[Any]) -> None:
        frame.carry_out(job, self._work)

    def _work(self, job: frame.Job[Any]) -> None:
        if isinstance(job, Converting):
            self.searched.append(job.conversion)
            self.outcome(job)
        elif isinstance(job, Rewrite):
            self.plans.append(job.plan)
            job.charge(Spent(bytes=self.reads, commits=self.commits))
            job.result = self.result or self.rewritten(job.plan)
        elif isinstance(job, Merge):
            self.merges.append(job)
            self.merge(job)

    def rewritten(self, plan: TablePlan) -> RunResult:
        dropped = [
            DroppedGroup(each, GiveUpError("a page is damaged"))
            for each in plan.groups
            if not self.hopeless.isdisjoint(DroppedGroup(each, GiveUpError("")).paths)
        ]
        if dropped:
            failed = [(each.paths, each.error) for each in dropped]
            self.worker.planner.tools.files.note(plan.table, failed, What.FILES)
            raise NoGroupLeftError(dropped)
        after = 2 if self.rewrites else None
        groups = tuple(map(merged, plan.groups)) if self.rewrites else ()
        return RunResult("run", NAME, 1, after, groups, 0.0, 0.0, 0.0, commits=self.commits)

    def merge(self, job: Merge) -> None:
        if isinstance(self.merge_error, LaterError):
            job.later = self.merge_error
        elif self.merge_error is not None:
            raise self.merge_error
        else:
            job.result = ManifestsRewritten("run", NAME, 100, 1, 0.0)

    def delete_by_value(self, partition: str = "a") -> None:
        self.scene.history.append_unreal(partition, [1], by_value=True)

    def work(self, grant: Grant = NO_GRANT) -> None:
        """The ledger looks; then the worker runs."""
        self.scene.look()
        self.work_on(self.scene.debt(), grant)

    def work_on(self, debt: TableDebt, grant: Grant = NO_GRANT) -> None:
        try:
            self.worker.work(debt, lambda: False, grant, self.charged.append)
        except LaterError as later:
            self.later.append(later)

    def plan_now(self) -> TablePlan:
        self.scene.look()
        planner = self.worker.planner
        plan = planner.plan(self.scene.debt(), planner.tools.catalogs.load(NAME))
        assert plan is not None
        return plan

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
