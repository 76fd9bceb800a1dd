"""Three Parquet files of every writer within reach, with all the types it knows, and what a splice makes of them."""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.footer import ColumnChunk, Footer, read_footer
from compactor.rewrite.parquet.thrift import STRUCT
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.splice import SpliceInput, splice
from compactor.storage.byte_store import ByteRange
from compactor.storage.local_store import LocalByteStore
from tests.conftest import Lake
from tests.slow import slow

STORE = LocalByteStore()
ANY_SIZE = SpliceLimits(
    min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=10.0, max_footer_bytes=2**30, require_field_ids=False
)
ROWS = (700, 450, 900)
ROWS_PER_PAGE = 100


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
    write_duckdb_newest,
    write_polars,
    write_datafusion,
    pytest.param("spark_v2", marks=pytest.mark.spark),
    *slow(write_pyarrow_v2, write_pyarrow_plain, write_duckdb, "spark_v1"),
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


def polars_reads(path: Path) -> bool:
    """Polars refuses whole files that hold a type it does not know."""
    try:
        return bool(pl.read_parquet_schema(path))
    except pl.exceptions.PolarsError:
        return False


def skip_unless_spark_reads(files: Files) -> None:
    if any({16, 17} & element.get(10, STRUCT).fields.keys() for element in files.footer.schema if 10 in element.fields):
        pytest.skip("Spark's Parquet cannot read footers with VARIANT or GEOMETRY types")
