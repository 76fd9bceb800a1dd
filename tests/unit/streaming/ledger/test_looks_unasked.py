"""How often a table is looked at without an event: properties of the decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.table_names import TableName
from streaming.ledger.rhythm import (
    BEHIND_SECONDS,
    OFTEN_SECONDS,
    RARELY,
    SELDOM,
    UNKNOWN,
    Rhythm,
    due,
    wanted_seconds,
)
from tests.unit.streaming.ledger.scene import named

NOW = 1_000_000.0
SWEEP = 300.0
seconds = st.floats(0.01, 1e7, allow_nan=False)
times = st.floats(0.0, 2 * NOW)
rhythms = st.builds(
    Rhythm,
    announced=st.booleans(),
    commit_seconds=st.none() | seconds,
    committed_at=st.none() | times,
    missed_at=st.none() | times,
)


@given(rhythms, st.floats(0.1, 86_400.0), st.booleans())
def test_every_table_is_looked_at_within_bounds(rhythm: Rhythm, sweep: float, behind: bool) -> None:
    wanted = wanted_seconds(rhythm, NOW, sweep, behind=behind)
    assert min(OFTEN_SECONDS, sweep) <= wanted <= RARELY * sweep
    if behind:
        assert wanted <= BEHIND_SECONDS
    elif not rhythm.announced or (rhythm.missed_at is not None and rhythm.missed_at > NOW - RARELY * sweep):
        assert wanted <= SELDOM * sweep


@pytest.mark.parametrize(
    ("rhythm", "wanted"),
    [
        (UNKNOWN, SWEEP),
        (Rhythm(announced=True, commit_seconds=1.0, committed_at=NOW), RARELY * SWEEP),
        (Rhythm(announced=True, commit_seconds=60.0, committed_at=NOW, missed_at=NOW - RARELY * SWEEP), 30.0),
        (Rhythm(announced=True, commit_seconds=60.0, missed_at=NOW - RARELY * SWEEP - 1), RARELY * SWEEP),
        (Rhythm(commit_seconds=1.0, committed_at=NOW), OFTEN_SECONDS),
        (Rhythm(commit_seconds=60.0, committed_at=NOW), 30.0),
        (Rhythm(commit_seconds=60.0, committed_at=NOW - 400), 100.0),
        (Rhythm(commit_seconds=86_400.0, committed_at=NOW), SELDOM * SWEEP),
        (Rhythm(commit_seconds=60.0, committed_at=NOW - 86_400), SELDOM * SWEEP),
        (Rhythm(commit_seconds=60.0, committed_at=NOW + 86_400), 30.0),
    ],
)
def test_a_table_is_looked_at_as_often_as_its_commits_suggest(rhythm: Rhythm, wanted: float) -> None:
    assert wanted_seconds(rhythm, NOW, SWEEP) == wanted


def test_over_an_hour_the_budget_holds_and_the_busy_tables_get_more() -> None:
    busy = {named(f"busy{number}"): 15.0 for number in range(100)}
    idle = {named(f"idle{number}"): 300.0 for number in range(100)}
    intervals = busy | idle
    asked_at: dict[TableName, float | None] = dict.fromkeys(intervals, 0.0)
    looks = dict.fromkeys(intervals, 0)
    for now in range(1, 3601):
        for table in due(intervals, asked_at, float(now), 2.0, 1.0):
            asked_at[table] = float(now)
            looks[table] += 1
    assert 0.9 * 2 * 3600 < sum(looks.values()) <= 1.05 * 2 * 3600
    assert min(looks[table] for table in busy) > 10 * max(looks[table] for table in idle) > 0
