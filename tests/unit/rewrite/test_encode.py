"""Columns by field id, missing columns, nested ones, and types that are refused."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType, UnknownType

from compactor.rewrite.deletes.equality_deletes import EncodeInput
from compactor.rewrite.encode.encode import encode, encode_refusal
from compactor.rewrite.reading.projection import projection
from compactor.rewrite.reading.schema import written_schema
from compactor.rewrite.reading.source_columns import source_columns
from compactor.rewrite.tasks.output_task import TaskInput, run_task
from tests.unit.failing import fails
from tests.unit.rewrite.encode_support import IDS, column, encode_task, encoded, ids_file, refused, write


def test_columns_are_matched_by_id_whatever_their_names_and_order(tmp_path: Path) -> None:
    old = pa.schema([column("b", pa.string(), 2), column("a", pa.int32(), 1)])
    swapped = pa.schema([column("b", pa.int64(), 1), column("a", pa.string(), 2)])
    inputs = [
        write(tmp_path / "1.parquet", pa.table([["x"], [1]], schema=old)),
        write(tmp_path / "2.parquet", pa.table([[2], ["y"]], schema=swapped)),
    ]
    schema = Schema(NestedField(2, "text", "string"), NestedField(1, "number", "long"))
    _, table = encoded(encode_task(tmp_path, schema, inputs))
    assert table.to_pylist() == [{"text": "x", "number": 1}, {"text": "y", "number": 2}]


def test_a_column_without_an_id_in_a_file_with_ids_is_nobodys(tmp_path: Path) -> None:
    old = pa.schema([column("id", pa.int64(), 1), column("note", pa.string(), None), column("own", pa.string(), 2)])
    source = write(tmp_path / "1.parquet", pa.table([[1], ["stray"], ["own"]], schema=old))
    schema = Schema(NestedField(1, "id", "long"), NestedField(2, "note", "string"))
    mapping = json.dumps([{"field-id": 2, "names": ["note"]}])
    _, table = encoded(encode_task(tmp_path, schema, [source], name_mapping_json=mapping))
    assert table.to_pylist() == [{"id": 1, "note": "own"}]


def test_nested_columns_that_swapped_names(tmp_path: Path) -> None:
    """Types, names and order are the table's: only the ids identify the renamed fields, at any depth."""
    inner = pa.struct([column("a", pa.int64(), 4), column("b", pa.int64(), 3)])
    entry = pa.map_(column("key", pa.string(), 11, nullable=False), column("value", inner, 12))
    arrow = pa.schema(
        [
            column("s", pa.struct([column("t", inner, 2)]), 1),
            column("l", pa.list_(column("element", inner, 6)), 5),
            column("m", entry, 10),
        ]
    )
    row = {"s": {"t": {"a": 4, "b": 3}}, "l": [{"a": 4, "b": 3}], "m": [("k", {"a": 4, "b": 3})]}
    source = write(tmp_path / "1.parquet", pa.Table.from_pylist([row], schema=arrow))
    pair = StructType(NestedField(3, "a", "long"), NestedField(4, "b", "long"))
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(2, "t", pair))),
        NestedField(5, "l", ListType(6, pair, element_required=False)),
        NestedField(10, "m", MapType(11, "string", 12, pair, value_required=False)),
    )
    _, table = encoded(encode_task(tmp_path, schema, [source]))
    right = {"a": 3, "b": 4}
    assert table.to_pylist() == [{"s": {"t": right}, "l": [right], "m": [("k", right)]}]


