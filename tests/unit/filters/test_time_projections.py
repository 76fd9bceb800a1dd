"""What filters over times say of partitions by year, month, day and hour: the printed table, and by counting."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform
from pyiceberg.types import DateType, NestedField, TimestampNanoType, TimestamptzType

from compactor.filter_syntax import parse_filter
from compactor.filters.binding import bind
from compactor.filters.predicates import matches
from compactor.filters.projection import project
from deploy.generate.where_page import projected, time_filters, where_page

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
HOUR = dt.timedelta(hours=1)
MICROSECOND = dt.timedelta(microseconds=1)
TRANSFORMS = {
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
# Written without PyIceberg: what the spec says a partition value is.
PARTITIONS: dict[str, Callable[[dt.datetime], int]] = {
    "year": lambda at: at.year - 1970,
    "month": lambda at: (at.year - 1970) * 12 + at.month - 1,
    "day": lambda at: (at.date() - dt.date(1970, 1, 1)).days,
    "hour": lambda at: (at - EPOCH) // HOUR,
}
SAYS: dict[str, Callable[[dt.datetime, dt.datetime, dt.datetime], bool]] = {
    "=": lambda at, low, _: at == low,
    "!=": lambda at, low, _: at != low,
    "<": lambda at, low, _: at < low,
    "<=": lambda at, low, _: at <= low,
    ">": lambda at, low, _: at > low,
    ">=": lambda at, low, _: at >= low,
    "IN": lambda at, low, high: at in {low, high},
    "BETWEEN": lambda at, low, high: low <= at <= high,
}
MOMENTS = {
    "The first moment of a year": ("2024-01-01 00:00:00", "2025-01-01 00:00:00"),
    "The first moment of an hour": ("2024-01-15 10:00:00", "2024-01-16 10:00:00"),
    "Within an hour": ("2024-01-15 10:30:00", "2024-02-29 23:59:59.999999"),
    "Before 1970": ("1969-12-31 23:30:00", "1969-12-31 23:45:00"),
    "The first moment of 1970": ("1970-01-01 00:00:00", "1970-01-01 00:30:00"),
    "Summer time begins: 01:30 UTC, and half an hour of UTC later": (
        "2024-03-31 03:30:00+02:00",
        "2024-03-31 04:00:00+02:00",
    ),
    "Summer time ends: 02:30 twice, an hour apart": ("2024-10-27 02:30:00+02:00", "2024-10-27 02:30:00+01:00"),
}
"""Two moments each, the earlier one first, as written in a filter."""
PAIRS = [tuple(dt.datetime.fromisoformat(text) for text in pair) for pair in MOMENTS.values()]
CASES = [
    (text, operator, *(at if at.tzinfo else at.replace(tzinfo=UTC) for at in pair))
    for moments, pair in zip(MOMENTS.values(), PAIRS, strict=True)
    for text, operator in zip(time_filters(*moments), SAYS, strict=True)
]


def moments_around(*centres: dt.datetime) -> list[dt.datetime]:
    """The moments themselves, those just beside them, and others near and far, one in every partition that is near."""
    steps = [dt.timedelta(0), MICROSECOND, HOUR / 2, HOUR, 2 * HOUR, 24 * HOUR, 31 * 24 * HOUR, 366 * 24 * HOUR]
    around = {centre + sign * step for centre in centres for step in steps for sign in (-1, 1)}
    starts = {at.replace(minute=0, second=0, microsecond=0) for at in around}
    return sorted(around | {start + offset for start in starts for offset in (-MICROSECOND, 0 * HOUR)})


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("text", "operator", "low", "high"), CASES, ids=[case[0] for case in CASES])
def test_exactly_the_partitions_with_matching_moments_are_kept(
    text: str, operator: str, low: dt.datetime, high: dt.datetime, transform: str
) -> None:
    partition = PARTITIONS[transform]
    moments = moments_around(low, high)
    matching = {partition(at) for at in moments if SAYS[operator](at, low, high)}
    bounds = {"<": {partition(low - MICROSECOND)}, ">": {partition(low + MICROSECOND)}}.get(operator, set())
    late = {value + 1 for value in matching | bounds if value < 0}  # what Iceberg 0.10 and before made of them
    kept = {partition(at) for at in moments if keeps(text, transform, partition(at))}
    assert matching <= kept
    if operator != "!=":
        assert kept <= matching | late
    else:
        assert kept == {partition(at) for at in moments}


def keeps(text: str, transform: str, value: int | None, kind: type = TimestamptzType) -> bool:
    column = NestedField(field_id=1, name="ts", field_type=kind(), required=False)
    field = PartitionField(source_id=1, field_id=1000, transform=TRANSFORMS[transform], name=transform)
    predicate = bind(Schema(column), parse_filter(text))
    return matches(project(predicate, PartitionSpec(field), {1: kind()}).predicate, lambda _: value)


@pytest.mark.parametrize(
    ("text", "transform", "says"),
    [
        ("ts < '2024-01-15 10:00:00'", "day", "day <= 2024-01-15"),
        ("ts < '2024-01-15 00:00:00'", "day", "day <= 2024-01-14"),
        ("ts > '2024-01-15 23:59:59.999999'", "day", "day >= 2024-01-16"),
        ("ts >= '2024-01-15'", "month", "month >= 2024-01"),
        ("ts < '2024-01-01'", "year", "year <= 2023"),
        ("ts = '2024-01-15T10:59:59.999999Z'", "hour", "hour = 2024-01-15-10"),
        ("ts = '2024-01-15 00:30:00+01:00'", "day", "day = 2024-01-14"),
        ("ts = '2024-01-14 23:30:00-01:00'", "hour", "hour = 2024-01-15-00"),
        ("ts <> '2024-01-15'", "day", "day IS NOT NULL"),
        ("ts IS NULL", "hour", "hour IS NULL"),
        ("ts NOT BETWEEN '2024-01-15' AND '2024-01-16'", "day", "day <= 2024-01-14 OR day >= 2024-01-16"),
        ("ts < '1969-06-01'", "month", "month <= 1969-06"),
        ("ts > '9999-12-31 23:59:59.999999'", "year", "year >= 9999"),
        ("ts < '0001-01-01'", "month", "month <= 0001-02"),
    ],
)
def test_projections_read_like_sql(text: str, transform: str, says: str) -> None:
    assert projected(text, transform) == says


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
def test_null_partitions_are_left_out(operator: str, transform: str) -> None:
    assert not keeps(f"ts {operator} '2024-01-15'", transform, None)
    assert keeps("ts IS NULL", transform, None)


def test_dates_by_day_were_never_late() -> None:
    assert keeps("ts = '1969-12-31'", "day", -1, DateType)
    assert not keeps("ts = '1969-12-31'", "day", 0, DateType)
    assert keeps("ts = '1969-12-31'", "month", 0, DateType)


def test_nanoseconds_count() -> None:
    text = "ts > '1970-01-01 00:59:59.999999998' AND ts < '1970-01-01 01:00:00.000000001'"
    assert [hour for hour in (-1, 0, 1, 2) if keeps(text, "hour", hour, TimestampNanoType)] == [0, 1]
    assert not keeps("ts > '1970-01-01 00:59:59.999999999'", "hour", 0, TimestampNanoType)
    assert keeps("ts > '1970-01-01 00:59:59.999999998'", "hour", 0, TimestampNanoType)


def test_the_page_is_up_to_date() -> None:
    written = (Path(__file__).parents[3] / "docs" / "where.md").read_text()
    assert written.strip() == where_page().strip(), "run: make generate"
