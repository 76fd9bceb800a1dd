"""Parquet footers: read once through a `ByteStore`, kept as a Thrift tree, accessed through thin views.

Field numbers are those of apache/parquet-format, src/main/thrift/parquet.thrift. Views hold no copy. Fields that the
views do not know stay in the tree and are written back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.rewrite.parquet.thrift import (
    BINARY,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Field,
    Struct,
    ThriftError,
    ThriftList,
    decode_struct,
    encode_struct,
    structs,
)
from compactor.storage.byte_store import ByteRange, ByteStore

MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"
TAIL_BYTES: Final = 8  # four bytes of footer length, four of magic
TAIL_GUESS_BYTES: Final = 64 * 1024
MAX_FOOTER_BYTES: Final = 32 * 1024 * 1024


class FileField:
    """Field ids of FileMetaData."""

    VERSION: Final = 1
    SCHEMA: Final = 2
    NUM_ROWS: Final = 3
    ROW_GROUPS: Final = 4
    KEY_VALUES: Final = 5
    CREATED_BY: Final = 6
    COLUMN_ORDERS: Final = 7
    ENCRYPTION_ALGORITHM: Final = 8
    FOOTER_SIGNING_KEY: Final = 9


class SchemaField:
    """Field ids of SchemaElement."""

    TYPE: Final = 1
    REPETITION: Final = 3
    NAME: Final = 4
    NUM_CHILDREN: Final = 5
    CONVERTED_TYPE: Final = 6
    FIELD_ID: Final = 9
    LOGICAL_TYPE: Final = 10


class GroupField:
    """Field ids of RowGroup."""

    COLUMNS: Final = 1
    TOTAL_BYTE_SIZE: Final = 2
    NUM_ROWS: Final = 3
    SORTING_COLUMNS: Final = 4
    FILE_OFFSET: Final = 5
    TOTAL_COMPRESSED_SIZE: Final = 6
    ORDINAL: Final = 7


class ChunkField:
    """Field ids of ColumnChunk."""

    FILE_PATH: Final = 1
    FILE_OFFSET: Final = 2
    META_DATA: Final = 3
    OFFSET_INDEX_OFFSET: Final = 4
    OFFSET_INDEX_LENGTH: Final = 5
    COLUMN_INDEX_OFFSET: Final = 6
    COLUMN_INDEX_LENGTH: Final = 7
    CRYPTO_METADATA: Final = 8
    ENCRYPTED_METADATA: Final = 9


class ColumnField:
    """Field ids of ColumnMetaData."""

    PATH_IN_SCHEMA: Final = 3
    NUM_VALUES: Final = 5
    UNCOMPRESSED_SIZE: Final = 6
    COMPRESSED_SIZE: Final = 7
    DATA_PAGE_OFFSET: Final = 9
    INDEX_PAGE_OFFSET: Final = 10
    DICTIONARY_PAGE_OFFSET: Final = 11
    STATISTICS: Final = 12
    ENCODING_STATS: Final = 13
    BLOOM_OFFSET: Final = 14
    BLOOM_LENGTH: Final = 15


PAGE_OFFSETS: Final = (ColumnField.DATA_PAGE_OFFSET, ColumnField.INDEX_PAGE_OFFSET, ColumnField.DICTIONARY_PAGE_OFFSET)
MAX_SCHEMA_DEPTH: Final = 200
_INDEX_FIELDS: Final = (
    ChunkField.OFFSET_INDEX_OFFSET,
    ChunkField.OFFSET_INDEX_LENGTH,
    ChunkField.COLUMN_INDEX_OFFSET,
    ChunkField.COLUMN_INDEX_LENGTH,
)
_PAGE_LOCATIONS: Final = 1  # OffsetIndex.page_locations
_PAGE_OFFSET: Final = 1  # PageLocation.offset
_PAGE_LENGTH: Final = 2  # PageLocation.compressed_page_size
_NULL_PAGES: Final = 1  # ColumnIndex.null_pages
_NULL_COUNT: Final = 3  # Statistics.null_count
BLOOM_BYTES: Final = 1  # BloomFilterHeader.numBytes: the bitset, without the header
BLOOM_UNIONS: Final = (2, 3, 4)  # its algorithm, hash and compression
_BLOOM_HEADER_GUESS: Final = 64  # a BloomFilterHeader takes about 16 bytes
_VARIANT: Final = 16  # LogicalType.VARIANT


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of the schema: its path below the root, and the field id to which its bytes are counted.

    Columns inside a VARIANT group have no ids (Iceberg spec, Appendix A); they count to the group's id.
    """

    path: tuple[bytes, ...]
    field_id: int | None


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group. Offsets are from the start of the file, 0 or absent means "none"."""

    tree: Struct

    @property
    def metadata(self) -> Struct:
        """Its ColumnMetaData; ThriftError if the writer left it out."""
        found: Struct = self.tree.require(ChunkField.META_DATA, STRUCT)
        return found

    @property
    def is_encrypted(self) -> bool:
        """Whether the chunk or its metadata is encrypted."""
        return ChunkField.CRYPTO_METADATA in self.tree.fields or ChunkField.ENCRYPTED_METADATA in self.tree.fields

    @property
    def path(self) -> tuple[bytes, ...]:
        """path_in_schema: UTF-8 names from below the root."""
        return tuple(self.metadata.elements(ColumnField.PATH_IN_SCHEMA, BINARY))

    @property
    def compressed_size(self) -> int:
        """Bytes of all its pages, including their headers."""
        size: int = self.metadata.require(ColumnField.COMPRESSED_SIZE, I64)
        return size

    @property
    def pages(self) -> ByteRange:
        """The range of its pages. A dictionary page comes first; some writers store offset 0 for "none"."""
        self.metadata.require(ColumnField.DATA_PAGE_OFFSET, I64)
        return ByteRange(min(self.page_offsets.values(), default=0), self.compressed_size)

    @property
    def page_offsets(self) -> dict[int, int]:
        """The page offsets in its metadata, by field id: data, index and dictionary page, if present."""
        metadata = self.metadata
        offsets = {field_id: metadata.get(field_id, I64) or 0 for field_id in PAGE_OFFSETS}
        return {field_id: offset for field_id, offset in offsets.items() if offset > 0}

    @property
    def null_count(self) -> int | None:
        """Number of null values; None if the writer did not store it."""
        statistics: Struct | None = self.metadata.get(ColumnField.STATISTICS, STRUCT)
        count: int | None = statistics.get(_NULL_COUNT, I64) if statistics else None
        return count

    @property
    def column_index(self) -> ByteRange | None:
        """The range of its ColumnIndex."""
        return _range(self.tree, ChunkField.COLUMN_INDEX_OFFSET, ChunkField.COLUMN_INDEX_LENGTH)

    @property
    def offset_index(self) -> ByteRange | None:
        """The range of its OffsetIndex."""
        return _range(self.tree, ChunkField.OFFSET_INDEX_OFFSET, ChunkField.OFFSET_INDEX_LENGTH)

    @property
    def bloom_offset(self) -> int:
        """Offset of its bloom filter; 0 for none."""
        return self.metadata.get(ColumnField.BLOOM_OFFSET, I64) or 0

    @property
    def bloom_length(self) -> int:
        """Bytes of bloom-filter header and bitset; 0 in files from before format 2.10, which do not store it."""
        return self.metadata.get(ColumnField.BLOOM_LENGTH, I32) or 0

    def moved(
        self, shift: int, bloom: ByteRange | None, column_index: ByteRange | None, offset_index: ByteRange | None
    ) -> Struct:
        """Its tree after its pages moved by `shift` bytes, and its filter and indexes to the given ranges."""
        metadata = self.metadata.without(ColumnField.BLOOM_OFFSET, ColumnField.BLOOM_LENGTH).with_fields(
            {field_id: (I64, offset + shift) for field_id, offset in self.page_offsets.items()}
            | _range_fields(bloom, ColumnField.BLOOM_OFFSET, ColumnField.BLOOM_LENGTH)
        )
        changes: dict[int, Field] = {ChunkField.META_DATA: (STRUCT, metadata)}
        file_offset = self.tree.get(ChunkField.FILE_OFFSET, I64)
        if file_offset:
            # Deprecated: some writers point to the first page, some to a copy of the metadata, which is not copied.
            inside = self.pages.offset <= file_offset < self.pages.end
            changes[ChunkField.FILE_OFFSET] = (I64, file_offset + shift if inside else 0)
        changes |= _range_fields(offset_index, ChunkField.OFFSET_INDEX_OFFSET, ChunkField.OFFSET_INDEX_LENGTH)
        changes |= _range_fields(column_index, ChunkField.COLUMN_INDEX_OFFSET, ChunkField.COLUMN_INDEX_LENGTH)
        return self.tree.without(*_INDEX_FIELDS).with_fields(changes)

    def lies_within(self, data_end: int) -> bool:
        """Whether its pages are between the file's magic and `data_end`, and all its page offsets within its pages."""
        pages = self.pages
        inside = len(MAGIC) <= pages.offset < pages.end <= data_end
        return inside and all(offset < pages.end for offset in self.page_offsets.values())


