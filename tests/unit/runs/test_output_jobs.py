"""Output tasks that fail: which are tried once more, alone, and what they cost. The runner here writes nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError, StoppedError
from compactor.planning.engine import Engine
from compactor.reasons import Reason
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.output_task import SILENCE
from compactor.rewrite.tasks.runner import TRIED_AGAIN
from compactor.runs.bundles import Pace
from compactor.runs.job_errors import RESTORE
from compactor.runs.output_jobs import OutputJobs
from compactor.runs.results import NotTriedError
from compactor.runs.slots import SlotPool
from tests.properties.planning import data_file, delete_file

PATIENCE = 60  # seconds
TASKS = [TaskId(number, 0) for number in range(3)]


@dataclass
class Runner:
    """`failing`: how often each task fails. Tasks behind `SILENCE` without an answer in a row are not begun."""

    failing: dict[TaskId, int]
    reason: Reason = Reason.CREDENTIALS_EXPIRED
    error: Exception | None = None
    attempts: Counter[TaskId] = field(default_factory=Counter)
    bundles: list[tuple[TaskId, ...]] = field(default_factory=list)

    def expect(self, _tasks: Sequence[TaskId]) -> None: ...

    def prepare(self, _tasks: Sequence[TaskId]) -> None: ...

    def needs_spark(self, _task: TaskId) -> bool:
        return False

    def write_ahead(self, tasks: Sequence[TaskId]) -> Sequence[TaskId]:
        self.bundles.append(tuple(tasks))
        in_a_row = 0
        for number, task in enumerate(tasks, 1):
            is_silent = self.reason is Reason.UNAVAILABLE and self.attempts[task] < self.failing.get(task, 0)
            in_a_row = in_a_row + 1 if is_silent else 0
            if in_a_row == SILENCE:
                return tasks[number:]
        return ()

    def rewrite(self, task: TaskId) -> Any:
        self.attempts[task] += 1
        if self.attempts[task] <= self.failing.get(task, 0):
            raise self.error or RetryError("the store's credential is over", reason=self.reason)
        return SimpleNamespace(seconds=1.0)


def jobs(runner: Runner, groups: int = len(TASKS), slots: int = 2) -> OutputJobs:
    file = SimpleNamespace(size=1000, entry=SimpleNamespace(path="file:///lake/t/k=null/1.parquet"), deletes=())
    files = SimpleNamespace(tasks=[[file]], partition={"k": None})
    group = SimpleNamespace(engine=SimpleNamespace(kind=Engine.ENCODE), file_group=files)
    plan = SimpleNamespace(groups=[group] * groups, table=SimpleNamespace(name="lake.db.t"))
    return OutputJobs(
        runner=cast("Any", runner), plan=cast("Any", plan), run_id="run", slots=SlotPool(slots), pace=Pace(),
        stopped=threading.Event(), cancel=lambda: None, done=lambda _written: None, moved=lambda: None,
        read=lambda *_counts: None,
    )  # fmt: skip


@pytest.mark.parametrize("reason", sorted(TRIED_AGAIN))
def test_a_task_that_another_attempt_may_help_is_tried_once_more_and_no_other_is(reason: Reason) -> None:
    runner = Runner({TASKS[1]: 1}, reason)
    made = jobs(runner)
    made._run_all(TASKS)
    assert set(made._written) == set(TASKS)
    assert runner.attempts == {TASKS[0]: 1, TASKS[1]: 2, TASKS[2]: 1}
    assert runner.bundles[-1] == (TASKS[1],)


def test_it_is_not_tried_for_ever() -> None:
    runner = Runner({TASKS[1]: 9})
    with pytest.raises(FirnlineError) as error:
        jobs(runner)._run_all(TASKS)
    assert error.value.reason == Reason.CREDENTIALS_EXPIRED
    assert runner.attempts[TASKS[1]] == 2


def test_a_task_that_runs_out_of_memory_twice_costs_its_group() -> None:
    """The next run would meet the same file group, and throw away all others again."""
    runner = Runner({TASKS[1]: 9}, error=RetryError("malloc of size 1024 failed", reason=Reason.OUT_OF_MEMORY))
    made = jobs(runner)
    made._run_all(TASKS)
    assert set(made._written) == {TASKS[0], TASKS[2]}
    assert runner.attempts[TASKS[1]] == 2
    assert runner.bundles.count((TASKS[1],)) == 1, "the second attempt is alone"
    (failure,) = made._failed.values()
    assert isinstance(failure, GiveUpError)
    assert failure.reason == Reason.OUT_OF_MEMORY
    assert "(k=null) failed: malloc of size 1024 failed; this happened twice: raise the memory" in str(failure)


@pytest.mark.parametrize("reason", [Reason.UNAVAILABLE, Reason.TASK_LOST])
def test_a_task_without_an_answer_or_an_executor_costs_its_group(reason: Reason) -> None:
    silence = RetryError("503 for 1.parquet", reason=reason)
    runner = Runner({TASKS[1]: 9}, error=silence)
    made = jobs(runner)
    made._run_all(TASKS)
    assert set(made._written) == {TASKS[0], TASKS[2]}
    assert made._failed == {1: silence}, "no GiveUpError: the store may be down by now"
    assert runner.attempts[TASKS[1]] == 2


def test_a_store_that_answers_no_task_ends_the_run() -> None:
    many = [TaskId(number, 0) for number in range(20)]
    runner = Runner(dict.fromkeys(many, 9), Reason.UNAVAILABLE)
    made = jobs(runner, len(many))
    made._run_all(many)
    assert runner.attempts == dict.fromkeys(many[:SILENCE], 1), "no second attempt of any"
    assert not made._written
    assert made.store.is_certain
    assert [type(made._failed[number]) for number in range(20)] == [RetryError] * SILENCE + [NotTriedError] * 17


def test_several_files_without_an_answer_end_no_run_while_others_are_answered() -> None:
    many = [TaskId(number, 0) for number in range(20)]
    silent = many[::4]
    runner = Runner(dict.fromkeys(silent, 9), Reason.UNAVAILABLE)
    made = jobs(runner, len(many), slots=1)
    made._run_all(many)
    assert set(made._written) == set(many) - set(silent)
    assert made._failed.keys() == {task.group for task in silent}
    assert {type(error) for error in made._failed.values()} == {RetryError}


@pytest.mark.parametrize("first", [1, 9, 17])
def test_three_file_groups_without_an_answer_throw_away_nothing_of_their_bundle(first: int) -> None:
    """The next bundle writes what comes behind them. Also as the last ones: the others came beside them."""
    many, silent = [TaskId(number, 0) for number in range(20)], {first, first + 1, first + 2}
    runner = Runner({TaskId(number, 0): 9 for number in silent}, Reason.UNAVAILABLE)
    made = jobs(runner, len(many), slots=1)
    made._run_all(many)
    assert {task.group for task in made._written} == set(range(20)) - silent
    assert made._failed.keys() == silent
    assert {runner.attempts[TaskId(number, 0)] for number in silent} == {2}
    assert {runner.attempts[task] for task in made._written} == {1}


@pytest.mark.parametrize("slots", [1, 4])
def test_a_thousand_groups_on_a_store_that_is_down_cost_a_few_timeouts_and_keep_what_was_written(slots: int) -> None:
    many = [TaskId(number, 0) for number in range(1000)]
    runner = Runner(dict.fromkeys(many[5:], 9), Reason.UNAVAILABLE)
    made = jobs(runner, len(many), slots)
    made.pace = cast("Any", SimpleNamespace(seconds=lambda *_: 60.0, learn=lambda *_: None))  # none shares a bundle
    made._run_all(many)
    assert set(made._written) == set(many[:5])
    assert sum(runner.attempts.values()) <= 5 + SILENCE + 3 * slots
    kinds = Counter(type(error) for error in made._failed.values())
    assert kinds[RetryError] + kinds[NotTriedError] == 995
    assert kinds[NotTriedError] > 980, "they are not given up"


def test_what_a_bundle_has_written_behind_files_without_an_answer_shows_that_the_store_answers() -> None:
    many, silent = [TaskId(number, 0) for number in range(20)], {0, 1, 3, 4}
    runner = Runner({TaskId(number, 0): 9 for number in silent}, Reason.UNAVAILABLE)
    made = jobs(runner, len(many), slots=1)
    made._run_all(many)
    assert runner.bundles[0] == tuple(many)
    assert {task.group for task in made._written} == set(range(20)) - silent
    assert made._failed.keys() == silent


def test_a_store_that_answers_no_task_any_more_within_a_bundle_costs_a_few_timeouts() -> None:
    """What was written before is committed, if the store answers again by then."""
    many = [TaskId(number, 0) for number in range(20)]
    runner = Runner(dict.fromkeys(many[5:], 9), Reason.UNAVAILABLE)
    made = jobs(runner, len(many), slots=1)
    made._run_all(many)
    assert set(made._written) == set(many[:5])
    assert runner.bundles == [tuple(many), tuple(many[5 + SILENCE :])]
    assert runner.attempts == dict.fromkeys(many[: 5 + 2 * SILENCE], 1)
    kinds = [type(made._failed[number]) for number in range(5, 20)]
    assert kinds == [RetryError] * 2 * SILENCE + [NotTriedError] * (15 - 2 * SILENCE)


def test_tasks_without_an_answer_end_no_run_for_other_groups_before_three_jobs_in_a_row() -> None:
    """A file group with many tasks in a place that is lost: the next run leaves it out, and comes to all others."""
    tasks = [*(TaskId(0, index) for index in range(200)), *(TaskId(number, 0) for number in range(1, 20))]
    runner = Runner(dict.fromkeys(tasks[:200], 9), Reason.UNAVAILABLE)
    made = jobs(runner, 20, slots=8)
    group = made.plan.groups[0]
    files = SimpleNamespace(tasks=list(group.file_group.tasks) * 200, partition=group.file_group.partition)
    made.plan.groups[0] = SimpleNamespace(engine=group.engine, file_group=files)  # type: ignore[index]
    made._run_all(tasks)
    assert type(made._failed[0]) is RetryError
    assert {type(error) for group, error in made._failed.items() if group} <= {NotTriedError}
    assert sum(runner.attempts.values()) <= 3 * 8


def test_another_failure_of_the_store_ends_the_run_at_once() -> None:
    runner = Runner({TASKS[1]: 1}, Reason.NO_SPACE)
    with pytest.raises(FirnlineError):
        jobs(runner)._run_all(TASKS)
    assert runner.attempts[TASKS[1]] == 1


@pytest.mark.parametrize(
    "error", [ReplanError("the planned snapshot expired", reason=Reason.SNAPSHOT_EXPIRED), GiveUpError("damaged")]
)
def test_what_concerns_one_file_group_costs_no_other(error: FirnlineError) -> None:
    runner = Runner({TASKS[1]: 1}, error=error)
    made = jobs(runner)
    made._run_all(TASKS)
    assert set(made._written) == {TASKS[0], TASKS[2]}
    assert made._failed == {1: error}


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), Py4JError("no gateway")])
def test_a_jvm_that_has_ended_costs_no_file_group(error: Exception) -> None:
    runner = Runner({TASKS[1]: 1}, error=error)
    made = jobs(runner)
    with pytest.raises(Py4JError):
        made._run_all(TASKS)
    assert not made._failed


def test_a_run_that_was_given_up_while_it_was_planned_ends() -> None:
    """Its table has got no slot since."""
    runner = Runner({})
    made = jobs(runner)
    made.slots.evict("lake.db.t")
    with pytest.raises(StoppedError, match="given up"):
        made._run_all(TASKS)
    assert not runner.attempts


def test_delete_files_are_counted_as_read_once_for_each_task_and_of_a_vector_its_own_bytes() -> None:
    """A Puffin file of a gigabyte may hold the vectors of thousands of other files."""
    shared = delete_file(9, 1, applies_to=None)._replace(size=40)
    vectors = [
        delete_file(1, 2, applies_to=f"file-000{number}")._replace(size=10**9, blob=(number, 5 + number))
        for number in range(2)
    ]
    task = tuple(data_file(number, 100)._replace(deletes=(shared, vectors[number])) for number in range(2))
    made, counted = jobs(Runner({})), list[tuple[int, int, int]]()
    made.plan.groups[0].file_group.tasks[0] = task  # type: ignore[index]
    made.read = lambda *counts: counted.append(counts)
    made._run_all(TASKS)
    assert [sum(each) for each in zip(*counted, strict=True)] == [3 * 4, 3, 3 * (200 + 40 + 5 + 6)]


ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage "
    "1.0 (TID 354) (host executor driver): "
)


@pytest.mark.parametrize(
    ("said", "rest"),
    [
        (
            "org.apache.iceberg.exceptions.NotFoundException: no such file: file:/lake/t/k=null/1.parquet",
            RESTORE,
        ),
        (
            "org.apache.parquet.format.InvalidParquetMetadataException: size -43",
            f" in one of file:///lake/t/k=null/1.parquet{RESTORE}",
        ),
        (
            "org.apache.iceberg.exceptions.RuntimeIOException: java.io.EOFException",
            f" in one of file:///lake/t/k=null/1.parquet{RESTORE}",
        ),
        ("java.io.UncheckedIOException: Failed to create Parquet file", ""),
    ],
)
def test_an_error_of_spark_is_told_without_its_job_and_with_partition_files_and_remedy(said: str, rest: str) -> None:
    made = jobs(Runner({TASKS[1]: 1}, error=RuntimeError(f"{ABORTED}{said}\n\tat java.lang.Thread.run")))
    made._run_all(TASKS)
    assert list(made._failed) == [1]
    assert isinstance(made._failed[1], GiveUpError)
    assert str(made._failed[1]) == f"rewriting a file group of lake.db.t (k=null) failed: {said}{rest}"
