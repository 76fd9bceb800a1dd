"""Merge column metrics of whole files that become one file, from their manifest entries.

The guarantee: **a reader prunes the merged file only if it would have pruned every input, and infers "all rows match"
only if it would have inferred that for every input.** So a merge never makes a query lose a row, and a metadata-only
delete never drops a file with other rows, even if one input has fewer metrics than the others.

Rules that follow from it:

- A count adds up only if every input knows it: an unknown count must not look like a small one.
- A bound that any input lacks is dropped. Inputs whose column is only null, or only NaN, have no bounds and are
  skipped: readers prune them by their counts. But an input of NaN alone drops the upper bound: DuckDB does not prune by
  counts of NaN, and finds it with `x > 10`. An input of nulls *and* NaNs is not skipped: no reader prunes it.
- Strict evaluators read a missing null or NaN count as "there are none". Bounds are therefore dropped where a count is
  lost although some input had it above zero (otherwise `DELETE WHERE x > 5` could drop the nulls with the file).
- Bounds are compared as values of the column's current type. Where readers disagree about the order (UUID: unsigned
  bytes or `java.util.UUID`'s two signed longs; strings: code points or UTF-16 units), a bound is kept only if both
  orders choose the same one.
- Bounds are not truncated. A writer that truncates rounds lower bounds down and upper bounds up, and the least and the
  greatest of sound bounds are sound.
- A merged file never has more metrics than its inputs, so the table's metrics modes (`none`, `counts`, `truncate(n)`)
  at the time of writing hold for it too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyiceberg import types
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import IcebergType
from pyiceberg.utils.decimal import bytes_required

from compactor.errors import GiveUpError
from compactor.reasons import Reason

Entry = TypeVar("Entry", int, bytes)

INT_WIDTH = 4
LONG_WIDTH = 8
UUID_WIDTH = 16


@dataclass(frozen=True)
class ColumnMetrics:
    """The metrics of a manifest entry. Maps have field ids as keys; an absent id means unknown."""

    record_count: int
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]

    @classmethod
    def from_data_file(cls, data_file: DataFile) -> ColumnMetrics:
        """The metrics of a manifest entry's data file; missing maps are empty."""
        return cls(
            record_count=data_file.record_count,
            column_sizes=dict(data_file.column_sizes or {}),
            value_counts=dict(data_file.value_counts or {}),
            null_value_counts=dict(data_file.null_value_counts or {}),
            nan_value_counts=dict(data_file.nan_value_counts or {}),
            lower_bounds={field_id: bytes(bound) for field_id, bound in (data_file.lower_bounds or {}).items()},
            upper_bounds={field_id: bytes(bound) for field_id, bound in (data_file.upper_bounds or {}).items()},
        )


def merge(metrics: Sequence[ColumnMetrics], schema: Schema) -> ColumnMetrics:
    """The metrics of a file that holds the rows of all `metrics`' files; `schema` is the table's current schema.

    Columns that are not in `schema` are left out. The module's docstring says when a count or a bound is kept.
    """
    inputs = [_without_contradictions(each) for each in metrics if _has_rows(each)]
    fields = index_by_id(schema)
    counted = ColumnMetrics(
        record_count=sum(each.record_count for each in inputs),
        column_sizes=_sums([each.column_sizes for each in inputs], fields),
        value_counts=_sums([each.value_counts for each in inputs], fields),
        null_value_counts=_sums([each.null_value_counts for each in inputs], fields),
        nan_value_counts=_sums([each.nan_value_counts for each in inputs], fields),
        lower_bounds={},
        upper_bounds={},
    )
    bounds = {
        field_id: _bounds(inputs, field_id, field.field_type)
        for field_id, field in fields.items()
        if not _loses_a_positive_count(inputs, counted, field_id)
    }
    return replace(
        counted,
        lower_bounds={field_id: lower for field_id, (lower, _) in bounds.items() if lower is not None},
        upper_bounds={field_id: upper for field_id, (_, upper) in bounds.items() if upper is not None},
    )


def with_column_sizes(metrics: ColumnMetrics, sizes: Mapping[int, int]) -> ColumnMetrics:
    """`metrics` with the column sizes from the merged file's footer."""
    return replace(metrics, column_sizes=dict(sizes))


def to_json(metrics: ColumnMetrics) -> dict[str, Any]:
    """The metrics as fields of content-file JSON (REST spec). Empty maps are left out: absent means unknown.

    Bounds are upper-case hex, as Iceberg Java writes them; its parser accepts both cases.
    """
    maps: dict[str, Mapping[int, int] | Mapping[int, str]] = {
        "column-sizes": metrics.column_sizes,
        "value-counts": metrics.value_counts,
        "null-value-counts": metrics.null_value_counts,
        "nan-value-counts": metrics.nan_value_counts,
        "lower-bounds": {field_id: bound.hex().upper() for field_id, bound in metrics.lower_bounds.items()},
        "upper-bounds": {field_id: bound.hex().upper() for field_id, bound in metrics.upper_bounds.items()},
    }
    encoded = {name: _key_value_lists(entries) for name, entries in maps.items() if entries}
    return {"record-count": metrics.record_count, **encoded}


