"""Spliced files of every writer within reach hold the same values in the same order for every reader within reach."""

import datetime as dt
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.parquet.thrift import I32, I64, STRUCT, decode_struct, encode_struct
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.lineage_schema import LAST_UPDATED, ROW_ID, without_lineage
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput, splice
from compactor.storage.byte_store import ByteRange
from tests.integration.writer_files import (
    ANY_SIZE,
    ROWS,
    STORE,
    Files,
    arrow_table,
    chunks,
    files,
    part,
    polars_reads,
    skip_unless_spark_reads,
    spark,
)

__all__ = ["files", "spark"]  # fixtures

DICTIONARY_PAGE = 2


def round_trip(data: bytes) -> bytes:
    tree, end = decode_struct(data)
    assert end <= len(data)
    return encode_struct(tree) + data[end:]


# --- the codec, on everything in these files that is Thrift ---


def test_every_thrift_structure_comes_back_byte_for_byte(files: Files) -> None:
    for path, footer in [*zip(files.paths, files.footers, strict=True), (files.spliced, files.footer)]:
        data = path.read_bytes()
        thrift = data[footer.data_end : -8]
        assert encode_struct(footer.tree) == thrift
        for chunk in chunks(footer):
            for found in (chunk.column_index, chunk.offset_index):
                if found:
                    raw = part(path, found)
                    assert encode_struct(decode_struct(raw)[0]) == raw
            if chunk.bloom_offset:
                head = data[chunk.bloom_offset : chunk.bloom_offset + 64]
                assert round_trip(head) == head
            head = data[chunk.pages.offset : chunk.pages.end]
            assert round_trip(head) == head


# --- structure of the spliced file ---


def test_the_result_describes_the_file(files: Files) -> None:
    assert files.result.rows == sum(ROWS) == pq.read_metadata(files.spliced).num_rows
    assert files.result.size == files.spliced.stat().st_size
    assert len(files.result.split_offsets) == sum(len(footer.row_groups) for footer in files.footers)
    assert list(files.result.split_offsets) == [
        min(chunk.pages.offset for chunk in group.chunks) for group in files.footer.row_groups
    ]
    assert files.result.split_offsets[0] == 4
    sizes: dict[int, int] = {}
    for footer in files.footers:
        for group in footer.row_groups:
            for leaf, chunk in zip(footer.leaves, group.chunks, strict=True):
                if leaf.field_id is not None:
                    sizes[leaf.field_id] = sizes.get(leaf.field_id, 0) + chunk.compressed_size
    assert files.result.column_sizes == sizes


def test_pages_filters_and_column_indexes_are_the_same_bytes(files: Files) -> None:
    spliced = iter(chunks(files.footer))
    for path, footer in zip(files.paths, files.footers, strict=True):
        for before in chunks(footer):
            after = next(spliced)
            assert part(path, before.pages) == part(files.spliced, after.pages)
            assert bool(before.column_index) == bool(after.column_index)
            assert bool(before.offset_index) == bool(after.offset_index)
            if before.column_index and after.column_index:
                assert part(path, before.column_index) == part(files.spliced, after.column_index)
            assert bool(before.bloom_offset) == bool(after.bloom_offset)
            if before.bloom_offset:
                length = after.bloom_length
                assert length == before.bloom_length
                assert part(path, ByteRange(before.bloom_offset, length)) == part(
                    files.spliced, ByteRange(after.bloom_offset, length)
                )
    assert next(spliced, None) is None


def test_nothing_but_offsets_changes_in_a_chunk(files: Files) -> None:
    moved_fields = {9, 10, 11, 14}
    before = [chunk for footer in files.footers for chunk in chunks(footer)]
    for old, new in zip(before, chunks(files.footer), strict=True):
        assert old.metadata.without(*moved_fields) == new.metadata.without(*moved_fields)
        assert list(old.metadata.fields) == list(new.metadata.fields)
        assert list(old.tree.fields) == list(new.tree.fields)
        shift = new.pages.offset - old.pages.offset
        assert new.page_offsets == {field_id: offset + shift for field_id, offset in old.page_offsets.items()}
    heads = [footer.tree.without(3, 4) for footer in (files.footers[0], files.footer)]
    assert encode_struct(heads[0]) == encode_struct(heads[1])


