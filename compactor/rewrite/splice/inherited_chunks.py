"""Row lineage that rows inherit, as column chunks: made from the first value, without a value for each row.

Ids count up and the sequence number is constant. Their encodings hold no more than that: a first value and steps of one
(DELTA_BINARY_PACKED), or one run of one value (RLE_DICTIONARY). PyArrow, which encodes value by value, takes 5 ms for a
file of 300,000 rows, more than the splice itself does for it; this takes 0.2 ms.
Sources: parquet-format: Encodings.md, README.md (data pages), PageIndex.md; Iceberg's vectorized reader supports both
encodings since it reads row lineage (1.10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from compactor.rewrite.parquet.footer import MAGIC, ChunkField, ColumnChunk, ColumnField
from compactor.rewrite.parquet.thrift import (
    BINARY,
    BOOL_FALSE,
    BOOL_TRUE,
    I32,
    I64,
    LIST,
    STRUCT,
    Field,
    Struct,
    ThriftList,
    encode_struct,
    structs,
    varint,
)
from compactor.rewrite.splice.lineage_schema import INT64_TYPE, LINEAGE_NAMES, ROW_ID

PAGE_ROWS: Final = 128 * 1024
"""Rows in a page: 1 MiB of values once a reader has decoded them, as writers' pages have."""

_DATA_PAGE: Final = 0  # PageType
_DICTIONARY_PAGE: Final = 2
_PLAIN: Final = 0  # Encoding
_RLE: Final = 3
_DELTA_BINARY_PACKED: Final = 5
_RLE_DICTIONARY: Final = 8
_ZSTD: Final = 6  # CompressionCodec
_ASCENDING: Final = 1  # BoundaryOrder
_NOT_A_NULL_PAGE: Final = BOOL_FALSE
_BLOCK_ROWS: Final = 128
_MINIBLOCKS: Final = 4
_STEPS_OF_ONE: Final = b"\x02" + bytes(_MINIBLOCKS)
"""A block of deltas: the smallest one, 1, and that no miniblock needs bits for more."""

_ONE_BIT: Final = b"\x01"


@dataclass(frozen=True, slots=True)
class MadeChunk:
    """A column chunk as at the start of a file: its bytes, and its indexes with matching offsets."""

    chunk: ColumnChunk
    data: bytes
    column_index: bytes
    offset_index: bytes


@dataclass(frozen=True, slots=True)
class _Page:
    """A page: its bytes, header included, and their number if it were not compressed."""

    data: bytes
    uncompressed: int


def inherited_chunk(field_id: int, first: int, rows: int) -> MadeChunk:
    """The chunk of a lineage column: `rows` ids from `first` on (`ROW_ID`), or `rows` times `first`.

    `first` and the last id fit 63 bits, and there is at least one row.
    """
    step = 1 if field_id == ROW_ID else 0
    counts = [min(PAGE_ROWS, rows - start) for start in range(0, rows, PAGE_ROWS)]
    lows = [first + step * PAGE_ROWS * number for number in range(len(counts))]
    highs = [low + step * (count - 1) for low, count in zip(lows, counts, strict=True)]
    dictionary = None if step else _dictionary_page(first)
    pages = [
        _data_page(_DELTA_BINARY_PACKED, count, _counted(low, count))
        if step
        else _data_page(_RLE_DICTIONARY, count, _constant(count))
        for low, count in zip(lows, counts, strict=True)
    ]
    before = dictionary.data if dictionary else b""
    return MadeChunk(
        chunk=_chunk(field_id, rows, dictionary, pages, _bounds(first, highs[-1])),
        data=before + b"".join(page.data for page in pages),
        column_index=_column_index(lows, highs),
        offset_index=_offset_index(len(MAGIC) + len(before), pages),
    )


# --- pages ---