def test_slices_of_nested_columns(tmp_path: Path) -> None:
    narrow = pa.struct([column("x", pa.int32(), 2)])
    arrow = pa.schema(
        [column("s", narrow, 1), column("l", pa.list_(column("element", narrow, 4)), 3), column("n", pa.int32(), 5)]
    )
    rows = [{"s": {"x": n} if n % 3 else None, "l": [{"x": n}] * n if n % 4 else None, "n": n} for n in range(9)]
    path = tmp_path / "1.parquet"
    table = pa.Table.from_pylist(rows, schema=arrow)
    write(path, table)
    wide = StructType(NestedField(2, "x", "long"))
    schema = Schema(
        NestedField(1, "s", wide),
        NestedField(3, "l", ListType(4, wide, element_required=False)),
        NestedField(5, "n", "long"),
    )
    sources = source_columns(arrow, pq.ParquetFile(path).schema, None)
    plan = projection(sources, written_schema(schema, with_lineage=False), {})
    for start in range(9):
        assert plan.apply(table.slice(start, 3)).to_pylist() == rows[start : start + 3]


def test_files_of_equal_types_and_names_but_other_ids_do_not_share_a_plan(tmp_path: Path) -> None:
    schemas = [pa.schema([column("a", pa.int64(), n), column("b", pa.int64(), 3 - n)]) for n in (1, 2)]
    inputs = [write(tmp_path / f"{n}.parquet", pa.table([[1], [2]], schema=each)) for n, each in enumerate(schemas)]
    schema = Schema(NestedField(1, "a", "long"), NestedField(2, "b", "long"))
    _, table = encoded(encode_task(tmp_path, schema, inputs))
    assert table.to_pylist() == [{"a": 1, "b": 2}, {"a": 2, "b": 1}]


def test_a_required_child_of_a_null_struct_needs_no_value(tmp_path: Path) -> None:
    plain = pa.schema([column("s", pa.struct([column("x", pa.int32(), 3, nullable=False)]), 2)])
    optional = pa.schema([column("s", pa.struct([column("x", pa.int32(), 3)]), 2)])
    rows = [{"s": {"x": 1}}, {"s": None}]
    inputs = [
        write(tmp_path / f"{n}.parquet", pa.Table.from_pylist(rows, schema=schema), store_schema=stored)
        for n, (schema, stored) in enumerate([(plain, True), (plain, False), (optional, False)])
    ]
    schema = Schema(NestedField(2, "s", StructType(NestedField(3, "x", "int", required=True))))
    _, table = encoded(encode_task(tmp_path, schema, inputs))
    assert table.to_pylist() == rows * 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_null_where_the_table_requires_a_value(tmp_path: Path, nested: bool) -> None:
    x = column("x", pa.int32(), 3)
    arrow = pa.schema([column("s", pa.struct([x]), 2) if nested else x])
    row: dict[str, Any] = {"s": {"x": None}} if nested else {"x": None}
    source = write(tmp_path / "1.parquet", pa.Table.from_pylist([row], schema=arrow))
    required = NestedField(3, "x", "int", required=True)
    schema = Schema(NestedField(2, "s", StructType(required)) if nested else required)
    work = encode_task(tmp_path, schema, [source])
    for write_it in (lambda: encode(work), lambda: run_task(TaskInput(None, work))):  # not left to Spark
        with fails("null_in_required_field"):
            write_it()
    assert not Path(work.output).exists()


def test_missing_columns_constant_default_null(tmp_path: Path) -> None:
    inputs = [ids_file(tmp_path / "1.parquet", 0, 2)]
    wide = pa.schema([column("id", pa.int64(), 1, nullable=False), column("region", pa.string(), 2)])
    inputs.append(write(tmp_path / "2.parquet", pa.table([[7], [None]], schema=wide)))
    schema = Schema(
        *IDS.fields,
        NestedField(2, "region", "string", initial_default="nowhere"),
        NestedField(3, "price", "decimal(9, 2)", required=True, initial_default=Decimal("1.50")),
        NestedField(4, "note", "string"),
    )
    _, table = encoded(encode_task(tmp_path, schema, inputs, partition_constants=((2, "eu"),)))
    price = Decimal("1.50")
    assert table.to_pylist() == [
        {"id": 0, "region": "eu", "price": price, "note": None},
        {"id": 1, "region": "eu", "price": price, "note": None},
        {"id": 7, "region": None, "price": price, "note": None},  # the file's own null, not the partition's value
    ]