def _key_value_lists(entries: Mapping[int, int] | Mapping[int, str]) -> dict[str, list[Any]]:
    keys = sorted(entries)
    return {"keys": keys, "values": [entries[key] for key in keys]}


# --- counts -----------------------------------------------------------------------------------------------------------


def _has_rows(metrics: ColumnMetrics) -> bool:
    """False for an empty file, which adds nothing. Old Avro imports have record count -1 for "not counted"."""
    if metrics.record_count < 0:
        raise GiveUpError(
            f"a data file's manifest entry has record count {metrics.record_count}, so the merged file's is unknown; "
            "exclude the file, or use an engine that reads rows",
            reason=Reason.RECORD_COUNT_UNKNOWN,
        )
    return metrics.record_count > 0


def _sums(inputs: Sequence[Mapping[int, int]], field_ids: Collection[int]) -> dict[int, int]:
    """Sums for the fields that all inputs count."""
    return {
        field_id: sum(counts[field_id] for counts in inputs)
        for field_id in field_ids
        if inputs and all(field_id in counts for counts in inputs)
    }


def _without_contradictions(metrics: ColumnMetrics) -> ColumnMetrics:
    """`metrics` without columns whose counts are impossible: their counts and bounds are unknown."""
    counted = metrics.value_counts.keys() | metrics.null_value_counts.keys() | metrics.nan_value_counts.keys()
    wrong = {field_id for field_id in counted if _contradictory(metrics, field_id)}
    if not wrong:
        return metrics
    return replace(
        metrics,
        value_counts=_without(metrics.value_counts, wrong),
        null_value_counts=_without(metrics.null_value_counts, wrong),
        nan_value_counts=_without(metrics.nan_value_counts, wrong),
        lower_bounds=_without(metrics.lower_bounds, wrong),
        upper_bounds=_without(metrics.upper_bounds, wrong),
    )


def _contradictory(metrics: ColumnMetrics, field_id: int) -> bool:
    """True for negative counts, more nulls and NaNs than values, and no values in a file with rows."""
    nulls = metrics.null_value_counts.get(field_id, 0)
    nans = metrics.nan_value_counts.get(field_id, 0)
    values = metrics.value_counts.get(field_id, max(1, nulls + nans))
    return nulls < 0 or nans < 0 or values < max(1, nulls + nans)


def _without(entries: Mapping[int, Entry], field_ids: Collection[int]) -> dict[int, Entry]:
    return {field_id: entry for field_id, entry in entries.items() if field_id not in field_ids}


def _loses_a_positive_count(inputs: Sequence[ColumnMetrics], counted: ColumnMetrics, field_id: int) -> bool:
    """True if readers would assume that the merged file has no nulls or NaNs although an input has some."""
    return (
        field_id not in counted.null_value_counts
        and any(each.null_value_counts.get(field_id, 0) > 0 for each in inputs)
    ) or (
        field_id not in counted.nan_value_counts and any(each.nan_value_counts.get(field_id, 0) > 0 for each in inputs)
    )


def _holds_nothing_to_bound(metrics: ColumnMetrics, field_id: int) -> bool:
    """True when all values are null, or all are NaN."""
    values = metrics.value_counts.get(field_id)
    return values is not None and values in (
        metrics.null_value_counts.get(field_id),
        metrics.nan_value_counts.get(field_id),
    )


def _holds_nan_alone(metrics: ColumnMetrics, field_id: int) -> bool:
    nans = metrics.nan_value_counts.get(field_id, 0)
    return 0 < nans == metrics.value_counts.get(field_id)


# --- bounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BoundCodec:
    """Reads, writes and compares bounds of one type.

    `decode` returns None for bytes that are not a value of the type. `orders` are the sort keys of all orders that
    readers are known to use; a bound must be the extreme value in all of them.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    orders: tuple[Callable[[Any], Any], ...]

    def extreme(self, choose: Callable[..., Any], encoded: Sequence[bytes | None]) -> bytes | None:
        """The bound that `choose` (`min` or `max`) selects in every order.

        None if there are no bounds, if one is missing or unreadable, or if the orders select different bounds.
        """
        values = [None if bound is None else self.decode(bound) for bound in encoded]
        if not values or any(value is None for value in values):
            return None
        picked = {self.encode(choose(values, key=order)) for order in self.orders}
        return picked.pop() if len(picked) == 1 else None


def _bounds(
    inputs: Sequence[ColumnMetrics], field_id: int, field_type: IcebergType
) -> tuple[bytes | None, bytes | None]:
    """The merged lower and upper bound of one column; None where no sound bound exists."""
    codec = CODECS.get(type(field_type))
    if codec is None:
        return None, None
    bounded = [each for each in inputs if not _holds_nothing_to_bound(each, field_id)]
    if _any_nan(bounded, field_id, codec):
        return None, None
    lower = codec.extreme(min, [each.lower_bounds.get(field_id) for each in bounded])
    if any(_holds_nan_alone(each, field_id) for each in inputs):
        return lower, None
    return lower, codec.extreme(max, [each.upper_bounds.get(field_id) for each in bounded])


def _any_nan(inputs: Sequence[ColumnMetrics], field_id: int, codec: _BoundCodec) -> bool:
    """True if a bound is NaN: the writer's bounds of this column cannot be trusted."""
    encoded = [
        bounds[field_id] for each in inputs for bounds in (each.lower_bounds, each.upper_bounds) if field_id in bounds
    ]
    return any(isinstance(value, float) and math.isnan(value) for value in map(codec.decode, encoded))


