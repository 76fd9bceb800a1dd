"""The pool: which pieces of work are tried once more, and what a failed one costs. The job here does nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from compactor.errors import FirnlineError, GiveUpError, RetryError, StoppedError
from compactor.reasons import Reason
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.output_task import SILENCE
from compactor.runs.failures import Next, Unavailable
from compactor.runs.pool import Pieces, Pool, Ran, Room
from compactor.runs.results import NotTriedError
from compactor.runs.slots import SlotPool

PATIENCE = 60  # seconds
NAME = "lake.db.t"
SILENT = RetryError("503", reason=Reason.UNAVAILABLE)


class Work(Pieces[str]):
    """`failing`: how often each group's pieces fail. Pieces behind `SILENCE` without an answer in a row are not begun.

    `dies`: groups whose Spark job fails as a whole, so many times. `long`: no two pieces share a bundle.
    """

    what, lane = f"rewriting {NAME}", NAME

    def __init__(self, failing: Mapping[int, int], error: Exception = SILENT, *, long: bool = False) -> None:
        self.failing, self.error, self.long = failing, error, long
        self.dies: dict[int, int] = {}
        self.attempts: Counter[TaskId] = Counter()
        self.bundles: list[tuple[TaskId, ...]] = []
        self.together: threading.Barrier | None = None

    def seconds(self, _piece: TaskId) -> float:
        return 60.0 if self.long else 0.01

    def is_alone(self, _piece: TaskId) -> bool:
        return False

    def run(self, bundle: Sequence[TaskId], room: Room) -> Mapping[TaskId, str | Exception | Next]:
        self.bundles.append(tuple(bundle))
        if self.together is not None:
            self.together.wait(PATIENCE)
        for piece in bundle:
            if self.dies.get(piece.group, 0):
                self.dies[piece.group] -= 1
                raise RuntimeError("Python worker exited unexpectedly")
        room.free()
        outcomes: dict[TaskId, str | Exception | Next] = {}
        for piece in bundle:
            self.attempts[piece] += 1
            is_failing = self.attempts[piece] <= self.failing.get(piece.group, 0)
            outcomes[piece] = self.error if is_failing else f"done {piece.group}"
            if self.error is SILENT and [*outcomes.values()][-SILENCE:] == [SILENT] * SILENCE:
                break
        return outcomes

    def failure(self, _piece: TaskId, error: Exception) -> FirnlineError:
        return error if isinstance(error, FirnlineError) else GiveUpError(str(error))

    def cancel(self) -> None: ...

    def moved(self) -> None: ...


def pieces(groups: int) -> list[TaskId]:
    return [TaskId(number, 0) for number in range(groups)]


def pool(work: Work, slots: SlotPool | int = 2, stopped: threading.Event | None = None) -> Pool[str]:
    shared = SlotPool(slots) if isinstance(slots, int) else slots
    return Pool(work, shared, stopped or threading.Event(), Unavailable())


def done(ran: Ran[str]) -> set[int]:
    return {piece.group for piece in ran.done}


@pytest.mark.parametrize("reason", [Reason.CREDENTIALS_EXPIRED, Reason.OUT_OF_MEMORY, Reason.TASK_LOST])
def test_a_piece_that_another_attempt_may_help_is_tried_once_more_alone(reason: Reason) -> None:
    work = Work({1: 1}, RetryError("not now", reason=reason))
    ran = pool(work).run(pieces(3))
    assert (done(ran), ran.failed) == ({0, 1, 2}, {})
    assert work.attempts == {TaskId(0, 0): 1, TaskId(1, 0): 2, TaskId(2, 0): 1}
    assert work.bundles[-1] == (TaskId(1, 0),)


def test_a_spark_job_that_dies_costs_only_the_piece_that_killed_it_again() -> None:
    work = Work({})
    work.dies[1] = 2
    ran = pool(work, slots=1).run(pieces(3))
    assert done(ran) == {0, 2}
    assert ran.failed.keys() == {1}
    assert work.bundles.count((TaskId(1, 0),)) == 1


def test_a_piece_that_fails_costs_its_group_and_no_other() -> None:
    damaged = GiveUpError("a page is damaged")
    ran = pool(Work({1: 9}, damaged)).run([*pieces(3), TaskId(1, 1)])
    assert done(ran) - {1} == {0, 2}
    assert (ran.failed, ran.at_fault) == ({1: damaged}, set())


@pytest.mark.parametrize(
    "error",
    [RetryError("the disk is full", reason=Reason.NO_SPACE), RetryError("over", reason=Reason.CREDENTIALS_EXPIRED)],
)
def test_what_concerns_all_pieces_ends_the_job(error: FirnlineError) -> None:
    slots = SlotPool(1)
    with pytest.raises(RetryError) as raised:
        pool(Work({1: 9}, error), slots).run(pieces(5))
    assert raised.value is error
    assert slots.book.in_use == len(slots.book.waiting) == 0


def test_a_piece_without_an_answer_is_tried_last_and_at_fault_if_others_were_answered_meanwhile() -> None:
    work = Work({1: 9}, long=True)
    ran = pool(work, slots=1).run(pieces(4))
    assert [piece.group for bundle in work.bundles for piece in bundle] == [0, 1, 2, 3, 1]
    assert (ran.failed, ran.at_fault) == ({1: SILENT}, {1})


def test_pieces_that_were_done_before_an_outage_do_not_show_that_the_store_is_well() -> None:
    ran = pool(Work({2: 9, 3: 9}, long=True), slots=1).run(pieces(4))
    assert done(ran) == {0, 1}
    assert (ran.failed, ran.at_fault) == ({2: SILENT, 3: SILENT}, set())


def test_two_pieces_without_an_answer_end_no_job_with_one_slot() -> None:
    ran = pool(Work({0: 9, 1: 9}, long=True), slots=1).run(pieces(6))
    assert done(ran) == {2, 3, 4, 5}
    assert ran.failed.keys() == ran.at_fault == {0, 1}


def test_a_store_that_answers_no_piece_ends_the_job() -> None:
    work = Work(dict.fromkeys(range(20), 9))
    ran = pool(work).run(pieces(20))
    assert work.attempts == dict.fromkeys(pieces(SILENCE), 1), "no second attempt of any"
    assert [type(ran.failed[number]) for number in range(20)] == [RetryError] * SILENCE + [NotTriedError] * 17


@pytest.mark.parametrize("silent", [{1, 2, 3}, {17, 18, 19}, {0, 1, 3, 4}, set(range(0, 20, 4))], ids=str)
def test_pieces_without_an_answer_end_no_job_while_others_of_their_bundle_are_answered(silent: set[int]) -> None:
    """Also as the last ones: the others came beside them."""
    work = Work(dict.fromkeys(silent, 9))
    ran = pool(work, slots=1).run(pieces(20))
    assert work.bundles[0] == tuple(pieces(20))
    assert (done(ran), {*ran.failed}) == (set(range(20)) - silent, silent)
    assert sorted(work.attempts[TaskId(number, 0)] for number in silent)[-SILENCE:] == [2] * SILENCE
    assert {work.attempts[piece] for piece in ran.done} == {1}


def test_a_store_that_falls_silent_within_a_bundle_costs_a_few_timeouts() -> None:
    """What was written before is committed, if the store answers again by then."""
    work = Work(dict.fromkeys(range(5, 20), 9))
    ran = pool(work, slots=1).run(pieces(20))
    assert done(ran) == set(range(5))
    assert work.bundles == [tuple(pieces(20)), tuple(pieces(20)[5 + SILENCE :])]
    kinds = [type(ran.failed[number]) for number in range(5, 20)]
    assert kinds == [RetryError] * 2 * SILENCE + [NotTriedError] * (15 - 2 * SILENCE)


@pytest.mark.parametrize("slots", [1, 4])
def test_a_thousand_pieces_on_a_store_that_is_down_cost_a_few_timeouts_and_keep_what_was_done(slots: int) -> None:
    work = Work(dict.fromkeys(range(5, 1000), 9), long=True)
    ran = pool(work, slots).run(pieces(1000))
    assert done(ran) == set(range(5))
    assert sum(work.attempts.values()) <= 5 + SILENCE + 3 * slots
    kinds = Counter(type(error) for error in ran.failed.values())
    assert kinds[RetryError] + kinds[NotTriedError] == 995
    assert kinds[NotTriedError] > 980, "they are not given up"


def test_a_job_that_was_given_up_while_it_was_planned_ends() -> None:
    """Its table has got no slot since."""
    work, slots = Work({}), SlotPool(2)
    slots.evict(NAME)
    with pytest.raises(StoppedError, match="given up"):
        pool(work, slots).run(pieces(3))
    assert not work.attempts


def test_a_job_that_is_stopped_ends() -> None:
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(StoppedError, match="was stopped before its commit"):
        pool(Work({}), stopped=stopped).run(pieces(3))


def test_pieces_follow_a_cluster_that_grows() -> None:
    """It may have no executor when the job starts."""
    work, slots = Work({}, long=True), SlotPool(0)
    work.together = threading.Barrier(4)
    timer = threading.Timer(0.1, slots.resize, [4])
    timer.start()
    assert done(pool(work, slots).run(pieces(4))) == {0, 1, 2, 3}
