"""Commits beside other writers: only groups that are really hit are left out, and covered delete files leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.commit.updates import ReplaceUpdate
from compactor.errors import GiveUpError
from compactor.locations import plain_path
from compactor.planning.plan_table import TablePlan
from compactor.runs.results import RunResult
from compactor.settings.tree import CommitSettings
from tests.conftest import Lake
from tests.correctness.stage import any_size_splices
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append_and_expire,
    append_rows,
    before_commit,
    before_first,
    conversion,
    create,
    delete_equal,
    hundreds,
    insert,
    java_table,
    of_three_files,
    planned,
    run,
    snapshots,
    unreferenced,
    upgrade,
)
from tests.slow import slow

pytestmark = pytest.mark.spark


def delete_files(lake: Lake, table: str) -> int:
    return len(lake.sql(f"SELECT file_path FROM lake.{table}.delete_files"))


@pytest.mark.parametrize("engine", ["auto", *slow("spark")])
def test_files_that_others_took_away_are_no_damage(lake: Lake, table_name: str, engine: str) -> None:
    """Another compactor has replaced them, its snapshots expired and the files were deleted, all while we planned."""
    create(lake, table_name, 2, "", BY_A, commits=3)
    plan = planned(lake, table_name, engine=engine)
    only = [group.file_group.files[0].entry.path for group in plan.groups if group.file_group.partition == {"a": "p1"}]
    every = "options => map('rewrite-all', 'true')"
    lake.sql(f"CALL lake.system.rewrite_data_files(table => '{table_name}', where => 'a = \"p1\"', {every})")
    Path(plain_path(only[0])).unlink()
    result = run(lake, plan)
    assert [group.planned.file_group.partition for group in result.groups] == [{"a": "p0"}]
    assert [(drop.planned.file_group.partition, drop.error.reason) for drop in result.dropped] == [
        ({"a": "p1"}, "conflict")
    ]
    assert "was removed from the table" in str(result.dropped[0].error)


DELETE, UPDATE = "DELETE FROM lake.{table} WHERE id = 5", "UPDATE lake.{table} SET k = 100 WHERE id = 5"
EARLY, LATE = "before the check", "after the check"


def let_in(
    lake: Lake, plan: TablePlan, moment: str, monkeypatch: pytest.MonkeyPatch, other: Callable[[], None]
) -> RunResult:
    """Run the plan; another writer commits before our check of the new manifests, or between it and our commit."""
    if moment == LATE:
        before_first(monkeypatch, ReplaceUpdate, "make", other)  # Iceberg has to notice
        return run(lake, plan)
    return run(lake, plan, enabled=before_commit(other))


@pytest.mark.parametrize("granularity", ["file", *slow("partition")])
@pytest.mark.parametrize(
    ("version", "statement", "moment", "engine"),
    [
        (2, DELETE, LATE, "auto"), (3, DELETE, EARLY, "encode"), (2, UPDATE, EARLY, "encode"),
        *slow((3, UPDATE, LATE, "auto"), (2, DELETE, EARLY, "auto")),
        *slow((3, DELETE, LATE, "encode"), (2, UPDATE, LATE, "auto")),
    ],
)  # fmt: skip
def test_deletes_that_arrive_meanwhile_follow_their_rows(
    lake: Lake,
    table_name: str,
    monkeypatch: pytest.MonkeyPatch,
    granularity: str,
    moment: str,
    version: int,
    statement: str,
    engine: str,
) -> None:
    create(lake, table_name, version, f"{MERGE_ON_READ}, 'write.delete.granularity'='{granularity}'", BY_A, commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 7")
    plan = planned(lake, table_name, engine=engine)
    result = let_in(lake, plan, moment, monkeypatch, lambda: lake.sql(statement.format(table=table_name)))
    assert not result.dropped
    assert [group.planned.file_group.partition for group in result.groups] == [{"a": "p0"}, {"a": "p1"}]
    expected = {number: number for number in range(10) if number != 7}
    if "UPDATE" in statement:
        expected[5] = 100
    else:
        del expected[5]
    expected_rows = sorted([*expected.items()] * 3)
    rows = f"SELECT id, k FROM lake.{table_name}"
    assert sorted((row.id, row.k) for row in lake.sql(rows)) == expected_rows
    assert unreferenced(lake, table_name) == set()
    snapshot = snapshots(lake, table_name)[-1]
    assert snapshot.operation == "replace"
    assert snapshot.summary["added-position-deletes"] == "3"
    stays = version == 2 and granularity == "partition"  # it may apply to more files
    assert delete_files(lake, table_name) == 1 + stays
    again = lake.compact(table_name, force=True, rewrite_all=True)
    assert sorted((row.id, row.k) for row in lake.sql(rows)) == expected_rows
    assert not again.dropped
    assert delete_files(lake, table_name) == 0


@pytest.mark.parametrize("granularity", ["file", *slow("partition")])
@pytest.mark.parametrize("version", [3, *slow(2)])
def test_few_deleted_rows_are_copied_and_deleted_in_the_output(
    lake: Lake, table_name: str, version: int, granularity: str
) -> None:
    """A run over some of the files of a delete file, a delete that arrives meanwhile, then a run over the outputs."""
    create(lake, table_name, version, f"{MERGE_ON_READ}, 'write.delete.granularity'='{granularity}'")
    hundreds(lake, table_name)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id % 100 = 7")
    columns = "id, k, _row_id, _last_updated_sequence_number" if version == 3 else "id, k"
    rows = f"SELECT {columns} FROM lake.{table_name}"
    before = sorted(map(tuple, lake.sql(rows)))
    plan = of_three_files(planned(lake, table_name))
    other = before_commit(lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 250 OR id = 550"))
    with any_size_splices():
        (group,) = run(lake, plan, enabled=other).groups
        assert (group.rewritten.engine, group.rewritten.reason) == ("splice", "deletes_carried")
        assert (group.rows_carried, group.rows_rebased, group.rewritten.rows_deleted) == (3, 1, 0)
        expected = [row for row in before if row[0] not in (250, 550)]
        assert sorted(map(tuple, lake.sql(rows))) == expected
        (group,) = lake.compact(table_name, force=True).groups
        assert (group.rows_carried, group.rows_rebased) == (8, 0)
    assert sorted(map(tuple, lake.sql(rows))) == expected
    assert len(lake.live_files(table_name)) == delete_files(lake, table_name) == 1
    assert snapshots(lake, table_name)[-1].summary["total-records"] == "600"
    assert lake.compact(table_name, force=True, rewrite_all=True).groups[0].rewritten.rows_deleted == 8
    assert sorted(map(tuple, lake.sql(rows))) == expected
    assert delete_files(lake, table_name) == 0


@pytest.mark.parametrize("meanwhile", ["delete", "convert"])
@pytest.mark.parametrize("version", [2, *slow(3)])
def test_few_rows_that_keys_delete_are_copied_and_deleted_in_the_output(
    lake: Lake, table_name: str, version: int, meanwhile: str
) -> None:
    """As by position. A vector that arrives knows nothing of the keys; a conversion takes their delete away."""
    create(lake, table_name, version, MERGE_ON_READ)
    hundreds(lake, table_name)
    delete_equal(lake, table_name, "id", [7, 8, 205, 250, 555])
    append_rows(lake, table_name, [(7, "p0", 7)])  # newer than the delete: it stays
    before = lake.rows(table_name)
    plan = of_three_files(planned(lake, table_name))
    others: dict[str, Callable[[], None]] = {
        "delete": lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 251 OR id = 550"),
        "convert": lambda: conversion(lake, table_name).convert(),
    }
    with any_size_splices():
        (group,) = run(lake, plan, enabled=before_commit(others[meanwhile])).groups
        assert (group.rewritten.engine, group.rewritten.reason) == ("splice", "deletes_carried")
        assert (group.rows_carried, group.rows_rebased) == (4, int(meanwhile == "delete"))
        expected = [row for row in before if meanwhile == "convert" or row[0] not in (251, 550)]
        assert lake.rows(table_name) == expected
        lake.compact(table_name, force=True)
    assert lake.rows(table_name) == expected
    assert len(lake.live_files(table_name)) == delete_files(lake, table_name) == 1
    lake.compact(table_name, force=True, rewrite_all=True)
    assert lake.rows(table_name) == expected
    assert delete_files(lake, table_name) == 0


def test_a_key_that_deletes_many_rows_is_applied_although_a_splice_was_planned(lake: Lake, table_name: str) -> None:
    create(lake, table_name, 2, MERGE_ON_READ)
    hundreds(lake, table_name)
    append_rows(lake, table_name, [(each, "p1", each) for each in range(1000, 1100)])
    delete_equal(lake, table_name, "a", ["p1"])
    rows, plan = lake.rows(table_name), planned(lake, table_name)
    assert [group.engine.reason for group in plan.groups] == ["deletes_carried"]
    with any_size_splices():
        (group,) = run(lake, plan).groups
    assert (group.rewritten.engine, group.rewritten.reason) == ("encode", "too_many_deletes")
    assert (group.rows_carried, group.rewritten.rows_deleted) == (0, 100)
    assert lake.rows(table_name) == rows
    assert delete_files(lake, table_name) == 0


def test_deletes_are_carried_beside_delete_files_of_an_older_format(lake: Lake, table_name: str) -> None:
    """The delete file covers files that stay: it is not touched, and the output gets a vector of its own."""
    create(lake, table_name, 2, f"{MERGE_ON_READ}, 'write.delete.granularity'='partition'")
    hundreds(lake, table_name)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id % 100 = 7")
    upgrade(lake, table_name)
    append_rows(lake, table_name, [(777, "p0", 0)])
    columns = "id, k, _row_id, _last_updated_sequence_number"
    rows, plan = lake.rows(table_name, columns), of_three_files(planned(lake, table_name))
    other = before_commit(lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 250 OR id = 550"))
    with any_size_splices():
        (group,) = run(lake, plan, enabled=other).groups
        assert (group.rewritten.engine, group.rows_carried, group.rows_rebased) == ("splice", 3, 1)
        expected = [row for row in rows if row[0] not in (250, 550)]
        assert lake.rows(table_name, columns) == expected
        lake.compact(table_name, force=True)
    assert lake.rows(table_name, columns) == expected
    assert len(lake.live_files(table_name)) == delete_files(lake, table_name) == 1


@pytest.mark.parametrize("moment", [EARLY, LATE])
def test_a_delete_file_that_stays_is_not_touched(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Iceberg's commit adds delete files only if it removes some. Here none leaves."""
    create(lake, table_name, 2, f"{MERGE_ON_READ}, 'write.delete.granularity'='partition'", BY_A, commits=3)
    files = f"SELECT file_path, record_count, readable_metrics FROM lake.{table_name}.delete_files"
    plan, before = planned(lake, table_name), list[Any]()

    def other() -> None:
        lake.sql(DELETE.format(table=table_name))
        before.extend(lake.sql(files))

    assert not let_in(lake, plan, moment, monkeypatch, other).dropped
    assert before[0] in lake.sql(files)
    summary = snapshots(lake, table_name)[-1].summary
    assert (summary.get("added-delete-files"), summary.get("removed-delete-files")) == ("1", None)
    ids = sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}"))
    assert ids == sorted([number for number in range(10) if number != 5] * 3)


