"""Filters and odd schemas, specs, summaries and metrics: what is skipped, and what must not be."""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from typing import Any

import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from compactor.errors import GiveUpError, InputError
from compactor.filters.predicates import Bounds, may_match
from compactor.filters.where import Where, bind_where, summary_bounds
from tests.properties.filters import COLUMNS, bound, file_of, keeps, manifest_of, partition_of, table_view

MORNING = dt.datetime(2024, 1, 15, 9)  # noqa: DTZ001 - a timestamp without zone


NAN = float("nan")


@pytest.mark.parametrize(("column", "smallest"), [("int", -(2**31)), ("long", -(2**63))])
@pytest.mark.parametrize("where", ["= {}", "IN ({}, 5)", "<= {}", "< 0"])
def test_truncation_that_wraps_around_in_java_is_followed(column: str, smallest: int, where: str) -> None:
    text = f"{column}_column {where.format(smallest)}"
    assert keeps(column, TruncateTransform(10), smallest, text)
    spec = bound(column, TruncateTransform(10), text).table.spec(3)
    wrapped = partition_of({column: smallest}, [column], spec)
    assert wrapped[0] > 0
    assert bind_where(table_view(spec), text).keeps_manifest(manifest_of(spec, [wrapped]))
    assert not keeps(column, TruncateTransform(10), 15, text)


def filtered_by(schema: Schema, spec: PartitionSpec, where: str, *older: Schema) -> Where:
    return bind_where(table_view(spec, schema=schema, older=older), where)


def of_c(kind: Any, where: str) -> Where:
    """A table partitioned by its only column."""
    return filtered_by(Schema(column(1, "c", kind)), PartitionSpec(part(1, IdentityTransform())), where)


def manifest(*summaries: PartitionFieldSummary, spec_id: int = 0) -> ManifestFile:
    return ManifestFile.from_args(partition_spec_id=spec_id, partitions=list(summaries))


def part(source_id: int, transform: Transform[Any, Any], name: str = "part", field_id: int = 1000) -> PartitionField:
    return PartitionField(source_id=source_id, field_id=field_id, transform=transform, name=name)


def column(field_id: int, name: str, kind: Any, required: bool = False) -> NestedField:
    return NestedField(field_id, name, kind, required=required)


def test_a_required_field_of_an_optional_struct_may_be_null() -> None:
    inner = StructType(column(2, "b", IntegerType(), required=True))
    schema = Schema(column(1, "a", inner))
    filtered = filtered_by(schema, PartitionSpec(part(2, IdentityTransform())), "a.b IS NULL")
    assert filtered.keeps_partition(0, (None,))
    assert not filtered.keeps_partition(0, (1,))


def test_a_spec_over_a_dropped_column_is_projected_as_far_as_it_can_be() -> None:
    schema = Schema(column(1, "id", IntegerType()))
    older = Schema(column(1, "id", IntegerType()), column(2, "gone", StringType()))
    spec = PartitionSpec(part(2, IdentityTransform(), "gone"), part(1, BucketTransform(4), "b", 1001))
    filtered = filtered_by(schema, spec, "id = 5", older)
    bucket = BucketTransform(4).transform(IntegerType())(5)
    assert filtered.projection(0).text == f"b IN ({bucket})"
    assert [filtered.keeps_partition(0, ("x", each)) for each in range(4)] == [each == bucket for each in range(4)]
    for names in (["x", "y"], [None]):
        assert filtered.keeps_manifest(manifest(summary_of(StringType(), *names), summary_of(IntegerType(), bucket)))


def test_a_renamed_column_is_found_by_its_id() -> None:
    schema = Schema(column(1, "renamed", IntegerType()))
    filtered = filtered_by(schema, PartitionSpec(part(1, IdentityTransform(), "old")), "renamed = 5")
    assert filtered.projection(0).text == "old = 5"
    assert [filtered.keeps_partition(0, (value,)) for value in (5, 6)] == [True, False]


