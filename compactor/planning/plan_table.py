"""Plan one table: read its manifests, apply the policy, choose engines. Used by `plan`, `compact` and the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.manifest import ManifestContent, ManifestFile

from compactor.events import ManifestsRead
from compactor.filters.selection import Selection, count_selection
from compactor.filters.where import Where, bind_where
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.tables import FileSizes, TableView, file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.partitions import PartitionKey
from compactor.planning.budget import NO_GRANT, Grant
from compactor.planning.dangling_deletes import CoverableDelete, coverable_deletes, dangling_deletes, worth_a_commit
from compactor.planning.delete_rules import few_deletes, is_by_value
from compactor.planning.engine import Engine, EngineChoice, choose_engine, impossible
from compactor.planning.inventory import Inventory, leave_out, prune_files, take_inventory
from compactor.planning.planner import Carries, FileGroup, GroupLimits, Plan, make_plan, within_limits
from compactor.planning.replace_order import tail_of
from compactor.planning.tiered_policy import policy_of
from compactor.reasons import Reason
from compactor.settings.policy import POLICY_PROPERTY, PolicyValues
from compactor.timing import Stages


@dataclass(frozen=True)
class Request:
    """What a plan is requested for: everything due (default), or what a person narrowed or forced.

    Attributes:
        where: Filter; None is the policy's own filter.
        where_from: What the filter was given as, for messages.
        force: Merge all small files, due or not.
        strategy: The policy's strategy; thresholds by default, since a single run has no later run to leave work to.
            None is the table's own policy, as in the service.
        rewrite_all: Rewrite every file, healthy files too.
        explained: Count what the filter selected, to show it.
        without: Paths of files that are left as they are, and why: an earlier run could not rewrite them.
    """

    where: str | None = None
    where_from: str = "--where"
    force: bool = False
    engine: str = "auto"
    strategy: str | None = "threshold"
    rewrite_all: bool = False
    explained: bool = True
    grant: Grant = NO_GRANT
    without: Mapping[str, str] = field(default_factory=dict)


DANGLING_FROM = 8  # beside an active writer, a commit for fewer delete files is not worth the risk of a conflict
AS_THE_SERVICE = Request(where_from="the request's filter", strategy=None, explained=False)


@dataclass(frozen=True)
class PlannedGroup:
    """A file group and the engine that metadata allows; footers may still turn a splice into `encode` or `spark`."""

    file_group: FileGroup
    engine: EngineChoice


@dataclass(frozen=True)
class TablePlan:
    """The input of one run: the pinned view, the file groups, the settings they were planned with.

    Attributes:
        unplanned: Why partitions have no file group.
        policy: The settings that the plan was made with.
        coverable_deletes: Delete files that apply to planned files only, or to none.
        stages: Seconds of listing, reading, grouping, choosing and explaining.
        reads: Where manifest entries came from.
        skipped_deletes: Delete manifests that the filter left unread.
        put_off: Due partitions that do not fit the limits of this run.
        files_left: Files that the limits of this run leave to a later one.
        dangling_from: The number of delete files that apply to nothing from which they are worth their own commit.
        most_commits: How many commits the run may make, at least one; None: any number. Limited by
            `policy.consecutive_replaces` and by the grant.
    """

    table: TableView
    snapshot_id: int | None
    groups: tuple[PlannedGroup, ...]
    unplanned: Mapping[PartitionKey, str]
    policy: PolicyValues
    sizes: FileSizes
    requested_engine: str
    coverable_deletes: tuple[CoverableDelete, ...] = ()
    selection: Selection | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    reads: tuple[ManifestsRead, ...] = ()
    skipped_deletes: tuple[ManifestFile, ...] = ()
    put_off: frozenset[PartitionKey] = frozenset()
    files_left: int = 0
    dangling_from: int = 1
    most_commits: int | None = None

    @property
    def seconds(self) -> float:
        """How long planning took."""
        return sum(self.stages.values())

    @property
    def has_work(self) -> bool:
        """Whether a run has something to commit: file groups, or delete files that apply to nothing."""
        return bool(self.groups) or worth_a_commit(self.coverable_deletes, self.dangling_from)

    @property
    def dangling(self) -> tuple[FileEntry, ...]:
        """Live delete files that apply to no live data file: the run's commit removes them."""
        return dangling_deletes(self.coverable_deletes, frozenset(), frozenset())

    @property
    def bytes(self) -> int:
        """Input bytes of all file groups."""
        return sum(group.file_group.bytes for group in self.groups)

    @property
    def selected(self) -> frozenset[PartitionKey]:
        """Partitions with a file group, or whose file groups are put off."""
        return self.put_off.union(group.file_group.key for group in self.groups)

    def left_alone(self, due: Iterable[PartitionKey]) -> dict[PartitionKey, str]:
        """Why partitions of `due` have no file group (policy, filter, or no data file), and all of `unplanned`."""
        selected = self.selected
        why = "outside policy.where" if self.policy.where else "it holds delete files, but no data file"
        return {**{key: why for key in due if key not in selected}, **self.unplanned}