def test_a_copy_on_write_commit_costs_the_group_whose_file_it_replaced(lake: Lake, table_name: str) -> None:
    """Iceberg refuses a `replace` snapshot with more rows than it replaces: those of the output cannot be deleted."""
    create(lake, table_name, 2, "", BY_A, commits=3)
    plan, before = planned(lake, table_name), lake.rows(table_name)
    result = run(lake, plan, enabled=before_commit(lambda: lake.sql(UPDATE.format(table=table_name))))
    assert [drop.planned.file_group.partition for drop in result.dropped] == [{"a": "p1"}]
    assert "was removed from the table" in str(result.dropped[0].error)
    assert lake.rows(table_name) == sorted((*row[:2], 100) if row[0] == 5 else row for row in before)
    assert unreferenced(lake, table_name) == set()


def test_deletes_cannot_follow_rows_that_spark_wrote(lake: Lake, table_name: str) -> None:
    """Their order is unknown: the group that was hit is left out, the other one is committed."""
    create(lake, table_name, 2, MERGE_ON_READ, BY_A, commits=3)
    plan = planned(lake, table_name, engine="spark")
    result = run(lake, plan, enabled=before_commit(lambda: lake.sql(DELETE.format(table=table_name))))
    assert [group.planned.file_group.partition for group in result.groups] == [{"a": "p0"}]
    assert [(drop.planned.file_group.partition, drop.error.reason) for drop in result.dropped] == [
        ({"a": "p1"}, "conflict")
    ]
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted(
        [number for number in range(10) if number != 5] * 3
    )
    assert unreferenced(lake, table_name) == set()


