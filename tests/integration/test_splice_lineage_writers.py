"""Row lineage added to files of every writer within reach, read back by every reader within reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.parquet.thrift import I32, I64, STRUCT, decode_struct
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.lineage_schema import LAST_UPDATED, ROW_ID, without_lineage
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput, splice
from tests.integration.writer_files import (
    ANY_SIZE,
    ROWS,
    STORE,
    Files,
    chunks,
    files,
    part,
    polars_reads,
    skip_unless_spark_reads,
    spark,
)

__all__ = ["files", "spark"]  # fixtures

LINEAGE = ("_row_id", "_last_updated_sequence_number")
FIRST_ROW_IDS = (10**12, 0, 500)
FILTERS = [
    ("_row_id BETWEEN 130 AND 333", (pc.field("_row_id") >= 130) & (pc.field("_row_id") <= 333)),
    ("_row_id = 1000000000099", pc.field("_row_id") == 10**12 + 99),
    ("_last_updated_sequence_number = 3 AND id < 3200", (pc.field(LINEAGE[1]) == 3) & (pc.field("id") < 3200)),
    ("_row_id > 510 AND few = 'category 3'", (pc.field("_row_id") > 510) & (pc.field("few") == "category 3")),
]
SHOWN = ["id", "txt", "few", *LINEAGE]


class Lineage:
    """The files of one writer spliced once more, as files of a V3 table."""

    def __init__(self, given: Files) -> None:
        self.files = given
        self.path = given.spliced.with_name("lineage.parquet")
        self.path.unlink(missing_ok=True)
        inputs = [
            SpliceInput(str(path), path.stat().st_size, RowLineage(first, number))
            for number, (path, first) in enumerate(zip(given.paths, FIRST_ROW_IDS, strict=True), 1)
        ]
        self.result: SplicedFile = splice(STORE, inputs, str(self.path), ANY_SIZE)
        self.footer: Footer = read_footer(STORE, str(self.path), self.result.size)

    @property
    def expected(self) -> pa.Table:
        """Some of the originals' columns, and what their rows inherit."""
        tables = []
        for number, (path, first) in enumerate(zip(self.files.paths, FIRST_ROW_IDS, strict=True), 1):
            found = pq.read_table(path, columns=SHOWN[:3])
            tables.append(
                found.append_column("_row_id", pa.array(range(first, first + len(found)), pa.int64())).append_column(
                    "_last_updated_sequence_number", pa.array([number] * len(found), pa.int64())
                )
            )
        return pa.concat_tables(tables)

    def matching(self, condition: pc.Expression) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.expected.filter(condition).to_pylist()]


@pytest.fixture(scope="module")
def lined(files: Files) -> Lineage:
    return Lineage(files)


def test_the_other_columns_are_the_ones_of_a_splice_without_lineage(lined: Lineage) -> None:
    assert without_lineage(lined.footer).schema == lined.files.footer.schema
    plain, added = chunks(lined.files.footer), chunks(without_lineage(lined.footer))
    for before, after in zip(plain, added, strict=True):
        assert part(lined.path, after.pages) == part(lined.files.spliced, before.pages)
        assert before.metadata.without(9, 10, 11, 14) == after.metadata.without(9, 10, 11, 14)
        assert bool(before.offset_index) == bool(after.offset_index)
        if before.column_index:
            assert after.column_index is not None
            assert part(lined.path, after.column_index) == part(lined.files.spliced, before.column_index)
        if before.bloom_offset:
            header, start = decode_struct(lined.path.read_bytes(), after.bloom_offset)
            assert start - after.bloom_offset + header.require(1, I32) == after.bloom_length
    assert lined.result.split_offsets == lined.files.result.split_offsets
    assert lined.footer.created_by == lined.files.footer.created_by
    assert [leaf.field_id for leaf in lined.footer.leaves[-2:]] == [ROW_ID, LAST_UPDATED]


def test_every_page_location_points_at_a_page_of_its_size(lined: Lineage) -> None:
    data = lined.path.read_bytes()
    for chunk in chunks(lined.footer):
        if chunk.offset_index is None:
            continue
        tree, _ = decode_struct(part(lined.path, chunk.offset_index))
        expected = chunk.page_offsets[9]
        for location in tree.elements(1, STRUCT):
            assert location.require(1, I64) == expected
            header, start = decode_struct(data, expected)
            assert start - expected + header.require(3, I32) == location.require(2, I32)
            expected += location.require(2, I32)
        assert expected == chunk.pages.end


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_readers_find_the_lineage(lined: Lineage) -> None:
    expected = rows_of(lined.expected)
    assert len(expected) == sum(ROWS)
    names = pq.ParquetFile(lined.path).schema_arrow.names
    assert rows_of(pq.read_table(lined.path, columns=SHOWN, page_checksum_verification=True)) == expected
    whole = pq.read_table(lined.path, columns=[name for name in names if name != "variant"])
    before = pq.read_table(lined.files.spliced, columns=[n for n in names if n not in {"variant", *LINEAGE}])
    assert whole.drop_columns(list(LINEAGE)).schema == before.schema
    assert repr(whole.drop_columns(list(LINEAGE)).to_pylist()) == repr(before.to_pylist())
    query = f"SELECT {', '.join(SHOWN)} FROM '{lined.path}'"
    assert duckdb.connect().execute(query).fetchall() == expected
    if polars_reads(lined.files.paths[0]):
        assert pl.read_parquet(lined.path, columns=SHOWN).rows() == expected


@pytest.mark.parametrize(("sql", "condition"), FILTERS, ids=[sql for sql, _ in FILTERS])
def test_filters_on_lineage_find_the_right_rows(lined: Lineage, sql: str, condition: pc.Expression) -> None:
    expected = lined.matching(condition)
    assert expected
    query = f"SELECT {', '.join(SHOWN)} FROM {{}} WHERE {sql}"
    assert duckdb.connect().execute(query.format(f"'{lined.path}'")).fetchall() == expected
    assert rows_of(pq.read_table(lined.path, columns=SHOWN, filters=condition)) == expected
    if polars_reads(lined.files.paths[0]):
        assert pl.scan_parquet(lined.path).sql(query.format("self")).collect().rows() == expected
    assert datafusion_rows(lined.path, query) == sorted(expected)


def datafusion_rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What a reader finds that uses page indexes and bloom filters."""
    datafusion = pytest.importorskip("datafusion")
    settings = {
        "datafusion.execution.parquet.pushdown_filters": "true",
        "datafusion.execution.parquet.enable_page_index": "true",
        "datafusion.execution.parquet.bloom_filter_on_read": "true",
    }
    context = datafusion.SessionContext(datafusion.SessionConfig(settings))
    context.register_parquet("spliced", str(path))
    return sorted(tuple(row.values()) for row in context.sql(query.format("spliced")).to_pylist())


@pytest.mark.spark
def test_spark_finds_the_lineage(lined: Lineage, spark: Any) -> None:
    skip_unless_spark_reads(lined.files)
    types = "id BIGINT, txt STRING, few STRING, _row_id BIGINT, _last_updated_sequence_number BIGINT"
    frame = spark.read.schema(types).parquet(f"file:{lined.path}").select(SHOWN)
    assert sorted(tuple(row) for row in frame.collect()) == sorted(rows_of(lined.expected), key=lambda row: row[0])
    for sql, condition in FILTERS:
        found = frame.where(sql).orderBy("id").collect()
        assert [tuple(row) for row in found] == sorted(lined.matching(condition), key=lambda row: row[0]), sql
