import json
import struct
import uuid
from dataclasses import replace
from decimal import Decimal

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    GeometryType,
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
    UnknownType,
    UUIDType,
)

from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge, to_json, with_column_sizes
from tests.unit.failing import fails

COLUMN = 7
NAN = float("nan")


def schema_of(field_type):
    return Schema(NestedField(COLUMN, "c", field_type, required=False))


NAMES = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def metrics(rows=10, **maps):
    return ColumnMetrics(rows, **{name: maps.get(name, {}) for name in NAMES})


def column(lower=None, upper=None, *, values=10, nulls=0, nans=None, rows=10):
    """Metrics of one file in which one column has these bounds (bytes) and counts (None: unknown)."""
    given = zip(NAMES, (100, values, nulls, nans, lower, upper), strict=True)
    return metrics(rows, **{name: {COLUMN: value} for name, value in given if value is not None})


def merged_bounds(field_type, *inputs):
    merged = merge(inputs, schema_of(field_type))
    return merged.lower_bounds.get(COLUMN), merged.upper_bounds.get(COLUMN)


def both(field_type, low, high):
    return to_bytes(field_type, low), to_bytes(field_type, high)


def point_files(field_type, *values):
    return [column(to_bytes(field_type, value), to_bytes(field_type, value)) for value in values]


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["column_sizes", "value_counts", "null_value_counts", "nan_value_counts"])
def test_count_unknown_in_one_input_is_unknown_in_the_merged_file(name):
    known = metrics(**{name: {COLUMN: 3}}) if name != "value_counts" else metrics(value_counts={COLUMN: 10})
    merged = merge([known, metrics()], schema_of(DoubleType()))
    assert getattr(merged, name) == {}
    assert merged.record_count == 20


def test_empty_inputs_are_passed_over():
    one = column(b"\x01", b"\x01", nulls=1)
    assert merge([metrics(0), one, metrics(0)], schema_of(BooleanType())) == one


def test_nothing_to_merge_gives_the_metrics_of_an_empty_file():
    assert merge([], schema_of(LongType())) == metrics(0)
    assert merge([metrics(0), metrics(0)], schema_of(LongType())) == metrics(0)


def test_uncounted_rows_are_refused():
    with fails("record_count_unknown"):
        merge([metrics(-1), metrics(5)], schema_of(LongType()))


def test_columns_that_left_the_schema_are_left_out():
    gone = COLUMN + 1
    one = metrics(**{name: {gone: value} for name, value in zip(NAMES, (1, 10, 0, 0, b"a", b"b"), strict=True)})
    assert merge([one, one], schema_of(StringType())) == metrics(20)


def test_nested_columns_keep_counts_and_what_bounds_they_have():
    schema = Schema(
        NestedField(1, "s", StructType(NestedField(2, "x", "int")), required=False),
        NestedField(3, "l", ListType(4, "int", element_required=False), required=False),
        NestedField(5, "m", MapType(6, "string", 7, "long", value_required=False), required=False),
    )
    leaves = (2, 4, 6, 7)
    one = metrics(
        value_counts=dict.fromkeys(leaves, 10),
        null_value_counts=dict.fromkeys(leaves, 1),
        lower_bounds={2: to_bytes(IntegerType(), -5)},
        upper_bounds={2: to_bytes(IntegerType(), 5)},
    )
    merged = merge([one, one], schema)
    assert merged.value_counts == dict.fromkeys(leaves, 20)
    assert merged.null_value_counts == dict.fromkeys(leaves, 2)
    assert merged.lower_bounds == one.lower_bounds
    assert merged.upper_bounds == one.upper_bounds


@pytest.mark.parametrize(
    "impossible",
    [
        {"nulls": 12, "values": 10},
        {"nulls": -1},
        {"nans": -1},
        {"nulls": 6, "nans": 6},
        {"values": -1, "nulls": None},
        {"values": 0},
    ],
)
def test_column_whose_counts_cannot_be_true_is_unknown(impossible):
    low, high = both(DoubleType(), 1.0, 2.0)
    good = column(low, high, nulls=8, nans=0)
    merged = merge([good, column(low, high, **impossible)], schema_of(DoubleType()))
    assert merged == metrics(20, column_sizes={COLUMN: 200})


