"""What Iceberg's reader in Spark takes for other rows than there are is read in another way, or left alone.

Spark's own rows before and after would not tell: PyIceberg's do.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    TimestampType,
)

from compactor.errors import GiveUpError
from compactor.locations import plain_path
from tests.conftest import Lake
from tests.integration.table_kit import MERGE_ON_READ, delete_equal, engines, java_table, planned, unreferenced
from tests.slow import slow

pytestmark = pytest.mark.spark
NAMES_OF_NESTED = ("c.x", "l.element", "l.element.y")


def py_rows(lake: Lake, table: str, columns: Sequence[str] = ("*",)) -> list[str]:
    loaded = lake.catalog.load_table(lake.name(table).identifier)
    return sorted(map(repr, loaded.scan(selected_fields=tuple(columns)).to_arrow().to_pylist()))


def stored_rows(lake: Lake, table: str) -> list[str]:
    """The rows as the table's files hold them, whatever its schema says."""
    read = {"parquet": pq.read_table, "orc": orc.read_table}
    files = [plain_path(file) for file in lake.live_files(table)]
    return sorted(repr(row) for file in files for row in read[file.rpartition(".")[2]](file).to_pylist())


def folder_of(lake: Lake, table: str) -> Path:
    return Path(plain_path(lake.view(table).metadata.location)) / "data"


def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


WRITERS: dict[str, Any] = {"parquet": pq.write_table, "orc": orc.write_table}


def written(lake: Lake, table: str, rows: pa.Table, file_format: str = "parquet") -> tuple[Any, Path]:
    """A file among the table's, known to nobody yet."""
    path = folder_of(lake, table) / f"{uuid.uuid4()}.{file_format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[file_format](rows, path)
    return java_table(lake, table), path


def register(lake: Lake, table: str, rows: pa.Table, file_format: str = "parquet") -> None:
    loaded, path = written(lake, table, rows, file_format)
    builder = getattr(lake.session._jvm.org.apache.iceberg, "DataFiles$Builder")(loaded.spec())
    file = builder.withInputFile(loaded.io().newInputFile(path.as_uri())).withRecordCount(rows.num_rows)
    loaded.newAppend().appendFile(file.withFormat(file_format).build()).commit()


def is_left_alone(lake: Lake, table: str, reason: str, engine: str = "auto") -> None:
    head, before = lake.view(table).snapshot.snapshot_id, lake.live_files(table)
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table, force=True, engine=engine)
    assert raised.value.reason == reason
    assert (lake.view(table).snapshot.snapshot_id, lake.live_files(table)) == (head, before)
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


def test_a_struct_whose_columns_were_all_replaced(lake: Lake, table_name: str) -> None:
    """Iceberg leaves out a group of which it reads no column: the struct becomes null, the list empty."""
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, c struct<x:int>, l array<struct<y:int>>) USING iceberg")
    ids = {name: lake.view(table_name).metadata.schema().find_field(name).field_id for name in NAMES_OF_NESTED}
    struct = pa.struct([field("x", pa.int32(), ids["c.x"])])
    element = pa.struct([field("y", pa.int32(), ids["l.element.y"])])
    elements = pa.list_(field("element", element, ids["l.element"]))
    schema = pa.schema([field("id", pa.int32(), 1), field("c", struct, 2), field("l", elements, 3)])
    for _ in range(2):
        values = [[1, 2], [{"x": 1}, None], [[{"y": 1}, None, {"y": 2}], None]]
        columns = [pa.array(value, each.type) for value, each in zip(values, schema, strict=True)]
        register(lake, table_name, pa.table(columns, schema=schema))
    for parent in ("c", "l.element"):
        lake.sql(f"ALTER TABLE lake.{table_name} ADD COLUMN {parent}.z int")
    for name in ("c.x", "l.element.y"):
        lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN {name}")
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    before = py_rows(lake, table_name)
    assert "[{'z': None}, None, {'z': None}]" in before[0]
    is_left_alone(lake, table_name, "struct_fields_replaced")
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE UNORDERED")
    assert {engine for engine, _ in engines(lake.compact(table_name, force=True))} <= {"splice", "encode"}
    assert py_rows(lake, table_name) == before


