"""Which due table is rewritten next, and what the threads do with it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.debt.board import DebtBoard, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.errors import LaterError, RetryError, StoppedError
from compactor.iceberg.tables import TableMissingError
from compactor.partitions import PartitionKey
from compactor.patience.backoff import LATER
from compactor.patience.holds import Holds, Key, What
from compactor.reasons import Reason
from compactor.runs.dispatcher import (
    Dispatcher,
    TableQueue,
    Work,
    hold_failed,
    hold_later,
    settle,
    waiting,
)
from tests.unit.runs.dispatcher_bench import KEY, PATIENCE, Bench, debt


def names(chosen: list[TableDebt]) -> list[str]:
    return [one.table.name for one in chosen]


# --- the choice -------------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def holds(clock: Clock) -> Holds:
    return Holds(clock)


def test_the_longest_waiting_table_comes_first_and_names_break_ties(holds: Holds) -> None:
    tables = (debt("a", since=30), debt("b", since=10), debt("d", since=20), debt("c", since=20))
    assert names(waiting(tables, holds, ())) == ["b", "c", "d", "a"]


def test_what_is_not_due_not_switched_on_or_running_waits_for_nothing(holds: Holds) -> None:
    tables = (debt("idle", due=False), replace(debt("off"), acted_on=False), debt("running"), debt("ready"))
    assert names(waiting(tables, holds, {debt("running").table})) == ["ready"]


def test_a_settled_table_waits_until_the_board_says_something_new(holds: Holds, clock: Clock) -> None:
    settle(holds, debt("a"))
    clock.now = 99.0
    assert waiting((debt("a", since=7),), holds, ()) == [], "this waits for no time"
    assert waiting((replace(debt("a"), stale="old", waiting_since=3.0),), holds, ()) == []
    assert names(waiting((debt("a", snapshot=2),), holds, ())) == ["a"]
    assert names(waiting((debt("a", small=9),), holds, ())) == ["a"]  # e.g. another target size


@pytest.mark.parametrize("seconds", [None, 3600.0])
def test_a_table_that_is_left_to_others_waits_and_a_clock_that_is_set_back_holds_nobody_up(
    holds: Holds, clock: Clock, seconds: float | None
) -> None:
    hold_later(holds, debt("a"), LaterError("another's turn", seconds=seconds), 10.0)
    most = LATER.longest_seconds if seconds is None else seconds
    for now, ready in ((100.0, False), (99.9 + most, False), (100.0 + most, True), (99.0, True)):
        clock.now = now
        assert bool(waiting((debt("a"),), holds, ())) is ready
    clock.now = 101.0
    assert bool(waiting((debt("a", snapshot=2),), holds, ())) is (seconds is not None), "its change ends a wait for it"


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 100)), unique_by=lambda pair: pair[0]),
    st.sets(st.sampled_from("abcdef")),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 200)),
)
def test_nothing_ready_is_forgotten_and_nobody_is_overtaken(
    due: list[tuple[str, float]], running: set[str], pauses: dict[str, float]
) -> None:
    tables = tuple(debt(name, since=since) for name, since in due)
    holds = Holds(Clock())
    for name, moment in pauses.items():
        holds.hold(Key(What.TABLE, debt(name).table), "it failed", until=moment)
    chosen = waiting(tables, holds, {debt(name).table for name in running})
    ready = {name for name, _ in due if name not in running and pauses.get(name, 0) <= 100}
    assert set(names(chosen)) == ready
    ages = [100 - (one.due_since or 0.0) for one in chosen]
    assert ages == sorted(ages, reverse=True)


def pauses(holds: Holds, clock: Clock, *took: float) -> list[float]:
    """How long a table waits after runs in a row that fail after so many seconds."""
    found = []
    for seconds in took:
        hold_failed(holds, debt("a"), "no answer", LATER, seconds)
        (hold,) = holds.waits
        found.append(hold.until - clock.now)
        clock.now = hold.until
    return found


def test_pauses_double_up_to_ten_minutes_and_success_forgets_them(holds: Holds, clock: Clock) -> None:
    assert pauses(holds, clock, *[0.0] * 9) == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    settle(holds, debt("a"))
    assert pauses(holds, clock, 0.0) == [10]


def test_a_run_that_fails_again_after_a_long_time_waits_as_long(holds: Holds, clock: Clock) -> None:
    """A catalog that refuses the commits of a table: each attempt writes all outputs again."""
    assert pauses(holds, clock, 1800.0, 1800.0, 5.0, 100_000.0) == [10, 1800, 40, 3600.0]


def test_what_was_asked_for_comes_first_even_if_nothing_is_due_or_all_is_settled(holds: Holds) -> None:
    asked = replace(debt("asked", due=False), requested=("",))
    assert names(waiting((debt("a", since=10), asked), holds, ())) == ["asked", "a"]
    settle(holds, asked)
    assert names(waiting((asked,), holds, ())) == ["asked"]
    assert waiting((replace(asked, acted_on=False),), holds, ()) == []
    hold_later(holds, asked, LaterError("a lock", seconds=60.0), 10.0)
    assert waiting((asked,), holds, ()) == []
    (hold,) = holds.waits
    assert hold.until == 110.0, "a moment"


class Queued:
    """A queue of tables over its board, without threads."""

    def __init__(self) -> None:
        self.now = 100.0
        self.board = DebtBoard(Holds(lambda: self.now))
        self.queue = TableQueue(self.board, 10.0)

    def ran(self, seen: TableDebt, ending: Exception | None = None) -> None:
        """A run for what is on the board has ended."""
        self.board.put(seen)
        assert self.is_ready
        self.queue.note(seen, ending, took=0.0)
        self.queue.ended(seen.table)

    @property
    def is_ready(self) -> bool:
        return self.queue.choose(()) is not None


MERGES = ManifestCounts(500, 500, due_specs=(0,), why="500 manifests, 1 would be enough")
IDLE = debt("a", due=False)


@pytest.mark.parametrize(
    ("seen", "then", "is_ready"),
    [
        (debt("a"), debt("a", since=5), False),
        (debt("a"), debt("a", snapshot=2), True),
        (replace(debt("a"), counted_at=10.0), replace(debt("a"), counted_at=30.0), True),
        (replace(debt("a"), basis="policy.where"), replace(debt("a"), basis="no policy.where"), True),
        (replace(IDLE, manifests=MERGES), replace(IDLE, manifests=replace(MERGES)), False),
        (replace(IDLE, manifests=MERGES), replace(IDLE, manifests=replace(MERGES, why="100 would be enough")), True),
    ],
    ids=["the same", "a commit", "a rollback to it", "new settings", "the same manifests", "other manifests"],
)
def test_a_run_that_left_nothing_to_do_is_followed_by_another_once_the_board_says_something_new(
    seen: TableDebt, then: TableDebt, is_ready: bool
) -> None:
    """After a rollback to the snapshot before the run, only the time of the count tells that it came back."""
    queued = Queued()
    queued.ran(seen)
    assert not queued.is_ready
    queued.board.put(then)
    assert queued.is_ready is is_ready


@pytest.mark.parametrize("more", [False, True])
def test_what_a_run_declined_brings_no_other_run_and_what_became_due_meanwhile_does(more: bool) -> None:
    """The look after the run's commit has not come yet: the board has the old count, without what was declined."""
    queued, other, third = Queued(), PartitionKey(0, "[2]"), PartitionKey(0, "[3]")
    (due,) = debt("a").partitions.values()
    partitions = {KEY: due, other: replace(due, key=other), third: replace(due, key=third, due=False)}
    seen = replace(debt("a"), partitions=partitions)
    queued.board.put(seen)
    if more:  # it is idle now
        queued.board.put(replace(seen, partitions={**partitions, third: replace(due, key=third)}))
    queued.board.decline(seen, {other: "not worth a commit"}, {KEY})
    queued.queue.note(seen, None, took=0.0)
    assert queued.is_ready is more


