"""Planning: due partitions → file groups → output tasks. Pure: an inventory and a policy in, a frozen plan out.

A *file group* holds the files of one partition that are merged together (at most `max_file_group_size` bytes). An
*output task* merges files of a group into one output file. The number of output tasks depends on bytes and target size,
never on parallelism. One run reaches the state that no further run would change, unless its limits leave files to later
runs, or deleted rows make outputs smaller.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, count, groupby
from operator import attrgetter, gt
from typing import NamedTuple

from compactor.iceberg.manifest_entries import FileEntry
from compactor.manifests.live_files import LiveFile, reads
from compactor.partitions import JsonValue, PartitionKey
from compactor.planning.budget import requests_of
from compactor.planning.inventory import Inventory
from compactor.planning.policy import Choice, Policy

Carries = Callable[[PartitionKey, Sequence[LiveFile]], bool]
"""Whether a rewrite of these files alone would copy them, and delete their rows in the output in the same way."""


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
    inventory: Inventory,
    policy: Policy,
    limits: GroupLimits,
    now: float = 0.0,
    carries: Carries = lambda _key, _files: False,
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
        one = _Partition(key, policy, limits, carries, inventory, now)
        made, first = one.until_nothing_is_due(files)
        layout = inventory.layouts[key.spec_id]
        groups += [
            FileGroup(key=key, partition=layout.readable(key), bucket=layout.bucket(key), tasks=tasks, why=why)
            for tasks, why in made
        ]
        if not made:
            unplanned[key] = f"{first.why}{_but_alone(first, limits)}"
    return Plan(tuple(sorted(groups, key=lambda group: _rank(group, limits.order))), unplanned)


class _Planned(NamedTuple):
    """An output that is planned so far, by the path of `_output`. `group`: number of its file group."""

    group: int
    why: str
    inputs: Task


@dataclass(frozen=True)
class _Partition:
    """What the file groups of one partition are chosen by."""

    key: PartitionKey
    policy: Policy
    limits: GroupLimits
    carries: Carries
    inventory: Inventory
    now: float

    @cached_property
    def _idle_seconds(self) -> float:
        return self.inventory.idle_seconds(self.key, self.now)

    def _choose(self, files: Sequence[LiveFile]) -> Choice:
        return self.policy.choose(files, self._idle_seconds, lambda file: self.inventory.age_seconds(file, self.now))

    def _is_worth_writing(self, task: Task) -> bool:
        """Whether a task reduces data files, delete files or deleted rows. If not, its output would be due again."""
        deletes = sum(len(file.deletes) for file in task)
        return len(task) > 1 or deletes > 1 or (deletes == 1 and not self.carries(self.key, task))

    def until_nothing_is_due(self, files: Sequence[LiveFile]) -> tuple[list[tuple[tuple[Task, ...], str]], Choice]:
        """The file groups, each with its reason, and what the policy chooses of the files as they are.

        The policy is asked again for the files as the run will leave them, until it would merge no more: one run
        reaches what several would. An output that would be merged again is not written: its inputs join the later one.
        """
        planned: dict[str, _Planned] = {}
        numbers = count()
        first = choice = self._choose(files)
        while True:
            taken, made = set[str](), list[LiveFile]()
            for chunk in _chunks(choice.files, planned, self.limits):
                if choice.by_group and len(chunk) < len(choice.files) and not self._choose(chunk).files:
                    continue
                number = next(numbers)
                for start, end in self.policy.cut(chunk):
                    paths = [file.entry.path for file in chunk[start:end]]
                    if len(paths) == 1 and paths[0] in planned:
                        continue
                    task = _inputs(chunk[start:end], planned)
                    if self.limits.single_files or self._is_worth_writing(task):
                        for path in paths:
                            planned.pop(path, None)
                        taken.update(paths)
                        made.append(_output(task))
                        planned[made[-1].entry.path] = _Planned(number, choice.why, task)
            if not made:
                break
            files = [*(file for file in files if file.entry.path not in taken), *made]
            choice = self._choose(files)
        by_group = groupby(sorted(planned.values(), key=attrgetter("group")), key=attrgetter("group", "why"))
        return [(tuple(output.inputs for output in outputs), why) for (_, why), outputs in by_group], first


def _inputs(files: Sequence[LiveFile], planned: Mapping[str, _Planned]) -> Task:
    """The input files of an output, in arrival order: outputs that are not written are replaced by theirs."""
    if not any(file.entry.path in planned for file in files):
        return tuple(files)
    found = (planned[file.entry.path].inputs if file.entry.path in planned else (file,) for file in files)
    return tuple(
        sorted(chain.from_iterable(found), key=lambda file: (file.entry.data_sequence_number, file.entry.path))
    )


def _output(task: Task) -> LiveFile:
    """The file that a task writes, as far as a policy needs it. Rows that are deleted make it smaller than this."""
    size, rows = sum(file.size for file in task), sum(file.entry.records for file in task)
    return LiveFile(task[-1].entry._replace(size=size, records=rows))


def _but_alone(choice: Choice, limits: GroupLimits) -> str:
    """Why files that the policy chose make no file group, as the end of a sentence."""
    files = choice.files
    if not files:
        return ""
    if limits.files == 1:
        return ", but max_file_group_input_files is 1"
    chunks = list(_chunks(files, {}, limits))
    if all(len(chunk) == 1 for chunk in chunks):
        return f", but no two in a row fit into a file group of max_file_group_size ({limits.bytes} bytes)"
    if choice.by_group and len(chunks) > 1:
        return f", but none of the {len(chunks)} file groups that limits allow is due by itself (max_file_group_size)"
    deletes = ", with as many delete files" if any(file.deletes for file in files) else ""
    return f", but each would be an output of its own{deletes}"


def _rank(group: FileGroup, order: str) -> int:
    """By which a group comes first in an order; `none`: all alike."""
    what, _, way = order.partition("-")
    size = {"none": 0, "bytes": group.bytes, "files": len(group.files)}[what]
    return -size if way == "desc" else size


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
    table that gets more. If two files do not fit even so, only the number of files of a run counts; one of several
    would become one again.
    """
    files, deletes, size = read[:2][-1]
    size -= sum(file.size for file in task[:files])
    needed = (0, size, requests_of(deletes, 0, size))
    fitting = _fitting(read, [least + max(least, there) for least, there in zip(needed, left, strict=True)])
    return fitting or (0 if limits.files_of_run == 1 < len(task) else min(len(task), limits.files_of_run or len(task)))


def _cost(read: tuple[int, int, int]) -> tuple[int, int, int]:
    """Data files, bytes and requests of rewriting the files into one for which this is read."""
    files, deletes, size = read
    return files, size, requests_of(files + deletes, 1, size)


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


def _chunks(
    files: Sequence[LiveFile], planned: Mapping[str, _Planned], limits: GroupLimits
) -> Iterator[Sequence[LiveFile]]:
    """Consecutive files, as many as fit the limits of a file group, at least one. `planned`: outputs among them."""
    ends = list(accumulate(file.entry.size for file in files))  # bytes up to the end of each file
    most = limits.files
    counts = (
        [len(planned[file.entry.path].inputs) if file.entry.path in planned else 1 for file in files] if most else []
    )
    numbers = list(accumulate(counts))
    start = 0
    while start < len(files):
        before = ends[start - 1] if start else 0
        end = bisect_right(ends, before + limits.bytes)
        if most is not None:
            end = min(end, bisect_right(numbers, most + (numbers[start - 1] if start else 0)))
        end = max(start + 1, end)
        yield files[start:end]
        start = end