def test_odd_names() -> None:
    schema = Schema(
        column(1, "a.b", IntegerType()),
        column(2, 'say "hi"', IntegerType()),
        column(3, "Größe", IntegerType()),
        column(4, "and", IntegerType()),
        column(5, "date", DateType()),
        column(6, "x", IntegerType()),
        column(7, "X", IntegerType()),
        column(8, "l", ListType(9, "int")),
        column(10, "s", StructType(column(11, "f", IntegerType()))),
    )
    spec = PartitionSpec(*[part(i, IdentityTransform(), f"p{i}", 1000 + i) for i in (1, 2, 3, 4, 5, 6, 7, 11)])
    for where, text in [
        ('"a.b" = 1', "p1 = 1"),
        ("`a.b` = 1", "p1 = 1"),
        ('"say ""hi""" = 1', "p2 = 1"),
        ("größe = 1", "p3 = 1"),
        ('"and" = 1 and "and" = 1', "p4 = 1"),
        ("date = date '2024-01-15'", "p5 = 2024-01-15"),
        ("x = 1 AND X = 2", "p6 = 1 AND p7 = 2"),
        ("s.f = 1", "p11 = 1"),
        ("S.F = 1", "p11 = 1"),
        ("s IS NOT NULL", "TRUE"),
    ]:
        assert filtered_by(schema, spec, where).projection(0).text == text
    for where, fault in [("s = 1", "only its fields can be compared"), ("l.element = 1", "in a list or map")]:
        with pytest.raises(InputError, match=fault):
            filtered_by(schema, spec, where)
    with pytest.raises(InputError, match="col could be any of Col, COL"):
        filtered_by(Schema(column(1, "Col", IntegerType()), column(2, "COL", IntegerType())), spec, "col = 1")


@pytest.mark.parametrize("transform", [VoidTransform(), UnknownTransform("zorder")])
def test_what_cannot_be_projected_is_kept(transform: Transform[Any, Any]) -> None:
    filtered = filtered_by(Schema(column(1, "id", IntegerType())), PartitionSpec(part(1, transform)), "id = 5")
    assert filtered.projection(0).text == "TRUE"
    assert filtered.keeps_partition(0, (None,))
    assert filtered.keeps_partition(0, ("x",))


def test_the_ends_of_the_calendar_do_not_stop_a_filter() -> None:
    assert not keeps("date", YearTransform(), MORNING.date(), "date_column > '9999-12-31'")
    assert keeps("date", YearTransform(), dt.date(9999, 12, 31), "date_column >= '9999-12-31'")
    assert keeps("date", YearTransform(), dt.date(1, 1, 1), "NOT (date_column > '0001-01-01')")
    far = bound("date", DayTransform(), "date_column > '9999-12-31'")
    assert far.keeps_partition(3, (5_000_000,))  # days that Python's calendar does not have
    assert bound("timestamp", HourTransform(), "timestamp_column < '0001-01-01'").keeps_partition(3, (-(10**8),))


def test_projections_are_made_once() -> None:
    filtered = bound("int", BucketTransform(4), "int_column = 5")
    assert filtered.projection(3) is filtered.projection(3)
    with pytest.raises(GiveUpError):
        filtered.projection(99)


def summary_of(kind: Any, *values: Any) -> PartitionFieldSummary:
    known = [value for value in values if value is not None]
    pack = {IntegerType: "<i", LongType: "<q", DoubleType: "<d"}.get(type(kind))
    bounds = [
        (struct.pack(pack, pick(known)) if pack else pick(known).encode()) if known else None for pick in (min, max)
    ]
    return PartitionFieldSummary(len(known) < len(values), False, *bounds)


