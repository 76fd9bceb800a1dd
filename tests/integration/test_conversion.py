"""Equality deletes become vectors or position deletes; no data file changes. Rows as Spark reads them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactor.commit import updates as updates_module
from compactor.commit.updates import ReplaceUpdate
from compactor.errors import GiveUpError, ReplanError
from compactor.iceberg.manifest_entries import Content
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.budget import Charge, Spent, uncharged
from compactor.planning.conversion import plan_conversion
from compactor.planning.inventory import take_inventory
from compactor.runs import convert as convert_module
from compactor.runs.committing import CommitLoop
from compactor.runs.convert import ConversionResult
from compactor.settings.tree import Settings
from streaming.ledger.table_record import Lane
from tests.conftest import Lake
from tests.integration.replayed_table import FollowedTable
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append,
    before_first,
    conversion,
    create,
    delete_equal,
    insert,
    java_table,
    planned,
    run,
    unreferenced,
)
from tests.slow import slow

pytestmark = pytest.mark.spark
Moment = tuple[Any, str]
BEFORE, AFTER = (CommitLoop, "_prepare"), (ReplaceUpdate, "make")  # the check of what others committed
AT_LAST = (updates_module, "_rewrite_files")  # right before Iceberg reads the head for which it makes the snapshot


def convert(lake: Lake, table: str, charge: Charge = uncharged) -> ConversionResult:
    result = convert_beside_others(lake, table, charge)
    assert unreferenced(lake, table) == set()
    return result


def convert_beside_others(lake: Lake, table: str, charge: Charge = uncharged) -> ConversionResult:
    result = conversion(lake, table, charge=charge).convert()
    assert result.run_id not in {record.run_id for record in lake.in_flight().all()}
    return result


def rows(lake: Lake, table: str, lineage: bool = False) -> list[Any]:
    more = ", _row_id, _last_updated_sequence_number" if lineage else ""
    return sorted(map(tuple, lake.sql(f"SELECT id, a, k{more} FROM lake.{table}")))


def deletes(lake: Lake, table: str) -> list[Content]:
    return sorted((each.content for each in take_inventory(lake.view(table), ManifestCache(1 << 24)).deletes), key=str)


@pytest.mark.parametrize(("version", "by"), [(2, BY_A), (3, ""), *slow((2, ""), (3, BY_A))])
def test_equality_deletes_become_positions(lake: Lake, table_name: str, version: int, by: str) -> None:
    create(lake, table_name, version, MERGE_ON_READ, by, commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 3")
    delete_equal(lake, table_name, "id", [3, 5, 99], partition=["p1"] if by else ())
    insert(lake, table_name)  # newer than the delete: its rows stay
    before, files = rows(lake, table_name, version == 3), lake.live_files(table_name)
    result = convert(lake, table_name)
    assert (result.deletes_removed, result.deletes_left, result.rows) == (1, 0, 3)
    assert (result.files_hit, result.files_searched) == (3, 3)
    assert rows(lake, table_name, version == 3) == before
    assert lake.live_files(table_name) == files
    assert Content.EQUALITY_DELETES not in deletes(lake, table_name)
    snapshot = lake.sql(f"SELECT operation, summary FROM lake.{table_name}.snapshots ORDER BY committed_at")[-1]
    assert snapshot.operation == "replace"
    assert "added-data-files" not in snapshot.summary
    assert len(lake.catalog.load_table(lake.name(table_name).identifier).scan().to_arrow()) == len(before)  # PyIceberg
    assert convert(lake, table_name).snapshot_after is None
    lake.compact(table_name, force=True, rewrite_all=True)
    assert [row[:3] for row in rows(lake, table_name)] == [row[:3] for row in before]
    assert deletes(lake, table_name) == []


def test_equality_deletes_that_apply_to_nothing_leave(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=1)
    delete_equal(lake, table_name, "id", [77])
    assert convert(lake, table_name).rows == 0
    assert deletes(lake, table_name) == []


def test_statistics_are_found_after_a_conversion(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ, commits=1)
    delete_equal(lake, table_name, "id", [5])
    lake.sql(f"CALL lake.system.compute_table_stats(table => '{table_name}')")
    (known,) = lake.view(table_name).metadata.statistics
    converted = convert(lake, table_name).snapshot_after
    found = {file.snapshot_id: file for file in lake.view(table_name).metadata.statistics}
    assert found.keys() == {known.snapshot_id, converted}
    assert found[converted].statistics_path == known.statistics_path


def meanwhile(monkeypatch: pytest.MonkeyPatch, moment: Moment, other: Callable[[], object]) -> None:
    """Let another writer in at the first such moment."""
    before_first(monkeypatch, *moment, other)


def test_a_search_that_fails_costs_no_other(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ, by=BY_A, commits=1)
    for value, partition in ((4, "p0"), (5, "p1")):
        delete_equal(lake, table_name, "id", [value], partition=[partition])
    searched = plan_conversion(take_inventory(lake.view(table_name), ManifestCache(1 << 24))).files
    (missing,) = [plain_path(file.entry.path) for file in searched if "a=p0" in file.entry.path]
    Path(missing).unlink()
    result = convert(lake, table_name)
    assert (result.deletes_removed, result.deletes_left, result.rows) == (1, 1, 1)
    assert "does not exist any more" in result.why
    assert sorted(deletes(lake, table_name), key=str) == [Content.EQUALITY_DELETES, Content.POSITION_DELETES]


def test_a_search_whose_job_dies_is_charged_what_it_may_have_read(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, table_name, properties=MERGE_ON_READ, commits=1)
    delete_equal(lake, table_name, "id", [5])

    def dies(_task: Any) -> None:
        raise OSError("the worker is gone")

    monkeypatch.setattr(convert_module, "attempt_search", dies)
    costs: list[Spent] = []
    with pytest.raises(GiveUpError, match="searching deleted rows of"):
        convert(lake, table_name, charge=costs.append)
    assert [(cost.requests > 0, cost.bytes > 0, cost.commits) for cost in costs] == [(True, True, 0)] * 2, "tried twice"


@pytest.mark.parametrize(
    ("version", "moment"),
    [
        (2, BEFORE),
        (3, AFTER),
        *slow((2, AFTER), (3, BEFORE)),
    ],
)
def test_other_commits_meanwhile_are_respected(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int, moment: Moment
) -> None:
    create(lake, table_name, version, MERGE_ON_READ, commits=2)
    delete_equal(lake, table_name, "id", [5])

    def other() -> None:
        append(lake, table_name)
        delete_equal(lake, table_name, "id", [6])
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (5, 'p1', 77)")

    meanwhile(monkeypatch, moment, other)
    assert convert(lake, table_name).rows == 2
    left = [0, 1, 2, 3, 4, 7, 8, 9]
    assert [row[0] for row in rows(lake, table_name)] == sorted([*left * 2, 5, 77])
    assert deletes(lake, table_name).count(Content.EQUALITY_DELETES) == 1


@pytest.mark.parametrize("version", [3, *slow(2)])
def test_a_rewrite_follows_the_deletes_that_a_conversion_moves_meanwhile(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Iceberg does not validate against deletes of a `replace`: the vectors would leave, and the row come back."""
    create(lake, table_name, version, MERGE_ON_READ, commits=3)
    plan = planned(lake, table_name)
    delete_equal(lake, table_name, "id", [5])
    converted: list[int] = []
    meanwhile(monkeypatch, AFTER, lambda: converted.append(convert_beside_others(lake, table_name).rows))
    result = run(lake, plan)
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert [row[0] for row in rows(lake, table_name)] == sorted([0, 1, 2, 3, 4, 6, 7, 8, 9] * 3)
    assert (converted, [group.rows_rebased for group in result.groups]) == ([3], [3])
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize(
    ("version", "moment", "known"),
    [
        (3, BEFORE, True),
        (2, AFTER, False),
        *slow((3, AFTER, True), (3, AT_LAST, False), (3, BEFORE, False), (3, AFTER, False), (2, BEFORE, True)),
    ],
)
def test_a_position_delete_of_the_same_files_meanwhile(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int, moment: Moment, known: bool
) -> None:
    """V3 has one vector for each file: the new one holds the rows of both."""
    create(lake, table_name, version, MERGE_ON_READ, commits=2)
    if known:
        lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 2")
    delete_equal(lake, table_name, "id", [5])
    meanwhile(monkeypatch, moment, lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 7"))
    convert(lake, table_name)
    left = [0, 1, 2, 3, 4, 6, 8, 9]
    assert sorted(row[0] for row in rows(lake, table_name)) == sorted(
        [each for each in left if each != 2 or not known] * 2
    )
    assert Content.EQUALITY_DELETES not in deletes(lake, table_name)


def commit_again(lake: Lake, table: str) -> None:
    """Commit a data file and its equality delete once more, as a writer that was restarted (apache/iceberg 16008)."""
    loaded = java_table(lake, table)
    task = loaded.newScan().planFiles().iterator().next()
    loaded.newRowDelta().addRows(task.file()).addDeletes(task.deletes().get(0)).commit()


@pytest.mark.slow
@pytest.mark.parametrize(("version", "moment"), [(2, BEFORE), (3, AFTER), *slow((3, BEFORE), (2, AFTER), (3, AT_LAST))])
def test_what_a_writer_commits_once_more_stays(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int, moment: Moment
) -> None:
    """The delete applies to the older entry of the data file alone; positions would delete the rows of both."""
    create(lake, table_name, version, MERGE_ON_READ, commits=2)
    delete_equal(lake, table_name, "id", [5])
    expected = sorted([0, 1, 2, 3, 4, 6, 7, 8, 9] * 2 + list(range(10)))
    with monkeypatch.context() as patched:
        meanwhile(patched, moment, lambda: commit_again(lake, table_name))
        with pytest.raises(ReplanError, match="was added once more"):
            convert_beside_others(lake, table_name)
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert [row[0] for row in rows(lake, table_name)] == expected
    result = convert(lake, table_name)
    assert (result.deletes_removed, result.deletes_left, result.snapshot_after) == (0, 1, None)
    assert "is listed twice" in result.why
    assert [row[0] for row in rows(lake, table_name)] == expected


def test_the_service_converts_from_a_number_of_delete_files(lake: Lake, table_name: str) -> None:
    """Four are left alone; the fifth makes the table due: one commit, no data file rewritten, then nothing is due."""
    create(lake, table_name, properties=f"{MERGE_ON_READ}, 'firnline.policy.convert_equality_deletes'='5'", commits=2)
    settings = Settings.model_validate({"catalogs": {"lake": {}}, "tables": {"include": ["*"]}})
    service = FollowedTable(lake, table_name, settings, time.time())
    for key in range(5):
        delete_equal(lake, table_name, "id", [key])
        files, snapshots = lake.live_files(table_name), len(lake.view(table_name).metadata.snapshots)
        service.look(Lane.EVENT)
        if key < 4:
            assert len(lake.view(table_name).metadata.snapshots) == snapshots
    assert lake.live_files(table_name) == files
    assert len(lake.view(table_name).metadata.snapshots) == snapshots + 1
    assert Content.EQUALITY_DELETES not in deletes(lake, table_name)
    (converted,) = service.conversions
    assert (converted.delete_files, converted.rows) == (5, 10)
    service.look(Lane.EVENT)
    assert len(lake.view(table_name).metadata.snapshots) == snapshots + 1
    assert sorted(row[0] for row in rows(lake, table_name)) == sorted([5, 6, 7, 8, 9] * 2)


@pytest.mark.slow
def test_deletes_that_nobody_can_compare_stay_and_the_others_are_converted(lake: Lake, table_name: str) -> None:
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id INT, a STRING, k DOUBLE) USING iceberg "
        f"TBLPROPERTIES ('format-version'='2', {MERGE_ON_READ})"
    )
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 'a', 0.5), (2, 'b', 1.5), (3, 'c', 2.5)")
    delete_equal(lake, table_name, "id", [1])
    delete_equal(lake, table_name, "k", [1.5])
    result = convert(lake, table_name)
    assert (result.deletes_removed, result.deletes_left, result.rows) == (1, 1, 1)
    assert "column k of type double" in result.why
    assert [row[0] for row in rows(lake, table_name)] == [3]
    assert deletes(lake, table_name).count(Content.EQUALITY_DELETES) == 1


