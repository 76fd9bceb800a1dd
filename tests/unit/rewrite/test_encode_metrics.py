"""Metrics of written files: bounds hold for every value of every type, counts are exact, modes are applied."""

from __future__ import annotations

import math
import struct
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from compactor.rewrite.encode.written_metrics import (
    WrittenMetrics,
    metrics_modes,
    parse_mode,
    truncated_bytes_above,
    truncated_text_above,
)
from compactor.rewrite.parquet.column_metrics import ColumnMetrics
from compactor.rewrite.reading.schema import arrow_type, written_schema
from tests.properties.examples import examples
from tests.unit.rewrite.encode_support import column, encode_task, encoded, write

COMMON = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: Decimal(f"{n}e-{scale}"))


TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("\ud7ff\ue000\U0010ffff\x00aZ"), max_size=24)
BYTES = st.binary(max_size=24) | st.lists(st.sampled_from([0, 127, 128, 255]), max_size=24).map(bytes)
# Iceberg type → values as numbers since the epoch, bytes, text: what bounds decode to.
TYPES: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (IntegerType(), integers(32)),
    (LongType(), integers(64)),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.inf])),
    (DecimalType(1, 0), decimals(1, 0)),
    (DecimalType(9, 2), decimals(9, 2)),
    (DecimalType(18, 18), decimals(18, 18)),
    (DecimalType(38, 10), decimals(38, 10)),
    (DateType(), integers(32)),
    (TimeType(), st.integers(0, 86_400_000_000 - 1)),
    (TimestampType(), integers(64)),
    (TimestamptzType(), integers(64)),
    (TimestampNanoType(), integers(64)),
    (TimestamptzNanoType(), integers(64)),
    (StringType(), TEXT),
    (UUIDType(), st.binary(min_size=16, max_size=16)),
    (FixedType(3), st.binary(min_size=3, max_size=3)),
    (FixedType(20), st.binary(min_size=20, max_size=20)),
    (BinaryType(), BYTES),
]


def array_of(kind: PrimitiveType, values: list[Any]) -> pa.Array:
    arrow = arrow_type(kind)
    if isinstance(kind, UUIDType):
        return pa.ExtensionArray.from_storage(arrow, pa.array(values, pa.binary(16)))
    if pa.types.is_temporal(arrow):
        return pa.array(values, pa.int32() if isinstance(kind, DateType) else pa.int64()).view(arrow)
    return pa.array(values, arrow)


def metrics_of(kind: PrimitiveType, batches: list[list[Any]], mode: str) -> ColumnMetrics:
    schema = Schema(NestedField(1, "x", kind))
    written = written_schema(schema, with_lineage=False)
    modes = metrics_modes(schema, written.leaves, {"write.metadata.metrics.default": mode})
    collected = WrittenMetrics(written, modes)
    for batch in batches:
        collected.add(pa.table([array_of(kind, batch)], schema=written.arrow))
    return collected.result({1: 10})


def decoded(kind: PrimitiveType, bound: bytes) -> Any:
    if isinstance(kind, (UUIDType, FixedType, BinaryType)):
        return bound
    if isinstance(kind, StringType):
        return bound.decode()
    return from_bytes(kind, bound)


def orders(kind: PrimitiveType) -> list[Any]:
    """All orders that readers may use."""
    if isinstance(kind, UUIDType):
        return [lambda value: value, lambda value: struct.unpack(">qq", value)]
    if isinstance(kind, (FloatType, DoubleType)):
        return [lambda value: (value, math.copysign(1, value))]
    if isinstance(kind, StringType):
        return [lambda value: value, lambda value: value.encode()]
    return [lambda value: value]


@pytest.mark.parametrize(("kind", "strategy"), TYPES, ids=[str(kind) for kind, _ in TYPES])
@pytest.mark.parametrize("mode", ["truncate(1)", "truncate(5)", "full"])
def test_bounds_hold_for_every_value(kind: PrimitiveType, strategy: st.SearchStrategy[Any], mode: str) -> None:
    @COMMON
    @given(st.lists(st.lists(st.none() | strategy, max_size=6), min_size=1, max_size=3))
    def check(batches: list[list[Any]]) -> None:
        metrics = metrics_of(kind, batches, mode)
        rows = [value for batch in batches for value in batch]
        nans = [value for value in rows if isinstance(value, float) and math.isnan(value)]
        values = [value for value in rows if value is not None and value == value]  # noqa: PLR0124 - not NaN
        floating = isinstance(kind, (FloatType, DoubleType))
        assert (metrics.record_count, metrics.value_counts) == (len(rows), {1: len(rows)})
        assert metrics.null_value_counts == {1: rows.count(None)}
        all_nan = bool(nans) and len(nans) == len(rows)
        assert metrics.nan_value_counts == ({1: len(nans)} if floating and not all_nan else {})
        if not values:
            assert not metrics.lower_bounds
            assert not metrics.upper_bounds
            return
        for bounds, holds in [(metrics.lower_bounds, _at_most), (metrics.upper_bounds, _at_least)]:
            if 1 in bounds:
                bound = decoded(kind, bounds[1])
                assert all(holds(order(bound), order(value)) for order in orders(kind) for value in values)
        check_tight(kind, metrics, values, mode, nans=bool(nans))

    check()


