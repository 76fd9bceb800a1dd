"""Which commits were rolled back for a writer, and how long one is watched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.iceberg.other_compactors import RUN_ID
from compactor.planning.commit_timing import ENDED
from compactor.planning.rollbacks import OFTEN, Fate, fate_of, watch_seconds

OURS, PARENT, FIRST_PART = 7, 3, 6


def branch(*ids: int, shown: int | None = None) -> list[Snapshot]:
    """Snapshots, each the parent of the next; newest first. `shown`: the newest so many."""
    made = [
        Snapshot(
            snapshot_id=each,
            parent_snapshot_id=parent,
            timestamp_ms=each,
            manifest_list="none",
            summary=Summary(Operation.APPEND),
        )
        for parent, each in zip((None, *ids), ids, strict=False)
    ]
    return made[::-1][:shown]


ALONE, AFTER_A_PART = (PARENT,), (FIRST_PART, PARENT)


@pytest.mark.parametrize(
    ("history", "before", "fate"),
    [
        (branch(1, PARENT, OURS), ALONE, Fate.NEWEST),
        (branch(1, PARENT, OURS, 8, 9), ALONE, Fate.STAYS),
        (branch(1, PARENT, 8), ALONE, Fate.ROLLED_BACK),
        (branch(1, PARENT, 8, 9, shown=2), ALONE, Fate.ROLLED_BACK),
        (branch(1, PARENT), ALONE, Fate.NEWEST),  # older metadata, or an operator's rollback
        ([], ALONE, Fate.NEWEST),
        (branch(1, PARENT, OURS, 8, 9, shown=1), ALONE, Fate.NEWEST),  # the catalog shows no more, or ours has expired
        (branch(1, PARENT, 8, 9, shown=1), ALONE, Fate.NEWEST),
        (branch(1, PARENT, FIRST_PART, OURS, 8), AFTER_A_PART, Fate.STAYS),
        (branch(1, PARENT, FIRST_PART, 8), AFTER_A_PART, Fate.ROLLED_BACK),
        (branch(1, PARENT, 8, 9), AFTER_A_PART, Fate.ROLLED_BACK),  # its writer had begun before: both parts are gone
        (branch(1, PARENT, 8, 9, shown=2), AFTER_A_PART, Fate.ROLLED_BACK),
        (branch(1, PARENT, FIRST_PART), AFTER_A_PART, Fate.NEWEST),  # older metadata
    ],
)
def test_a_commit_is_rolled_back_where_another_has_taken_its_place(
    history: Sequence[Snapshot], before: tuple[int, ...], fate: Fate
) -> None:
    assert fate_of(history, OURS, before) is fate


@given(
    before=st.integers(0, 3),
    parts=st.integers(0, 2),
    left=st.integers(0, 2),
    after=st.integers(0, 3),
    landed=st.booleans(),
    shown=st.integers(0, 8),
    stale=st.booleans(),
)
def test_no_commit_that_is_in_the_branch_is_taken_for_rolled_back(
    before: int, parts: int, left: int, after: int, landed: bool, shown: int, stale: bool
) -> None:
    """`parts`: of the run before this one, of which so many are `left`."""
    first = [PARENT, *range(150, 150 + parts)]
    line = [*range(100, 100 + before), *(first if landed else first[: 1 + left])]
    ids = line if stale else [*line, *([OURS] if landed else []), *range(200, 200 + after)]
    fate = fate_of(branch(*ids, shown=shown), OURS, first[::-1])
    whole = shown >= after + landed
    if landed or stale or not after:
        assert fate is not Fate.ROLLED_BACK
    if not stale and whole:
        expected = (Fate.STAYS if after else Fate.NEWEST) if landed else Fate.ROLLED_BACK if after else Fate.NEWEST
        assert fate is expected


def commits(*times: float, ours: Sequence[float] = ()) -> list[Snapshot]:
    made = [
        Snapshot(
            snapshot_id=int(at * 1000),
            timestamp_ms=int(at * 1000),
            manifest_list="none",
            summary=Summary(
                Operation.REPLACE if at in ours else Operation.APPEND, **({RUN_ID: "r"} if at in ours else {})
            ),
        )
        for at in (*times, *ours)
    ]
    return sorted(made, key=lambda each: -each.timestamp_ms)


def test_commits_beside_frequent_writers_are_watched() -> None:
    often = commits(100, 102.5, 105, 107.5)
    assert watch_seconds(often, 108) == ENDED * OFTEN
    assert watch_seconds(commits(100, 102.5, 105, ours=(106, 107)), 107) == ENDED * OFTEN, "our commits are no writers"
    assert watch_seconds(often, 107.5 + ENDED * OFTEN + 1) == 0, "they have stopped"
    assert watch_seconds(commits(100, 120, 140), 141) == 0, "they are rare"
    assert watch_seconds(commits(100), 101) == 0, "one commit is no rhythm"
    assert watch_seconds([], 101) == 0
    assert watch_seconds(commits(ours=(100, 101, 102)), 103) == 0
