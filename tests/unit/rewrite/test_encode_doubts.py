"""NaN, -0.0 and UUIDs, which readers compare in different ways: every filter finds its rows in what `encode` writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow._parquet
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import BooleanExpression, EqualTo, GreaterThan, IsNaN, IsNull, NotEqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
    UUIDType,
)

from compactor.rewrite.deletes.equality_deletes import EncodeInput
from compactor.rewrite.encode import writer as encode_writer
from compactor.rewrite.encode.doubts import doubts_of
from compactor.rewrite.encode.encode import EncodeTask
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.parquet.footer import ColumnChunk, ColumnField, read_footer
from compactor.rewrite.parquet.thrift import STRUCT
from compactor.rewrite.reading.schema import written_schema
from compactor.rewrite.tasks.output_task import MixedFile, SpliceTask, TaskInput, TaskResult, run_task
from compactor.storage.local_store import LocalByteStore
from tests.unit.rewrite.encode_support import encode_task, encoded, write
from tests.unit.rewrite.output_task_files import LIMITS

NAN = math.nan
BOUNDS = {1, 2, 5, 6}  # fields of Statistics: min and max, old and new
ROW_GROUPS = (("write.parquet.row-group-size-bytes", "1"),)  # every input becomes a row group of its own
BLOOM = (("write.parquet.bloom-filter-enabled.column.c0", "true"),)


def schema_of(*kinds: IcebergType) -> Schema:
    return Schema(*(NestedField(number + 1, f"c{number}", kind) for number, kind in enumerate(kinds)))


def work_of(folder: Path, schema: Schema, files: Sequence[Sequence[Sequence[Any]]], **details: Any) -> EncodeTask:
    """A task for `files`, each with its columns' values."""
    arrow = written_schema(schema, with_lineage=False).arrow
    inputs = [
        write(folder / f"{number}.parquet", pa.table(list(map(array_of, arrow.types, columns)), schema=arrow))
        for number, columns in enumerate(files)
    ]
    return encode_task(folder, schema, inputs, **details)


def array_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if kind == pa.uuid():
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def chunks_of(work: EncodeTask) -> list[list[ColumnChunk]]:
    """The chunks of each row group of the output."""
    store = LocalByteStore()
    footer = read_footer(store, work.output, store.size(work.output))
    return [group.chunks for group in footer.row_groups]


def has_extremes(chunk: ColumnChunk) -> bool:
    statistics = chunk.metadata.get(ColumnField.STATISTICS, STRUCT)
    kept = bool(BOUNDS & statistics.fields.keys())
    assert kept == (chunk.column_index is not None)
    assert chunk.null_count is not None
    assert chunk.offset_index is not None
    return kept


def tells_members(chunk: ColumnChunk) -> bool:
    """Whether readers may decide by the chunk's dictionary or bloom filter which values it holds."""
    told = ColumnField.ENCODING_STATS in chunk.metadata.fields
    assert told or not chunk.bloom_offset
    return told


# --- readers ----------------------------------------------------------------------------------------------------------

ZEROS = [-0.0] * 4 + [1.0, 2.0, 2.0, -5.0]
COLUMNS = ([1.0] * 6 + [NAN] * 2, ZEROS, ZEROS)
READ = schema_of(DoubleType(), DoubleType(), DoubleType())
PROPERTIES = (
    ("write.parquet.bloom-filter-enabled.column.c2", "true"),
    ("write.parquet.dict-encoding-enabled.column.c2", "false"),
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, EncodedFile]:
    work = work_of(tmp_path_factory.mktemp("read"), READ, [COLUMNS], properties=PROPERTIES)
    return work.output, encoded(work)[0]