def test_a_null_partition_value_is_null_whatever_the_default(tmp_path: Path) -> None:
    schema = Schema(*IDS.fields, NestedField(2, "region", "string", initial_default="nowhere"))
    source = ids_file(tmp_path / "1.parquet", 0, 1)
    _, table = encoded(encode_task(tmp_path, schema, [source], partition_constants=((2, None),)))
    assert table["region"].to_pylist() == [None]


def test_constants_of_every_type(tmp_path: Path) -> None:
    key = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    constants: list[tuple[Any, object, object]] = [
        ("boolean", False, False), ("int", 7, 7), ("long", -1, -1), ("float", 1.5, 1.5), ("double", -0.0, -0.0),
        ("date", 20000, 20000), ("time", 5, 5), ("timestamp", -5, -5), ("timestamptz", 5, 5), ("string", "", ""),
        ("uuid", key, key.bytes), ("uuid", key.bytes, key.bytes), ("fixed[2]", b"ab", b"ab"), ("binary", b"", b""),
        ("decimal(20, 3)", Decimal("1.250"), Decimal("1.250")),
    ]  # fmt: skip
    schema = Schema(*IDS.fields, *[NestedField(n, f"c{n}", kind) for n, (kind, _, _) in enumerate(constants, 2)])
    values = tuple((n, value) for n, (_, value, _) in enumerate(constants, 2))
    source = ids_file(tmp_path / "1.parquet", 0, 1)
    _, table = encoded(encode_task(tmp_path, schema, [source], partition_constants=values))
    for n, (_, _, expected) in enumerate(constants, 2):
        scalar = table.column(f"c{n}")[0]
        found = scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
        found = found.bytes if isinstance(found, uuid.UUID) else found
        assert repr(found) == repr(expected), n


def test_a_required_column_without_a_default_is_refused(tmp_path: Path) -> None:
    source = ids_file(tmp_path / "1.parquet", 0, 1)
    schema = Schema(*IDS.fields, NestedField(2, "must", "long", required=True))
    assert refused(encode_task(tmp_path, schema, [source])) == "required_field_missing"


def test_files_without_ids_need_a_name_mapping(tmp_path: Path) -> None:
    inner = pa.struct([column("y", pa.int64(), None)])
    arrow = pa.schema(
        [
            column("ident", pa.int64(), None),
            column("s", inner, None),
            column("l", pa.list_(column("item", inner, None)), None),
            column("m", pa.map_(pa.string(), pa.int64()), None),
        ]
    )
    row = {"ident": 5, "s": {"y": 6}, "l": [{"y": 7}], "m": [("k", 8)]}
    source = write(tmp_path / "1.parquet", pa.Table.from_pylist([row], schema=arrow))
    struct_type = StructType(NestedField(3, "x", "long"))
    schema = Schema(
        NestedField(1, "id", "long"),
        NestedField(2, "s", struct_type),
        NestedField(4, "l", ListType(5, StructType(NestedField(6, "x", "long")), element_required=False)),
        NestedField(7, "m", MapType(8, "string", 9, "long", value_required=False)),
    )
    assert refused(encode_task(tmp_path, schema, [source])) == "no_field_ids"

    def mapped(field_id: int, *names: str, fields: Sequence[Any] = ()) -> dict[str, Any]:
        return {"field-id": field_id, "names": list(names), "fields": list(fields)}

    mapping = [
        mapped(1, "id", "ident"),
        mapped(2, "s", fields=[mapped(3, "x", "y")]),
        mapped(4, "l", fields=[mapped(5, "element", fields=[mapped(6, "y")])]),
        mapped(7, "m", fields=[mapped(8, "key"), mapped(9, "value")]),
    ]
    _, table = encoded(encode_task(tmp_path, schema, [source], name_mapping_json=json.dumps(mapping)))
    assert table.to_pylist() == [{"id": 5, "s": {"x": 6}, "l": [{"x": 7}], "m": [("k", 8)]}]


