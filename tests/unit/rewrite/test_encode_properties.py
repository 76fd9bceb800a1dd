"""Random tables, histories and deletes: the output of `encode` equals that of a model without Arrow.

A table schema is drawn; every file gets an older form of it: fields renamed, reordered, missing, narrower, dropped ones
besides. Rows are Python values by field id, from which the expected rows follow without Arrow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from compactor.rewrite.deletes.equality_deletes import EncodeInput
from tests.properties.examples import examples
from tests.unit.rewrite.encode_support import column, deletes, encode_task, encoded, write

PRIMITIVES: list[IcebergType] = [
    BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), StringType(), BinaryType(), TimestampType(),
    DecimalType(7, 2), DecimalType(12, 2), DecimalType(25, 2),
]  # fmt: skip
ARROW: dict[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(), IntegerType: pa.int32(), LongType: pa.int64(), FloatType: pa.float32(),
    DoubleType: pa.float64(), StringType: pa.string(), BinaryType: pa.binary(), TimestampType: pa.timestamp("us"),
}  # fmt: skip
NARROWER: dict[IcebergType, list[IcebergType]] = {
    LongType(): [IntegerType()],
    DoubleType(): [FloatType()],
    DecimalType(12, 2): [DecimalType(7, 2)],
    DecimalType(25, 2): [DecimalType(12, 2), DecimalType(7, 2)],
}


@dataclass
class Draw:
    """Draws schemas and values; hands out field ids."""

    data: st.DataObject
    next_id: int = 1

    def of(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def type(self, depth: int) -> IcebergType:
        kind = self.of(st.sampled_from(["primitive"] * 3 + (["struct", "list", "map"] if depth else [])))
        if kind == "struct":
            return StructType(*self.fields(depth - 1, self.of(st.integers(1, 3))))
        if kind == "list":
            return ListType(self.new_id(), self.type(depth - 1), element_required=self.of(st.booleans()))
        if kind == "map":
            value = self.type(depth - 1)
            return MapType(self.new_id(), "string", self.new_id(), value, value_required=self.of(st.booleans()))
        return self.of(st.sampled_from(PRIMITIVES))

    def fields(self, depth: int, count: int) -> list[NestedField]:
        return [
            NestedField(self.new_id(), f"c{n}", self.type(depth), required=self.of(st.integers(0, 3)) == 0)
            for n in range(count)
        ]

    # --- an older form of the schema, as a file may have it ---

    def older(self, kind: IcebergType) -> IcebergType:
        if isinstance(kind, StructType):
            return StructType(*self.older_fields(kind.fields))
        if isinstance(kind, ListType):
            return ListType(kind.element_id, self.older(kind.element_type), element_required=kind.element_required)
        if isinstance(kind, MapType):
            return MapType(
                kind.key_id,
                kind.key_type,
                kind.value_id,
                self.older(kind.value_type),
                value_required=kind.value_required,
            )
        return self.of(st.sampled_from([kind, *NARROWER.get(kind, [])]))

    def older_fields(self, fields: Sequence[NestedField]) -> list[NestedField]:
        kept = [
            NestedField(field.field_id, field.name, self.older(field.field_type), required=field.required)
            for field in fields
            if field.required or self.of(st.integers(0, 3))
        ]
        dropped = self.fields(0, self.of(st.integers(0, 1)))
        shuffled = self.of(st.permutations([*kept, *dropped])) or self.fields(0, 1)
        names = self.of(st.permutations([f"c{n}" for n in range(len(shuffled))]))
        return [
            NestedField(field.field_id, name, field.field_type, required=field.required)
            for field, name in zip(shuffled, names, strict=True)
        ]

    # --- values: structs by field id, maps as lists of pairs ---

    def value(self, kind: IcebergType) -> Any:
        if isinstance(kind, StructType):
            return {field.field_id: self.optional(field.field_type, field.required) for field in kind.fields}
        if isinstance(kind, ListType):
            return [self.optional(kind.element_type, kind.element_required) for _ in range(self.of(st.integers(0, 3)))]
        if isinstance(kind, MapType):
            keys = self.of(st.lists(st.sampled_from("abc"), unique=True, max_size=2))
            return [(key, self.optional(kind.value_type, kind.value_required)) for key in keys]
        return self.of(PRIMITIVE_VALUES(kind))

    def optional(self, kind: IcebergType, required: bool) -> Any:
        return self.value(kind) if required or self.of(st.integers(0, 3)) else None


def PRIMITIVE_VALUES(kind: IcebergType) -> st.SearchStrategy[Any]:  # noqa: N802
    if isinstance(kind, DecimalType):
        limit = 10**kind.precision - 1
        return st.integers(-limit, limit).map(lambda n: Decimal(f"{n}e-{kind.scale}"))
    strategies: dict[type[IcebergType], st.SearchStrategy[Any]] = {
        BooleanType: st.booleans(),
        IntegerType: st.integers(-(2**31), 2**31 - 1),
        LongType: st.integers(-(2**63), 2**63 - 1),
        FloatType: st.floats(width=32, allow_nan=False),
        DoubleType: st.floats(allow_nan=False),
        StringType: st.text(max_size=5),
        BinaryType: st.binary(max_size=5),
        TimestampType: st.datetimes(),
    }
    return strategies[type(kind)]


def arrow_of(kind: IcebergType) -> pa.DataType:
    """The type of a file's column, independent of the code under test."""
    if isinstance(kind, StructType):
        return pa.struct([file_column(field) for field in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(file_column(kind.element_field, "item"))
    if isinstance(kind, MapType):
        return pa.map_(file_column(kind.key_field, "k"), file_column(kind.value_field, "v"))
    return pa.decimal128(kind.precision, kind.scale) if isinstance(kind, DecimalType) else ARROW[type(kind)]


def file_column(field: NestedField, name: str | None = None) -> pa.Field:
    return column(name or field.name, arrow_of(field.field_type), field.field_id, nullable=not field.required)


def named(value: Any, kind: IcebergType) -> Any:
    """A model value as `to_pylist` returns it, with the names of `kind`; missing fields are null."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: named(value.get(field.field_id), field.field_type) for field in kind.fields}
    if isinstance(kind, ListType):
        return [named(element, kind.element_type) for element in value]
    if isinstance(kind, MapType):
        return [(key, named(element, kind.value_type)) for key, element in value]
    return value


@settings(deadline=None, max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_rows_are_what_the_model_says(data: st.DataObject) -> None:
    draw = Draw(data)
    schema = Schema(*draw.fields(2, draw.of(st.integers(1, 4))))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs: list[EncodeInput] = []
        expected: list[Any] = []
        doomed: list[tuple[str, int]] = []
        for n in range(draw.of(st.integers(1, 3))):
            older = StructType(*draw.older_fields(schema.fields))
            rows = [draw.value(older) for _ in range(draw.of(st.integers(0, 8)))]
            source = write_rows(folder / f"{n}.parquet", older, rows, draw)
            gone = draw.of(st.sets(st.integers(0, 9)))
            doomed += [(source.location, position) for position in gone]
            inputs.append(source)
            expected += [named(row, schema.as_struct()) for position, row in enumerate(rows) if position not in gone]
        file = deletes(folder / "deletes.parquet", draw.of(st.permutations(doomed)))
        inputs = [replace(each, position_deletes=(file,)) for each in inputs]
        target = draw.of(st.sampled_from(["1", "200", "134217728"]))
        work = encode_task(folder, schema, inputs, properties=(("write.parquet.row-group-size-bytes", target),))
        if not expected:
            return
        result, table = encoded(work)
        assert table.to_pylist() == expected
        assert sum(each.records for each in inputs) == result.rows_deleted + len(expected)
        assert duckdb.sql(f"SELECT count(*) FROM (SELECT COLUMNS(*) FROM '{work.output}')").fetchall() == [
            (len(expected),)
        ]


def write_rows(path: Path, kind: StructType, rows: list[Any], draw: Draw) -> EncodeInput:
    arrow = pa.schema([file_column(field) for field in kind.fields])
    table = pa.Table.from_pylist([named(row, kind) for row in rows], schema=arrow)
    return write(
        path,
        table,
        row_group_size=draw.of(st.sampled_from([1, 3, 100])),
        store_schema=draw.of(st.booleans()),
        store_decimal_as_integer=draw.of(st.booleans()),
        use_dictionary=draw.of(st.booleans()),
        data_page_version=draw.of(st.sampled_from(["1.0", "2.0"])),
        use_compliant_nested_type=draw.of(st.booleans()),
    )