@pytest.fixture(scope="module")
def table(result: tuple[str, EncodedFile], tmp_path_factory: pytest.TempPathFactory) -> Table:
    location, file = result
    folder = tmp_path_factory.mktemp("catalog")
    catalog = SqlCatalog("read", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("db")
    table = catalog.create_table("db.read", READ)
    metrics = {name: value for name, value in vars(file.metrics).items() if name != "record_count"}
    new = DataFile.from_args(
        content=DataFileContent.DATA, file_path=location, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=file.rows, file_size_in_bytes=file.size, split_offsets=list(file.split_offsets),
        sort_order_id=None, spec_id=0, **metrics,
    )  # fmt: skip
    new.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(new)
    return table.refresh()


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("isnan(c0)", 2), ("c0 <> 1.0", 2), ("c0 > 10", 2), ("c0 = 1.0", 6), ("c0 IS NULL", 0),
        ("c1 = 0.0", 4), ("c1 >= 0.0", 7), ("c2 = 0.0", 4), ("c2 = 2.0", 2),
    ],
)  # fmt: skip
def test_duckdb(result: tuple[str, EncodedFile], condition: str, rows: int) -> None:
    with duckdb.connect() as connection:
        sql = f"SELECT count(*) FROM read_parquet('{result[0]}') WHERE {condition}"
        assert connection.execute(sql).fetchone() == (rows,)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (pc.is_nan(pc.field("c0")), 2),
        (pc.field("c0") != 1.0, 2),
        (pc.field("c1") == 0.0, 4),
    ],
)
def test_arrow(result: tuple[str, EncodedFile], condition: pc.Expression, rows: int) -> None:
    assert pyarrow.dataset.dataset(result[0]).to_table(filter=condition).num_rows == rows


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (IsNaN("c0"), 2), (NotEqualTo("c0", 1.0), 2), (GreaterThan("c0", 0.5), 6), (IsNull("c0"), 0),
        (EqualTo("c1", 0.0), 4), (GreaterThan("c1", 0.5), 3), (EqualTo("c2", 0.0), 4),
    ],
)  # fmt: skip
def test_pyiceberg(table: Table, condition: BooleanExpression, rows: int) -> None:
    assert table.scan(row_filter=condition).to_arrow().num_rows == rows


# --- footers ----------------------------------------------------------------------------------------------------------


def test_only_chunks_with_nan_have_no_extremes(tmp_path: Path) -> None:
    with_nan, without = [[1.0, NAN, None], [1.0, NAN], [1, 2]], [[1.0, None, -0.0], [2.0, math.inf], [3, 4]]
    files = [[[*values, *[None] * (3 - len(values))] for values in file] for file in (with_nan, without)]
    work = work_of(tmp_path, schema_of(DoubleType(), FloatType(), LongType()), files, properties=ROW_GROUPS)
    encoded(work)
    found = [[has_extremes(chunk) for chunk in chunks] for chunks in chunks_of(work)]
    assert found == [[False, False, True], [True, True, True]]


