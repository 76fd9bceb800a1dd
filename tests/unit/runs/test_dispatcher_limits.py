"""What makes a table late, and what holds runs back or ends them: limits, pauses, slots, and a thread that hangs."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from compactor.debt.board import DebtBoard
from compactor.debt.manifest_debt import ManifestCounts
from compactor.errors import RetryError, StoppedError
from compactor.patience.holds import Holds
from compactor.planning.budget import Spent
from compactor.runs.dispatcher import Dispatcher, TableQueue, Work
from compactor.runs.lifelines import ABANDONED_SECONDS
from compactor.runs.slots import SlotPool
from compactor.runs.usage import HOUR, Cost, HourOfUsage
from compactor.runs.work_order import STARVING_SECONDS, Budget, Limits
from compactor.settings.limits import LimitSettings
from tests.unit.runs.dispatcher_bench import PATIENCE, Bench, debt

# --- lateness, limits, pauses, threads that hang ----------------------------------------------------------------------


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


def test_a_table_that_is_due_by_its_manifests_alone_is_shown_as_held_back() -> None:
    """Else nobody would hear that it waits for the budgets of the hour."""
    bench = Bench(lanes=1, limits=LimitSettings(bytes_per_hour=1000))
    due = ManifestCounts(100, 500, due_specs=(0,), why="100 manifests, 1 would be enough")
    bench.board.put(replace(debt("a", since=1), partitions={}, manifests=due))
    bench.usage.charge(debt("b").table, bench.now, Spent(bytes=600))
    status = bench.dispatcher.status
    assert (status.queued, status.limited) == (1, 1)


def test_tables_that_have_made_their_commits_of_the_hour_are_shown_apart_from_the_budgets() -> None:
    """They wait on purpose, while a budget that holds tables back for hours is too small."""
    bench = Bench(lanes=1, limits=LimitSettings(commits_per_table_and_hour=4))
    bench.put(debt("a", since=1), debt("b", since=1))
    bench.usage.charge(debt("a").table, bench.now, Spent(commits=4))
    status = bench.dispatcher.status
    assert (status.queued, status.limited, status.capped) == (2, 0, 1)
    bench.dispatcher.limit(Limits(LimitSettings(commits_per_table_and_hour=4, bytes_per_hour=1000)))
    bench.usage.charge(debt("c").table, bench.now, Spent(bytes=1000))
    status = bench.dispatcher.status
    assert (status.limited, status.capped) == (2, 0), "each is counted once"
    quiet = LimitSettings(commits_per_table_and_hour=4, quiet_hours=("00:00-12:00",))
    bench.dispatcher.limit(Limits(quiet))
    assert (bench.dispatcher.status.limited, bench.dispatcher.status.capped) == (0, 0)


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
    assert bench.lifelines.silent_seconds(debt("hangs").table) == ABANDONED_SECONDS
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


def test_the_silence_of_a_run_counts_from_its_last_progress_until_its_end(bench: Bench) -> None:
    bench.put(debt("a"))
    bench.called(1)
    bench.steady = 50.0
    bench.lifelines.moved(debt("a").table)
    bench.steady = 60.0
    assert bench.lifelines.silent_seconds(debt("a").table) == 10.0
    bench.end("a")
    assert bench.dispatcher.stop(PATIENCE)
    assert bench.lifelines.silent_seconds(debt("a").table) == 0.0


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
    bench.until(lambda: len(bench.usage.recent(bench.now)) == 1)  # the reservation is gone
    (cost,) = bench.usage.recent(bench.now)
    assert cost.spent == Spent(70, 5, 6)
    bench.now += 3600
    assert bench.usage.recent(bench.now) == []


def test_a_restart_does_not_give_the_budget_anew() -> None:
    limits = Limits(LimitSettings(bytes_per_hour=100))
    board = DebtBoard(Holds(lambda: 100.0))
    board.put(debt("a"))
    started = threading.Event()
    hour = HourOfUsage([Cost(debt("b").table, 90.0, Spent(99, commits=1))])
    dispatcher = Dispatcher(TableQueue(board, 10, limits, hour), lambda *_: started.set(), concurrent_runs=1)
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
