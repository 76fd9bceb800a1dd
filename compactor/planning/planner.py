"""Planning: due partitions → file groups → output tasks. Pure: an inventory and a policy in, a frozen plan out.

A *file group* holds the files of one partition that are merged together (at most `max_file_group_size` bytes). An
*output task* merges consecutive files of a group into one output file. The number of output tasks depends on bytes and
target size, never on parallelism.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from operator import gt

from compactor.iceberg.manifest_entries import FileEntry
from compactor.manifests.live_files import LiveFile, reads
from compactor.partitions import JsonValue, PartitionKey
from compactor.planning.budget import requests_of
from compactor.planning.inventory import Inventory
from compactor.planning.policy import Policy

Carries = Callable[[PartitionKey, Sequence[LiveFile]], bool]
"""Whether a rewrite of these files alone would copy them, and delete their rows in the output in the same way."""


def never_carried(_key: PartitionKey, _files: Sequence[LiveFile]) -> bool:
    """Every rewrite leaves deleted rows out."""
    return False


Task = tuple[LiveFile, ...]
"""The input files of one output task."""


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition that are merged together; `tasks`: the files of each output task."""

    key: PartitionKey
    partition: Mapping[str, JsonValue]
    bucket: int | None
    tasks: tuple[Task, ...]
    why: str

    @cached_property
    def files(self) -> tuple[LiveFile, ...]:
        """All input files, in arrival order."""
        return tuple(file for task in self.tasks for file in task)

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
    """The file groups of one table at one snapshot, and why the other partitions have none (`unplanned`)."""

    groups: tuple[FileGroup, ...]
    unplanned: Mapping[PartitionKey, str] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        return tuple(file.entry for group in self.groups for file in group.files)


@dataclass(frozen=True)
class GroupLimits:
    """Limits of a file group and of a run, and the order of groups (`rewrite_job_order` of the settings).

    `single_files`: also rewrite a file by itself, although that does not reduce the number of files.
    """

    bytes: int
    files: int | None = None
    files_of_run: int | None = None
    bytes_of_run: int | None = None
    requests_of_run: int | None = None
    order: str = "none"
    single_files: bool = False


def make_plan(
    inventory: Inventory, policy: Policy, limits: GroupLimits, now: float = 0.0, carries: Carries = never_carried
) -> Plan:
    """Apply the policy to every selected partition; cut due partitions into file groups and output tasks.

    `now`: seconds since the epoch, for rules that go by time. `within_limits` applies the limits of the run.
    """
    groups: list[FileGroup] = []
    unplanned: dict[PartitionKey, str] = {}
    for key, files in inventory.selected.items():
        why_not = policy.glance(files)
        if why_not is not None:
            unplanned[key] = why_not
            continue
        choice = policy.choose(files, inventory.idle_seconds(key, now), lambda file: inventory.age_seconds(file, now))
        layout = inventory.layouts[key.spec_id]
        made = [
            FileGroup(key=key, partition=layout.readable(key), bucket=layout.bucket(key), tasks=tasks, why=choice.why)
            for tasks in _tasks_by_group(choice.files, policy, limits, partial(carries, key))
        ]
        groups.extend(made)
        if not made:
            unplanned[key] = f"{choice.why}{_but_alone(choice.files, limits)}"
    return Plan(tuple(sorted(groups, key=_ORDERS[limits.order])), unplanned)


def _but_alone(files: Sequence[LiveFile], limits: GroupLimits) -> str:
    """Why files that the policy chose make no file group, as the end of a sentence."""
    if not files:
        return ""
    if limits.files == 1:
        return ", but max_file_group_input_files is 1"
    if all(len(group) == 1 for group in _chunks(files, limits.bytes, limits.files)):
        return f", but no two in a row fit into a file group of max_file_group_size ({limits.bytes} bytes)"
    deletes = ", with as many delete files" if any(file.deletes for file in files) else ""
    return f", but each would be an output of its own{deletes}"


_ORDERS: Mapping[str, Callable[[FileGroup], int]] = {
    "none": lambda _group: 0,
    "bytes-asc": lambda group: group.bytes,
    "bytes-desc": lambda group: -group.bytes,
    "files-asc": lambda group: len(group.files),
    "files-desc": lambda group: -len(group.files),
}


