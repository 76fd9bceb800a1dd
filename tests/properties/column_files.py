"""Files of one column of any primitive type, and the metrics that an independent writer gives them."""

import math
import struct
import uuid
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from compactor.rewrite.parquet.column_metrics import ColumnMetrics

COLUMN = 3

# --- values of every primitive type -----------------------------------------------------------------------------------


def integers(bits):
    top = 2 ** (bits - 1)
    edges = st.sampled_from([-top, -257, -256, -1, 0, 1, 127, 128, 255, 256, top - 1])
    return edges | st.integers(-top, top - 1)


def floats(width):
    edges = st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan])
    return edges | st.floats(width=width)


def decimals(precision, scale):
    top = 10**precision - 1
    unscaled = st.sampled_from([-top, -129, -128, -1, 0, 1, 127, 128, 255, 256, top]) | st.integers(-top, top)
    return unscaled.map(lambda number: unscaled_decimal(number, scale))


def unscaled_decimal(unscaled, scale):
    return Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))


# No U+D7FF: PyIceberg's rounding of truncated upper bounds makes a lone surrogate of it, which has no UTF-8.
ASCII_TEXT = st.text("aAbz~", max_size=6)
TEXT = st.text("aZé\u4e2d\ue000\uffff\U00010000\U0001f600\U0010ffff", max_size=6)
BYTES = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]), max_size=5).map(bytes)
UUIDS = (
    st.tuples(*[st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])] * 2).map(lambda pair: struct.pack(">QQ", *pair))
    | st.uuids(version=4).map(lambda value: value.bytes)
    | st.integers(0, 2**40).map(lambda bits: uuid.UUID(int=(0x0190 << 112) | (bits << 72) | (7 << 76)).bytes)
)


@dataclass(frozen=True)
class Kind:
    """A column type, values of it, and the narrower type (with its values) that it may have been promoted from."""

    field_type: PrimitiveType
    values: Any
    narrow_type: PrimitiveType | None = None
    narrow_values: Any = None

    def __repr__(self):
        return str(self.field_type)


KINDS = [
    Kind(BooleanType(), st.booleans()),
    Kind(IntegerType(), integers(32)),
    Kind(LongType(), integers(64), IntegerType(), integers(32)),
    Kind(FloatType(), floats(32)),
    Kind(DoubleType(), floats(64), FloatType(), floats(32)),
    Kind(DecimalType(9, 2), decimals(9, 2), DecimalType(4, 2), decimals(4, 2)),
    Kind(DecimalType(38, 10), decimals(38, 10), DecimalType(18, 10), decimals(18, 10)),
    Kind(DateType(), integers(32)),
    Kind(TimeType(), st.integers(0, 86_399_999_999)),
    Kind(TimestampType(), integers(64)),
    Kind(TimestamptzType(), integers(64)),
    Kind(TimestampNanoType(), integers(64)),
    Kind(TimestamptzNanoType(), integers(64)),
    Kind(StringType(), TEXT | ASCII_TEXT),
    Kind(UUIDType(), UUIDS),
    Kind(FixedType(3), st.binary(min_size=3, max_size=3)),
    Kind(BinaryType(), BYTES),
]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=repr)
# PyIceberg binds no literal to a nanosecond timestamp, so its evaluators cannot be asked about those.
EVERY_KIND_WITH_LITERALS = pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if not isinstance(kind.field_type, TimestampNanoType | TimestamptzNanoType)],
    ids=repr,
)


def schema_of(field_type):
    return Schema(NestedField(COLUMN, "c", field_type, required=False))


# --- an independent writer of metrics ---------------------------------------------------------------------------------


def natural(value):
    """Numbers by value with -0.0 first, strings by code point, bytes unsigned."""
    return (value, math.copysign(1, value)) if isinstance(value, float) else value


def utf16(value):
    return list(struct.unpack(f">{len(value.encode('utf-16-be')) // 2}H", value.encode("utf-16-be")))


def signed_halves(value):
    return [int.from_bytes(half, "big", signed=True) for half in (value[:8], value[8:])]


ORDERS = {StringType: [natural, utf16], UUIDType: [natural, signed_halves]}


@dataclass(frozen=True)
class WrittenFile:
    """The rows of a file, the order its writer compared by, and the metrics it wrote."""

    rows: list
    order: Any
    metrics: ColumnMetrics

    @property
    def bounded(self):
        return [value for value in self.rows if not missing(value)]


def missing(value):
    return value is None or is_nan(value)


def is_nan(value):
    return isinstance(value, float) and math.isnan(value)


def lower_bound(field_type, value, width):
    if width and isinstance(field_type, StringType | BinaryType):
        value = TruncateTransform(width).transform(field_type)(value)
    return to_bytes(field_type, value)


def upper_bound(field_type, value, width):
    if width and isinstance(field_type, StringType):
        value = truncate_upper_bound_text_string(value, width)
    if width and isinstance(field_type, BinaryType):
        value = truncate_upper_bound_binary_string(value, width)
    return None if value is None else to_bytes(field_type, value)


def write(field_type, rows, order, width):
    bounded = [value for value in rows if not missing(value)]
    lower = lower_bound(field_type, min(bounded, key=order), width) if bounded else None
    upper = upper_bound(field_type, max(bounded, key=order), width) if bounded else None
    nans = {COLUMN: sum(map(is_nan, rows))} if isinstance(field_type, FloatType | DoubleType) else {}
    metrics = ColumnMetrics(
        record_count=len(rows),
        column_sizes={COLUMN: 10 * len(rows)},
        value_counts={COLUMN: len(rows)},
        null_value_counts={COLUMN: rows.count(None)},
        nan_value_counts=nans,
        lower_bounds={} if lower is None else {COLUMN: lower},
        upper_bounds={} if upper is None else {COLUMN: upper},
    )
    return WrittenFile(rows, order, metrics)


MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@st.composite
def written_files(draw, kind, *, exact=False):
    """Files of one column, some from before a promotion; unless `exact`, also truncated bounds and forgotten maps."""
    narrow = kind.narrow_type is not None and draw(st.booleans())
    field_type, values = (kind.narrow_type, kind.narrow_values) if narrow else (kind.field_type, kind.values)
    rows = draw(st.lists(values | st.none(), max_size=6))
    order = draw(st.sampled_from(ORDERS.get(type(field_type), [natural])))
    # Rounding a code point up is no rounding up in UTF-16 order, so only code point writers truncate.
    width = draw(st.integers(1, 4)) if not exact and order is natural and draw(st.booleans()) else None
    written = write(field_type, rows, order, width)
    if exact:
        return written
    forgotten = draw(st.sets(st.sampled_from(MAPS), max_size=2)) if draw(st.booleans()) else set()
    return replace(written, metrics=replace(written.metrics, **{name: {} for name in forgotten}))


def file_lists(kind, **options):
    return st.lists(written_files(kind, **options), max_size=4)
