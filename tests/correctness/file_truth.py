"""What manifests say of a data file against what the file holds: counts, sizes, offsets, bounds, sort order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    UUIDType,
)

from compactor.locations import plain_path
from tests.correctness.java_writers import internal_values


def live_entries(table: Table, snapshot: Snapshot) -> list[ManifestEntry]:
    """Every live manifest entry of a snapshot, data and deletes."""
    return [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def known_paths(table: Table) -> set[str]:
    """Paths that any retained snapshot names."""
    seen: set[str] = set()
    paths: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                paths |= {
                    plain_path(entry.data_file.file_path)
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                }
    return paths


def data_entries(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    """Those of data files."""
    return [entry for entry in entries if entry.data_file.content == DataFileContent.DATA]


def wrong_in(table: Table, entry: ManifestEntry) -> Iterator[str]:
    """Everything the manifest entry of an output says that its file does not."""
    file = entry.data_file
    path = Path(plain_path(file.file_path))
    name = path.name[-40:]
    if file.file_size_in_bytes != path.stat().st_size:
        yield f"{name}: size {file.file_size_in_bytes} in the manifest, {path.stat().st_size} on disk"
    if file.file_format != FileFormat.PARQUET:
        return
    footer = pq.read_metadata(path)
    if file.record_count != footer.num_rows:
        yield f"{name}: {file.record_count} rows in the manifest, {footer.num_rows} in the footer"
    content = pq.ParquetFile(path).read()
    if content.num_rows != file.record_count:
        yield f"{name}: {file.record_count} rows in the manifest, {content.num_rows} in the file"
    starts = [_start(footer.row_group(index)) for index in range(footer.num_row_groups)]
    if file.split_offsets is not None and list(file.split_offsets) != starts:
        yield f"{name}: split offsets {file.split_offsets}, row groups start at {starts}"
    schema = table.metadata.schema()
    top_level = {field.field_id for field in schema.fields}
    for field_id, kind, column in primitive_columns(schema, content):
        wrong = _wrong_metrics(file, field_id, kind, column, top_level=field_id in top_level)
        yield from (f"{name}, field {field_id}: {what}" for what in wrong)
    yield from (f"{name}: {what}" for what in _wrong_order(table, file, content))


def _start(row_group: Any) -> int:
    """Where a row group begins: its first column's dictionary page if it has one, else its first data page."""
    first = row_group.column(0)
    offset = first.dictionary_page_offset
    return int(offset) if first.has_dictionary_page and offset else int(first.data_page_offset)


def primitive_columns(schema: Schema, content: pa.Table) -> Iterator[tuple[int, IcebergType, pa.ChunkedArray]]:
    """Columns outside lists and maps, struct members included, matched by the field ids in the file."""
    kinds = {field_id: field.field_type for field_id, field in schema._lazy_id_to_field.items()}

    def walk(field: pa.Field, column: pa.ChunkedArray) -> Iterator[tuple[int, IcebergType, pa.ChunkedArray]]:
        if pa.types.is_struct(field.type):
            for index in range(field.type.num_fields):
                child = field.type.field(index)
                arrays = [_child(chunk, index) for chunk in column.chunks]
                yield from walk(child, pa.chunked_array(arrays, child.type))
            return
        field_id = int((field.metadata or {}).get(b"PARQUET:field_id", -1))
        kind = kinds.get(field_id)
        if isinstance(kind, PrimitiveType):
            yield field_id, kind, column

    for field, column in zip(content.schema, content.columns, strict=True):
        yield from walk(field, column)


def _child(chunk: pa.StructArray, index: int) -> pa.Array:
    """A struct's member with the struct's own nulls applied."""
    return chunk.flatten()[index]