@pytest.mark.parametrize("file_format", ["parquet", *slow("orc")])
def test_files_without_field_ids_and_without_a_name_mapping(lake: Lake, table_name: str, file_format: str) -> None:
    """Spark would take column `a` for `b`, and read the struct as null; a mapping shows which column is which."""
    lake.sql(f"CREATE TABLE lake.{table_name} (b bigint, s struct<x:bigint>, a bigint) USING iceberg")
    struct = pa.struct([("x", pa.int64())])
    for _ in range(2):
        rows = pa.table({"a": [1, 2], "s": pa.array([{"x": 7}, None], struct), "b": [10, 20]})
        register(lake, table_name, rows, file_format)
    for engine in ("auto", "spark"):
        is_left_alone(lake, table_name, "no_field_ids", engine)
    mapping = lake.catalog.load_table(lake.name(table_name).identifier).schema().name_mapping.model_dump_json()
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('schema.name-mapping.default'='{mapping}')")
    expected = ("encode", "no_field_ids") if file_format == "parquet" else ("spark", "file_format")
    assert engines(lake.compact(table_name, force=True)) == {expected}
    assert stored_rows(lake, table_name) == sorted(
        [repr({"b": 10, "s": {"x": 7}, "a": 1}), repr({"b": 20, "s": None, "a": 2})] * 2
    )


def test_a_default_before_the_columns_of_a_struct(lake: Lake, table_name: str) -> None:
    """Spark takes null structs for present ones, and lists of structs for lists of one."""
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, s struct<p:int>, l array<struct<x:int>>) USING iceberg "
        "TBLPROPERTIES ('format-version'='3')"
    )
    for _ in range(2):
        lake.sql(
            f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ cast(id as int), "
            "if(id = 0, null, named_struct('p', 1)), "
            "if(id = 0, array(named_struct('x', 1), named_struct('x', 2)), array()) FROM range(2)"
        )
    loaded = java_table(lake, table_name)
    default, kind = lake.session._jvm.org.apache.iceberg.expressions.Expressions.lit(34), loaded.schema().findType("id")
    added = loaded.updateSchema()
    for parent in ("s", "l"):
        added = added.addColumn(parent, "n", kind, "", default)
    added.moveFirst("s.n").moveFirst("l.element.n").commit()
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    is_left_alone(lake, table_name, "nested_default")
    rows = [
        {"id": 0, "s": None, "l": [{"n": 34, "x": 1}, {"n": 34, "x": 2}]},
        {"id": 1, "s": {"n": 34, "p": 1}, "l": []},
    ]
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE UNORDERED")
    assert {engine for engine, _ in engines(lake.compact(table_name, force=True))} == {"encode"}
    assert [row for row in stored_rows(lake, table_name) if "34" not in row] == []
    assert py_rows(lake, table_name) == sorted(map(repr, rows * 2))


def test_row_ids_in_orc(lake: Lake, table_name: str) -> None:
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int) USING iceberg "
        "TBLPROPERTIES ('format-version'='3', 'write.format.default'='orc')"
    )
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id FROM range(3)")
    is_not_planned(lake, table_name, "rows in ORC have ids")


def register_deletes(lake: Lake, loaded: Any, path: Path, field_id: int) -> None:
    """Commit an equality delete file of one row that compares one column."""
    ids = lake.session.sparkContext._gateway.new_array(lake.session._jvm.int, 1)
    ids[0] = field_id
    builder = lake.session._jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(loaded.spec())
    builder = builder.ofEqualityDeletes(ids).withInputFile(loaded.io().newInputFile(path.as_uri()))
    loaded.newRowDelta().addDeletes(builder.withRecordCount(1).withFormat("parquet").build()).commit()


def test_equality_deletes_without_field_ids(lake: Lake, table_name: str) -> None:
    """Spark would compare the first column with the first one of the delete file, whatever their names are."""
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, k int) USING iceberg")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id, id + 10 FROM range(3)")
    loaded, path = written(
        lake, table_name, pa.table({"k": pa.array([1], pa.int32()), "id": pa.array([2], pa.int32())})
    )
    register_deletes(lake, loaded, path, 1)
    for engine in ("auto", "spark"):
        is_left_alone(lake, table_name, "equality_deletes", engine)


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
    register_deletes(lake, loaded, path, nested)
    for columns in ("id", "s.b", "id"):
        lake.sql(f"SELECT {columns} FROM lake.{table_name}")
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "equality_deletes")}
    assert sum(group.rewritten.rows_deleted for group in result.groups) == 6
    assert [row[0] for row in lake.rows(table_name, "id")] == sorted([0, 1, 3, 4, 5] * 6)


