"""`compact` on files of every schema, format, layout, name and type; its outputs, and the check of their rows."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, LongType, NestedField, TimeType, UUIDType

from compactor.errors import GiveUpError, InputError
from compactor.locations import plain_path
from compactor.rewrite.tasks import runner, spark_scan, spark_tasks
from compactor.rewrite.tasks.output_task import run_task
from tests.conftest import Lake
from tests.integration.compact_check import (
    COPIED,
    NO_EQUALITY_DELETES,
    REQUESTED,
    WITH_SPARK_SLOW,
    compact_and_check,
    py_rows,
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

NO_AVRO = "Unsupported file format: FileFormat.AVRO"


# --- schemas ----------------------------------------------------------------------------------------------------------

NESTED = "id int, a string, s struct<x: int, y: string>, l array<int>, m map<string, int>, f float, d decimal(9,2)"
ROW = "{id}, 'a{id}', named_struct('x', {id}, 'y', 'q'), array({id}, null), map('k', {id}), 1.5, 2.25"
CHANGES = {
    "added": ("ADD COLUMN n string FIRST", "'n', " + ROW),
    "dropped": ("DROP COLUMN a", ROW.replace(" 'a{id}',", "")),
    "renamed": ("RENAME COLUMN a TO z", ROW),
    "reordered": ("ALTER COLUMN a FIRST", "'a{id}', " + ROW.replace(" 'a{id}',", "")),
    "int to bigint": ("ALTER COLUMN id TYPE bigint", ROW.replace("{id}, 'a", "{id} + 5000000000, 'a")),
    "float to double": ("ALTER COLUMN f TYPE double", ROW.replace("1.5", "1e300D")),
    "wider decimal": ("ALTER COLUMN d TYPE decimal(20,2)", ROW.replace("2.25", "123456789012345678.25")),
    "added in struct": ("ADD COLUMN s.z int", ROW.replace("'y', 'q'", "'y', 'q', 'z', 3")),
    "renamed in struct": ("RENAME COLUMN s.y TO yy", ROW),
    "wider element": ("ALTER COLUMN l.element TYPE bigint", ROW.replace("array({id}", "array({id} + 5000000000")),
}


QUICK_CHANGES = ("added", "renamed", "int to bigint", "renamed in struct")


@pytest.mark.parametrize("change", [*QUICK_CHANGES, *slow(*(each for each in CHANGES if each not in QUICK_CHANGES))])
def test_schema_drift(lake: Lake, table_name: str, change: str) -> None:
    """Files that all predate the change are copied as they are; those of both schemas are not."""
    statement, later = CHANGES[change]
    lake.sql(f"CREATE TABLE lake.{table_name} ({NESTED}) USING iceberg")
    for number in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES ({ROW.format(id=number)})")
    lake.sql(f"ALTER TABLE lake.{table_name} {statement}")
    compact_and_check(lake, table_name, 1, COPIED, in_duckdb=True)
    lake.sql(f"INSERT INTO lake.{table_name} VALUES ({later.format(id=7)})")
    compact_and_check(lake, table_name, 1, {("encode", "schema_differs")}, in_duckdb=True)


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


@pytest.mark.parametrize("file_format", [*slow("orc"), "avro"])
def test_other_formats_with_deletes(lake: Lake, table_name: str, file_format: str) -> None:
    create(lake, table_name, properties=f"'write.format.default'='{file_format}', {MERGE_ON_READ}")
    insert(lake, table_name, 2)
    excuse = NO_AVRO if file_format == "avro" else None
    compact_and_check(lake, table_name, 1, {("spark", "file_format")}, unreadable=excuse)
    insert(lake, table_name)
    delete_equal(lake, table_name, "id", [3])
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    excuse = NO_AVRO if file_format == "avro" else NO_EQUALITY_DELETES
    compact_and_check(
        lake, table_name, 1, {("spark", "file_format")}, unreadable=f"{excuse}|{NO_EQUALITY_DELETES}", deleted=6
    )
    assert {row.file_format for row in lake.sql(f"SELECT file_format FROM lake.{table_name}.data_files")} == {
        file_format.upper()
    }


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


def test_a_sorted_table_stays_sorted(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY a DESC, id")
    insert(lake, table_name, 2)
    compact_and_check(lake, table_name, 1, {("spark", "sorted")})
    (file,) = lake.sql(f"SELECT file_path, sort_order_id FROM lake.{table_name}.files")
    assert file.sort_order_id == 0  # in the order, and not labelled so: see spark_scan
    rows = [(row["a"], row["id"]) for row in pq.ParquetFile(plain_path(file.file_path)).read().to_pylist()]
    assert rows == sorted(sorted(rows, key=lambda row: row[1]), key=lambda row: row[0], reverse=True)


@pytest.mark.slow
def test_copied_row_groups_are_not_labelled_sorted(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    insert(lake, table_name, 2)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE UNORDERED")
    compact_and_check(lake, table_name, 1, COPIED)
    assert [row.sort_order_id for row in lake.sql(f"SELECT sort_order_id FROM lake.{table_name}.files")] == [0]


@WITH_SPARK_SLOW
@pytest.mark.parametrize("layout", ["write.data.path", "write.object-storage.enabled"])
def test_outputs_go_where_the_table_wants_them(lake: Lake, table_name: str, layout: str, engine: str) -> None:
    elsewhere = f"file://{lake.folder}/else where/{table_name}"
    value = elsewhere if layout == "write.data.path" else "true"
    create(lake, table_name, properties=f"'{layout}'='{value}'", by="PARTITIONED BY (a)")
    insert(lake, table_name, 2)
    expected = COPIED if engine == "auto" else REQUESTED
    compact_and_check(lake, table_name, 2, expected, engine=engine, in_duckdb=True)
    root = elsewhere if layout == "write.data.path" else f"{lake.view(table_name).metadata.location}/data"
    assert all(plain_path(path).startswith(plain_path(root) + "/") for path in lake.live_files(table_name))


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


@pytest.mark.parametrize(
    ("kind", "value", "arrow"),
    [
        (TimeType(), 3_723_000_004, pa.time64("us")),
        (UUIDType(), b"\xff" * 16, None),
        (FixedType(4), b"abcd", pa.binary(4)),
    ],
    ids=["time", "uuid", "fixed"],
)
def test_types_that_spark_sql_cannot_create(lake: Lake, table_name: str, kind: Any, value: Any, arrow: Any) -> None:
    """Written by PyIceberg. Spark cannot read a `time` column, so splicing must not need it to."""
    by = (
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
        if isinstance(kind, TimeType)
        else PartitionSpec()
    )
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "v", kind, required=False))
    table = lake.catalog.create_table(lake.name(table_name).identifier, schema, partition_spec=by)
    values = (
        pa.array([value], arrow)
        if arrow
        else pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value], pa.binary(16)))
    )
    for number in range(2):
        table.append(pa.table([pa.array([number], pa.int64()), values], names=["id", "v"]))
    before = py_rows(lake, table_name)
    assert engines(lake.compact(table_name, force=True)) == COPIED
    assert py_rows(lake, table_name) == before
    (task,) = table.refresh().scan().plan_files()
    assert sorted(duckdb.read_parquet(plain_path(task.file.file_path)).select("id").fetchall()) == [(0,), (1,)]


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
    create(lake, table_name, properties=MERGE_ON_READ)
    insert(lake, table_name, 2)
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
    create(lake, table_name)
    insert(lake, table_name, 2)
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
    create(lake, table_name, properties=MERGE_ON_READ)
    insert(lake, table_name, 2)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    rows, append = lake.rows(table_name), spark_scan._append
    monkeypatch.setattr(spark_scan, "_append", lambda table, read, target: append(table, read.where("id <> 3"), target))
    with pytest.raises(GiveUpError) as raised:
        run(lake, planned(lake, table_name, engine="spark"))
    assert raised.value.reason == "row_count_mismatch"
    monkeypatch.undo()
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()