@pytest.mark.parametrize(
    ("ending", "seconds"),
    [
        (RetryError("no answer"), 10),
        (TableMissingError("404"), 10),
        (ValueError("a bug"), 10),
        (StoppedError("switched off"), 10),
        (LaterError("another compactor works on it"), LATER.longest_seconds),
    ],
)
def test_a_table_whose_run_did_not_succeed_waits_and_is_due_again(ending: Exception, seconds: float) -> None:
    """Another compactor may go and leave debt behind of which nothing on the board will ever change."""
    queued = Queued()
    queued.ran(debt("a"), ending)
    queued.now += seconds - 1
    assert not queued.is_ready
    queued.now += 1
    assert queued.is_ready


# --- the threads ------------------------------------------------------------------------------------------------------


def test_the_debt_of_a_table_that_has_left_the_board_is_not_kept(bench: Bench) -> None:
    bench.put(debt("dropped"), debt("fails"))
    bench.called(2)
    bench.end("dropped")
    bench.end("fails", RetryError("a moment"))
    for name in ("dropped", "fails"):
        bench.board.forget(debt(name).table)
        assert not bench.board.holds.known(What.TABLE, debt(name).table)


def test_one_lane_per_table_and_at_most_two_tables_at_once(bench: Bench) -> None:
    bench.put(debt("a", since=1), debt("b", since=2), debt("c", since=3))
    bench.called(2)
    bench.put(debt("a", snapshot=2, since=1))
    bench.nothing_more(2)
    assert sorted(bench.running) == ["a", "b"]
    assert replace(bench.dispatcher.status, working=frozenset()) == Work(queued=1, running=2, oldest_due_seconds=99.0)
    bench.end("b")
    bench.called(3)
    assert bench.calls[2] == "c"
    bench.end("a")
    bench.called(4)
    assert bench.calls[3] == "a"
    assert set(bench.most_at_once.values()) == {1}


