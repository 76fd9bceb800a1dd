"""Row lineage in spliced files: the values of the rows, and refused files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.rewrite.deletes.equality_deletes import EncodeInput, InputFiles
from compactor.rewrite.parquet.footer import ColumnChunk, Footer
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, STRUCT, Struct, decode_struct, structs
from compactor.rewrite.splice.checks import refusal
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.lineage_schema import LAST_UPDATED, LINEAGE_ELEMENTS, ROW_ID, without_lineage
from compactor.rewrite.splice.splice import SplicedFile
from compactor.rewrite.tasks.output_task import SpliceTask, TaskInput, TaskResult, foreseen, run_task
from tests.properties.examples import examples
from tests.unit.failing import fails, reason_of
from tests.unit.rewrite.lineage_files import (
    COMPLETE,
    IDS,
    MERGED,
    PLAIN,
    File,
    arrow_table,
    chunks,
    join,
    lineage_of,
    reason,
    with_last_chunk,
    write,
)
from tests.unit.rewrite.splice_files import ANY_SIZE, footer_of

# --- values ---


@st.composite
def files(draw: st.DrawFn) -> tuple[File, dict[str, Any], list[str]]:
    rows = draw(st.integers(0, 40))
    values = st.none() | st.lists(st.none() | st.integers(1, 2**62), min_size=rows, max_size=rows)
    without_null = st.lists(st.integers(1, 2**62), min_size=rows, max_size=rows)
    first = draw(st.none() | st.integers(0, 2**40))
    file = File(
        rows, draw(values | without_null), draw(values | without_null), RowLineage(first, draw(st.integers(1, 10**6)))
    )
    options = {
        "row_group_size": draw(st.integers(1, 50)),
        "write_page_index": draw(st.booleans()),
        "max_rows_per_page": draw(st.sampled_from([3, 10, 1000])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "compression": draw(st.sampled_from(["none", "zstd", "snappy"])),
        "use_dictionary": draw(st.booleans()),
        "write_statistics": draw(st.booleans()),
    }
    positions = draw(st.permutations(["id", "_row_id", "_last_updated_sequence_number"]))
    order = [*positions[: positions.index("id") + 1], "text", *positions[positions.index("id") + 1 :]]
    return file, options, order


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(files(), min_size=1, max_size=4))
def test_every_row_keeps_what_it_had_or_inherited(written: list[tuple[File, dict[str, Any], list[str]]]) -> None:
    with TemporaryDirectory() as folder:
        parts = []
        for number, (file, options, order) in enumerate(written):
            path = write(Path(folder, f"{number}.parquet"), file, order, **options)
            parts.append((path, file.inherited))
        output, again = Path(folder, "out.parquet"), Path(folder, "again.parquet")
        result = join(output, parts)
        expected = [pair for file, _, _ in written for pair in file.expected]
        assert lineage_of(output) == expected
        assert pq.read_table(output)["id"].to_pylist() == [row for file, _, _ in written for row in range(file.rows)]
        assert result.rows == len(expected)
        check_structure(output, [path for path, _ in parts], result)
        second = join(again, [(output, RowLineage(2**50, 99))])
        inherited = RowLineage(2**50, 99)
        rows = File(len(expected), [row for row, _ in expected], [number for _, number in expected], inherited)
        assert lineage_of(again) == rows.expected
        if all(row is not None for row, _ in expected):
            assert second.lineage_bytes == 0


def check_structure(path: Path, originals: list[Path], result: SplicedFile) -> None:
    """Check that data columns are copied byte for byte, lineage columns come last, and indexes lead to their pages."""
    data, footer = path.read_bytes(), footer_of(path)
    assert footer.schema[3:] == tuple(LINEAGE_ELEMENTS.values())
    assert [leaf.field_id for leaf in footer.leaves] == [1, 2, ROW_ID, LAST_UPDATED]
    assert len(footer.tree.elements(7, STRUCT)) == 4
    before = [
        (original.read_bytes(), chunk)
        for original in originals
        for group in without_lineage(footer_of(original)).filled_row_groups
        for chunk in group.chunks
    ]
    for (source, old), new in zip(before, chunks(without_lineage(footer)), strict=True):
        assert data[new.pages.offset : new.pages.end] == source[old.pages.offset : old.pages.end]
        assert bool(old.column_index) == bool(new.column_index)
        assert bool(old.offset_index) == bool(new.offset_index)
        assert bool(old.bloom_offset) == bool(new.bloom_offset)
    for number, group in enumerate(footer.row_groups):
        check_group(data, group.tree, group.chunks)
        assert group.tree.get(5) == result.split_offsets[number] == min(c.pages.offset for c in group.chunks[:2])
        assert group.ordinal in {number, None}
    assert list(result.split_offsets) == sorted(result.split_offsets)
    assert result.column_sizes == footer.column_sizes
    assert result.size == len(data)


def check_group(data: bytes, group: Struct, columns: list[ColumnChunk]) -> None:
    assert group.get(2) == sum(chunk.metadata.get(6) for chunk in columns)
    assert group.get(6) == sum(chunk.compressed_size for chunk in columns)
    for chunk in columns:
        assert chunk.metadata.get(5) == group.get(3)
        if chunk.offset_index is None:
            continue
        tree, end = decode_struct(data, chunk.offset_index.offset)
        assert end == chunk.offset_index.end
        expected = chunk.page_offsets[9]
        for location in tree.elements(1, STRUCT):
            assert location.require(1, I64) == expected
            header, start = decode_struct(data, expected)
            assert start - expected + header.require(3, I32) == location.require(2, I32)
            expected += location.require(2, I32)
        assert expected == chunk.pages.end


def test_what_a_file_without_ids_holds_is_not_lineage(tmp_path: Path) -> None:
    """Readers treat all lineage of a file without first row id as null (spec: reader requirements of V3)."""
    parts = [(write(tmp_path / "a", COMPLETE), RowLineage(None, 4)), (write(tmp_path / "b", PLAIN), PLAIN.inherited)]
    join(tmp_path / "out", parts)
    assert lineage_of(tmp_path / "out") == [(None, None)] * 60 + PLAIN.expected


def test_columns_of_other_spelling_are_read(tmp_path: Path) -> None:
    """DuckDB annotates integers, and a required column has no definition levels to copy."""
    given, required = tmp_path / "duckdb", tmp_path / "required"
    connection = duckdb.connect()
    connection.register("given", arrow_table(MERGED))
    ids = ", ".join(f'"{name}": {number}' for name, number in IDS.items())
    connection.execute(f"COPY given TO '{given}' (FORMAT parquet, FIELD_IDS {{{ids}}})")
    assert footer_of(given).schema[3] != LINEAGE_ELEMENTS[ROW_ID]
    join(tmp_path / "one", [(given, MERGED.inherited)])
    assert lineage_of(tmp_path / "one") == MERGED.expected

    table = arrow_table(COMPLETE)
    for position in (2, 3):
        table = table.set_column(position, table.field(position).with_nullable(False), table.column(position))
    pq.write_table(table, required, row_group_size=25)
    assert footer_of(required).schema[3].get(3) == 0
    result = join(tmp_path / "two", [(required, COMPLETE.inherited)])
    assert lineage_of(tmp_path / "two") == COMPLETE.expected
    assert result.lineage_bytes > 0


def test_names_of_lineage_columns_do_not_matter_where_ids_tell(tmp_path: Path) -> None:
    table = arrow_table(COMPLETE).rename_columns(["id", "text", "a", "b"])
    pq.write_table(table, tmp_path / "a", store_schema=False)
    join(tmp_path / "out", [(tmp_path / "a", COMPLETE.inherited), (write(tmp_path / "b", PLAIN), PLAIN.inherited)])
    assert lineage_of(tmp_path / "out") == COMPLETE.expected + PLAIN.expected


def test_files_without_rows_take_no_ids(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", File(0))
    parts = [(empty, RowLineage(1, 1)), (write(tmp_path / "a", PLAIN), PLAIN.inherited), (empty, RowLineage(1, 1))]
    assert join(tmp_path / "out", parts).rows == 60
    assert lineage_of(tmp_path / "out") == PLAIN.expected
    none = join(tmp_path / "none", [(empty, RowLineage(1, 1))])
    assert (none.rows, none.lineage_bytes) == (0, 0)
    assert footer_of(tmp_path / "none").schema[3:] == tuple(LINEAGE_ELEMENTS.values())


# --- refusals ---


def test_files_may_differ_in_their_lineage_columns_only(tmp_path: Path) -> None:
    order = ["_row_id", "id", "_last_updated_sequence_number", "text"]
    plain, merged = footer_of(write(tmp_path / "a", PLAIN)), footer_of(write(tmp_path / "b", MERGED, order))
    only_ids = footer_of(write(tmp_path / "c", replace(MERGED, sequences=None)))
    assert reason(plain, merged, only_ids) is reason(merged, plain) is None
    other = plain.schema[2].with_fields({9: (I32, 77)})
    changed = replace(plain, tree=plain.tree.with_fields({2: structs([*plain.schema[:2], other])}))
    assert reason(merged, changed) == "schema_differs"
    assert reason_of(refusal([plain, merged], ANY_SIZE)) == "schema_differs"


@pytest.mark.parametrize("name", ["_row_id", "_last_updated_sequence_number", "_ROW_ID"])
@pytest.mark.parametrize("field_id", [3, None])
def test_reserved_names_with_other_ids(tmp_path: Path, name: str, field_id: int | None) -> None:
    metadata = {"PARQUET:field_id": str(field_id)} if field_id else None
    table = arrow_table(PLAIN).append_column(pa.field(name, pa.int64(), metadata=metadata), pa.array([0] * 60))
    pq.write_table(table, tmp_path / "a")
    assert reason(footer_of(tmp_path / "a")) == "reserved_column_name"


def with_lineage_element(footer: Footer, element: Struct) -> Footer:
    return replace(footer, tree=footer.tree.with_fields({2: structs([*footer.schema[:3], element, footer.schema[4]])}))


@pytest.mark.parametrize(
    "edit",
    [{1: (I32, 1)}, {3: (I32, 2)}, {9: (I32, LAST_UPDATED)}],
    ids=["another type", "repeated", "twice"],
)
def test_lineage_that_is_not_one_column_of_integers(tmp_path: Path, edit: dict[int, Any]) -> None:
    footer = footer_of(write(tmp_path / "a", COMPLETE))
    assert reason(with_lineage_element(footer, footer.schema[3].with_fields(edit))) == "malformed_lineage"


def test_lineage_inside_another_column(tmp_path: Path) -> None:
    inner = pa.field("x", pa.int64(), metadata={"PARQUET:field_id": str(ROW_ID)})
    nested = pa.field("nested", pa.struct([inner]), metadata={"PARQUET:field_id": "3"})
    values = pa.array([{"x": 1}] * 60, nested.type)
    pq.write_table(arrow_table(PLAIN).append_column(nested, values), tmp_path / "a")
    assert reason(footer_of(tmp_path / "a")) == "malformed_lineage"


def test_lineage_chunks_are_checked_like_all_others(tmp_path: Path) -> None:
    footer = footer_of(write(tmp_path / "a", COMPLETE))
    assert reason(with_last_chunk(footer, {1: (BINARY, b"elsewhere")})) == "external_column_files"
    assert reason(with_last_chunk(footer, {8: (STRUCT, Struct({1: (STRUCT, Struct({}))}))})) == "encrypted"
    assert reason(with_last_chunk(footer, {}, {9: (I64, 10**12)})) == "bad_offsets"


def test_all_files_carry_lineage_or_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a", PLAIN)
    with fails("malformed_lineage"):
        join(tmp_path / "out", [(path, PLAIN.inherited), (path, None)])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("first", [-1, 2**63 - 30])
def test_ids_that_no_table_can_have(tmp_path: Path, first: int) -> None:
    with fails("malformed_lineage"):
        join(tmp_path / "out", [(write(tmp_path / "a", PLAIN), RowLineage(first, 1))])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_lineage_that_cannot_be_decoded(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a", MERGED, write_page_checksum=True)
    chunk = chunks(footer_of(path))[-1]
    footer = footer_of(path)
    if damage == "cut":
        footer = with_last_chunk(footer, {}, {7: (I64, chunk.pages.length - 1)})
    else:
        raw = bytearray(path.read_bytes())
        raw[chunk.pages.end - 4 : chunk.pages.end] = b"\xff" * 4
        path.write_bytes(raw)
    with fails("malformed_lineage"):
        join(tmp_path / "out", [(path, MERGED.inherited)], footers=[footer])
    assert not (tmp_path / "out").exists()


def test_memory_that_is_short_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 1024 failed")

    path = write(tmp_path / "a", MERGED)
    monkeypatch.setattr(pq, "read_table", fails)
    with pytest.raises(MemoryError):
        join(tmp_path / "out", [(path, MERGED.inherited)])
    assert not (tmp_path / "out").exists()


def test_a_task_looks_at_lineage_too(tmp_path: Path) -> None:
    paths = {write(tmp_path / name, file): file for name, file in (("a", PLAIN), ("b", MERGED))}
    inputs = tuple(
        EncodeInput(
            str(path), path.stat().st_size, file.rows, file.inherited.data_sequence_number, file.inherited.first_row_id
        )
        for path, file in paths.items()
    )
    task = SpliceTask(InputFiles(inputs, "{}"), str(tmp_path / "out"), 0.0, ANY_SIZE, lineage=True)
    assert foreseen(TaskInput(task, None)) == (None, None)
    result = run_task(TaskInput(task, None))
    assert isinstance(result, TaskResult)
    assert isinstance(result.file, SplicedFile)
    assert result.file.lineage_bytes > 0
    assert lineage_of(tmp_path / "out") == PLAIN.expected + MERGED.expected
    found, _ = foreseen(TaskInput(replace(task, lineage=False), None))
    assert reason_of(found) == "schema_differs"
