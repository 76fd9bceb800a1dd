"""Rows to write: a seed in, an Arrow table out, with the values that break readers well represented.

Columns whose name starts with `k` draw from a handful of values: they are what tables are partitioned by, and what
equality deletes hit. All others draw from the whole pool of their type.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

NARROW_PREFIX = "k"
NARROW_VALUES = 3
NULLS = 0.15
MOMENTS = (
    dt.datetime(1970, 1, 1),  # noqa: DTZ001 - the zone is the column's business
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    dt.datetime(2024, 2, 29, 12, 30, 15, 500_000),  # noqa: DTZ001
    dt.datetime(2024, 3, 1, 0, 0, 0, 1),  # noqa: DTZ001
    dt.datetime(1, 1, 1),  # noqa: DTZ001
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    dt.datetime(1883, 11, 18, 12, 3, 58),  # noqa: DTZ001
)
NANOSECONDS = (0, 1, -1, 1_709_209_815_500_000_123, -(2**62), 2**62)
TEXTS = (
    "a", "", "b", "a/b", "with space", "ünï日本", "50%", "x=y", "'quoted'", "text that is longer than sixteen A",
    "text that is longer than sixteen B", "\U0010ffff" * 20, "\ud7ff\uffff" * 9, "nul\x00byte", "é" * 16, "..",
)  # fmt: skip
BYTES = (b"", b"\x00", b"\xff", b"\xff" * 20, b"a/b", b"\x80" * 16, b"\x00" * 17, b"text longer than sixteen bytes")
REALS = (
    0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 3.4028234663852886e38, 1.401298464324817e-45, -1e-10, 0.1,
)  # fmt: skip
INTEGERS = (0, 1, -1, 7, 42, 1000, 2**31 - 1, -(2**31))
LONGS = (*INTEGERS, 2**63 - 1, -(2**63), 2**53 + 1, -(2**32) - 5)
UUIDS = tuple(uuid.UUID(int=number) for number in (0, 1, 2**127, 2**128 - 1, 0x7FFF << 112, 0x0123456789ABCDEF << 64))
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001
MICROSECOND = dt.timedelta(microseconds=1)


def pool(kind: IcebergType) -> tuple[Any, ...]:
    """Values of a primitive type: its limits, what lies around zero, what compares oddly."""
    if isinstance(kind, DecimalType):
        most = 10**kind.precision - 1
        raw = (0, 1, -1, most, -most, most // 3, -(most // 7), 10 ** (kind.precision - 1))
        with localcontext(prec=60):
            return tuple(Decimal(number).scaleb(-kind.scale) for number in raw)
    if isinstance(kind, FixedType):
        width = len(kind)
        return (*(bytes([byte]) * width for byte in (0, 1, 127, 128, 255)), bytes(range(width)))
    if isinstance(kind, FloatType):
        return tuple(REALS)
    pools: dict[type, tuple[Any, ...]] = {
        BooleanType: (True, False),
        IntegerType: INTEGERS,
        LongType: LONGS,
        DoubleType: (*REALS, 1.7976931348623157e308, 5e-324, 0.1 + 2**-55),
        DateType: tuple(moment.date() for moment in MOMENTS),
        TimeType: (dt.time(), dt.time(23, 59, 59, 999_999), dt.time(12, 0, 0, 1)),
        TimestampType: tuple((moment - EPOCH) // MICROSECOND for moment in MOMENTS),
        TimestamptzType: tuple((moment - EPOCH) // MICROSECOND for moment in MOMENTS),
        TimestampNanoType: NANOSECONDS,
        TimestamptzNanoType: NANOSECONDS,
        StringType: TEXTS,
        UUIDType: tuple(value.bytes for value in UUIDS),
        BinaryType: BYTES,
    }
    return pools[type(kind)]


def value(kind: IcebergType, rng: random.Random, *, required: bool = False, narrow: bool = False) -> Any:
    """One value of any type, or None where the field is optional."""
    if not required and rng.random() < NULLS:
        return None
    if isinstance(kind, StructType):
        return {field.name: value(field.field_type, rng, required=field.required) for field in kind.fields}
    if isinstance(kind, ListType):
        return [value(kind.element_type, rng, required=kind.element_required) for _ in range(rng.choice((0, 1, 1, 3)))]
    if isinstance(kind, MapType):
        keys = rng.sample(pool(kind.key_type), rng.choice((0, 1, 2)))
        return [(key, value(kind.value_type, rng, required=kind.value_required)) for key in keys]
    values = pool(kind)
    return rng.choice(values[:NARROW_VALUES] if narrow else values)


def random_rows(schema: Schema, count: int, seed: int) -> pa.Table:
    """`count` rows of `schema`, the same for the same seed. A column named `id` holds small numbers, some twice.

    The Arrow schema carries the field ids, so that a Parquet file of it is one that Iceberg reads by id.
    """
    rng = random.Random(seed)
    columns = [_column(field, count, rng) for field in schema.fields]
    return pa.Table.from_arrays(columns, schema=schema_to_pyarrow(schema))


def _column(field: NestedField, count: int, rng: random.Random) -> pa.Array:
    kind = schema_to_pyarrow(field.field_type)
    if field.name == "id":
        return pa.array([rng.randrange(40) for _ in range(count)], kind)
    narrow = field.name.startswith(NARROW_PREFIX)
    values = [value(field.field_type, rng, required=field.required, narrow=narrow) for _ in range(count)]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)
