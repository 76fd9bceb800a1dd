"""What a written footer says that readers misunderstand, and the footer without it. Pure.

Readers leave out row groups by what the footer says of them, but do not agree on floats and UUIDs:

- Arrow's min and max leave NaN out. Of 1.0 and NaN both are 1.0: a reader concludes that all values are 1.0. For Spark
  and DuckDB, NaN is greater than every max.
- Parquet orders UUIDs as unsigned bytes, Iceberg in Java as two signed longs.
- Iceberg's filters in Java tell -0.0 from 0.0, SQL does not: a dictionary or bloom filter of -0.0 lacks 0.0.

A dictionary is not removed: without the encodings of the pages, no reader knows that it holds every value of its chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Flag, auto
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.rewrite.parquet.footer import (
    TAIL_BYTES,
    ChunkField,
    ColumnChunk,
    ColumnField,
    FileField,
    GroupField,
    RowGroup,
    footer_bytes,
    footer_in,
)
from compactor.rewrite.parquet.thrift import STRUCT, Struct, structs
from compactor.rewrite.reading.schema import UUID_WIDTH

_EXTREMES: Final = (1, 2, 5, 6, 7, 8)  # of Statistics: min and max, old and new, and whether they are exact
_SIGN_BYTES: Final = (0, 8)  # of a UUID: they hold the signs of its two longs
_SIGN_BIT: Final = 0x80
_BITS: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NEGATIVE_ZERO: Final = {kind: pa.scalar(-(2 ** (kind.bit_width - 1)), kind) for kind in _BITS.values()}


class Doubt(Flag):
    """What readers misunderstand of a column chunk.

    EXTREMES: min and max, of the chunk and of its pages. MEMBERS: whether it holds a value, by dictionary or bloom
    filter.
    """

    NONE = 0
    EXTREMES = auto()
    MEMBERS = auto()


def doubts_of(rows: pa.Table) -> tuple[Doubt, ...]:
    """The doubts about each Parquet column of a row group, in schema order."""
    return tuple(chain.from_iterable(_doubts(column.type, column.chunks) for column in rows.columns))


def _doubts(kind: pa.DataType, arrays: Sequence[pa.Array]) -> Iterator[Doubt]:
    if pa.types.is_struct(kind):
        for index, child in enumerate(kind):
            yield from _doubts(child.type, [array.field(index) for array in arrays])
    elif pa.types.is_map(kind):
        yield from _doubts(kind.key_type, [_elements(array, array.keys) for array in arrays])
        yield from _doubts(kind.item_type, [_elements(array, array.items) for array in arrays])
    elif pa.types.is_list(kind):
        yield from _doubts(kind.value_type, [_elements(array, array.values) for array in arrays])
    elif kind in _BITS:
        yield _doubt_of_floats(arrays)
    elif kind == pa.uuid():
        yield Doubt.NONE if _are_ordered_alike(arrays) else Doubt.EXTREMES
    else:
        yield Doubt.NONE


def _elements(lists: pa.Array, values: pa.Array) -> pa.Array:
    """The part of `values` that belongs to `lists`, which may be a slice."""
    offsets = lists.offsets
    return values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()) if len(lists) else values[:0]


def _doubt_of_floats(arrays: Sequence[pa.Array]) -> Doubt:
    found = Doubt.NONE
    for array in arrays:
        bits = array.view(_BITS[array.type])
        if pc.any(pc.is_nan(array)).as_py():
            found |= Doubt.EXTREMES
        if pc.any(pc.equal(bits, _NEGATIVE_ZERO[bits.type])).as_py():
            found |= Doubt.MEMBERS
    return found


def _are_ordered_alike(uuids: Sequence[pa.Array]) -> bool:
    """Whether both orders are the same: the signs of the first longs are equal, and those of the second."""
    present = (array.storage.drop_null() for array in uuids)
    seen = [_signs(array) for array in present if len(array)]
    return not seen or bool((np.ptp(np.concatenate(seen), axis=0) == 0).all())


def _signs(values: pa.Array) -> np.ndarray:
    """The extremes of the sign bits: two rows, one column for each long."""
    start = values.offset * UUID_WIDTH
    data = np.frombuffer(values.buffers()[1], np.uint8, len(values) * UUID_WIDTH, start)
    signs = data.reshape(-1, UUID_WIDTH)[:, _SIGN_BYTES] & _SIGN_BIT
    return np.stack([signs.min(axis=0), signs.max(axis=0)])


def without_doubtful(end: bytes, doubts: Sequence[Sequence[Doubt]]) -> bytes:
    """The end of a Parquet file without what readers misunderstand. Offsets of pages and indexes stay as they are.

    Args:
        end: The last bytes of the file, from at least four bytes before its footer.
        doubts: Of each column of each row group.

    Raises:
        ThriftError: `end` does not end in a footer.
    """
    footer = footer_in(end)
    groups = [_group(*pair) for pair in zip(footer.row_groups, doubts, strict=True)]
    changed = footer.tree.with_fields({FileField.ROW_GROUPS: structs(groups)})
    return end[: -TAIL_BYTES - footer.length] + footer_bytes(changed)


def _group(group: RowGroup, doubts: Sequence[Doubt]) -> Struct:
    chunks = [_chunk(*pair) for pair in zip(group.chunks, doubts, strict=True)]
    return group.tree.with_fields({GroupField.COLUMNS: structs(chunks)})


def _chunk(chunk: ColumnChunk, doubt: Doubt) -> Struct:
    tree, metadata = chunk.tree, chunk.metadata
    if Doubt.EXTREMES in doubt:
        tree = tree.without(ChunkField.COLUMN_INDEX_OFFSET, ChunkField.COLUMN_INDEX_LENGTH)
        statistics: Struct | None = metadata.get(ColumnField.STATISTICS, STRUCT)
        if statistics is not None:
            metadata = metadata.with_fields({ColumnField.STATISTICS: (STRUCT, statistics.without(*_EXTREMES))})
    if Doubt.MEMBERS in doubt:
        metadata = metadata.without(ColumnField.ENCODING_STATS, ColumnField.BLOOM_OFFSET, ColumnField.BLOOM_LENGTH)
    return tree.with_fields({ChunkField.META_DATA: (STRUCT, metadata)})
