"""Column metrics of a file that is being written, computed from its rows as Iceberg's Java writer does.

Source: Iceberg's ParquetMetrics, MetricsConfig and MetricsModes (Java) and the spec, Appendix D (bounds). As there:
columns inside lists and maps have only a size, NaNs are counted but never are bounds, strings and bytes are truncated
(lower bounds down, upper bounds up; no upper bound where that is impossible).

A bound that is wrong for some readers is widened or left out, because they would prune by it:

- A lower bound of zero is -0.0, an upper bound +0.0, since Java's comparison distinguishes them.
- A column with NaN has no upper bound: for Spark and DuckDB, NaN is greater than every number. Where all values are
  NaN, their count is left out too: Iceberg's filters conclude from it that nothing is greater than a number.
- A UUID's bound is kept only where unsigned bytes and `java.util.UUID` (two signed longs) choose the same one.
- A string column whose extremes are not UTF-8 has no bounds.
- The row lineage columns have no metrics: a null in them means a value that is assigned later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType
from pyiceberg.utils.decimal import decimal_to_unscaled

from compactor.rewrite.parquet.column_metrics import CODECS, UUID_WIDTH, ColumnMetrics
from compactor.rewrite.reading.schema import LINEAGE_IDS, WrittenLeaf, WrittenSchema, children_of, leaf_values

MODE_KEY: Final = "write.metadata.metrics.default"
COLUMN_MODE_PREFIX: Final = "write.metadata.metrics.column."
MAX_INFERRED_KEY: Final = "write.metadata.metrics.max-inferred-column-defaults"
MAX_INFERRED_DEFAULT: Final = 100

_TRUNCATE: Final = re.compile(r"truncate\((\d+)\)")
_MAX_CODE_POINT: Final = 0x10FFFF
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000
_MAX_BYTE: Final = 0xFF
_SIGN_BIT: Final = 0x80
_UUID_HALVES: Final = (0, 8)


# --- modes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """The metrics of a column: `counts`, and bounds of at most `length` characters or bytes (None: whole values)."""

    counts: bool
    bounds: bool
    length: int | None = None


NONE: Final = MetricsMode(counts=False, bounds=False)
COUNTS: Final = MetricsMode(counts=True, bounds=False)
FULL: Final = MetricsMode(counts=True, bounds=True)
DEFAULT: Final = MetricsMode(counts=True, bounds=True, length=16)


def parse_mode(text: str) -> MetricsMode | None:
    """The mode that a table property names; None for an unknown mode."""
    lowered = text.strip().lower()
    named = {"none": NONE, "counts": COUNTS, "full": FULL}.get(lowered)
    if named is not None:
        return named
    found = _TRUNCATE.fullmatch(lowered)
    if found is None or int(found[1]) == 0:
        return None
    return MetricsMode(counts=True, bounds=True, length=int(found[1]))


def metrics_modes(
    schema: Schema, leaves: Collection[WrittenLeaf], properties: Mapping[str, str], sorted_ids: Collection[int] = ()
) -> dict[int, MetricsMode]:
    """The mode of each leaf by field id, as in Java's MetricsConfig.forTable.

    Args:
        schema: The table's schema.
        leaves: The columns to be written.
        properties: The table's properties.
        sorted_ids: Columns of the table's sort order whose transforms keep order.
    """
    configured = properties.get(MODE_KEY)
    if configured is None:
        default_mode, chosen = DEFAULT, _first_ids(schema, _max_inferred(properties))
    else:
        default_mode, chosen = parse_mode(configured) or DEFAULT, {leaf.field.field_id for leaf in leaves}
    modes = {}
    for leaf in leaves:
        field_id = leaf.field.field_id
        mode = default_mode if field_id in chosen else NONE
        if field_id in sorted_ids and not mode.bounds:
            mode = DEFAULT
        own = properties.get(COLUMN_MODE_PREFIX + leaf.name)
        modes[field_id] = mode if own is None else parse_mode(own) or mode
    return modes


def _max_inferred(properties: Mapping[str, str]) -> int:
    try:
        found = int(properties.get(MAX_INFERRED_KEY, MAX_INFERRED_DEFAULT))
    except ValueError:
        return MAX_INFERRED_DEFAULT
    return found if found >= 0 else MAX_INFERRED_DEFAULT


def _first_ids(schema: Schema, limit: int) -> set[int]:
    """The first `limit` leaves; the leaves of a struct come before those of its nested structs."""
    ids: set[int] = set()

    def visit(iceberg_type: IcebergType) -> None:
        children = [child for _, child in children_of(iceberg_type)]
        for child in children:
            if child.field_type.is_primitive and len(ids) < limit:
                ids.add(child.field_id)
        for child in children:
            if len(ids) < limit:
                visit(child.field_type)

    visit(schema.as_struct())
    return ids


# --- counting ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Column:
    """Metrics of one column so far. Extremes are lists of candidates, one for each order that readers use."""

    leaf: WrittenLeaf
    indexes: tuple[int, ...]
    mode: MetricsMode
    values: int = 0
    nulls: int = 0
    nans: int = 0
    lows: list[Any] = field(default_factory=list)
    highs: list[Any] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        values = leaf_values(table, self.indexes)
        self.values += len(values)
        self.nulls += values.null_count
        if self.is_floating:
            values = self._without_nans(values)
        if self.mode.bounds and len(values) > values.null_count:
            extremes = _extremes(values, self.leaf.field.field_type)
            lows, highs = [low for low, _ in extremes], [high for _, high in extremes]
            self.lows = [min(pair) for pair in zip(self.lows, lows, strict=True)] if self.lows else lows
            self.highs = [max(pair) for pair in zip(self.highs, highs, strict=True)] if self.highs else highs

    def _without_nans(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Count the NaNs; return the other values."""
        is_nan = pc.is_nan(values)
        nans = pc.sum(is_nan, min_count=0).as_py()
        self.nans += nans
        return values.filter(pc.invert(is_nan), null_selection_behavior="emit_null") if nans else values

    @property
    def is_floating(self) -> bool:
        return isinstance(self.leaf.field.field_type, (types.FloatType, types.DoubleType))

    @property
    def tells_nans(self) -> bool:
        """Whether the number of its NaNs is given."""
        return self.is_floating and not 0 < self.nans == self.values

    def bounds(self) -> tuple[bytes | None, bytes | None]:
        if not self.lows:
            return None, None
        iceberg_type, length = self.leaf.field.field_type, self.mode.length
        low, high = self.lows[0], self.highs[0]
        if isinstance(iceberg_type, types.UUIDType):
            return _if_agreed(*self.lows), _if_agreed(*self.highs)
        if isinstance(iceberg_type, types.StringType):
            return _string_bounds(low, high, length)
        if isinstance(iceberg_type, (types.BinaryType, types.FixedType)):
            return low[:length], high if length is None else truncated_bytes_above(high, length)
        encode = CODECS[type(iceberg_type)].encode
        if self.is_floating:
            return encode(low or -0.0), None if self.nans else encode(high or 0.0)
        return encode(low), encode(high)


