"""Detect files that Iceberg's Spark reader misreads, from their footers.

Spark would write the rows that it misreads, in the right number, so no row count would show it. Each case was seen with
Iceberg 1.11. Other misreads are avoided by reading row by row and without caches (`spark_scan`, `session`), or found
while the rows are read (`exact_columns`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
from pyiceberg.types import NestedField, StructType

from compactor.errors import GiveUpError
from compactor.manifests.live_files import LiveFile
from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import ChunkField, ColumnField, Footer, SchemaField, read_footer
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, STRUCT, Struct
from compactor.rewrite.reading.files import without_arrow_schema
from compactor.rewrite.reading.schema import RefusedError
from compactor.rewrite.reading.source_columns import SourceColumn, check_identified, source_columns
from compactor.storage.byte_store import ByteStore

FOOTERS_AT_ONCE: Final = 16
_TIMESTAMP: Final = 8  # LogicalType
_UNIT: Final = 2  # TimestampType
_MILLIS: Final = 1  # TimeUnit
_NANOS: Final = 3  # TimeUnit
_CONVERTED_MILLIS: Final = 9  # ConvertedType TIMESTAMP_MILLIS, of writers that know no LogicalType
_BOUNDS: Final = ((6, 5), (2, 1))  # Statistics: min_value and max_value; min and max, of older writers
_NULL_COUNT: Final = 3  # Statistics
_LONG: Final = 8  # bytes
_REPEATED: Final = 2  # FieldRepetitionType
_MOST_MILLISECONDS: Final = (2**63 - 1) // 1000
"""Milliseconds that still fit in a long as microseconds: the year 294247."""
_NANOSECONDS: Final = (types.TimestampNanoType, types.TimestamptzNanoType)
_TIMESTAMPS: Final = (types.TimestampType, types.TimestamptzType, *_NANOSECONDS)


def misread_footers(
    store: ByteStore, schema: Schema, files: Sequence[LiveFile], name_mapping_json: str | None
) -> Refusal | None:
    """Refuse Parquet files, by their footers, whose timestamps have another unit than the table's column or may not fit
    in its unit, files with a struct of the table but with none of its columns, and files whose columns without a field
    id Spark ignores although the table's name mapping knows them.

    Encrypted footers are skipped: only Iceberg can read such files.

    Args:
        store: The files' store.
        schema: The table's schema.
        files: Data files of any format; only Parquet files are read.
        name_mapping_json: The table's `schema.name-mapping.default`, for files without field ids.

    Raises:
        RetryError: the store does not answer.
    """
    columns = index_by_id(schema)
    structs = _structs(columns)
    mapping = None if name_mapping_json is None else list(parse_mapping_from_json(name_mapping_json))
    if not structs and mapping is None and not any(map(_is_timestamp, columns.values())):
        return None
    read = [file.entry for file in files if file.entry.file_format == "parquet" and not file.entry.encrypted]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "footers") as pool:
        for entry, footer in zip(read, pool.map(lambda each: _footer(store, each.path, each.size), read), strict=True):
            if footer is None:
                continue
            found = _wrong_timestamps(entry.path, footer, columns)
            found = found or _ignored_columns(entry.path, footer, schema, structs, mapping)
            if found is not None:
                return found
    return None


def _wrong_timestamps(location: str, footer: Footer, columns: Mapping[int, NestedField]) -> Refusal | None:
    column = _other_unit(footer, columns)
    if column is not None:
        return Refusal(
            Reason.TIMESTAMP_UNIT,
            f"column {column} of {location} has another time unit than the table's column: Spark reads it in the "
            "table's unit",
        )
    column = _overflowing(footer, columns)
    if column is not None:
        return Refusal(
            Reason.VALUE_OUT_OF_RANGE,
            f"column {column} of {location} has, or may have, milliseconds that do not fit in microseconds: Spark's "
            "arithmetic overflows",
        )
    return None


def _ignored_columns(
    location: str,
    footer: Footer,
    schema: Schema,
    structs: Mapping[int, set[int]],
    mapping: Sequence[MappedField] | None,
) -> Refusal | None:
    """Refuse a file if Spark ignores one of its columns without an id, or one of its structs."""
    try:
        matters = mapping is not None and (structs or any(map(_has_id, footer.schema[1:])))
        named = _named(footer, mapping, schema.field_ids) if mapping is not None and matters else None
    except RefusedError as error:
        return Refusal(error.refusal.reason, f"{error.refusal.sentence} ({location})")
    except pa.ArrowException as error:
        return Refusal(Reason.NOT_SUPPORTED_BY_ARROW, f"columns of {location} have no field ids: {error}")
    lost = _lost_struct(footer, structs, named)
    if lost is None:
        return None
    return Refusal(
        Reason.STRUCT_FIELDS_REPLACED,
        f"{location} has struct {schema.find_column_name(lost)}, but none of its columns in the table: Spark reads it "
        "as null, and a list of such structs as empty",
    )


def _footer(store: ByteStore, location: str, size: int) -> Footer | None:
    try:
        return read_footer(store, location, size)
    except GiveUpError:  # encrypted, or damaged: Spark notices damage
        return None


def _other_unit(footer: Footer, columns: Mapping[int, NestedField]) -> str | None:
    """The name of a column whose timestamps have another unit than the table's column."""
    for element in footer.schema:
        found = _in_nanoseconds(element)
        expected = {isinstance(field.field_type, _NANOSECONDS) for field in _meant(element, columns)}
        if found is not None and expected and found not in expected:
            return _name(element)
    return None


