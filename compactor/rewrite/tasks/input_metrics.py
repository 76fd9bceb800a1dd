"""Column metrics of the files that output tasks copy: one pass over the manifests for all output tasks of a wave.

The pass runs in a thread beside the Spark job and reads each manifest that lists inputs of the tasks once. Metrics are
merged while they are read. Only inputs that a mixed output may keep stay separate, because the outcome of their task
decides which of them count.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.schema import Schema

from compactor.iceberg.manifest_entries import read_entries
from compactor.planning.plan_table import TablePlan
from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge
from compactor.rewrite.tasks.output_task import TaskInput

HELD_AT_ONCE: Final = 1024
"""Metrics that a pass may leave in memory before it stops adding tasks of later waves: 7 KB each with 100 columns."""
MERGE_AT: Final = 256  # metrics that a pass holds as objects (50 KB each with 100 columns) before it merges them

ReadManifest = Callable[[FileIO, ManifestFile], Sequence[ManifestEntry]]


class TaskId(NamedTuple):
    """An output task's place in the plan: number of its file group, position within the file group."""

    group: int
    position: int


class _Wanted(NamedTuple):
    """The task that may copy an input; `separate`: do not merge its metrics with those of other inputs."""

    task: TaskId
    separate: bool


@dataclass
class _Gathered:
    """Metrics of one task's inputs: pickled by path where they stay separate (an eighth of the memory), else merged."""

    separate: dict[str, bytes] = field(default_factory=dict)
    merged: list[ColumnMetrics] = field(default_factory=list)


class InputMetrics:
    """Column metrics of one plan's inputs, for output tasks that copy row groups."""

    def __init__(self, plan: TablePlan, read: ReadManifest = read_entries) -> None:
        self._plan = plan
        self._read = read
        self._passes: dict[TaskId, Future[dict[TaskId, _Gathered]]] = {}

    def start(
        self, wave: Mapping[TaskId, TaskInput], later: Iterable[TaskId], input_of: Callable[[TaskId], TaskInput]
    ) -> None:
        """Start a pass in a thread of its own, unless earlier passes cover the wave.

        The pass also covers as many `later` tasks as `HELD_AT_ONCE` allows. Otherwise manifests that list files of all
        file groups would be read again for each wave.
        """
        if all(task in self._passes for task in wave):
            return
        covered: set[TaskId] = set()
        wanted: dict[str, dict[str, _Wanted]] = {}
        held = 0
        for task in chain(wave, later):
            if task in self._passes or task in covered:
                continue
            if task not in wave and held >= HELD_AT_ONCE:
                break
            covered.add(task)
            held += self._want(wanted, task, wave.get(task) or input_of(task))
        pool = ThreadPoolExecutor(1, thread_name_prefix="column-metrics")
        started = pool.submit(self._gather, wanted)
        pool.shutdown(wait=False)
        self._passes.update(dict.fromkeys(covered, started))

    def take(self, task: TaskId, kept: Sequence[str] | None = None) -> ColumnMetrics:
        """Merged metrics of a task's inputs, or of its inputs at the paths `kept`. Waits for the pass; call it once.

        Raises:
            RetryError: a manifest cannot be read.
        """
        found = self._passes[task].result().pop(task, _Gathered())
        separate = [data for path, data in found.separate.items() if kept is None or path in kept]
        merged = found.merged if kept is None else []
        return merge([*merged, *map(pickle.loads, separate)], self._schema)

    def forget(self, task: TaskId) -> None:
        """Free the metrics of a task that has finished, as soon as the pass has ended."""
        self._passes[task].add_done_callback(lambda done: done.exception() or done.result().pop(task, None))

    @cached_property
    def _schema(self) -> Schema:
        return self._plan.table.metadata.schema()

    @cached_property
    def _manifests(self) -> list[ManifestFile]:
        return self._plan.table.manifests()

    def _want(self, wanted: dict[str, dict[str, _Wanted]], task: TaskId, work: TaskInput) -> int:
        """Add the inputs that the task may copy, by manifest and path; returns how many metrics will be held."""
        whole, may_keep = work.may_copy_all, frozenset(work.may_keep)
        for index, file in enumerate(self._plan.groups[task.group].group.shares[task.position]):
            if whole or index in may_keep:
                files = wanted.setdefault(file.entry.manifest_path, {})
                files[file.entry.path] = _Wanted(task, separate=index in may_keep)
        return len(may_keep) + whole

    def _gather(self, wanted: Mapping[str, Mapping[str, _Wanted]]) -> dict[TaskId, _Gathered]:
        gathered: dict[TaskId, _Gathered] = {}
        unmerged = 0
        for entry, (task, separate) in self._entries(wanted):
            found = gathered.setdefault(task, _Gathered())
            metrics = ColumnMetrics.from_data_file(entry.data_file)
            if separate:
                found.separate[entry.data_file.file_path] = pickle.dumps(metrics)
                continue
            found.merged.append(metrics)
            unmerged += 1
            if unmerged == MERGE_AT:
                self._merge(gathered)
                unmerged = 0
        self._merge(gathered)
        return gathered

    def _entries(self, wanted: Mapping[str, Mapping[str, _Wanted]]) -> Iterator[tuple[ManifestEntry, _Wanted]]:
        for manifest in self._manifests if wanted else ():
            files = wanted.get(manifest.manifest_path, {})
            for entry in self._read(self._plan.table.io, manifest) if files else ():
                found = files.get(entry.data_file.file_path)
                if found is not None:
                    yield entry, found

    def _merge(self, gathered: Mapping[TaskId, _Gathered]) -> None:
        for found in gathered.values():
            if len(found.merged) > 1:
                found.merged = [merge(found.merged, self._schema)]
