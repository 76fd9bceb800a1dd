"""Convert the columns of a file to the columns that are written: match them by field id, widen types, fill gaps.

One plan serves all files with the same schema. Source: Iceberg spec, "Schema evolution" and "Column projection".
A missing column gets its identity partition value, else its `initial-default`, else null. Values keep their bits: files
whose values would have to be validated, rounded or normalised are refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, NestedField, StructType
from pyiceberg.utils.decimal import bytes_required

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.rewrite.reading.schema import LINEAGE_IDS, UUID_WIDTH, WrittenSchema, arrow_type, refused
from compactor.rewrite.reading.source_columns import (
    FIXED_LENGTH,
    INT96,
    VARIABLE_LENGTH,
    SourceColumn,
    children_in_arrow,
)

Convert = Callable[[pa.Array], pa.Array]
"""An array of the file → the array to write, of equal length."""

_MAX_INTEGER_DECIMAL: Final = 18  # digits; decimals above this are written as fixed bytes


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """Source of a written column, or of a struct's field: the file's column at `position`, converted by `convert` if
    that is set; without a position, `fill` in each row.
    """

    field: pa.Field
    position: int | None
    convert: Convert | None
    fill: pa.Scalar | None

    def column(self, table: pa.Table) -> pa.ChunkedArray:
        """The column for these rows.

        Raises:
            GiveUpError: `null_in_required_field`: the file has nulls where the table allows none; `value_out_of_range`:
                it has a value that does not fit its own type or the table's.
        """
        if self.position is None:
            return pa.chunked_array([_filled(self.fill, table.num_rows, self.field.type)], type=self.field.type)
        source = table.column(self.position)
        if self.convert is not None:
            try:
                chunks = [self.convert(_unsliced(chunk)) for chunk in source.chunks]
            except pa.ArrowInvalid as error:
                raise GiveUpError(
                    f"A data file has a value in column {self.field.name} that does not fit the type: {error}",
                    reason=Reason.VALUE_OUT_OF_RANGE,
                ) from error
            source = pa.chunked_array(chunks, self.field.type)
        if not self.field.nullable and source.null_count:
            raise _null_in_required(self.field.name)
        return source


@dataclass(frozen=True, slots=True)
class Projection:
    """How to convert the tables read from files with one schema.

    Attributes:
        columns: One plan per column to write, in that order.
        schema: The schema of the result.
    """

    columns: tuple[ColumnPlan, ...]
    schema: pa.Schema

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows in the written schema."""
        return pa.Table.from_arrays([plan.column(table) for plan in self.columns], schema=self.schema)


def projection(sources: Sequence[SourceColumn], written: WrittenSchema, constants: Mapping[int, object]) -> Projection:
    """The plan for files with these columns.

    Raises:
        RefusedError: `type_not_supported`, `required_field_missing`, `duplicate_field_ids`, `no_field_ids`.
    """
    return Projection(_plans(sources, written.iceberg.fields, written.arrow, constants), written.arrow)


def _plans(
    sources: Sequence[SourceColumn],
    fields: Sequence[NestedField],
    arrow_fields: Iterable[pa.Field],
    constants: Mapping[int, object],
) -> tuple[ColumnPlan, ...]:
    """The plans for the fields of a table or of a struct."""
    positions = [position for position, source in enumerate(sources) if source.field_id is not None]
    by_id = {sources[position].field_id: position for position in positions}
    if len(by_id) < len(positions):
        raise refused(Reason.DUPLICATE_FIELD_IDS, "a file has two columns with the same field id")
    plans = []
    for field, arrow in zip(fields, arrow_fields, strict=True):
        position = by_id.get(field.field_id)
        if position is None:
            plans.append(ColumnPlan(field=arrow, position=None, convert=None, fill=_missing(field, constants)))
        else:
            convert = _converter(sources[position], field.field_type, arrow.type, constants)
            plans.append(ColumnPlan(field=arrow, position=position, convert=convert, fill=None))
    return tuple(plans)


