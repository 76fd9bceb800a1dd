"""Bloom filters of several writers: no value that a chunk holds is excluded, and nearly all others are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.rewrite.parquet.bloom_filter import BloomFilter
from compactor.rewrite.parquet.footer import bloom_filter_range
from compactor.rewrite.parquet.thrift import STRUCT, Struct, decode_struct, encode_struct
from compactor.storage.local_store import LocalByteStore

COLUMNS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int32(), lambda number: number * 7 - 2**31),
    "long": (pa.int64(), lambda number: number * 10**12 - 2**62),
    "string": (pa.string(), lambda number: f"é {number}"),
    "date": (pa.date32(), lambda number: dt.date(1900, 1, 1) + dt.timedelta(number)),
}


def by_arrow(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, bloom_filter_options=dict.fromkeys(table.column_names, True))


def by_duckdb(rows: pa.Table, path: Path) -> None:
    """Only columns with a dictionary get a filter."""
    duckdb.connect().execute(f"COPY (SELECT rows.* FROM rows, range(20)) TO '{path}' (FORMAT parquet)")


def filter_of(path: Path, column: int) -> tuple[BloomFilter, str]:
    chunk = pq.read_metadata(path).row_group(0).column(column)
    store, location = LocalByteStore(), f"file://{path}"
    offset, length = chunk.bloom_filter_offset, chunk.bloom_filter_length or 0
    at = bloom_filter_range(store, location, offset, length, path.stat().st_size)
    assert at is not None
    found = BloomFilter.of(store.read(location, at.offset, at.length))
    assert found is not None
    return found, chunk.physical_type


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("write", [by_arrow, by_duckdb])
def test_a_filter_knows_every_value_and_few_others(
    tmp_path: Path, write: Callable[[pa.Table, Path], None], column: str
) -> None:
    kind, value = COLUMNS[column]
    held, others = [value(number) for number in range(500)], [value(number) for number in range(500, 1500)]
    write(pa.table({column: pa.array(held, kind)}), tmp_path / "x.parquet")
    bloom, physical_type = filter_of(tmp_path / "x.parquet", 0)
    assert all(bloom.may_hold(physical_type, [each]) for each in held)
    assert sum(bloom.may_hold(physical_type, [each]) for each in others) < 100
    assert bloom.may_hold(physical_type, [others[0], held[0]])
    assert not bloom.may_hold(physical_type, [])


def test_values_that_have_no_digest_may_be_held_and_those_too_large_for_the_column_are_not(tmp_path: Path) -> None:
    by_arrow(pa.table({"int": pa.array([1, 2], pa.int32())}), tmp_path / "x.parquet")
    bloom, physical_type = filter_of(tmp_path / "x.parquet", 0)
    assert bloom.may_hold(physical_type, [1.5])
    assert not bloom.may_hold(physical_type, [2**40])


@given(st.binary(max_size=80))
def test_damaged_bytes_are_no_filter(data: bytes) -> None:
    found = BloomFilter.of(data)
    assert found is None or found.words.shape[1] == 8


def test_a_filter_of_another_kind_or_cut_off_is_not_used(tmp_path: Path) -> None:
    by_arrow(pa.table({"long": pa.array([1, 2], pa.int64())}), tmp_path / "x.parquet")
    chunk = pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(0)
    start = chunk.bloom_filter_offset
    data = (tmp_path / "x.parquet").read_bytes()[start : start + chunk.bloom_filter_length]
    header, at = decode_struct(data)
    assert BloomFilter.of(data) is not None
    assert BloomFilter.of(data[:-1]) is None
    assert BloomFilter.of(data + b"\0") is None
    assert BloomFilter.of(data[:at] + bytes(len(data) - at)) is None, "it holds nothing"
    (filled, *_) = [place for place in range(at, len(data), 4) if any(data[place : place + 4])]
    assert BloomFilter.of(data[:filled] + bytes(4) + data[filled + 4 :]) is None, "a word of a block is lost"
    other = header.with_fields({3: (STRUCT, Struct({2: (STRUCT, Struct({}))}))})  # a hash that does not exist yet
    assert BloomFilter.of(encode_struct(other) + data[at:]) is None
