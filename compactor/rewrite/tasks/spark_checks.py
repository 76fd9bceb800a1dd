"""Detect files that Iceberg's Spark reader misreads, from their footers and headers.

Spark would write the rows that it misreads, in the right number, so no row count would show it. Each case was seen with
Iceberg 1.11, or follows from its code. Other misreads are detected from metadata alone (`planning/spark_misreads.py`),
avoided by reading row by row and without caches (`spark_scan`, `session`), or found while the rows are read
(`exact_columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from pyiceberg import types
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.types import NestedField

from compactor.errors import GiveUpError
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import ColumnField, Footer, SchemaField, read_footer
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, STRUCT, Struct
from compactor.rewrite.reading.schema import RefusedError
from compactor.rewrite.reading.source_columns import SET_A_MAPPING
from compactor.rewrite.tasks.spark_columns import ColumnChecks
from compactor.rewrite.tasks.stored_ids import stored_ids
from compactor.storage.byte_store import ByteStore

FILES_AT_ONCE: Final = 16
_TIMESTAMP: Final = 8  # LogicalType
_UNIT: Final = 2  # TimestampType
_MILLIS: Final = 1  # TimeUnit
_NANOS: Final = 3  # TimeUnit
_CONVERTED_MILLIS: Final = 9  # ConvertedType TIMESTAMP_MILLIS, of writers that know no LogicalType
_BOUNDS: Final = ((6, 5), (2, 1))  # Statistics: min_value and max_value; min and max, of older writers
_NULL_COUNT: Final = 3  # Statistics
_LONG: Final = 8  # bytes
_MOST_MILLISECONDS: Final = (2**63 - 1) // 1000
"""Milliseconds that still fit in a long as microseconds: the year 294247."""
_NANOSECONDS: Final = (types.TimestampNanoType, types.TimestamptzNanoType)
_TIMESTAMPS: Final = (types.TimestampType, types.TimestamptzType, *_NANOSECONDS)


def misread_files(
    store: ByteStore,
    schemas: Sequence[Schema],
    files: Sequence[LiveFile],
    name_mapping_json: str | None,
) -> Refusal | None:
    """Why Spark would misread the files, or the equality deletes that apply to them; None if it would not.

    Of Parquet files: timestamps that have another unit than the table's column or may not fit in its unit, and what
    `spark_columns` finds. Of the others: no field ids, if the table has no name mapping, since Spark then takes columns
    by the table's present names. Of equality deletes: a column that is compared and not there.

    Only Iceberg can read encrypted files. They are taken for files with the columns of any of the table's schemas.

    Args:
        store: The files' store.
        schemas: The table's, the current one first.
        files: Data files of any format, with their deletes.
        name_mapping_json: The table's `schema.name-mapping.default`, for files without field ids.

    Raises:
        GiveUpError: a file is damaged, or an error of the store.
        RetryError: the store does not answer.
    """
    mapping = None if name_mapping_json is None else list(parse_mapping_from_json(name_mapping_json))
    columns, fields = ColumnChecks(schemas[0], mapping), index_by_id(schemas[0])

    def of_data(entry: FileEntry) -> Refusal | None:
        if entry.file_format == "parquet":
            footer = None if entry.encrypted else _footer(store, entry)
            if footer is None:
                return _if_encrypted(entry, columns, schemas)
            return _wrong_timestamps(entry.path, footer, fields) or columns.misread(entry.path, footer)
        return None if entry.encrypted or mapping is not None else _unidentified(store, entry)

    deletes = (each for each in deletes_of(files) if each.content is Content.EQUALITY_DELETES and not each.encrypted)
    checks: list[Callable[[], Refusal | None]] = [
        *(partial(of_data, file.entry) for file in files),
        *(partial(_uncompared, store, delete) for delete in deletes),
    ]
    with ThreadPoolExecutor(FILES_AT_ONCE, "checks") as pool:
        return next(filter(None, pool.map(_refusal_of, checks)), None)


def _refusal_of(check: Callable[[], Refusal | None]) -> Refusal | None:
    try:
        return check()
    except RefusedError as error:
        return error.refusal


def _footer(store: ByteStore, entry: FileEntry) -> Footer | None:
    """The footer of a Parquet file; None if it is encrypted."""
    try:
        return read_footer(store, entry.path, entry.size)
    except GiveUpError as error:
        if error.reason == Reason.ENCRYPTED:
            return None
        raise


def _if_encrypted(entry: FileEntry, columns: ColumnChecks, schemas: Sequence[Schema]) -> Refusal | None:
    """Why Spark would misread an encrypted file if it has the columns of an earlier schema."""
    for schema in schemas:
        location = f"{entry.path} (encrypted; perhaps written with schema {schema.schema_id})"
        found = columns.misread_if_written_with(location, schema)
        if found is not None:
            return found
    return None


def _unidentified(store: ByteStore, entry: FileEntry) -> Refusal | None:
    if stored_ids(store, entry):
        return None
    return Refusal(
        Reason.NO_FIELD_IDS,
        f"{entry.path} has no field ids and the table has no name mapping, so Spark takes the file's columns by the "
        f"names that the table's columns have now; {SET_A_MAPPING}",
    )


def _uncompared(store: ByteStore, delete: FileEntry) -> Refusal | None:
    missing = set(delete.equality_ids) - stored_ids(store, delete)
    if not missing:
        return None
    return Refusal(
        Reason.EQUALITY_DELETES,
        f"equality deletes {delete.path} have no column with field id {min(missing)}, by which they delete rows: Spark "
        "takes another column or null, and would delete other rows",
    )


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


def _other_unit(footer: Footer, columns: Mapping[int, NestedField]) -> str | None:
    """The name of a column whose timestamps have another unit than the table's column."""
    for element in footer.schema:
        found = _in_nanoseconds(element)
        expected = {isinstance(field.field_type, _NANOSECONDS) for field in _meant(element, columns)}
        if found is not None and expected and found not in expected:
            return _name(element)
        meant = columns.get(element.get(SchemaField.FIELD_ID, I32))
        if meant is not None and isinstance(meant.field_type, types.LongType) and _in_milliseconds(element):
            return _name(element)  # Spark reads them as microseconds all the same
    return None


def _overflowing(footer: Footer, columns: Mapping[int, NestedField]) -> str | None:
    """The name of a column with milliseconds that may be too many: its statistics say so, or say nothing."""
    leaves = [element for element in footer.schema if element.get(SchemaField.TYPE, I32) is not None]
    for element, leaf in zip(leaves, footer.leaves, strict=True):
        if _in_milliseconds(element) and _meant(element, columns):
            for group in footer.filled_row_groups:
                found = next((chunk for chunk in group.chunks if chunk.path == leaf.path), None)
                if found is None or not _fits(found.metadata):
                    return _name(element)
    return None


def _fits(chunk: Struct) -> bool:
    """Whether all milliseconds of a column chunk fit in a long as microseconds; False if that is unknown."""
    statistics: Struct | None = chunk.get(ColumnField.STATISTICS, STRUCT)
    if statistics is None:
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
