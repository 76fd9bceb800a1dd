"""Each batch of a query is reported once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from streaming.service.watched_query import unreported


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