def _null_in_required(name: str) -> GiveUpError:
    return GiveUpError(
        f"A data file has nulls in field {name}, which the table's schema requires; repair the file or make the field "
        "optional.",
        reason=Reason.NULL_IN_REQUIRED_FIELD,
    )


# --- missing columns --------------------------------------------------------------------------------------------------


def _missing(field: NestedField, constants: Mapping[int, object]) -> pa.Scalar | None:
    """The value of a column that a file lacks; None means null."""
    value: Any = constants.get(field.field_id, field.initial_default)  # a null partition value is null, not the default
    if value is None:
        if field.required and field.field_id not in LINEAGE_IDS:
            raise refused(Reason.REQUIRED_FIELD_MISSING, f"a file lacks the required field {field.name}")
        return None
    if field.field_type.is_struct or not field.field_type.is_primitive:
        raise refused(
            Reason.TYPE_NOT_SUPPORTED, f"only Iceberg's own reader applies the default of nested field {field.name}"
        )
    try:
        return _scalar(value, arrow_type(field.field_type))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise refused(
            Reason.TYPE_NOT_SUPPORTED, f"the value {value!r} for missing field {field.name}: {error}"
        ) from error


def _scalar(value: Any, arrow: pa.DataType) -> pa.Scalar:
    if isinstance(arrow, pa.UuidType):
        return pa.scalar(value.bytes if isinstance(value, uuid.UUID) else bytes(value), pa.binary(UUID_WIDTH))
    if pa.types.is_integer(arrow) and not isinstance(value, int):
        raise TypeError(f"{value!r} is no integer")
    return pa.scalar(value, arrow)


def _filled(fill: pa.Scalar | None, length: int, arrow: pa.DataType) -> pa.Array:
    if fill is None:
        return _all_null(length, arrow)
    repeated = pa.repeat(fill, length)
    return pa.ExtensionArray.from_storage(arrow, repeated) if isinstance(arrow, pa.UuidType) else repeated


def _all_null(length: int, arrow: pa.DataType) -> pa.Array:
    """Nulls as of `pyarrow.nulls`, but required fields in a null struct have values, as Arrow requires."""
    nulls = pa.nulls(length, arrow)
    if not pa.types.is_struct(arrow):
        return nulls
    children = []
    for field in children_in_arrow(arrow):
        child = _all_null(length, field.type)
        children.append(child if field.nullable else _without_nulls(child, nulls, field.name))
    return pa.Array.from_buffers(arrow, length, nulls.buffers()[:1], length, 0, children)


# --- present columns --------------------------------------------------------------------------------------------------


def _converter(
    source: SourceColumn, target: IcebergType, arrow: pa.DataType, constants: Mapping[int, object]
) -> Convert | None:
    """The conversion of a file's column to the target type; None if it has that type."""
    if isinstance(target, StructType) and pa.types.is_struct(source.type):
        return _struct_converter(source, target, arrow, constants)
    if isinstance(target, ListType) and (pa.types.is_list(source.type) or pa.types.is_large_list(source.type)):
        return _list_converter(source, target, arrow, constants)
    if isinstance(target, MapType) and pa.types.is_map(source.type):
        return _map_converter(source, target, arrow, constants)
    if target.is_primitive and not source.children:
        return _leaf_converter(source, target, arrow)
    raise _mismatch(source, target)


def _mismatch(source: SourceColumn, target: IcebergType) -> Exception:
    found = f"{source.type} ({source.physical or 'group'})"
    return refused(Reason.TYPE_NOT_SUPPORTED, f"column {source.name} is {found} in a file, {target} in the table")


def _same(source: SourceColumn, arrow: pa.DataType, converters: Sequence[Convert | None]) -> bool:
    """Whether a nested column needs no conversion. Arrow's equality covers child names and nullability."""
    return source.type.equals(arrow) and all(convert is None for convert in converters)


