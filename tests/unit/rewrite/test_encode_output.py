"""Deletes, lineage, the written file, and the state after a failure."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    ListType,
    MapType,
    NestedField,
    StructType,
)

from compactor.errors import GiveUpError, RetryError
from compactor.rewrite.deletes.equality_deletes import EncodeInput
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.encode import writer as encode_write
from compactor.rewrite.encode.encode import encode, encoded_schema
from compactor.rewrite.parquet.footer import read_footer
from compactor.rewrite.reading.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from compactor.rewrite.splice.lineage_schema import without_lineage
from compactor.rewrite.splice.splice import SpliceInput, SpliceLimits, refusal, splice
from compactor.rewrite.tasks.output_task import TaskInput, run_task
from compactor.storage.local_store import LocalByteStore
from compactor.storage.opening import byte_store_for
from tests.unit.failing import fails
from tests.unit.rewrite.encode_support import IDS, column, deletes, encode_task, encoded, ids_file, refused, write

# --- position deletes -------------------------------------------------------------------------------------------------


def test_position_deletes_are_applied_and_counted(tmp_path: Path) -> None:
    first, second = (ids_file(tmp_path / f"{n}.parquet", n * 10, 10) for n in range(2))
    rows = [*((first.location, position) for position in (0, 9, 9, 10)), (second.location, 3)]
    file = deletes(tmp_path / "d.parquet", rows)
    inputs = [replace(first, position_deletes=(file,)), second]  # the delete file does not apply to the second
    result, table = encoded(encode_task(tmp_path, IDS, inputs))
    assert table["id"].to_pylist() == [*range(1, 9), *range(10, 20)]
    assert (result.rows_deleted, result.rows) == (2, 18)
    assert result.metrics.value_counts == {1: 18}


def test_deleted_rows_are_counted_from_the_deletes_not_from_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check must notice a delete that was not applied, and a row that was wrongly removed."""
    source = ids_file(tmp_path / "1.parquet", 0, 10)
    file = deletes(tmp_path / "d.parquet", [(source.location, 3)])
    work = encode_task(tmp_path, IDS, [replace(source, position_deletes=(file,))])
    for kept in (None, pa.array([False] * 2 + [True] * 8)):
        monkeypatch.setattr("compactor.rewrite.encode.encode.kept_rows", lambda *_, kept=kept: kept)
        with fails("row_count_mismatch"):
            encode(work)
        assert not (tmp_path / "out.parquet").exists()


def test_positions_count_from_the_start_of_a_file_of_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.rewrite.reading.files.TABLE_ROWS", 7)
    source = ids_file(tmp_path / "1.parquet", 0, 100, row_group_size=30)
    gone = [0, 6, 7, 13, 29, 30, 31, 63, 99]
    file = deletes(tmp_path / "d.parquet", [(source.location, position) for position in gone])
    source = replace(source, position_deletes=(file,), first_row_id=1000, data_sequence_number=4)
    work = encode_task(tmp_path, IDS, [source], format_version=3, keep_row_lineage=True)
    result, table = encoded(work)
    assert table["id"].to_pylist() == [n for n in range(100) if n not in gone]
    assert table["_row_id"].to_pylist() == [1000 + n for n in range(100) if n not in gone]
    assert result.rows_deleted == len(gone)


def test_when_every_row_is_deleted_there_is_no_file(tmp_path: Path) -> None:
    source = ids_file(tmp_path / "1.parquet", 0, 3)
    file = deletes(tmp_path / "d.parquet", [(source.location, n) for n in range(3)])
    work = encode_task(tmp_path, IDS, [replace(source, position_deletes=(file,))])
    result = encode(work)
    assert (result.rows, result.rows_deleted, result.size, result.split_offsets) == (0, 3, 0, ())  # type: ignore[union-attr]
    assert not Path(work.output).exists()


@pytest.mark.parametrize("file_format", ["ORC", "avro"])
def test_delete_files_of_other_formats_are_refused(tmp_path: Path, file_format: str) -> None:
    source = EncodeInput("/nowhere", 1, 1, position_deletes=(DeleteFile("/nowhere", 1, file_format),))
    assert refused(encode_task(tmp_path, IDS, [source])) == "delete_file_format"


