"""Column metrics of the files that output tasks copy: one pass over the manifests for as many tasks as memory allows.

The pass runs in a thread beside the Spark jobs and reads each manifest that lists inputs once. It covers the
inputs that a task may copy, as far as sizes and deletes tell. The outcome of the task decides which of them count.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile

from compactor.errors import RetryError
from compactor.iceberg.manifest_entries import read_entries
from compactor.manifests.live_files import LiveFile
from compactor.planning.plan_table import TablePlan
from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge
from compactor.rewrite.tasks.output_task import TaskInput

LOG = logging.getLogger("firnline")
HELD_AT_ONCE: Final = 8192  # inputs from which a pass adds no later tasks: 7 KB each with 100 columns, pickled
MERGED_AT_ONCE: Final = 64  # inputs whose metrics are objects at the same time: 50 KB each with 100 columns
PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further pass where one has failed. Outputs are finished; a stop of the run waits for this."""

ReadManifest = Callable[[FileIO, ManifestFile], Sequence[ManifestEntry]]


class TaskId(NamedTuple):
    """An output task's place in the plan: number of its file group, position within the file group."""

    group: int
    position: int


@dataclass(frozen=True)
class _Pass:
    """One pass. `inputs`: what each of its tasks may copy. `found`: pickled metrics by path."""

    inputs: Mapping[TaskId, Sequence[LiveFile]]
    found: Future[dict[str, bytes]]

    @property
    def failed(self) -> bool:
        return self.found.done() and self.found.exception() is not None


class InputMetrics:
    """Column metrics of one plan's inputs, for output tasks that copy row groups. `sleep`: takes seconds."""

    def __init__(
        self, plan: TablePlan, read: ReadManifest = read_entries, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._plan = plan
        self._read = read
        self._sleep = sleep
        self.order: Sequence[TaskId] = ()
        """All tasks, in about the order in which they will be written."""
        self._passes: dict[TaskId, _Pass] = {}
        self._forgotten: set[TaskId] = set()
        self._lock = threading.Lock()  # several jobs of a run start at the same time

    def start(self, wave: Mapping[TaskId, TaskInput], input_of: Callable[[TaskId], TaskInput]) -> None:
        """Start a pass in a thread of its own, unless earlier passes cover the `wave`, the tasks of one Spark job.

        The pass also covers as many of the next tasks as `HELD_AT_ONCE` allows. Otherwise manifests that list files of
        all file groups would be read again for each job. Thread-safe.
        """
        with self._lock:
            if not all(self._is_covered(task) for task in wave):
                self._start(wave, input_of)

    def _start(self, wave: Mapping[TaskId, TaskInput], input_of: Callable[[TaskId], TaskInput]) -> None:
        inputs: dict[TaskId, Sequence[LiveFile]] = {}
        held = 0
        for task in chain(wave, self.order):
            if task in inputs or self._is_covered(task):
                continue
            if task not in wave and held >= HELD_AT_ONCE:
                break
            inputs[task] = self._copied(task, wave.get(task) or input_of(task))
            held += len(inputs[task])
        self._begin(inputs)

    def _is_covered(self, task: TaskId) -> bool:
        return task in self._forgotten or (task in self._passes and not self._passes[task].failed)

    def _begin(self, inputs: Mapping[TaskId, Sequence[LiveFile]]) -> None:
        wanted: dict[str, set[str]] = {}
        for file in chain.from_iterable(inputs.values()):
            wanted.setdefault(file.entry.manifest_path, set()).add(file.entry.path)
        pool = ThreadPoolExecutor(1, thread_name_prefix="column-metrics")
        started = _Pass(inputs, pool.submit(self._read_metrics, wanted))
        pool.shutdown(wait=False)
        self._passes.update(dict.fromkeys(inputs, started))

    def take(self, task: TaskId, paths: Iterable[str]) -> ColumnMetrics:
        """Merged metrics of the task's inputs at these paths. Waits for the pass, and for others if it fails.

        Raises:
            RetryError: a manifest cannot be read, by five passes in a row.
        """
        found, schema = self._found(task), self._plan.table.metadata.schema()
        metrics: list[ColumnMetrics] = []
        for path in paths:
            if path in found:
                metrics.append(pickle.loads(found[path]))  # noqa: S301 - our own bytes
            if len(metrics) == MERGED_AT_ONCE:
                metrics = [merge(metrics, schema)]
        return merge(metrics, schema)

    def _found(self, task: TaskId) -> dict[str, bytes]:
        for pause in PAUSES:
            current = self._passes[task]
            try:
                return current.found.result()
            except RetryError as error:
                LOG.info("column metrics of inputs are read again in %.0f s: %s", pause, error)
            self._sleep(pause)
            self._again(current)
        return self._passes[task].found.result()

    def _again(self, failed: _Pass) -> None:
        """Start a pass for the tasks of a failed one that still need theirs, unless another thread has."""
        with self._lock:
            left = {
                task: files
                for task, files in failed.inputs.items()
                if self._passes[task] is failed and task not in self._forgotten
            }
            if left:
                self._begin(left)

    def forget(self, task: TaskId) -> None:
        """Free the metrics of a finished task, as soon as the pass has ended."""

        def free(done: Future[dict[str, bytes]]) -> None:
            for file in self._files(task) if done.exception() is None else ():
                done.result().pop(file.entry.path, None)

        with self._lock:
            self._forgotten.add(task)
            self._passes[task].found.add_done_callback(free)

    def _files(self, task: TaskId) -> Sequence[LiveFile]:
        return self._plan.groups[task.group].file_group.tasks[task.position]

    def _copied(self, task: TaskId, work: TaskInput) -> Sequence[LiveFile]:
        """The inputs that the task may copy."""
        files = self._files(task)
        return files if work.may_copy_all else [files[index] for index in work.may_keep]

    def _read_metrics(self, wanted: Mapping[str, set[str]]) -> dict[str, bytes]:
        """Pickled metrics by path: as objects they would take seven times the memory."""
        return {
            entry.data_file.file_path: pickle.dumps(ColumnMetrics.from_data_file(entry.data_file))
            for manifest in (self._plan.table.manifests() if wanted else ())
            if manifest.manifest_path in wanted
            for entry in self._read(self._plan.table.io, manifest)
            if entry.data_file.file_path in wanted[manifest.manifest_path]
        }