def _counted(first: int, rows: int) -> bytes:
    """`rows` values from `first` on, in DELTA_BINARY_PACKED."""
    head = varint(_BLOCK_ROWS) + varint(_MINIBLOCKS) + varint(rows) + varint(first << 1)
    return head + _STEPS_OF_ONE * -(-(rows - 1) // _BLOCK_ROWS)


def _constant(rows: int) -> bytes:
    """`rows` times the first value of the dictionary: one run, after the bit width of the indices."""
    return _ONE_BIT + _run(rows, b"\x00")


def _run(rows: int, value: bytes) -> bytes:
    return varint(rows << 1) + value


def _data_page(encoding: int, rows: int, values: bytes) -> _Page:
    """A data page (V1) of a column at the top of the schema: a definition level of 1 for each row, then its values."""
    levels = _run(rows, b"\x01")
    header = Struct({1: (I32, rows), 2: (I32, encoding), 3: (I32, _RLE), 4: (I32, _RLE)})
    return _page(_DATA_PAGE, {5: (STRUCT, header)}, len(levels).to_bytes(4, "little") + levels + values)


def _dictionary_page(value: int) -> _Page:
    header = Struct({1: (I32, 1), 2: (I32, _PLAIN)})
    return _page(_DICTIONARY_PAGE, {7: (STRUCT, header)}, _long(value))


def _page(kind: int, more: Mapping[int, Field], body: bytes) -> _Page:
    compressed = pa.Codec("zstd").compress(body, asbytes=True)
    sizes: dict[int, Field] = {1: (I32, kind), 2: (I32, len(body)), 3: (I32, len(compressed))}
    header = encode_struct(Struct({**sizes, **more}))
    return _Page(header + compressed, len(header) + len(body))


# --- what describes them ---


def _chunk(field_id: int, rows: int, dictionary: _Page | None, pages: Sequence[_Page], bounds: Struct) -> ColumnChunk:
    start = len(MAGIC)
    if dictionary is None:
        every, encodings = [*pages], [_RLE, _DELTA_BINARY_PACKED]
        offsets: dict[int, Field] = {ColumnField.DATA_PAGE_OFFSET: (I64, start)}
        stats = [_encoding_stats(_DATA_PAGE, _DELTA_BINARY_PACKED, len(pages))]
    else:
        every, encodings = [dictionary, *pages], [_PLAIN, _RLE, _RLE_DICTIONARY]
        offsets = {
            ColumnField.DATA_PAGE_OFFSET: (I64, start + len(dictionary.data)),
            ColumnField.DICTIONARY_PAGE_OFFSET: (I64, start),
        }
        stats = [_encoding_stats(_DICTIONARY_PAGE, _PLAIN, 1), _encoding_stats(_DATA_PAGE, _RLE_DICTIONARY, len(pages))]
    metadata = {
        1: (I32, INT64_TYPE),
        2: (LIST, ThriftList(I32, encodings)),
        ColumnField.PATH_IN_SCHEMA: (LIST, ThriftList(BINARY, [LINEAGE_NAMES[field_id].encode()])),
        4: (I32, _ZSTD),
        ColumnField.NUM_VALUES: (I64, rows),
        ColumnField.UNCOMPRESSED_SIZE: (I64, sum(page.uncompressed for page in every)),
        ColumnField.COMPRESSED_SIZE: (I64, sum(len(page.data) for page in every)),
        **offsets,
        ColumnField.STATISTICS: (STRUCT, bounds),
        ColumnField.ENCODING_STATS: structs(stats),
    }
    return ColumnChunk(Struct({ChunkField.FILE_OFFSET: (I64, 0), ChunkField.META_DATA: (STRUCT, Struct(metadata))}))


def _encoding_stats(page_type: int, encoding: int, pages: int) -> Struct:
    """PageEncodingStats: readers decide by them whether all pages need the dictionary."""
    return Struct({1: (I32, page_type), 2: (I32, encoding), 3: (I32, pages)})


def _bounds(low: int, high: int) -> Struct:
    """Statistics: no null, both bounds exact."""
    return Struct(
        {3: (I64, 0), 5: (BINARY, _long(high)), 6: (BINARY, _long(low)), 7: (BOOL_TRUE, True), 8: (BOOL_TRUE, True)}
    )


def _column_index(lows: Sequence[int], highs: Sequence[int]) -> bytes:
    return encode_struct(
        Struct(
            {
                1: (LIST, ThriftList(BOOL_TRUE, bytes([_NOT_A_NULL_PAGE]) * len(lows))),
                2: (LIST, ThriftList(BINARY, [_long(low) for low in lows])),
                3: (LIST, ThriftList(BINARY, [_long(high) for high in highs])),
                4: (I32, _ASCENDING),
                5: (LIST, ThriftList(I64, [0] * len(lows))),
            }
        )
    )


def _offset_index(start: int, pages: Sequence[_Page]) -> bytes:
    locations, offset = [], start
    for number, page in enumerate(pages):
        locations.append(Struct({1: (I64, offset), 2: (I32, len(page.data)), 3: (I64, number * PAGE_ROWS)}))
        offset += len(page.data)
    return encode_struct(Struct({1: structs(locations)}))


def _long(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)