def _struct_converter(
    source: SourceColumn, target: StructType, arrow: pa.StructType, constants: Mapping[int, object]
) -> Convert | None:
    plans = _plans(source.children, target.fields, arrow, constants)
    in_place = [plan.position for plan in plans] == list(range(len(source.children)))
    if in_place and _same(source, arrow, [plan.convert for plan in plans]):
        return None

    def convert_struct(array: pa.Array) -> pa.Array:
        children = []
        for plan in plans:
            if plan.position is None:
                children.append(_filled(plan.fill, len(array), plan.field.type))
                continue
            child = array.field(plan.position)
            child = child if plan.convert is None else plan.convert(_unsliced(child))
            children.append(child if plan.field.nullable else _without_nulls(child, array, plan.field.name))
        return pa.Array.from_buffers(arrow, len(array), array.buffers()[:1], array.null_count, 0, children)

    return convert_struct


def _list_converter(
    source: SourceColumn, target: ListType, arrow: pa.ListType, constants: Mapping[int, object]
) -> Convert | None:
    element = source.children[0]
    _check_id(element, target.element_field)
    convert = _converter(element, target.element_type, arrow.value_type, constants)
    if _same(source, arrow, [convert]):
        return None
    large = pa.types.is_large_list(source.type)

    def convert_list(array: pa.Array) -> pa.Array:
        narrow = array.cast(pa.list_(source.type.value_field)) if large else array
        values = narrow.values if convert is None else convert(_unsliced(narrow.values))
        if target.element_required:
            values = _without_nulls(values, None, source.name)
        return pa.Array.from_buffers(arrow, len(narrow), narrow.buffers()[:2], narrow.null_count, 0, [values])

    return convert_list


def _map_converter(
    source: SourceColumn, target: MapType, arrow: pa.MapType, constants: Mapping[int, object]
) -> Convert | None:
    key, value = source.children
    _check_id(key, target.key_field)
    _check_id(value, target.value_field)
    convert_key = _converter(key, target.key_type, arrow.key_type, constants)
    convert_value = _converter(value, target.value_type, arrow.item_type, constants)
    if _same(source, arrow, [convert_key, convert_value]):
        return None
    entries_type = pa.struct([arrow.key_field, arrow.item_field])

    def convert_map(array: pa.Array) -> pa.Array:
        keys = array.keys if convert_key is None else convert_key(_unsliced(array.keys))
        items = array.items if convert_value is None else convert_value(_unsliced(array.items))
        keys = _without_nulls(keys, None, f"{source.name}.key")
        if target.value_required:
            items = _without_nulls(items, None, f"{source.name}.value")
        entries = pa.Array.from_buffers(entries_type, len(keys), [None], 0, 0, [keys, items])
        return pa.Array.from_buffers(arrow, len(array), array.buffers()[:2], array.null_count, 0, [entries])

    return convert_map


def _check_id(child: SourceColumn, field: NestedField) -> None:
    if child.field_id is None:
        raise refused(Reason.NO_FIELD_IDS, f"{child.name} of a list or map in a file has no field id")
    if child.field_id != field.field_id:
        raise refused(Reason.TYPE_NOT_SUPPORTED, f"{child.name} of a list or map has another field id in a file")


def _unsliced(array: pa.Array) -> pa.Array:
    """The same values with offset 0, so that the buffers can be reused."""
    return array if array.offset == 0 else pa.concat_arrays([array, array.slice(0, 0)])


