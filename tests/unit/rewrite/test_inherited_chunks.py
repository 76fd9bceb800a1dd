"""Lineage columns made from their first value: what readers of other makes find in them, and in their page indexes."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.rewrite.parquet.footer import MAGIC, FileField, GroupField, SchemaField, footer_bytes
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, STRUCT, Struct, decode_struct, structs
from compactor.rewrite.splice.inherited_chunks import PAGE_ROWS, MadeChunk, inherited_chunk
from compactor.rewrite.splice.lineage_schema import LAST_UPDATED, LINEAGE_ELEMENTS, ROW_ID
from compactor.storage.byte_store import ByteRange

LONGEST = 2**63 - 1
SIGNED = Struct({1: (STRUCT, Struct({}))})  # ColumnOrder.TYPE_ORDER: readers trust bounds only with it
LENGTHS = [1, 2, 128, 129, 257, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS + 77]


def file_of(chunks: dict[int, MadeChunk], rows: int) -> bytes:
    """A Parquet file with only these columns."""
    data, placed = bytearray(MAGIC), []
    for made in chunks.values():
        placed.append((made, len(data) - len(MAGIC)))
        data += made.data
    columns = []
    for made, shift in placed:  # the offset index is right where the chunk is the first
        indexes = []
        for index in (made.column_index, made.offset_index):
            indexes.append(None if shift else ByteRange(len(data), len(index)))
            data += index
        columns.append(made.chunk.moved(shift, None, *indexes))
    root = Struct({SchemaField.NAME: (BINARY, b"schema"), SchemaField.NUM_CHILDREN: (I32, len(chunks))})
    group = {
        GroupField.COLUMNS: structs(columns),
        GroupField.TOTAL_BYTE_SIZE: (I64, len(data)),
        GroupField.NUM_ROWS: (I64, rows),
    }
    fields = {
        FileField.VERSION: (I32, 1),
        FileField.SCHEMA: structs([root, *(LINEAGE_ELEMENTS[each] for each in chunks)]),
        FileField.NUM_ROWS: (I64, rows),
        FileField.ROW_GROUPS: structs([Struct(group)]),
        FileField.COLUMN_ORDERS: structs([SIGNED] * len(chunks)),
    }
    return bytes(data) + footer_bytes(Struct(fields))


def both(first: int, sequence: int, rows: int) -> bytes:
    chunks = {ROW_ID: inherited_chunk(ROW_ID, first, rows), LAST_UPDATED: inherited_chunk(LAST_UPDATED, sequence, rows)}
    return file_of(chunks, rows)


@pytest.mark.parametrize("rows", LENGTHS)
def test_other_readers_find_the_values(tmp_path: Path, rows: int) -> None:
    path, first, sequence = tmp_path / "a.parquet", 2**40 + 3, 9
    path.write_bytes(both(first, sequence, rows))
    arrow = pq.read_table(path)
    assert arrow.column(0).to_numpy().tolist() == list(range(first, first + rows))
    assert set(arrow.column(1).to_pylist()) == {sequence}
    assert pl.read_parquet(path).equals(pl.from_arrow(arrow))  # type: ignore[arg-type]
    found = duckdb.sql(f"SELECT list(_row_id), list(_last_updated_sequence_number) FROM '{path}'").fetchall()
    assert found == [([*range(first, first + rows)], [sequence] * rows)]


@given(st.integers(0, LONGEST), st.integers(0, LONGEST), st.integers(1, 600))
def test_values_up_to_the_largest(first: int, sequence: int, rows: int) -> None:
    first = min(first, LONGEST - rows)
    found = pq.read_table(pa.BufferReader(both(first, sequence, rows)))
    assert found.column(0).to_pylist() == list(range(first, first + rows))
    assert found.column(1).to_pylist() == [sequence] * rows


@pytest.mark.parametrize("rows", LENGTHS)
def test_bounds_sizes_and_offsets(rows: int) -> None:
    metadata = pq.ParquetFile(pa.BufferReader(both(1000, 7, rows))).metadata.row_group(0)
    ids, sequences = metadata.column(0), metadata.column(1)
    assert (ids.statistics.min, ids.statistics.max, ids.statistics.null_count) == (1000, 999 + rows, 0)
    assert (sequences.statistics.min, sequences.statistics.max, sequences.statistics.null_count) == (7, 7, 0)
    assert ids.num_values == sequences.num_values == rows
    assert not ids.has_dictionary_page
    assert sequences.has_dictionary_page
    assert sequences.dictionary_page_offset == ids.data_page_offset + ids.total_compressed_size


@pytest.mark.parametrize("field_id", [ROW_ID, LAST_UPDATED])
def test_a_reader_that_skips_by_page_index_finds_its_rows(tmp_path: Path, field_id: int) -> None:
    """DuckDB and Polars prune by statistics, Polars also by the page index."""
    rows = 3 * PAGE_ROWS + 77
    path = tmp_path / "a.parquet"
    path.write_bytes(file_of({field_id: inherited_chunk(field_id, 1000, rows)}, rows))
    column = "_row_id" if field_id == ROW_ID else "_last_updated_sequence_number"
    for wanted in (1000, 1000 + PAGE_ROWS, 999 + rows, 5):
        expected = rows if field_id == LAST_UPDATED and wanted == 1000 else int(field_id == ROW_ID and wanted >= 1000)
        assert pl.scan_parquet(path).filter(pl.col(column) == wanted).collect().height == expected
        assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE {column} = {wanted}").fetchall() == [(expected,)]


@pytest.mark.parametrize("rows", [1, PAGE_ROWS, 2 * PAGE_ROWS + 1])
def test_the_page_indexes_name_every_page(rows: int) -> None:
    made = inherited_chunk(ROW_ID, 50, rows)
    pages = -(-rows // PAGE_ROWS)
    locations = decode_struct(made.offset_index)[0].elements(1, STRUCT)
    bounds = decode_struct(made.column_index)[0]
    assert [location.require(3, I64) for location in locations] == [PAGE_ROWS * page for page in range(pages)]
    lows = [int.from_bytes(low, "little") for low in bounds.elements(2, BINARY)]
    assert lows == [50 + PAGE_ROWS * page for page in range(pages)]
    assert int.from_bytes(bounds.elements(3, BINARY)[-1], "little") == 49 + rows
    at = len(MAGIC)
    for location in locations:
        assert location.require(1, I64) == at
        header, end = decode_struct(made.data[at - len(MAGIC) :])
        assert location.require(2, I32) == end + header.require(3, I32)
        at += location.require(2, I32)
    assert at - len(MAGIC) == len(made.data)
