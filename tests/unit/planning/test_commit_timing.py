"""When a rewrite waits for a row-level commit, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.iceberg.other_compactors import RUN_ID
from compactor.planning.commit_timing import (
    AFTER_FIRST,
    ENDED,
    INTERRUPTED,
    JUST_COMMITTED,
    NEW,
    SHORTEST_MOMENT,
    Rhythm,
    good_until,
    rhythm_of,
    wait_until,
    writers_rhythm,
)


def snapshot(at: float, operation: Operation = Operation.OVERWRITE, **properties: str) -> Snapshot:
    return Snapshot(
        snapshot_id=1, timestamp_ms=int(at * 1000), manifest_list="x", summary=Summary(operation, **properties)
    )


def history(*snapshots: Snapshot) -> list[Snapshot]:
    return sorted(snapshots, key=lambda each: -each.timestamp_ms)


def test_the_usual_time_between_row_level_commits_is_their_median() -> None:
    times = (100, 120, 140, 161, 400, 420)  # one pause
    assert rhythm_of(history(*map(snapshot, times))) == Rhythm(420, 20)


@pytest.mark.parametrize(
    "other",
    [
        lambda at: snapshot(at, Operation.APPEND),
        lambda at: snapshot(at, Operation.REPLACE),
        lambda at: snapshot(at, Operation.OVERWRITE, **{RUN_ID: "ours"}),
        lambda at: snapshot(at, Operation.OVERWRITE, **{"added-equality-delete-files": "3"}),
    ],
)
def test_commits_that_no_rewrite_makes_fail_do_not_count(other: Any) -> None:
    rows = [snapshot(at, Operation.DELETE) for at in (100, 130, 160)]
    assert rhythm_of(history(*rows, *map(other, (110, 150, 170)))) == Rhythm(160, 30)
    assert rhythm_of(history(*map(other, range(100, 120)))) is None
    assert rhythm_of(history(*rows[1:])) == Rhythm(160, 30)


@pytest.mark.parametrize("mode", ["write.merge.mode", "write.update.mode", "write.delete.mode"])
def test_before_the_first_row_level_commit_any_commit_tells_of_a_writer_that_the_properties_announce(mode: str) -> None:
    appends = [snapshot(at, Operation.APPEND) for at in (100, 104, 108)]
    ours = snapshot(109, Operation.REPLACE, **{RUN_ID: "ours"})
    assert writers_rhythm(history(*appends, ours), {mode: "copy-on-write"}) == Rhythm(108, 4, announced=True)
    assert writers_rhythm(history(appends[0], ours), {mode: "copy-on-write"}) is None, "one load is no rhythm"
    assert writers_rhythm(history(*appends, ours), {"write.format.default": "parquet"}) is None
    assert writers_rhythm(history(*appends, snapshot(106)), {mode: "merge-on-read"}) == Rhythm(106, AFTER_FIRST)
    others = snapshot(109, Operation.REPLACE)
    assert writers_rhythm(history(*appends, others), {mode: "copy-on-write"}) == Rhythm(108, 4, announced=True)


def test_a_table_that_had_only_appends_for_long_announces_nobody() -> None:
    """Some engines set the properties on each table."""
    announced = {"write.merge.mode": "merge-on-read"}
    appends = history(*(snapshot(at, Operation.APPEND) for at in range(NEW)))
    assert writers_rhythm(appends, announced) is None
    assert writers_rhythm(appends[1:], announced) is not None
    expired = [each.model_copy(update={"parent_snapshot_id": 7}) for each in appends[1:]]
    assert writers_rhythm(expired, announced) is None
    assert writers_rhythm([], announced) is None


def test_a_known_rhythm_goes_on_where_the_snapshots_do_not_reach_back_to_it() -> None:
    known = Rhythm(100, 45)
    append, merge = snapshot(120, Operation.APPEND), snapshot(145)
    assert writers_rhythm([append], {}, known) == known
    assert writers_rhythm([merge, append], {}, known) == Rhythm(145, 45)
    assert writers_rhythm([append, snapshot(100)], {}, known) == Rhythm(100, AFTER_FIRST), "they reach back"
    assert writers_rhythm([append, snapshot(90, Operation.APPEND)], {}, known) is None, "it was rolled back"
    assert writers_rhythm([merge], {}, Rhythm(100, 4, announced=True)) == Rhythm(145, AFTER_FIRST)
    assert writers_rhythm([], {}, known) is None


def test_appends_of_a_table_that_announces_row_level_writers_are_waited_for_only_while_they_come() -> None:
    rhythm = Rhythm(1000, 4, announced=True)
    assert wait_until(rhythm, 1003, 60) == 1000 + ENDED * 4
    assert wait_until(rhythm, 1001 + ENDED * 4, 60) is None


def test_after_the_first_row_level_commit_the_next_one_is_assumed_soon() -> None:
    first = history(snapshot(90, Operation.APPEND), snapshot(100), snapshot(105, Operation.APPEND))
    assert rhythm_of(first) == Rhythm(100, AFTER_FIRST)
    assert wait_until(rhythm_of(first), 110, 300) == 100 + ENDED * AFTER_FIRST
    assert wait_until(rhythm_of(first), 161, 300) is None
    rare = history(*(snapshot(at, Operation.APPEND) for at in range(0, 1000, 30)), snapshot(1000))
    assert rhythm_of(rare) == Rhythm(1000, 1000), "in all this time there was no other: the next is not near"
    assert wait_until(rhythm_of(rare), 1030, 60) is None


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (0, None),  # the writer has just committed: now
        (3, None),
        (4, 60),  # the next one may have begun: until it has committed, at the latest when the rhythm has ended
        (19, 60),
        (40, 60),  # it is late
        (61, None),  # the writer has stopped
        (-3, None),  # its clock is ahead
    ],
)
def test_a_rewrite_waits_for_the_next_commit(since: float, until: float | None) -> None:
    now = 1000.0 + since
    assert wait_until(Rhythm(1000, 20), now, 60) == (None if until is None else 1000 + until)


def test_a_rewrite_waits_no_longer_than_it_may_and_not_for_a_commit_that_is_far_away() -> None:
    assert wait_until(Rhythm(1000, 3600), 1000 + 3590, 60) == 1000 + 3650
    assert wait_until(Rhythm(1000, 3600), 1000 + 2000, 60) is None
    assert wait_until(Rhythm(1000, 20), 1010, 0) is None
    assert wait_until(None, 1010, 60) is None


@pytest.mark.parametrize(
    ("times", "behind"),
    [
        ((100, 110, 120, 130, 140, 150), False),
        ((100, 110, 120, 130, 140, 164), True),  # it waited for a store, and begins the next one at once
        ((100, 110, 120, 130, 154, 158, 166), True),
        ((100, 110, 120, 130, 190, 194, 198, 202), True),
        ((100, 110, 120, 130, 154, 158, 166, 172), False),  # it has caught up
        ((100, 110, 120, 130, 154, 165), True),  # in time by chance, if its statement is slow now
        ((100, 110, 120, 130, 154, 165, 175, 185), False),  # it did not catch up, and waits for its times
        ((100, 120, 140, 160, 190, 210), False),  # one in twenty seconds was not done in time by chance
        ((100, 110, 120, 130, 140, 152), False),  # this much is usual
        ((100, 110, 120, 144, 148, 172), False),  # no schedule: two of five come late
        ((100, 110, 120, 130, 140, 150, 160, 190, 220), True),
        ((100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 220, 250, 280), False),  # that is its new schedule
        ((100, 107, 120, 127, 140, 147, 160, 167, 180), False),  # two writers
        ((100, 130, 160, 190, 220, 230), False),  # it has become faster
        ((100, 110, 134), False),  # too few to know
    ],
)
def test_a_writer_that_is_behind_its_schedule_is_told(times: tuple[int, ...], behind: bool) -> None:
    rhythm = rhythm_of(history(*map(snapshot, times)))
    assert rhythm is not None
    assert rhythm.behind is behind


def test_right_after_a_late_commit_a_rewrite_waits_for_the_one_after_it() -> None:
    assert wait_until(Rhythm(1000, 20, behind=True), 1001, 60) == 1060
    assert wait_until(Rhythm(1000, 3600, behind=True), 1001, 60) == 1061, "it may come soon"


def test_when_the_catalog_answers_again_a_rewrite_waits_for_the_next_commit() -> None:
    rhythm = Rhythm(1000, 20)
    assert wait_until(rhythm, 1001, 60, silent=0.5) == 1060.5, "also right after a commit"
    assert wait_until(rhythm, 1110, 60, silent=100) == 1160, "the rhythm has not ended in the meantime"
    assert wait_until(rhythm, 1170, 60, silent=100) is None


def test_a_frequent_writer_that_is_interrupted_is_waited_for() -> None:
    assert wait_until(Rhythm(1000, 5), 1000 + 4 * ENDED, 300) == 1000 + INTERRUPTED
    assert wait_until(Rhythm(1000, 5), 1001 + INTERRUPTED, 300) is None


@given(st.floats(0.001, 1e5), st.booleans(), st.floats(-1e4, 1e6), st.floats(0, 3600), st.just(0.0) | st.floats(0, 600))
def test_a_wait_is_short_and_never_right_after_a_commit(
    every: float, behind: bool, since: float, most: float, silent: float
) -> None:
    until = wait_until(Rhythm(0, every, behind), since, most, silent)
    if until is None:
        return
    assert since <= until <= since + most
    assert behind or silent or JUST_COMMITTED * every < since
    assert since <= max(ENDED * every, INTERRUPTED) + silent
    assert behind or every - since <= most


@pytest.mark.parametrize(
    ("rhythm", "now", "until"),
    [
        (Rhythm(1000, 20), 1001, 1008),
        (Rhythm(1000, 2), 1001, 1000 + SHORTEST_MOMENT),
        (Rhythm(1000, 20), 1009, None),  # the wait was over: it is committed whenever it is ready
        (Rhythm(1000, 2, announced=True), 1001, None),  # an append makes no moment better
        (None, 1001, None),
    ],
)
def test_a_commit_that_follows_another_one_is_sent_soon_or_not_at_all(
    rhythm: Rhythm | None, now: float, until: float | None
) -> None:
    assert good_until(rhythm, now) == until