def _range_fields(found: ByteRange | None, offset_field: int, length_field: int) -> dict[int, Field]:
    return {offset_field: (I64, found.offset), length_field: (I32, found.length)} if found else {}


def _range(tree: Struct, offset_field: int, length_field: int) -> ByteRange | None:
    offset, length = tree.get(offset_field, I64), tree.get(length_field, I32)
    return ByteRange(offset, length) if offset and length and offset > 0 and length > 0 else None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group."""

    tree: Struct

    @property
    def chunks(self) -> list[ColumnChunk]:
        """One chunk for each leaf of the schema, in schema order."""
        return [ColumnChunk(chunk) for chunk in self.tree.elements(GroupField.COLUMNS, STRUCT)]

    @property
    def num_rows(self) -> int:
        """Rows in the row group."""
        rows: int = self.tree.require(GroupField.NUM_ROWS, I64)
        return rows

    @property
    def ordinal(self) -> int | None:
        """Its position among the file's row groups; None if the writer did not store it."""
        ordinal: int | None = self.tree.get(GroupField.ORDINAL, I16)
        return ordinal


@dataclass(frozen=True)
class Footer:
    """A file's FileMetaData.

    Attributes:
        tree: FileMetaData as a Thrift tree.
        length: Bytes of the footer, without the 8 bytes after it.
        file_size: Bytes of the whole file.
        trailing_bytes: Bytes within `length` after the end of FileMetaData (a signature, in a signed footer).
    """

    tree: Struct
    length: int
    file_size: int
    trailing_bytes: int = 0

    @cached_property
    def schema(self) -> tuple[Struct, ...]:
        """The SchemaElements, depth first, root included."""
        return tuple(self.tree.elements(FileField.SCHEMA, STRUCT))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The schema's columns in order; ThriftError if the child counts do not form a tree."""
        elements = iter(self.schema[1:])
        if not self.schema:
            raise ThriftError("The Parquet schema has no root.")
        found = tuple(_leaves(self.schema[0], elements, (), None))
        if next(elements, None) is not None:
            raise ThriftError("The Parquet schema has elements outside its tree.")
        return found

    @property
    def num_rows(self) -> int:
        """Rows in the file, from its footer."""
        rows: int = self.tree.require(FileField.NUM_ROWS, I64)
        return rows

    @cached_property
    def row_groups(self) -> tuple[RowGroup, ...]:
        """All row groups, including empty ones."""
        return tuple(RowGroup(group) for group in self.tree.elements(FileField.ROW_GROUPS, STRUCT))

    @property
    def filled_row_groups(self) -> tuple[RowGroup, ...]:
        """Row groups with rows."""
        return tuple(group for group in self.row_groups if group.num_rows)

    @property
    def column_sizes(self) -> dict[int, int]:
        """Compressed bytes per field id, over all row groups; columns without an id are left out."""
        sizes: dict[int, int] = {}
        for group in self.row_groups:
            for leaf, chunk in zip(self.leaves, group.chunks, strict=True):
                if leaf.field_id is not None:
                    sizes[leaf.field_id] = sizes.get(leaf.field_id, 0) + chunk.compressed_size
        return sizes

    @property
    def key_values(self) -> list[tuple[bytes, bytes | None]]:
        """The file's key-value metadata, in order; a key may appear more than once."""
        pairs = self.tree.elements(FileField.KEY_VALUES, STRUCT)
        return [(pair.require(1, BINARY), pair.get(2, BINARY)) for pair in pairs]

    @property
    def created_by(self) -> bytes:
        """The program that wrote the file; readers decide by it whether to trust statistics."""
        return self.tree.get(FileField.CREATED_BY, BINARY) or b""

    @property
    def is_encrypted(self) -> bool:
        """Whether any part of the file is encrypted, even if the footer is plain text."""
        if {FileField.ENCRYPTION_ALGORITHM, FileField.FOOTER_SIGNING_KEY} & self.tree.fields.keys():
            return True
        return any(chunk.is_encrypted for group in self.row_groups for chunk in group.chunks)

    @property
    def data_end(self) -> int:
        """Offset of the footer: pages, indexes and filters are before it."""
        return self.file_size - TAIL_BYTES - self.length


