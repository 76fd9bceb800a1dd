"""Spliced files of every writer within reach, read back by every reader within reach.

Each writer makes three files with all the types it knows, small pages, page indexes, bloom filters and size statistics
where it can. The spliced file must hold the same values in the same order for each reader as the originals did.
"""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.footer import ColumnChunk, Footer, read_footer
from compactor.rewrite.parquet.thrift import I32, I64, STRUCT, decode_struct, encode_struct
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.splice import SpliceInput, splice
from compactor.storage.byte_store import ByteRange
from compactor.storage.local_store import LocalByteStore
from tests.conftest import Lake

STORE = LocalByteStore()
ANY_SIZE = SpliceLimits(
    min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=10.0, max_footer_bytes=2**30, require_field_ids=False
)
ROWS = (700, 450, 900)
ROWS_PER_PAGE = 100
DICTIONARY_PAGE = 2


def with_ids(fields: list[pa.Field]) -> pa.Schema:
    """The same fields with a Parquet field id on each, nested ones included."""
    count = iter(range(1, 1000))

    def numbered(field: pa.Field) -> pa.Field:
        metadata = {"PARQUET:field_id": str(next(count))}
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([numbered(child) for child in kind])
        elif pa.types.is_map(kind):
            kind = pa.map_(numbered(kind.key_field), numbered(kind.item_field))
        elif pa.types.is_list(kind):
            kind = pa.list_(numbered(kind.value_field))
        return pa.field(field.name, kind, nullable=field.nullable, metadata=metadata)

    return pa.schema([numbered(field) for field in fields])


def values(first: int, rows: int) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Columns that every engine understands: unique `id` and `txt`, then one column per type, every 7th value null."""
    ids = range(first, first + rows)
    day, moment = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12, 30, 15, 123456)  # noqa: DTZ001

    def each(make: Callable[[int], Any]) -> list[Any]:
        return [None if i % 7 == 3 else make(i) for i in ids]

    return {
        "id": (pa.int64(), list(ids)),
        "txt": (pa.string(), [f"key {i:07d}" for i in ids]),
        "flag": (pa.bool_(), each(lambda i: i % 3 == 0)),
        "tiny": (pa.int8(), each(lambda i: i % 256 - 128)),
        "small": (pa.int16(), each(lambda i: i % 65536 - 32768)),
        "normal": (pa.int32(), each(lambda i: -i)),
        "single": (pa.float32(), each(lambda i: float("nan") if i % 11 == 0 else i / 4)),
        "double": (pa.float64(), each(lambda i: float("inf") if i % 13 == 0 else -i / 8)),
        "decimal_4": (pa.decimal128(9, 2), each(lambda i: decimal.Decimal(i).scaleb(-2))),
        "decimal_8": (pa.decimal128(18, 4), each(lambda i: decimal.Decimal(-i).scaleb(-4))),
        "decimal_16": (pa.decimal128(38, 10), each(lambda i: decimal.Decimal(i * 10**20).scaleb(-10))),
        "raw": (pa.binary(), each(lambda i: b"\0" + str(i).encode())),
        "day": (pa.date32(), each(lambda i: day + dt.timedelta(days=i % 3000))),
        "utc_us": (pa.timestamp("us", "UTC"), each(lambda i: (moment + dt.timedelta(hours=i)).replace(tzinfo=dt.UTC))),
        "local_us": (pa.timestamp("us"), each(lambda i: moment + dt.timedelta(minutes=i))),
        "few": (pa.string(), each(lambda i: f"category {i % 5}")),
        "all_null": (pa.int64(), [None] * rows),
        "numbers": (pa.list_(pa.int32()), each(lambda i: [None if k == 2 else k * i for k in range(i % 5)])),
        "texts": (pa.map_(pa.string(), pa.int64()), each(lambda i: [(f"k{k}", k * i) for k in range(i % 3)])),
        "nested": (
            pa.struct([("x", pa.int64()), ("deep", pa.list_(pa.struct([("y", pa.string())])))]),
            each(lambda i: {"x": i, "deep": [{"y": f"d{i}"}] * (i % 3)}),
        ),
    }


def more_values(first: int, rows: int) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Types that only some engines know."""
    ids = range(first, first + rows)
    moment = dt.datetime(2020, 1, 1, 12, 30, 15)  # noqa: DTZ001

    def each(make: Callable[[int], Any]) -> list[Any]:
        return [None if i % 5 == 2 else make(i) for i in ids]

    return {
        "u8": (pa.uint8(), each(lambda i: i % 256)),
        "u16": (pa.uint16(), each(lambda i: i % 65536)),
        "u32": (pa.uint32(), each(lambda i: i + 2**31)),
        "u64": (pa.uint64(), each(lambda i: i + 2**63)),
        "half": (pa.float16(), each(lambda i: float(i % 100))),
        "fixed": (pa.binary(5), each(lambda i: f"{i:05d}".encode())),
        "time_ms": (pa.time32("ms"), each(lambda i: dt.time(i % 24, 1, 2, 3000))),
        "time_us": (pa.time64("us"), each(lambda i: dt.time(i % 24, 1, 2, 3))),
        "time_ns": (pa.time64("ns"), each(lambda i: i * 1001)),
        "local_ms": (pa.timestamp("ms"), each(lambda i: moment + dt.timedelta(minutes=i))),
        "local_ns": (pa.timestamp("ns"), each(lambda i: i * 10**15 + 1)),
        "utc_ns": (pa.timestamp("ns", "UTC"), each(lambda i: i * 10**15 + 1)),
        "large_text": (pa.large_string(), each(str)),
    }