def _without_nulls(child: pa.Array, parent: pa.Array | None, name: str) -> pa.Array:
    """A required child without its validity bitmap: it may have nulls only under a null parent."""
    if not child.null_count:
        return child
    if parent is None or pc.any(pc.and_(child.is_null(), parent.is_valid())).as_py():
        raise _null_in_required(name)
    if isinstance(child, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(child.type, _without_nulls(child.storage, parent, name))
    flat = _unsliced(child)
    nested = {pa.types.is_struct: 1, pa.types.is_map: 2, pa.types.is_list: 2}
    own = next((count for is_kind, count in nested.items() if is_kind(flat.type)), len(flat.buffers()))
    return pa.Array.from_buffers(
        flat.type, len(flat), [None, *flat.buffers()[1:own]], 0, 0, _nested_children(flat) or None
    )


def _nested_children(array: pa.Array) -> list[pa.Array]:
    if pa.types.is_struct(array.type):
        return [array.field(index) for index in range(array.type.num_fields)]
    if pa.types.is_map(array.type):
        entries = pa.struct([array.type.key_field, array.type.item_field])
        return [pa.Array.from_buffers(entries, len(array.keys), [None], 0, 0, [array.keys, array.items])]
    return [array.values] if pa.types.is_list(array.type) else []


# --- leaves -----------------------------------------------------------------------------------------------------------


def _leaf_converter(source: SourceColumn, target: IcebergType, arrow: pa.DataType) -> Convert | None:
    if isinstance(target, DecimalType):
        return _decimal_converter(source, target, arrow)
    if source.physical == INT96:
        return _int96_converter(source, target, arrow)
    if source.type.equals(arrow):
        return None
    convert = _relabelled(source, target, arrow)
    if convert is None and any(source.type.equals(widened) for widened in _WIDENED.get(type(target), ())):
        return lambda array: array.cast(arrow)
    if convert is None:
        raise _mismatch(source, target)
    return convert


def _relabelled(source: SourceColumn, target: IcebergType, arrow: pa.DataType) -> Convert | None:
    """The conversion of columns whose type differs from the target only by its label, not in its bytes."""
    if isinstance(target, types.UUIDType) and source.type.equals(pa.binary(UUID_WIDTH)):
        return lambda array: pa.ExtensionArray.from_storage(arrow, array)
    if isinstance(target, types.StringType) and source.type in (pa.binary(), pa.large_binary()):
        return lambda array: array.cast(pa.binary()).view(arrow)
    if _same_unit_with_zone(source.type, arrow):
        return lambda array: array.view(arrow)
    return None


# Types that are narrower than the target's Arrow type: the cast loses nothing, or fails on overflow.
_WIDENED: Final[Mapping[type[IcebergType], tuple[pa.DataType, ...]]] = {
    types.IntegerType: (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()),
    types.LongType: (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
    types.DoubleType: (pa.float32(),),
    types.TimeType: (pa.time32("ms"),),
    types.TimestampType: (pa.timestamp("ms"),),
    types.TimestamptzType: (pa.timestamp("ms", "UTC"),),
    types.StringType: (pa.large_string(),),
    types.BinaryType: (pa.large_binary(),),
}


def _same_unit_with_zone(source: pa.DataType, arrow: pa.DataType) -> bool:
    """Whether both have one unit and a zone. The zone is only a label: the numbers are UTC in any case."""
    have_zones = all(pa.types.is_timestamp(each) and each.tz is not None for each in (source, arrow))
    return have_zones and source.unit == arrow.unit


def _int96_converter(source: SourceColumn, target: IcebergType, arrow: pa.DataType) -> Convert:
    """Read INT96 as microseconds: as nanoseconds, years before 1677 and after 2262 would overflow."""
    if isinstance(target, (types.TimestampType, types.TimestamptzType)) and source.type.equals(pa.timestamp("us")):
        return lambda array: array.view(arrow)
    raise _mismatch(source, target)


def _decimal_converter(source: SourceColumn, target: DecimalType, arrow: pa.DataType) -> Convert | None:
    found = source.type
    is_decimal = pa.types.is_decimal128(found) or pa.types.is_decimal256(found)
    if not is_decimal or found.scale != target.scale or found.precision > target.precision:
        raise _mismatch(source, target)
    as_it_is = found.equals(arrow)
    if not _may_overflow(source, target):
        return None if as_it_is else lambda array: array.cast(arrow)

    def convert_checked(array: pa.Array) -> pa.Array:
        array.validate(full=True)
        return array if as_it_is else array.cast(arrow)

    return convert_checked


def _may_overflow(source: SourceColumn, target: DecimalType) -> bool:
    """Whether a file may hold a number with too many digits: the writer would silently cut off its upper bytes."""
    if target.precision <= _MAX_INTEGER_DECIMAL:
        return False  # the writer itself raises an error
    return source.physical == VARIABLE_LENGTH or (
        source.physical == FIXED_LENGTH and source.length > bytes_required(10**target.precision - 1)
    )
