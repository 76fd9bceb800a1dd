"""The Arrow schema of the files that `encode` writes, with the types that Iceberg's Java writer uses.

Source: Iceberg spec, Appendix A (Parquet). Decimals become INT32, INT64 or the shortest fixed bytes in the writer
(`store_decimal_as_integer`), lists `list.element`, maps `key_value`. Every field has its id. Names that are invalid in
Avro are spelled as Iceberg does; readers match columns by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, NestedField, StructType

from compactor.reasons import Reason, Refusal

FIELD_ID_KEY: Final = b"PARQUET:field_id"
UUID_WIDTH: Final = 16

ROW_ID: Final = NestedField(2147483540, "_row_id", types.LongType(), required=False)
LAST_UPDATED_SEQUENCE_NUMBER: Final = NestedField(
    2147483539, "_last_updated_sequence_number", types.LongType(), required=False
)
LINEAGE_IDS: Final = (ROW_ID.field_id, LAST_UPDATED_SEQUENCE_NUMBER.field_id)

_ARROW_TYPES: Final[Mapping[type[IcebergType], Callable[[Any], pa.DataType]]] = {
    types.BooleanType: lambda _: pa.bool_(),
    types.IntegerType: lambda _: pa.int32(),
    types.LongType: lambda _: pa.int64(),
    types.FloatType: lambda _: pa.float32(),
    types.DoubleType: lambda _: pa.float64(),
    DecimalType: lambda decimal: pa.decimal128(decimal.precision, decimal.scale),
    types.DateType: lambda _: pa.date32(),
    types.TimeType: lambda _: pa.time64("us"),
    types.TimestampType: lambda _: pa.timestamp("us"),
    types.TimestamptzType: lambda _: pa.timestamp("us", "UTC"),
    types.TimestampNanoType: lambda _: pa.timestamp("ns"),
    types.TimestamptzNanoType: lambda _: pa.timestamp("ns", "UTC"),
    types.StringType: lambda _: pa.string(),
    types.UUIDType: lambda _: pa.uuid(),
    types.FixedType: lambda fixed: pa.binary(len(fixed)),
    types.BinaryType: lambda _: pa.binary(),
}


class RefusedError(Exception):
    """Carries a refusal to `encode`, which returns it as a value."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


def refused(reason: Reason, sentence: str) -> RefusedError:
    """The error that makes `encode` return this refusal."""
    return RefusedError(Refusal(reason, sentence))


@dataclass(frozen=True, slots=True)
class WrittenLeaf:
    """A Parquet column of the output.

    Attributes:
        field: Its Iceberg field.
        name: Its full name in the Iceberg schema, as table properties spell it.
        path: Its dotted path in the Parquet schema.
        indexes: Its path in a table: index of the top-level column, then of struct children; None inside lists, maps.
    """

    field: NestedField
    name: str
    path: str
    indexes: tuple[int, ...] | None


def leaf_values(table: pa.Table, indexes: Sequence[int]) -> pa.ChunkedArray:
    """A leaf's values in a table of the written schema; null where an enclosing struct is null."""
    values = table.column(indexes[0])
    for index in indexes[1:]:
        values = pc.struct_field(values, [index])
    return values


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The written schema, including lineage columns if any: for Iceberg and for Arrow."""

    iceberg: Schema
    arrow: pa.Schema
    leaves: tuple[WrittenLeaf, ...]


def written_schema(schema: Schema, *, with_lineage: bool) -> WrittenSchema:
    """The schema to write for a table's schema.

    Raises:
        RefusedError: `type_not_supported`, or `column_names_collide`: two fields of a struct would have the same
            name in Parquet.
    """
    fields = schema.fields
    if with_lineage:
        own = tuple(field for field in fields if field.field_id not in LINEAGE_IDS)
        fields = (*own, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    iceberg = Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)
    arrow = pa.schema(arrow_fields(iceberg.fields))
    return WrittenSchema(iceberg, arrow, tuple(_leaves(iceberg, children_of(iceberg.as_struct()), "", ())))


def arrow_fields(fields: Sequence[NestedField]) -> list[pa.Field]:
    """The Arrow fields of a struct or schema, with their Parquet names."""
    names = [parquet_name(field.name) for field in fields]
    if len(set(names)) < len(names):
        raise refused(Reason.COLUMN_NAMES_COLLIDE, f"two of the fields {names} would have the same name in Parquet")
    return [_arrow_field(field, name) for field, name in zip(fields, names, strict=True)]


def parquet_name(name: str) -> str:
    """A field's name in Parquet, as Iceberg's writers spell it."""
    if not name:
        raise refused(Reason.COLUMN_NAMES_COLLIDE, "a field without a name cannot be written to Parquet")
    return make_compatible_name(name)


def arrow_type(iceberg_type: IcebergType) -> pa.DataType:
    """The Arrow type for an Iceberg type, with the field ids of nested fields."""
    if isinstance(iceberg_type, StructType):
        if not iceberg_type.fields:
            raise refused(Reason.TYPE_NOT_SUPPORTED, "Parquet has no struct without fields")
        return pa.struct(arrow_fields(iceberg_type.fields))
    if isinstance(iceberg_type, ListType):
        return pa.list_(_arrow_field(iceberg_type.element_field, "element"))
    if isinstance(iceberg_type, MapType):
        return pa.map_(_arrow_field(iceberg_type.key_field, "key"), _arrow_field(iceberg_type.value_field, "value"))
    make = _ARROW_TYPES.get(type(iceberg_type))
    if make is None:
        raise refused(Reason.TYPE_NOT_SUPPORTED, f"only Iceberg's own reader supports columns of type {iceberg_type}")
    return make(iceberg_type)


def _arrow_field(field: NestedField, name: str) -> pa.Field:
    return pa.field(
        name,
        arrow_type(field.field_type),
        nullable=not field.required,
        metadata={FIELD_ID_KEY: str(field.field_id).encode()},
    )


def children_of(iceberg_type: IcebergType) -> tuple[tuple[str, NestedField], ...]:
    """(name in Parquet, field) of the fields nested directly in a type; none for a primitive."""
    if isinstance(iceberg_type, StructType):
        return tuple((parquet_name(field.name), field) for field in iceberg_type.fields)
    if isinstance(iceberg_type, ListType):
        return (("list.element", iceberg_type.element_field),)
    if isinstance(iceberg_type, MapType):
        return (("key_value.key", iceberg_type.key_field), ("key_value.value", iceberg_type.value_field))
    return ()


def _leaves(
    schema: Schema, named: Sequence[tuple[str, NestedField]], prefix: str, indexes: tuple[int, ...] | None
) -> Iterator[WrittenLeaf]:
    for index, (name, field) in enumerate(named):
        path = prefix + name
        children = children_of(field.field_type)
        below = None if indexes is None else (*indexes, index)
        if not children:
            yield WrittenLeaf(
                field=field, name=schema.find_column_name(field.field_id) or field.name, path=path, indexes=below
            )
            continue
        repeated = not isinstance(field.field_type, StructType)
        yield from _leaves(schema, children, path + ".", None if repeated else below)