def _at_most(bound: Any, value: Any) -> bool:
    return bool(bound <= value)


def _at_least(bound: Any, value: Any) -> bool:
    return bool(bound >= value)


def check_tight(kind: PrimitiveType, metrics: ColumnMetrics, values: list[Any], mode: str, *, nans: bool) -> None:
    """Without truncation the bounds are the extremes; a bound is missing only for a known reason."""
    if isinstance(kind, UUIDType):
        for bounds, choose in [(metrics.lower_bounds, min), (metrics.upper_bounds, max)]:
            picked = {choose(values, key=order) for order in orders(kind)}
            assert bounds == ({1: picked.pop()} if len(picked) == 1 else {})
        return
    assert 1 in metrics.lower_bounds
    truncated = isinstance(kind, (StringType, BinaryType, FixedType)) and mode != "full"
    if not truncated:
        assert decoded(kind, metrics.lower_bounds[1]) == min(values)
        assert (1 in metrics.upper_bounds) is not nans
        assert nans or decoded(kind, metrics.upper_bounds[1]) == max(values)
    elif 1 not in metrics.upper_bounds:
        length = int(mode[9:-1])
        last = "\U0010ffff" if isinstance(kind, StringType) else b"\xff"
        assert max(values)[:length] == last * length


def test_bounds_of_zero_take_both_zeros_in() -> None:
    for values in ([0.0], [-0.0], [0.0, -0.0], [-0.0, 0.0]):
        metrics = metrics_of(DoubleType(), [values], "full")
        assert metrics.lower_bounds == {1: struct.pack("<d", -0.0)}
        assert metrics.upper_bounds == {1: struct.pack("<d", 0.0)}


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_beside_nan(zero: float) -> None:
    """Iceberg's writer gives the least and the greatest number; the spec demands no bound, and no NaN in one. With an
    upper bound, Iceberg's filters skip the file for `x > 0`, which NaN meets in Spark.
    """
    metrics = metrics_of(DoubleType(), [[math.nan, zero]], "full")
    assert metrics.lower_bounds == {1: struct.pack("<d", -0.0)}
    assert (metrics.upper_bounds, metrics.nan_value_counts) == ({}, {1: 1})


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_readers_that_sort_nan_last_find_it_above_every_number(kind: PrimitiveType) -> None:
    """By no bound, and by no count from which Iceberg's filters conclude that there is nothing to compare."""
    some = metrics_of(kind, [[1.0], [math.nan, 2.0, None]], "full")
    assert (some.nan_value_counts, some.lower_bounds.keys(), some.upper_bounds) == ({1: 1}, {1}, {})
    every = metrics_of(kind, [[math.nan], [math.nan]], "full")
    assert (every.value_counts, every.nan_value_counts, every.lower_bounds, every.upper_bounds) == ({1: 2}, {}, {}, {})
    with_nulls = metrics_of(kind, [[math.nan], [None]], "full")
    assert (with_nulls.nan_value_counts, with_nulls.lower_bounds, with_nulls.upper_bounds) == ({1: 1}, {}, {})


def test_uuids_of_one_sign_have_bounds() -> None:
    low, high = uuid.UUID(int=1 << 63 | 1).bytes, uuid.UUID(int=1 << 64 | 1 << 63).bytes
    metrics = metrics_of(UUIDType(), [[high, low]], "truncate(16)")
    assert (metrics.lower_bounds, metrics.upper_bounds) == ({1: low}, {1: high})


def test_metrics_of_a_slice_are_of_its_rows_alone() -> None:
    schema = Schema(NestedField(1, "x", "uuid"))
    written = written_schema(schema, with_lineage=False)
    values = [bytes([first]) * 16 for first in (0, 5, 6, 127)]
    collected = WrittenMetrics(written, metrics_modes(schema, written.leaves, {}))
    collected.add(pa.table([array_of(UUIDType(), values)], schema=written.arrow).slice(1, 2))
    metrics = collected.result({})
    assert (metrics.lower_bounds, metrics.upper_bounds) == ({1: values[1]}, {1: values[2]})


def test_text_that_is_no_utf8_has_no_bounds() -> None:
    schema = Schema(NestedField(1, "x", "string"))
    written = written_schema(schema, with_lineage=False)
    collected = WrittenMetrics(written, metrics_modes(schema, written.leaves, {}))
    collected.add(pa.table([pa.array([b"a", b"\xff"]).view(pa.string())], schema=written.arrow))
    metrics = collected.result({})
    assert metrics.value_counts == {1: 2}
    assert not metrics.lower_bounds
    assert not metrics.upper_bounds


@COMMON
@given(TEXT, st.integers(1, 6))
@example("\ud7ff" * 3, 2)
@example("\U0010ffff" * 3, 2)
@example("a\U0010ffff\U0010ffff", 2)
def test_truncated_text_sorts_after_all_it_stands_for(text: str, length: int) -> None:
    above = truncated_text_above(text, length)
    if above is None:
        assert text[:length] == "\U0010ffff" * length
        return
    assert len(above) <= length
    assert above.encode() >= text.encode()
    assert above == text or above.encode() > text[:length].encode()


