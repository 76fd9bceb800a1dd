"""Equality deletes become vectors or position deletes; no data file changes. Rows as Spark reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compactor.errors import ReplanError
from compactor.iceberg.manifest_entries import Content
from compactor.manifests.cache import ManifestCache
from compactor.planning.inventory import take_inventory
from compactor.runs import convert as convert_module
from compactor.runs.convert import ConversionResult, Converter
from compactor.runs.run import RunTools
from compactor.runs.slots import SlotPool
from tests.conftest import Lake
from tests.integration.table_kit import MERGE_ON_READ, append, create, delete_equal, insert, unreferenced

pytestmark = pytest.mark.spark

BY_A = "PARTITIONED BY (a)"


def convert(lake: Lake, table: str, run_id: str = "run-of-test") -> ConversionResult:
    tools = RunTools(
        lake.session,
        lake.catalogs,
        ManifestCache(1 << 24),
        lake.in_flight(),
        slots=SlotPool(2),
        lease_seconds=60,
        check_seconds=60,
    )
    result = Converter(tools).convert(lake.view(table), run_id)
    assert unreferenced(lake, table) == set()
    assert run_id not in {record.run_id for record in lake.in_flight().all()}
    return result


def rows(lake: Lake, table: str, lineage: bool = False) -> list[Any]:
    more = ", _row_id, _last_updated_sequence_number" if lineage else ""
    return sorted(map(tuple, lake.sql(f"SELECT id, a, k{more} FROM lake.{table}")))


def deletes(lake: Lake, table: str) -> list[Content]:
    return sorted((each.content for each in take_inventory(lake.view(table), ManifestCache(1 << 24)).deletes), key=str)


@pytest.mark.parametrize("by", ["", BY_A])
@pytest.mark.parametrize("version", [2, 3])
def test_equality_deletes_become_positions(lake: Lake, table_name: str, version: int, by: str) -> None:
    create(lake, table_name, version, MERGE_ON_READ, by)
    insert(lake, table_name, 3)
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


def test_deletes_of_all_partitions_are_converted_in_each(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD a")
    insert(lake, table_name, 2)
    delete_equal(lake, table_name, "id", [4, 5])
    before = rows(lake, table_name)
    assert convert(lake, table_name).rows == 4
    assert rows(lake, table_name) == before
    assert deletes(lake, table_name) == [Content.POSITION_DELETES] * 4


def test_equality_deletes_that_apply_to_nothing_leave(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name)
    delete_equal(lake, table_name, "id", [77])
    assert convert(lake, table_name).rows == 0
    assert deletes(lake, table_name) == []


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, other: Callable[[], None]) -> None:
    """Let another writer in before the function `name` of the module is called for the first time."""
    real, waiting = getattr(convert_module, name), [other]

    def late(*arguments: Any, **more: Any) -> Any:
        while waiting:
            waiting.pop()()
        return real(*arguments, **more)

    monkeypatch.setattr(convert_module, name, late)


@pytest.mark.parametrize("moment", ["changes_since", "commit_replacements"])
@pytest.mark.parametrize("version", [2, 3])
def test_other_commits_meanwhile_are_respected(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int, moment: str
) -> None:
    create(lake, table_name, version, MERGE_ON_READ)
    insert(lake, table_name, 2)
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


@pytest.mark.parametrize("moment", ["changes_since", "commit_replacements"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_position_delete_of_the_same_files_meanwhile(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int, moment: str
) -> None:
    """V3 has one vector for each file: the conversion finds the other one the next time."""
    create(lake, table_name, version, MERGE_ON_READ)
    insert(lake, table_name, 2)
    delete_equal(lake, table_name, "id", [5])
    meanwhile(monkeypatch, moment, lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 7"))
    if version == 2:
        convert(lake, table_name)
    else:
        with pytest.raises(ReplanError):
            convert(lake, table_name)
        assert unreferenced(lake, table_name) == set()
        monkeypatch.undo()
        convert(lake, table_name, "next")
    assert sorted(row[0] for row in rows(lake, table_name)) == sorted([0, 1, 2, 3, 4, 6, 8, 9] * 2)
    assert Content.EQUALITY_DELETES not in deletes(lake, table_name)


def spark_rewrites(lake: Lake, table: str) -> None:
    """Spark's action gives its outputs the sequence number of its plan, and applies the deletes."""
    options = "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'false')"
    lake.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', {options})")


def test_a_rewrite_by_another_compactor_meanwhile_ends_the_conversion(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs have the sequence number of its plan, so the deletes still apply to them."""
    create(lake, table_name)
    insert(lake, table_name, 5)
    delete_equal(lake, table_name, "id", [5])
    before = rows(lake, table_name)
    meanwhile(monkeypatch, "changes_since", lambda: spark_rewrites(lake, table_name))
    convert(lake, table_name)
    assert rows(lake, table_name) == before
