"""What can be written as a filter, what it means, and where PyIceberg alone would have got it wrong."""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import IntegerType

from compactor.errors import InputError
from compactor.filters.predicates import NOTHING
from compactor.filters.where import bind_where
from compactor.partitions import PartitionKey
from tests.properties.filters import SCHEMA, bound, file_of, keeps, manifest_of, means, partition_field, table_view

MORNING = dt.datetime(2024, 1, 15, 9)  # noqa: DTZ001 - a timestamp without zone
DAY = dt.timedelta(days=1)
UTC = dt.UTC


@pytest.mark.parametrize(
    "where",
    [
        "timestamp_column < '2024-01-15 10:00:00'",
        "timestamp_column < '2024-01-15T10:00'",
        "timestamp_column <= '2024-01-15 10:00:00.5'",
        "timestamp_column < timestamp '2024-01-15 10:00:00'",
        "timestamp_column BETWEEN '2024-01-15' AND '2024-01-15 12:00'",
        "timestamp_column >= '2024-01-15' and timestamp_column < '2024-01-16'",
        "timestamp_column in ('2024-01-15 09:00:00', '2020-01-01 00:00:00')",
        "NOT timestamp_column <> '2024-01-15 09:00:00'",
        "'2024-01-15 10:00:00' > timestamp_column",
    ],
)
def test_a_filter_on_the_time_keeps_the_day_it_reaches_into(where: str) -> None:
    assert keeps("timestamp", DayTransform(), MORNING, where)


@pytest.mark.parametrize("where", ["timestamp_column < '2024-01-15 10:00:00'", "timestamp_column < '2024-01-16'"])
def test_a_filter_on_the_time_leaves_out_the_days_beyond(where: str) -> None:
    assert not keeps("timestamp", DayTransform(), MORNING + DAY, where)


@pytest.mark.parametrize(("seconds", "kept"), [("09:00:01", False), ("09:00:01.5", True), ("09:00:01.500000", True)])
def test_seconds_and_their_fractions_count(seconds: str, kept: bool) -> None:
    moment = MORNING + dt.timedelta(seconds=1.5)
    assert means("timestamp", moment, f"timestamp_column = '2024-01-15 {seconds}'") is kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("2024-01-15 09:00:00", True),  # UTC, where no zone is written
        ("2024-01-15 09:00:00Z", True),
        ("2024-01-15 09:00:00 UTC", True),
        ("2024-01-15 09:00:00+00:00", True),
        ("2024-01-15T10:00:00 +01:00", True),
        ("2024-01-15T10:00:00+0100", True),
        ("2024-01-15T10:00:00+01", True),
        ("2024-01-15 14:30:00+05:30", True),
        ("2024-01-14 21:00:00-12:00", True),
        ("2024-01-15 09:00:00+01:00", False),
        ("2024-01-15", False),
    ],
)
def test_a_timestamp_with_zone_is_compared_in_its_zone_or_utc(text: str, kept: bool) -> None:
    moment = MORNING.replace(tzinfo=UTC)
    assert keeps("timestamptz", HourTransform(), moment, f"timestamptz_column = '{text}'") is kept


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("date_column = '2024-01-15'", True),
        ("date_column = DATE '2024-01-15'", True),
        ("date_column = '2024-1-15'", True),
        ("\"date_column\" = '2024-01-15'", True),
        ("`date_column` = '2024-01-15'", True),
        ("DATE_Column = '2024-01-15'", True),
        ("date_column between '2024-01-01' and '2024-01-31'", True),
        ("date_column BETWEEN '2024-02-01' AND '2024-02-28'", False),
        ("date_column NOT BETWEEN '2024-02-01' AND '2024-02-28'", True),
        ("date_column <> '2024-01-15'", False),
        ("date_column = '2024-01-15' OR date_column IS NULL", True),
        ("date_column = '2024-01-15' AND true", True),
        ("true", True),
        ("false OR date_column IS NULL", False),
        ("NOT NOT date_column = '2024-01-15'", True),
        ("date_column < '2024-01-15 10:00:00'", True),
        ("date_column = '2024-01-15 10:00:00'", True),  # Spark cuts the time off, others match nothing
        ("date_column != '2024-01-15 10:00:00'", True),
        ("date_column > '2024-01-15 10:00:00'", False),
    ],
)
def test_usual_ways_to_write_a_date_filter(where: str, kept: bool) -> None:
    assert means("date", MORNING.date(), where) is kept


