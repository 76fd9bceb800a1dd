"""The cheapest rewrite: copy whole row groups of several Parquet files into one file, byte for byte.

No page is decoded. The new footer is that of the first file, with the row groups of all files at their new offsets.
Page indexes and bloom filters are kept: a ColumnIndex and a bloom filter contain no offsets and are copied, the offsets
in an OffsetIndex are changed. Sources: apache/parquet-format (parquet.thrift, PageIndex.md,
BloomFilter.md), apache/parquet-java for the order in the file.

On tables with row lineage (Iceberg V3), two small column chunks are written for every row group, unless it has complete
ones to copy. They are stored together after all pages, so that the copied ranges stay long: the chunks of a row group
need not be adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from compactor.errors import GiveUpError
from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import (
    MAGIC,
    ColumnChunk,
    FileField,
    Footer,
    GroupField,
    RowGroup,
    bloom_filter_range,
    column_index_pages,
    footer_bytes,
    footer_in,
    moved_offset_index,
    read_footer,
)
from compactor.rewrite.parquet.thrift import I16, I64, STRUCT, Field, Struct, ThriftError, structs
from compactor.rewrite.splice.checks import PANDAS, SpliceLimits, layout_fault, refusal, wrong_row_count
from compactor.rewrite.splice.lineage_chunks import (
    GroupLineage,
    MissingLineage,
    RowLineage,
    group_lineages,
    made_chunks,
)
from compactor.rewrite.splice.lineage_schema import LINEAGE_ELEMENTS, group_sizes, with_lineage, without_lineage
from compactor.storage.byte_store import ByteRange, ByteStore, OutputFile, read_ranges

_MAX_INDEX_BYTES: Final = 16 * 1024 * 1024  # a larger "index" has a damaged length; the file is valid without it
_KEY: Final = 1  # KeyValue.key


@dataclass(frozen=True, slots=True)
class SpliceInput:
    """A file to splice: its location, its size in bytes, and on V3 tables the row lineage that its rows inherit."""

    location: str
    size: int
    lineage: RowLineage | None = None


@dataclass(frozen=True, slots=True)
class SplicedFile:
    """The new file.

    Attributes:
        rows: Rows in the file.
        size: Bytes of the file.
        split_offsets: Offset of each row group, ascending.
        column_sizes: Compressed bytes per field id, over all row groups.
        lineage_bytes: Bytes of the column chunks that were written, not copied, for row lineage.
    """

    rows: int
    size: int
    split_offsets: tuple[int, ...]
    column_sizes: dict[int, int]
    lineage_bytes: int = 0


_Indexes = tuple[bytes | None, bytes | None]
"""ColumnIndex and OffsetIndex of a chunk to write: never the first alone (PageIndex.md)."""
_NO_INDEXES: Final = (None, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """An input file with its unchanged footer."""

    location: str
    footer: Footer


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group to write: its source, its columns without lineage, and its lineage (empty: none is written)."""

    source: _Source
    group: RowGroup
    lineage: GroupLineage

    @property
    def copied_lineage(self) -> dict[int, ColumnChunk]:
        """Lineage chunks that are copied, by field id."""
        return {field_id: found for field_id, found in self.lineage.items() if isinstance(found, ColumnChunk)}


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """A column chunk, the range of its pages in its source, and their new offset.

    A new lineage chunk has no source; it has its own indexes.
    """

    source: _Source | None
    chunk: ColumnChunk
    pages: ByteRange
    offset: int
    indexes: _Indexes = _NO_INDEXES

    @property
    def shift(self) -> int:
        return self.offset - self.pages.offset


