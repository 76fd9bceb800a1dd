"""The cheapest rewrite: whole row groups of several Parquet files put behind each other, byte for byte.

Nothing is decoded. The footer of the first file is kept, its row groups are replaced by all row groups with their
offsets moved. Page indexes and bloom filters travel along: a ColumnIndex and a bloom filter hold no offsets and are
copied, an OffsetIndex does and is re-based. Sources: apache/parquet-format (parquet.thrift, PageIndex.md,
BloomFilter.md), apache/parquet-java for the order in the file and for the bugs of its old versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from compactor.errors import GiveUpError
from compactor.rewrite.byte_ranges import ByteRange, ByteStore, OutputFile, read_ranges
from compactor.rewrite.compact_thrift import (
    I16,
    I64,
    LIST,
    STRUCT,
    Field,
    Struct,
    ThriftError,
    ThriftList,
    decode_struct,
    encode_struct,
)
from compactor.rewrite.parquet_footer import (
    MAGIC,
    ChunkField,
    ColumnChunk,
    FileField,
    Footer,
    GroupField,
    RowGroup,
    bloom_filter_range,
    column_index_pages,
    moved_offset_index,
    read_footer,
)
from compactor.rewrite.refusal import Refusal

_MAX_ORDINAL: Final = 2**15 - 1  # RowGroup.ordinal is an i16
_MAX_INDEX_BYTES: Final = 16 * 1024 * 1024  # a larger "index" is a damaged length; the file is fine without it
_KEY: Final = 1  # KeyValue.key
_PANDAS: Final = b"pandas"
# Files with equal schema elements mean the same rows whatever these say; any other key may change how values are read.
_MAY_DIFFER: Final = frozenset({b"iceberg.schema", _PANDAS})
_PARQUET_JAVA: Final = re.compile(rb"parquet-mr\b(?: version (\d+)\.(\d+)\.(\d+))?")
# Before 1.8.1 delta strings depend on the row group before theirs (PARQUET-246), before 1.2.9 sizes lack the
# dictionary's header (PARQUET-816).
_FIRST_SOUND_PARQUET_JAVA: Final = (1, 8, 1)


@dataclass(frozen=True, slots=True)
class SpliceLimits:
    """What makes a splice worth its result.

    Attributes:
        min_row_group_bytes: Average compressed bytes per row group. Below, readers pay more for seeks than for bytes.
        min_chunk_bytes: Average compressed bytes per column chunk. A chunk costs about 300 bytes of metadata and one
            range request: 32 KiB keeps that at 1 %.
        full_row_group_bytes: Row groups of this average size are as large as re-encoding would make them: their
            chunks are small because the table is wide, so `min_chunk_bytes` does not apply.
        max_footer_fraction: Footer bytes per data byte; readers fetch and parse the whole footer first.
        max_footer_bytes: Footer bytes at most.
        max_row_groups: Row groups at most; RowGroup.ordinal is an i16.
        require_field_ids: Refuse files whose columns carry no field ids (they need the table's name mapping).
    """

    min_row_group_bytes: int = 4 * 1024 * 1024
    min_chunk_bytes: int = 32 * 1024
    full_row_group_bytes: int = 64 * 1024 * 1024
    max_footer_fraction: float = 0.01
    max_footer_bytes: int = 8 * 1024 * 1024
    max_row_groups: int = _MAX_ORDINAL
    require_field_ids: bool = True


@dataclass(frozen=True, slots=True)
class SpliceInput:
    """A file to splice: its location and its size in bytes."""

    location: str
    size: int


@dataclass(frozen=True, slots=True)
class SplicedFile:
    """What was written.

    Attributes:
        rows: Rows in the file.
        size: Bytes of the file.
        split_offsets: Where each row group starts, ascending.
        column_sizes: Compressed bytes per field id, over all row groups.
        row_groups: Number of row groups.
    """

    rows: int
    size: int
    split_offsets: tuple[int, ...]
    column_sizes: dict[int, int]
    row_groups: int


# --- whether files can be spliced: pure ---


def refusal(footers: Sequence[Footer], limits: SpliceLimits) -> Refusal | None:
    """Why the files with these footers cannot or should not be spliced; None when nothing speaks against it.

    Files without rows contribute nothing and are looked at only for their row count.
    """
    if not footers:
        return Refusal("no_inputs", "There is nothing to splice.")
    try:
        found = _wrong_row_count(footers)
        contributing = [footer for footer in footers if footer.filled_row_groups] or footers[:1]
        checks = iter(_CHECKS)
        while found is None and (check := next(checks, None)):
            found = check(contributing, limits)
    except ThriftError as error:
        return Refusal(error.reason, str(error))
    return found


def _wrong_row_count(footers: Sequence[Footer]) -> Refusal | None:
    for footer in footers:
        counts = [group.num_rows for group in footer.row_groups]
        if sum(counts) != footer.num_rows or min(counts, default=0) < 0:
            sentence = f"A file claims {footer.num_rows} rows, its row groups hold {sum(counts)}."
            return Refusal("row_count_mismatch", sentence)
    return None


def _encrypted(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    if any(footer.is_encrypted for footer in footers):
        return Refusal("encrypted", "Columns or footers are encrypted or signed.")
    if any(footer.trailing_bytes for footer in footers):
        return Refusal(ThriftError.reason, "A footer is followed by bytes that no specification names.")
    return None


def _external_columns(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    if any(ChunkField.FILE_PATH in chunk.tree.fields for chunk in _chunks(footers)):
        return Refusal("external_column_files", "Columns lie in other files.")
    return None


def _schema(footers: Sequence[Footer], limits: SpliceLimits) -> Refusal | None:
    if any(footer.schema != footers[0].schema for footer in footers):
        return Refusal("schema_differs", "The files' Parquet schemas are not identical.")
    without_id = [leaf for leaf in footers[0].leaves if leaf.field_id is None]
    if limits.require_field_ids and without_id:
        name = b".".join(without_id[0].path).decode(errors="replace")
        return Refusal("no_field_ids", f"Column {name} has no field id, only the table's name mapping can tell it.")
    return None


def _writer(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    first = footers[0].created_by
    if any(footer.created_by != first for footer in footers):
        return Refusal("created_by_differs", "Different programs wrote the files; readers judge statistics by that.")
    found = _PARQUET_JAVA.match(first)
    if found and (found[1] is None or tuple(map(int, found.groups())) < _FIRST_SOUND_PARQUET_JAVA):
        return Refusal("unsupported_writer", f"{first.decode(errors='replace')} wrote files that must stay apart.")
    return None


def _metadata(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    if any(
        _field(footer, FileField.COLUMN_ORDERS) != _field(footers[0], FileField.COLUMN_ORDERS) for footer in footers
    ):
        return Refusal("column_orders_differ", "The files order the values of a column differently.")
    first = _semantic_metadata(footers[0])
    if any(_semantic_metadata(footer) != first for footer in footers):
        return Refusal("metadata_differs", "The files' key-value metadata differ where it may change how values read.")
    return None


def _field(footer: Footer, field_id: int) -> Field | None:
    return footer.tree.fields.get(field_id)


def _semantic_metadata(footer: Footer) -> tuple[Counter[tuple[bytes, bytes | None]], Struct]:
    """What must agree: key-values that readers may interpret, and every other field that describes the whole file."""
    pairs = Counter(pair for pair in footer.key_values if pair[0] not in _MAY_DIFFER)
    judged_elsewhere = (FileField.SCHEMA, FileField.NUM_ROWS, FileField.ROW_GROUPS, FileField.KEY_VALUES)
    return pairs, footer.tree.without(*judged_elsewhere)


def _layout(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    for footer in footers:
        paths = [leaf.path for leaf in footer.leaves]
        ranges = []
        for group in footer.filled_row_groups:
            chunks = group.chunks
            if not paths or [chunk.path for chunk in chunks] != paths:
                return Refusal(
                    "malformed_row_group", "A row group's columns are not those of the schema, in its order."
                )
            ranges += [chunk.pages for chunk in chunks]
            if not all(chunk.lies_within(footer.data_end) for chunk in chunks):
                return Refusal("bad_offsets", "A column chunk's offsets point outside of it or of the file.")
        ranges.sort(key=lambda pages: pages.offset)
        if any(before.end > after.offset for before, after in pairwise(ranges)):
            return Refusal("bad_offsets", "Two column chunks claim the same bytes.")
    return None


def _sizes(footers: Sequence[Footer], limits: SpliceLimits) -> Refusal | None:
    groups = sum(len(footer.filled_row_groups) for footer in footers)
    if groups > limits.max_row_groups:
        return Refusal("too_many_row_groups", f"{groups} row groups; {limits.max_row_groups} is the most for one file.")
    if not groups:
        return None
    data_bytes = sum(chunk.compressed_size for chunk in _chunks(footers))
    chunk_bytes = data_bytes // (groups * len(footers[0].leaves))
    footer_bytes = _estimated_footer(footers)
    if data_bytes < groups * limits.min_row_group_bytes:
        return Refusal("row_groups_too_small", f"Row groups average {data_bytes // groups} bytes: encode them anew.")
    if chunk_bytes < limits.min_chunk_bytes and data_bytes < groups * limits.full_row_group_bytes:
        return Refusal("chunks_too_small", f"Column chunks average {chunk_bytes} bytes: encode them anew.")
    if footer_bytes > min(limits.max_footer_bytes, limits.max_footer_fraction * data_bytes):
        return Refusal("footer_too_large", f"The footer would take {footer_bytes} bytes for {data_bytes} of data.")
    return None


def _estimated_footer(footers: Sequence[Footer]) -> int:
    """All footers, less what every one after the first repeats."""
    heads = [len(encode_struct(footer.tree.without(FileField.ROW_GROUPS))) for footer in footers]
    return heads[0] + sum(footer.length - head for footer, head in zip(footers, heads, strict=True))


def _chunks(footers: Sequence[Footer]) -> Iterator[ColumnChunk]:
    return (chunk for footer in footers for group in footer.filled_row_groups for chunk in group.chunks)


_Check = Callable[[Sequence[Footer], SpliceLimits], Refusal | None]
_CHECKS: Final[tuple[_Check, ...]] = (_encrypted, _external_columns, _schema, _writer, _metadata, _layout, _sizes)


# --- splicing ---


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    location: str
    footer: Footer


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column chunk, where its pages lie in its source, and the offset they have now."""

    source: _Source
    chunk: ColumnChunk
    pages: ByteRange
    offset: int

    @property
    def shift(self) -> int:
        return self.offset - self.pages.offset


@dataclass(frozen=True, slots=True)
class _Indexes:
    """What is kept of a chunk's page indexes: never a ColumnIndex alone (PageIndex.md)."""

    column_index: bytes | None
    offset_index: bytes | None


_NO_INDEXES: Final = _Indexes(None, None)


class _Copier:
    """Copies ranges to the end of a file, adjacent ones in one go."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file
        self._location = ""
        self._pending = ByteRange(0, 0)

    def append(self, location: str, wanted: ByteRange) -> int:
        """Have the range copied, at the latest by `flush`; return the offset it will have."""
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
    """Write the row groups of all inputs, in order, into one new file at `output`.

    Memory: the footers, the page indexes and one copy buffer. When anything fails, nothing is left at `output`.

    Args:
        store: Where inputs and output are.
        inputs: Files to splice; those without rows are skipped.
        output: Location of the new file; nothing may be there yet.
        limits: What is refused although it could be done.
        footers: The inputs' footers if they were read already, in the same order.

    Raises:
        GiveUpError: the reason of `refusal`, `row_count_mismatch`, or what the store raises.
        RetryError: the store does not answer or is full.
    """
    if footers is None:
        footers = [read_footer(store, source.location, source.size) for source in inputs]
    found = refusal(footers, limits)
    if found:
        raise GiveUpError(f"{output} is not spliced: {found.sentence}", reason=found.reason)
    sources = [_Source(source.location, footer) for source, footer in zip(inputs, footers, strict=True)]
    # The head is the first contributor's: a file without rows was never compared with the others.
    sources = [source for source in sources if source.footer.filled_row_groups] or sources[:1]
    file = store.create(output)
    try:
        return _write(store, file, sources)
    except BaseException as error:
        try:
            file.abort()
        except Exception as second:  # noqa: BLE001 - the first failure is the one to act upon
            error.add_note(f"{output} could not be removed: {second}")
        raise


def _write(store: ByteStore, file: OutputFile, sources: Sequence[_Source]) -> SplicedFile:
    file.write(MAGIC)
    groups = [(source, group) for source in sources for group in source.footer.filled_row_groups]
    chunks = _copy_pages(file, groups)
    blooms = _copy_blooms(store, file, chunks)
    indexes = _read_indexes(store, chunks)
    column_indexes = _append_all(file, [found.column_index for found in indexes])
    offset_indexes = _append_all(file, [found.offset_index for found in indexes])
    parts = zip(chunks, blooms, column_indexes, offset_indexes, strict=True)
    moved = iter([placed.chunk.moved(placed.shift, *found) for placed, *found in parts])
    width = len(sources[0].footer.leaves)
    starts = [min(chunk.offset for chunk in chunks[first : first + width]) for first in range(0, len(chunks), width)]
    trees = [
        _moved_group(group, [next(moved) for _ in range(width)], start, ordinal)
        for ordinal, ((_, group), start) in enumerate(zip(groups, starts, strict=True))
    ]
    written = _write_footer(file, [source.footer for source in sources], trees)
    return SplicedFile(
        rows=written.num_rows,
        size=file.finish(),
        split_offsets=tuple(starts),
        column_sizes=written.column_sizes,
        row_groups=len(trees),
    )


def _copy_pages(file: OutputFile, groups: Sequence[tuple[_Source, RowGroup]]) -> list[_Chunk]:
    """Copy every chunk's pages in the order in which they lie; return the chunks in the schema's order.

    Gaps between chunks (padding, bloom filters, stale metadata) are left behind.
    """
    copier = _Copier(file)
    placed: list[_Chunk] = []
    for source, group in groups:
        chunks = group.chunks
        pages = [chunk.pages for chunk in chunks]
        offsets: dict[int, int] = {}
        for column in sorted(range(len(chunks)), key=lambda column: pages[column].offset):
            offsets[column] = copier.append(source.location, pages[column])
        placed += [_Chunk(source, chunk, pages[column], offsets[column]) for column, chunk in enumerate(chunks)]
    copier.flush()
    return placed


def _copy_blooms(store: ByteStore, file: OutputFile, chunks: Sequence[_Chunk]) -> list[ByteRange | None]:
    """Copy every chunk's bloom filter; return where each lies now. A filter that cannot be found is left behind."""
    copier = _Copier(file)
    moved: list[ByteRange | None] = []
    for chunk in chunks:
        found = bloom_filter_range(store, chunk.source.location, chunk.chunk, chunk.source.footer.data_end)
        moved.append(ByteRange(copier.append(chunk.source.location, found), found.length) if found else None)
    copier.flush()
    return moved


def _read_indexes(store: ByteStore, chunks: Sequence[_Chunk]) -> list[_Indexes]:
    """The page indexes of every chunk, ready to be written."""
    found: list[_Indexes] = []
    for source, own in groupby(chunks, key=lambda chunk: chunk.source):
        placed = list(own)
        wanted = {part for chunk in placed for part in (chunk.chunk.column_index, chunk.chunk.offset_index) if part}
        sound = [part for part in wanted if part.end <= source.footer.data_end and part.length <= _MAX_INDEX_BYTES]
        data = read_ranges(store, source.location, sound)
        found += [_moved_indexes(chunk, data) for chunk in placed]
    return found


def _moved_indexes(chunk: _Chunk, data: dict[ByteRange, bytes]) -> _Indexes:
    """Both indexes, the offsets re-based. A damaged index is dropped with its twin: a reader would trust it."""
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
    return _Indexes(column_index, offset_index)


def _append_all(file: OutputFile, parts: Sequence[bytes | None]) -> list[ByteRange | None]:
    """Write the parts behind each other; return where each lies."""
    position = file.position
    placed: list[ByteRange | None] = []
    for part in parts:
        placed.append(ByteRange(position, len(part)) if part is not None else None)
        position += len(part or b"")
    file.write(b"".join(part for part in parts if part))
    return placed


def _moved_group(group: RowGroup, chunks: Sequence[Struct], start: int, ordinal: int) -> Struct:
    changes: dict[int, Field] = {GroupField.COLUMNS: (LIST, ThriftList(STRUCT, chunks))}
    if GroupField.FILE_OFFSET in group.tree.fields:
        changes[GroupField.FILE_OFFSET] = (I64, start)
    if group.ordinal is not None:
        changes[GroupField.ORDINAL] = (I16, ordinal)
    return group.tree.with_fields(changes)


def _write_footer(file: OutputFile, footers: Sequence[Footer], groups: Sequence[Struct]) -> Footer:
    """Write the footer, and return it as a reader will see it, checked.

    Raises:
        GiveUpError: reason `row_count_mismatch`, or a chunk does not lie where the footer says.
    """
    rows = sum(footer.num_rows for footer in footers)
    changes: dict[int, Field] = {
        FileField.NUM_ROWS: (I64, rows),
        FileField.ROW_GROUPS: (LIST, ThriftList(STRUCT, groups)),
    }
    data = encode_struct(_head(footers).with_fields(changes))
    data_end = file.position
    file.write(data + len(data).to_bytes(4, "little") + MAGIC)
    written = Footer(decode_struct(data)[0], len(data), file.position)
    found = _wrong_row_count([written]) or _layout([written], SpliceLimits())
    if found is None and written.data_end != data_end:
        found = Refusal("bad_offsets", f"The footer lies at {data_end}, not at {written.data_end}.")
    if found:
        raise GiveUpError(f"The spliced file would be wrong: {found.sentence}", reason=found.reason)
    return written


def _head(footers: Sequence[Footer]) -> Struct:
    """The first file's FileMetaData, without what describes that file alone."""
    described = [[value for key, value in footer.key_values if key == _PANDAS] for footer in footers]
    if all(values == described[0] for values in described):
        return footers[0].tree
    pairs = footers[0].tree.elements(FileField.KEY_VALUES, STRUCT)
    kept = [pair for pair in pairs if pair.get(_KEY) != _PANDAS]
    if not kept:
        return footers[0].tree.without(FileField.KEY_VALUES)
    return footers[0].tree.with_fields({FileField.KEY_VALUES: (LIST, ThriftList(STRUCT, kept))})