def test_a_settled_table_is_not_rewritten_again_for_the_same_debt(bench: Bench) -> None:
    bench.put(debt("a"))
    bench.called(1)
    bench.end("a")
    bench.put(debt("a", since=5))
    bench.nothing_more(1)
    assert bench.dispatcher.status == Work(0, 0, 0.0)
    bench.put(debt("a", snapshot=2))
    bench.called(2)


@pytest.mark.parametrize(
    ("reason", "age"),
    [
        (Reason.REPLACES_IN_A_ROW, 0.0),
        (Reason.OTHER_COMPACTOR, 0.0),
        (Reason.FLINK_LOCK, 60.0),
        (Reason.UNPUBLISHED, 60.0),
    ],
)
def test_nobody_is_late_while_a_table_is_left_to_others_on_purpose(bench: Bench, reason: Reason, age: float) -> None:
    """A lock or a branch may have been left behind by a job that is gone: that is no purpose."""
    bench.put(debt("a", since=40))
    bench.called(1)
    bench.end("a", LaterError("another writer first", reason=reason))
    assert bench.dispatcher.status.oldest_due_seconds == age
    (left,) = bench.board.tables()
    assert left.due_since == (None if age == 0 else 40)


def test_a_table_that_fails_over_and_over_counts_as_waiting(bench: Bench) -> None:
    """It backs off or runs again most of the time; who is alerted by the oldest due table must hear of it."""
    bench.put(debt("a", since=40))
    bench.called(1)
    assert bench.dispatcher.status.oldest_due_seconds == 60
    bench.end("a", RetryError("no"))
    assert bench.dispatcher.status == Work(queued=0, running=0, oldest_due_seconds=60.0)
    bench.now += 10
    bench.dispatcher.wake()
    bench.called(2)
    bench.end("a")
    assert bench.dispatcher.status.oldest_due_seconds == 0


def test_the_queue_is_made_of_tables_with_work_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand idle tables cost the dispatcher nothing."""
    monkeypatch.setattr(bench.board, "tables", lambda: pytest.fail("all tables are looked at"))
    bench.put(debt("idle", due=False), debt("a", since=1))
    bench.called(1)
    assert replace(bench.dispatcher.status, working=frozenset()) == Work(queued=0, running=1, oldest_due_seconds=99.0)
    assert bench.calls == ["a"]


def test_stop_tells_the_running_work_and_waits_for_it() -> None:
    bench = Bench(lanes=1)
    bench.dispatcher.start()
    bench.put(debt("a"), debt("b"))
    bench.called(1)
    assert not bench.stop_seen.is_set()
    assert not bench.dispatcher.stop(0.05)
    assert bench.stop_seen.wait(PATIENCE)
    assert bench.running == ["a"]
    bench.end("a")
    assert bench.dispatcher.stop(PATIENCE)
    assert bench.calls == ["a"]


def test_a_dispatcher_that_has_work_at_its_start_ends_at_once() -> None:
    """The first worker starts while the thread that chooses is being started."""
    for _ in range(50):
        board, done = DebtBoard(), threading.Event()
        board.put(debt("a"))

        dispatcher = Dispatcher(TableQueue(board, 10), lambda *_, done=done: done.set(), concurrent_runs=2)
        dispatcher.start()
        assert done.wait(PATIENCE)
        assert dispatcher.stop(PATIENCE)