def test_schema_and_spec_changes_meanwhile_cost_nothing(lake: Lake, table_name: str) -> None:
    create(lake, table_name, by=BY_A, commits=3)
    plan = planned(lake, table_name)

    def other() -> None:
        lake.sql(f"ALTER TABLE lake.{table_name} RENAME COLUMN k TO kk")
        lake.sql(f"ALTER TABLE lake.{table_name} ADD COLUMN n int FIRST")
        lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD bucket(2, id)")
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 77, 'p0', 77)")

    result = run(lake, plan, enabled=before_commit(other))
    assert not result.dropped
    found = sorted((row.n or 0, row.id, row.a, row.kk) for row in lake.sql(f"SELECT * FROM lake.{table_name}"))
    assert found == sorted([(0, number, f"p{number % 2}", number) for number in range(10)] * 3 + [(1, 77, "p0", 77)])
    assert len(lake.live_files(table_name)) == 3


# --- delete files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "granularity"),
    [("auto", "partition"), ("spark", "file"), *slow(("auto", "file"), ("spark", "partition"))],
)
def test_position_deletes_leave_with_the_last_file_they_cover(
    lake: Lake, table_name: str, granularity: str, engine: str
) -> None:
    create(lake, table_name, 2, f"{MERGE_ON_READ}, 'write.delete.granularity'='{granularity}'", BY_A, commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (4, 5)")
    rows = lake.rows(table_name)
    assert delete_files(lake, table_name) == (6 if granularity == "file" else 2)
    first = lake.compact(table_name, force=True, engine=engine, where="a = 'p0'")
    assert first.delete_files_removed == (3 if granularity == "file" else 1)
    second = lake.compact(table_name, force=True, engine=engine)
    assert delete_files(lake, table_name) == 0
    assert second.delete_files_removed == first.delete_files_removed
    assert lake.rows(table_name) == rows
    summary = snapshots(lake, table_name)[-1].summary
    assert summary["total-delete-files"] == "0"
    assert summary["total-position-deletes"] == "0"
    assert unreferenced(lake, table_name) == set()


def test_a_global_equality_delete_stays_until_every_older_file_is_rewritten(lake: Lake, table_name: str) -> None:
    """Iceberg's RemoveDanglingDeletes looks at the delete's own partition, where nothing is older, and drops it."""
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD a")
    insert(lake, table_name, 3)
    delete_equal(lake, table_name, "id", [4, 5])
    insert(lake, table_name)
    rows = lake.rows(table_name)
    assert len(rows) == 34
    lake.compact(table_name, force=True, where="a = 'p0'")
    assert delete_files(lake, table_name) == 1
    assert lake.rows(table_name) == rows
    lake.compact(table_name, force=True, where="a = 'p1'")
    assert delete_files(lake, table_name) == 0
    assert lake.rows(table_name) == rows


@pytest.mark.parametrize("moment", [EARLY, LATE])
@pytest.mark.parametrize("by", [*slow(""), BY_A])
@pytest.mark.parametrize("version", [*slow(2), 3])
def test_an_equality_delete_that_arrives_meanwhile_is_not_dropped_by_our_commit(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, moment: str, by: str, version: int
) -> None:
    """Iceberg drops deletes older than every data file it sees; it does not see the outputs (apache/iceberg 10312)."""
    create(lake, table_name, version, by=by, commits=3)
    plan = planned(lake, table_name)

    def other() -> None:
        delete_equal(lake, table_name, "id", [5], partition=["p1"] if by else ())
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (5, 'p1', 77)")  # newer than the delete: stays

    result = let_in(lake, plan, moment, monkeypatch, other)
    assert not result.dropped
    expected = sorted([*(number for number in range(10) if number != 5)] * 3 + [5])
    ids = f"SELECT id FROM lake.{table_name}"
    assert sorted(row.id for row in lake.sql(ids)) == expected
    append_and_expire(lake, table_name)
    assert sorted(row.id for row in lake.sql(ids)) == [*expected, 77]
    lake.compact(table_name, force=True)
    assert sorted(row.id for row in lake.sql(ids)) == [*expected, 77]
    if not by:  # a single file with a few deletes is not due
        assert delete_files(lake, table_name) == 0
        assert snapshots(lake, table_name)[-1].summary["total-equality-deletes"] == "0"


def test_deletes_stay_when_an_earlier_part_of_the_run_was_rolled_back(lake: Lake, table_name: str) -> None:
    """What part one has rewritten does not count for part two: its inputs may be live again."""
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD a")
    insert(lake, table_name, 3)
    delete_equal(lake, table_name, "id", [4, 5])
    rows, plan = lake.rows(table_name), planned(lake, table_name)
    calls: list[None] = []

    def enabled() -> bool:
        calls.append(None)
        return meanwhile_of(len(calls), lake, table_name, plan)

    run(lake, plan, commit=CommitSettings(groups=1), enabled=enabled)
    assert lake.rows(table_name) == rows
    lake.compact(table_name, force=True)
    assert lake.rows(table_name) == rows


def meanwhile_of(call: int, lake: Lake, table: str, plan: TablePlan) -> bool:
    """Before the second commit: back to the planned snapshot, as Apache Polaris does for a writer."""
    if call == 2:
        java_table(lake, table).manageSnapshots().rollbackTo(plan.snapshot_id).commit()
    return True


def test_a_commit_that_may_fail_costs_its_file_groups_alone(lake: Lake, table_name: str) -> None:
    """`partial-progress.max-failed-commits`: the run goes on, and the next one does the rest."""
    create(lake, table_name, 3, MERGE_ON_READ, BY_A, commits=3)
    rows, plan = lake.rows(table_name), planned(lake, table_name)
    assert len(plan.groups) > 1

    def refused_once() -> Callable[[], bool]:
        waiting: Iterator[None] = iter([None])

        def enabled() -> bool:
            for _ in waiting:
                raise GiveUpError("the catalog refuses this commit")
            return True

        return enabled

    with pytest.raises(GiveUpError, match="refuses this commit"):
        run(lake, plan, commit=CommitSettings(groups=1), enabled=refused_once())
    done = run(lake, plan, commit=CommitSettings(groups=1, max_failed_commits=1), enabled=refused_once())
    assert (done.commits, len(done.dropped)) == (len(plan.groups) - 1, 1)
    assert lake.rows(table_name) == rows
    assert len(planned(lake, table_name).groups) == 1


@pytest.mark.parametrize("groups", [1, 1000])
def test_files_whose_deletion_vectors_share_a_puffin_file_are_told_apart(
    lake: Lake, table_name: str, groups: int
) -> None:
    create(lake, table_name, 3, MERGE_ON_READ, BY_A, commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (4, 5)")
    deletes = lake.sql(f"SELECT DISTINCT file_path FROM lake.{table_name}.delete_files")
    assert len(deletes) < delete_files(lake, table_name)
    plan, rows = planned(lake, table_name), lake.rows(table_name)
    if groups == 1:
        assert run(lake, plan, commit=CommitSettings(groups=1)).dropped == ()
        assert lake.rows(table_name) == rows
        return

    def other() -> None:
        lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 7")

    assert not run(lake, plan, enabled=before_commit(other)).dropped
    assert lake.rows(table_name) == [row for row in rows if row[0] != 7]


def test_a_file_that_is_listed_twice_is_left_alone(lake: Lake, table_name: str) -> None:
    """Readers see its rows twice; a commit that removes it removes both."""
    create(lake, table_name, by=BY_A, commits=3)
    loaded = java_table(lake, table_name)
    tasks = loaded.newScan().planFiles().iterator()
    file = tasks.next().file()
    loaded.newAppend().appendFile(file).commit()
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    rows = lake.rows(table_name)
    assert len(rows) == 35
    result = lake.compact(table_name, force=True)
    assert lake.rows(table_name) == rows
    assert len(result.groups) == 1