@pytest.mark.parametrize(
    ("column", "value", "where", "kept"),
    [
        ("int", 3, "int_column < 3.5", True),
        ("int", 4, "int_column < 3.5", False),
        ("int", 3, "int_column > 3.5", False),
        ("int", 4, "int_column >= 3.5", True),
        ("int", 3, "int_column = 3.5", False),
        ("int", 4, "int_column = 3.5", False),
        ("int", 3, "int_column != 3.5", True),
        ("int", -3, "int_column <= -3.5", False),
        ("int", -4, "int_column <= -3.5", True),
        ("int", 3, "int_column = 3.0", True),
        ("int", 3, "int_column = '3'", True),
        ("int", 3, "int_column = 3e0", True),
        ("int", 3, "int_column < 5000000000", True),
        ("int", 3, "int_column > 5000000000", False),
        ("int", 3, "int_column in (3, 5000000000)", True),
        ("int", 3, "int_column in (1, 2.5, '3')", True),
        ("int", 3, "int_column not in (1, 2.5)", True),
        ("decimal", Decimal("5.25"), "decimal_column < 5.255", True),
        ("decimal", Decimal("5.26"), "decimal_column < 5.255", False),
        ("decimal", Decimal("5.26"), "decimal_column = 5.255", False),
        ("decimal", Decimal("-5.50"), "decimal_column = -5.5", True),
        ("decimal", Decimal("5.50"), "decimal_column = '5.5'", True),
        ("decimal", Decimal("5.00"), "decimal_column in (5, 6)", True),
        ("decimal", Decimal("5.00"), "decimal_column < 1e20", True),
        ("string", "it's", "string_column = 'it''s'", True),
        ("string", "2024-01-15 10:00", "string_column = '2024-01-15 10:00'", True),
        ("string", "true", "string_column = 'true'", True),
        ("boolean", True, "boolean_column = true", True),
        ("boolean", False, "boolean_column = 'TRUE'", False),
        ("time", dt.time(10), "time_column >= '10:00'", True),
        ("uuid", uuid.UUID(int=7), f"uuid_column = '{uuid.UUID(int=7)}'", True),
        ("uuid", uuid.UUID(int=8), f"uuid_column = '{uuid.UUID(int=7)}'", False),
        ("uuid", uuid.UUID(int=2**127), f"uuid_column > '{uuid.UUID(int=7)}'", True),
        ("binary", b"\x0a\xff", "binary_column = X'0AFF'", True),
        ("fixed", b"\x0a\xff", "fixed_column > x'0a00'", True),
    ],
)
def test_constants_mean_their_exact_value(column: str, value: Any, where: str, kept: bool) -> None:
    assert means(column, value, where) is kept


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("LIKE 'ab%'", ["ab", "abc"], ["a", "b", None]),
        ("LIKE 'ab'", ["ab"], ["abc", None]),
        ("LIKE 'a_c%'", ["abc", "a_c"], ["bac", None]),  # `_` is any character; PyIceberg takes it for itself
        ("LIKE 'a%c'", ["abc", "ac"], ["bac"]),
        ("LIKE '%c'", ["abc"], [None]),
        ("LIKE '%'", ["", "x"], [None]),
        ("LIKE 'a\\_%'", ["a_b"], ["ab", "abc"]),
        ("LIKE 'a\\%'", ["a%"], ["ab"]),
        ("LIKE 'a\\\\%'", ["a\\b"], ["a%"]),
        ("LIKE 'a!_b' ESCAPE '!'", ["a_b"], ["axb"]),
        ("LIKE 'a\\b%' ESCAPE '!'", ["a\\bc"], ["ab"]),
        ("NOT LIKE 'ab%'", ["a", "b"], ["ab", "abc", None]),
        ("NOT LIKE 'a_c%'", ["abd", "abx"], [None]),
        ("NOT LIKE '%c'", ["abd"], [None]),
        ("NOT LIKE '%'", [], ["a", None]),
    ],
)
def test_like(pattern: str, matching: list[str], others: list[str | None]) -> None:
    for value in matching:
        assert means("string", value, f"string_column {pattern}")
        for width in (1, 2, 3):
            assert keeps("string", TruncateTransform(width), value, f"string_column {pattern}")
        assert keeps("string", BucketTransform(7), value, f"string_column {pattern}")
    assert not any(means("string", value, f"string_column {pattern}") for value in others)