class _Copier:
    """Copies ranges to the end of a file, adjacent ranges at once."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self._location = ""
        self._pending = ByteRange(0, 0)

    def append(self, location: str, wanted: ByteRange) -> int:
        """Copy the range now or at the next `flush`; returns its new offset."""
        if location != self._location or wanted.offset != self._pending.end:
            self.flush()
            self._location, self._pending = location, ByteRange(wanted.offset, 0)
        offset = self._file.position + self._pending.length
        self._pending = ByteRange(self._pending.offset, self._pending.length + wanted.length)
        return offset

    def flush(self) -> None:
        if self._pending.length:
            self._file.copy_range(self._location, self._pending.offset, self._pending.length)
        self._pending = ByteRange(0, 0)


def splice(
    store: ByteStore,
    inputs: Sequence[SpliceInput],
    output: str,
    limits: SpliceLimits,
    footers: Sequence[Footer] | None = None,
) -> SplicedFile:
    """Write the row groups of all inputs, in order, into the new file `output`.

    Memory: the footers, the page indexes and one copy buffer. After a failure no file is left at `output`.

    Args:
        store: Store of inputs and output.
        inputs: Files to splice; those without rows are skipped.
        output: Location of the new file, which must not exist.
        limits: Refuse splices that exceed these limits.
        footers: The inputs' footers in the same order, if they were already read.

    Raises:
        GiveUpError: the reason of `refusal`, `row_count_mismatch`, or an error of the store.
        RetryError: the store does not answer, or is full.
    """
    if footers is None:
        footers = [read_footer(store, source.location, source.size) for source in inputs]
    lineage = carries_lineage(inputs)
    found = refusal(footers, limits, lineage=lineage)
    if found:
        raise GiveUpError(f"{output} is not spliced: {found.sentence}", reason=found.reason)
    files = list(zip(inputs, footers, strict=True))
    # Use the footer of the first file with rows: files without rows are not compared with the others.
    files = [(source, footer) for source, footer in files if footer.filled_row_groups] or files[:1]
    heads = [without_lineage(footer) for _, footer in files] if lineage else [footer for _, footer in files]
    groups = [group for found, head in zip(files, heads, strict=True) for group in _groups(*found, head)]
    file = store.create(output)
    try:
        return _write(store, file, groups, heads, lineage=lineage)
    except BaseException as error:
        try:
            file.abort()
        except Exception as second:  # noqa: BLE001 - report the first failure
            error.add_note(f"{output} could not be removed: {second}")
        raise


def carries_lineage(inputs: Sequence[SpliceInput]) -> bool:
    """Whether to write row lineage.

    Raises:
        GiveUpError: reason `malformed_lineage`: only some of the files have row lineage to inherit.
    """
    carrying = sum(source.lineage is not None for source in inputs)
    if carrying not in {0, len(inputs)}:
        raise GiveUpError(f"Only {carrying} of {len(inputs)} files have row lineage.", reason=Reason.MALFORMED_LINEAGE)
    return carrying > 0


def _groups(source: SpliceInput, footer: Footer, head: Footer) -> list[_Group]:
    """The file's row groups with rows; `head` is its footer, without lineage columns if lineage is written."""
    found = _Source(source.location, footer)
    lineages = group_lineages(footer, source.lineage) if source.lineage else [{} for _ in head.filled_row_groups]
    return [_Group(found, *parts) for parts in zip(head.filled_row_groups, lineages, strict=True)]


def _write(
    store: ByteStore, file: OutputFile, groups: Sequence[_Group], heads: Sequence[Footer], *, lineage: bool
) -> SplicedFile:
    file.write(MAGIC)
    data, copied = _copy_pages(file, groups)
    made = _make_lineage(store, file, groups)
    starts = [min(chunk.offset for chunk in chunks) for chunks in data]
    ids = LINEAGE_ELEMENTS if lineage else ()
    columns = [
        [*chunks, *((more | new)[field_id] for field_id in ids)]
        for chunks, more, new in zip(data, copied, made, strict=True)
    ]
    moved = iter(_describe(store, file, [chunk for chunks in columns for chunk in chunks]))
    trees = [
        _moved_group(group.group, [next(moved) for _ in chunks], start, ordinal, len(ids))
        for ordinal, (group, chunks, start) in enumerate(zip(groups, columns, starts, strict=True))
    ]
    head = _head(heads)
    written = _write_footer(
        file, with_lineage(head) if lineage else head, sum(footer.num_rows for footer in heads), trees
    )
    return SplicedFile(
        rows=written.num_rows,
        size=file.finish(),
        split_offsets=tuple(starts),
        column_sizes=written.column_sizes,
        lineage_bytes=sum(chunk.pages.length for new in made for chunk in new.values()),
    )


