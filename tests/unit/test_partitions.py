"""Partition values as Iceberg's JSON single values, and the keys made of them."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
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

from compactor.partitions import PartitionKey, PartitionLayout, partition_text, to_json

SOME_UUID = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
PLUS_TWO = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (BooleanType(), True, True),
        (IntegerType(), -7, -7),
        (LongType(), 2**62, 2**62),
        (FloatType(), 1.5, 1.5),
        (DoubleType(), -0.25, -0.25),
        (StringType(), 'a"b\\ü', 'a"b\\ü'),
        (DateType(), 0, "1970-01-01"),
        (DateType(), -1, "1969-12-31"),
        (DateType(), 19_737, "2024-01-15"),
        (DateType(), dt.date(2024, 1, 15), "2024-01-15"),
        (DateType(), -719_162, "0001-01-01"),
        (DateType(), -719_163, "0000-12-31"),
        (DateType(), -719_528, "0000-01-01"),
        (DateType(), -719_529, "-0001-12-31"),
        (DateType(), 2_932_896, "9999-12-31"),
        (DateType(), 2_932_897, "+10000-01-01"),
        (DateType(), 2**31 - 1, "+5881580-07-11"),
        (DateType(), -(2**31), "-5877641-06-23"),
        (TimeType(), 0, "00:00:00"),
        (TimeType(), 86_399_999_999, "23:59:59.999999"),
        (TimeType(), dt.time(10, 1, 2, 30), "10:01:02.000030"),
        (TimestampType(), 0, "1970-01-01T00:00:00"),
        (TimestampType(), -1, "1969-12-31T23:59:59.999999"),
        (TimestampType(), 1_705_312_800_500_000, "2024-01-15T10:00:00.500000"),
        (TimestampType(), dt.datetime(2024, 1, 15, 10), "2024-01-15T10:00:00"),  # noqa: DTZ001
        (TimestampType(), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), "1969-12-31T23:59:59.999999"),  # noqa: DTZ001
        (TimestampType(), 2_932_897 * 86_400_000_000, "+10000-01-01T00:00:00"),
        (TimestamptzType(), 0, "1970-01-01T00:00:00+00:00"),
        (TimestamptzType(), dt.datetime(2024, 1, 15, 10, tzinfo=dt.UTC), "2024-01-15T10:00:00+00:00"),
        (TimestamptzType(), dt.datetime(2024, 1, 15, 1, tzinfo=PLUS_TWO), "2024-01-14T23:00:00+00:00"),
        (TimestampNanoType(), 1, "1970-01-01T00:00:00.000000001"),
        (TimestampNanoType(), -1, "1969-12-31T23:59:59.999999999"),
        (TimestamptzNanoType(), 1_705_312_800_000_000_000, "2024-01-15T10:00:00+00:00"),
        (TimestamptzNanoType(), dt.datetime(2024, 1, 15, 10, 0, 0, 5, dt.UTC), "2024-01-15T10:00:00.000005000+00:00"),
        (DecimalType(9, 2), Decimal("5.25"), "5.25"),
        (DecimalType(9, 2), Decimal(5), "5.00"),
        (DecimalType(9, 2), Decimal("-0.50"), "-0.50"),
        (DecimalType(9, 0), Decimal("1E+2"), "100"),
        (DecimalType(38, 10), Decimal("12345678901234567890.0123456789"), "12345678901234567890.0123456789"),
        (UUIDType(), SOME_UUID, str(SOME_UUID)),
        (UUIDType(), SOME_UUID.bytes, str(SOME_UUID)),
        (BinaryType(), b"\x00\xff", "00ff"),
        (BinaryType(), b"", ""),
        (FixedType(2), bytearray(b"\x01\x02"), "0102"),
        (UnknownType(), Decimal("1.25"), "1.25"),
        (UnknownType(), SOME_UUID, str(SOME_UUID)),
        (UnknownType(), b"\x00\xff", "00ff"),
        (UnknownType(), 3, 3),
    ],
)  # fmt: skip
def test_a_value_in_icebergs_json_form(kind: Any, value: Any, expected: Any) -> None:
    assert to_json(kind, value) == expected
    assert to_json(kind, None) is None


@given(st.dates())
def test_every_date_of_the_calendar_is_written_as_python_writes_it(date: dt.date) -> None:
    assert to_json(DateType(), (date - dt.date(1970, 1, 1)).days) == date.isoformat()


@given(st.integers(-(2**31), 2**31 - 2))
def test_dates_beyond_the_calendar_follow_one_another(days: int) -> None:
    """400 Gregorian years are 146,097 days: the same month and day, the year 400 later."""
    first, second = (_parts(str(to_json(DateType(), day))) for day in (days % 146_097, days))
    assert second[1:] == first[1:]
    assert second[0] - first[0] == 400 * (days // 146_097)


def _parts(text: str) -> tuple[int, str]:
    year, month, day = text[1:].split("-") if text[0] in "+-" else text.split("-")
    return (-int(year) if text[0] == "-" else int(year)), f"{month}-{day}"


@given(st.datetimes())
def test_a_timestamp_has_one_text_whichever_shape_it_comes_in(moment: dt.datetime) -> None:
    micros = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001
    text = to_json(TimestampType(), micros)
    assert text == to_json(TimestampType(), moment)
    assert dt.datetime.fromisoformat(str(text)) == moment
    assert to_json(TimestamptzType(), micros) == f"{text}+00:00"


def test_what_is_no_value_of_the_type_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot write partition value"):
        to_json(StringType(), object())


# --- keys and layouts -------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "score", DoubleType()),
)


def layout(*fields: tuple[int, Any, str]) -> PartitionLayout:
    spec = PartitionSpec(
        *(PartitionField(source, 1000 + i, transform, name) for i, (source, transform, name) in enumerate(fields)),
        spec_id=2,
    )
    return PartitionLayout.of(spec, SCHEMA)


def test_a_key_is_the_json_array_of_the_partition_tuple() -> None:
    found = layout((3, DayTransform(), "day"), (2, TruncateTransform(2), "trunc"), (1, BucketTransform(4), "bucket"))
    key = found.key((19_737, "ü,", 3))
    assert key == PartitionKey(2, '["2024-01-15","ü,",3]')
    assert key.tuple_json == ["2024-01-15", "ü,", 3]
    assert found.readable(key) == {"day": "2024-01-15", "trunc": "ü,", "bucket": 3}
    assert found.bucket(key) == 3


def test_years_months_and_hours_are_numbers_and_void_is_null() -> None:
    times = [(3, YearTransform(), "y"), (3, MonthTransform(), "m"), (3, HourTransform(), "h")]
    assert layout(*times, (2, VoidTransform(), "v")).key((54, 648, 473_698, None)).values == "[54,648,473698,null]"


def test_an_unpartitioned_table_has_one_key() -> None:
    found = layout()
    assert found.key(()) == PartitionKey(2, "[]")
    assert found.readable(found.key(())) == {}
    assert found.bucket(found.key(())) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_know_has_a_key_but_is_not_committed_as_json(value: float) -> None:
    key = layout((4, IdentityTransform(), "score")).key((value,))
    assert not key.commits_as_json
    assert key == layout((4, IdentityTransform(), "score")).key((value,))
    assert hash(key) == hash(PartitionKey(key.spec_id, key.values))
    assert layout((4, IdentityTransform(), "score")).key((1.5,)).commits_as_json


def test_what_json_lacks_is_shown_as_text_and_null_as_null() -> None:
    found = layout((4, IdentityTransform(), "score"))
    shown = [found.readable(found.key((value,)))["score"] for value in (math.nan, math.inf, -math.inf, 1.5)]
    assert shown == ["NaN", "Infinity", "-Infinity", 1.5]
    assert partition_text({"a": None, "b": "None", "c": 1}) == "a=null, b=None, c=1"


def test_no_bucket_is_named_where_there_are_two_or_it_is_null() -> None:
    two = layout((1, BucketTransform(4), "a"), (2, BucketTransform(4), "b"))
    assert two.bucket(two.key((1, 2))) is None
    one = layout((1, BucketTransform(4), "a"))
    assert one.bucket(one.key((None,))) is None


def test_a_tuple_of_the_wrong_length_is_an_error_not_a_wrong_key() -> None:
    with pytest.raises(ValueError):
        layout((1, IdentityTransform(), "id")).key((1, 2))


def test_a_partition_over_a_struct_is_refused() -> None:
    schema = Schema(NestedField(1, "nested", StructType()))
    with pytest.raises(TypeError, match="non-primitive"):
        PartitionLayout.of(PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "nested")), schema)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_different_tuples_have_different_keys(values: list[str]) -> None:
    found = layout(*[(2, IdentityTransform(), f"f{i}") for i in range(len(values))])
    assert json.loads(found.key(values).values) == values