BY_ID = SortOrder(SortField(1, IdentityTransform()))
X = pa.struct([field("x", pa.int64(), 3)])
X_IN_MAP = pa.struct([field("x", pa.int64(), 5)])
REQUIRED: dict[str, tuple[IcebergType, pa.DataType, Any, Any]] = {
    "int": (IntegerType(), pa.int32(), 7, None),
    "struct": (StructType(NestedField(3, "x", LongType(), required=True)), X, {"x": 7}, {"x": None}),
    "list": (ListType(3, LongType(), element_required=True), pa.list_(field("element", pa.int64(), 3)), [7], [7, None]),
    "map": (
        MapType(3, IntegerType(), 4, StructType(NestedField(5, "x", LongType(), required=True)), value_required=True),
        pa.map_(field("key", pa.int32(), 3).with_nullable(False), field("value", X_IN_MAP, 4)),
        [(1, {"x": 7})],
        [(1, {"x": None})],
    ),
}
"""Iceberg type, Arrow type, a value, and one that holds a null."""


def create(lake: Lake, table: str, column: IcebergType, *, required: bool = False, ordered: bool) -> None:
    schema = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "a", column, required=required))
    order = BY_ID if ordered else UNSORTED_SORT_ORDER
    lake.catalog.create_table(lake.name(table).identifier, schema, sort_order=order)


def register_values(lake: Lake, table: str, values: pa.Array) -> None:
    """Two files that cannot be spliced, with the same values in column `a`."""
    for number in range(2):
        columns = pa.schema([field("id", pa.int32(), 1), field("a", values.type, 2)], {"writer": str(number)})
        ids = pa.array(range(len(values)), pa.int32())
        register(lake, table, pa.table([ids, values], schema=columns))


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        ("int", False),
        ("int", True),
        ("map", True),
        *slow(*((kind, ordered) for kind in REQUIRED for ordered in (False, True) if kind not in ("int", "map"))),
    ],
)
def test_a_null_in_a_required_column(lake: Lake, table_name: str, kind: str, ordered: bool) -> None:
    iceberg, arrow, value, null = REQUIRED[kind]
    create(lake, table_name, iceberg, required=True, ordered=ordered)
    register_values(lake, table_name, pa.array([value, null], arrow))
    is_left_alone(lake, table_name, "null_in_required_field")


@pytest.mark.parametrize("file_format", ["orc", *slow("avro", "parquet")])
def test_a_null_from_before_the_column_was_required(lake: Lake, table_name: str, file_format: str) -> None:
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, a int) USING iceberg "
        f"TBLPROPERTIES ('write.format.default'='{file_format}')"
    )
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 7), (2, null)")
    java_table(lake, table_name).updateSchema().allowIncompatibleChanges().requireColumn("a").commit()
    is_left_alone(lake, table_name, "null_in_required_field", "spark")


@pytest.mark.parametrize("kind", ["map", *slow(*(kind for kind in REQUIRED if kind != "map"))])
def test_optional_columns_of_files_whose_values_are_all_there(lake: Lake, table_name: str, kind: str) -> None:
    iceberg, arrow, value, _ = REQUIRED[kind]
    create(lake, table_name, iceberg, required=True, ordered=True)
    register_values(lake, table_name, pa.array([value, value], arrow))
    before = stored_rows(lake, table_name)
    assert engines(lake.compact(table_name, force=True)) == {("spark", "sorted")}
    assert stored_rows(lake, table_name) == before
    (written,) = lake.live_files(table_name)
    assert not pq.read_schema(plain_path(written)).field("a").nullable