@pytest.mark.parametrize("where", ["{} != 1", "{} NOT IN (1, 2)", "NOT {} = 1", "NOT {} IN (1, 2)", "{} < 1"])
@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4), TruncateTransform(10)])
def test_null_is_matched_by_is_null_alone_as_in_sql(where: str, transform: Transform[Any, Any]) -> None:
    assert not keeps("int", transform, None, where.format("int_column"))
    assert keeps("int", transform, None, f"{where.format('int_column')} OR int_column IS NULL")
    assert keeps("int", VoidTransform(), None, where.format("int_column"))


@pytest.mark.parametrize("where", ["{} != 'ab'", "{} NOT IN ('ab', 'cd')", "{} NOT LIKE 'a%'"])
def test_null_matches_a_negation_beside_is_null(where: str) -> None:
    """So Iceberg reads the negations alone: there `!=`, NOT IN and NOT LIKE match null."""
    text = f"{where.format('string_column')} OR string_column IS NULL"
    assert means("string", None, text)
    assert means("string", "xy", text)
    assert not means("string", "ab", text)


@pytest.mark.parametrize(
    ("column", "where", "matching", "others"),
    [
        ("int", "int_column > 1 AND int_column < 3", 2, 3),
        ("int", "int_column = 1 OR NOT int_column != 2", 2, 3),
        ("int", "int_column IN (1, 2)", 2, 3),
        ("string", "string_column LIKE 'a\\_\\%\\\\%'", "a_%\\b", "axxxb"),
        ("date", "date_column = '2024-01-15'", dt.date(2024, 1, 15), dt.date(2024, 1, 16)),
        ("timestamp", "timestamp_column = '2024-01-15 09:00:00'", MORNING, MORNING + DAY),
        ("timestamp", "timestamp_column = '2024-01-15T09:00:00'", MORNING, MORNING + DAY),
        ("time", "time_column = '01:00:00'", dt.time(1), dt.time(2)),
        ("uuid", f"uuid_column = '{uuid.UUID(int=7)}'", uuid.UUID(int=7), uuid.UUID(int=8)),
        ("uuid", f"uuid_column = X'{uuid.UUID(int=7).hex}'", uuid.UUID(int=7), uuid.UUID(int=8)),
        ("binary", "binary_column = X'61'", b"a", b"b"),
        ("decimal", "decimal_column = 1.5", Decimal("1.50"), Decimal("1.51")),
        ("double", "double_column = 0.1", 0.1, 0.2),
        ("double", "double_column IS NAN", float("nan"), 1.0),
        ("double", "double_column > '-Infinity'", 1.0, float("-inf")),
        ("boolean", "boolean_column = true", True, False),
        ("int", "true AND int_column IS NULL", None, 1),
        ("int", "false OR int_column IS NOT NULL", 1, None),
    ],
)
def test_a_filter_of_each_type(column: str, where: str, matching: Any, others: Any) -> None:
    assert means(column, matching, where)
    assert not means(column, others, where)


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("no_such_column = 1", "there is no column no_such_column"),
        ("int_column = ", "expected a value at character 14, found the end"),
        ("int_column = 1;", "cannot read ';' at character 15"),
        ("int_column = 1 -- all", "cannot read '-- all' at character 16"),
        ("int_column 1", "expected =, !="),
        ("int_column NOT 1", "expected IN, LIKE or BETWEEN after NOT"),
        ("int_column IN 1", "expected '(' after IN"),
        ("int_column IN ()", "expected a value"),
        ("int_column BETWEEN 1 OR 2", "expected AND between the two ends"),
        ("(int_column = 1", "expected ')', AND or OR"),
        ("int_column = 1)", "expected AND, OR or the end"),
        ("int_column = 1 int_column = 2", "expected AND, OR or the end"),
        ("int_column = long_column", "strings, dates and times are written in single quotes"),
        ('date_column = "2024-01-15"', "text is written in single quotes, '2024-01-15'"),
        ("int_column IS 1", "expected NULL, NOT NULL or NAN after IS"),
        ("date_column = 'yesterday'", "'yesterday' is not a value of type date; write '2024-01-15'"),
        ("date_column = '2024-02-30'", "is not a value of type date"),
        ("date_column = 20240115", "20240115 is not a value of type date; write '2024-01-15'"),
        ("date_column = 2024-01-15", "expected AND, OR or the end"),
        ("timestamp_column < '10:00'", "is not a value of type timestamp"),
        ("timestamp_column < '2024-01-15 10:00:00+01:00'", "no zone: the column has none"),
        ("timestamptz_column < '2024-01-15 10:00:00 Europe/Berlin'", "UTC without an offset"),
        ("timestamptz_column < '2024-01-15 10:00:00+19:00'", "UTC without an offset"),
        ("int_column = 'three'", "'three' is not a value of type int"),
        ("int_column < '3.7'", "'3.7' is not a value of type int; write 12"),
        ("int_column = 'NaN'", "'NaN' is not a value of type int"),
        ("decimal_column < '5.255'", "'5.255' is not a value of type decimal"),
        ("int_column = true", "True is not a value of type int"),
        ("string_column = 5", "5 is not a value of type string; write 'text'"),
        ("int_column LIKE 'a%'", "LIKE needs a column of strings"),
        ("string_column LIKE 'a!' ESCAPE '!!'", "ESCAPE takes one character"),
        ("int_column = null", "write `IS NULL`"),
        ("uuid_column = 'x'", "is not a value of type uuid"),
        ("binary_column = 'x'", "write X'0aff'"),
        ("DROP TABLE t", "expected =, !="),
        ("string_column = 'open", "the closing quote is missing"),
        ("'", "the closing quote is missing"),
        ("int_column = 5L", "a number is written like 12"),
        ("year(date_column) = 2024", "the table is not partitioned by year(date_column)"),
        ("CAST(int_column AS string) = '1'", "CAST(...) is not read: compare the column itself with a constant"),
        ("upper(string_column) = 'A'", "upper(...) is not read: compare the column itself"),
        ("date_column = date('2024-01-15')", "no function is read"),
        ("date_column = current_date", "no function is read"),
        ("int_column <=> 3", "write `=`, or `IS NULL` where both may be null"),
        ("3 <=> int_column", "write `=`, or `IS NULL` where both may be null"),
        ("1 = 1", "write true or false"),
        ("1=1 AND int_column = 3", "write true or false"),
        ("int_column = 3 OR 'a' <> 'b'", "write true or false"),
        ('string_column = "it\'s"', "text is written in single quotes, 'it''s'"),
        ('string_column IN ("a", "b")', "text is written in single quotes, 'a'"),
        ("system.bucket(int_column) = 1", "a whole number, as in bucket(16, id)"),
        ("system.bucket(4) = 1", "',' and a column"),
        ("system.bucket(4, int_column = 1", "expected ')'"),
        ("system.days() = 1", "the name of a column"),
        ("system.iceberg_version() = '1'", "system.iceberg_version(...) is not read"),
        ("(" * 300 + "true" + ")" * 300, "nested more than 200 deep"),
        ("NOT " * 5000 + "true", "nested more than 200 deep"),
    ],
)
def test_a_filter_nobody_can_read_says_why_and_which_columns_there_are(where: str, fault: str) -> None:
    with pytest.raises(InputError, match=re.escape(", ".join(SCHEMA.column_names))) as raised:
        bind_where(table_view(), where)
    assert fault in str(raised.value)
    assert repr(where) in str(raised.value)
    assert "write e.g. `int_column >= 12 AND long_column >= 12`" in str(raised.value)
    assert raised.value.reason == "bad_filter"


