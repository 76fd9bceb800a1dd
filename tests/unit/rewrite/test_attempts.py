"""Attempts of one output task: each writes files of its own, and records know all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext

from compactor.commit.in_flight import InFlightRecords
from compactor.errors import RetryError
from compactor.lease.owner import Owner
from compactor.locations import attempt_location
from compactor.reasons import Reason
from compactor.rewrite.tasks.output_task import SILENCE, TaskAttempt, TaskInput, TaskResult, attempt_tasks
from compactor.rewrite.tasks.runner import OutputTaskRunner
from tests.properties.table_history import TableHistory
from tests.slow import slow
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
    assert again.splice.files == work.splice.files
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


def answers(*silent: int) -> tuple[list[TaskInput], Any]:
    """Sixty-four output tasks, and what runs them; the store answers none with the numbers `silent`."""
    works = [TaskInput(None, None, f"{number}-firnline.parquet") for number in range(64)]

    def run(work: TaskInput) -> Any:
        if int(str(work.aside).split("-", maxsplit=1)[0]) in silent:
            raise TimeoutError("timed out")

    return works, run


@pytest.mark.parametrize(
    ("silent", "begun"),
    [(range(64), SILENCE), *slow((range(10, 64), 10 + SILENCE), (range(61, 64), 64), ([0, 1, 3, 4, 6, 7], 64))],
)
def test_a_bundle_ends_once_the_store_answers_no_task_any_more(silent: Any, begun: int) -> None:
    """Each takes minutes where the store drops packets, and holds the slot."""
    works, run = answers(*silent)
    done = attempt_tasks(run, 0, 4, works)
    assert [attempt.outcome is None for attempt in done] == [number not in silent for number in range(begun)]


def test_a_task_that_spark_starts_again_begins_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt that was lost may still write what another job would."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()
    context._attemptNumber = 1
    works, run = answers(*range(64))
    done = attempt_tasks(run, 0, 4, works)
    assert [str(attempt.outcome).endswith("timed out") for attempt in done] == [True] * 64


def test_outputs_that_were_not_begun_are_written_by_another_job_which_is_their_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a second attempt of one would write a file that no record lists."""
    bundle = [TaskId(number, 0) for number in range(5)]
    attempts = [TaskAttempt(RetryError("timed out"), 0.0)] * 3
    runner = OutputTaskRunner.__new__(OutputTaskRunner)
    runner._outputs, runner._attempts, runner._jobs, runner.repeated = dict.fromkeys(bundle, ""), {}, Counter(), False
    job: Any = SimpleNamespace(tasks=bundle, rdd=SimpleNamespace(collect=lambda: [attempts]))
    runner._prepared = {bundle[0]: job}
    monkeypatch.setattr(OutputTaskRunner, "_label_thread", lambda *_: None)
    assert runner.write_ahead(bundle) == bundle[3:]
    assert list(runner._attempts) == bundle[:3]
    assert [runner._jobs[task] for task in bundle] == [1, 1, 1, 0, 0]


def test_a_record_lists_the_files_of_all_attempts(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    records = InFlightRecords(f"file://{tmp_path}/in-flight", Owner.this_process(), 60, lambda: 0.0)
    records.open("run", TableHistory(tmp_path / "table", 2).view(), [OUTPUT], attempts=3)
    (record,) = records.all()
    assert record.outputs == [attempt_location(OUTPUT, attempt) for attempt in range(3)]