def _wrong_metrics(
    file: DataFile, field_id: int, kind: IcebergType, column: pa.ChunkedArray, *, top_level: bool
) -> Iterator[str]:
    """For struct members only the number of values present is certain: Iceberg's writers differ on whether a null
    struct counts as a null of its members.
    """
    values = internal_values(column)
    present = [value for value in values if value is not None]
    nans = [value for value in present if isinstance(value, float) and math.isnan(value)]
    counts, nulls = (file.value_counts or {}).get(field_id), (file.null_value_counts or {}).get(field_id)
    if counts is not None and nulls is not None and counts - nulls != len(present):
        yield f"{counts} values, {nulls} nulls in the manifest, {len(values)}, {len(values) - len(present)} in the file"
    elif top_level and counts is not None and counts != len(values):
        yield f"{counts} values in the manifest, {len(values)} in the file"
    elif top_level and nulls is not None and nulls != len(values) - len(present):
        yield f"{nulls} nulls in the manifest, {len(values) - len(present)} in the file"
    if (file.nan_value_counts or {}).get(field_id, len(nans)) != len(nans):
        yield f"{file.nan_value_counts[field_id]} NaN in the manifest, {len(nans)} in the file"
    compared = [value for value in present if not (isinstance(value, float) and math.isnan(value))]
    lower, upper = (_bound(bounds, field_id, kind) for bounds in (file.lower_bounds, file.upper_bounds))
    order = _signed_halves if isinstance(kind, UUIDType) else None
    for value in compared:
        if lower is not None and not _at_most(lower, value, kind, order):
            yield f"lower bound {lower!r} above the value {value!r}"
            break
        if upper is not None and not _at_most(value, upper, kind, order):
            yield f"upper bound {upper!r} below the value {value!r}"
            break


def _bound(bounds: Any, field_id: int, kind: IcebergType) -> Any:
    raw = (bounds or {}).get(field_id)
    if raw is None:
        return None
    if isinstance(kind, LongType) and len(raw) == 4:  # a file from before the column was widened
        return from_bytes(IntegerType(), raw)
    if isinstance(kind, DoubleType) and len(raw) == 4:
        return from_bytes(FloatType(), raw)
    return raw if isinstance(kind, UUIDType) else from_bytes(kind, raw)


def _at_most(first: Any, second: Any, kind: IcebergType, order: Callable[[bytes], Any] | None) -> bool:
    """first <= second; text by code points, as Iceberg compares it; UUIDs by either of the orders in use."""
    if isinstance(kind, StringType):
        return first.encode("utf-8", "surrogatepass") <= second.encode("utf-8", "surrogatepass")
    if order is not None:
        return first <= second or order(first) <= order(second)
    return bool(first <= second)


def _signed_halves(value: bytes) -> tuple[int, int]:
    return int.from_bytes(value[:8], signed=True), int.from_bytes(value[8:], signed=True)


def _wrong_order(table: Table, file: DataFile, content: pa.Table) -> Iterator[str]:
    """A file labelled with a sort order must be in it."""
    order = next((order for order in table.metadata.sort_orders if order.order_id == file.sort_order_id), None)
    if not file.sort_order_id:
        return
    if order is None:
        yield f"labelled with sort order {file.sort_order_id}, which the table does not have"
        return
    keys = _sort_keys(order, table.metadata.schema(), content)
    for number, (before, after) in enumerate(pairwise(keys)):
        if compare_rows(before, after, order) > 0:
            yield f"labelled sorted, but row {number + 1} comes before row {number}"
            return


def _sort_keys(order: SortOrder, schema: Schema, content: pa.Table) -> list[tuple[Any, ...]]:
    columns = []
    for field in order.fields:
        source = schema.find_field(field.source_id)
        ids = [int((column.metadata or {}).get(b"PARQUET:field_id", -1)) for column in content.schema]
        values = internal_values(content.column(ids.index(field.source_id)))
        if not isinstance(field.transform, IdentityTransform):
            apply = field.transform.transform(source.field_type)
            values = [apply(value) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def compare_rows(first: tuple[Any, ...], second: tuple[Any, ...], order: SortOrder) -> int:
    """-1, 0 or 1 as `first` sorts before, with or after `second`."""
    for mine, other, field in zip(first, second, order.fields, strict=True):
        if mine is None or other is None:
            if mine is other:
                continue
            none_first = field.null_order == NullOrder.NULLS_FIRST
            return -1 if (mine is None) == none_first else 1
        result = compare_values(mine, other)
        if result:
            return result if field.direction == SortDirection.ASC else -result
    return 0


def compare_values(first: Any, second: Any) -> int:
    """Natural order; NaN is the largest, text by code points."""
    if isinstance(first, float):
        keys = [(math.isnan(value), 0.0 if math.isnan(value) else value) for value in (first, second)]
        return (keys[0] > keys[1]) - (keys[0] < keys[1])
    if isinstance(first, str):
        return (first.encode() > second.encode()) - (first.encode() < second.encode())
    return (first > second) - (first < second)