def dropped_column(lake: Lake, table: str) -> int:
    """One delete of the old spec applies to a file, one to nothing, as an upsert writer's first one."""
    create(lake, table, properties=MERGE_ON_READ, by=BY_A, commits=1)
    delete_equal(lake, table, "id", [3], partition=["p1"])
    delete_equal(lake, table, "id", [77], partition=["p9"])
    for change in ("DROP PARTITION FIELD a", "ADD PARTITION FIELD k", "DROP COLUMN a"):
        lake.sql(f"ALTER TABLE lake.{table} {change}")
    lake.sql(f"INSERT INTO lake.{table} VALUES (20, 2), (21, 2)")
    return 2


def test_deletes_of_partitions_that_a_commit_cannot_name_stay_and_the_others_are_converted(
    lake: Lake, table_name: str
) -> None:
    stay = dropped_column(lake, table_name)
    spec = max(lake.view(table_name).metadata.partition_specs, key=lambda each: each.spec_id)
    delete_equal(lake, table_name, "id", [21], spec_id=spec.spec_id, partition=[2])
    before = lake.rows(table_name, "id")
    result = convert(lake, table_name)
    assert (result.deletes_removed, result.deletes_left, result.rows) == (1, stay, 1)
    assert "partition field a lost its column" in result.why
    assert lake.rows(table_name, "id") == before
    assert deletes(lake, table_name).count(Content.EQUALITY_DELETES) == stay