def of(column: str, transform: Transform[Any, Any], name: str = "part") -> PartitionSpec:
    return PartitionSpec(partition_field(column, transform, 1000, name), spec_id=0)


@pytest.mark.parametrize(
    ("column", "transform", "where", "kept", "left"),
    [
        ("int", BucketTransform(16), "system.bucket(16, int_column) = 3", [3], [2, 4]),
        ("int", BucketTransform(16), "lake.system.bucket(16, int_column) in (3, 5)", [3, 5], [4]),
        ("int", BucketTransform(16), "bucket(16, INT_COLUMN) != 3", [2, 4], [3]),
        ("int", BucketTransform(16), "3 < part", [4, 15], [3, 0]),
        ("int", BucketTransform(16), "part BETWEEN 2 AND 3", [2, 3], [1, 4]),
        ("int", BucketTransform(16), "NOT part IN (2, 3)", [1, 4], [2, 3]),
        ("int", BucketTransform(16), "part = 3 AND int_column IS NOT NULL", [3], [4]),
        ("int", TruncateTransform(10), "system.truncate(10, int_column) >= 20", [20, 30], [10]),
        ("string", TruncateTransform(2), "truncate(2, string_column) = 'ab'", ["ab"], ["aa", "abc"]),
        ("string", TruncateTransform(2), "PART LIKE '%b'", ["ab", "bb"], ["ba"]),
        ("timestamp", YearTransform(), "system.years(timestamp_column) = 54", [54], [53, 55]),
        ("timestamp", YearTransform(), "part = '2024'", [54], [53, 55]),
        ("timestamp", MonthTransform(), "system.months(timestamp_column) >= '2024-01'", [648, 649], [647]),
        ("timestamp", MonthTransform(), "part < '2024-01'", [647], [648]),
        ("timestamp", DayTransform(), "system.days(timestamp_column) = DATE '2024-01-15'", [19737], [19736, 19738]),
        ("timestamp", DayTransform(), "part IN ('2024-01-15', '2024-01-16')", [19737, 19738], [19736]),
        ("date", DayTransform(), "part > '2024-01-15'", [19738], [19737]),
        ("timestamp", HourTransform(), "hours(timestamp_column) = '2024-01-15-10'", [473698], [473697]),
        ("timestamp", HourTransform(), "part != '2024-01-15-10'", [473697], [473698]),
        ("string", IdentityTransform(), "part = 'ab'", ["ab"], ["abc"]),
        ("int", BucketTransform(16), "part IS NULL", [None], [3]),
    ],
)
def test_a_transform_or_the_name_of_a_partition_field_selects_its_partitions(
    column: str, transform: Transform[Any, Any], where: str, kept: list[Any], left: list[Any]
) -> None:
    found = bind_where(table_view(of(column, transform)), where)
    assert [value for value in (*kept, *left) if found.keeps_partition(0, (value,))] == kept