def _leaves(
    parent: Struct, elements: Iterator[Struct], path: tuple[bytes, ...], variant_id: int | None
) -> Iterator[Leaf]:
    if len(path) > MAX_SCHEMA_DEPTH:
        raise ThriftError(f"The Parquet schema nests deeper than {MAX_SCHEMA_DEPTH} levels.")
    for _ in range(parent.get(SchemaField.NUM_CHILDREN, I32) or 0):
        element = next(elements, None)
        if element is None:
            raise ThriftError("The Parquet schema has fewer elements than its groups have children.")
        field_id = element.get(SchemaField.FIELD_ID, I32)
        own_id = field_id if field_id is not None else variant_id
        own_path = (*path, element.require(SchemaField.NAME, BINARY))
        if SchemaField.TYPE in element.fields:
            yield Leaf(own_path, own_id)
        else:
            yield from _leaves(element, elements, own_path, own_id if _is_variant(element) else variant_id)


def _is_variant(element: Struct) -> bool:
    logical_type: Struct | None = element.get(SchemaField.LOGICAL_TYPE, STRUCT)
    return logical_type is not None and _VARIANT in logical_type.fields


def read_footer(store: ByteStore, location: str, size: int) -> Footer:
    """Read the footer of a file of `size` bytes: one read, a second one if the footer is larger than 64 KiB.

    Raises:
        GiveUpError: reason `encrypted` (encrypted footer), `footer_too_large` (above 32 MiB), `unreadable_footer` (not
            Parquet, damaged, or not of this size), or an error of the store.
    """
    tail_length = min(size, TAIL_GUESS_BYTES)
    tail = store.read(location, size - tail_length, tail_length)
    length = _footer_length(tail, location, size)
    if length + TAIL_BYTES > tail_length:
        tail = store.read(location, size - TAIL_BYTES - length, length + TAIL_BYTES)
    try:
        footer = _decoded(tail[-TAIL_BYTES - length : -TAIL_BYTES], size)
        _ = footer.num_rows, footer.row_groups, footer.leaves
    except ThriftError as error:
        raise ThriftError(f"The footer of {location} cannot be read: {error}") from error
    return footer