def plan_table(
    table: TableView,
    policy: PolicyValues,
    cache: ManifestCache,
    request: Request = AS_THE_SERVICE,
    wall_clock: Callable[[], float] = time.time,
) -> TablePlan:
    """Plan a table at its current snapshot.

    Raises:
        RetryError: a manifest cannot be read.
        InputError: the filter, the engine or a table property is not usable.
    """
    stages = Stages()
    if request.strategy is not None:
        policy = policy.model_copy(update={"strategy": request.strategy})
    if request.rewrite_all:  # a person who asks for every file asks for files without deletes, as Spark's action writes
        policy = policy.model_copy(update={"carried_delete_ratio": 0.0})
    sizes = file_sizes(policy, table.properties)
    where = _where(table, policy, request)
    inventory = take_inventory(table, cache, where, stages)

    rules = policy_of(policy, sizes, force=request.force, everything=request.rewrite_all)
    prunes = policy.prune_files and not where.keeps_everything
    limits = _group_limits(policy, request)
    chosen, left_out = _without(prune_files(inventory, where) if prunes else inventory, request.without)
    made = make_plan(chosen, rules, limits, wall_clock(), _carries(table, policy, request))
    possible = _possible(table, inventory.rows.listed_twice(made.entries), made)
    plan = within_limits(possible, limits)
    groups = tuple(
        PlannedGroup(group, choose_engine(table, group.key, group.files, request.engine, policy.most_carried))
        for group in plan.groups
    )
    coverable = coverable_deletes(inventory, plan.entries)
    stages.done("choose")
    counted = (inventory.manifests, inventory.skipped, inventory.partitions, inventory.selected)
    selection = count_selection(where, *counted) if request.explained else None
    stages.done("explain")
    return TablePlan(
        table=table,
        snapshot_id=inventory.snapshot_id,
        groups=groups,
        unplanned={**plan.unplanned, **left_out},
        policy=policy,
        sizes=sizes,
        requested_engine=request.engine,
        coverable_deletes=coverable,
        selection=selection,
        stages=stages.seconds,
        reads=inventory.reads,
        skipped_deletes=tuple(each for each in inventory.skipped if each.content == ManifestContent.DELETES),
        put_off=frozenset(group.key for group in possible.groups) - {group.key for group in plan.groups},
        files_left=len(possible.entries) - len(plan.entries),
        dangling_from=_dangling_from(table, policy, request, wall_clock()),
        most_commits=_most_commits(table, policy, request.grant),
    )


def _where(table: TableView, policy: PolicyValues, request: Request) -> Where:
    if request.where:
        return bind_where(table, request.where, request.where_from)
    own = POLICY_PROPERTY + "where"
    origin = f"table property {own}" if own in table.properties else "setting policy.where"
    return bind_where(table, policy.where, origin)


def _most_commits(table: TableView, policy: PolicyValues, grant: Grant) -> int | None:
    limits = (tail_of(table.history).commits_left(policy.consecutive_replaces), grant.commits)
    least = min((limit for limit in limits if limit is not None), default=None)
    return None if least is None else max(1, least)


def _dangling_from(table: TableView, policy: PolicyValues, request: Request, now: float) -> int:
    """1 for a person's run and for an idle table, where a commit risks no conflict with a writer."""
    idle = table.snapshot is not None and now - table.snapshot.timestamp_ms / 1000 >= policy.settle_after_seconds
    return 1 if idle or request.strategy is not None else DANGLING_FROM


def _group_limits(policy: PolicyValues, request: Request) -> GroupLimits:
    return GroupLimits(
        bytes=policy.max_file_group_size,
        files=policy.max_file_group_input_files,
        files_of_run=policy.max_files_to_rewrite,
        bytes_of_run=request.grant.bytes,
        requests_of_run=request.grant.requests,
        order=policy.rewrite_job_order,
        single_files=request.rewrite_all,
    )


def _carries(table: TableView, policy: PolicyValues, request: Request) -> Carries:
    def carries(key: PartitionKey, files: Sequence[LiveFile]) -> bool:
        if request.engine not in ("auto", "splice") or not few_deletes(files, policy.most_carried):
            return False
        if any(map(is_by_value, deletes_of(files))):  # they become positions, which cost readers less
            return False
        return choose_engine(table, key, files, "auto", policy.most_carried).reason is Reason.DELETES_CARRIED

    return carries


def _without(inventory: Inventory, paths: Mapping[str, str]) -> tuple[Inventory, dict[PartitionKey, str]]:
    """The inventory without some files, and why partitions are left out that have no others."""
    if not paths:
        return inventory, {}
    kept, why = leave_out(inventory, paths), dict[PartitionKey, str]()
    for key in inventory.selected.keys() - kept.selected.keys():
        first, *_ = inventory.selected[key]
        why[key] = paths[first.entry.path]
    return kept, why


def _possible(table: TableView, twice: frozenset[str], plan: Plan) -> Plan:
    """The plan without file groups that no engine can rewrite: one of them would stop the whole run."""
    groups, unplanned = [], dict(plan.unplanned)
    for group in plan.groups:
        obstacle = impossible(table, group.key, group.files)
        if twice and any(file.entry.path in twice for file in group.files):
            obstacle = "a data file is listed twice: its rows count twice, and a rewrite would make them count once"
        if obstacle is None:
            groups.append(group)
        else:
            unplanned[group.key] = obstacle
    return Plan(tuple(groups), unplanned)


def with_engine(planned: PlannedGroup, engine: Engine, reason: Reason, sentence: str) -> PlannedGroup:
    """The same file group with another engine, for files whose footers rule out the first."""
    return replace(planned, engine=EngineChoice(engine, reason, sentence))
