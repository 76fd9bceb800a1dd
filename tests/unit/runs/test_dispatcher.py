"""Which due table is rewritten next, and what the threads do with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.errors import LaterError, RetryError, StoppedError
from compactor.partitions import PartitionKey
from compactor.patience.backoff import Backoff
from compactor.planning.budget import Charge, Grant, Spent
from compactor.reasons import Reason
from compactor.runs.dispatcher import LONGEST_BACKOFF_SECONDS, Attempt, Dispatcher, Work, after_failure, waiting
from compactor.runs.lifelines import ABANDONED_SECONDS, Lifelines
from compactor.runs.slots import SlotPool
from compactor.runs.usage import HOUR, Cost, HourOfUsage
from compactor.runs.work_order import STARVING_SECONDS, Budget, Limits
from compactor.settings.limits import LimitSettings
from compactor.table_names import TableName

KEY = PartitionKey(0, "[1]")
PATIENCE = 10.0


def debt(name: str, snapshot: int = 1, *, due: bool = True, since: float | None = 0.0, small: int = 5) -> TableDebt:
    partition = PartitionDebt(KEY, {"p": 1}, None, PartitionCounts(small, small, small, small), due, "test")
    return TableDebt(
        TableName("lake", ("db",), name), snapshot, {KEY: partition}, acted_on=True, due_since=since if due else None
    )


def names(chosen: list[TableDebt]) -> list[str]:
    return [one.table.name for one in chosen]


# --- the choice -------------------------------------------------------------------------------------------------------


def test_the_longest_waiting_table_comes_first_and_names_break_ties() -> None:
    tables = (debt("a", since=30), debt("b", since=10), debt("d", since=20), debt("c", since=20))
    assert names(waiting(tables, {}, frozenset(), 100)) == ["b", "c", "d", "a"]


def test_what_is_not_due_not_switched_on_or_running_waits_for_nothing() -> None:
    tables = (debt("idle", due=False), replace(debt("off"), acted_on=False), debt("running"), debt("ready"))
    assert names(waiting(tables, {}, frozenset({debt("running").table}), 100)) == ["ready"]


def test_a_table_backs_off_until_its_moment() -> None:
    attempts = {debt("a").table: Attempt(failures=1, not_before=50)}
    assert waiting((debt("a"),), attempts, frozenset(), 49.9) == []
    assert names(waiting((debt("a"),), attempts, frozenset(), 50)) == ["a"]


def test_a_clock_that_is_set_back_holds_nobody_up() -> None:
    attempts = {debt("a").table: Attempt(failures=1, not_before=10_000)}
    assert names(waiting((debt("a"),), attempts, frozenset(), 10_000 - LONGEST_BACKOFF_SECONDS - 1)) == ["a"]


def test_a_settled_table_waits_until_the_board_says_something_new() -> None:
    attempts = {debt("a").table: Attempt(settled=debt("a"))}
    assert waiting((debt("a", since=7),), attempts, frozenset(), 100) == []
    assert waiting((replace(debt("a"), stale="old", waiting_since=3.0),), attempts, frozenset(), 100) == []
    assert names(waiting((debt("a", snapshot=2),), attempts, frozenset(), 100)) == ["a"]
    assert names(waiting((debt("a", small=9),), attempts, frozenset(), 100)) == ["a"]  # e.g. another target size


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 100)), unique_by=lambda pair: pair[0]),
    st.sets(st.sampled_from("abcdef")),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 200)),
)
def test_nothing_ready_is_forgotten_and_nobody_is_overtaken(
    due: list[tuple[str, float]], running: set[str], pauses: dict[str, float]
) -> None:
    tables = tuple(debt(name, since=since) for name, since in due)
    attempts = {debt(name).table: Attempt(not_before=moment) for name, moment in pauses.items()}
    chosen = waiting(tables, attempts, frozenset(debt(name).table for name in running), 100)
    ready = {name for name, _ in due if name not in running and pauses.get(name, 0) <= 100}
    assert set(names(chosen)) == ready
    ages = [100 - (one.due_since or 0.0) for one in chosen]
    assert ages == sorted(ages, reverse=True)


def test_pauses_double_up_to_ten_minutes_and_success_forgets_them() -> None:
    attempt, pauses = Attempt(), []
    for _ in range(12):
        attempt = after_failure(attempt, 1000, Backoff(10, LONGEST_BACKOFF_SECONDS))
        pauses.append(attempt.not_before - 1000)
    assert pauses[:7] == [10, 20, 40, 80, 160, 320, LONGEST_BACKOFF_SECONDS]
    assert pauses[-1] == LONGEST_BACKOFF_SECONDS
    assert attempt.failures == 12
    endless = after_failure(Attempt(failures=10**6), 0, Backoff(0.5, LONGEST_BACKOFF_SECONDS))
    assert endless.not_before == LONGEST_BACKOFF_SECONDS


# --- the threads ------------------------------------------------------------------------------------------------------


class Bench:
    """A dispatcher over a board, its work done step by step: every call waits until it is told how it ends."""

    def __init__(
        self,
        lanes: int,
        slots: SlotPool | None = None,
        limits: LimitSettings = LimitSettings(),  # noqa: B008
    ) -> None:
        self.board = DebtBoard()
        self.refused: set[str] = set()
        self.paused: set[str] = set()
        self.held_until = 0.0
        self.cost: Spent | None = None
        self.usage = HourOfUsage()
        self.now = 100.0
        self.calls: list[str] = []
        self.running: list[str] = []
        self.most_at_once: dict[str, int] = {}
        self.stop_seen = threading.Event()
        self.steady = 0.0
        self.lifelines = Lifelines(lambda: self.steady)
        self._endings: dict[str, Exception | None] = {}
        self._changed = threading.Condition()
        self.dispatcher = Dispatcher(
            self.board, self._work, concurrent_runs=lanes, first_backoff_seconds=10, clock=lambda: self.now,
            slots=slots, may_start=lambda table: table.name not in self.refused,
            lifelines=self.lifelines, limits=Limits(limits), usage=self.usage,
            paused=lambda table: table.name in self.paused, held_until=lambda _table: self.held_until,
        )  # fmt: skip

    def _work(self, debt: TableDebt, stopping: Callable[[], bool], _grant: Grant, charge: Charge) -> None:
        name = debt.table.name
        with self._changed:
            self.calls.append(name)
            self.running.append(name)
            self.most_at_once[name] = max(self.most_at_once.get(name, 0), self.running.count(name))
            self._changed.notify_all()
            while name not in self._endings:
                if stopping():
                    self.stop_seen.set()
                self._changed.wait(0.01)
            self.running.remove(name)
            ending = self._endings.pop(name)
            self._changed.notify_all()
        if self.cost is not None:
            charge(self.cost)
        if ending is not None:
            raise ending

    def put(self, *debts: TableDebt) -> None:
        for one in debts:
            self.board.put(one)
        self.dispatcher.wake()

    def end(self, name: str, ending: Exception | None = None) -> None:
        """Let the running call of `name` end, and wait until the dispatcher has taken note."""
        table = debt(name).table
        before = self.dispatcher._attempts.get(table)
        with self._changed:
            self._endings[name] = ending
            self._changed.notify_all()
        self.until(lambda: self.dispatcher._attempts.get(table) is not before)

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def called(self, calls: int) -> None:
        self.until(lambda: len(self.calls) >= calls)

    def nothing_more(self, calls: int) -> None:
        """A wake changes nothing: still `calls` calls."""
        self.dispatcher.wake()
        time.sleep(0.05)
        assert len(self.calls) == calls


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(lanes=2)
    made.dispatcher.start()
    yield made
    for name in list(made.running):
        made.end(name)
    assert made.dispatcher.stop(PATIENCE)


def test_the_debt_of_a_table_that_has_left_the_board_is_not_kept(bench: Bench) -> None:
    bench.put(debt("dropped"), debt("fails"))
    bench.called(2)
    bench.end("dropped")
    bench.end("fails", RetryError("a moment"))
    for name in ("dropped", "fails"):
        bench.board.forget(debt(name).table)
    bench.put(debt("a"))
    bench.called(3)
    bench.end("a")
    assert {table.name for table in bench.dispatcher._attempts} == {"a", "fails"}, "a back-off lasts"


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


def test_a_rollback_of_the_rewrite_is_rewritten_again_and_once(bench: Bench) -> None:
    """The same snapshot and the same due partitions as before; only the time of the count tells that it came back."""
    bench.put(replace(debt("a", snapshot=1), counted_at=10.0))
    bench.called(1)
    bench.end("a")
    bench.put(replace(debt("a", snapshot=2, due=False), counted_at=20.0))
    bench.nothing_more(1)
    bench.put(replace(debt("a", snapshot=1), counted_at=30.0))
    bench.called(2)
    bench.end("a")
    bench.put(replace(debt("a", snapshot=1, since=5), counted_at=30.0))
    bench.nothing_more(2)


def test_a_table_whose_settings_make_a_declined_partition_due_is_planned_again(bench: Bench) -> None:
    """The board judges it again; snapshot, counts and time of the count are the same."""
    bench.put(replace(debt("a"), basis="policy.where"))
    bench.called(1)
    bench.end("a")
    bench.put(replace(debt("a", due=False), basis="policy.where"))
    bench.nothing_more(1)
    bench.put(replace(debt("a"), basis="no policy.where"))
    bench.called(2)
    bench.end("a")
    bench.put(replace(debt("a", since=5), basis="no policy.where"))
    bench.nothing_more(2)


def test_what_the_board_learns_during_a_run_is_acted_on_after_it(bench: Bench) -> None:
    bench.put(debt("a"))
    bench.called(1)
    bench.put(debt("a", snapshot=2))
    bench.end("a")
    bench.called(2)


@pytest.mark.parametrize("failure", [RetryError("no answer"), ValueError("a bug")])
def test_a_failed_table_is_tried_again_after_its_pause_and_others_go_on(bench: Bench, failure: Exception) -> None:
    bench.put(debt("a"))
    for attempt, pause in enumerate([10, 20], start=1):
        bench.called(attempt)
        bench.end("a", failure)
        bench.now += pause - 1
        bench.nothing_more(attempt)
        bench.now += 1
        bench.dispatcher.wake()
    bench.called(3)
    bench.put(debt("b"))
    bench.called(4)
    bench.end("b", failure)
    bench.put(debt("c"))
    bench.called(5)
    assert sorted(bench.running) == ["a", "c"]


def test_a_stopped_table_pauses_and_then_is_due_again(bench: Bench) -> None:
    bench.put(debt("a"))
    bench.called(1)
    bench.end("a", StoppedError("switched off"))
    bench.nothing_more(1)
    bench.now += 10
    bench.dispatcher.wake()
    bench.called(2)


def test_a_table_that_is_left_to_another_compactor_is_looked_at_again(bench: Bench) -> None:
    """The other one may go and leave debt behind of which nothing on the board will ever change."""
    bench.put(debt("a"))
    bench.called(1)
    bench.end("a", LaterError("another compactor works on it"))
    bench.now += LONGEST_BACKOFF_SECONDS - 1
    bench.nothing_more(1)
    bench.now += 1
    bench.dispatcher.wake()
    bench.called(2)


@pytest.mark.parametrize(
    ("reason", "age"), [(Reason.REPLACES_IN_A_ROW, 0.0), (Reason.OTHER_COMPACTOR, 0.0), (Reason.FLINK_LOCK, 60.0)]
)
def test_nobody_is_late_while_a_table_is_left_to_others_on_purpose(bench: Bench, reason: Reason, age: float) -> None:
    """A lock may have been left behind by a job that is gone: that is no purpose."""
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


def test_a_table_is_late_after_an_hour_unless_a_run_works_on_it_that_did_not_fail_before(bench: Bench) -> None:
    """A first run of a large table takes hours. One that fails for the second time is late, whatever it does now."""
    bench.put(*(debt(name, since=bench.now) for name in ("a", "b", "waits")))
    bench.called(2)
    bench.now += STARVING_SECONDS
    assert bench.dispatcher.status.late == 0
    bench.now += 1
    status = bench.dispatcher.status
    assert (status.late, {table.name for table in status.working}) == (1, set(bench.running))
    failing = bench.running[0]
    bench.end(failing, RetryError("no"))
    bench.called(3)
    assert bench.dispatcher.status.late == 1, "the one that failed backs off, and the last one runs"
    bench.now += 10
    bench.end(bench.running[0])
    bench.called(4)
    assert (bench.calls[3], bench.dispatcher.status.late) == (failing, 1)


def test_quiet_hours_do_not_count_as_lateness_and_are_shown() -> None:
    """01:00 to 05:00 are quiet; a table that is due since 00:30 is late at 05:31."""
    bench = Bench(lanes=1, limits=LimitSettings(quiet_hours=("01:00-05:00",)))
    bench.put(debt("a", since=1800))
    for now, seconds, late, quiet in (
        (3 * HOUR, 1800, 0, True), (5.4 * HOUR, 3240, 0, False), (5.51 * HOUR, 3636, 1, False),
    ):  # fmt: skip
        bench.now = now
        status = bench.dispatcher.status
        assert (round(status.oldest_due_seconds), status.late, status.quiet) == (seconds, late, quiet)


def test_what_the_budgets_of_the_hour_have_left_and_hold_back() -> None:
    bench = Bench(lanes=1, limits=LimitSettings(bytes_per_hour=1000, catalog_calls_per_hour=24))
    bench.put(debt("a", small=900), debt("b", small=900))
    assert bench.dispatcher.status.limited == 0
    assert bench.dispatcher.status.budgets == (
        Budget("bytes_per_hour", 1000, 0), Budget("catalog_calls_per_hour", 24, 0),
    )  # fmt: skip
    bench.dispatcher.start()
    bench.called(1)
    status = bench.dispatcher.status
    assert status.budgets[0] == Budget("bytes_per_hour", 1000, 900)
    assert [each.left for each in status.budgets] == [100, 12]
    assert (status.queued, status.limited) == (1, 1)
    bench.end(bench.running[0])  # it found nothing to do, and used nothing
    bench.called(2)
    bench.end(bench.running[0])
    assert bench.dispatcher.stop(PATIENCE)


def test_a_run_that_hangs_is_given_up_and_its_table_waits_until_its_thread_ends() -> None:
    """Others take its lane and its slots; nothing runs twice on one table."""
    slots = SlotPool(1)
    bench = Bench(lanes=1, slots=slots)
    bench.dispatcher.start()
    bench.put(debt("hangs", since=1), debt("next", since=2))
    bench.called(1)
    assert slots.acquire(str(debt("hangs").table))
    bench.steady = ABANDONED_SECONDS
    bench.nothing_more(1)
    assert bench.dispatcher.status.silent_run_seconds == ABANDONED_SECONDS
    bench.steady += 1
    bench.called(2)
    assert bench.calls == ["hangs", "next"]
    assert bench.dispatcher.status.lost == (debt("hangs").table,)
    assert slots.book.in_use == 0
    bench.end("next")
    bench.put(debt("hangs", snapshot=2))
    bench.nothing_more(2)
    bench.end("hangs", RetryError("the store answered after an hour"))
    assert bench.dispatcher.status.lost == ()
    bench.now += 10
    bench.dispatcher.wake()
    bench.called(3)
    bench.end("hangs")
    assert bench.dispatcher.stop(PATIENCE)


def test_the_age_of_a_run_counts_from_its_start_and_its_silence_from_its_last_progress(bench: Bench) -> None:
    bench.put(debt("a"))
    bench.called(1)
    bench.steady = 50.0
    bench.lifelines.moved(debt("a").table)
    bench.steady = 60.0
    status = bench.dispatcher.status
    assert (status.oldest_run_seconds, status.silent_run_seconds) == (60.0, 10.0)
    bench.end("a")
    assert bench.dispatcher.status.oldest_run_seconds == 0.0


def test_a_table_that_may_not_start_is_passed_over_until_it_may(bench: Bench) -> None:
    """It is another service's, or its catalog does not answer: nobody behind it waits."""
    bench.refused = {"a", "b"}
    bench.put(debt("a", since=1), debt("b", since=2), debt("c", since=3))
    bench.called(1)
    assert bench.calls == ["c"]
    bench.nothing_more(1)
    bench.refused = {"b"}
    bench.dispatcher.wake()
    bench.called(2)
    assert bench.calls == ["c", "a"]
    assert replace(bench.dispatcher.status, working=frozenset()) == Work(queued=1, running=2, oldest_due_seconds=99.0)