def within_limits(plan: Plan, limits: GroupLimits) -> Plan:
    """The part of a plan that fits the limits of one run: output tasks in order.

    A task that does not fit is cut to the files that fit. If it were left out whole, it would only grow from run to
    run. Some run has to begin with the first task: if its delete files leave no room for two of its files, it is cut to
    the files that `_of_the_first` gives it.
    """
    most = (limits.files_of_run, limits.bytes_of_run, limits.requests_of_run)
    left = [math.inf if each is None else each for each in most]
    if min(left) == math.inf:
        return plan
    kept: list[FileGroup] = []
    for group in plan.groups:
        tasks: list[Task] = []
        for task in group.tasks:
            read = reads(task)
            files = _fitting(read, left) or (0 if kept or tasks else _of_the_first(task, read, limits, left))
            if files:
                tasks.append(task[:files])
                left = [there - wanted for wanted, there in zip(_cost(read[files - 1]), left, strict=True)]
        if tasks:
            kept.append(replace(group, tasks=tuple(tasks)))
    return replace(plan, groups=tuple(kept))


def _fitting(read: Sequence[tuple[int, int, int]], left: Sequence[float]) -> int:
    """How many of a task's first files fit: all, or at least two; else 0. `read`: see `reads`."""
    files = bisect_left(read, True, key=lambda each: any(map(gt, _cost(each), left)))
    return files if files > 1 or files == len(read) else 0


def _of_the_first(task: Task, read: Sequence[tuple[int, int, int]], limits: GroupLimits, left: Sequence[float]) -> int:
    """How many files of a run's first task are rewritten although two do not fit together with their delete files.

    The run reads the delete files of the first two in any case. Beside these it may read as much as the limits leave,
    or as much again if that is more: else each run would read all deletes for few data files, and never be done with a
    table that gets more. If two files do not fit even so, only the number of files of a run counts.
    """
    files, deletes, size = read[:2][-1]
    size -= sum(file.size for file in task[:files])
    needed = (0, size, requests_of(deletes, 0, size))
    fitting = _fitting(read, [least + max(least, there) for least, there in zip(needed, left, strict=True)])
    return fitting or min(len(task), limits.files_of_run or len(task))


def _cost(read: tuple[int, int, int]) -> tuple[int, int, int]:
    """Data files, bytes and requests of rewriting the files into one for which this is read."""
    files, deletes, size = read
    return files, size, requests_of(files + deletes, 1, size)


def _tasks_by_group(
    files: Sequence[LiveFile], policy: Policy, limits: GroupLimits, carries: Callable[[Task], bool]
) -> Iterator[tuple[Task, ...]]:
    for group in _chunks(files, limits.bytes, limits.files):
        cut = (tuple(group[start:end]) for start, end in policy.cut(group))
        tasks = tuple(task for task in cut if limits.single_files or _worth_writing(task, carries))
        if tasks:
            yield tasks


def _worth_writing(task: Task, carries: Callable[[Task], bool]) -> bool:
    """Whether a task reduces data files, delete files or deleted rows. If not, its output would be due again."""
    deletes = sum(len(file.deletes) for file in task)
    return len(task) > 1 or deletes > 1 or (deletes == 1 and not carries(task))


def batches(
    groups: Sequence[FileGroup], most_groups: int, most_bytes: float, most_batches: int | None = None
) -> list[tuple[int, ...]]:
    """Indexes of the groups of each commit: consecutive groups, at most `most_groups` and `most_bytes` input bytes.

    A group larger than `most_bytes` gets a commit of its own. `most_batches` overrides the other two limits.
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


def _chunks(files: Sequence[LiveFile], most_bytes: int, most_files: int | None) -> Iterator[Sequence[LiveFile]]:
    """Consecutive files, as many as fit both limits, at least one."""
    ends = list(accumulate(file.entry.size for file in files))  # bytes up to the end of each file
    start = 0
    while start < len(files):
        before = ends[start - 1] if start else 0
        end = max(start + 1, bisect_right(ends, before + most_bytes))
        if most_files is not None:
            end = min(end, start + max(1, most_files))
        yield files[start:end]
        start = end