@COMMON
@given(BYTES, st.integers(1, 6))
def test_truncated_bytes_sort_after_all_they_stand_for(data: bytes, length: int) -> None:
    above = truncated_bytes_above(data, length)
    if above is None:
        assert data[:length] == b"\xff" * length
        return
    assert len(above) <= length
    assert above >= data


# --- modes ------------------------------------------------------------------------------------------------------------

NESTED = Schema(
    NestedField(1, "l", ListType(2, "string", element_required=False)),
    NestedField(3, "s", StructType(NestedField(4, "x", "long"), NestedField(5, "y", "double"))),
    NestedField(6, "m", MapType(7, "string", 8, "long", value_required=False)),
    NestedField(9, "a b", "long"),
)


def kept(properties: dict[str, str], sorted_ids: tuple[int, ...] = ()) -> dict[int, str]:
    leaves = written_schema(NESTED, with_lineage=False).leaves
    modes = metrics_modes(NESTED, leaves, properties, sorted_ids)
    return {
        field_id: "full" if mode.bounds and mode.length is None
        else f"truncate({mode.length})" if mode.bounds else "counts" if mode.counts else "none"
        for field_id, mode in modes.items()
    }  # fmt: skip


def test_modes() -> None:
    default = "truncate(16)"
    assert kept({}) == dict.fromkeys([2, 4, 5, 7, 8, 9], default)
    assert set(kept({"write.metadata.metrics.default": "Counts"}).values()) == {"counts"}
    assert set(kept({"write.metadata.metrics.default": "truncate(0)"}).values()) == {default}
    columns = {"write.metadata.metrics.column.s.x": "full", "write.metadata.metrics.column.a b": "none"}
    assert kept(columns) == {2: default, 4: "full", 5: default, 7: default, 8: default, 9: "none"}
    assert kept({"write.metadata.metrics.default": "none"}, sorted_ids=(4,))[4] == default
    assert parse_mode("truncate(7)") == parse_mode(" TRUNCATE(7) ")


def test_only_the_first_columns_have_metrics_in_a_wide_table() -> None:
    key = "write.metadata.metrics.max-inferred-column-defaults"
    none_but = {2: "none", 4: "none", 5: "none", 7: "none", 8: "none", 9: "none"}
    default = "truncate(16)"
    assert kept({key: "7"}) == dict.fromkeys(none_but, default)  # six leaves and a struct
    # A struct's own leaves come before what is nested deeper: "a b" first, then the list's element, then s.
    assert kept({key: "1"}) == none_but | {9: default}
    assert kept({key: "2"}) == none_but | {9: default, 2: default}
    assert kept({key: "3"}) == none_but | {9: default, 2: default, 4: default}
    assert kept({key: "1", "write.metadata.metrics.column.s.y": "counts"}) == none_but | {9: default, 5: "counts"}
    assert kept({key: "1", "write.metadata.metrics.default": "full"}) == dict.fromkeys(none_but, "full")


def test_counts_and_sizes_of_nested_columns(tmp_path: Path) -> None:
    arrow = written_schema(NESTED, with_lineage=False).arrow
    rows = [
        {"l": ["a"], "s": {"x": 5, "y": math.nan}, "m": [("k", 1)], "a b": 1},
        {"l": None, "s": None, "m": None, "a b": 2},
        {"l": [], "s": {"x": None, "y": 2.0}, "m": [], "a b": 3},
    ]
    rows = [{("a_x20b" if name == "a b" else name): value for name, value in row.items()} for row in rows]
    source = write(tmp_path / "1.parquet", pa.Table.from_pylist(rows, schema=arrow))
    properties = (("write.metadata.metrics.column.a b", "none"),)
    result, _ = encoded(encode_task(tmp_path, NESTED, [source], properties=properties))
    metrics = result.metrics
    assert set(metrics.column_sizes) == {2, 4, 5, 7, 8}
    assert metrics.value_counts == {4: 3, 5: 3}
    assert metrics.null_value_counts == {4: 2, 5: 1}
    assert metrics.nan_value_counts == {5: 1}
    assert metrics.lower_bounds == {4: struct.pack("<q", 5), 5: struct.pack("<d", 2.0)}
    assert metrics.upper_bounds == {4: struct.pack("<q", 5)}


def test_lineage_columns_have_no_metrics(tmp_path: Path) -> None:
    arrow = pa.schema([column("id", pa.int64(), 1)])
    source = write(tmp_path / "1.parquet", pa.table([np.arange(3)], schema=arrow))
    schema = Schema(NestedField(1, "id", "long"))
    properties = (("write.metadata.metrics.default", "full"),)
    work = encode_task(tmp_path, schema, [source], format_version=3, keep_row_lineage=True, properties=properties)
    result, _ = encoded(work)
    assert set(result.metrics.column_sizes) == set(result.metrics.value_counts) == {1}
