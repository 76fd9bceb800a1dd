"""`compact` on files of every schema, format, layout, name and type; its outputs, and the check of their rows."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.errors import GiveUpError, InputError
from compactor.rewrite.tasks import runner, spark_scan, spark_tasks
from compactor.rewrite.tasks.output_task import run_task
from tests.conftest import Lake
from tests.integration.compact_check import (
    COMPARED,
    COPIED,
    NO_EQUALITY_DELETES,
    REQUESTED,
    WITH_SPARK_SLOW,
    compact_and_check,
)
from tests.integration.table_kit import (
    MERGE_ON_READ,
    create,
    data_files,
    delete_equal,
    engines,
    insert,
    planned,
    records_of,
    run,
    unreferenced,
)
from tests.slow import slow

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("tiny_files_spliced")]


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_files_without_field_ids_are_never_spliced(lake: Lake, table_name: str, tmp_path: Path) -> None:
    """PyIceberg's and Spark's `add_files`: the name mapping tells the columns, the folder the partition."""
    name = lake.name(table_name)
    schema = pa.schema([("id", pa.int64()), ("a", pa.string())])
    lake.catalog.create_table(name.identifier, schema)
    for number in range(3):
        pq.write_table(pa.table({"id": [number], "a": ["x"]}, schema=schema), tmp_path / f"{number}.parquet")
    paths = [f"file://{tmp_path}/{number}.parquet" for number in range(3)]
    lake.catalog.load_table(name.identifier).add_files(paths)
    compact_and_check(lake, table_name, 1, {("encode", "no_field_ids")}, in_duckdb=True)

    hive, folder = f"{table_name}h", tmp_path / "hive"
    lake.sql(f"CREATE TABLE lake.{hive} (id bigint, a string) USING iceberg PARTITIONED BY (a)")
    for _ in range(2):
        rows = lake.session.sql("SELECT /*+ COALESCE(1) */ id, concat('p', id % 2) a FROM range(10)")
        rows.write.partitionBy("a").mode("append").parquet(str(folder))
    lake.sql(f"CALL lake.system.add_files(table => '{hive}', source_table => '`parquet`.`{folder}`')")
    assert {row.a for row in lake.sql(f"SELECT a FROM lake.{hive}")} == {"p0", "p1"}
    result = lake.compact(hive, force=True)
    assert engines(result) == {("encode", "no_field_ids")}
    assert sorted(lake.rows(hive)) == sorted([(number, f"p{number % 2}") for number in range(10)] * 2)


# --- formats, layouts, names ------------------------------------------------------------------------------------------


def test_rows_that_spark_reads_into_another_partition_are_left_alone(lake: Lake, table_name: str) -> None:
    """Iceberg's ORC reader is a second late for fractions of a second before 1970: the row would change its year."""
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, ts timestamp) USING iceberg PARTITIONED BY (years(ts)) "
        "TBLPROPERTIES ('write.format.default'='orc')"
    )
    for number in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES ({number}, timestamp'1969-12-31 23:59:59.999999')")
    head = lake.view(table_name).snapshot.snapshot_id
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table_name, force=True)
    assert raised.value.reason == "partition_changed"
    assert lake.view(table_name).snapshot.snapshot_id == head
    assert unreferenced(lake, table_name) == set()


@pytest.mark.slow
def test_copied_row_groups_are_not_labelled_sorted(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    insert(lake, table_name, 2)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE UNORDERED")
    compact_and_check(lake, table_name, 1, COPIED)
    assert [row.sort_order_id for row in lake.sql(f"SELECT sort_order_id FROM lake.{table_name}.files")] == [0]


@pytest.mark.slow
@WITH_SPARK_SLOW
@pytest.mark.parametrize("name", ["`my-ns`.`Table One %20`", "n1.n2.`tä-ble`"])
def test_names_that_need_quoting(lake: Lake, name: str, engine: str) -> None:
    for namespace in ("`my-ns`", "n1", "n1.n2"):
        lake.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
    table = name.replace("One", uuid.uuid4().hex[:6]).replace("ble", uuid.uuid4().hex[:6])
    lake.sql(
        f"CREATE TABLE lake.{table} (id int, `Sp ace` string, `ünï-x` string, `a.b` int, `select` int) USING iceberg "
        "PARTITIONED BY (`Sp ace`, `a.b`)"
    )
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table} VALUES (1, 'x y', 'x', 1, 2), (2, null, 'x', null, 2)")
    expected = COPIED if engine == "auto" else REQUESTED
    compact_and_check(lake, table, 2, expected, engine=engine)


# --- column metrics, shares, errors -----------------------------------------------------------------------------------


def metrics(lake: Lake, table: str) -> list[dict[str, Any]]:
    read = lake.sql(f"SELECT readable_metrics FROM lake.{table}.files")
    return [row.readable_metrics.asDict() for row in read]


def test_a_share_without_deletes_is_copied_beside_one_that_has_some(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ)
    for number in range(9):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id + {number * 10}, 'a', id FROM range(10)")
    size = sum(row.size for row in lake.sql(f"SELECT file_size_in_bytes size FROM lake.{table_name}.files"))
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('write.target-file-size-bytes'='{size // 3}')")
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id < 30 AND id % 10 < 4")
    rows = lake.rows(table_name)
    result = run(lake, planned(lake, table_name))
    assert not result.dropped
    assert engines(result) == {("encode", "position_deletes")}
    (group,) = result.groups
    assert (group.rewritten.files_out, group.rewritten.rows_deleted) == (3, 12)
    assert group.rewritten.bytes_decoded < group.rewritten.bytes_in / 2
    assert lake.rows(table_name) == rows


