"""Detect files that Iceberg's Spark reader misreads, from their footers.

Spark would write the rows that it misreads, in the right number, so no row count would show it. Each case was seen with
Iceberg 1.11. Other misreads are avoided by reading row by row and without caches: see `spark_scan` and `session`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyiceberg import types
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import NestedField

from compactor.errors import GiveUpError
from compactor.manifests.live_files import LiveFile
from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import Footer, SchemaField, read_footer
from compactor.rewrite.parquet.thrift import I32, STRUCT, Struct
from compactor.storage.byte_store import ByteStore

FOOTERS_AT_ONCE: Final = 16
_TIMESTAMP: Final = 8  # LogicalType
_UNIT: Final = 2  # TimestampType
_NANOS: Final = 3  # TimeUnit
_NANOSECONDS: Final = (types.TimestampNanoType, types.TimestamptzNanoType)
_TIMESTAMPS: Final = (types.TimestampType, types.TimestamptzType, *_NANOSECONDS)


def misread_units(store: ByteStore, schema: Schema, files: Sequence[LiveFile]) -> Refusal | None:
    """Refuse Parquet files whose timestamps have another unit than the table's column, by their footers.

    Encrypted footers are skipped: only Iceberg can read such files.

    Raises:
        RetryError: the store does not answer.
    """
    columns = index_by_id(schema)
    if not any(map(_is_timestamp, columns.values())):
        return None
    read = [file.entry for file in files if file.entry.file_format == "parquet" and not file.entry.encrypted]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "footers") as pool:
        for entry, footer in zip(read, pool.map(lambda each: _footer(store, each.path, each.size), read), strict=True):
            column = None if footer is None else _other_unit(footer, columns)
            if column is not None:
                return Refusal(
                    Reason.TIMESTAMP_UNIT,
                    f"column {column} of {entry.path} has another time unit than the table's column: Spark reads it in "
                    "the table's unit",
                )
    return None


def _footer(store: ByteStore, location: str, size: int) -> Footer | None:
    try:
        return read_footer(store, location, size)
    except GiveUpError:  # encrypted, or damaged: Spark notices damage
        return None


def _other_unit(footer: Footer, columns: Mapping[int, NestedField]) -> str | None:
    """The name of a column whose timestamps have another unit than the table's column."""
    for element in footer.schema:
        found, field_id = _in_nanoseconds(element), element.get(SchemaField.FIELD_ID, I32)
        # Without an id the table's name mapping identifies the column: compare with all columns of the table.
        meant = columns.values() if field_id is None else [columns[field_id]] if field_id in columns else []
        expected = {isinstance(field.field_type, _NANOSECONDS) for field in meant if _is_timestamp(field)}
        if found is not None and expected and found not in expected:
            name: bytes = element.get(SchemaField.NAME)
            return name.decode(errors="replace")
    return None


def _is_timestamp(field: NestedField) -> bool:
    return isinstance(field.field_type, _TIMESTAMPS)


def _in_nanoseconds(element: Struct) -> bool | None:
    """Whether a column has timestamps in nanoseconds; None for columns of other types."""
    logical: Struct | None = element.get(SchemaField.LOGICAL_TYPE, STRUCT)
    timestamp: Struct | None = None if logical is None else logical.get(_TIMESTAMP, STRUCT)
    unit: Struct | None = None if timestamp is None else timestamp.get(_UNIT, STRUCT)
    return None if unit is None else _NANOS in unit.fields