def _itself(value: Any) -> Any:
    return value


def _integer_codec(width: int, *, promoted_from: int | None = None) -> _BoundCodec:
    """Little-endian signed integers; bounds written before a promotion have the narrower width."""
    widths = (width, promoted_from)

    def decode(bound: bytes) -> int | None:
        return int.from_bytes(bound, "little", signed=True) if len(bound) in widths else None

    def encode(value: int) -> bytes:
        return value.to_bytes(width, "little", signed=True)

    return _BoundCodec(decode, encode, (_itself,))


def _floating_codec(width: int, *, promoted_from: int | None = None) -> _BoundCodec:
    """IEEE 754 numbers in total order, so that -0.0 comes before +0.0."""
    formats = {INT_WIDTH: "<f", LONG_WIDTH: "<d"}
    widths = (width, promoted_from)

    def decode(bound: bytes) -> Any:
        return struct.unpack(formats[len(bound)], bound)[0] if len(bound) in widths else None

    def encode(value: float) -> bytes:
        return struct.pack(formats[width], value)

    return _BoundCodec(decode, encode, (_total_order,))


def _total_order(value: float) -> tuple[float, float]:
    return value, math.copysign(1.0, value)


def _decode_unscaled(bound: bytes) -> int | None:
    """The unscaled number of a decimal. The scale never changes, so unscaled numbers compare like the decimals."""
    return int.from_bytes(bound, "big", signed=True) if bound else None


def _encode_unscaled(value: int) -> bytes:
    return value.to_bytes(bytes_required(value), "big", signed=True)


def _decode_string(bound: bytes) -> str | None:
    """None for bytes that are not UTF-8 (some writers cut inside a character); Java readers fail on such bounds."""
    try:
        return bound.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _utf16_units(value: str) -> bytes:
    """The order of plain UTF-16 comparison, where characters beyond U+FFFF come before U+E000 to U+FFFF.

    Python compares strings by code point, which is the order of their UTF-8 bytes, and of Iceberg Java's
    `Comparators.charSequences()` with its extra rule for high surrogates.
    """
    return value.encode("utf-16-be")


def _decode_uuid(bound: bytes) -> bytes | None:
    return bound if len(bound) == UUID_WIDTH else None


def _signed_halves(value: bytes) -> tuple[Any, ...]:
    """The order of `java.util.UUID.compareTo`, which Iceberg Java's evaluators use."""
    return struct.unpack(">qq", value)


_BOOLEANS = _BoundCodec(
    decode=lambda bound: bound != b"\x00" if len(bound) == 1 else None,
    encode=lambda value: b"\x01" if value else b"\x00",
    orders=(_itself,),
)
_LONGS = _integer_codec(LONG_WIDTH)
_BYTES = _BoundCodec(_itself, _itself, (_itself,))

# Types that are not listed (unknown, geometry, geography, and structs, lists and maps themselves) get no merged bounds.
# Dates promoted to timestamps keep 4-byte bounds in another unit: no timestamp codec accepts them, so they are dropped.
CODECS: Mapping[type[IcebergType], _BoundCodec] = {
    types.BooleanType: _BOOLEANS,
    types.IntegerType: _integer_codec(INT_WIDTH),
    types.LongType: _integer_codec(LONG_WIDTH, promoted_from=INT_WIDTH),
    types.FloatType: _floating_codec(INT_WIDTH),
    types.DoubleType: _floating_codec(LONG_WIDTH, promoted_from=INT_WIDTH),
    types.DecimalType: _BoundCodec(_decode_unscaled, _encode_unscaled, (_itself,)),
    types.DateType: _integer_codec(INT_WIDTH),
    types.TimeType: _LONGS,
    types.TimestampType: _LONGS,
    types.TimestamptzType: _LONGS,
    types.TimestampNanoType: _LONGS,
    types.TimestamptzNanoType: _LONGS,
    types.StringType: _BoundCodec(_decode_string, str.encode, (_itself, _utf16_units)),
    types.UUIDType: _BoundCodec(_decode_uuid, _itself, (_itself, _signed_halves)),
    types.FixedType: _BYTES,
    types.BinaryType: _BYTES,
}