def test_two_columns_with_one_id_are_refused(tmp_path: Path) -> None:
    arrow = pa.schema([column("a", pa.int64(), 1), column("b", pa.int64(), 1)])
    source = write(tmp_path / "1.parquet", pa.table([[1], [2]], schema=arrow))
    assert refused(encode_task(tmp_path, Schema(NestedField(1, "id", "long")), [source])) == "duplicate_field_ids"


def test_a_refusal_by_a_late_file_leaves_nothing_behind(tmp_path: Path) -> None:
    first = ids_file(tmp_path / "1.parquet", 0, 1000)
    late = write(tmp_path / "2.parquet", pa.table([["x"]], schema=pa.schema([column("id", pa.string(), 1)])))
    work = encode_task(tmp_path, IDS, [first, late], properties=(("write.parquet.row-group-size-bytes", "1"),))
    assert refused(work) == "type_not_supported"


@pytest.mark.parametrize("arrow", [pa.uint64(), pa.float32(), pa.string(), pa.timestamp("us"), pa.decimal128(9, 2)])
def test_types_that_do_not_widen_to_long_are_refused(tmp_path: Path, arrow: pa.DataType) -> None:
    source = write(tmp_path / "1.parquet", pa.table([pa.nulls(1, arrow)], schema=pa.schema([column("id", arrow, 1)])))
    assert refused(encode_task(tmp_path, Schema(NestedField(1, "id", "long")), [source])) == "type_not_supported"


def test_unsigned_numbers_of_32_bits_are_long(tmp_path: Path) -> None:
    arrow = pa.schema([column("id", pa.uint32(), 1)])
    source = write(tmp_path / "1.parquet", pa.table([pa.array([0, 2**32 - 1, None], pa.uint32())], schema=arrow))
    result, table = encoded(encode_task(tmp_path, Schema(NestedField(1, "id", "long")), [source]))
    assert table["id"].to_pylist() == [0, 2**32 - 1, None]
    assert int.from_bytes(result.metrics.upper_bounds[1], "little") == 2**32 - 1


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ("timestamp", pa.timestamp("ns")),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamptz", pa.timestamp("us")),
        ("decimal(9, 2)", pa.decimal128(10, 2)),
        ("decimal(9, 2)", pa.decimal128(9, 3)),
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("fixed[4]", pa.binary(3)),
        ("uuid", pa.binary(15)),
    ],
)
def test_types_that_would_lose_something_are_refused(tmp_path: Path, kind: Any, arrow: pa.DataType) -> None:
    source = write(tmp_path / "1.parquet", pa.table([pa.nulls(1, arrow)], schema=pa.schema([column("x", arrow, 1)])))
    assert refused(encode_task(tmp_path, Schema(NestedField(1, "x", kind)), [source])) == "type_not_supported"


@pytest.mark.parametrize("kind", [UnknownType(), StructType()])
def test_types_without_a_parquet_form_are_refused_before_any_byte(tmp_path: Path, kind: Any) -> None:
    work = encode_task(tmp_path, Schema(NestedField(1, "x", kind)), [EncodeInput("/nowhere", 1, 1)])
    assert encode(work) == encode_refusal(work)
    assert refused(work) == "type_not_supported"


def test_types_that_pyiceberg_does_not_know_are_refused(tmp_path: Path) -> None:
    work = encode_task(tmp_path, IDS, [])
    unknown = replace(work.files, schema_json=IDS.model_dump_json().replace('"long"', '"variant"'))
    assert refused(replace(work, files=unknown)) == "type_not_supported"


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    source = ids_file(tmp_path / "1.parquet", 0, 1)
    assert refused(encode_task(tmp_path, IDS, [source, source])) == "duplicate_inputs"