def arrow_table(first: int, rows: int, *, more: bool = False) -> pa.Table:
    columns = values(first, rows) | (more_values(first, rows) if more else {})
    schema = with_ids([pa.field(name, kind, nullable=name != "id") for name, (kind, _) in columns.items()])
    arrays = [pa.array(data, type=kind).cast(schema.field(name).type) for name, (kind, data) in columns.items()]
    return pa.table(arrays, schema=schema)


# --- writers: (path, first id, rows) ---


def write_pyarrow(path: Path, first: int, rows: int, **options: Any) -> None:
    table = arrow_table(first, rows, more=True)
    dictionary = pa.array([None if i % 6 == 1 else f"d{i % 4}" for i in range(rows)]).dictionary_encode()
    extras = {
        "dictionary": dictionary,
        "nothing": pa.nulls(rows),
        "uuid": pa.array([uuid.UUID(int=first + i).bytes for i in range(rows)], pa.uuid()),
        "json": pa.array([f'{{"a": {i}}}' for i in range(rows)], pa.json_()),
    }
    for number, (name, array) in enumerate(extras.items(), 900):
        table = table.append_column(pa.field(name, array.type, metadata={"PARQUET:field_id": str(number)}), array)
    defaults = {
        "row_group_size": 400,
        "data_page_size": 1024,
        "max_rows_per_page": ROWS_PER_PAGE,
        "write_page_index": True,
        "store_decimal_as_integer": True,
        "write_page_checksum": True,
        "bloom_filter_options": {"id": {"ndv": rows, "fpp": 0.01}, "txt": {"ndv": rows, "fpp": 0.01}},
    }
    pq.write_table(table, path, **(defaults | options))


def write_pyarrow_v2(path: Path, first: int, rows: int) -> None:
    encodings = {
        "id": "DELTA_BINARY_PACKED",
        "txt": "DELTA_BYTE_ARRAY",
        "raw": "DELTA_LENGTH_BYTE_ARRAY",
        "u32": "BYTE_STREAM_SPLIT",  # on a column that Spark is not asked for: it cannot read this encoding
    }
    write_pyarrow(
        path, first, rows, data_page_version="2.0", compression="zstd", use_dictionary=False, column_encoding=encodings
    )


