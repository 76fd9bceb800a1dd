"""The debt board: what a plan has declined is not due until its counts change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, Remainder, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.partitions import PartitionKey
from compactor.patience.holds import Holds, What
from compactor.table_names import TableName

TABLE = TableName("lake", ("db",), "events")
FIRST, SECOND = PartitionKey(0, "[1]"), PartitionKey(0, "[2]")


def debt(snapshot_id: int = 1, delete_files: int = 1) -> TableDebt:
    counts = PartitionCounts(data_files=9, delete_files=delete_files, records=900, deleted_records=40)
    partitions = {key: PartitionDebt(key, {}, None, counts, due=True, why="maybe") for key in (FIRST, SECOND)}
    return TableDebt(TABLE, snapshot_id, partitions, acted_on=True, due_since=5.0)


def seen(board: DebtBoard) -> TableDebt:
    found = board.get(TABLE)
    assert found is not None
    return found


def due(board: DebtBoard) -> set[PartitionKey]:
    return {partition.key for partition in seen(board).due}


def declined(*left: PartitionKey, made: TableDebt | None = None) -> DebtBoard:
    """A board on which plans, one after the other, have left these partitions alone."""
    board = DebtBoard()
    board.put(made or debt())
    for key in left:
        board.decline(made or debt(), {key: "no file has many deletes"})
    return board


IDLE = replace(debt(), partitions={key: replace(partition, why="idle") for key, partition in debt().partitions.items()})


@pytest.mark.parametrize(
    ("later", "still_due"),
    [
        (debt(snapshot_id=2), {SECOND}),
        (debt(snapshot_id=3, delete_files=2), {FIRST, SECOND}),  # other counts
        (IDLE, {FIRST, SECOND}),  # another reason
        (replace(debt(), basis="where: none"), {FIRST, SECOND}),  # e.g. after a reload of the settings
    ],
    ids=["same", "counts", "reason", "basis"],
)
def test_a_declined_partition_is_not_due_until_something_changes(
    later: TableDebt, still_due: set[PartitionKey]
) -> None:
    board = declined(FIRST)
    assert due(board) == {SECOND}
    assert seen(board).partitions[FIRST].why == "no file has many deletes"
    board.put(later)
    assert due(board) == still_due


def test_a_table_with_nothing_else_due_is_no_longer_due() -> None:
    found = seen(declined(FIRST, SECOND))
    assert (found.due, found.due_since) == ((), None)


def test_a_partition_that_was_declined_for_a_time_is_due_after_it() -> None:
    now = 0.0
    board = DebtBoard(Holds(lambda: now))
    board.put(debt())
    board.decline(debt(), {FIRST: "a page is damaged"}, until=100.0)
    board.decline(debt(), {SECOND: "left"}, selected={SECOND})
    now = 99.9
    board.put(debt(snapshot_id=2))
    assert due(board) == set()
    now = 100.0
    assert {*board.holds.of(What.PARTITION, TABLE)} == {SECOND}
    board.put(debt(snapshot_id=3))
    assert due(board) == {FIRST}


def test_a_decision_on_old_counts_does_not_hold_for_new_ones() -> None:
    board = DebtBoard()
    board.put(debt(snapshot_id=2, delete_files=3))
    board.decline(debt(), {FIRST: "left"})
    assert due(board) == {FIRST, SECOND}


def test_what_an_earlier_plan_declined_stays_so_unless_the_next_one_selects_it() -> None:
    """A plan says nothing of a partition outside of its filter that is not due: what is known of it holds."""
    board = declined(FIRST, SECOND)
    board.decline(seen(board), {FIRST: "left"})
    board.put(debt(snapshot_id=2))
    assert due(board) == set()
    board.decline(debt(), {}, selected={FIRST})
    board.put(debt(snapshot_id=3))
    assert due(board) == {FIRST}


def test_a_dropped_table_is_forgotten_whole() -> None:
    board = declined(FIRST)
    board.forget(TABLE)
    board.put(debt())
    assert due(board) == {FIRST, SECOND}


def test_a_request_stays_until_it_is_served_and_asking_twice_is_asking_once() -> None:
    board = DebtBoard()
    board.request(TABLE, ["", "id = 1"])
    board.put(debt())
    board.request(TABLE, ["id = 1"])
    assert seen(board).requested == ("", "id = 1")
    board.finish_request(TABLE, "")
    board.put(debt(2))
    assert seen(board).requested == ("id = 1",)
    board.finish_request(TABLE, "id = 1")
    assert seen(board).requested == ()


def names(board: DebtBoard) -> list[str]:
    return [debt.table.name for debt in board.with_work()]


def test_tables_with_work_are_those_that_may_be_rewritten_and_are_due_or_requested() -> None:
    board, idle = DebtBoard(), replace(debt(), partitions={})
    manifests, asked, stale = (TableName("lake", ("db",), name) for name in ("manifests", "asked", "a_stale"))
    board.put(idle)
    board.put(replace(idle, table=manifests, manifests=ManifestCounts(100, 100, due_specs=(0,), why="many")))
    board.put(replace(idle, table=asked))
    board.put(replace(debt(), table=TableName("lake", ("db",), "observed"), acted_on=False))
    board.mark_stale(stale, "no answer")
    assert names(board) == ["manifests"]
    board.put(debt())
    board.request(asked, [""])
    assert names(board) == ["asked", "events", "manifests"]
    board.mark_stale(TABLE, "no answer")
    board.decline(debt(), {FIRST: "left", SECOND: "left"})
    board.finish_request(asked, "")
    assert names(board) == ["manifests"]
    board.forget(manifests)
    assert names(board) == []


def test_a_request_before_the_first_count_is_work_once_the_table_is_counted() -> None:
    board = DebtBoard()
    board.request(TABLE, ["id = 1"])
    assert (names(board), board.known()) == ([], (TABLE,))
    board.put(replace(debt(), partitions={}))
    assert names(board) == ["events"]
    board.drop_requests(TABLE)
    assert names(board) == []


def test_a_table_that_is_not_acted_on_any_more_loses_all_its_requests_and_they_are_saved() -> None:
    board, saved = DebtBoard(), list[object]()
    board.restore_requests({TABLE: ("a = 1", "")}, lambda requests: not saved.append(dict(requests)))
    board.drop_requests(TABLE)
    board.drop_requests(TABLE)
    assert (board.requests(TABLE), saved) == ((), []), "a flood of names that are looked at would save for each"
    board.save_requests()
    board.save_requests()
    assert saved == [{}]


def test_requests_of_many_tables_are_saved_once_and_all_at_once() -> None:
    board, saved = DebtBoard(), list[object]()
    board.restore_requests({}, lambda requests: not saved.append(dict(requests)))
    others = {TableName("lake", ("db",), f"t{number}"): ("", "id = 1") for number in range(100)}
    board.request_all(others)
    board.request_all(others)
    assert board.pending() == others
    assert saved == [others]
    board.request_all({})
    assert len(saved) == 1


def test_sums_count_partitions_that_have_no_object() -> None:
    known = replace(debt(), others=Remainder(7, 70, 700, 3, 30, 300))
    assert (known.due_partitions, known.due_files, known.due_bytes) == (2 + 3, 30, 300)
    assert known.has_work