def _overflowing(footer: Footer, columns: Mapping[int, NestedField]) -> str | None:
    """The name of a column with milliseconds that may be too many: its statistics say so, or say nothing."""
    leaves = [element for element in footer.schema if element.get(SchemaField.TYPE, I32) is not None]
    for index, element in enumerate(leaves):
        if _in_milliseconds(element) and _meant(element, columns):
            for group in footer.filled_row_groups:
                if not _fits(group.chunks[index].tree.get(ChunkField.META_DATA, STRUCT)):
                    return _name(element)
    return None


def _fits(chunk: Struct | None) -> bool:
    """Whether all milliseconds of a column chunk fit in a long as microseconds; False if that is unknown."""
    statistics: Struct | None = None if chunk is None else chunk.get(ColumnField.STATISTICS, STRUCT)
    if chunk is None or statistics is None:
        return False
    if statistics.get(_NULL_COUNT, I64) == chunk.get(ColumnField.NUM_VALUES, I64):
        return True  # there are no values
    for fields in _BOUNDS:
        bounds = [statistics.get(field, BINARY) for field in fields]
        if all(bound is not None and len(bound) == _LONG for bound in bounds):
            return all(abs(int.from_bytes(bound, "little", signed=True)) <= _MOST_MILLISECONDS for bound in bounds)
    return False


def _meant(element: Struct, columns: Mapping[int, NestedField]) -> list[NestedField]:
    """The timestamps of the table that a column of a file may be.

    Without an id the table's name mapping identifies the column: it may be any.
    """
    field_id = element.get(SchemaField.FIELD_ID, I32)
    meant = columns.values() if field_id is None else [columns[field_id]] if field_id in columns else []
    return [field for field in meant if _is_timestamp(field)]


def _name(element: Struct) -> str:
    name: bytes = element.get(SchemaField.NAME)
    return name.decode(errors="replace")


def _is_timestamp(field: NestedField) -> bool:
    return isinstance(field.field_type, _TIMESTAMPS)


def _in_nanoseconds(element: Struct) -> bool | None:
    """Whether a column has timestamps in nanoseconds; None for columns of other types."""
    unit = _unit(element)
    return None if unit is None else _NANOS in unit.fields


def _in_milliseconds(element: Struct) -> bool:
    unit = _unit(element)
    if unit is None:
        return bool(element.get(SchemaField.CONVERTED_TYPE, I32) == _CONVERTED_MILLIS)
    return _MILLIS in unit.fields


def _unit(element: Struct) -> Struct | None:
    """The unit of a column of timestamps, as its logical type tells."""
    logical: Struct | None = element.get(SchemaField.LOGICAL_TYPE, STRUCT)
    timestamp: Struct | None = None if logical is None else logical.get(_TIMESTAMP, STRUCT)
    unit: Struct | None = None if timestamp is None else timestamp.get(_UNIT, STRUCT)
    return unit


# --- structs ----------------------------------------------------------------------------------------------------------


def _structs(columns: Mapping[int, NestedField]) -> dict[int, set[int]]:
    """Field ids of a table's structs at any level → ids of the columns below each."""
    return {
        field_id: {below for below, each in index_by_id(field.field_type).items() if each.field_type.is_primitive}
        for field_id, field in columns.items()
        if isinstance(field.field_type, StructType)
    }


def _named(
    footer: Footer, mapping: Sequence[MappedField], field_ids: Collection[int]
) -> tuple[SourceColumn, ...] | None:
    """The columns of a file that has not an id for each, with ids by name if it has none; None: it has all.

    Raises:
        RefusedError: `partial_field_ids`; `type_not_supported`: Arrow's columns are not the file's.
        ArrowException: Arrow does not know such columns.
    """
    if all(_has_id(element) or element.get(SchemaField.REPETITION, I32) == _REPEATED for element in footer.schema[1:]):
        return None  # the groups between a list or map and its elements have none
    metadata = without_arrow_schema(footer)
    found = source_columns(metadata.schema.to_arrow_schema(), metadata.schema, mapping)
    check_identified(found, mapping, field_ids)
    return found


def _lost_struct(footer: Footer, structs: Mapping[int, set[int]], named: Sequence[SourceColumn] | None) -> int | None:
    """The field id of a struct that a file has, but none of its columns: Iceberg leaves such a group out."""
    groups: list[tuple[int, set[int]]] = []
    if named is None:
        _visit(footer.schema[0], iter(footer.schema[1:]), groups)
    else:
        _visit_named(named, groups)
    return next((field_id for field_id, below in groups if field_id in structs and not below & structs[field_id]), None)


def _has_id(element: Struct) -> bool:
    return element.get(SchemaField.FIELD_ID, I32) is not None


def _visit(parent: Struct, elements: Iterator[Struct], found: list[tuple[int, set[int]]]) -> set[int]:
    """Field ids below a group of a file; `found`: each of them with those below it.

    `elements`: those after the group, depth first.
    """
    ids: set[int] = set()
    for _ in range(parent.get(SchemaField.NUM_CHILDREN, I32) or 0):
        element = next(elements)
        _add(element.get(SchemaField.FIELD_ID, I32), _visit(element, elements, found), ids, found)
    return ids


def _visit_named(columns: Sequence[SourceColumn], found: list[tuple[int, set[int]]]) -> set[int]:
    """Field ids of columns and of what is nested in them; `found` as in `_visit`."""
    ids: set[int] = set()
    for column in columns:
        _add(column.field_id, _visit_named(column.children, found), ids, found)
    return ids


def _add(field_id: int | None, below: set[int], ids: set[int], found: list[tuple[int, set[int]]]) -> None:
    ids |= below
    if field_id is not None:
        ids.add(field_id)
        found.append((field_id, below))