def write_pyarrow_plain(path: Path, first: int, rows: int) -> None:
    write_pyarrow(
        path,
        first,
        rows,
        write_page_index=False,
        bloom_filter_options=None,
        use_deprecated_int96_timestamps=True,
        store_decimal_as_integer=False,
        compression="none",
        version="1.0",
    )


def write_duckdb(path: Path, first: int, rows: int, *, more: str = "") -> None:
    connection = duckdb.connect()
    table = arrow_table(first, rows)
    connection.register("given", table)
    connection.execute(f"""
        COPY (SELECT *, uuid() AS uuid, to_json({{a: id}}) AS json,
                     (id % 9)::UTINYINT AS u8, id::HUGEINT * 3 AS huge, ('e' || id % 2)::ENUM('e0', 'e1') AS enum,
                     TIME '10:00:00' AS clock, TIMESTAMP_NS '2020-01-01 00:00:00.000000001' AS ns,
                     {more}
              FROM given)
        TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048, FIELD_IDS 'auto', GEOPARQUET_VERSION 'NONE',
                     DICTIONARY_SIZE_LIMIT 10000)""")


def write_duckdb_newest(path: Path, first: int, rows: int) -> None:
    variant = "CASE WHEN id % 2 = 0 THEN id::VARIANT ELSE ('v' || id)::VARIANT END AS variant"
    write_duckdb(
        path,
        first,
        rows,
        more=f"{variant}, ('POINT(' || id || ' 1)')::GEOMETRY AS place, INTERVAL (id % 9) DAY AS span",
    )


def write_polars(path: Path, first: int, rows: int) -> None:
    table = arrow_table(first, rows).drop_columns(["texts"])
    pl.from_arrow(table).write_parquet(path, row_group_size=300, data_page_size=1024, statistics="full")


def write_datafusion(path: Path, first: int, rows: int) -> None:
    more = arrow_table(first, rows, more=True)
    context = pytest.importorskip("datafusion").SessionContext()
    context.register_record_batches("given", [more.to_batches()])
    context.sql(f"""COPY given TO '{path}' STORED AS PARQUET OPTIONS (
        'format.bloom_filter_on_write' 'true', 'format.statistics_enabled' 'page', 'format.max_row_group_size' '300',
        'format.data_page_row_count_limit' '{ROWS_PER_PAGE}', 'format.write_batch_size' '50')""").collect()


def write_spark(session: Any, path: Path, first: int, rows: int, version: str) -> None:
    source, folder = path.with_suffix(".source"), path.with_suffix(".folder")
    pq.write_table(arrow_table(first, rows), source)
    flat = {"id", "txt", "flag", "small", "decimal_8", "utc_us", "day"}
    frame = session.read.parquet(f"file:{source}").selectExpr("*", "parse_json(concat('[', id, ']')) AS variant")
    ids = enumerate(frame.columns, 1)
    numbered = [
        frame[name].alias(name, metadata={"parquet.field.id": number} if name in flat else {}) for number, name in ids
    ]
    writer = frame.select(*numbered).coalesce(1).write.option("parquet.bloom.filter.enabled", "true")
    for key, value in {
        "page.row.count.limit": ROWS_PER_PAGE,
        "block.size": 40000,
        "writer.version": version,
        "bloom.filter.max.bytes": 4096,
    }.items():
        writer = writer.option(f"parquet.{key}", str(value))
    writer.parquet(f"file:{folder}")
    (written,) = folder.glob("*.parquet")
    written.rename(path)


@pytest.fixture(scope="module")
def spark(lake: Lake) -> Any:
    """The run's one session: a second one in the process would share its context, and stopping it would end both."""
    lake.session.conf.set("spark.sql.parquet.fieldId.write.enabled", "true")
    return lake.session


