"""Which events become which rows of the history, and which reasons are told again."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from compactor.events import (
    EqualityDeletesConverted,
    Event,
    GroupCommitted,
    GroupDropped,
    GroupPlan,
    GroupRewritten,
    LedgerUpdated,
    ManifestsRewritten,
    PartitionsSkipped,
    RunCommitted,
    RunFailed,
    RunSkipped,
    SkippedPartition,
)
from compactor.history.decisions import LONGEST_WHY, RECORDED, REPEAT_SECONDS, Decision, RepeatFilter, decisions_of
from compactor.partitions import PartitionKey
from compactor.table_names import TableName
from tests.unit.metrics.test_metrics_recorder import EXAMPLES

TABLE = TableName("lake", ("db",), "t")
KEY = PartitionKey(3, '["2024-01-15",7]')
PARTITION = {"day": "2024-01-15", "id_bucket": 7}
PLAN = GroupPlan(
    partition=PARTITION,
    why="6 small files, due from 5",
    strategy="tiered",
    snapshot_id=41,
    engine="splice",
    engine_reason="row_groups_copied",
    files=6,
    bytes=600,
    branch="audit",
)
REWRITTEN = GroupRewritten(
    run_id="r1",
    table=TABLE,
    key=KEY,
    engine="encode",
    reason="tiny_row_groups",
    files_in=6,
    files_out=1,
    bytes_in=600,
    bytes_out=500,
    rows_in=60,
    rows_deleted=2,
    rows_out=58,
    seconds=1.5,
    bytes_decoded=590,
    plan=PLAN,
)

DROPPED = GroupDropped("r1", TABLE, KEY, reason="conflict", reaction="replan", message="a delete came first", plan=PLAN)
FAILED = RunFailed(run_id="r1", table=TABLE, stage="commit", reason="conflict", reaction="replan", message="x")


def test_a_committed_group_is_done_with_all_its_figures() -> None:
    assert decisions_of(GroupCommitted(REWRITTEN, 42, 3), 1000.0) == [
        Decision(
            at=1000.0,
            table=TABLE,
            decision="done",
            reason="due",
            why="6 small files, due from 5",
            run_id="r1",
            spec_id=3,
            partition="day=2024-01-15, id_bucket=7",
            partition_json='{"day": "2024-01-15", "id_bucket": 7}',
            branch="audit",
            strategy="tiered",
            engine="encode",
            engine_reason="tiny_row_groups",
            files_in=6,
            files_out=1,
            bytes_in=600,
            bytes_out=500,
            bytes_decoded=590,
            rows_in=60,
            rows_deleted=2,
            rows_out=58,
            delete_files_removed=3,
            seconds=1.5,
            planned_snapshot_id=41,
            committed_snapshot_id=42,
        )
    ]


def test_a_dropped_group_says_what_was_planned_and_what_stood_against_it() -> None:
    (row,) = decisions_of(DROPPED, 5.0)
    assert (row.decision, row.reason, row.why, row.run_id) == ("dropped", "conflict", "a delete came first", "r1")
    assert (row.partition, row.spec_id, row.engine) == ("day=2024-01-15, id_bucket=7", 3, "splice")
    assert (row.files_in, row.bytes_in, row.files_out, row.planned_snapshot_id) == (6, 600, None, 41)
    assert row.committed_snapshot_id is None
    (row,) = decisions_of(replace(DROPPED, plan=replace(PLAN, partition={})), 0.0)
    assert (row.partition, row.partition_json) == ("(unpartitioned)", "{}")


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (FAILED, ("dropped", "conflict", "commit: x", "r1")),
        (replace(FAILED, run_id=""), ("skipped", "conflict", "x", None)),
        (
            replace(FAILED, message="x" * 100_000),
            ("dropped", "conflict", f"commit: {'x' * LONGEST_WHY}"[:LONGEST_WHY], "r1"),
        ),
        (RunSkipped(TABLE, "switched_off"), ("skipped", "switched_off", "", None)),
        (PartitionsSkipped(TABLE, 9, "not_acted_on"), ("skipped", "not_acted_on", "", None)),
        (
            ManifestsRewritten(run_id="r2", table=TABLE, before=120, after=3, seconds=1.5),
            ("done", "manifests", "120 manifests became 3", "r2"),
        ),
        (
            EqualityDeletesConverted("r3", TABLE, 12, delete_files=4, rows=90, files=7, bytes_read=4096, seconds=2.5),
            ("done", "equality_deletes", "4 equality delete files became positions of 90 rows", "r3"),
        ),
    ],
)
def test_a_decision_about_a_whole_table_names_no_partition(event: Event, told: tuple[str | None, ...]) -> None:
    (row,) = decisions_of(event, 5.0)
    assert (row.decision, row.reason, row.why, row.run_id) == told
    assert (row.at, row.table, row.partition, row.partition_json, row.spec_id) == (5.0, TABLE, None, None, None)


def test_each_partition_left_alone_is_a_row() -> None:
    skipped = tuple(
        SkippedPartition(PartitionKey(0, f"[{value}]"), {"p": value}, f"{value} small files", value, value * 10)
        for value in (1, 2)
    )
    rows = decisions_of(PartitionsSkipped(table=TABLE, snapshot_id=9, reason="not_due", partitions=skipped), 5.0)
    assert [(row.partition, row.why, row.files_in, row.bytes_in) for row in rows] == [
        ("p=1", "1 small files", 1, 10),
        ("p=2", "2 small files", 2, 20),
    ]
    assert {(row.decision, row.reason, row.planned_snapshot_id) for row in rows} == {("skipped", "not_due", 9)}


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_what_is_listed_as_telling_is_what_tells(event: Event) -> None:
    of_groups = isinstance(event, RunCommitted) and event.groups > 0  # each of them has told already
    assert bool(decisions_of(event, 0.0)) == (isinstance(event, RECORDED) and not of_groups)
    assert set(RECORDED) < set(get_args(Event))
    assert not isinstance(LedgerUpdated(TABLE, 1), RECORDED)


def skipped(
    why: str = "3 small files", at: float = 0.0, partition: str = '{"p": 1}', reason: str = "not_due"
) -> Decision:
    return Decision(at, TABLE, "skipped", reason, why, spec_id=0, partition_json=partition)


@pytest.mark.parametrize(
    "told",
    [
        [(0, 3, True), (REPEAT_SECONDS - 1, 4, False), (REPEAT_SECONDS, 5, True), (2 * REPEAT_SECONDS - 1, 5, False)],
        # the clock is set back
        [(9e9, 3, True), (9e9 - 1, 3, False), (50, 3, True), (50 + REPEAT_SECONDS - 1, 3, False)],
    ],
)
def test_the_same_reason_is_recorded_once_a_day_whatever_its_figures(told: list[tuple[float, int, bool]]) -> None:
    repeats = RepeatFilter()
    assert [repeats.is_new(skipped(f"{files} small files", at)) for at, files, _ in told] == [new for *_, new in told]


def test_another_reason_or_partition_is_news_and_going_back_and_forth_is_not() -> None:
    repeats = RepeatFilter()
    assert repeats.is_new(skipped())
    assert repeats.is_new(skipped(partition='{"p": 2}'))
    assert repeats.is_new(skipped("a commit less than 60 s ago"))
    assert repeats.is_new(skipped(reason="declined"))
    assert repeats.is_new(replace(skipped(), table=replace(TABLE, name="u")))
    assert repeats.is_new(replace(skipped(), spec_id=1))
    assert not any(repeats.is_new(again) for again in (skipped(), skipped("a commit less than 60 s ago")))


def test_what_was_done_or_dropped_is_always_news() -> None:
    repeats = RepeatFilter()
    for decision in ("done", "dropped"):
        assert all(repeats.is_new(replace(skipped(), decision=decision)) for _ in range(3))


def test_only_so_much_is_remembered_the_oldest_goes() -> None:
    repeats = RepeatFilter(most=2)
    for partition in "abc":
        assert repeats.is_new(skipped(partition=partition))
    assert not repeats.is_new(skipped(partition="c"))
    assert not repeats.is_new(skipped(partition="b"))
    assert repeats.is_new(skipped(partition="a"))
