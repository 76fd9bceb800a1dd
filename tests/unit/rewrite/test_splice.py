"""Outputs of splices: files with unusual layouts, damaged indexes and filters, and what is left after a failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.errors import RetryError
from compactor.rewrite.parquet.footer import Footer, RowGroup, footer_bytes
from compactor.rewrite.parquet.thrift import I16, I32, I64, STRUCT, Struct, decode_struct, encode_struct, structs
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.splice import SpliceInput, _Copier, splice
from compactor.storage.byte_store import ByteRange, OutputFile
from compactor.storage.local_store import LocalByteStore
from tests.unit.failing import fails
from tests.unit.rewrite.splice_files import (
    ANY_SIZE,
    ROWS,
    STORE,
    footer_of,
    join,
    noted_copies,
    table,
    with_chunk,
    with_key_values,
    with_metadata,
    write,
)

# --- splicing ---


def expect_rows(path: Path, *firsts: int) -> None:
    assert pq.read_table(path).equals(pa.concat_tables([table(first) for first in firsts]))


def test_files_without_rows_are_skipped(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.parquet", rows=0, store_schema=True)
    result = join(tmp_path, empty, write(tmp_path / "a.parquet"), empty, write(tmp_path / "b.parquet", 100))
    assert (result.rows, len(result.split_offsets)) == (2 * ROWS, 6)
    expect_rows(tmp_path / "out.parquet", 0, 100)
    assert footer_of(tmp_path / "out.parquet").key_values == []


def test_only_files_without_rows_make_one_without_rows(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.parquet", rows=0)
    result = join(tmp_path, empty, empty)
    assert (result.rows, result.split_offsets, result.column_sizes) == (0, (), {})
    assert pq.read_table(tmp_path / "out.parquet").equals(table(0, 0))


def test_row_groups_without_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "gaps.parquet"
    with pq.ParquetWriter(path, table(0).schema, store_schema=False) as writer:
        for first, rows in ((0, 0), (0, ROWS), (0, 0), (ROWS, 5)):
            writer.write_table(table(first, rows))
    assert [group.num_rows for group in footer_of(path).row_groups] == [0, ROWS, 0, 5]
    result = join(tmp_path, path, path)
    assert (result.rows, len(result.split_offsets)) == (2 * (ROWS + 5), 4)
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == [*range(ROWS + 5)] * 2


def test_first_key_values_stay_and_differing_pandas_goes(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.parquet"), write(tmp_path / "b.parquet", 100)]
    footers = [
        with_key_values(footer_of(path), **{"iceberg.schema": name, "pandas": name, "x": "y"})
        for path, name in zip(paths, "ab", strict=True)
    ]
    join(tmp_path, *paths, footers=footers)
    out = tmp_path / "out.parquet"
    assert footer_of(out).key_values == [(b"iceberg.schema", b"a"), (b"x", b"y")]
    out.unlink()
    join(tmp_path, *paths, footers=[footers[0], footers[0]])
    assert (b"pandas", b"a") in footer_of(out).key_values
    out.unlink()
    join(
        tmp_path,
        *paths,
        footers=[with_key_values(footer, pandas=name) for footer, name in zip(footers, "ab", strict=True)],
    )
    assert footer_of(out).key_values == []


def relaid(path: Path, order: list[int], gap: int, bloom_length: bool = True, file_offset: str = "zero") -> Path:
    """The same file with the layout of another writer: chunks in another order, with the bloom filter and a
    gap behind each, without offset for a missing dictionary, page indexes where they fall."""
    data, footer = path.read_bytes(), footer_of(path)
    out, groups = bytearray(b"PAR1"), []
    for group in footer.row_groups:
        chunks = list(group.chunks)
        trees: dict[int, Struct] = {}
        for column in order:
            chunk, start = chunks[column], len(out)
            pages = chunk.pages
            shift = start - pages.offset
            out += data[pages.offset : pages.end]
            changes = {field_id: (I64, offset + shift) for field_id, offset in chunk.page_offsets.items()}
            changes.setdefault(11, (I64, 0))
            changes[10] = (I64, start + 1)
            metadata = chunk.metadata.with_fields(changes)
            if chunk.bloom_offset:
                metadata = metadata.with_fields({14: (I64, len(out))})
                metadata = metadata if bloom_length else metadata.without(15)
                out += data[chunk.bloom_offset : chunk.bloom_offset + chunk.bloom_length]
            tree = chunk.tree.with_fields({2: (I64, {"zero": 0, "first": start, "after": len(out)}[file_offset])})
            locations, _ = decode_struct(data, chunk.offset_index.offset)
            moved = [place.with_fields({1: (I64, place.get(1) + shift)}) for place in locations.elements(1, STRUCT)]
            index = encode_struct(locations.with_fields({1: structs(moved)}))
            tree = tree.with_fields({4: (I64, len(out)), 5: (I32, len(index))})
            out += index
            trees[column] = tree.with_fields({6: (I64, len(out)), 3: (STRUCT, metadata)})
            out += data[chunk.column_index.offset : chunk.column_index.end] + b"\xee" * gap
        columns = [trees[column] for column in range(len(chunks))]
        groups.append(group.tree.with_fields({1: structs(columns), 5: (I64, 1), 7: (I16, 9)}))
    made = path.with_suffix(".relaid")
    made.write_bytes(bytes(out) + footer_bytes(footer.tree.with_fields({4: structs(groups)})))
    return made


def in_file_order(group: RowGroup) -> list[tuple[bytes, ...]]:
    return [chunk.path for chunk in sorted(group.chunks, key=lambda chunk: chunk.pages.offset)]


def check_structure(path: Path, originals: list[Path]) -> None:
    """Check that each offset leads to the same bytes as in the original files."""
    data, footer = path.read_bytes(), footer_of(path)
    sources = [(p.read_bytes(), chunk) for p in originals for g in footer_of(p).row_groups for chunk in g.chunks]
    groups = [group for original in originals for group in footer_of(original).row_groups]
    for number, (given, group) in enumerate(zip(groups, footer.row_groups, strict=True)):
        assert in_file_order(group) == in_file_order(given)
        assert group.ordinal == number
        assert group.tree.get(5) == min(chunk.pages.offset for chunk in group.chunks)
    moved = [chunk for group in footer.row_groups for chunk in group.chunks]
    for (source, before), after in zip(sources, moved, strict=True):
        shift = after.pages.offset - before.pages.offset
        assert data[after.pages.offset : after.pages.end] == source[before.pages.offset : before.pages.end]
        assert after.page_offsets == {field_id: offset + shift for field_id, offset in before.page_offsets.items()}
        assert (
            data[after.column_index.offset : after.column_index.end]
            == (source[before.column_index.offset : before.column_index.end])
        )
        old, _ = decode_struct(source, before.offset_index.offset)
        new, end = decode_struct(data, after.offset_index.offset)
        assert end == after.offset_index.end
        places = [(p.get(1) + shift, p.get(2), p.get(3)) for p in old.elements(1, STRUCT)]
        assert [(p.get(1), p.get(2), p.get(3)) for p in new.elements(1, STRUCT)] == places
        assert bool(after.bloom_offset) == bool(before.bloom_offset)
        if after.bloom_offset:
            assert (
                data[after.bloom_offset :][: after.bloom_length] == source[before.bloom_offset :][: after.bloom_length]
            )
            header, start = decode_struct(data, after.bloom_offset)
            assert start + header.require(1, I32) == after.bloom_offset + after.bloom_length


@pytest.mark.parametrize("gap", [0, 37])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("bloom_length", [True, False])
@pytest.mark.parametrize("file_offset", ["zero", "first", "after"])
def test_unusual_layouts(tmp_path: Path, order: list[int], gap: int, bloom_length: bool, file_offset: str) -> None:
    paths = [relaid(write(tmp_path / f"{n}.parquet", 100 * n), order, gap, bloom_length, file_offset) for n in range(3)]
    result = join(tmp_path, *paths)
    out = tmp_path / "out.parquet"
    expect_rows(out, 0, 100, 200)
    check_structure(out, paths)
    footer = footer_of(out)
    assert list(result.split_offsets) == [min(c.pages.offset for c in g.chunks) for g in footer.row_groups]
    for group in footer.row_groups:
        for chunk in group.chunks:
            assert chunk.metadata.get(10) == chunk.pages.offset + 1
            assert chunk.tree.get(2) == (chunk.pages.offset if file_offset == "first" else 0)


def test_pages_are_copied_in_one_go_where_they_touch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = noted_copies(monkeypatch)
    paths = [write(tmp_path / f"{n}.parquet", 100 * n, bloom_filter_options=None) for n in range(2)]
    join(tmp_path, *paths)
    assert [location for location, _, _ in copies] == [str(path) for path in paths]
    assert all(offset == 4 for _, offset, _ in copies)


def test_touching_ranges_of_different_files_are_not_mistaken_for_one(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 20)
    file = STORE.create(str(tmp_path / "out"))
    copier = _Copier(file)
    places = [copier.append(str(tmp_path / name), ByteRange(at, 5)) for name, at in [("a", 0), ("a", 5), ("b", 10)]]
    copier.flush()
    file.finish()
    assert places == [0, 5, 10]
    assert (tmp_path / "out").read_bytes() == b"a" * 10 + b"b" * 5


# --- damaged indexes and filters are dropped, never left dangling ---


def spliced_chunk(tmp_path: Path, edit: Callable[[Path], Footer]) -> Any:
    """The second column's chunk in the last row group, after a splice in which one file's chunk was damaged."""
    paths = [write(tmp_path / "a.parquet"), write(tmp_path / "b.parquet", 100)]
    join(tmp_path, *paths, footers=[footer_of(paths[0]), edit(paths[1])])
    out = tmp_path / "out.parquet"
    expect_rows(out, 0, 100)
    chunks = [chunk for group in footer_of(out).row_groups for chunk in group.chunks]
    assert all(chunk.column_index and chunk.offset_index for chunk in chunks[:-3])
    return chunks[-3:]


def overwrite(path: Path, place: ByteRange, data: bytes) -> Footer:
    raw = bytearray(path.read_bytes())
    raw[place.offset : place.offset + len(data)] = data
    path.write_bytes(raw)
    return footer_of(path)


def last_chunk(path: Path, column: int = 1) -> Any:
    return footer_of(path).row_groups[-1].chunks[column]


def chunk_with(path: Path, changes: Callable[[Struct], dict[int, Any]]) -> Footer:
    return with_chunk(footer_of(path), lambda chunk: chunk.with_fields(changes(chunk)))


INDEX_DAMAGE: dict[str, Callable[[Path], Footer]] = {
    "offset index is noise": lambda path: overwrite(path, last_chunk(path).offset_index, b"\xff\xff\xff"),
    "column index is noise": lambda path: overwrite(path, last_chunk(path).column_index, b"\xff\xff\xff"),
    "offset index is another's": lambda path: chunk_with(
        path, lambda _: {n: last_chunk(path, 2).tree.fields[n] for n in (4, 5)}
    ),
    "offset index is cut": lambda path: chunk_with(path, lambda chunk: {5: (I32, chunk.get(5) - 1)}),
    "column index is cut": lambda path: chunk_with(path, lambda chunk: {7: (I32, chunk.get(7) - 1)}),
    "offset index beyond the file": lambda path: chunk_with(path, lambda _: {4: (I64, 10**12)}),
    "column index of absurd length": lambda path: chunk_with(path, lambda _: {7: (I32, 2**31 - 1)}),
    "no offset index": lambda path: with_chunk(footer_of(path), lambda chunk: chunk.without(4, 5)),
    "offset index without a length": lambda path: with_chunk(footer_of(path), lambda chunk: chunk.without(5)),
    "column index of another page count": lambda path: chunk_with(
        path, lambda _: {n: footer_of(path).row_groups[0].chunks[1].tree.fields[n] for n in (6, 7)}
    ),
}


@pytest.mark.parametrize("edit", INDEX_DAMAGE.values(), ids=INDEX_DAMAGE.keys())
def test_both_indexes_go_when_one_is_damaged(tmp_path: Path, edit: Callable[[Path], Footer]) -> None:
    before, damaged, after = spliced_chunk(tmp_path, edit)
    assert not {4, 5, 6, 7} & damaged.tree.fields.keys()
    assert before.offset_index
    assert before.column_index
    assert after.offset_index
    assert after.column_index


def test_an_offset_index_may_stand_alone(tmp_path: Path) -> None:
    _, chunk, _ = spliced_chunk(tmp_path, lambda path: with_chunk(footer_of(path), lambda chunk: chunk.without(6, 7)))
    assert chunk.offset_index
    assert chunk.column_index is None


BLOOM_DAMAGE: dict[str, dict[int, tuple[int, Any]]] = {
    "beyond the file": {14: (I64, 10**12)},
    "of absurd length": {15: (I32, 2**31 - 1)},
    "without length, on noise": {14: (I64, 4), 15: (I32, 0)},
    "at a negative offset": {14: (I64, -4)},
}


@pytest.mark.parametrize("changes", BLOOM_DAMAGE.values(), ids=BLOOM_DAMAGE.keys())
def test_damaged_bloom_filters_go(tmp_path: Path, changes: dict[int, tuple[int, Any]]) -> None:
    def edit(path: Path) -> Footer:
        overwrite(path, ByteRange(4, 0), b"")
        return with_metadata(footer_of(path), changes, column=0)

    damaged, _, other = spliced_chunk(tmp_path, edit)
    assert not {14, 15} & damaged.metadata.fields.keys()
    assert other.bloom_offset
    assert damaged.offset_index


# --- failures ---


@pytest.mark.parametrize("failing", ["write", "copy_range", "finish"])
@pytest.mark.parametrize("error", [RetryError("full", reason="no_space"), KeyboardInterrupt()])
def test_nothing_is_left_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    real = LocalByteStore.create

    def create(store: LocalByteStore, location: str) -> OutputFile:
        file = real(store, location)

        def fail(*_arguments: object) -> None:
            raise error

        setattr(file, failing, fail)
        return file

    monkeypatch.setattr(LocalByteStore, "create", create)
    path = write(tmp_path / "a.parquet")
    with pytest.raises(type(error)):
        join(tmp_path, path, path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.parquet"]


def test_an_input_cut_short_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    footer = footer_of(path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:100])
    with fails("input_truncated"):
        splice(STORE, [SpliceInput(str(path), size)], str(tmp_path / "out.parquet"), ANY_SIZE, [footer])
    assert not (tmp_path / "out.parquet").exists()


def test_refused_files_are_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    with fails("row_groups_too_small"):
        join(tmp_path, path, limits=SpliceLimits())
    assert not (tmp_path / "out.parquet").exists()


def test_an_existing_output_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    (tmp_path / "out.parquet").write_bytes(b"precious")
    with fails("output_exists"):
        join(tmp_path, path)
    assert (tmp_path / "out.parquet").read_bytes() == b"precious"