WRITERS = [
    write_pyarrow,
    write_pyarrow_v2,
    write_pyarrow_plain,
    write_duckdb,
    write_duckdb_newest,
    write_polars,
    write_datafusion,
    pytest.param("spark_v1", marks=pytest.mark.spark),
    pytest.param("spark_v2", marks=pytest.mark.spark),
]


class Files:
    """Three files of one writer, and what became of them."""

    def __init__(self, folder: Path, write: Callable[[Path, int, int], None]) -> None:
        self.paths = []
        for number, rows in enumerate(ROWS):
            path = folder / f"part {number} %20#?é.parquet"
            plain = folder / f"part{number}.parquet"  # engines expand patterns in names
            write(plain, 1000 * (number + 1), rows)
            plain.rename(path)
            self.paths.append(path)
        self.inputs = [SpliceInput(f"file:{path}", path.stat().st_size) for path in self.paths]
        self.footers = [read_footer(STORE, source.location, source.size) for source in self.inputs]
        self.spliced = folder / "spliced.parquet"
        self.result = splice(STORE, self.inputs, str(self.spliced), ANY_SIZE, self.footers)
        self.footer = read_footer(STORE, str(self.spliced), self.result.size)
        for number, path in enumerate(self.paths):
            self.paths[number] = path.rename(folder / f"part{number}.parquet")


@pytest.fixture(scope="module", params=WRITERS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    if not isinstance(request.param, str):
        if request.param is write_datafusion:
            pytest.importorskip("datafusion")
        return Files(folder, request.param)
    session, version = request.getfixturevalue("spark"), request.param.removeprefix("spark_")
    return Files(folder, lambda path, first, rows: write_spark(session, path, first, rows, version))


def chunks(footer: Footer) -> list[ColumnChunk]:
    return [chunk for group in footer.row_groups for chunk in group.chunks]


def part(path: Path, wanted: ByteRange) -> bytes:
    return STORE.read(str(path), wanted.offset, wanted.length)


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
    assert files.result.row_groups == sum(len(footer.row_groups) for footer in files.footers)
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


def test_bloom_filters_are_found_by_their_header(files: Files) -> None:
    data = files.spliced.read_bytes()
    for chunk in chunks(files.footer):
        if chunk.bloom_offset:
            header, start = decode_struct(data, chunk.bloom_offset)
            assert start - chunk.bloom_offset + header.require(1, I32) == chunk.bloom_length


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


def polars_reads(path: Path) -> bool:
    """Polars refuses whole files that hold a type it does not know."""
    try:
        return bool(pl.read_parquet_schema(path))
    except pl.exceptions.PolarsError:
        return False


def test_polars_reads_the_same_rows(files: Files) -> None:
    if not polars_reads(files.paths[0]):
        pytest.skip("Polars cannot read what this writer writes")
    names = [name for name in pl.read_parquet_schema(files.spliced) if name != "variant"]
    before = pl.concat([pl.read_parquet(path, columns=names) for path in files.paths])
    assert pl.read_parquet(files.spliced, columns=names).equals(before)
    assert len(before) == sum(ROWS)


def skip_unless_spark_reads(files: Files) -> None:
    if any({16, 17} & element.get(10, STRUCT).fields.keys() for element in files.footer.schema if 10 in element.fields):
        pytest.skip("Spark's Parquet cannot read footers with VARIANT or GEOMETRY types")


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


@pytest.mark.spark
def test_spark_filters_find_the_right_rows(files: Files, spark: Any) -> None:
    skip_unless_spark_reads(files)
    types = "id BIGINT, txt STRING, flag BOOLEAN, few STRING, normal INT, double DOUBLE, day DATE, all_null BIGINT"
    frame = spark.read.schema(types).parquet(f"file:{files.spliced}")
    for sql, condition in FILTERS:
        found = frame.where(sql).select(SHOWN).orderBy("id").collect()
        assert [tuple(row) for row in found] == expected_rows(condition), sql
