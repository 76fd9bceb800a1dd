"""Planning: due partitions → groups → shares. Pure: an inventory and a policy in, a frozen plan out.

A *group* is what is merged within one partition (at most `max_file_group_size` bytes); a *share* is the run of its
files that becomes one output file. Bytes and target decide the number of shares; parallelism never does.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from compactor.iceberg.manifest_entries import FileEntry
from compactor.manifests.live_files import LiveFile
from compactor.partitions import JsonValue, PartitionKey
from compactor.planning.budget import requests_of
from compactor.planning.inventory import Inventory
from compactor.planning.policy import Policy


@dataclass(frozen=True)
class Group:
    """Files of one partition that are merged together; each share becomes one output file."""

    key: PartitionKey
    partition: Mapping[str, JsonValue]
    bucket: int | None
    shares: tuple[tuple[LiveFile, ...], ...]
    why: str

    @cached_property
    def files(self) -> tuple[LiveFile, ...]:
        """All input files, in arrival order."""
        return tuple(file for share in self.shares for file in share)

    @cached_property
    def bytes(self) -> int:
        """Input bytes."""
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> int:
        """Input rows, before deletes."""
        return sum(file.entry.records for file in self.files)


@dataclass(frozen=True)
class Plan:
    """What one run would do to one table at one snapshot, and why the other partitions are left alone."""

    snapshot_id: int | None
    sequence_number: int
    groups: tuple[Group, ...]
    left_alone: Mapping[PartitionKey, str] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """The input files of all groups."""
        return tuple(file.entry for group in self.groups for file in group.files)


@dataclass(frozen=True)
class GroupLimits:
    """What a group and a run may hold, and which groups come first (`rewrite_job_order` of the settings).

    `single_files`: also write a file by itself, although that makes none fewer.
    """

    bytes: int
    files: int | None = None
    files_of_run: int | None = None
    bytes_of_run: int | None = None
    requests_of_run: int | None = None
    order: str = "none"
    single_files: bool = False


def make_plan(
    inventory: Inventory,
    policy: Policy,
    limits: GroupLimits,
    now: float = 0.0,
) -> Plan:
    """Ask the policy about every selected partition and cut what is due into groups and shares.

    `now`: seconds since the epoch, for rules that go by time. `within_limits` applies the limits of the run.
    """
    groups: list[Group] = []
    left_alone: dict[PartitionKey, str] = {}
    for key, files in inventory.selected.items():
        why_not = policy.glance(files)
        if why_not is not None:
            left_alone[key] = why_not
            continue
        choice = policy.choose(files, inventory.idle_seconds(key, now), lambda file: inventory.age_seconds(file, now))
        layout = inventory.layouts[key.spec_id]
        made = [
            Group(key=key, partition=layout.readable(key), bucket=layout.bucket(key), shares=shares, why=choice.why)
            for shares in _shares(choice.files, policy, limits)
        ]
        groups.extend(made)
        if not made:
            left_alone[key] = choice.why
    ordered = sorted(groups, key=_ORDERS[limits.order])
    return Plan(
        snapshot_id=inventory.snapshot_id,
        sequence_number=inventory.sequence_number,
        groups=tuple(ordered),
        left_alone=left_alone,
    )


_ORDERS: Mapping[str, Callable[[Group], int]] = {
    "none": lambda _group: 0,
    "bytes-asc": lambda group: group.bytes,
    "bytes-desc": lambda group: -group.bytes,
    "files-asc": lambda group: len(group.files),
    "files-desc": lambda group: -len(group.files),
}


def within_limits(plan: Plan, limits: GroupLimits) -> Plan:
    """What one run may have of a plan: shares in their order, the first in any case, as long as there is room.

    A share that does not fit is cut to what does: left out whole, run after run, it would only grow.
    """
    most = [math.inf if each is None else each for each in (limits.files_of_run, limits.bytes_of_run)]
    left = [*most, math.inf if limits.requests_of_run is None else limits.requests_of_run]
    if min(left) == math.inf:
        return plan
    kept: list[Group] = []
    for group in plan.groups:
        shares: list[tuple[LiveFile, ...]] = []
        for share in group.shares:
            fitting = share if not (kept or shares) else _fitting(share, left)
            if fitting:
                shares.append(fitting)
                left = [there - wanted for wanted, there in zip(_cost(fitting), left, strict=True)]
        if shares:
            kept.append(replace(group, shares=tuple(shares)))
    return replace(plan, groups=tuple(kept))


def _fitting(share: tuple[LiveFile, ...], left: Sequence[float]) -> tuple[LiveFile, ...]:
    """The share if there is room for it, else as many of its first files as there is room for, at least two."""
    if _fits(share, left):
        return share
    files = bisect_left(range(len(share)), True, key=lambda files: not _fits(share[: files + 1], left))
    return share[:files] if files > 1 else ()


def _fits(files: Sequence[LiveFile], left: Sequence[float]) -> bool:
    return all(wanted <= there for wanted, there in zip(_cost(files), left, strict=True))


def _cost(files: Sequence[LiveFile]) -> tuple[int, int, int]:
    """Files, bytes and requests of a run over these files."""
    size = sum(file.size for file in files)
    return len(files), size, requests_of(len(files), 1, size)


def _shares(files: tuple[LiveFile, ...], policy: Policy, limits: GroupLimits) -> list[tuple[tuple[LiveFile, ...], ...]]:
    groups = []
    for run in _runs_up_to(files, limits.bytes, limits.files):
        cut = (tuple(run[start:end]) for start, end in policy.cut(run))
        shares = tuple(share for share in cut if limits.single_files or _worth_writing(share))
        if shares:
            groups.append(shares)
    return groups


def _worth_writing(share: tuple[LiveFile, ...]) -> bool:
    """One file in, one file out only pays when deletes leave with it."""
    return len(share) > 1 or any(file.deletes for file in share)


def batches(
    groups: Sequence[Group], most_groups: int, most_bytes: float, most_batches: int | None = None
) -> list[tuple[int, ...]]:
    """Indexes of the groups that are committed together: consecutive, at most so many and of so many input bytes.

    A group larger than `most_bytes` is committed by itself. `most_batches` goes before the other two.
    """
    if most_batches is not None:
        most_groups, most_bytes = max(1, math.ceil(len(groups) / most_batches)), math.inf
    made: list[list[int]] = []
    total = 0
    for index, group in enumerate(groups):
        if not made or len(made[-1]) >= most_groups or total + group.bytes > most_bytes:
            made.append([])
            total = 0
        made[-1].append(index)
        total += group.bytes
    return [tuple(batch) for batch in made]


def _runs_up_to(files: Sequence[LiveFile], limit: int, most: int | None) -> list[Sequence[LiveFile]]:
    """Consecutive files of at most so many bytes and so many files, at least one."""
    ends = list(accumulate(file.entry.size for file in files))  # bytes up to and with each file
    runs: list[Sequence[LiveFile]] = []
    start = 0
    while start < len(files):
        before = ends[start - 1] if start else 0
        end = max(start + 1, bisect_right(ends, before + limit))
        if most is not None:
            end = min(end, start + max(1, most))
        runs.append(files[start:end])
        start = end
    return runs
