"""What the stream does after the end of its query: when it starts again, and when it goes on from the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from compactor.errors import RetryError
from compactor.events import Event, StreamEnded
from streaming.intake.event_query import GIVE_UP_SECONDS, EventQuery
from streaming.intake.event_stream import (
    BROKER,
    DEAD_SECONDS,
    OTHER,
    End,
    EventStream,
    offsets_behind,
    offsets_between,
    shown,
    unreported,
)

PROXY = """\
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated with \
exception: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/py4j/java_gateway.py", line 2506, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
compactor.errors.RetryError: the state cannot be written
 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: ledger [id = 1, runId = 2]
"""


@dataclass
class Handler:
    refused: RetryError | None = None


@dataclass
class Source:
    """A query that never starts. `refuses`: a batch's events, when it starts. `full`: the checkpoint's volume."""

    handler: Handler = field(default_factory=Handler)
    refuses: RetryError | None = None
    starts: int = 0
    deleted: list[int] = field(default_factory=list)
    full: bool = False

    def start(self) -> Any:
        self.starts += 1
        self.handler.refused = self.refuses
        raise RuntimeError("damaged")

    def delete_checkpoint(self) -> None:
        if self.full:
            raise OSError("No space left on device")
        self.deleted.append(self.starts)


@dataclass
class Brokers:
    """`answers`: what they say when they are asked; `trouble`: what was known of them before."""

    trouble: str = ""
    answers: str = ""

    def ask(self) -> str:
        return self.answers

    def read(self, offsets: Mapping[str, Mapping[str, int]]) -> None:
        pass


@dataclass
class Stage:
    source: Source = field(default_factory=Source)
    broker: Brokers = field(default_factory=Brokers)
    published: list[Event] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.stream = EventStream(cast("EventQuery", self.source), self.broker, self.published.append)
        self.stream.ticks = lambda: self.now

    def attempts(self, number: int) -> None:
        for _ in range(number):
            self.now += 30.0
            self.stream.check()

    @property
    def causes(self) -> set[str]:
        return {each.cause for each in self.published if isinstance(each, StreamEnded)}


def test_after_a_minute_at_one_place_the_checkpoint_is_left_behind_and_then_once_a_minute() -> None:
    stage = Stage()
    stage.attempts(9)  # one each 30 s
    assert (stage.source.starts, stage.source.deleted) == (9, [3, 6, 9])
    assert stage.causes == {"unexpected"}
    assert stage.stream.trouble.startswith("ended 9 times: damaged; see the error")
    assert stage.stream.may_sweep
    assert stage.stream.behind


def test_two_ends_within_a_minute_skip_nothing() -> None:
    """Executors may be preempted twice."""
    stage = Stage()
    for _ in range(int(GIVE_UP_SECONDS)):
        stage.stream.check()
        stage.now += 1
    assert stage.source.starts > 3
    assert stage.source.deleted == []


def test_nothing_is_skipped_while_the_brokers_do_not_answer_or_events_or_offsets_cannot_be_kept() -> None:
    silent, refusing, full = Stage(), Stage(), Stage()
    silent.broker.answers = "no Kafka broker answers"
    refusing.source.refuses = RetryError("the state cannot be written")
    full.source.full = True
    for stage in (silent, refusing, full):
        stage.attempts(9)
        assert stage.source.deleted == []
    assert refusing.causes == {"unavailable"}
    assert "the state cannot be written" in refusing.stream.trouble
    silent.broker.trouble = silent.broker.answers
    silent.attempts(9)
    assert silent.source.starts == 9, "nothing starts while it is known"


def test_a_new_process_is_asked_for_after_ten_minutes_of_unexplained_ends() -> None:
    stage = Stage()
    stage.attempts(1)
    assert not stage.stream.dead
    stage.now += DEAD_SECONDS
    assert not stage.stream.dead
    stage.attempts(1)
    assert stage.stream.dead
    stage.broker.trouble = "no Kafka broker answers"
    assert not stage.stream.dead


def test_ends_at_different_places_skip_nothing() -> None:
    end = End()
    for number, place in enumerate("abab"):
        end = end.another(OTHER, "x", place, 100.0 * number)
        assert not end.may_skip
    end = end.another(BROKER, "x", "b", 310.0).another(OTHER, "x", "b", 400.0)
    assert (end.may_skip, end.in_a_row) == (True, 6)


def test_what_the_query_has_not_read() -> None:
    progress = {"endOffset": {"a": {"0": 10, "1": 10}}, "latestOffset": {"a": {"0": 110, "1": 210}, "b": {"0": 5}}}
    assert offsets_behind(json.dumps({"sources": [progress]})) == 100 + 200 + 5
    assert offsets_behind(json.dumps({"sources": [{"endOffset": None, "latestOffset": None}]})) == 0
    assert offsets_between({"a": {"0": 5}}, {"a": {"0": 4}}) == 0


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
        (SET_BACK, BEFORE[-1].timestamp, SET_BACK),
    ],
    ids=["first", "some", "none", "the clock was set back", "another run, or too many"],
)
def test_each_batch_is_reported_once_whatever_the_clock_says(
    recent: list[Batch], reported: str, expected: list[Batch]
) -> None:
    assert list(unreported(recent, reported)) == expected


def test_of_an_exception_one_line_is_shown() -> None:
    assert shown(PROXY) == "compactor.errors.RetryError: the state cannot be written"
    assert shown("one\ntwo") == "one"
    assert shown("") == "no reason was given"