def test_a_transform_and_its_column_are_different_things() -> None:
    """The column's value says nothing of what a bucket's number must be, and the other way round."""
    found = bind_where(table_view(of("int", BucketTransform(4))), "int_column = 5 AND system.bucket(4, int_column) = 2")
    assert found.predicate != NOTHING
    either = bind_where(table_view(of("int", BucketTransform(4))), "int_column = 5 OR system.bucket(4, int_column) = 2")
    bucket = BucketTransform(4).transform(IntegerType())(5)
    assert {value for value in range(4) if either.keeps_partition(0, (value,))} == {2, bucket}
    assert either.keeps_file(file_of(either.table.spec(0), (2,), [{"int": 7}]))


@pytest.mark.parametrize(
    ("where", "stored"),
    [
        ("part = '1969-12-31'", [-1, 0]),
        ("part < '1970-01-01'", [-2, -1, 0]),
        ("part <= '1969-12-30'", [-2, -1]),
        ("part != '1970-01-01'", [-2, -1, 0, 1]),
        ("part >= '1970-01-01'", [0, 1]),
    ],
)
def test_days_that_old_writers_stored_one_too_late_are_kept(where: str, stored: list[int]) -> None:
    found = bind_where(table_view(of("timestamp", DayTransform())), where)
    assert [value for value in range(-2, 2) if found.keeps_partition(0, (value,))] == stored