# --- bounds by the order of the type ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field_type", "ascending"),
    [
        (BooleanType(), [False, True]),
        (IntegerType(), [-(2**31), -2, -1, 0, 1, 256, 2**31 - 1]),
        (LongType(), [-(2**63), -2, -1, 0, 1, 256, 2**63 - 1]),
        (DateType(), [-719_162, -1, 0, 256, 20_000]),
        (TimeType(), [0, 1, 256, 86_399_999_999]),
        (TimestampType(), [-(2**60), -1, 0, 256, 2**60]),
        (TimestamptzType(), [-(2**60), -1, 0, 256, 2**60]),
        (TimestampNanoType(), [-(2**60), -1, 0, 256, 2**60]),
        (TimestamptzNanoType(), [-(2**60), -1, 0, 256, 2**60]),
        (FloatType(), [float("-inf"), -1.5, -0.0, 0.0, 1.5, float("inf")]),
        (DoubleType(), [float("-inf"), -1e300, -0.0, 0.0, 1e-300, float("inf")]),
        (DecimalType(9, 2), [Decimal(text) for text in ("-300.00", "-1.29", "-1.28", "-0.01", "0.00", "1.27", "1.28")]),
        (
            DecimalType(38, 0),
            [Decimal(-(10**37)), Decimal(-1), Decimal(0), Decimal(255), Decimal(256), Decimal(10**37)],
        ),
        (StringType(), ["", "a", "ab", "b", "é", "\uffff"]),
        (BinaryType(), [b"", b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"\xff"]),
        (FixedType(2), [b"\x00\x00", b"\x00\xff", b"\x7f\x00", b"\x80\x00", b"\xff\xff"]),
        (UUIDType(), [bytes([first]) + bytes(15) for first in (0, 1, 0x7F)]),
    ],
    ids=str,
)
def test_bounds_are_the_extremes_by_the_order_of_the_type(field_type, ascending):
    for low in range(len(ascending)):
        for high in range(low, len(ascending)):
            files = point_files(field_type, ascending[high], *ascending[low : high + 1])
            expected = to_bytes(field_type, ascending[low]), to_bytes(field_type, ascending[high])
            assert merged_bounds(field_type, *files) == expected


def test_bound_missing_in_one_input_is_dropped_on_that_side_only():
    low, high = both(LongType(), 1, 9)
    assert merged_bounds(LongType(), column(low, high), column(None, high)) == (None, high)
    assert merged_bounds(LongType(), column(low, high), column(low, None)) == (low, None)
    assert merged_bounds(LongType(), column(low, high), column(None, None)) == (None, None)


def test_all_null_input_is_passed_over():
    low, high = both(LongType(), 1, 9)
    assert merged_bounds(LongType(), column(low, high), column(nulls=10)) == (low, high)
    assert merged_bounds(LongType(), column(nulls=10), column(nulls=10)) == (None, None)


def test_input_is_not_all_null_unless_both_counts_say_so():
    low, high = both(LongType(), 1, 9)
    for other in (column(nulls=9), column(nulls=10, values=None), column(nulls=None), column(nulls=0, values=0)):
        assert merged_bounds(LongType(), column(low, high), other) == (None, None)


def test_all_nan_input_drops_the_upper_bound_alone():
    """Readers that sort NaN last find it above every number, in a file without bounds."""
    low, high = both(DoubleType(), 1.0, 9.0)
    assert merged_bounds(DoubleType(), column(low, high, nans=0), column(nans=10)) == (low, None)
    nan = to_bytes(DoubleType(), NAN)
    assert merged_bounds(DoubleType(), column(low, high, nans=0), column(nan, nan, nans=10)) == (low, None)


def test_input_of_nulls_and_nans_drops_the_bounds():
    low, high = both(DoubleType(), 1.0, 9.0)
    assert merged_bounds(DoubleType(), column(low, high, nans=0), column(nulls=4, nans=6)) == (None, None)


@pytest.mark.parametrize("field_type", [FloatType(), DoubleType()], ids=str)
def test_nan_bound_drops_both_bounds(field_type):
    low, high, nan = (to_bytes(field_type, value) for value in (1.0, 9.0, NAN))
    for odd in (column(nan, high, nans=0), column(low, nan, nans=0), column(nan, nan, nans=0)):
        for files in ([column(low, high, nans=0), odd], [odd, column(low, high, nans=0)], [odd]):
            assert merged_bounds(field_type, *files) == (None, None)


