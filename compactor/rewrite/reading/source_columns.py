"""The columns of a Parquet file, with the field ids by which they are matched.

Ids come from the file. A file without any id gets them from the table's name mapping (Iceberg spec, "Column
projection"). In a file with some ids, a column without an id matches no field in Iceberg's Java code, but PyIceberg and
the spec match it by name: a file where that makes a difference is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import MappedField

from compactor.reasons import Reason
from compactor.rewrite.reading.schema import FIELD_ID_KEY, refused

INT96: Final = "INT96"  # timestamps, as older versions of Spark and Impala write them
FIXED_LENGTH: Final = "FIXED_LEN_BYTE_ARRAY"
VARIABLE_LENGTH: Final = "BYTE_ARRAY"
SET_A_MAPPING: Final = "set the table property schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column or group of a file.

    Attributes:
        field_id: None when it has none.
        name: Its name within its parent.
        type: As Arrow reads it.
        physical: Parquet's physical type, empty for groups.
        length: Bytes of a FIXED_LEN_BYTE_ARRAY.
        leaf: Index of its column chunk in each row group; None for groups. Paths may be equal: column `a.b`, and
            column `b` of struct `a`.
        children: Of structs, lists (one) and maps (two).
    """

    field_id: int | None
    name: str
    type: pa.DataType
    physical: str
    length: int
    leaf: int | None
    children: tuple[SourceColumn, ...]


def source_columns(
    arrow: pa.Schema, parquet: pq.ParquetSchema, mapping: Sequence[MappedField] | None
) -> tuple[SourceColumn, ...]:
    """The top-level columns of a file.

    Args:
        arrow: The file's schema as Arrow reads it.
        parquet: The same file's Parquet schema.
        mapping: The table's name mapping, if it has one.

    Raises:
        RefusedError: `no_field_ids`: neither the file nor the table identifies the columns; `type_not_supported`:
            Arrow's columns are not the file's.
    """
    leaves = iter([(index, parquet.column(index)) for index in range(len(parquet))])
    columns = tuple(_column(field, leaves) for field in arrow)
    if next(leaves, None) is not None:
        raise refused(Reason.TYPE_NOT_SUPPORTED, "a file has columns that Arrow does not show")
    if _any_id(columns):
        return columns
    if mapping is None:
        raise refused(
            Reason.NO_FIELD_IDS, f"a file has no field ids and the table has no name mapping; {SET_A_MAPPING}"
        )
    return tuple(_mapped(column, mapping) for column in columns)


def check_identified(
    columns: Sequence[SourceColumn], mapping: Sequence[MappedField] | None, field_ids: Collection[int]
) -> None:
    """Check that no column without an id is, by name, a field that the file otherwise lacks: at any level.

    Args:
        columns: The top-level columns of a file, from `source_columns`.
        mapping: The table's name mapping, if it has one.
        field_ids: Of the table's fields that are read, nested ones included.

    Raises:
        RefusedError: `partial_field_ids`.
    """
    name = _unidentified(columns, mapping or (), set(field_ids) - set(_ids(columns)))
    if name is not None:
        raise refused(
            Reason.PARTIAL_FIELD_IDS,
            f"column {name} of a file has no field id, others have: Iceberg's Java code ignores the column, other "
            "readers find it by the table's name mapping",
        )


def children_in_arrow(arrow: pa.DataType) -> list[pa.Field]:
    """The fields nested directly in an Arrow type; only types that occur in Parquet files."""
    if pa.types.is_struct(arrow):
        return [arrow.field(index) for index in range(arrow.num_fields)]
    if pa.types.is_map(arrow):
        return [arrow.key_field, arrow.item_field]
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return [arrow.value_field]
    return []


def _column(field: pa.Field, leaves: Iterator[tuple[int, pq.ColumnSchema]]) -> SourceColumn:
    children = tuple(_column(child, leaves) for child in children_in_arrow(field.type))
    physical, length, leaf = "", 0, None
    if not children:
        found = next(leaves, None)
        if found is None:
            raise refused(Reason.TYPE_NOT_SUPPORTED, f"column {field.name} of a file is not one Parquet column")
        leaf, column = found
        physical, length = column.physical_type, column.length or 0
    return SourceColumn(_field_id(field), field.name, field.type, physical, length, leaf, children)


def _field_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(FIELD_ID_KEY)
    field_id = -1 if found is None else int(found)
    return field_id if field_id >= 0 else None


def _any_id(columns: Sequence[SourceColumn]) -> bool:
    return any(column.field_id is not None or _any_id(column.children) for column in columns)


def _ids(columns: Sequence[SourceColumn]) -> Iterator[int]:
    for column in columns:
        if column.field_id is not None:
            yield column.field_id
        yield from _ids(column.children)


def _unidentified(columns: Sequence[SourceColumn], mapping: Sequence[MappedField], missing: set[int]) -> str | None:
    """The name of a column without an id that `mapping` takes for one of the `missing` fields."""
    for column in columns:
        entry = next((each for each in mapping if _is_meant(each, column)), None)
        if entry is not None and column.field_id is None and entry.field_id in missing:
            return column.name
        named = [replace(child, name=name) for child, name in zip(column.children, _mapped_names(column), strict=True)]
        found = _unidentified(named, [] if entry is None else entry.fields, missing)
        if found is not None:
            return f"{column.name}.{found}"
    return None


def _is_meant(entry: MappedField, column: SourceColumn) -> bool:
    return column.name in entry.names if column.field_id is None else column.field_id == entry.field_id


def _mapped(column: SourceColumn, mapping: Sequence[MappedField]) -> SourceColumn:
    """`column` and its children with their ids from a name mapping."""
    found = next((mapped for mapped in mapping if column.name in mapped.names), None)
    below = [] if found is None else found.fields
    names = _mapped_names(column)
    children = tuple(
        _mapped(replace(child, name=name), below) for child, name in zip(column.children, names, strict=True)
    )
    return replace(column, field_id=None if found is None else found.field_id, children=children)


def _mapped_names(column: SourceColumn) -> list[str]:
    """The children's names in name mappings: writers use many names for list elements and map entries."""
    if pa.types.is_map(column.type):
        return ["key", "value"]
    if pa.types.is_struct(column.type):
        return [child.name for child in column.children]
    return ["element"] * len(column.children)