class WrittenMetrics:
    """Collects the metrics of one file, table by table. `rows`: so far."""

    def __init__(self, written: WrittenSchema, modes: Mapping[int, MetricsMode]) -> None:
        self.rows = 0
        self._sized = {leaf.field.field_id for leaf in written.leaves if modes[leaf.field.field_id].counts}
        self._sized -= set(LINEAGE_IDS)
        self._columns = {
            leaf.field.field_id: _Column(leaf, leaf.indexes, modes[leaf.field.field_id])
            for leaf in written.leaves
            if leaf.indexes is not None and leaf.field.field_id in self._sized
        }

    def add(self, table: pa.Table) -> None:
        """Count these rows, which have the written schema."""
        self.rows += table.num_rows
        for column in self._columns.values():
            column.add(table)

    def result(self, column_sizes: Mapping[int, int]) -> ColumnMetrics:
        """The metrics of all rows added.

        Args:
            column_sizes: Compressed bytes by field id, from the finished file's footer.
        """
        columns = self._columns.items()
        bounds = {field_id: column.bounds() for field_id, column in columns}
        return ColumnMetrics(
            record_count=self.rows,
            column_sizes={field_id: size for field_id, size in column_sizes.items() if field_id in self._sized},
            value_counts={field_id: column.values for field_id, column in columns},
            null_value_counts={field_id: column.nulls for field_id, column in columns},
            nan_value_counts={field_id: column.nans for field_id, column in columns if column.tells_nans},
            lower_bounds={field_id: lower for field_id, (lower, _) in bounds.items() if lower is not None},
            upper_bounds={field_id: upper for field_id, (_, upper) in bounds.items() if upper is not None},
        )