def _copy_pages(file: OutputFile, groups: Sequence[_Group]) -> tuple[list[list[_Chunk]], list[dict[int, _Chunk]]]:
    """Copy the pages of all chunks in file order; returns the chunks per row group, in schema order.

    Gaps between chunks (padding, bloom filters, stale metadata) are not copied. Copied lineage chunks are returned
    separately, by field id. Those that do not directly follow a chunk of their row group are copied after all others.
    """
    copier = _Copier(file)
    placed: list[dict[int, _Chunk]] = []
    lineage: list[dict[int, _Chunk]] = []
    for group in groups:
        chunks = group.group.chunks
        following = {chunk.pages.offset: field_id for field_id, chunk in group.copied_lineage.items()}
        placed.append({})
        lineage.append({})
        for column in sorted(range(len(chunks)), key=lambda column: chunks[column].pages.offset):
            placed[-1][column] = _copied(copier, group.source, chunks[column])
            end = placed[-1][column].pages.end
            while (field_id := following.get(end)) is not None:
                lineage[-1][field_id] = _copied(copier, group.source, group.copied_lineage[field_id])
                end = lineage[-1][field_id].pages.end
    for group, found in zip(groups, lineage, strict=True):
        for field_id, chunk in sorted(group.copied_lineage.items(), key=lambda item: item[1].pages.offset):
            if field_id not in found:
                found[field_id] = _copied(copier, group.source, chunk)
    copier.flush()
    return [[found for _, found in sorted(chunks.items())] for chunks in placed], lineage


def _copied(copier: _Copier, source: _Source, chunk: ColumnChunk) -> _Chunk:
    pages = chunk.pages
    return _Chunk(source=source, chunk=chunk, pages=pages, offset=copier.append(source.location, pages))


def _make_lineage(store: ByteStore, file: OutputFile, groups: Sequence[_Group]) -> list[dict[int, _Chunk]]:
    """Write the lineage columns that are not copied, one row group in memory at a time."""
    placed: list[dict[int, _Chunk]] = []
    for group in groups:
        location, footer = group.source.location, group.source.footer
        missing = [found for found in group.lineage.values() if isinstance(found, MissingLineage)]
        placed.append({})
        for field_id, made in made_chunks(store, location, footer, missing).items():
            offset, pages = file.position, made.chunk.pages
            file.write(made.data)
            offset_index, _ = moved_offset_index(made.offset_index, pages, offset - pages.offset)
            indexes = (made.column_index, offset_index)
            placed[-1][field_id] = _Chunk(source=None, chunk=made.chunk, pages=pages, offset=offset, indexes=indexes)
    return placed


def _describe(store: ByteStore, file: OutputFile, chunks: Sequence[_Chunk]) -> list[Struct]:
    """Write bloom filters and page indexes of chunks whose pages are written; returns their footer entries."""
    blooms = _copy_blooms(store, file, chunks)
    indexes = _read_indexes(store, chunks)
    column_indexes = _append_all(file, [column_index for column_index, _ in indexes])
    offset_indexes = _append_all(file, [offset_index for _, offset_index in indexes])
    parts = zip(chunks, blooms, column_indexes, offset_indexes, strict=True)
    return [placed.chunk.moved(placed.shift, *found) for placed, *found in parts]


def _copy_blooms(store: ByteStore, file: OutputFile, chunks: Sequence[_Chunk]) -> list[ByteRange | None]:
    """Copy the bloom filters of all chunks; returns their new ranges. A filter that cannot be found is dropped."""
    copier = _Copier(file)
    moved: list[ByteRange | None] = []
    for chunk in chunks:
        source = chunk.source
        old, found = chunk.chunk, None
        if source:
            end = source.footer.data_end
            found = bloom_filter_range(store, source.location, old.bloom_offset, old.bloom_length, end)
        moved.append(ByteRange(copier.append(source.location, found), found.length) if source and found else None)
    copier.flush()
    return moved


