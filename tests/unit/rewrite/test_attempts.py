"""Attempts of one output task: each writes files of its own, and records know all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import TaskContext

from compactor.commit.in_flight import InFlightRecords
from compactor.errors import RetryError
from compactor.lease.owner import Owner
from compactor.locations import attempt_location
from compactor.reasons import Reason
from compactor.rewrite.tasks.output_task import TaskAttempt, TaskInput, TaskResult, attempt_tasks
from compactor.rewrite.tasks.runner import OutputTaskRunner
from tests.properties.table_history import TableHistory
from tests.unit.rewrite.test_input_metrics import Stage, TaskId

OUTPUT = "s3://lake/a.b/00000-00001-firnline-run.parquet"


def test_no_two_attempts_write_the_same_file() -> None:
    names = [attempt_location(OUTPUT, attempt) for attempt in range(4)]
    assert names[:2] == [OUTPUT, "s3://lake/a.b/00000-00001-firnline-run-attempt1.parquet"]
    assert len(set(names)) == 4


def test_an_attempt_renames_each_file_that_it_may_write(tmp_path: Path) -> None:
    work = Stage(tmp_path).input_of(TaskId(0, 0))
    again = work.at_attempt(2)
    assert work.at_attempt(0) is work
    assert work.splice is not None
    assert work.encode is not None
    assert work.aside is not None
    assert again.splice is not None
    assert again.encode is not None
    assert again.splice.inputs == work.splice.inputs
    assert (again.splice.output, again.encode.output) == (attempt_location(work.splice.output, 2),) * 2
    assert again.aside == attempt_location(work.aside, 2)


def test_a_task_reports_which_attempt_wrote_its_file() -> None:
    seen: list[TaskInput] = []
    done = attempt_tasks(lambda work: seen.append(work) or None, 4, 4, [TaskInput(None, None, OUTPUT)] * 2)  # type: ignore[func-returns-value, arg-type, return-value]
    assert [attempt.number for attempt in done] == [4, 4]
    assert [work.aside for work in seen] == [attempt_location(OUTPUT, 4)] * 2


def test_an_attempt_beyond_those_on_record_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark counts no failure of an executor that was taken away, and starts the task again and again."""
    seen: list[TaskInput] = []
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()  # notes itself as this process's; it must be gone before Spark is started here
    names = []
    for first in (0, 4):
        for context._attemptNumber in range(6):
            done = attempt_tasks(lambda work: seen.append(work) or None, first, 4, [TaskInput(None, None, OUTPUT)] * 2)  # type: ignore[func-returns-value, arg-type, return-value]
            names += [work.aside for work in seen[::2]]
            seen.clear()
            if context._attemptNumber >= 4:
                assert [attempt.outcome.reason for attempt in done] == ["task_lost"] * 2  # type: ignore[union-attr]
    assert names == [attempt_location(OUTPUT, attempt) for attempt in range(8)]


def test_the_second_attempt_of_a_task_finds_the_metrics_of_its_inputs(tmp_path: Path) -> None:
    stage, task = Stage(tmp_path), TaskId(0, 0)
    stage.start(task)
    runner = OutputTaskRunner.__new__(OutputTaskRunner)
    runner._plan, runner._metrics = stage.plan, stage.metrics
    runner._attempts = {task: TaskAttempt(RetryError("malloc failed", reason=Reason.OUT_OF_MEMORY), 0.0)}
    known = stage.taken(task)
    with pytest.raises(RetryError):
        runner.rewrite(task)
    assert stage.taken(task) == known


def test_a_store_that_drops_the_connection_is_asked_again() -> None:
    def reset(_work: TaskInput) -> TaskResult:
        raise ConnectionResetError("Connection reset by peer")

    (attempt,) = attempt_tasks(reset, 0, 1, [TaskInput(None, None, OUTPUT)])
    assert isinstance(attempt.outcome, RetryError)
    assert attempt.outcome.reason == "unavailable"


def test_a_record_lists_the_files_of_all_attempts(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    records = InFlightRecords(f"file://{tmp_path}/in-flight", Owner.this_process(), 60, lambda: 0.0)
    records.open("run", TableHistory(tmp_path / "table", 2).view(), [OUTPUT], attempts=3)
    (record,) = records.all()
    assert record.outputs == [attempt_location(OUTPUT, attempt) for attempt in range(3)]