@pytest.mark.parametrize(
    ("kind", "lower", "upper", "where"),
    [
        (IntegerType(), None, None, "c = 5"),  # no bounds though no nulls: a writer that keeps none
        (IntegerType(), b"\x05\0\0\0", None, "c = 7"),
        (IntegerType(), b"\x05", b"\x05", "c = 7"),  # not an int
        (StringType(), b"\xff\xfe", b"\xff\xff", "c = 'a'"),  # not UTF-8
        (DoubleType(), struct.pack("<d", NAN), struct.pack("<d", NAN), "c = 5"),
        (DoubleType(), struct.pack("<d", 1), struct.pack("<d", 2), "c > 5"),  # may have NaN: nothing is said of it
        (LongType(), b"\x05\0\0\0", b"\x05\0\0\0", "c = 5"),  # written when it was an int
        (UUIDType(), uuid.UUID(int=2**127).bytes, uuid.UUID(int=5).bytes, f"c = '{uuid.UUID(int=2**127 + 5)}'"),
        (UUIDType(), uuid.UUID(int=2**63).bytes, uuid.UUID(int=5).bytes, f"c = '{uuid.UUID(int=3)}'"),
        (UUIDType(), uuid.UUID(int=2**63).bytes, uuid.UUID(int=2**64).bytes, f"c = '{uuid.UUID(int=3)}'"),
    ],
)
def test_bounds_that_say_little_skip_nothing(kind: Any, lower: bytes | None, upper: bytes | None, where: str) -> None:
    filtered = of_c(kind, where)
    summary = PartitionFieldSummary(False, None, lower, upper)
    for summaries in ([summary], [], [summary, summary]):
        assert filtered.keeps_manifest(manifest(*summaries))
    assert filtered.keeps_manifest(ManifestFile.from_args(partition_spec_id=0, partitions=None))


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("c IN (1, 9)", False),  # both beside the bounds; PyIceberg asks of all values at once
        ("c = 4", False),
        ("c = 5", True),
        ("c < 5", False),
        ("c <= 5", True),
        ("c > 6", False),
        ("c >= 6", True),
        ("c != 5", True),
        ("c IS NULL", False),
        ("c IS NOT NULL", True),
        ("c = 4 OR c = 6", True),
        ("c = 5 AND c IS NULL", False),
    ],
)
def test_manifests_are_skipped_by_their_bounds(where: str, kept: bool) -> None:
    assert of_c(IntegerType(), where).keeps_manifest(manifest(summary_of(IntegerType(), 5, 6))) is kept


def test_summaries_of_another_number_of_fields_skip_nothing() -> None:
    filtered = bound("int", IdentityTransform(), "int_column = 4")
    summary = summary_of(IntegerType(), 5, 6)
    for summaries, kept in [([summary], False), ([summary, summary], True), ([], True)]:
        assert filtered.keeps_manifest(manifest(*summaries, spec_id=3)) is kept


def test_a_partition_that_cannot_be_compared_is_kept() -> None:
    filtered = bound("int", IdentityTransform(), "int_column < 4")
    for partition in [("x",), (), (b"\x05",)]:
        assert filtered.keeps_partition(3, partition)


def test_a_number_out_of_range_selects_no_bucket() -> None:
    for where, text in [
        ("int_column = 5000000000", "FALSE"),
        ("int_column IN (5000000000, -3e9)", "FALSE"),
        ("int_column != 5000000000", "part IS NOT NULL"),
    ]:
        assert bound("int", BucketTransform(4), where).projection(3).text == text


def test_manifests_with_nulls_alone_match_is_null_alone() -> None:
    for where, kept in [("c IS NULL", True), ("c IS NOT NULL", False), ("c != 5", False), ("c < 5", False)]:
        assert of_c(IntegerType(), where).keeps_manifest(manifest(summary_of(IntegerType(), None))) is kept


@pytest.mark.parametrize(("where", "kept"), [("a%", True), ("abc%", True), ("b%", False), ("abz%", False)])
def test_prefixes_between_bounds(where: str, kept: bool) -> None:
    between = manifest(summary_of(StringType(), "abb", "abd"))
    for text, expected in [(f"LIKE '{where}'", kept), ("NOT LIKE 'ab%'", False), ("NOT LIKE 'abb%'", True)]:
        assert of_c(StringType(), f"c {text}").keeps_manifest(between) is expected


