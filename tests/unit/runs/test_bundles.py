"""Which output tasks share a Spark job: small ones are bundled, no task is forgotten, and slots end together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.planning.engine import Engine
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.runs.bundles import FIRST_GUESS, LEAST_SECONDS, MOST_SECONDS, MOST_TASKS, Pace, TaskQueue

SECONDS = st.lists(st.floats(0.001, 4 * MOST_SECONDS), max_size=200)


def queue_of(*seconds: float, alone: frozenset[int] = frozenset()) -> TaskQueue:
    tasks = {TaskId(0, number): each for number, each in enumerate(seconds)}
    return TaskQueue(tasks, frozenset(TaskId(0, number) for number in alone))


def bundles(queue: TaskQueue, slots: int) -> list[list[int]]:
    made = []
    while queue:
        made.append([task.position for task in queue.bundle(slots)])
    return made


@given(SECONDS, st.integers(1, 50), st.sets(st.integers(0, 50)))
def test_every_task_is_written_once_and_no_bundle_is_too_long(
    seconds: list[float], slots: int, alone: set[int]
) -> None:
    made = bundles(queue_of(*seconds, alone=frozenset(alone & set(range(len(seconds))))), slots)
    assert sorted(number for bundle in made for number in bundle) == list(range(len(seconds)))
    for bundle in made:
        assert 0 < len(bundle) <= MOST_TASKS
        assert len(bundle) == 1 or sum(seconds[number] for number in bundle) <= MOST_SECONDS
        assert len(bundle) == 1 or not alone & set(bundle)


@given(SECONDS, st.integers(1, 50))
def test_the_last_bundle_is_short_beside_what_a_slot_wrote(seconds: list[float], slots: int) -> None:
    total, longest = sum(seconds), max(seconds, default=0)
    made = bundles(queue_of(*seconds), slots)
    last = sum(seconds[number] for number in made[-1]) if made else 0
    assert last <= max(LEAST_SECONDS, longest, total / slots) * 1.001


def test_short_tasks_share_a_job_and_long_ones_come_first_and_alone() -> None:
    made = bundles(queue_of(*[LEAST_SECONDS / 16] * 20, 2 * LEAST_SECONDS, 3 * LEAST_SECONDS), 8)
    assert made[:2] == [[21], [20]]
    assert [len(bundle) for bundle in made[2:]] == [16, 4]


def test_many_slots_share_what_there_is() -> None:
    assert len(bundles(queue_of(*[LEAST_SECONDS / 2] * 64), 2)) >= 2 * 2
    assert len(bundles(queue_of(*[LEAST_SECONDS / 2] * 64), 64)) == 32


def test_tasks_that_were_put_back_come_next_and_alone() -> None:
    queue = queue_of(0.1, 0.1, 0.1)
    first = queue.bundle(1)
    assert len(first) == 3
    queue.put_back(first[:2])
    assert bundles(queue, 1) == [[0], [1]]


def test_tasks_that_were_not_begun_come_next_and_together() -> None:
    queue = queue_of(0.1, 0.1, 0.1)
    queue.put_first(queue.bundle(1)[1:])
    assert bundles(queue, 1) == [[1, 2]]


def test_a_task_that_was_put_last_comes_after_all_others_and_alone() -> None:
    tasks = [TaskId(group, 0) for group in range(3)]
    queue = TaskQueue(dict.fromkeys(tasks, 2 * MOST_SECONDS))
    (first,) = queue.bundle(1)
    queue.put_last(first)
    assert queue.tasks == (*tasks[1:], first)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(0.01, 100)), min_size=1, max_size=50))
def test_an_estimate_lies_between_the_fastest_and_the_slowest_task_so_far(done: list[tuple[int, float]]) -> None:
    pace = Pace()
    for work, seconds in done:
        pace.learn(Engine.SPLICE, work, seconds)
    rates = [seconds / work for work, seconds in done]
    assert min(rates) * 0.999 <= pace.seconds(Engine.SPLICE, 1) <= max(rates) * 1.001


def test_the_pace_is_a_guess_until_a_task_of_the_engine_has_ended_and_forgets_slowly() -> None:
    pace = Pace()
    assert pace.seconds(Engine.ENCODE, int(FIRST_GUESS[Engine.ENCODE])) == pytest.approx(1)
    for _ in range(100):
        pace.learn(Engine.SPLICE, 1000, 10)
    pace.learn(Engine.ENCODE, 0, 5)
    assert pace.seconds(Engine.ENCODE, int(FIRST_GUESS[Engine.ENCODE])) == pytest.approx(1)
    assert pace.seconds(Engine.SPLICE, 1000) == pytest.approx(10)
    for _ in range(100):
        pace.learn(Engine.SPLICE, 1000, 1)
    assert pace.seconds(Engine.SPLICE, 1000) < 3