def test_a_spec_without_the_transform_is_kept_whole_and_a_column_goes_before_a_partition_field() -> None:
    old = PartitionSpec(partition_field("int", BucketTransform(4), 1000, "shard"), spec_id=0)
    new = PartitionSpec(partition_field("int", BucketTransform(8), 1001, "int_column"), spec_id=1)
    found = bind_where(table_view(old, new), "shard = 1")
    assert [found.keeps_partition(*each) for each in [(0, (1,)), (0, (2,)), (1, (2,))]] == [True, False, True]
    of_column = bind_where(table_view(old, new), "int_column = 7")
    assert not of_column.keeps_partition(1, ((BucketTransform(8).transform(IntegerType())(7) + 1) % 8,))
    again = PartitionSpec(partition_field("int", BucketTransform(8), 1001, "shard"), spec_id=1)
    with pytest.raises(InputError, match="partition specs mean different things by shard"):
        bind_where(table_view(old, again), "shard = 1")


@pytest.mark.parametrize(
    ("transform", "where", "fault"),
    [
        (BucketTransform(4), "system.bucket(8, int_column) = 1", "but by bucket[4](int_column)"),
        (BucketTransform(4), "part = 'x'", "'x' is not a value of type int"),
        (BucketTransform(4), "prt = 1", "partition fields: part = bucket[4](int_column)"),
        (VoidTransform(), "part = 1", "there is no column part"),
    ],
)
def test_what_no_spec_has_is_refused(transform: Transform[Any, Any], where: str, fault: str) -> None:
    with pytest.raises(InputError, match=re.escape(fault)):
        bind_where(table_view(of("int", transform)), where)


@pytest.mark.parametrize("given", ["2024", "54", "'24'", "'2024-01'", "'0000'"])
def test_a_year_of_a_partition_field_is_written_as_a_year(given: str) -> None:
    """As a number it could be the year, or the years since 1970 that Iceberg stores."""
    with pytest.raises(InputError, match="is not a value of a partition field by year; write '2024'"):
        bind_where(table_view(of("timestamp", YearTransform())), f"part = {given}")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("%ar", ["ar", "bar", "ä\nar"], ["are", "a", "", "AR", None]),
        ("b%r", ["br", "bar", "bxxr"], ["bra", "xbr", None]),
        ("_ar", ["bar", "😀ar"], ["ar", "bbar", None]),
        ("%a%", ["a", "bar"], ["b", "", None]),
        (r"%\%", ["a%", "%"], ["a", "%a"]),
        ("a.c%_", ["a.cd", "a.cde"], ["abcd", "a.c"]),
    ],
)
def test_a_pattern_selects_exactly_the_partitions_that_match(
    pattern: str, matching: list[str], others: list[str | None]
) -> None:
    table = table_view(of("string", IdentityTransform(), "string_column"))
    for where, wanted in [
        (f"string_column LIKE '{pattern}'", matching),
        (f"string_column NOT LIKE '{pattern}'", [each for each in others if each is not None]),
    ]:
        found = bind_where(table, where)
        assert [value for value in (*matching, *others) if found.keeps_partition(0, (value,))] == wanted, where
    prefix = table_view(of("string", TruncateTransform(1)))
    assert all(
        bind_where(prefix, f"string_column LIKE '{pattern}'").keeps_partition(0, (each[:1],)) for each in matching
    )