@pytest.mark.parametrize("ending", [None, RetryError("no answer"), StoppedError("switched off"), ValueError("a bug")])
def test_what_a_run_cost_counts_whatever_became_of_it(bench: Bench, ending: Exception | None) -> None:
    bench.cost = Spent(70, 5, 6)
    bench.put(debt("a"))
    bench.called(1)
    bench.end("a", ending)
    (cost,) = bench.usage.recent(bench.now)
    assert cost.spent == Spent(70, 5, 6)
    bench.now += 3600
    assert bench.usage.recent(bench.now) == []


def test_a_restart_does_not_give_the_budget_anew() -> None:
    limits = Limits(LimitSettings(bytes_per_hour=100))
    board = DebtBoard()
    board.put(debt("a"))
    started = threading.Event()
    hour = HourOfUsage([Cost(debt("b").table, 90.0, Spent(99, commits=1))])
    dispatcher = Dispatcher(
        board, lambda *_: started.set(), concurrent_runs=1, first_backoff_seconds=10, limits=limits, usage=hour,
        clock=lambda: 100.0,
    )  # fmt: skip
    dispatcher.start()
    assert not started.wait(0.1)
    assert dispatcher.status.budgets == (Budget("bytes_per_hour", 100, 99),)
    assert dispatcher.stop(PATIENCE)


