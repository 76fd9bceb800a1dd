"""Column metrics of copied inputs: which manifests are read, how often, and what stays in memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile

from compactor.errors import RetryError
from compactor.iceberg.manifest_entries import read_entries
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.reasons import Reason
from compactor.rewrite.parquet.column_metrics import ColumnMetrics
from compactor.rewrite.tasks import input_metrics
from compactor.rewrite.tasks.input_metrics import PAUSES, InputMetrics, TaskId
from compactor.rewrite.tasks.output_task import TaskInput
from compactor.rewrite.tasks.task_input import build_task_input
from compactor.settings.policy import PolicyValues
from tests.properties.table_history import TableHistory

ROWS = 3  # of each file that `append_unreal` adds
TASKS = [TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)]


class Reader:
    """Reads manifests and counts how often each one was read."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()

    def __call__(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        self.reads[manifest.manifest_path] += 1
        return read_entries(io, manifest)


class Silent:
    """A store that does not answer the first reads."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        self.failures -= 1
        if self.failures >= 0:
            raise RetryError("no answer", reason=Reason.MANIFEST_UNREADABLE)
        return read_entries(io, manifest)


class Stage:
    """A table with two manifests of data files; one file group with three output tasks of four files each."""

    def __init__(self, folder: Path, *, deletes: bool = False, engine: str = "auto", smallest: int = 10) -> None:
        history = TableHistory(folder, 2)
        for _ in range(2):
            history.append_unreal("a", [10] * 6)
        if deletes:
            history.append_unreal("a", [5], deletes=True)
        values = PolicyValues(target_file_size=40, min_row_group_size=smallest)
        request = Request(force=True, engine=engine, rewrite_all=True)
        self.plan: TablePlan = plan_table(
            history.view(), values, ManifestCache(1 << 20), request, wall_clock=lambda: time.time() + 3600
        )
        (group,) = self.plan.groups
        assert [len(task) for task in group.file_group.tasks] == [4, 4, 4]
        self.reader = Reader()
        self.metrics = InputMetrics(self.plan, self.reader)

    def input_of(self, task: TaskId) -> TaskInput:
        return build_task_input(self.plan, self.plan.groups[task.group], task.position, f"/out-{task.position}.parquet")

    def paths(self, task: TaskId) -> list[str]:
        return [file.entry.path for file in self.plan.groups[task.group].file_group.tasks[task.position]]

    def start(self, *wave: TaskId) -> None:
        self.metrics.order = TASKS
        self.metrics.start({task: self.input_of(task) for task in wave}, self.input_of)

    def taken(self, task: TaskId) -> ColumnMetrics:
        return self.metrics.take(task, self.paths(task))

    def with_silent_store(self, failures: int) -> list[float]:
        """The seconds that are waited for it are in the list."""
        slept: list[float] = []
        self.metrics = InputMetrics(self.plan, Silent(failures))
        self.metrics._sleep = slept.append
        return slept

    @property
    def reads(self) -> list[int]:
        return sorted(self.reader.reads.values())


def wait_for_passes() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("column-metrics"):
            thread.join(60)


@pytest.mark.parametrize("smallest", [10, 1])
def test_a_wave_reads_each_manifest_once_for_all_its_tasks(tmp_path: Path, smallest: int) -> None:
    stage = Stage(tmp_path, smallest=smallest)
    stage.start(*TASKS)
    for task in TASKS[:2]:
        found = stage.taken(task)
        assert (found.record_count, found.value_counts[1]) == (4 * ROWS, 4 * ROWS)
    kept = stage.paths(TASKS[2])[1:3]
    assert stage.metrics.take(TASKS[2], kept).record_count == 2 * ROWS
    assert stage.reads == [1, 1]


def test_inputs_that_are_merged_a_few_at_a_time_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_metrics, "MERGED_AT_ONCE", 2)
    stage = Stage(tmp_path, engine="splice")
    stage.start(*TASKS)
    assert [stage.taken(task).record_count for task in TASKS] == [4 * ROWS] * 3
    assert stage.reads == [1, 1]


def test_the_pass_of_a_wave_covers_later_waves_as_far_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    for task in TASKS:
        stage.start(task)
        assert stage.taken(task).record_count == 4 * ROWS
    assert stage.reads == [1, 1]
    monkeypatch.setattr(input_metrics, "HELD_AT_ONCE", 1)
    (tmp_path / "tight").mkdir()
    tight = Stage(tmp_path / "tight")
    for task in TASKS:
        tight.start(task)
        assert tight.taken(task).record_count == 4 * ROWS
    assert tight.reads == [2, 2]  # the second task has inputs in both manifests


def test_inputs_that_are_decoded_in_any_case_are_not_read(tmp_path: Path) -> None:
    stage = Stage(tmp_path, deletes=True)
    stage.start(*TASKS)
    assert stage.taken(TASKS[0]).record_count == 0
    assert stage.reads == []
    (tmp_path / "small").mkdir()
    small = Stage(tmp_path / "small", smallest=11)
    small.start(*TASKS)
    assert small.taken(TASKS[0]).record_count == 0
    assert small.reads == []


def test_metrics_of_finished_tasks_leave_memory(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.start(*TASKS)
    held = stage.metrics._passes[TASKS[0]].found.result()
    assert sorted(held) == sorted(path for task in TASKS for path in stage.paths(task))
    stage.taken(TASKS[0])
    stage.metrics.forget(TASKS[0])
    stage.metrics.forget(TASKS[1])
    assert sorted(held) == sorted(stage.paths(TASKS[2]))


def test_a_manifest_that_cannot_be_read_fails_the_tasks_that_need_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    slept = stage.with_silent_store(failures=99)
    stage.start(*TASKS)
    with pytest.raises(RetryError, match="no answer"):
        stage.taken(TASKS[0])
    stage.metrics.forget(TASKS[0])
    assert slept == list(PAUSES)


def test_a_read_that_fails_once_costs_no_finished_output(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    slept = stage.with_silent_store(failures=1)
    stage.start(*TASKS)
    wait_for_passes()
    stage.metrics.forget(TASKS[1])  # its inputs are not read again
    assert [stage.taken(task).record_count for task in (TASKS[0], TASKS[2])] == [4 * ROWS] * 2
    assert slept == [PAUSES[0]]
    held = stage.metrics._passes[TASKS[0]].found.result()
    assert sorted(held) == sorted(stage.paths(TASKS[0]) + stage.paths(TASKS[2]))


def test_the_job_after_a_failed_pass_starts_another(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    slept = stage.with_silent_store(failures=1)
    stage.start(TASKS[0])
    wait_for_passes()
    stage.start(TASKS[1])
    assert [stage.taken(task).record_count for task in TASKS] == [4 * ROWS] * 3
    assert slept == []