def test_bounds_go_when_a_null_count_is_lost_that_was_not_zero():
    low, high = both(LongType(), 6, 9)
    unknown = column(low, high, nulls=None)
    assert merged_bounds(LongType(), unknown, column(low, high, nulls=2)) == (None, None)
    assert merged_bounds(LongType(), unknown, column(nulls=10)) == (None, None)
    assert merged_bounds(LongType(), unknown, column(low, high, nulls=0)) == (low, high)


def test_bounds_go_when_a_nan_count_is_lost_that_was_not_zero():
    low, high = both(DoubleType(), 6.0, 9.0)
    unknown = column(low, high, nans=None)
    assert merged_bounds(DoubleType(), unknown, column(low, high, nans=2)) == (None, None)
    assert merged_bounds(DoubleType(), unknown, column(low, high, nans=0)) == (low, high)
    assert merged_bounds(DoubleType(), unknown, unknown) == (low, high)


# --- orders that readers disagree about -------------------------------------------------------------------------------


def test_string_bound_is_dropped_where_code_points_and_utf16_units_disagree():
    beyond, private_use = "\U0001f600", "\ue000"
    assert beyond > private_use
    assert beyond.encode("utf-16-be") < private_use.encode("utf-16-be")
    files = point_files(StringType(), beyond, private_use)
    assert merged_bounds(StringType(), *files) == (None, None)
    low, high = b"a", "\U0010ffff\U0010ffff".encode()
    assert merged_bounds(StringType(), *files, column(low, low)) == (low, None)
    assert merged_bounds(StringType(), column(low, high), column(low, beyond.encode())) == (low, high)


def test_uuid_bound_is_dropped_where_signed_and_unsigned_order_disagree():
    positive = uuid.UUID("7fffffff-ffff-7fff-bfff-ffffffffffff")
    negative = uuid.UUID("80000000-0000-7000-8000-000000000000")
    assert merged_bounds(UUIDType(), *point_files(UUIDType(), positive, negative)) == (None, None)
    assert merged_bounds(UUIDType(), *point_files(UUIDType(), negative)) == (negative.bytes, negative.bytes)


def test_uuid_halves_are_each_signed():
    small = uuid.UUID(int=1)
    large = uuid.UUID(int=2**63)
    assert merged_bounds(UUIDType(), *point_files(UUIDType(), small, large)) == (None, None)


def test_time_ordered_uuids_keep_their_bounds():
    ids = [uuid.UUID(f"0190{day:02x}00-0000-7000-{variant}000-000000000001") for day in range(5) for variant in "89ab"]
    assert merged_bounds(UUIDType(), *point_files(UUIDType(), *ids)) == (min(ids).bytes, max(ids).bytes)


# --- promoted and unreadable bounds -----------------------------------------------------------------------------------


def test_int_bounds_of_a_long_column_are_widened():
    old = column(*both(IntegerType(), -5, 2**31 - 1))
    new = column(*both(LongType(), -4, 2**31))
    assert merged_bounds(LongType(), old, new) == both(LongType(), -5, 2**31)
    assert merged_bounds(LongType(), old) == both(LongType(), -5, 2**31 - 1)


def test_float_bounds_of_a_double_column_are_widened():
    old = column(*both(FloatType(), -1.5, 2.5))
    new = column(*both(DoubleType(), -1.4, 2.4))
    assert merged_bounds(DoubleType(), old, new) == both(DoubleType(), -1.5, 2.5)
    nan = to_bytes(FloatType(), NAN)
    assert merged_bounds(DoubleType(), column(nan, nan), new) == (None, None)


def test_decimal_bounds_are_compared_as_numbers_and_written_short():
    padded = column(bytes(15) + b"\x05", b"\xff" * 15 + b"\xfe")
    assert merged_bounds(DecimalType(38, 2), padded) == (b"\x05", b"\xfe")
    assert merged_bounds(DecimalType(38, 2), padded, column(b"\x00\x80", b"\xff\x7f")) == (b"\x05", b"\xfe")


