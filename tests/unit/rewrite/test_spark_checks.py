"""Files that Spark misreads are detected from the table and from Parquet footers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import ListType, MapType, NestedField, StructType

from compactor.errors import GiveUpError
from compactor.iceberg.tables import TableView
from compactor.planning.spark_misreads import misread
from compactor.reasons import Refusal
from compactor.rewrite.parquet import footer as parquet_footer
from compactor.rewrite.parquet.footer import FileField, GroupField
from compactor.rewrite.parquet.thrift import STRUCT, structs
from compactor.rewrite.tasks.spark_checks import misread_files
from compactor.storage.opening import byte_store_for
from compactor.table_names import TableName
from tests.unit.failing import fails
from tests.unit.rewrite.encode_support import column
from tests.unit.rewrite.live_file import KEY, live
from tests.unit.rewrite.splice_files import footer_of, write_footer

MICROSECONDS = Schema(NestedField(1, "id", "long"), NestedField(2, "ts", "timestamp"))
NANOSECONDS = Schema(NestedField(1, "id", "long"), NestedField(2, "ts", "timestamp_ns"))
BOTH = Schema(NestedField(1, "ts", "timestamp"), NestedField(2, "ns", "timestamp_ns"))


def table_of(*, transform: Any = None, properties: dict[str, str] | None = None, outer: bool, inner: bool) -> TableView:
    """A table partitioned by a column nested in two structs; `outer` and `inner`: whether they are required."""
    schema = Schema(
        NestedField(
            1,
            "outer",
            StructType(NestedField(2, "inner", StructType(NestedField(3, "a", "int")), required=inner)),
            required=outer,
        )
    )
    by = PartitionSpec(PartitionField(3, 1000, transform or IdentityTransform(), "a"))
    # PyIceberg gives the columns ids of its own, the same ones here.
    metadata = new_table_metadata(schema, by, UNSORTED_SORT_ORDER, "file:///table", properties or {})
    return TableView(TableName("lake", ("db",), "t"), metadata, "", Any)  # type: ignore[arg-type]


def map_to(struct: pa.DataType) -> pa.DataType:
    return pa.map_(column("key", pa.int64(), 3).with_nullable(False), column("value", struct, 2))


def without_ids(table: pa.Table) -> pa.Table:
    """The table with field ids at no level."""

    def bare(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([(each.name, bare(each.type)) for each in kind])
        if pa.types.is_map(kind):
            return pa.map_(bare(kind.key_type), bare(kind.item_type))
        return pa.list_(bare(kind.value_type)) if pa.types.is_list(kind) else kind

    fields = [pa.field(each.name, bare(each.type)) for each in table.schema]
    return pa.table([pa.nulls(table.num_rows, each.type) for each in fields], schema=pa.schema(fields))


def reason(found: Refusal | None) -> str | None:
    return None if found is None else found.reason


@pytest.mark.parametrize(
    ("outer", "inner", "transform", "expected"),
    [
        (True, True, None, None),
        (False, True, None, "nested_partition_source"),
        (True, False, None, "nested_partition_source"),
        (False, False, BucketTransform(4), None),
    ],
)
def test_a_partition_column_in_a_struct_that_may_be_null(
    outer: bool, inner: bool, transform: Any, expected: str | None
) -> None:
    table = table_of(transform=transform, outer=outer, inner=inner)
    assert reason(misread(table, KEY, [live()])) == expected


@pytest.mark.parametrize(
    ("written", "first_row_id", "file_format", "expected"),
    [
        ("parquet", 0, "parquet", None),
        ("parquet", 0, "orc", "orc_row_ids"),
        ("parquet", None, "orc", None),
        ("orc", 0, "parquet", "orc_row_ids"),
        ("ORC", None, "parquet", None),
    ],
)
def test_row_ids_in_orc(written: str, first_row_id: int | None, file_format: str, expected: str | None) -> None:
    table = table_of(properties={"write.format.default": written}, outer=True, inner=True)
    file = live(file_format=file_format, first_row_id=first_row_id)
    assert reason(misread(table, KEY, [live(), file])) == expected


@pytest.mark.parametrize(("written", "expected"), [(None, "column_names_collide"), ("orc", None)])
@pytest.mark.parametrize("nested", [False, True])
def test_columns_whose_names_are_one_in_parquet(nested: bool, written: str | None, expected: str | None) -> None:
    """Spark would write the values of both into one column."""
    fields = [NestedField(1, "a.b", "long"), NestedField(2, "a_x2Eb", "long")]
    schema = Schema(NestedField(3, "m", MapType(4, "long", 5, StructType(*fields)))) if nested else Schema(*fields)
    properties = {} if written is None else {"write.format.default": written}
    metadata = new_table_metadata(schema, PartitionSpec(), UNSORTED_SORT_ORDER, "file:///table", properties)
    table = TableView(TableName("lake", ("db",), "t"), metadata, "", Any)  # type: ignore[arg-type]
    assert reason(misread(table, KEY, [live()])) == expected


def judged(path: Path, schema: Schema, table: pa.Table, mapping: str | None = None, **options: Any) -> str | None:
    """What keeps a file of this table from Spark."""
    pq.write_table(table, path, **options)
    return judged_file(path, schema, mapping)


def judged_file(path: Path, schema: Schema, mapping: str | None = None) -> str | None:
    file = live(path.as_uri(), path.stat().st_size)
    return reason(misread_files(byte_store_for(path.as_uri(), {}), [schema], [file], mapping))


def units(
    folder: Path, schema: Schema, columns: dict[str, tuple[pa.DataType, int | None]], mapping: str | None = None
) -> str | None:
    arrow = pa.schema([column(name, kind, field_id) for name, (kind, field_id) in columns.items()])
    table = pa.table([pa.nulls(1, each.type) for each in arrow], schema=arrow)
    return judged(folder / "file.parquet", schema, table, mapping)


@pytest.mark.parametrize("field_id", [2, None])
@pytest.mark.parametrize(
    ("schema", "unit", "expected"),
    [
        (MICROSECONDS, "ns", "timestamp_unit"),
        (MICROSECONDS, "us", None),
        (MICROSECONDS, "ms", None),
        (NANOSECONDS, "ns", None),
        (NANOSECONDS, "us", "timestamp_unit"),
    ],
)
def test_timestamps_of_another_unit(
    tmp_path: Path, schema: Schema, unit: str, expected: str | None, field_id: int | None
) -> None:
    assert units(tmp_path, schema, {"id": (pa.int64(), 1), "ts": (pa.timestamp(unit), field_id)}) == expected


def test_units_of_columns_that_are_not_the_tables_do_not_matter(tmp_path: Path) -> None:
    gone = {"id": (pa.int64(), 1), "gone": (pa.timestamp("ns"), 9)}
    assert units(tmp_path, MICROSECONDS, gone) is None
    unnamed = {"any": (pa.timestamp("ns"), None), "other": (pa.timestamp("us"), None)}
    assert units(tmp_path, BOTH, unnamed, BOTH.name_mapping.model_dump_json()) is None
    assert units(tmp_path, BOTH, {"ts": (pa.timestamp("ns"), 1)}) == "timestamp_unit"
    no_timestamps = Schema(NestedField(1, "id", "long"))
    assert units(tmp_path, no_timestamps, {"id": (pa.timestamp("ns"), 1)}) is None
    assert units(tmp_path, no_timestamps, {"id": (pa.timestamp("ms"), 1)}) == "timestamp_unit"


@pytest.mark.parametrize(
    ("values", "statistics", "expected"),
    [
        ([0, -1, None], True, None),
        ([-(2**63), 0], True, "value_out_of_range"),
        ([(2**63 - 1) // 1000, -((2**63 - 1) // 1000)], True, None),
        ([(2**63 - 1) // 1000 + 1], True, "value_out_of_range"),
        ([None, None], True, None),
        ([], True, None),
        ([0], False, "value_out_of_range"),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("field_id", [2, None])
def test_milliseconds_that_may_overflow(
    tmp_path: Path, values: list[int | None], statistics: bool, expected: str | None, version: str, field_id: int | None
) -> None:
    path = tmp_path / "file.parquet"
    schema = pa.schema([column("id", pa.int64(), 1), column("ts", pa.timestamp("ms"), field_id)])
    rows = pa.table([pa.nulls(len(values), pa.int64()), pa.array(values, pa.timestamp("ms"))], schema=schema)
    assert judged(path, MICROSECONDS, rows, write_statistics=statistics, version=version) == expected
    other = Schema(NestedField(1, "id", "long"), NestedField(3, "ts", "timestamp"))
    assert field_id is None or judged_file(path, other) is None


def test_milliseconds_in_a_row_group_with_its_columns_in_another_order(tmp_path: Path) -> None:
    """Spark finds chunks by their paths."""
    path = tmp_path / "file.parquet"
    schema = pa.schema([column("id", pa.int64(), 1), column("ts", pa.timestamp("ms"), 2)])
    pq.write_table(pa.table([[1], pa.array([2**62], pa.timestamp("ms"))], schema=schema), path)
    tree = footer_of(path).tree
    (group,) = tree.elements(FileField.ROW_GROUPS, STRUCT)
    turned = group.with_fields({GroupField.COLUMNS: structs(group.elements(GroupField.COLUMNS, STRUCT)[::-1])})
    write_footer(path, tree.with_fields({FileField.ROW_GROUPS: structs([turned])}))
    assert judged_file(path, MICROSECONDS) == "value_out_of_range"


INNER = StructType(NestedField(4, "z", "long"))
NESTED = StructType(NestedField(3, "other", "long"), NestedField(2, "s", INNER))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(("child", "expected"), [(5, "struct_fields_replaced"), (4, None)])
@pytest.mark.parametrize(
    ("kind", "around"),
    [
        (INNER, lambda struct: struct),
        (NESTED, lambda struct: pa.struct([column("other", pa.int64(), 3), column("s", struct, 2)])),
        (ListType(2, INNER), lambda struct: pa.list_(column("element", struct, 2))),
        (MapType(3, "long", 2, INNER), map_to),
        (
            ListType(6, MapType(3, "long", 2, INNER)),
            lambda struct: pa.list_(column("element", map_to(struct), 6)),
        ),
    ],
)
def test_a_struct_without_any_column_of_the_table(
    tmp_path: Path, kind: Any, around: Any, child: int, expected: str | None, by_name: bool
) -> None:
    """Iceberg leaves out a group of which it reads no column: a struct that is there becomes null."""
    schema = Schema(NestedField(7, "id", "long"), NestedField(1, "c", kind))
    names = {4: "z", 5: "y"}
    stored = around(pa.struct([column(names[child], pa.int64(), child)]))
    rows = pa.schema([column("id", pa.int64(), 7), column("c", stored, 1)])
    table = pa.table([pa.nulls(1, pa.int64()), pa.nulls(1, stored)], schema=rows)
    if by_name:
        table = without_ids(table)
    mapping = schema.name_mapping.model_dump_json()
    assert judged(tmp_path / "file.parquet", schema, table, mapping, store_schema=False) == expected


def test_a_struct_that_a_file_lacks_is_no_struct_without_columns(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", "long"), NestedField(2, "c", INNER))
    table = pa.table([[1]], schema=pa.schema([column("id", pa.int64(), 1)]))
    assert judged(tmp_path / "file.parquet", schema, table) is None


def test_a_file_that_cannot_be_judged_is_not_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(b"no Parquet at all")
    store = byte_store_for(path.as_uri(), {})
    for file_format in ("parquet", "avro", "orc"):
        with pytest.raises(GiveUpError) as damaged:
            misread_files(store, [MICROSECONDS], [live(path.as_uri(), 17, file_format=file_format)], None)
        assert str(damaged.value.reason).startswith("unreadable")
    unknown = misread_files(store, [MICROSECONDS], [live(path.as_uri(), 17, file_format="lance")], None)
    assert reason(unknown) == "file_format"
    pq.write_table(pa.table([[1]], schema=pa.schema([column("id", pa.int64(), 1)])), path)
    monkeypatch.setattr(parquet_footer, "MAX_FOOTER_BYTES", 10)
    with fails("footer_too_large"):
        misread_files(store, [MICROSECONDS], [live(path.as_uri(), path.stat().st_size)], None)