def footer_in(end: bytes) -> Footer:
    """The footer of a file whose last bytes, or all, are in memory; ThriftError if it is not Parquet."""
    length = _footer_length(end[-TAIL_BYTES:], "a file in memory", len(end))
    return _decoded(end[-TAIL_BYTES - length : -TAIL_BYTES], len(end))


def footer_bytes(tree: Struct) -> bytes:
    """The end of a file: FileMetaData, its length, and the magic number."""
    data = encode_struct(tree)
    return data + len(data).to_bytes(4, "little") + MAGIC


def _decoded(data: bytes, file_size: int) -> Footer:
    tree, end = decode_struct(data)
    return Footer(tree=tree, length=len(data), file_size=file_size, trailing_bytes=len(data) - end)


def _footer_length(tail: bytes, location: str, size: int) -> int:
    magic = tail[-len(MAGIC) :]
    if magic == ENCRYPTED_MAGIC:
        raise GiveUpError(f"{location} has an encrypted footer.", reason=Reason.ENCRYPTED)
    if magic != MAGIC or size < len(MAGIC) + TAIL_BYTES:
        raise ThriftError(f"{location} is not a Parquet file of {size} bytes: it does not end in {MAGIC.decode()}.")
    length = int.from_bytes(tail[-TAIL_BYTES : -len(MAGIC)], "little")
    if length > size - TAIL_BYTES - len(MAGIC):
        raise ThriftError(f"{location} claims a footer of {length} bytes, but the file has {size} bytes.")
    if length > MAX_FOOTER_BYTES:
        raise GiveUpError(f"{location} has a footer of {length} bytes.", reason=Reason.FOOTER_TOO_LARGE)
    return length