def test_splice_asked_for_and_refused_writes_nothing(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ, commits=2)
    lake.sql(f"ALTER TABLE lake.{table_name} ADD COLUMN n int")
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 'a', 1, 1)")
    head = lake.view(table_name).snapshot.snapshot_id
    with pytest.raises(InputError, match="use --engine auto") as raised:
        lake.compact(table_name, force=True, engine="splice")
    assert raised.value.reason == "schema_differs"
    assert lake.view(table_name).snapshot.snapshot_id == head
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id < 3 AND n IS NULL")
    with pytest.raises(InputError, match="position deletes apply"):
        lake.compact(table_name, force=True, engine="splice")
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_failed_row_check_commits_nothing(
    lake: Lake, table_name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, table_name, commits=2)
    head = lake.view(table_name).snapshot.snapshot_id
    real = spark_scan.rewrite_with_spark

    def one_row_less(work: Any) -> Any:
        written = run_task(work)
        return replace(written, file=replace(written.file, rows=written.file.rows - 1))

    def one_row_more(*arguments: Any, **more: Any) -> Any:
        written = real(*arguments, **more)
        return replace(written, rows_out=written.rows_out + 1)

    broken = {"auto": (runner, "run_task", one_row_less), "spark": (spark_tasks, "rewrite_with_spark", one_row_more)}
    monkeypatch.setattr(*broken[engine])
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table_name, force=True, engine=engine)
    assert raised.value.reason == "row_count_mismatch"
    assert lake.view(table_name).snapshot.snapshot_id == head
    assert data_files(lake, table_name) == 2
    assert unreferenced(lake, table_name) == set()
    assert [record.abandoned for record in records_of(lake, table_name)] == [True]  # a sweep looks once more


def test_rows_that_a_filter_takes_away_while_spark_reads_are_noticed(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter selects files. Rows lost to one must not be taken for deleted ones (StarRocks 77797)."""
    create(lake, table_name, properties=MERGE_ON_READ, commits=2)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    rows, append = lake.rows(table_name), spark_scan._append
    monkeypatch.setattr(spark_scan, "_append", lambda table, read, target: append(table, read.where("id <> 3"), target))
    with pytest.raises(GiveUpError) as raised:
        run(lake, planned(lake, table_name, engine="spark"))
    assert raised.value.reason == "row_count_mismatch"
    monkeypatch.undo()
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()


# --- partitions, deletes ---

LINEAGE = "*, _row_id, _last_updated_sequence_number"


def test_files_of_a_spec_whose_column_was_dropped_are_left_alone(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, a string) USING iceberg PARTITIONED BY (a)")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 'x')")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN a")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (2)")
    compact_and_check(lake, table_name, 3, COPIED)
    (why,) = [why for key, why in planned(lake, table_name).unplanned.items() if key.spec_id == 0]
    assert "partition field a lost its column" in why


@pytest.mark.parametrize("by_value", [True, *slow(False)])
def test_a_table_whose_partition_field_and_column_were_both_dropped_is_compacted(
    lake: Lake, table_name: str, by_value: bool
) -> None:
    """V1 keeps the field as void, also in all newer files; its values are null."""
    create(lake, table_name, 1, by="PARTITIONED BY (a)")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN a")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (20, 2), (21, 3)")
    if not by_value:
        compact_and_check(lake, table_name, 1, COPIED, in_duckdb=True)
        return
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('format-version'='2')")
    delete_equal(lake, table_name, "id", [20], spec_id=1, partition=[None])
    compact_and_check(lake, table_name, 1, COMPARED, unreadable=NO_EQUALITY_DELETES, deleted=2)
    assert lake.sql(f"SELECT file_path FROM lake.{table_name}.delete_files") == []


@pytest.mark.parametrize(("version", "granularity"), [(2, "file"), (2, "partition"), (3, "file")])
@WITH_SPARK_SLOW
def test_position_deletes_leave_with_their_rows(
    lake: Lake, table_name: str, version: int, granularity: str, engine: str
) -> None:
    create(lake, table_name, version, f"'write.delete.granularity'='{granularity}', {MERGE_ON_READ}", commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (1, 4)")
    lake.sql(f"UPDATE lake.{table_name} SET a = 'changed' WHERE id = 3")
    columns = LINEAGE if version == 3 else "*"
    expected = {("encode", "position_deletes")} if version == 2 else {("encode", "deletion_vectors")}
    if engine == "spark":
        expected = REQUESTED
    compact_and_check(lake, table_name, 1, expected, columns=columns, engine=engine, in_duckdb=True, deleted=9)
    assert lake.sql(f"SELECT content FROM lake.{table_name}.files WHERE content > 0") == []
    assert lake.sql(f"SELECT count(*) AS rows FROM lake.{table_name}")[0].rows == 24


@pytest.mark.parametrize("spec", ["without fields", "with void fields only"])
def test_equality_deletes_of_an_unpartitioned_spec_are_global(lake: Lake, table_name: str, spec: str) -> None:
    if spec == "without fields":
        create(lake, table_name)
        lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD a")
        insert(lake, table_name, 2)
        delete_equal(lake, table_name, "id", [3, 4])
    else:
        create(lake, table_name, 1, by="PARTITIONED BY (a)", commits=2)
        lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
        lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('format-version'='2')")
        delete_equal(lake, table_name, "id", [3, 4], spec_id=1, partition=[None])
    compact_and_check(lake, table_name, 2, COMPARED, unreadable=NO_EQUALITY_DELETES, deleted=4)


def test_an_equality_delete_over_a_dropped_column_is_left_alone(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=2)
    delete_equal(lake, table_name, "k", [3])
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN k")
    assert lake.compact(table_name, force=True).snapshot_after is None
    assert "dropped" in next(iter(planned(lake, table_name).unplanned.values()))