def test_a_drained_dispatcher_lets_the_running_end_and_starts_no_other(bench: Bench) -> None:
    bench.put(debt("a", since=1))
    bench.called(1)
    assert not bench.dispatcher.drained
    bench.dispatcher.drain()
    bench.put(debt("b", since=2))
    bench.nothing_more(1)
    assert not bench.dispatcher.drained
    assert not bench.stop_seen.is_set(), "it is not asked to end"
    bench.end("a")
    bench.nothing_more(1)
    assert bench.dispatcher.drained


def test_other_limits_hold_from_the_next_choice_on(bench: Bench) -> None:
    bench.dispatcher.limit(Limits(LimitSettings(quiet_hours=("00:00-12:00",))))  # it is 00:01:40
    bench.put(debt("a"))
    bench.nothing_more(0)
    assert bench.dispatcher.status.quiet
    bench.dispatcher.limit(Limits())
    bench.called(1)


def test_a_paused_table_is_asked_to_end_and_does_not_start_until_it_is_resumed(bench: Bench) -> None:
    """It is neither queued nor waiting: nobody is paged for what a person wanted."""
    bench.put(debt("a", since=1))
    bench.called(1)
    assert not bench.stop_seen.is_set()
    bench.paused = {"a", "b"}
    assert bench.stop_seen.wait(PATIENCE)
    bench.put(debt("b", since=2))
    bench.end("a", StoppedError("paused before the commit"))
    bench.now += 10
    bench.nothing_more(1)
    assert bench.dispatcher.status == Work(0, 0, 0.0)
    bench.paused = {"b"}
    bench.dispatcher.wake()
    bench.called(2)
    assert bench.calls == ["a", "a"]