# --- page indexes and bloom filters ---


def moved_offset_index(data: bytes, pages: ByteRange, shift: int) -> tuple[bytes, int]:
    """An OffsetIndex for pages that moved by `shift` bytes, and the number of pages it lists.

    Raises:
        ThriftError: not an OffsetIndex, or an offset is outside `pages`, the old range of its chunk's pages.
    """
    tree = _whole_struct(data)
    moved = []
    for location in tree.elements(_PAGE_LOCATIONS, STRUCT):
        offset, length = location.require(_PAGE_OFFSET, I64), location.require(_PAGE_LENGTH, I32)
        if not pages.offset <= offset < offset + length <= pages.end:
            raise ThriftError("An OffsetIndex points outside its column chunk.")
        moved.append(location.with_fields({_PAGE_OFFSET: (I64, offset + shift)}))
    return encode_struct(tree.with_fields({_PAGE_LOCATIONS: structs(moved)})), len(moved)


def column_index_pages(data: bytes) -> int:
    """Number of pages that a ColumnIndex describes; ThriftError if it is not a ColumnIndex."""
    null_pages: ThriftList = _whole_struct(data).require(_NULL_PAGES, LIST)
    return len(null_pages.values)


def _whole_struct(data: bytes) -> Struct:
    tree, end = decode_struct(data)
    if end != len(data):
        raise ThriftError("Bytes follow a page index.")
    return tree


def bloom_filter_range(store: ByteStore, location: str, offset: int, length: int, data_end: int) -> ByteRange | None:
    """The range of a bloom filter, header and bitset; None if there is none, or it cannot be read.

    Reads from the store only if the footer does not contain the length.

    Args:
        store: Of the file.
        location: Of the file.
        offset: By the footer; 0: none.
        length: By the footer; 0: not there.
        data_end: End of the bytes before the footer.
    """
    if not len(MAGIC) <= offset < data_end:
        return None
    if length <= 0:
        head = store.read(location, offset, min(_BLOOM_HEADER_GUESS, data_end - offset))
        try:
            header, header_length = decode_struct(head)
            _ = [header.require(field_id, STRUCT) for field_id in BLOOM_UNIONS]  # random bytes rarely have all of them
            length = header_length + header.require(BLOOM_BYTES, I32)
        except ThriftError:
            return None
    return ByteRange(offset, length) if 0 < length <= data_end - offset else None