@pytest.mark.parametrize(
    ("field_type", "unreadable"),
    [
        (BooleanType(), b"\x00\x01"),
        (IntegerType(), bytes(8)),
        (LongType(), bytes(5)),
        (FloatType(), bytes(8)),
        (DoubleType(), bytes(7)),
        (DecimalType(9, 2), b""),
        (DateType(), bytes(8)),
        (TimeType(), bytes(4)),
        (TimestampType(), to_bytes(DateType(), 19_000)),
        (TimestamptzType(), to_bytes(DateType(), 19_000)),
        (TimestampNanoType(), to_bytes(DateType(), 19_000)),
        (StringType(), b"caf\xc3"),
        (StringType(), b"\xed\xa0\x80"),
        (UUIDType(), bytes(15)),
    ],
    ids=str,
)
def test_unreadable_bound_is_dropped(field_type, unreadable):
    good = {StringType(): b"a", UUIDType(): bytes(16), BooleanType(): b"\x01", DecimalType(9, 2): b"\x01"}.get(
        field_type, bytes(4) if isinstance(field_type, IntegerType | FloatType | DateType) else bytes(8)
    )
    assert merged_bounds(field_type, column(good, good)) == (good, good)
    assert merged_bounds(field_type, column(unreadable, good), column(good, good)) == (None, good)
    assert merged_bounds(field_type, column(good, good), column(good, unreadable)) == (good, None)
    assert merged_bounds(field_type, column(unreadable, unreadable)) == (None, None)


def test_any_byte_but_zero_is_true():
    assert merged_bounds(BooleanType(), column(b"\x00", b"\x02")) == (b"\x00", b"\x01")


@pytest.mark.parametrize("field_type", [GeometryType(), UnknownType()], ids=str)
def test_types_without_an_order_keep_counts_and_lose_bounds(field_type):
    merged = merge([column(bytes(16), bytes(16)), column(bytes(16), bytes(16))], schema_of(field_type))
    assert merged.value_counts == {COLUMN: 20}
    assert (merged.lower_bounds, merged.upper_bounds) == ({}, {})


def test_truncated_bounds_are_kept_as_they_are():
    short = column(b"abcdefghijklmnop", b"abcdefghijklmnoq")
    long = column(b"abcdefghijklmnopqrstuvwxyz", b"abcdefghijklmnopqrstuvwxyz")
    assert merged_bounds(StringType(), short, long) == (b"abcdefghijklmnop", b"abcdefghijklmnoq")
    assert merged_bounds(StringType(), long) == (b"abcdefghijklmnopqrstuvwxyz",) * 2


# --- what goes in and out ---------------------------------------------------------------------------------------------


def test_metrics_of_a_data_file():
    one = column(b"a", b"b", nulls=2, nans=3)
    given = {name: getattr(one, name) for name in NAMES}
    assert ColumnMetrics.from_data_file(DataFile.from_args(record_count=10, **given)) == one
    assert ColumnMetrics.from_data_file(DataFile.from_args(record_count=5)) == metrics(5)


def test_column_sizes_of_the_footer_replace_the_sums():
    one = column(b"a", b"b")
    assert with_column_sizes(one, {COLUMN: 42}) == replace(one, column_sizes={COLUMN: 42})


def test_json_has_sorted_keys_and_upper_case_hex():
    encoded = to_json(
        metrics(
            3,
            column_sizes={2: 20, 1: 10},
            value_counts={2: 3, 1: 3},
            null_value_counts={1: 0},
            nan_value_counts={2: 1},
            lower_bounds={10: b"\xab\xcd", 2: struct.pack("<d", 1.0)},
            upper_bounds={2: b""},
        )
    )
    assert json.loads(json.dumps(encoded)) == {
        "record-count": 3,
        "column-sizes": {"keys": [1, 2], "values": [10, 20]},
        "value-counts": {"keys": [1, 2], "values": [3, 3]},
        "null-value-counts": {"keys": [1], "values": [0]},
        "nan-value-counts": {"keys": [2], "values": [1]},
        "lower-bounds": {"keys": [2, 10], "values": ["000000000000F03F", "ABCD"]},
        "upper-bounds": {"keys": [2], "values": [""]},
    }


def test_json_leaves_empty_maps_out():
    assert to_json(metrics(3)) == {"record-count": 3}


# --- real manifests ---------------------------------------------------------------------------------------------------
