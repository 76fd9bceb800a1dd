"""A partition filter leaves out no partition that holds a matching row, whatever the column, transform and filter."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
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
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from compactor.errors import InputError
from compactor.inventory import LiveFile
from compactor.manifests import Content, FileEntry, Status
from compactor.partitions import PartitionLayout
from compactor.pruning import partition_filter
from compactor.table_names import TableName
from compactor.tables import TableView

EPOCH_DATE = dt.date(1970, 1, 1)
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without zone
MICROSECOND = dt.timedelta(microseconds=1)
UTC = dt.UTC


@dataclass(frozen=True)
class Column:
    """A column: its values, how one is written in SQL, and how Iceberg stores it."""

    kind: PrimitiveType
    values: st.SearchStrategy[Any]
    sql: Callable[[Any], str]
    stored: Callable[[Any], Any]
    transforms: tuple[Transform[Any, Any], ...]


def quoted(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def same(value: Any) -> Any:
    return value


ANY_TYPE = (IdentityTransform(), VoidTransform(), BucketTransform(1), BucketTransform(5))
TIME = (YearTransform(), MonthTransform(), DayTransform())
MOMENTS = st.datetimes(dt.datetime(1968, 11, 1), dt.datetime(1971, 3, 1)) | st.sampled_from(  # noqa: DTZ001
    [
        EPOCH,
        EPOCH - MICROSECOND,
        dt.datetime(2024, 1, 15, 10),  # noqa: DTZ001
        dt.datetime(2024, 1, 15),  # noqa: DTZ001
        dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001
    ]
)
COLUMNS = {
    "int": Column(
        IntegerType(),
        st.integers(-25, 25) | st.sampled_from([-(2**31) + 8, 2**31 - 1]),
        str,
        same,
        (*ANY_TYPE, TruncateTransform(10)),
    ),
    "long": Column(
        LongType(),
        st.integers(-25, 25) | st.sampled_from([-(2**63) + 8, 2**63 - 1, 2**31]),
        str,
        same,
        (*ANY_TYPE, TruncateTransform(10)),
    ),
    "string": Column(
        StringType(),
        st.text(alphabet="ab'ü😀", max_size=4),
        quoted,
        same,
        (*ANY_TYPE, TruncateTransform(1), TruncateTransform(2)),
    ),
    "date": Column(
        DateType(),
        st.dates(dt.date(1968, 11, 1), dt.date(1971, 3, 1)) | st.sampled_from([dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
        quoted,
        lambda day: (day - EPOCH_DATE).days,
        (*ANY_TYPE, *TIME),
    ),
    "timestamp": Column(
        TimestampType(), MOMENTS, quoted, lambda at: (at - EPOCH) // MICROSECOND, (*ANY_TYPE, *TIME, HourTransform())
    ),
    "timestamptz": Column(
        TimestamptzType(),
        MOMENTS.map(lambda at: at.replace(tzinfo=UTC)),
        quoted,
        lambda at: (at.replace(tzinfo=None) - EPOCH) // MICROSECOND,
        (*ANY_TYPE, *TIME, HourTransform()),
    ),
    "decimal": Column(
        DecimalType(9, 2),
        st.decimals(-30, 30, places=2, allow_nan=False),
        str,
        same,
        (*ANY_TYPE, TruncateTransform(50)),
    ),
}

# The smallest numbers are those whose truncation to tens still fits the type: Iceberg defines no others.

Row = dict[str, Any]
Predicate = tuple[str, Callable[[Row], bool | None]]
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@st.composite
def comparisons(draw: st.DrawFn, name: str) -> Predicate:
    """One predicate as SQL text, and what SQL says of a row (None: unknown)."""
    column = COLUMNS[name]
    shape = draw(st.sampled_from(["compare", "in", "null", "between", *(["like"] if name == "string" else [])]))
    negated = draw(st.booleans())
    if shape == "compare":
        operator, value = draw(st.sampled_from(sorted(COMPARISONS))), draw(column.values)
        compare = COMPARISONS[operator]
        text = f"{name}_column {operator} {column.sql(value)}"
        return text, lambda row: _known(row, name, lambda x: compare(x, value))
    if shape == "in":
        chosen = draw(st.lists(column.values, min_size=1, max_size=3))
        word = draw(st.sampled_from(["NOT IN", "not in"] if negated else ["IN", "in"]))
        text = f"{name}_column {word} ({', '.join(map(column.sql, chosen))})"
        return text, lambda row: _known(row, name, lambda x: (x in chosen) != negated)
    if shape == "null":
        text = f"{name}_column IS NOT NULL" if negated else f"{name}_column is null"
        return text, lambda row: (row[name] is None) != negated
    if shape == "between":
        low, high = draw(column.values), draw(column.values)
        text = f"{name}_column BETWEEN {column.sql(low)} AND {column.sql(high)}"
        return text, lambda row: _known(row, name, lambda x: low <= x <= high)
    prefix = draw(st.text(alphabet="ab'ü😀", max_size=3))
    text = f"{name}_column {'NOT LIKE' if negated else 'LIKE'} {quoted(prefix + '%')}"
    return text, lambda row: _known(row, name, lambda x: x.startswith(prefix) != negated)


def _known(row: Row, name: str, says: Callable[[Any], bool]) -> bool | None:
    return None if row[name] is None else says(row[name])


def filters(names: list[str]) -> st.SearchStrategy[Predicate]:
    return st.recursive(st.one_of([comparisons(name) for name in names]), _combined, max_leaves=4)


def _combined(parts: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    def both(pair: tuple[Predicate, Predicate]) -> Predicate:
        (left, says_left), (right, says_right) = pair
        return f"({left}) AND ({right})", lambda row: _and(says_left(row), says_right(row))

    def either(pair: tuple[Predicate, Predicate]) -> Predicate:
        (left, says_left), (right, says_right) = pair
        return f"({left}) or ({right})", lambda row: _not(_and(_not(says_left(row)), _not(says_right(row))))

    def negated(part: Predicate) -> Predicate:
        text, says = part
        return f"NOT ({text})", lambda row: _not(says(row))

    pairs = st.tuples(parts, parts)
    return pairs.map(both) | pairs.map(either) | parts.map(negated)


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


SCHEMA = Schema(*[NestedField(i, f"{name}_column", COLUMNS[name].kind) for i, name in enumerate(COLUMNS, 1)])


def table_view(*specs: PartitionSpec, schema: Schema = SCHEMA) -> TableView:
    metadata: Any = SimpleNamespace(partition_specs=list(specs), schemas=[schema], schema=lambda: schema)
    io: Any = None
    return TableView(TableName("lake", ("db",), "t"), metadata, "", io)


@st.composite
def partitioned_columns(draw: st.DrawFn) -> tuple[list[str], PartitionSpec]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=2, unique=True))
    fields = [
        PartitionField(
            SCHEMA.find_field(f"{name}_column").field_id,
            1000 + position,
            draw(st.sampled_from(COLUMNS[name].transforms)),
            f"part_{position}",
        )
        for position, name in enumerate(names)
    ]
    return names, PartitionSpec(*fields, spec_id=3)


def partition_of(row: Row, names: list[str], spec: PartitionSpec) -> tuple[Any, ...]:
    return tuple(
        field.transform.transform(COLUMNS[name].kind)(None if row[name] is None else COLUMNS[name].stored(row[name]))
        for name, field in zip(names, spec.fields, strict=True)
    )


def keeps(view: TableView, spec: PartitionSpec, partition: tuple[Any, ...], where: str) -> bool:
    key = PartitionLayout.of(spec, view.metadata.schema()).key(partition)
    file = FileEntry(
        "m", Status.ADDED, 1, 1, Content.DATA, "f", "parquet", key, partition, 1, 1, None,
        encrypted=False, equality_ids=(), applies_to=None,
    )  # fmt: skip
    return partition_filter(view, where)(key, (LiveFile(file),))


@settings(max_examples=500)
@given(st.data())
def test_no_partition_that_holds_a_matching_row_is_left_out(data: st.DataObject) -> None:
    names, spec = data.draw(partitioned_columns(), label="partitioned by")
    where, says = data.draw(filters(names), label="where")
    row = {name: data.draw(st.none() | COLUMNS[name].values, label=name) for name in names}
    kept = keeps(table_view(spec), spec, partition_of(row, names, spec), where)
    if says(row):
        assert kept


def one_column(name: str, transform: Transform[Any, Any], row_value: Any, where: str) -> bool:
    field = PartitionField(SCHEMA.find_field(f"{name}_column").field_id, 1000, transform, "part")
    spec = PartitionSpec(field, spec_id=0)
    return keeps(table_view(spec), spec, partition_of({name: row_value}, [name], spec), where)


MORNING = dt.datetime(2024, 1, 15, 9)  # noqa: DTZ001 - a timestamp without zone
DAY = dt.timedelta(days=1)


@pytest.mark.parametrize(
    "where",
    [
        "timestamp_column < '2024-01-15 10:00:00'",
        "timestamp_column < '2024-01-15T10:00'",
        "timestamp_column <= '2024-01-15 10:00:00.5'",
        "timestamp_column BETWEEN '2024-01-15' AND '2024-01-15 12:00'",
        "timestamp_column >= '2024-01-15' and timestamp_column < '2024-01-16'",
        "timestamp_column in ('2024-01-15 09:00:00', '2020-01-01 00:00:00')",
        "NOT timestamp_column <> '2024-01-15 09:00:00'",
    ],
)
def test_a_filter_on_the_time_keeps_the_day_it_reaches_into(where: str) -> None:
    assert one_column("timestamp", DayTransform(), MORNING, where)


@pytest.mark.parametrize("where", ["timestamp_column < '2024-01-15 10:00:00'", "timestamp_column < '2024-01-16'"])
def test_a_filter_on_the_time_leaves_out_the_days_beyond(where: str) -> None:
    assert not one_column("timestamp", DayTransform(), MORNING + DAY, where)


@pytest.mark.parametrize(("seconds", "kept"), [("09:00:01", False), ("09:00:01.5", True), ("09:00:01.500000", True)])
def test_seconds_and_their_fractions_count(seconds: str, kept: bool) -> None:
    moment = MORNING + dt.timedelta(seconds=1.5)
    where = f"timestamp_column = '2024-01-15 {seconds}'"
    assert one_column("timestamp", IdentityTransform(), moment, where) is kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("2024-01-15 09:00:00", True),  # UTC, where no zone is written
        ("2024-01-15 09:00:00Z", True),
        ("2024-01-15 09:00:00+00:00", True),
        ("2024-01-15T10:00:00 +01:00", True),
        ("2024-01-15 09:00:00+01:00", False),
        ("2024-01-15", False),
    ],
)
def test_a_timestamp_with_zone_is_compared_in_its_zone_or_utc(text: str, kept: bool) -> None:
    moment = MORNING.replace(tzinfo=UTC)
    assert one_column("timestamptz", HourTransform(), moment, f"timestamptz_column = '{text}'") is kept


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("date_column = '2024-01-15'", True),
        ("\"date_column\" = '2024-01-15'", True),
        ("date_column between '2024-01-01' and '2024-01-31'", True),
        ("date_column BETWEEN '2024-02-01' AND '2024-02-28'", False),
        ("date_column <> '2024-01-15'", False),
        ("DATE_COLUMN = '2024-01-15'", None),
        ("date_column = '2024-01-15' OR date_column IS NULL", True),
        ("true", True),
    ],
)
def test_usual_ways_to_write_a_date_filter(where: str, kept: bool | None) -> None:
    if kept is None:
        with pytest.raises(InputError):
            one_column("date", IdentityTransform(), MORNING.date(), where)
    else:
        assert one_column("date", IdentityTransform(), MORNING.date(), where) is kept


@pytest.mark.parametrize(
    ("column", "literal"),
    [("int", "3.5"), ("long", "3.5"), ("int", "'3.7'"), ("decimal", "5.255"), ("decimal", "'5.255'")],
)
def test_a_number_the_column_cannot_hold_is_refused_not_rounded(column: str, literal: str) -> None:
    value = Decimal("5.25") if column == "decimal" else 3
    with pytest.raises(InputError, match="is not a value of type"):
        one_column(column, IdentityTransform(), value, f"{column}_column < {literal}")


@pytest.mark.parametrize(
    ("column", "value", "where"),
    [
        ("int", 3, "int_column = 3.0"),
        ("int", 3, "int_column = '3'"),
        ("decimal", Decimal("-5.50"), "decimal_column = -5.5"),
        ("decimal", Decimal("5.50"), "decimal_column = '5.5'"),
        ("decimal", Decimal("5.00"), "decimal_column in (5, 6)"),
        ("int", 3, "int_column < 5000000000"),
        ("int", 3, "int_column in (3, 5000000000)"),
        ("string", "it's", "string_column = 'it''s'"),
        ("string", "2024-01-15 10:00", "string_column = '2024-01-15 10:00'"),
    ],
)
def test_literals_of_another_spelling_mean_the_same_value(column: str, value: Any, where: str) -> None:
    assert one_column(column, IdentityTransform(), value, where)


@pytest.mark.parametrize(
    "where",
    [
        "no_such_column = 1",
        "int_column = ",
        "int_column = 1;",
        "int_column = 1 -- all",
        "date_column = 'yesterday'",
        "timestamp_column < '10:00'",
        "timestamp_column < '2024-01-15 10:00:00+01:00'",
        "int_column = 'three'",
        "string_column LIKE '%x'",
        "int_column = null",
        "DROP TABLE t",
        "int_column = 1 AND true",
        "'",
    ],
)
def test_a_filter_nobody_can_read_says_which_columns_there_are(where: str) -> None:
    with pytest.raises(InputError, match=re.escape(", ".join(SCHEMA.column_names))) as raised:
        partition_filter(table_view(), where)
    assert repr(where) in str(raised.value)
    assert raised.value.reason == "bad_filter"


def test_the_calendars_first_day_keeps_everything() -> None:
    assert one_column("date", YearTransform(), MORNING.date(), "NOT (date_column >= '0001-01-01')")


@pytest.mark.parametrize("where", [None, ""])
def test_no_filter_keeps_everything(where: str | None) -> None:
    assert partition_filter(table_view(), where)(None, ())  # type: ignore[arg-type]


def test_partitions_of_a_spec_whose_column_was_dropped_are_kept() -> None:
    spec = PartitionSpec(PartitionField(99, 1000, IdentityTransform(), "gone"), spec_id=7)
    with_gone = Schema(*SCHEMA.fields, NestedField(99, "gone", IntegerType()))
    view = table_view(spec, schema=SCHEMA)
    file: Any = SimpleNamespace(entry=SimpleNamespace(partition=(1,)))
    key = PartitionLayout.of(spec, with_gone).key((1,))
    assert partition_filter(view, "int_column = 5")(key, (file,))
