"""Rewrite slots: never more than there are, none lost, the next one to the run that holds the fewest."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactor.runs.slots import SlotBook, SlotPool

RUNS = "abcd"
PATIENCE = 30.0


def settle(book: SlotBook) -> SlotBook:
    """Grant what can be granted."""
    while (run := book.next) is not None:
        book = book.granted(run)
    return book


class BookMachine(RuleBasedStateMachine):
    """Any order of requests, releases and changes of the cluster, compared with plain counts."""

    def __init__(self) -> None:
        super().__init__()
        self.book = SlotBook(2, most=3)
        self.open: list[str] = []  # what was asked for and is neither withdrawn nor released
        self.capacity = 2

    @rule(run=st.sampled_from(RUNS))
    def ask(self, run: str) -> None:
        self.open.append(run)
        self.book = settle(self.book.asked(run))

    @precondition(lambda self: self.book.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.book.held)))
        self.open.remove(run)
        self.book = settle(self.book.released(run))

    @precondition(lambda self: self.book.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.book.waiting))
        self.open.remove(run)
        self.book = settle(self.book.withdrawn(run))

    @rule(run=st.sampled_from(RUNS))
    def evict(self, run: str) -> None:
        self.open = [each for each in self.open if each != run]
        self.book = settle(self.book.given_up(run).ended(run))

    @rule(capacity=st.integers(0, 8))
    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self.book = settle(self.book.resized(capacity))

    @rule(run=st.sampled_from(RUNS))
    def announce_and_end(self, run: str) -> None:
        announced = self.book.announced(run)
        assert run in announced.expected
        assert announced.ended(run) == self.book

    @invariant()
    def every_request_is_held_or_waits(self) -> None:
        held = [run for run, count in self.book.held.items() for _ in range(count)]
        assert sorted([*held, *self.book.waiting]) == sorted(self.open)

    @invariant()
    def no_slot_is_free_while_a_run_waits_that_may_have_it(self) -> None:
        able = [run for run in self.book.waiting if self.book.held.get(run, 0) < 3]
        assert not (self.book.free and able)
        assert all(count <= 3 for count in self.book.held.values())

    @invariant()
    def what_is_free_is_what_nobody_holds(self) -> None:
        assert self.book.capacity == self.capacity
        assert self.book.free == max(0, self.capacity - self.book.in_use)


TestBook = BookMachine.TestCase


@given(st.lists(st.sampled_from(RUNS), max_size=30), st.integers(1, 10), st.lists(st.integers(0, 9), max_size=40))
def test_grants_alone_never_exceed_the_slots_and_go_to_the_run_that_holds_the_fewest(
    asks: list[str], capacity: int, releases: list[int]
) -> None:
    book = SlotBook(capacity)
    for run in asks:
        book = settle(book.asked(run))
        assert book.in_use <= capacity
    for number in releases:
        if not book.held:
            break
        book = book.released(sorted(book.held)[number % len(book.held)])
        chosen = book.next
        if chosen is not None:
            assert book.held.get(chosen, 0) == min(book.held.get(run, 0) for run in book.waiting)
            book = book.granted(chosen)
        assert book.in_use <= capacity


def test_the_run_that_waits_longest_comes_first_among_equals() -> None:
    book = SlotBook(1).asked("b").asked("a")
    assert book.next == "b"
    assert book.granted("b").asked("b").released("b").next == "a"


def test_a_smaller_cluster_interrupts_nothing_and_grants_nothing_until_enough_is_given_back() -> None:
    book = settle(SlotBook(3).asked("a").asked("a").asked("b").asked("b")).resized(1)
    assert (book.in_use, book.free, book.next) == (3, 0, None)
    book = book.released("a").released("a")
    assert book.next is None
    assert book.released("b").next == "b"


@pytest.mark.parametrize(
    ("book", "room"),
    [
        (SlotBook(1), True),
        (SlotBook(1).announced("a"), True),
        (SlotBook(1).announced("a").announced("b"), False),
        (settle(SlotBook(1).asked("a")).announced("b"), True),  # the next runs plan while this one rewrites
        (settle(SlotBook(1).asked("a").asked("a")).announced("b"), True),
        (settle(SlotBook(1).asked("a").asked("b")).announced("c"), False),
        (settle(SlotBook(3).asked("a").asked("b")).announced("c").announced("d"), True),
        (settle(SlotBook(3).asked("a").asked("b")).announced("c").announced("d").announced("e"), False),
        (SlotBook(0), False),
    ],
)
def test_as_many_runs_as_there_are_slots_plan_or_wait_without_one(book: SlotBook, room: bool) -> None:
    assert book.has_room is room


# --- the threads ------------------------------------------------------------------------------------------------------


def eventually(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("did not happen")


def test_threads_hold_no_more_slots_than_there_are_and_none_is_lost() -> None:
    pool, lock, running, most = SlotPool(3), threading.Lock(), [0], [0]

    def work(run: str) -> None:
        for _ in range(50):
            assert pool.acquire(run)
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            with lock:
                running[0] -= 1
            pool.release(run)

    threads = [threading.Thread(target=work, args=(run,)) for run in RUNS * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 3
    assert (pool.book.in_use, pool.book.free, pool.book.waiting) == (0, 3, ())


def test_a_waiting_run_goes_on_when_the_cluster_grows() -> None:
    pool, got = SlotPool(0), threading.Event()
    thread = threading.Thread(target=lambda: pool.acquire("a") and got.set())
    thread.start()
    eventually(lambda: pool.book.waiting == ("a",))
    assert not got.is_set()
    pool.resize(1)
    assert got.wait(PATIENCE)
    thread.join(PATIENCE)


def test_a_stopped_run_waits_no_longer_and_leaves_the_queue() -> None:
    pool, stopped, answers = SlotPool(1), threading.Event(), list[bool]()
    assert pool.acquire("a")
    thread = threading.Thread(target=lambda: answers.append(pool.acquire("b", stopped.is_set)))
    thread.start()
    eventually(lambda: pool.book.waiting == ("b",))
    stopped.set()
    thread.join(PATIENCE)
    assert answers == [False]
    assert pool.book.waiting == ()
    pool.release("a")
    assert pool.book.free == 1


def test_whoever_starts_runs_hears_of_room_once() -> None:
    pool, heard = SlotPool(1), list[int]()
    pool.when_freed(lambda: heard.append(1))
    pool.announce("a")
    pool.announce("b")
    assert heard == []
    pool.acquire("a")
    assert heard == [1]
    pool.release("a")
    assert heard == [1]
    pool.announce("c")
    pool.end("c")
    assert heard == [1, 1]


@pytest.mark.parametrize(("capacity", "most", "share"), [(8, None, 8), (8, 3, 3), (2, 5, 2), (0, None, 1)])
def test_a_run_counts_on_what_it_can_hold(capacity: int, most: int | None, share: int) -> None:
    assert SlotPool(capacity, most).share == share


def test_the_slots_of_a_run_that_hangs_go_to_others_and_it_gets_none_until_it_has_ended() -> None:
    pool = SlotPool(1)
    assert pool.acquire("hangs")
    got: list[bool] = []
    other = threading.Thread(target=lambda: got.append(pool.acquire("other")))
    waiting = threading.Thread(target=lambda: got.append(pool.acquire("hangs")))
    other.start()
    waiting.start()
    while len(pool.book.waiting) < 2:
        pass
    pool.evict("hangs")
    other.join(PATIENCE)
    waiting.join(PATIENCE)
    assert sorted(got) == [False, True]
    assert pool.book.held == {"other": 1}
    pool.release("hangs")  # its thread comes back after all
    assert not pool.acquire("hangs")
    assert pool.book.held == {"other": 1}
    pool.end("hangs")
    pool.release("other")
    assert pool.acquire("hangs")