# --- row lineage ------------------------------------------------------------------------------------------------------


def test_row_lineage_is_completed_as_readers_do(tmp_path: Path) -> None:
    plain = replace(ids_file(tmp_path / "1.parquet", 0, 2), first_row_id=100, data_sequence_number=7)
    arrow = pa.schema(
        [
            column("id", pa.int64(), 1, nullable=False),
            column("_last_updated_sequence_number", pa.int64(), LAST_UPDATED_SEQUENCE_NUMBER.field_id),
            column("_row_id", pa.int64(), ROW_ID.field_id),
        ]
    )
    table = pa.table([[2, 3], [5, None], [None, 50]], schema=arrow)
    carried = replace(write(tmp_path / "2.parquet", table), first_row_id=200, data_sequence_number=8)
    unknown = replace(write(tmp_path / "3.parquet", table), first_row_id=None)
    _, found = encoded(encode_task(tmp_path, IDS, [plain, carried, unknown], format_version=3, keep_row_lineage=True))
    expected = [(0, 100, 7), (1, 101, 7), (2, 200, 5), (3, 50, 8), (2, None, None), (3, None, None)]
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    assert [field.metadata[b"PARQUET:field_id"] for field in found.schema][1:] == [b"2147483540", b"2147483539"]


def test_lineage_below_format_version_3_is_refused(tmp_path: Path) -> None:
    assert refused(encode_task(tmp_path, IDS, [], keep_row_lineage=True)) == "row_lineage_unknown"


# --- the file that is written -----------------------------------------------------------------------------------------


def test_two_outputs_can_be_spliced(tmp_path: Path) -> None:
    works = []
    for n in range(2):
        source = ids_file(tmp_path / f"{n}.parquet", n * 10_000, 10_000)
        works.append(encode_task(tmp_path, IDS, [source], output=str(tmp_path / f"out{n}.parquet")))
    outputs = [SpliceInput(work.output, encoded(work)[0].size) for work in works]
    store = byte_store_for("/", {})
    footers = [read_footer(store, file.location, file.size) for file in outputs]
    limits = SpliceLimits(min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=1.0)
    assert refusal(footers, limits) is None
    splice(store, outputs, str(tmp_path / "spliced.parquet"), limits, footers=footers)
    assert pq.read_table(tmp_path / "spliced.parquet")["id"].to_pylist() == list(range(20_000))
    keys = dict(footers[0].key_values)
    assert set(keys) == {b"iceberg.schema"}
    assert Schema.model_validate_json(keys[b"iceberg.schema"] or b"") == IDS


def of_row_groups(target: int) -> tuple[tuple[str, str]]:
    return (("write.parquet.row-group-size-bytes", str(target)),)


def noise(folder: Path, files: int) -> list[EncodeInput]:
    """Files of 5,000 numbers that do not compress."""
    rng = np.random.default_rng(0)
    arrow = pa.schema([column("id", pa.int64(), 1, nullable=False)])
    return [
        write(folder / f"{n}.parquet", pa.table([rng.integers(0, 1 << 60, 5000)], schema=arrow)) for n in range(files)
    ]


def test_row_groups_are_closed_by_measured_bytes(tmp_path: Path) -> None:
    target = 400_000
    work = encode_task(tmp_path, IDS, noise(tmp_path, 40), properties=of_row_groups(target))
    result, _ = encoded(work)
    metadata = pq.ParquetFile(work.output).metadata
    sizes = [metadata.row_group(n).column(0).total_compressed_size for n in range(metadata.num_row_groups)]
    assert 3 <= len(sizes) <= 5
    assert all(0.8 * target <= size <= 1.2 * target for size in sizes[:-1])
    assert len(sizes) == len(result.split_offsets)
    assert result.metrics.column_sizes == {1: sum(sizes)}


def test_a_small_rest_joins_the_last_row_group(tmp_path: Path) -> None:
    inputs = noise(tmp_path, 21)
    target = sum(each.size for each in inputs[:19])
    result, _ = encoded(encode_task(tmp_path, IDS, inputs, properties=of_row_groups(target)))
    assert len(result.split_offsets) == 1