def test_a_resumed_table_is_late_from_its_resumption_on() -> None:
    bench = Bench(lanes=1)
    bench.put(debt("a", since=1))
    bench.now = 5 * HOUR
    assert (bench.dispatcher.status.oldest_due_seconds, bench.dispatcher.status.late) == (5 * HOUR - 1, 1)
    bench.held_until = bench.now - 60
    assert (bench.dispatcher.status.oldest_due_seconds, bench.dispatcher.status.late) == (60, 0)


def test_a_pause_stops_no_other_table(bench: Bench) -> None:
    bench.paused = {"a"}
    bench.put(debt("a", since=1), debt("b", since=2))
    bench.called(1)
    assert bench.calls == ["b"]
    assert not bench.stop_seen.wait(0.05)


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


def test_what_was_asked_for_comes_first_even_if_nothing_is_due_or_all_is_settled() -> None:
    asked = replace(debt("asked", due=False), requested=("",))
    assert names(waiting((debt("a", since=10), asked), {}, frozenset(), 100)) == ["asked", "a"]
    settled = {asked.table: Attempt(settled=asked)}
    assert names(waiting((asked,), settled, frozenset(), 100)) == ["asked"]
    assert waiting((asked,), {asked.table: Attempt(not_before=200)}, frozenset(), 100) == []
    assert waiting((replace(asked, acted_on=False),), {}, frozenset(), 100) == []