def test_row_groups_are_renumbered_and_placed(files: Files) -> None:
    before = [group for footer in files.footers for group in footer.row_groups]
    for number, (old, new) in enumerate(zip(before, files.footer.row_groups, strict=True)):
        assert new.ordinal == (None if old.ordinal is None else number)
        assert list(old.tree.fields) == list(new.tree.fields)
        if old.tree.get(5) is not None:
            assert new.tree.get(5) == files.result.split_offsets[number]
        for chunk in new.chunks:
            file_offset = chunk.tree.get(2)
            assert not file_offset or chunk.pages.offset <= file_offset < chunk.pages.end


def test_every_page_location_points_at_a_page_of_its_size(files: Files) -> None:
    data = files.spliced.read_bytes()
    seen = 0
    for chunk in chunks(files.footer):
        if chunk.offset_index is None:
            continue
        tree, _ = decode_struct(part(files.spliced, chunk.offset_index))
        expected = chunk.page_offsets[9]
        for location in tree.elements(1, STRUCT):
            offset, length = location.require(1, I64), location.require(2, I32)
            assert offset == expected
            header, start = decode_struct(data, offset)
            assert header.require(1, I32) != DICTIONARY_PAGE
            assert start - offset + header.require(3, I32) == length
            expected = offset + length
            seen += 1
        assert expected == chunk.pages.end
    if files.footer.created_by.startswith((b"parquet-mr", b"datafusion")):
        assert seen > 1.5 * len(chunks(files.footer))  # several pages per chunk, or this shows little


# --- reading back ---


def test_pyarrow_reads_the_same_rows(files: Files) -> None:
    readable = [name for name in pq.ParquetFile(files.spliced).schema_arrow.names if name != "variant"]
    before = pa.concat_tables(pq.read_table(path, columns=readable) for path in files.paths)
    after = pq.read_table(files.spliced, columns=readable, page_checksum_verification=True)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert repr(after.to_pylist()) == repr(before.to_pylist())
    assert after["id"].to_pylist() == [1000 * (n + 1) + i for n, rows in enumerate(ROWS) for i in range(rows)]


def test_duckdb_reads_the_same_rows(files: Files) -> None:
    connection = duckdb.connect()
    unknown = {"half"} if files.footer.created_by.startswith(b"datafusion") else set()
    names = [row[0] for row in connection.execute(f"DESCRIBE FROM '{files.spliced}'").fetchall()]
    wanted = ", ".join(f'"{name}"' for name in names if name not in unknown)
    before = connection.execute(f"SELECT {wanted} FROM read_parquet({[str(path) for path in files.paths]})").fetchall()
    after = connection.execute(f"SELECT {wanted} FROM '{files.spliced}'").fetchall()
    assert repr(after) == repr(before)
    assert len(after) == sum(ROWS)


def test_polars_reads_the_same_rows(files: Files) -> None:
    if not polars_reads(files.paths[0]):
        pytest.skip("Polars cannot read what this writer writes")
    names = [name for name in pl.read_parquet_schema(files.spliced) if name != "variant"]
    before = pl.concat([pl.read_parquet(path, columns=names) for path in files.paths])
    assert pl.read_parquet(files.spliced, columns=names).equals(before)
    assert len(before) == sum(ROWS)


@pytest.mark.spark
def test_spark_reads_the_same_rows(files: Files, spark: Any) -> None:
    skip_unless_spark_reads(files)
    known = arrow_table(0, 1)
    pq.write_table(known, files.spliced.with_name("types.parquet"))
    schema = spark.read.parquet(f"file:{files.spliced.with_name('types.parquet')}").schema
    present = {leaf.path[0].decode() for leaf in files.footer.leaves}
    for name in schema.names:
        if name not in present:
            schema = type(schema)([field for field in schema.fields if field.name != name])
    before = spark.read.schema(schema).parquet(*[f"file:{path}" for path in files.paths]).orderBy("id").collect()
    after = spark.read.schema(schema).parquet(f"file:{files.spliced}").orderBy("id").collect()
    assert repr(after) == repr(before)
    assert len(after) == sum(ROWS)


# --- filters, which trust statistics, page indexes and bloom filters ---

