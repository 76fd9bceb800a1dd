"""What Iceberg's reader in Spark takes for other rows than there are is read in another way, or left alone.

Spark's own rows before and after would not tell: PyIceberg's do.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, TimestampType

from compactor.errors import GiveUpError
from compactor.locations import plain_path
from tests.conftest import Lake
from tests.integration.table_kit import engines, java_table, planned, unreferenced

pytestmark = pytest.mark.spark


def py_rows(lake: Lake, table: str, columns: Sequence[str] = ("*",)) -> list[str]:
    loaded = lake.catalog.load_table(lake.name(table).identifier)
    return sorted(map(repr, loaded.scan(selected_fields=tuple(columns)).to_arrow().to_pylist()))


def folder_of(lake: Lake, table: str) -> Path:
    return Path(plain_path(lake.view(table).metadata.location)) / "data"


def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def written(lake: Lake, table: str, rows: pa.Table) -> tuple[Any, Path]:
    """A Parquet file among the table's, known to nobody yet."""
    path = folder_of(lake, table) / f"{uuid.uuid4()}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return java_table(lake, table), path


def register(lake: Lake, table: str, rows: pa.Table) -> None:
    loaded, path = written(lake, table, rows)
    builder = getattr(lake.session._jvm.org.apache.iceberg, "DataFiles$Builder")(loaded.spec())
    file = builder.withInputFile(loaded.io().newInputFile(path.as_uri())).withRecordCount(rows.num_rows)
    loaded.newAppend().appendFile(file.withFormat("parquet").build()).commit()


def is_left_alone(lake: Lake, table: str, reason: str) -> None:
    head, before = lake.view(table).snapshot.snapshot_id, py_rows(lake, table)
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table, force=True)
    assert raised.value.reason == reason
    assert lake.view(table).snapshot.snapshot_id == head
    assert py_rows(lake, table) == before
    assert unreferenced(lake, table) == set()


def is_not_planned(lake: Lake, table: str, why: str) -> None:
    plan = planned(lake, table)
    assert not plan.groups
    assert why in next(iter(plan.unplanned.values()))


def test_milliseconds_in_a_sorted_table(lake: Lake, table_name: str, tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "ts", TimestampType()))
    by_id = SortOrder(SortField(1, IdentityTransform()))
    table = lake.catalog.create_table(lake.name(table_name).identifier, schema, sort_order=by_id)
    for number in range(3):
        times = pa.array([1_577_836_800_000 + number] * 2 + [None], pa.timestamp("ms"))
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int32()), "ts": times}), path)
        table.add_files([path.as_uri()])
    before = py_rows(lake, table_name)
    assert engines(lake.compact(table_name, force=True)) == {("spark", "sorted")}
    assert py_rows(lake, table_name) == before


def test_nanoseconds_in_a_column_of_microseconds(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, ts timestamp_ntz) USING iceberg")
    for number in range(2):
        times = pa.array([1_577_836_800_000_000_000, None], pa.timestamp("ns"))
        schema = pa.schema([field("id", pa.int32(), 1), field("ts", times.type, 2)], {"writer": str(number)})
        register(lake, table_name, pa.table([pa.array([1, 2], pa.int32()), times], schema=schema))
    is_left_alone(lake, table_name, "timestamp_unit")


def test_a_null_struct_that_holds_the_partition_column(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, s struct<a:int,b:int>) USING iceberg PARTITIONED BY (s.a)")
    for _ in range(2):
        lake.sql(
            f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ cast(id as int), "
            "if(id = 0, null, named_struct('a', null, 'b', 7)) FROM range(2)"
        )
    before = py_rows(lake, table_name)
    assert "'s': None" in "".join(before)
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table_name, force=True, engine="spark")
    assert raised.value.reason == "nested_partition_source"
    assert {engine for engine, _ in engines(lake.compact(table_name, force=True))} <= {"splice", "encode"}
    assert py_rows(lake, table_name) == before
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (3, null)")
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    is_not_planned(lake, table_name, "a column of a struct that may be null")


def test_row_ids_in_orc(lake: Lake, table_name: str) -> None:
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'write.format.default'='orc')"
    )
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id FROM range(3)")
    is_not_planned(lake, table_name, "rows in ORC have ids")


def test_deletes_by_a_nested_column_after_another_query_has_read_them(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, s struct<a:int,b:double>) USING iceberg")
    for _ in range(6):
        lake.sql(
            f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ cast(id as int), "
            "named_struct('a', cast(id as int), 'b', 1D) FROM range(6)"
        )
    nested = lake.view(table_name).metadata.schema().find_field("s.a").field_id
    struct = pa.struct([field("a", pa.int32(), nested)])
    deletes = pa.table([pa.array([{"a": 2}], struct)], schema=pa.schema([field("s", struct, 2)]))
    loaded, path = written(lake, table_name, deletes)
    ids = lake.session.sparkContext._gateway.new_array(lake.session._jvm.int, 1)
    ids[0] = nested
    builder = lake.session._jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(loaded.spec())
    builder = builder.ofEqualityDeletes(ids).withInputFile(loaded.io().newInputFile(path.as_uri()))
    loaded.newRowDelta().addDeletes(builder.withRecordCount(1).withFormat("parquet").build()).commit()
    for columns in ("id", "s.b", "id"):
        lake.sql(f"SELECT {columns} FROM lake.{table_name}")
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "equality_deletes")}
    assert sum(group.rewritten.rows_deleted for group in result.groups) == 6
    assert [row[0] for row in lake.rows(table_name, "id")] == sorted([0, 1, 3, 4, 5] * 6)