# --- slots ------------------------------------------------------------------------------------------------------------


def test_as_many_runs_as_there_are_slots_wait_without_one() -> None:
    slots = SlotPool(2)
    bench = Bench(lanes=16, slots=slots)
    bench.dispatcher.start()
    bench.put(*(debt(name, since=number) for number, name in enumerate("abcdef")))
    bench.called(2)
    bench.nothing_more(2)  # both plan
    assert slots.acquire(str(debt("a").table))
    bench.called(3)
    bench.nothing_more(3)
    slots.resize(3)  # the cluster has grown
    bench.called(4)
    bench.nothing_more(4)
    assert bench.calls == list("abcd")
    assert slots.acquire(str(debt("b").table))
    bench.called(5)
    for name in "ab":
        slots.release(str(debt(name).table))  # they commit
    for name in "abcdef":
        bench.until(lambda name=name: name in bench.running)  # type: ignore[misc]
        bench.end(name)
    assert bench.dispatcher.stop(PATIENCE)
    assert slots.book.expected == frozenset()


def test_a_run_that_declines_leaves_room_for_the_next() -> None:
    slots = SlotPool(1)
    bench = Bench(lanes=16, slots=slots)
    bench.dispatcher.start()
    bench.put(debt("a", since=1), debt("b", since=2), debt("c", since=3))
    bench.called(2)
    bench.nothing_more(2)
    bench.end("a")
    bench.called(3)
    bench.end("b")
    bench.end("c")
    assert bench.dispatcher.stop(PATIENCE)
    assert slots.book.has_room


def test_concurrent_runs_stay_the_limit_however_large_the_cluster_is() -> None:
    bench = Bench(lanes=2, slots=SlotPool(100))
    bench.dispatcher.start()
    bench.put(debt("a"), debt("b"), debt("c"))
    bench.called(2)
    bench.nothing_more(2)
    for name in list(bench.calls):
        bench.end(name)
    bench.called(3)
    bench.end("c")
    assert bench.dispatcher.stop(PATIENCE)


def test_a_dispatcher_that_has_work_at_its_start_ends_at_once() -> None:
    """The first worker starts while the thread that chooses is being started."""
    for _ in range(50):
        board, done = DebtBoard(), threading.Event()
        board.put(debt("a"))

        dispatcher = Dispatcher(board, lambda *_, done=done: done.set(), concurrent_runs=2, first_backoff_seconds=10)
        dispatcher.start()
        assert done.wait(PATIENCE)
        assert dispatcher.stop(PATIENCE)
