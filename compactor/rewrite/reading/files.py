"""Read data files for `encode`: each file is opened once and read on one core, in tables of bounded size.

A file of up to 16 MiB is fetched in one request, a larger one in ranges as its pages are needed. A stored Arrow schema
is ignored where it prevents reading.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import MappedField

from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.rewrite.parquet.footer import ENCRYPTED_MAGIC, MAGIC, FileField, Footer, footer_bytes, read_footer
from compactor.rewrite.parquet.thrift import STRUCT, structs
from compactor.rewrite.reading.projection import Projection, projection
from compactor.rewrite.reading.schema import RefusedError, WrittenSchema, refused
from compactor.rewrite.reading.source_columns import SourceColumn, check_identified, source_columns
from compactor.storage.byte_store import ByteStore

WHOLE_FILE_BYTES: Final = 16 * 1024 * 1024
TABLE_ROWS: Final = 64 * 1024
TABLE_BYTES: Final = 32 * 1024 * 1024
ARROW_SCHEMA_KEY: Final = b"ARROW:schema"
CHECKSUM_FAILED: Final = "CRC checksum verification failed"


@contextmanager
def named_errors(location: str, reason: Reason) -> Iterator[None]:
    """Translate Arrow's errors into errors of this project.

    Raises:
        GiveUpError: with `reason`: the bytes are not valid Parquet; `corrupt_page` if a page's checksum is wrong.
        RetryError: `out_of_memory`.
        RefusedError: `not_supported_by_arrow`.
    """
    try:
        yield
    except MemoryError as error:
        raise RetryError(f"Not enough memory while reading {location}: {error}", reason=Reason.OUT_OF_MEMORY) from error
    except NotImplementedError as error:
        raise refused(Reason.NOT_SUPPORTED_BY_ARROW, f"Arrow cannot read {location}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if CHECKSUM_FAILED in str(error):
            raise GiveUpError(f"{location} is damaged: {error}", reason=Reason.CORRUPT_PAGE) from error
        raise GiveUpError(f"{location} cannot be read: {error}", reason=reason) from error


class Ranges(io.RawIOBase):
    """A file of a `ByteStore` as a Python file; each read is one request."""

    def __init__(self, store: ByteStore, location: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._location = location
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        data = self._store.read(self._location, self._position, length) if length else b""
        self._position += length
        return data


def open_parquet(
    store: ByteStore,
    location: str,
    size: int,
    *,
    dictionaries: Sequence[str] = (),
    as_stored: bool = False,
    whole_bytes: int = WHOLE_FILE_BYTES,
) -> pq.ParquetFile:
    """Open a Parquet file of `size` bytes and read its footer.

    Args:
        store: The file's store.
        location: Its location.
        size: Its bytes, from the manifest.
        dictionaries: Top-level columns to read as Arrow dictionaries, if the file has them all.
        as_stored: Ignore the Arrow schema that the writer stored beside the Parquet schema.
        whole_bytes: Size up to which the file is fetched in one request.

    Raises:
        GiveUpError: `encrypted`, `unreadable_footer`, or an error of the store.
    """
    source = _source(store, location, size, whole_bytes)
    options = {
        "metadata": without_arrow_schema(read_footer(store, location, size)) if as_stored else None,
        "pre_buffer": False,
        "coerce_int96_timestamp_unit": "us",
        "page_checksum_verification": True,
    }
    with named_errors(location, Reason.UNREADABLE_FOOTER):
        try:
            return pq.ParquetFile(source, read_dictionary=list(dictionaries) or None, **options)
        except KeyError:  # the file lacks a column of `dictionaries`
            return pq.ParquetFile(source, **options)


def _source(store: ByteStore, location: str, size: int, whole_bytes: int) -> pa.NativeFile:
    if size > whole_bytes:
        return pa.PythonFile(Ranges(store, location, size), mode="r")
    data = store.read(location, 0, size)
    if data.endswith(ENCRYPTED_MAGIC):
        raise GiveUpError(f"{location} has an encrypted footer.", reason=Reason.ENCRYPTED)
    return pa.BufferReader(data)


def without_arrow_schema(footer: Footer) -> pq.FileMetaData:
    """A footer as Arrow reads it, without the Arrow schema that the writer stored beside the Parquet schema."""
    tree = footer.tree
    kept = [pair for pair in tree.elements(FileField.KEY_VALUES, STRUCT) if pair.get(1) != ARROW_SCHEMA_KEY]
    end = footer_bytes(tree.with_fields({FileField.KEY_VALUES: structs(kept)}))
    return pq.read_metadata(pa.BufferReader(MAGIC + end))


def data_bytes(file: pq.ParquetFile, size: int) -> int:
    """Bytes of a file without its footer: about the size of its rows in another file."""
    footer: int = file.metadata.serialized_size
    return max(0, size - footer)


def tables(
    file: pq.ParquetFile, location: str, columns: Sequence[str] | None, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """The file's rows in order, in tables of bounded size.

    Args:
        file: The open file.
        location: Its location, for errors.
        columns: The top-level columns to read; None for all.
        groups: Indexes of the row groups to read; None for all.

    Raises:
        GiveUpError: `unreadable_data`.
    """
    metadata = file.metadata
    stored = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    wanted = None if columns is None else list(columns)
    with named_errors(location, Reason.UNREADABLE_DATA):
        if groups is None and metadata.num_rows <= TABLE_ROWS and stored <= TABLE_BYTES:
            yield file.read(columns=wanted, use_threads=False)
            return
        rows = max(1, min(TABLE_ROWS, TABLE_BYTES * metadata.num_rows // max(1, stored)))
        for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=wanted, use_threads=False):
            yield pa.Table.from_batches([batch])


@dataclass(frozen=True)
class FilePlan:
    """What to read from files with one schema, and how to project it.

    Attributes:
        arrow: The files' schema as Arrow reads it, without file-level metadata.
        parquet: Their Parquet schema.
        sources: The columns to read.
        columns: Their names; None for all.
        projection: To the written columns.
    """

    arrow: pa.Schema
    parquet: pq.ParquetSchema
    sources: tuple[SourceColumn, ...]
    columns: tuple[str, ...] | None
    projection: Projection

    def fits(self, arrow: pa.Schema, parquet: pq.ParquetSchema) -> bool:
        """Whether the plan is for this schema: same names, types and field ids at every level."""
        return bool(self.arrow.equals(arrow, check_metadata=True)) and bool(self.parquet.equals(parquet))


class FileReader:
    """Opens data files and finds the plan for each; most files of a table have the same plan."""

    def __init__(
        self,
        store: ByteStore,
        written: WrittenSchema,
        constants: Mapping[int, object],
        mapping: Sequence[MappedField] | None,
        whole_bytes: int = WHOLE_FILE_BYTES,
    ) -> None:
        self._store = store
        self._whole_bytes = whole_bytes
        self._written = written
        self._constants = constants
        self._mapping = mapping
        self._plans: list[FilePlan] = []

    def open(self, location: str, size: int) -> tuple[pq.ParquetFile, FilePlan]:
        """Open a file; returns it with its plan.

        Raises:
            RefusedError: a column cannot be converted to the table's type.
            GiveUpError: as `open_parquet`.
        """
        file = open_parquet(self._store, location, size, whole_bytes=self._whole_bytes)
        try:
            return file, self._plan(file, location)
        except RefusedError:
            if ARROW_SCHEMA_KEY not in (file.metadata.metadata or {}):
                raise
        file = open_parquet(self._store, location, size, as_stored=True, whole_bytes=self._whole_bytes)
        return file, self._plan(file, location)

    def _plan(self, file: pq.ParquetFile, location: str) -> FilePlan:
        with named_errors(location, Reason.UNREADABLE_FOOTER):
            arrow, parquet = file.schema_arrow.remove_metadata(), file.schema
        for known in reversed(self._plans):
            if known.fits(arrow, parquet):
                return known
        sources = source_columns(arrow, parquet, self._mapping)
        check_identified(sources, self._mapping, self._written.iceberg.field_ids)
        kept, columns = _wanted(sources, {field.field_id for field in self._written.iceberg.fields})
        self._plans.append(FilePlan(arrow, parquet, kept, columns, projection(kept, self._written, self._constants)))
        return self._plans[-1]


def _wanted(
    sources: Sequence[SourceColumn], field_ids: set[int]
) -> tuple[tuple[SourceColumn, ...], tuple[str, ...] | None]:
    """The columns to read, and their names if Arrow can select them by name.

    Arrow reads dots in names as nesting. At least one column must be read, for the number of rows.
    """
    names = [source.name for source in sources]
    kept = tuple(source for source in sources if source.field_id in field_ids) or tuple(sources[:1])
    ambiguous = len(set(names)) < len(names) or any("." in name or not name for name in names)
    if ambiguous or len(kept) == len(sources):
        return tuple(sources), None
    return kept, tuple(source.name for source in kept)