def test_rows_that_grow_in_memory_close_a_row_group_too(tmp_path: Path) -> None:
    table = pa.table([["x" * 1000] * 60_000], schema=pa.schema([column("t", pa.string(), 1)]))
    inputs = [write(tmp_path / f"{n}.parquet", table) for n in range(4)]
    schema = Schema(NestedField(1, "t", "string"))
    result, _ = encoded(encode_task(tmp_path, schema, inputs, properties=of_row_groups(20_000_000)))
    assert len(result.split_offsets) == 4


PROPERTIES = {
    "write.parquet.compression-codec": "gzip",
    "write.parquet.compression-level": "1",
    "write.parquet.page-row-limit": "100",
    "write.parquet.dict-encoding-enabled.column.s.x": "false",
    "write.parquet.bloom-filter-enabled.column.id": "true",
    "write.parquet.stats-enabled.column.id": "false",
}


def test_write_properties(tmp_path: Path) -> None:
    arrow = pa.schema([column("id", pa.int64(), 1), column("s", pa.struct([column("x", pa.int64(), 3)]), 2)])
    rows = [{"id": n % 7, "s": {"x": n % 7}} for n in range(1000)]
    source = write(tmp_path / "1.parquet", pa.Table.from_pylist(rows, schema=arrow))
    schema = Schema(NestedField(1, "id", "long"), NestedField(2, "s", StructType(NestedField(3, "x", "long"))))
    work = encode_task(tmp_path, schema, [source], properties=tuple(PROPERTIES.items()))
    encoded(work)
    identifier, x = (pq.ParquetFile(work.output).metadata.row_group(0).column(n) for n in range(2))
    assert identifier.compression == x.compression == "GZIP"
    assert "RLE_DICTIONARY" in identifier.encodings
    assert "RLE_DICTIONARY" not in x.encodings
    assert identifier.statistics is None
    assert x.statistics.max == 6
    assert identifier.has_offset_index
    store = LocalByteStore()
    footer = read_footer(store, work.output, store.size(work.output))
    chunks = footer.row_groups[0].chunks
    assert chunks[0].bloom_offset > 0
    assert chunks[1].bloom_offset == 0
    pages = footer.row_groups[0].chunks[1].offset_index
    assert pages is not None
    assert store.read(work.output, pages.offset, pages.length).count(b"\x16") >= 10  # at least ten pages