@pytest.mark.parametrize("where", [None, "", "  "])
def test_no_filter_keeps_everything(where: str | None) -> None:
    unfiltered = bind_where(table_view(PartitionSpec(partition_field("int", IdentityTransform(), 1000, "part"))), where)
    assert unfiltered.keeps(PartitionKey(0, "[5]"))
    assert unfiltered.keeps_everything


def test_long_lists_and_long_chains_are_read() -> None:
    many = ", ".join(map(str, range(5000)))
    assert means("int", 4999, f"int_column IN ({many})")
    assert not means("int", 5000, f"int_column IN ({many})")
    chain = " OR ".join(f"int_column = {i}" for i in range(5000))
    assert means("int", 4999, chain)
    assert bound("int", IdentityTransform(), chain).projection(3).text.endswith("... 4,980 more)")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("where", "matching"),
    [
        ("double_column > 5", [6.0, INF, NAN]),  # NaN is the greatest, as in Spark; PyIceberg compares it as C does
        ("double_column >= 6", [6.0, INF, NAN]),
        ("double_column < 5", [-INF, 0.0]),
        ("double_column != 0", [-INF, 6.0, INF, NAN]),
        ("double_column NOT IN (0, 6)", [-INF, INF, NAN]),
        ("NOT double_column > 5", [-INF, 0.0]),
        ("double_column IS NAN", [NAN]),
        ("double_column IS NOT NAN", [-INF, 0.0, 6.0, INF, None]),
        ("double_column = 'NaN'", [NAN]),
        ("double_column IN (0, 'NaN')", [0.0, NAN]),
        ("double_column NOT IN (0, 'nan')", [-INF, 6.0, INF]),
        ("double_column < 'NaN'", [-INF, 0.0, 6.0, INF]),
        ("double_column <= 'NaN'", [-INF, 0.0, 6.0, INF, NAN]),
        ("double_column >= 'NaN'", [NAN]),
        ("double_column > 'NaN'", []),
        ("double_column >= 'Infinity'", [INF, NAN]),
        ("double_column = '-Infinity'", [-INF]),
    ],
)
def test_nan_and_infinity(where: str, matching: list[float | None]) -> None:
    filtered = bound("double", IdentityTransform(), where)
    kept = [value for value in (-INF, 0.0, 6.0, INF, NAN, None) if filtered.keeps_partition(3, (value,))]
    assert repr(kept) == repr(matching)
    for value in matching:
        assert filtered.keeps_manifest(manifest_of(filtered.table.spec(3), [(value,)]))
        assert filtered.keeps_file(file_of(filtered.table.spec(3), (value,), [{"double": value}]))


def test_a_float_is_what_it_is_in_any_engine() -> None:
    tenth = struct.unpack("<f", struct.pack("<f", 0.1))[0]  # a little more than 0.1
    for where in ("= 0.1", "> 0.1", ">= 0.1", "<= 0.1", "!= 0.1", "IN (0.1, 3)"):
        assert means("float", tenth, f"float_column {where}")
    assert not means("float", 0.25, "float_column = 0.1")
