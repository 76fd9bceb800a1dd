"""Plan one table: read its manifests, ask the policy, choose engines. Shared by `plan`, `compact` and the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from compactor.dangling_deletes import CoverableDelete, coverable_deletes
from compactor.inventory import listed_twice, take_inventory
from compactor.manifests import ManifestCache
from compactor.planner import Group, Plan, make_plan
from compactor.policy import ThresholdPolicy
from compactor.pruning import partition_filter
from compactor.rewrite.engine import Engine, EngineChoice, choose_engine, impossible
from compactor.settings import PolicyValues
from compactor.tables import FileSizes, TableView, file_sizes


@dataclass(frozen=True)
class Request:
    """What is asked of a plan: everything due (default), or what a user narrowed or forced."""

    where: str | None = None
    force: bool = False
    engine: str = "auto"


@dataclass(frozen=True)
class PlannedGroup:
    """A group and the engine that metadata allows; footers may still turn a splice into `spark`."""

    group: Group
    engine: EngineChoice


@dataclass(frozen=True)
class TablePlan:
    """All that one run needs: the pinned view, the groups, the values they were planned with, and the time it took."""

    table: TableView
    plan: Plan
    groups: tuple[PlannedGroup, ...]
    policy: PolicyValues
    sizes: FileSizes
    requested_engine: str
    seconds: float
    coverable_deletes: tuple[CoverableDelete, ...] = ()

    @property
    def bytes(self) -> int:
        """Input bytes of all groups."""
        return sum(group.group.bytes for group in self.groups)


def plan_table(
    table: TableView,
    policy: PolicyValues,
    cache: ManifestCache,
    request: Request | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TablePlan:
    """Plan a table at its current snapshot.

    Raises:
        RetryError: a manifest cannot be read.
        InputError: the filter, the engine or a table property is not usable.
    """
    request = request or Request()
    started = clock()
    sizes = file_sizes(policy, table.properties)
    keeps = partition_filter(table, request.where)
    inventory = take_inventory(table, cache)

    thresholds = ThresholdPolicy(policy, sizes, request.force)
    twice = listed_twice(inventory)
    plan = _possible(table, twice, make_plan(inventory, thresholds, sizes.target, policy.max_file_group_size, keeps))
    groups = tuple(
        PlannedGroup(group, choose_engine(table, group.key, group.files, request.engine)) for group in plan.groups
    )
    coverable = coverable_deletes(inventory, {file.entry.path for group in plan.groups for file in group.files})
    return TablePlan(table, plan, groups, policy, sizes, request.engine, clock() - started, coverable)


def _possible(table: TableView, twice: frozenset[str], plan: Plan) -> Plan:
    """The plan without groups that would only fail: one of them would stop the whole run."""
    groups, left_alone = [], dict(plan.left_alone)
    for group in plan.groups:
        obstacle = impossible(table, group.key, group.files)
        if twice and any(file.entry.path in twice for file in group.files):
            obstacle = "a data file is listed twice: its rows count twice, and a rewrite would make them count once"
        if obstacle is None:
            groups.append(group)
        else:
            left_alone[group.key] = obstacle
    return replace(plan, groups=tuple(groups), left_alone=left_alone)


def with_engine(planned: PlannedGroup, engine: Engine, reason: str, sentence: str) -> PlannedGroup:
    """The same group, to be rewritten by another engine because the footers spoke against the first."""
    return replace(planned, engine=EngineChoice(engine, reason, sentence))
