"""Batches by rows and by time, memory that is bounded, and a history whose trouble reaches nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from pydantic import ValidationError

from compactor.errors import InputError, RetryError
from compactor.events import Event, HistoryWritten, LedgerUpdated, RunSkipped
from compactor.history.appender import Batches, History
from compactor.history.decisions import Decision
from compactor.patience.backoff import LATER
from compactor.settings.tree import Settings
from compactor.table_names import TableName

TABLE = TableName("lake", ("db",), "t")
KEPT_IN = TableName("lake", ("ops",), "history")
SECONDS, ROWS, MOST = 60.0, 3, 10
PATIENCE = 30.0


def rows(*moments: float) -> list[Decision]:
    return [Decision(at, TABLE, "done", "due") for at in moments]


def few() -> Batches:
    return Batches(SECONDS, ROWS, MOST)


def moments(decisions: Sequence[Decision]) -> list[float]:
    return [decision.at for decision in decisions]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_due_by_rows_or_by_the_age_of_its_oldest_row() -> None:
    batches = few()
    assert batches.due_in(0.0) is None
    batches.add(rows(100.0, 130.0))
    assert batches.due_in(130.0) == 30.0
    assert batches.due_in(160.0) == 0.0
    batches.add(rows(131.0))
    assert batches.due_in(131.0) == 0.0


def test_rows_from_before_the_clock_was_set_back_wait_no_longer_than_others() -> None:
    batches, day = few(), 86_400.0
    batches.add(rows(day))
    assert batches.due_in(100.0) == SECONDS
    batches.add(rows(130.0))
    assert batches.due_in(130.0) == SECONDS - 30.0
    assert batches.due_in(160.0) == 0.0
    batch = batches.take()
    assert moments(batch[1]) == [day, 130.0]
    batches.failed(batch, day)
    assert batches.due_in(160.0) == LATER.first_seconds
    assert batches.due_in(160.0 + LATER.first_seconds) == 0.0
    batches.appended()
    batches.add(rows(200.0))
    assert batches.due_in(200.0) == SECONDS


def test_a_batch_holds_no_more_rows_than_it_may_and_takes_the_oldest() -> None:
    batches = few()
    batches.add(rows(1, 2, 3, 4))
    batch_id, taken = batches.take()
    assert moments(taken) == [1, 2, 3]
    batches.appended()
    other_id, taken = batches.take()
    assert (moments(taken), other_id != batch_id) == ([4], True)
    assert len(batches) == 0


def test_a_failed_batch_comes_again_as_it_was_after_a_pause_that_grows() -> None:
    batches = few()
    batches.add(rows(1, 2))
    batch, now, pauses = batches.take(), 100.0, []
    for _ in range(9):
        batches.failed(batch, now)
        batches.add(rows(now))
        pause = batches.due_in(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
        assert (batches.due_in(now), batches.take()) == (0.0, batch)
    assert pauses[:3] == [LATER.first_seconds, 2 * LATER.first_seconds, 4 * LATER.first_seconds]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LATER.longest_seconds
    batches.appended()
    batches.failed(batches.take(), now)
    assert batches.due_in(now) == LATER.first_seconds


def test_memory_is_bounded_and_the_oldest_rows_go_but_not_those_on_their_way() -> None:
    batches = few()
    batches.add(rows(1, 2, 3))
    batches.failed(batches.take(), 0.0)
    assert batches.add(rows(*range(10, 17))) == 0
    assert batches.add(rows(*range(17, 22))) == 5
    assert len(batches) == MOST
    assert moments(batches.take()[1]) == [1, 2, 3]
    batches.appended()
    assert moments(batches.take()[1]) == [15, 16, 17]
    assert batches.add(rows(*range(100, 200))) == 4 + 90


# --- at work ----------------------------------------------------------------------------------------------------------


class Shelf:
    """Takes batches; fails as often as it is told to."""

    name = KEPT_IN

    def __init__(self, failures: int = 0, refusal: Exception | None = None) -> None:
        self.failures, self.refusal = failures, refusal
        self.batches: list[tuple[str, list[str]]] = []
        self.asked: list[str] = []
        self.enter = threading.Event()
        self.leave = threading.Event()
        self.leave.set()

    def ensure(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def append(self, decisions: Sequence[Decision], batch_id: str) -> None:
        self.enter.set()
        assert self.leave.wait(PATIENCE)
        self.asked.append(batch_id)
        if len(self.asked) <= self.failures:
            raise RetryError("no answer")
        self.batches.append((batch_id, [decision.reason for decision in decisions]))


class Told:
    """What the history tells, and a way to wait for it."""

    def __init__(self) -> None:
        self.events: list[HistoryWritten] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        assert isinstance(event, HistoryWritten)
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, until: Callable[[list[HistoryWritten]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: until(self.events), PATIENCE), self.events


def skip(number: int, table: TableName = TABLE) -> RunSkipped:
    return RunSkipped(table, f"reason-{'x' * number}")


def test_what_was_told_is_appended_at_the_end_in_batches() -> None:
    shelf, told = Shelf(), Told()
    history = History(shelf, few(), told, clock=lambda: 0.0)
    for number in range(5):
        history(skip(number))
    history(LedgerUpdated(TABLE, 1))
    history.start()
    history.stop(PATIENCE)
    assert sorted(len(reasons) for _, reasons in shelf.batches) == [2, 3]
    assert sum(event.rows for event in told.events) == 5
    assert not any(event.error or event.dropped for event in told.events)


def test_a_full_batch_does_not_wait_for_its_time() -> None:
    shelf, told = Shelf(), Told()
    history = History(shelf, few(), told, clock=lambda: 0.0)
    history.start()
    for number in range(ROWS):
        history(skip(number))
    told.wait(lambda events: sum(event.rows for event in events) == ROWS)
    history.stop(PATIENCE)


def test_what_is_decided_about_the_history_itself_is_no_part_of_it() -> None:
    """Else its own rewrite is a row, the row a file, the file debt, the debt a rewrite."""
    shelf, told = Shelf(), Told()
    history = History(shelf, few(), told)
    history.start()
    history(skip(1, KEPT_IN))
    history.stop(PATIENCE)
    assert (shelf.asked, told.events) == ([], [])


def test_a_failed_append_is_told_and_tried_again_with_the_same_id() -> None:
    hours = count(step=3600)  # every look at the clock is an hour later
    shelf, told = Shelf(failures=2), Told()
    history = History(shelf, few(), told, clock=lambda: next(hours))
    history.start()
    history(skip(1))
    told.wait(lambda events: any(event.rows for event in events))
    history.stop(PATIENCE)
    assert len(shelf.asked) == 3
    assert len(set(shelf.asked)) == 1
    assert [(event.rows, event.error) for event in told.events] == [(0, "no answer"), (0, "no answer"), (1, "")]


def test_what_cannot_be_written_at_the_end_is_counted_as_lost() -> None:
    shelf, told = Shelf(failures=99), Told()
    history = History(shelf, few(), told, clock=lambda: 0.0)
    history.start()
    for number in range(2):
        history(skip(number))
    history.stop(PATIENCE)
    assert told.events == [HistoryWritten(0, error="no answer"), HistoryWritten(0, dropped=2)]


def test_nobody_waits_for_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one hangs, events are taken; of too many the oldest are lost and counted."""
    monkeypatch.setattr("compactor.history.appender.MOST_EVENTS", 4)
    shelf, told = Shelf(), Told()
    history = History(shelf, Batches(SECONDS, rows=1), told)
    history.start()
    shelf.leave.clear()
    history(skip(0))
    assert shelf.enter.wait(PATIENCE)
    for number in range(1, 8):
        history(skip(number))
    assert sum(event.dropped for event in told.events) == 3
    shelf.leave.set()
    history.stop(PATIENCE)
    assert [reasons for _, reasons in shelf.batches] == [[skip(number).reason] for number in (0, 4, 5, 6, 7)]


def test_a_table_that_is_no_history_is_refused_and_one_that_does_not_answer_is_not() -> None:
    with pytest.raises(InputError):
        History(Shelf(refusal=InputError("no history")), few(), Told()).start()
    shelf = Shelf(refusal=RetryError("no answer"))
    history = History(shelf, few(), Told())
    history.start()
    history(skip(1))
    history.stop(PATIENCE)
    assert len(shelf.batches) == 1


@pytest.mark.parametrize("name", ["history", "pond.ops.history", "lake..history"])
def test_a_name_that_can_be_no_table_is_refused_with_its_key(name: str) -> None:
    catalogs = {"lake": {"type": "rest", "uri": "http://c"}, "sea": {"type": "rest", "uri": "http://c"}}
    with pytest.raises(ValidationError, match=r"history\.table"):
        Settings(catalogs=catalogs, history={"table": name})
    assert Settings(catalogs=catalogs, history={"table": "sea.ops.h"}).history.table_name(catalogs) == TableName(
        "sea", ("ops",), "h"
    )