def test_files_are_pruned_by_column_bounds_within_a_kept_partition() -> None:
    filtered = bound("timestamp", DayTransform(), "timestamp_column < '2024-01-15 10:00:00'")
    spec = filtered.table.spec(3)
    day = partition_of({"timestamp": MORNING}, ["timestamp"], spec)
    evening = MORNING.replace(hour=20)
    assert filtered.keeps_partition(3, day)
    assert filtered.keeps_file(file_of(spec, day, [{"timestamp": MORNING}, {"timestamp": evening}]))
    assert not filtered.keeps_file(file_of(spec, day, [{"timestamp": evening}]))
    assert not filtered.keeps_file(file_of(spec, day, [{"timestamp": None}]))
    assert filtered.keeps_file(file_of(spec, day, [{"int": 5}]))  # no metrics of the column


def test_a_file_without_nan_counts_may_hold_nan() -> None:
    filtered = bound("double", VoidTransform(), "double_column > 5")
    file = file_of(filtered.table.spec(3), (None,), [{"double": 1.0}])
    assert not filtered.keeps_file(file)
    file._data[[each.name for each in DATA_FILE_TYPE[2].fields].index("nan_value_counts")] = None
    assert filtered.keeps_file(file)


def test_partitions_are_kept_by_key() -> None:
    filtered = bound("int", IdentityTransform(), "int_column = 5")
    layout = filtered.table.layout(3)
    assert [filtered.keeps(layout.key((value,))) for value in (5, 6)] == [True, False]


def test_partition_values_of_any_shape_are_compared() -> None:
    for name, value in [
        ("uuid", uuid.UUID(int=7)),
        ("date", MORNING.date()),
        ("time", dt.time(9)),
        ("timestamp", MORNING),
    ]:
        filtered = bound(name, IdentityTransform(), f"{name}_column = {COLUMNS[name].sql(value)}")
        assert filtered.keeps_partition(3, Record(value))  # type: ignore[arg-type]
        assert filtered.keeps_partition(3, (COLUMNS[name].stored(value),))


def test_summary_bounds_of_nothing_else_than_nulls() -> None:
    told = summary_bounds(IntegerType(), PartitionFieldSummary(True, None, None, None))
    assert (told.nulls, told.values, told.nans) == (True, False, False)


@pytest.mark.parametrize(
    ("where", "bounds", "kept"),
    [
        ("string_column NOT IN ('a', 'b')", ("a", "a"), False),
        ("string_column NOT IN ('a', 'b')", ("a", "b"), True),
        ("string_column != 'a'", ("a", "a"), False),
        ("string_column != 'a'", ("b", "b"), True),
        ("string_column NOT IN ('a')", ("a", None), True),
        ("string_column NOT IN ('a')", (None, None), True),
        ("string_column NOT IN ('a')", ("a", "aa"), True),
        ("string_column LIKE '%ar'", ("bar", "bar"), True),
        ("string_column LIKE '%ar'", ("baz", "baz"), False),
        ("string_column LIKE 'b%r'", ("c", "d"), False),
        ("string_column LIKE 'b%r'", ("a", "c"), True),
        ("string_column NOT LIKE '%ar'", ("bar", "bar"), False),
        ("string_column NOT LIKE '%ar'", ("bar", "baz"), True),
    ],
)
def test_a_file_of_one_value_is_judged_by_it(where: str, bounds: tuple[str | None, str | None], kept: bool) -> None:
    predicate = bind_where(table_view(), where).predicate
    assert may_match(predicate, lambda _key: Bounds(*bounds, nans=False)) is kept
    if None not in bounds:
        found = bound("string", VoidTransform(), where)
        assert found.keeps_file(file_of(found.table.spec(3), (None,), [{"string": each} for each in bounds])) is kept


def test_a_file_of_one_value_and_nan_or_null_is_kept_where_these_match() -> None:
    where = bind_where(table_view(), "double_column NOT IN (1.5)")
    leaf = where.predicate
    for bounds, kept in [
        (Bounds(1.5, 1.5, nulls=False, nans=False), False),
        (Bounds(1.5, 1.5, nulls=True, nans=False), False),
        (Bounds(1.5, 1.5, nulls=False, nans=True), True),
        (Bounds(None, None, nulls=True, nans=False, values=False), False),
    ]:
        assert may_match(leaf, lambda _key, bounds=bounds: bounds) is kept