def _read_indexes(store: ByteStore, chunks: Sequence[_Chunk]) -> list[_Indexes]:
    """The page indexes of all chunks, as they will be written."""
    found: dict[_Chunk, _Indexes] = {}
    for source, own in groupby((chunk for chunk in chunks if chunk.source), key=lambda chunk: chunk.source):
        placed = list(own)
        if source is None:
            continue
        wanted = {part for chunk in placed for part in (chunk.chunk.column_index, chunk.chunk.offset_index) if part}
        sound = [part for part in wanted if part.end <= source.footer.data_end and part.length <= _MAX_INDEX_BYTES]
        data = read_ranges(store, source.location, sound)
        found |= {chunk: _moved_indexes(chunk, data) for chunk in placed}
    return [found.get(chunk, chunk.indexes) for chunk in chunks]


def _moved_indexes(chunk: _Chunk, data: dict[ByteRange, bytes]) -> _Indexes:
    """Both indexes with new offsets. If one is damaged, both are dropped: a reader would trust them."""
    column_range, offset_range = chunk.chunk.column_index, chunk.chunk.offset_index
    if offset_range is None:
        return _NO_INDEXES
    try:
        offset_index, pages = moved_offset_index(data[offset_range], chunk.pages, chunk.shift)
        column_index = data[column_range] if column_range else None
        if column_index is not None and column_index_pages(column_index) != pages:
            return _NO_INDEXES
    except (ThriftError, KeyError):
        return _NO_INDEXES
    return column_index, offset_index


def _append_all(file: OutputFile, parts: Sequence[bytes | None]) -> list[ByteRange | None]:
    """Write the parts one after another; returns their ranges."""
    position = file.position
    placed: list[ByteRange | None] = []
    for part in parts:
        placed.append(ByteRange(position, len(part)) if part is not None else None)
        position += len(part or b"")
    file.write(b"".join(part for part in parts if part))
    return placed


def _moved_group(group: RowGroup, chunks: Sequence[Struct], start: int, ordinal: int, added: int) -> Struct:
    """The row group's tree with these chunks; the last `added` chunks are new."""
    changes: dict[int, Field] = {GroupField.COLUMNS: structs(chunks)}
    if added:
        changes |= group_sizes(group.tree, [ColumnChunk(chunk) for chunk in chunks[-added:]], 1)
    if GroupField.FILE_OFFSET in group.tree.fields:
        changes[GroupField.FILE_OFFSET] = (I64, start)
    if group.ordinal is not None:
        changes[GroupField.ORDINAL] = (I16, ordinal)
    return group.tree.with_fields(changes)


def _write_footer(file: OutputFile, head: Struct, rows: int, groups: Sequence[Struct]) -> Footer:
    """Write the footer; returns it as readers decode it, after a check.

    Raises:
        GiveUpError: reason `row_count_mismatch`, or the offset of a chunk is wrong.
    """
    end = footer_bytes(head.with_fields({FileField.NUM_ROWS: (I64, rows), FileField.ROW_GROUPS: structs(groups)}))
    data_end = file.position
    file.write(end)
    written = replace(footer_in(MAGIC + end), file_size=file.position)
    found = wrong_row_count([written]) or layout_fault([written], SpliceLimits())
    if found is None and written.data_end != data_end:
        found = Refusal(Reason.BAD_OFFSETS, f"The footer is at offset {data_end}, not at {written.data_end}.")
    if found:
        raise GiveUpError(f"The spliced file would be wrong: {found.sentence}", reason=found.reason)
    return written


def _head(footers: Sequence[Footer]) -> Struct:
    """The first file's FileMetaData without the fields that describe only that file."""
    described = [[value for key, value in footer.key_values if key == PANDAS] for footer in footers]
    if all(values == described[0] for values in described):
        return footers[0].tree
    pairs = footers[0].tree.elements(FileField.KEY_VALUES, STRUCT)
    kept = [pair for pair in pairs if pair.get(_KEY) != PANDAS]
    if not kept:
        return footers[0].tree.without(FileField.KEY_VALUES)
    return footers[0].tree.with_fields({FileField.KEY_VALUES: structs(kept)})