def test_nested_values_that_are_checked_keep_their_bits(lake: Lake, table_name: str) -> None:
    """Spark's own check of nested columns makes maps anew, and fails on equal keys."""
    required = StructType(NestedField(5, "x", LongType(), required=True), NestedField(6, "d", DecimalType(9, 2)))
    inner = pa.struct([field("x", pa.int64(), 5), field("d", pa.decimal128(9, 2), 6)])
    floats = pa.map_(field("key", pa.float64(), 3).with_nullable(False), field("value", inner, 4))
    create(lake, table_name, MapType(3, DoubleType(), 4, required, value_required=False), ordered=True)
    rows = [[(-0.0, {"x": 1, "d": Decimal("-1.50")}), (0.0, None)], [], None, [(float("nan"), {"x": 2, "d": None})]]
    register_values(lake, table_name, pa.array(rows, floats))
    before = stored_rows(lake, table_name)
    assert "-0.0" in "".join(before)
    assert engines(lake.compact(table_name, force=True)) == {("spark", "sorted")}
    assert stored_rows(lake, table_name) == before


@pytest.mark.parametrize("version", [3, *slow(2)])
def test_deletes_and_row_ids_of_a_table_with_required_columns(lake: Lake, table_name: str, version: int) -> None:
    """Spark reads a copy of the table with another schema, to which specs and sort orders are bound anew."""
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int NOT NULL, k string NOT NULL, s struct<a: int, b: decimal(9,2)>) "
        f"USING iceberg PARTITIONED BY (k) TBLPROPERTIES ('format-version'='{version}', {MERGE_ON_READ})"
    )
    lake.sql(f"ALTER TABLE lake.{table_name} SET IDENTIFIER FIELDS id")
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id DESC")
    for number in range(2):
        lake.sql(
            f"INSERT INTO lake.{table_name} SELECT cast(id + {number} * 10 as int), concat('k', id % 2), "
            "if(id < 3, null, named_struct('a', null, 'b', cast(id as decimal(9,2)))) FROM range(10)"
        )
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (4, 15)")
    delete_equal(lake, table_name, "id", [6], partition=["k0"])
    lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD bucket(2, id)")
    columns = "*, _row_id, _last_updated_sequence_number" if version == 3 else "*"
    before = lake.rows(table_name, columns)
    assert len(before) == 17
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "sorted")}
    assert lake.rows(table_name, columns) == before
    assert sum(group.rewritten.rows_deleted for group in result.groups) == 3


def too_many_digits() -> pa.Array:
    numbers = b"".join(number.to_bytes(16, "little") for number in (100, 5 * 10**20))
    return pa.Array.from_buffers(pa.decimal128(20, 2), 2, [None, pa.py_buffer(numbers)])


DECIMALS: dict[str, tuple[DecimalType, pa.Array]] = {
    "scale": (DecimalType(10, 2), pa.array(["1.005", "2.000"]).cast(pa.decimal128(10, 3))),
    "precision": (DecimalType(9, 2), pa.array(["1234567890.12", "1.00"]).cast(pa.decimal128(12, 2))),
    "digits": (DecimalType(20, 2), too_many_digits()),
}


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [("scale", True), ("digits", True), ("precision", False), *slow(("scale", False), ("precision", True))],
)
def test_decimals_that_do_not_fit(lake: Lake, table_name: str, kind: str, ordered: bool) -> None:
    iceberg, values = DECIMALS[kind]
    create(lake, table_name, iceberg, ordered=ordered)
    register_values(lake, table_name, values)
    is_left_alone(lake, table_name, "value_out_of_range")


def test_decimals_of_another_type_that_fit(lake: Lake, table_name: str) -> None:
    create(lake, table_name, DecimalType(9, 2), ordered=False)
    register_values(lake, table_name, pa.array(["1.500", "-1234567.890", None]).cast(pa.decimal128(12, 3)))
    assert engines(lake.compact(table_name, force=True)) == {("spark", "type_not_supported")}
    expected = ["{'id': 0, 'a': Decimal('1.50')}", "{'id': 1, 'a': Decimal('-1234567.89')}", "{'id': 2, 'a': None}"]
    assert stored_rows(lake, table_name) == sorted(expected * 2)


@pytest.mark.parametrize("ordered", [True, *slow(False)])
def test_milliseconds_that_overflow(lake: Lake, table_name: str, ordered: bool) -> None:
    create(lake, table_name, TimestampType(), ordered=ordered)
    register_values(lake, table_name, pa.array([2**63 - 1, 0], pa.timestamp("ms")))
    is_left_alone(lake, table_name, "value_out_of_range")