def test_more_rows_than_arrow_writes_into_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow would split them itself, and the doubts would be those of other row groups."""
    assert encode_writer.MOST_ROWS == pyarrow._parquet._MAX_ROW_GROUP_SIZE
    monkeypatch.setattr(encode_writer, "MOST_ROWS", 10)
    files = [[[1.0] * 4], [[NAN] * 4], [[1.0] * 4], [[2.0] * 10], [[1.0] * 3]]
    work = work_of(tmp_path, schema_of(DoubleType()), files)
    _, table = encoded(work)
    assert str(table["c0"].to_pylist()) == str([1.0] * 4 + [NAN] * 4 + [1.0] * 4 + [2.0] * 10 + [1.0] * 3)
    metadata = pq.ParquetFile(work.output).metadata
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [8, 4, 10, 3]
    assert [has_extremes(*chunks) for chunks in chunks_of(work)] == [False, True, True, True]


def test_nan_in_structs_lists_and_maps(tmp_path: Path) -> None:
    kinds = (
        StructType(NestedField(11, "a", "double"), NestedField(12, "b", "double")),
        ListType(13, StructType(NestedField(14, "x", "float"), NestedField(15, "y", "string"))),
        MapType(16, "double", 17, "double"),
    )
    columns = [
        [{"a": 1.0, "b": NAN}, {"a": None, "b": 1.0}, None],
        [[{"x": NAN, "y": "text"}, {"x": 1.0, "y": None}], [], None],
        [[(1.0, NAN)], [], [(2.0, 1.0)]],
    ]
    work = work_of(tmp_path, schema_of(*kinds), [columns])
    encoded(work)
    assert [has_extremes(chunk) for chunk in chunks_of(work)[0]] == [True, False, False, True, True, False]


def test_nested_values_outside_a_slice_are_no_doubt() -> None:
    pairs = pa.array([[("a", NAN)], [("b", 1.0)], None], pa.map_(pa.string(), pa.float64()))
    table = pa.table([pa.array([[NAN], [1.0], []]), pairs, pa.array([{"a": NAN}, {"a": 1.0}, None])], names=list("lms"))
    assert any(doubts_of(table.slice(0, 1)))
    assert not any(doubts_of(table.slice(1)))
    assert not any(doubts_of(table.slice(0, 0)))


def test_uuids_have_extremes_where_both_orders_are_the_same(tmp_path: Path) -> None:
    def value(first: int, ninth: int) -> bytes:
        return bytes([first, *[1] * 7, ninth, *[2] * 7])

    files = [
        [[value(0x00, 0x80), value(0x7F, 0xFF), None]],
        [[value(0x80, 0x00), value(0xFF, 0x7F), None]],
        [[value(0x7F, 0x80), value(0x80, 0x80), None]],
        [[value(0x01, 0x7F), value(0x01, 0x80), None]],
        [[value(0x01, 0x00), None, None]],
    ]
    work = work_of(tmp_path, schema_of(UUIDType()), files, properties=ROW_GROUPS)
    encoded(work)
    assert [has_extremes(*chunks) for chunks in chunks_of(work)] == [True, True, False, False, True]


def test_nulls_between_uuids_have_no_sign() -> None:
    """Independent of the bytes in their place."""
    stored = pa.array([b"\x80" * 16, b"\x00" * 16, b"\x80" * 16], pa.binary(16))
    masked = pa.Array.from_buffers(stored.type, 3, [pa.py_buffer(b"\x05"), stored.buffers()[1]])
    for uuids in (masked, masked.slice(1), masked.slice(1, 1)):
        assert not any(doubts_of(pa.table([pa.ExtensionArray.from_storage(pa.uuid(), uuids)], names=["u"])))


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_only_chunks_with_minus_zero_hide_their_members(tmp_path: Path, kind: IcebergType) -> None:
    files = [[[1.0, 0.0, NAN] * 4], [[1.0, -0.0, None] * 4]]
    work = work_of(tmp_path, schema_of(kind), files, properties=(*ROW_GROUPS, *BLOOM))
    _, table = encoded(work)
    assert [math.copysign(1, value) for value in table["c0"].to_pylist()[1::3]] == [1.0] * 4 + [-1.0] * 4
    (first,), (second,) = chunks_of(work)
    assert [tells_members(first), tells_members(second)] == [True, False]
    assert first.bloom_offset
    groups = pq.ParquetFile(work.output).metadata
    assert "RLE_DICTIONARY" in groups.row_group(1).column(0).encodings  # it saves space as before


def test_what_is_decoded_beside_copied_row_groups(tmp_path: Path) -> None:
    """A kept file stays as it is; the new row group beside it says nothing doubtful."""
    schema, properties = schema_of(DoubleType()), (("write.parquet.compression-codec", "uncompressed"),)
    (tmp_path / "large").mkdir()
    numbers = [number / 8 for number in range(4000)]
    kept = work_of(tmp_path / "large", schema, [[numbers]], properties=properties)
    file = encoded(kept)[0]
    small = work_of(tmp_path, schema, [[[1.0, -0.0, NAN]]] * 5, properties=properties)
    inputs = (EncodeInput(kept.output, file.size, file.rows), *small.files.inputs)
    work = replace(small, files=replace(small.files, inputs=inputs))
    splice = SpliceTask(work.files, work.output, 0.0, LIMITS)
    written = run_task(TaskInput(splice, work, f"{tmp_path}/aside.parquet"))
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, MixedFile)
    found = [(has_extremes(*chunks), tells_members(*chunks)) for chunks in chunks_of(work)]
    assert found == [(True, True), (False, False)]
