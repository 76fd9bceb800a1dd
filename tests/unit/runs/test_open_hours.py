"""How much of a time lies outside quiet hours, against a count of its minutes."""

from __future__ import annotations

from datetime import time

from hypothesis import given
from hypothesis import strategies as st

from compactor.runs.open_hours import DAY, OpenHours

MINUTES = st.integers(0, 24 * 60 - 1)
SPANS = st.lists(st.tuples(MINUTES, MINUTES), max_size=3)
START = 1_700_000_000 // 60 * 60


def clock(minute: int) -> time:
    return time(minute // 60, minute % 60)


@given(SPANS, st.integers(0, 3 * 24 * 60), st.integers(0, 3 * 24 * 60))
def test_open_seconds_are_the_minutes_in_which_a_run_may_start(
    spans: list[tuple[int, int]], since: int, minutes: int
) -> None:
    hours = OpenHours.of((clock(start), clock(end)) for start, end in spans)
    first = START + since * 60
    counted = sum(not hours.is_quiet(first + minute * 60) for minute in range(minutes))
    assert hours.seconds(first, first + minutes * 60) == counted * 60


@given(SPANS, MINUTES)
def test_a_minute_is_quiet_if_a_span_holds_it(spans: list[tuple[int, int]], minute: int) -> None:
    hours = OpenHours.of((clock(start), clock(end)) for start, end in spans)
    held = any(start <= minute < end if start <= end else minute >= start or minute < end for start, end in spans)
    assert hours.is_quiet(20 * DAY + minute * 60) == held


def test_a_clock_that_went_back_makes_no_negative_age() -> None:
    assert OpenHours().seconds(10.0, 5.0) == 0.0
