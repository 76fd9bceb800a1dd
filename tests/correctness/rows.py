"""Rows as readers give them, made comparable: exact values, order of rows and of map entries left out."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from tests.conftest import Lake

LINEAGE = ("_row_id", "_last_updated_sequence_number")
Rows = Counter[str]


def exact(value: Any, empty: Any = ()) -> Any:
    """A value as text that tells -0.0 from 0.0 and one bit from another; every NaN is the same NaN.

    `empty` stands for an empty list or map.
    """
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value).hex()
    if isinstance(value, dict):
        return tuple((name, exact(child, empty)) for name, child in value.items())
    if isinstance(value, list):
        if not value:
            return empty
        if all(isinstance(entry, tuple) for entry in value):  # Arrow gives maps as pairs
            return ("map", *sorted(((exact(key), exact(child, empty)) for key, child in value), key=repr))
        return [exact(child, empty) for child in value]
    return value


def exact_rows(read: pa.Table, empty: Any = ()) -> Rows:
    """The multiset of an Arrow table's rows; `empty` as in `exact`."""
    columns = [[exact(value, empty) for value in _plain(column).to_pylist()] for column in read.columns]
    return Counter(repr(row) for row in zip(*columns, strict=True)) if columns else Counter({"()": read.num_rows})


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Moments as integers: Python has no year 10000 and no nanoseconds."""
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        return column.cast(pa.int64())
    if isinstance(column.type, pa.BaseExtensionType):
        return column.cast(column.type.storage_type)
    return column


def spark_rows(lake: Lake, table: str, *, lineage: bool = False, as_of: int | None = None) -> Rows:
    """Every row as Spark reads it, with the row lineage columns where asked for."""
    columns = ", ".join(("*", *LINEAGE)) if lineage else "*"
    version = f" VERSION AS OF {as_of}" if as_of is not None else ""
    return exact_rows(lake.session.sql(f"SELECT {columns} FROM {lake.name(table).spark}{version}").toArrow())


def pyiceberg_rows(lake: Lake, table: str) -> Rows:
    """Every row as PyIceberg reads it. It gives null lists of structs as empty ones, so here empty is null."""
    return exact_rows(lake.catalog.load_table(lake.name(table).identifier).scan().to_arrow(), None)


# --- filters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filters:
    """Conditions in Spark SQL and the number of rows that meet each, counted without pushing anything down."""

    conditions: tuple[str, ...]
    counts: tuple[int, ...]


def filters_from_data(lake: Lake, table: str, schema: Schema, most: int) -> Filters:
    """Conditions on several columns with values taken from the data, and their true counts."""
    name = lake.name(table).spark
    sample = lake.session.sql(f"SELECT * FROM {name} LIMIT 50").toArrow()
    conditions: list[str] = []
    for index, field in enumerate(schema.fields):
        if not field.field_type.is_primitive or field.name not in sample.column_names:
            continue
        values = [value for value in _plain(sample.column(field.name)).to_pylist() if value is not None]
        conditions.extend(_conditions(field.name, field.field_type, values, index))
    chosen = tuple(conditions[:: max(1, len(conditions) // most)][:most])
    if not chosen:
        return Filters((), ())
    counted = ", ".join(f"count_if({condition})" for condition in chosen)
    return Filters(chosen, tuple(lake.sql(f"SELECT {counted} FROM {name}")[0]))


def _conditions(column: str, kind: IcebergType, values: list[Any], turn: int) -> list[str]:
    """Equality, ranges and nulls for one column; which values are taken depends on `turn`, to vary them."""
    name = "`" + column.replace("`", "``") + "`"
    found = [f"{name} IS NULL"] if turn % 3 == 0 else []
    if isinstance(kind, FloatType | DoubleType):
        found.append(f"isnan({name})")
    literals = sorted({literal for value in values if (literal := _literal(kind, value)) is not None})
    if literals:
        value = literals[turn % len(literals)]
        found += [f"{name} = {value}", f"{name} {('>=', '<=')[turn % 2]} {value}"]
        if not isinstance(kind, BooleanType | UUIDType):
            found.append(f"{name} {('>', '<')[turn % 2]} {literals[-1]}")
    return found


def _literal(kind: IcebergType, value: Any) -> str | None:
    """A foldable literal of exactly this value; None where SQL and Iceberg differ on what equals it (zeros)."""
    if isinstance(kind, FloatType | DoubleType):
        return _real(kind, value) if value else None
    written: dict[type, Callable[[Any], str]] = {
        BooleanType: lambda value: str(value).lower(),
        IntegerType: lambda value: f"CAST('{value}' AS INT)",
        LongType: lambda value: f"CAST('{value}' AS BIGINT)",
        DecimalType: lambda value: f"CAST('{value:f}' AS {str(kind).upper()})",
        DateType: lambda value: f"DATE'{value.isoformat()}'",
        TimestamptzType: lambda value: f"timestamp_micros({value}L)",
        TimestampType: lambda value: f"CAST(timestamp_micros({value}L) AS TIMESTAMP_NTZ)",
        StringType: lambda value: f"decode(X'{value.encode().hex()}', 'utf-8')",
        UUIDType: lambda value: f"'{value}'",
        BinaryType: lambda value: f"X'{value.hex()}'",
    }
    write = written.get(type(kind))
    return write(value) if write else None


def _real(kind: IcebergType, value: float) -> str:
    text = "Infinity" if value == math.inf else "-Infinity" if value == -math.inf else repr(value)
    return f"CAST('{text}' AS {str(kind).upper()})"


def filtered_counts(lake: Lake, table: str, conditions: tuple[str, ...], as_of: int | None = None) -> tuple[int, ...]:
    """Rows per condition, each with the condition pushed down to files, row groups and pages."""
    if not conditions:
        return ()
    version = f" VERSION AS OF {as_of}" if as_of is not None else ""
    each = [
        f"SELECT {index} AS i, count(*) AS n FROM {lake.name(table).spark}{version} WHERE {condition}"
        for index, condition in enumerate(conditions)
    ]
    return tuple(row.n for row in sorted(lake.sql(" UNION ALL ".join(each)), key=lambda row: row.i))