def _extremes(values: pa.ChunkedArray, iceberg_type: IcebergType) -> list[tuple[Any, Any]]:
    """(least, greatest) value in each order that readers use. The values contain a non-null value and no NaN.

    Results are numbers, unscaled numbers for decimals, units since the epoch for times, bytes for other types.
    """
    if isinstance(iceberg_type, types.UUIDType):
        storage = values.cast(pa.binary(UUID_WIDTH))
        signed = pa.chunked_array([_signs_flipped(chunk) for chunk in storage.chunks], storage.type)
        return [_min_max(storage, _bytes_of), _min_max(signed, _bytes_of)]
    if isinstance(iceberg_type, (types.StringType, types.BinaryType, types.FixedType)):
        return [_min_max(values, _bytes_of)]
    if isinstance(iceberg_type, types.DecimalType):
        return [_min_max(values, lambda scalar: decimal_to_unscaled(scalar.as_py()))]
    if pa.types.is_temporal(values.type):
        return [_min_max(values, lambda scalar: scalar.value)]
    return [_min_max(values, lambda scalar: scalar.as_py())]


def _min_max(values: pa.ChunkedArray, decode: Callable[[pa.Scalar], Any]) -> tuple[Any, Any]:
    found = pc.min_max(values)
    return decode(found["min"]), decode(found["max"])


def _bytes_of(scalar: pa.Scalar) -> bytes:
    return bytes(scalar.as_buffer())


def _signs_flipped(uuids: pa.Array) -> pa.Array:
    """UUIDs changed so that their unsigned byte order equals the `java.util.UUID.compareTo` order of the given ones."""
    data = np.frombuffer(uuids.buffers()[1], dtype=np.uint8).copy()
    for half in _UUID_HALVES:
        data[half::UUID_WIDTH] ^= _SIGN_BIT
    return pa.Array.from_buffers(
        uuids.type, len(uuids), [uuids.buffers()[0], pa.py_buffer(data)], uuids.null_count, uuids.offset
    )


# --- bounds -----------------------------------------------------------------------------------------------------------


def _if_agreed(unsigned: bytes, flipped: bytes) -> bytes | None:
    signed = bytearray(flipped)
    for half in _UUID_HALVES:
        signed[half] ^= _SIGN_BIT
    return unsigned if unsigned == bytes(signed) else None


def _string_bounds(low: bytes, high: bytes, length: int | None) -> tuple[bytes | None, bytes | None]:
    try:
        lower, upper = low.decode(), high.decode()
    except UnicodeDecodeError:
        return None, None
    if length is None:
        return low, high
    above = truncated_text_above(upper, length)
    return lower[:length].encode(), None if above is None else above.encode()


def truncated_text_above(text: str, length: int) -> str | None:
    """The text if it has at most `length` code points, else a shorter text that sorts after it; None if none exists.

    The last code point of the truncated text is increased by one, skipping surrogates. If it is U+10FFFF, it is dropped
    and the code point before it is increased.
    """
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        raised = ord(text[end - 1]) + 1
        if raised <= _MAX_CODE_POINT:
            return text[: end - 1] + chr(_AFTER_SURROGATES if raised == _FIRST_SURROGATE else raised)
    return None


def truncated_bytes_above(data: bytes, length: int) -> bytes | None:
    """The bytes if there are at most `length`, else fewer bytes that sort after them; None if none exist."""
    if len(data) <= length:
        return data
    for end in range(length, 0, -1):
        if data[end - 1] < _MAX_BYTE:
            return data[: end - 1] + bytes([data[end - 1] + 1])
    return None
