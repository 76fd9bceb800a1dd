"""Each batch of a query is reported once; where a query goes on after its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from compactor.events import Event, EventsLost
from compactor.patience.backoff import Backoff
from streaming.kafka.clients import LATEST
from streaming.service.stream_failures import UNREAD_ENDS, BatchOffsets, Offsets
from streaming.service.watched_query import WatchedQuery, unreported
from tests.unit.streaming.test_stream_failures import NANOSECONDS, NO_CATALOG


@dataclass(frozen=True)
class Batch:
    timestamp: str


BEFORE = [Batch(f"2026-10-25T02:00:{second}.000Z") for second in (10, 20, 30)]
SET_BACK = [Batch(f"2026-10-25T01:00:{second}.000Z") for second in (40, 50)]


@pytest.mark.parametrize(
    ("recent", "reported", "expected"),
    [
        (BEFORE, "", BEFORE),
        (BEFORE, BEFORE[0].timestamp, BEFORE[1:]),
        (BEFORE, BEFORE[-1].timestamp, []),
        ([*BEFORE, *SET_BACK], BEFORE[-1].timestamp, SET_BACK),
        ([*BEFORE, *SET_BACK], SET_BACK[0].timestamp, SET_BACK[1:]),
        (SET_BACK, BEFORE[-1].timestamp, SET_BACK),
        ([], BEFORE[-1].timestamp, []),
    ],
    ids=["first", "some", "none", "the clock was set back", "and goes on", "another run, or too many", "no batch"],
)
def test_batches_after_the_last_one_are_reported_whatever_the_clock_says(
    recent: list[Batch], reported: str, expected: list[Batch]
) -> None:
    assert list(unreported(recent, reported)) == expected


@dataclass
class Starts:
    """A query that never starts, and what it would have started with. `refuses`: sets no checkpoint aside."""

    started: list[str] = field(default_factory=list)
    aside: int = 0
    refuses: bool = False
    published: list[Event] = field(default_factory=list)

    def query(self) -> WatchedQuery:
        backoff = Backoff(first_seconds=0.0, longest_seconds=0.0)
        return WatchedQuery("q", self.begin, self.set_aside, backoff, self.published.append, dict, lambda: 0.0)

    def begin(self, starting: str) -> NoReturn:
        self.started.append(starting)
        raise RuntimeError("Timed out: org.apache.kafka.common.errors.TimeoutException")

    def set_aside(self) -> str:
        if self.refuses:
            raise OSError("x could not be renamed")
        self.aside += 1
        return "x.aside-000001"

    def next_start(self, query: WatchedQuery) -> str | Offsets:
        query.check()
        last = self.started[-1]
        found: str | Offsets = last if last == LATEST else json.loads(last)
        return found


UNREAD = BatchOffsets({"t": {"0": 5}}, {"t": {"0": 7}, "u": {"0": 1}})


def test_a_query_goes_on_behind_a_batch_that_it_could_not_read(caplog: pytest.LogCaptureFixture) -> None:
    starts = Starts()
    query = starts.query()
    for _ in range(UNREAD_ENDS - 1):
        query._failed(NANOSECONDS, NANOSECONDS, UNREAD)
        assert (starts.next_start(query), starts.aside) == (LATEST, 0)
    query._failed(NANOSECONDS, NANOSECONDS, UNREAD)
    assert (starts.next_start(query), starts.aside) == ({"t": {"0": 7}, "u": {"0": 1}}, 1)
    lost = [(event.topic, event.count, event.unreadable) for event in starts.published if isinstance(event, EventsLost)]
    assert lost == [("t", 2, True), ("u", 1, True)]
    assert "t-0 from 5 to 7, u-0 from 0 to 1" in caplog.text
    assert query.failures.in_a_row == 2 * UNREAD_ENDS


def test_a_batch_is_skipped_once_its_checkpoint_can_be_set_aside() -> None:
    starts = Starts(refuses=True)
    query = starts.query()
    for _ in range(UNREAD_ENDS):
        query._failed(NANOSECONDS, NANOSECONDS, UNREAD)
    assert starts.next_start(query) == LATEST
    starts.refuses = False
    query._failed(NANOSECONDS, NANOSECONDS, UNREAD)
    assert starts.next_start(query) == UNREAD.end


def test_a_batch_that_cannot_be_handled_is_never_skipped() -> None:
    starts = Starts()
    query = starts.query()
    for _ in range(20):
        query._failed(NO_CATALOG, NO_CATALOG, UNREAD)
    assert "catalog lake does not answer" in query.trouble
    assert (starts.next_start(query), starts.aside) == (LATEST, 0)
