"""Each batch of a query is reported once; where a query goes on after its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from compactor.errors import RetryError
from compactor.events import Event, EventsLost, LagChanged, StreamEnded
from compactor.patience.backoff import Backoff
from streaming.kafka.clients import LATEST
from streaming.service.stream_failures import NEWEST, OLDEST, UNREAD_ENDS, BatchOffsets, Cause, Offsets
from streaming.service.watched_query import WatchedQuery, offsets_behind, unreported
from tests.unit.streaming.test_stream_failures import NANOSECONDS, NO_CATALOG


@dataclass(frozen=True)
class Batch:
    timestamp: str


PROGRESS = {
    "sources": [
        {"endOffset": {"a": {"0": 10, "1": 10}}, "latestOffset": {"a": {"0": 110, "1": 210}, "b": {"0": 5}}},
        {"endOffset": {"c": {"0": 7}}, "latestOffset": {"c": {"0": 7}}},
        {"endOffset": None, "latestOffset": None},
    ]
}
BEFORE = [Batch(f"2026-10-25T02:00:{second}.000Z") for second in (10, 20, 30)]
SET_BACK = [Batch(f"2026-10-25T01:00:{second}.000Z") for second in (40, 50)]


def test_events_behind_are_those_of_all_partitions_and_topics() -> None:
    assert offsets_behind(json.dumps(PROGRESS)) == 100 + 200 + 5


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
    """A query that never starts, and what it would have started with. `refuses`: sets no checkpoint aside.

    `partitions`: of the topics that exist; None: the broker does not answer.
    """

    partitions: Mapping[str, int] | None = field(default_factory=lambda: {"t": 1, "u": 1})
    started: list[str] = field(default_factory=list)
    aside: int = 0
    refuses: bool = False
    published: list[Event] = field(default_factory=list)

    def query(self) -> WatchedQuery:
        backoff = Backoff(first_seconds=0.0, longest_seconds=0.0)
        return WatchedQuery(
            "q", self.begin, self.set_aside, backoff, self.published.append, dict, self.existing, lambda: 0.0
        )

    def existing(self) -> Mapping[str, int]:
        if self.partitions is None:
            raise RetryError("no Kafka broker answers at x")
        return self.partitions

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


def test_events_behind_an_open_transaction_are_lag_without_any_batch() -> None:
    starts = Starts()
    query = starts.query()
    for hidden in (0, 3, 3, 0):
        query.hidden_offsets = hidden
        query.check()
        assert query.lag_offsets == hidden
    assert [event.offsets for event in starts.published if isinstance(event, LagChanged)] == [0, 3, 0]


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


def test_a_batch_of_a_topic_that_was_created_again_is_skipped_too() -> None:
    starts = Starts()
    query = starts.query()
    query.read_anew(frozenset({"t"}))
    assert starts.next_start(query) == {"t": {"0": OLDEST}, "u": {"0": NEWEST}}
    for _ in range(UNREAD_ENDS):
        query._failed(NANOSECONDS, NANOSECONDS, BatchOffsets({}, UNREAD.end))
    assert starts.next_start(query) == UNREAD.end


NOT_EXPLAINED = "java.lang.IllegalStateException: Incomplete log file"


def test_a_new_checkpoint_names_the_partitions_that_exist_now() -> None:
    """Spark refuses offsets of a topic that was deleted, and misses those of a partition that was added."""
    starts = Starts({"kept": 2, "new": 1})
    query = starts.query()
    query._ends = {"deleted": {"0": 5}, "kept": {"0": 4}}
    for _ in range(2):
        query._failed(NOT_EXPLAINED, NOT_EXPLAINED)
    assert starts.next_start(query) == {"kept": {"0": 4, "1": OLDEST}, "new": {"0": OLDEST}}
    starts.partitions = {"new": 1}
    assert starts.next_start(query) == {"new": {"0": OLDEST}}


def test_a_broker_that_does_not_tell_its_partitions_is_asked_again() -> None:
    starts = Starts(None)
    query = starts.query()
    query._ends = {"t": {"0": 4}}
    for _ in range(2):
        query._failed(NOT_EXPLAINED, NOT_EXPLAINED)
    query.check()
    assert (starts.started, query.failures.cause) == ([], Cause.BROKER)
    starts.partitions = {"t": 1}
    assert starts.next_start(query) == {"t": {"0": 4}}


def test_a_new_topic_is_read_anew_once_the_checkpoint_could_be_set_aside() -> None:
    """On the old checkpoint Spark would wait for the old topic's offsets, without a word."""
    starts = Starts(refuses=True)
    query = starts.query()
    query._ends = {"t": {"0": 5}, "u": {"0": 4}}
    query.read_anew(frozenset({"t"}))
    query.check()
    assert starts.started == []
    assert "could not be renamed" in query.trouble
    query.check()
    starts.refuses = False
    for _ in range(5):  # until it has started once
        assert starts.next_start(query) == {"t": {"0": OLDEST}, "u": {"0": 4}}
    assert starts.aside == 1
    recreated = [event for event in starts.published if isinstance(event, StreamEnded) and "recreated" in event.cause]
    assert len(recreated) == 1


def test_topics_that_are_created_again_one_after_the_other_are_all_read_anew() -> None:
    starts = Starts({"t": 1, "u": 1, "v": 1})
    query = starts.query()
    query.read_anew(frozenset({"t"}))
    query.read_anew(frozenset({"u"}))
    assert starts.next_start(query) == {"t": {"0": OLDEST}, "u": {"0": OLDEST}, "v": {"0": NEWEST}}
    query.read_anew(frozenset({"v"}))
    assert starts.next_start(query) == {"t": {"0": OLDEST}, "u": {"0": OLDEST}, "v": {"0": OLDEST}}
