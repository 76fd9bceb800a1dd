"""Column metrics of the files that output tasks copy: one pass over the manifests for as many tasks as memory allows.

The pass runs in a thread beside the Spark jobs and reads each manifest that lists inputs once. It covers the
inputs that a task may copy, as far as sizes and deletes tell. The outcome of the task decides which of them count.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Final, NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile

from compactor.iceberg.manifest_entries import read_entries
from compactor.manifests.live_files import LiveFile
from compactor.planning.plan_table import TablePlan
from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge
from compactor.rewrite.tasks.output_task import TaskInput

HELD_AT_ONCE: Final = 8192  # inputs from which a pass adds no later tasks: 7 KB each with 100 columns, pickled
MERGED_AT_ONCE: Final = 64  # inputs whose metrics are objects at the same time: 50 KB each with 100 columns

ReadManifest = Callable[[FileIO, ManifestFile], Sequence[ManifestEntry]]


class TaskId(NamedTuple):
    """An output task's place in the plan: number of its file group, position within the file group."""

    group: int
    position: int


class InputMetrics:
    """Column metrics of one plan's inputs, for output tasks that copy row groups."""

    def __init__(self, plan: TablePlan, read: ReadManifest = read_entries) -> None:
        self._plan = plan
        self._read = read
        self._passes: dict[TaskId, Future[dict[str, bytes]]] = {}
        self._lock = threading.Lock()  # several jobs of a run start at the same time

    def start(
        self, wave: Mapping[TaskId, TaskInput], later: Iterable[TaskId], input_of: Callable[[TaskId], TaskInput]
    ) -> None:
        """Start a pass in a thread of its own, unless earlier passes cover the `wave`, the tasks of one Spark job.

        The pass also covers as many `later` tasks as `HELD_AT_ONCE` allows. Otherwise manifests that list files of all
        file groups would be read again for each job. Thread-safe.
        """
        with self._lock:
            if not all(task in self._passes for task in wave):
                self._start(wave, later, input_of)

    def _start(
        self, wave: Mapping[TaskId, TaskInput], later: Iterable[TaskId], input_of: Callable[[TaskId], TaskInput]
    ) -> None:
        covered: set[TaskId] = set()
        wanted: dict[str, set[str]] = {}
        held = 0
        for task in chain(wave, later):
            if task in self._passes or task in covered:
                continue
            if task not in wave and held >= HELD_AT_ONCE:
                break
            covered.add(task)
            held += self._want(wanted, task, wave.get(task) or input_of(task))
        pool = ThreadPoolExecutor(1, thread_name_prefix="column-metrics")
        started = pool.submit(self._read_metrics, wanted)
        pool.shutdown(wait=False)
        self._passes.update(dict.fromkeys(covered, started))

    def take(self, task: TaskId, paths: Iterable[str]) -> ColumnMetrics:
        """Merged metrics of the task's inputs at these paths. Waits for the pass.

        Raises:
            RetryError: a manifest cannot be read.
        """
        found, schema = self._passes[task].result(), self._plan.table.metadata.schema()
        metrics: list[ColumnMetrics] = []
        for path in paths:
            if path in found:
                metrics.append(pickle.loads(found[path]))  # noqa: S301 - our own bytes
            if len(metrics) == MERGED_AT_ONCE:
                metrics = [merge(metrics, schema)]
        return merge(metrics, schema)

    def forget(self, task: TaskId) -> None:
        """Free the metrics of a finished task, as soon as the pass has ended."""

        def free(done: Future[dict[str, bytes]]) -> None:
            for file in self._files(task) if done.exception() is None else ():
                done.result().pop(file.entry.path, None)

        self._passes[task].add_done_callback(free)

    def _files(self, task: TaskId) -> Sequence[LiveFile]:
        return self._plan.groups[task.group].file_group.tasks[task.position]

    def _want(self, wanted: dict[str, set[str]], task: TaskId, work: TaskInput) -> int:
        """Add the paths of the inputs that the task may copy, by manifest; returns their number."""
        files = self._files(task)
        copied = files if work.may_copy_all else [files[index] for index in work.may_keep]
        for file in copied:
            wanted.setdefault(file.entry.manifest_path, set()).add(file.entry.path)
        return len(copied)

    def _read_metrics(self, wanted: Mapping[str, set[str]]) -> dict[str, bytes]:
        """Pickled metrics by path: as objects they would take seven times the memory."""
        return {
            entry.data_file.file_path: pickle.dumps(ColumnMetrics.from_data_file(entry.data_file))
            for manifest in (self._plan.table.manifests() if wanted else ())
            if manifest.manifest_path in wanted
            for entry in self._read(self._plan.table.io, manifest)
            if entry.data_file.file_path in wanted[manifest.manifest_path]
        }