FILTERS = [
    ("id BETWEEN 2100 AND 2130", (pc.field("id") >= 2100) & (pc.field("id") <= 2130)),
    ("id >= 3895 OR id = 1000", (pc.field("id") >= 3895) | (pc.field("id") == 1000)),
    ("txt = 'key 0003777'", pc.field("txt") == "key 0003777"),
    ("txt = 'key 0000001'", pc.field("txt") == "key 0000001"),
    ("few = 'category 3' AND normal < -3800", (pc.field("few") == "category 3") & (pc.field("normal") < -3800)),
    ("flag IS NULL AND id > 3500", pc.field("flag").is_null() & (pc.field("id") > 3500)),
    ("day = DATE '2020-03-05'", pc.field("day") == dt.date(2020, 3, 5)),
    ("all_null IS NOT NULL", pc.field("all_null").is_valid()),
]
SHOWN = ["id", "txt", "few", "normal", "double", "day"]


def expected_rows(condition: pc.Expression) -> list[tuple[Any, ...]]:
    table = pa.concat_tables(arrow_table(1000 * (number + 1), rows) for number, rows in enumerate(ROWS))
    return [tuple(row.values()) for row in table.filter(condition).select(SHOWN).to_pylist()]


@pytest.mark.parametrize(("sql", "condition"), FILTERS, ids=[sql for sql, _ in FILTERS])
def test_filters_find_the_right_rows(files: Files, sql: str, condition: pc.Expression) -> None:
    expected = expected_rows(condition)
    query = f"SELECT {', '.join(SHOWN)} FROM {{}} WHERE {sql} ORDER BY id"
    assert duckdb.connect().execute(query.format(f"'{files.spliced}'")).fetchall() == expected
    found = ds.dataset(files.spliced).scanner(columns=SHOWN, filter=condition).to_table()
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    if polars_reads(files.paths[0]):
        assert pl.scan_parquet(files.spliced).sql(query.format("self")).collect().rows() == expected


@pytest.mark.parametrize(("sql", "condition"), FILTERS, ids=[sql for sql, _ in FILTERS])
def test_filters_through_page_index_and_bloom_filter(files: Files, sql: str, condition: pc.Expression) -> None:
    datafusion = pytest.importorskip("datafusion")
    settings = {
        "datafusion.execution.parquet.pushdown_filters": "true",
        "datafusion.execution.parquet.enable_page_index": "true",
        "datafusion.execution.parquet.bloom_filter_on_read": "true",
    }
    context = datafusion.SessionContext(datafusion.SessionConfig(settings))
    context.register_parquet("spliced", str(files.spliced))
    found = context.sql(f"SELECT {', '.join(SHOWN)} FROM spliced WHERE {sql} ORDER BY id").to_pylist()
    assert [tuple(row.values()) for row in found] == expected_rows(condition)


# --- row lineage, added to files of each writer ---

LINEAGE = ("_row_id", "_last_updated_sequence_number")
FIRST_ROW_IDS = (10**12, 0, 500)
LINEAGE_SHOWN = ["id", "txt", "few", *LINEAGE]


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
            found = pq.read_table(path, columns=LINEAGE_SHOWN[:3])
            tables.append(
                found.append_column("_row_id", pa.array(range(first, first + len(found)), pa.int64())).append_column(
                    "_last_updated_sequence_number", pa.array([number] * len(found), pa.int64())
                )
            )
        return pa.concat_tables(tables)


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


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_readers_find_the_lineage(lined: Lineage) -> None:
    expected = rows_of(lined.expected)
    assert len(expected) == sum(ROWS)
    names = pq.ParquetFile(lined.path).schema_arrow.names
    assert rows_of(pq.read_table(lined.path, columns=LINEAGE_SHOWN, page_checksum_verification=True)) == expected
    whole = pq.read_table(lined.path, columns=[name for name in names if name != "variant"])
    before = pq.read_table(lined.files.spliced, columns=[n for n in names if n not in {"variant", *LINEAGE}])
    assert whole.drop_columns(list(LINEAGE)).schema == before.schema
    assert repr(whole.drop_columns(list(LINEAGE)).to_pylist()) == repr(before.to_pylist())
    query = f"SELECT {', '.join(LINEAGE_SHOWN)} FROM '{lined.path}'"
    assert duckdb.connect().execute(query).fetchall() == expected
    if polars_reads(lined.files.paths[0]):
        assert pl.read_parquet(lined.path, columns=LINEAGE_SHOWN).rows() == expected