def test_columns_of_values_that_hardly_repeat_get_no_dictionary_unless_asked_for(tmp_path: Path) -> None:
    arrow = pa.schema([column(name, pa.int64(), n) for n, name in enumerate(["unique", "asked", "few", "none"], 1)])
    table = pa.table([np.arange(3000), np.arange(3000), np.arange(3000) // 2, pa.nulls(3000, pa.int64())], schema=arrow)
    schema = Schema(*[NestedField(n, name, "long") for n, name in enumerate(arrow.names, 1)])
    work = encode_task(
        tmp_path,
        schema,
        [write(tmp_path / "1.parquet", table)],
        properties=(("write.parquet.dict-encoding-enabled.column.asked", "true"),),
    )
    encoded(work)
    group = pq.ParquetFile(work.output).metadata.row_group(0)
    assert ["RLE_DICTIONARY" in group.column(n).encodings for n in range(3)] == [False, True, True]


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli", "lzo", "ZSTD"])
@pytest.mark.parametrize("level", ["3", "-100", "high"])
def test_every_codec_and_any_level_can_be_written(tmp_path: Path, codec: str, level: str) -> None:
    own = {"compression": codec} if codec == "brotli" else {}
    source = ids_file(tmp_path / "1.parquet", 0, 100, **own)
    properties = (("write.parquet.compression-codec", codec), ("write.parquet.compression-level", level))
    work = encode_task(tmp_path, IDS, [source], properties=properties)
    encoded(work)
    expected = {"lz4": "LZ4", "lzo": "ZSTD"}.get(codec, codec.upper())
    assert pq.ParquetFile(work.output).metadata.row_group(0).column(0).compression == expected


def test_brotli_is_written_only_where_readers_have_shown_to_know_it(tmp_path: Path) -> None:
    files = [ids_file(tmp_path / f"{number}.parquet", 0, 100, compression="snappy") for number in range(2)]
    work = encode_task(tmp_path, IDS, files, properties=(("write.parquet.compression-codec", "brotli"),))
    encoded(work)
    assert pq.ParquetFile(work.output).metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(("codec", "level"), [("zstd", 3), ("gzip", 6)])
def test_the_default_level_is_that_of_icebergs_java_writer(tmp_path: Path, codec: str, level: int) -> None:
    arrow = pa.schema([column("id", pa.int64(), 1, nullable=False)])
    source = write(tmp_path / "1.parquet", pa.table([np.random.default_rng(0).integers(0, 1000, 20_000)], schema=arrow))
    properties = {"write.parquet.compression-codec": codec, "write.parquet.dict-encoding-enabled.column.id": "false"}
    found = []
    for chosen in (None, level, 1):
        own = {} if chosen is None else {"write.parquet.compression-level": str(chosen)}
        work = encode_task(tmp_path, IDS, [source], properties=tuple((properties | own).items()))
        encoded(work)
        found.append(Path(work.output).read_bytes())
        Path(work.output).unlink()
    assert found[0] == found[1] != found[2]


def test_nonsense_in_properties_does_not_stop_a_rewrite(tmp_path: Path) -> None:
    keys = [
        "row-group-size-bytes", "page-size-bytes", "page-row-limit", "dict-size-bytes", "page-version",
        "bloom-filter-enabled.column.nobody", "bloom-filter-fpp.column.id", "bloom-filter-ndv.column.id",
        "bloom-filter-max-bytes", "stats-enabled.column.nobody",
    ]  # fmt: skip
    for value in ("", "-1", "nan", "9" * 30, "true"):
        properties = [(f"write.parquet.{key}", value) for key in keys]
        properties += [("write.metadata.metrics.default", value), ("write.metadata.metrics.column.id", value)]
        properties += [("write.metadata.metrics.max-inferred-column-defaults", value)]
        properties += [("write.parquet.bloom-filter-enabled.column.id", "true")]
        work = encode_task(tmp_path, IDS, [ids_file(tmp_path / "1.parquet", 0, 10)], properties=tuple(properties))
        encoded(work)
        Path(work.output).unlink()


def test_names_are_spelled_as_iceberg_does(tmp_path: Path) -> None:
    source = ids_file(tmp_path / "1.parquet", 0, 1)
    schema = Schema(NestedField(1, "9 lives.a", "long"), NestedField(2, "ok", "long"))
    _, table = encoded(encode_task(tmp_path, schema, [source]))
    assert table.column_names == ["_9_x20lives_x2Ea", "ok"]
    colliding = Schema(NestedField(1, "a b", "long"), NestedField(2, "a_x20b", "long"))
    assert (
        refused(encode_task(tmp_path, colliding, [source], output=str(tmp_path / "colliding.parquet")))
        == "column_names_collide"
    )


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_existing_output_is_not_touched(tmp_path: Path) -> None:
    work = encode_task(tmp_path, IDS, [ids_file(tmp_path / "1.parquet", 0, 1)])
    Path(work.output).write_text("mine")
    with fails("output_exists"):
        encode(work)
    assert Path(work.output).read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"records": 9}, "row_count_mismatch"),
        ({"location": "/nowhere/x.parquet"}, "input_missing"),
        ({"size": 100}, "unreadable_footer"),
        ({"size": 10_000_000}, "input_truncated"),
    ],
)
def test_inputs_that_are_not_what_the_manifest_says(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    good = ids_file(tmp_path / "1.parquet", 0, 10)
    bad = replace(ids_file(tmp_path / "2.parquet", 10, 10), **change)
    work = encode_task(tmp_path, IDS, [good, bad])
    with fails(reason):
        encode(work)
    assert not Path(work.output).exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_flipped_bit_in_a_page_is_noticed(tmp_path: Path, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr("compactor.rewrite.reading.files.WHOLE_FILE_BYTES", 0)
    path = tmp_path / "1.parquet"
    source = ids_file(
        path, 0, 1000, write_page_checksum=True, compression="none", use_dictionary=False, write_statistics=False
    )
    encoded(encode_task(tmp_path, IDS, [source], output=str(tmp_path / "good.parquet")))
    data = bytearray(path.read_bytes())
    data[data.index((500).to_bytes(8, "little"))] ^= 1
    path.write_bytes(data)
    work = encode_task(tmp_path, IDS, [source])
    with fails("corrupt_page"):
        encode(work)
    with pytest.raises(GiveUpError, match="damaged"):  # Spark would read it without a word
        run_task(TaskInput(None, work))
    assert not Path(work.output).exists()


def test_large_files_are_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.rewrite.reading.files.WHOLE_FILE_BYTES", 0)
    inputs = [ids_file(tmp_path / f"{n}.parquet", n * 100, 100) for n in range(2)]
    _, table = encoded(encode_task(tmp_path, IDS, inputs))
    assert table["id"].to_pylist() == list(range(200))
    missing = replace(inputs[0], location="/nowhere/x.parquet")
    with fails("input_missing"):
        encode(encode_task(tmp_path, IDS, [missing], output=str(tmp_path / "other.parquet")))


@pytest.mark.parametrize("short", [(pq.ParquetFile, "read"), (pq.ParquetWriter, "write_table")])
def test_memory_that_is_short_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: tuple[type, str]
) -> None:
    """As if the store did not answer, the run would be repeated for ever."""

    def fall_short(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 1024 failed")

    work = encode_task(tmp_path, IDS, [ids_file(tmp_path / "1.parquet", 0, 10)])
    monkeypatch.setattr(*short, fall_short)
    with fails("out_of_memory", RetryError):
        encode(work)
    assert not Path(work.output).exists()


@pytest.mark.parametrize("bytes_before", [0, 100, 5000])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, bytes_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from compactor.storage import local_store  # noqa: PLC0415

    real = local_store.os.pwrite

    def full(descriptor: int, data: Any, position: int) -> int:
        if position + len(data) > bytes_before:
            raise OSError(errno.ENOSPC, "disk full")
        return real(descriptor, data, position)

    monkeypatch.setattr(local_store.os, "pwrite", full)
    monkeypatch.setattr(encode_write, "SINK_BUFFER_BYTES", 10)
    work = encode_task(tmp_path, IDS, [ids_file(tmp_path / "1.parquet", 0, 10_000)])
    with fails("no_space", RetryError):
        encode(work)
    assert not Path(work.output).exists()


@pytest.mark.parametrize("lineage", [False, True])
def test_the_schema_of_the_file_is_known_before_it_is_written(tmp_path: Path, lineage: bool) -> None:
    """Of every type, with every option that table properties give."""
    kinds = [
        "boolean", "int", "long", "float", "double", "decimal(9, 2)", "decimal(18, 0)", "decimal(38, 9)", "date",
        "time", "timestamp", "timestamptz", "string", "uuid", "fixed[3]", "binary",
        ListType(100, "decimal(5, 1)"), MapType(101, "string", 102, "uuid"),
        StructType(NestedField(103, "x.y", "long"), NestedField(104, "z", ListType(105, "int"))),
    ]  # fmt: skip
    schema = Schema(
        NestedField(1, "id", "long", required=True),
        *(NestedField(n, f"c{n}", each) for n, each in enumerate(kinds, 2)),
    )
    source = ids_file(tmp_path / "1.parquet", 0, 10)
    properties = {
        "write.parquet.page-version": "v2",
        "write.parquet.bloom-filter-enabled.column.c2": "true",
        "write.parquet.dict-encoding-enabled.column.id": "true",
        "write.parquet.stats-enabled.column.c3": "false",
    }
    work = encode_task(
        tmp_path, schema, [replace(source, first_row_id=0)], keep_row_lineage=lineage, format_version=3,
        properties=tuple(properties.items()),
    )  # fmt: skip
    result, _ = encoded(work)
    footer = read_footer(LocalByteStore(), work.output, result.size)
    assert encoded_schema(work) == (without_lineage(footer) if lineage else footer).schema
