"""Manifest entries as objects, and the reference decoder (PyIceberg), which decodes every field of every entry."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.types import DoubleType, IcebergType, StructType

from compactor.errors import retried
from compactor.iceberg.avro_reference import CompleteAvroFile
from compactor.iceberg.manifest_lists import RESTORE, first_row_id
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.reasons import Reason

DELETE_FILE_PATH_FIELD = 2147483546  # reserved field id of a position delete's file_path (spec, reserved field ids)
DELETION_VECTORS = "puffin"  # the file format of deletion vectors in manifests
PARTITION = 102  # field id of data_file.partition
READ_VERSION: Final = 3  # reads V1 and V2 manifests too: the fields they lack come back as None


class Content(Enum):
    """What a content file holds (spec: data_file.content)."""

    DATA = "data"
    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"


CONTENT: Final = tuple(Content)  # by the code of the content


class Status(Enum):
    """The status of a manifest entry (spec: manifest_entry.status)."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class FileEntry(NamedTuple):
    """The columns of one manifest entry that counting and planning need; statistics are read for planned files only.

    A named tuple: a plan makes ten thousands of entries, and a frozen dataclass takes five times as long to make.

    Attributes:
        partition: The raw partition values as PyIceberg decodes them; `key` is their canonical form.
        applies_to: The one data file that a position delete or deletion vector names, else None.
        first_row_id: The `_row_id` of a data file's first row, inherited if necessary (spec: first row id inheritance).
            None for rows without ids: before V3, and in files of snapshots from before an upgrade to V3.
        blob: (offset, length) in bytes of a deletion vector in its Puffin file, which holds many vectors; else None.
    """

    manifest_path: str
    status: Status
    snapshot_id: int | None
    data_sequence_number: int
    content: Content
    path: str
    file_format: str
    key: PartitionKey
    partition: tuple[Any, ...]
    records: int
    size: int
    sort_order_id: int | None
    encrypted: bool
    equality_ids: tuple[int, ...]
    applies_to: str | None
    first_row_id: int | None = None
    blob: tuple[int, int] | None = None

    @property
    def identity(self) -> tuple[str, tuple[int, int] | None]:
        """A unique key of the file in the table: deletion vectors of one Puffin file share its path."""
        return self.path, self.blob

    @property
    def is_live(self) -> bool:
        """Whether the file is live in this manifest."""
        return self.status is not Status.DELETED

    @property
    def is_deletion_vector(self) -> bool:
        """Whether this is a bitmap of deleted positions (V3), not a file of deleted rows."""
        return self.file_format == DELETION_VECTORS


class _ExactDoubleReader(DoubleReader):
    """Reads all 64 bits: PyIceberg's compiled decoder rounds doubles to 32 (`cpdef float read_double`).

    Rounding would join different partitions.
    """

    def read(self, decoder: BinaryDecoder) -> float:
        value: float = STRUCT_DOUBLE.unpack(decoder.read(8))[0]
        return value


class _ExactDoubles(ReadSchemaResolver):
    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:  # noqa: ARG002 - overrides
        return _ExactDoubleReader()  # type: ignore[no-untyped-call]


class _ManifestReader(CompleteAvroFile[ManifestEntry]):
    """`layout`: of the partition tuples that are read; None: as the manifest has them."""

    def __init__(self, input_file: InputFile, layout: PartitionLayout | None, *, careful: bool) -> None:
        super().__init__(
            input_file,
            MANIFEST_ENTRY_SCHEMAS[READ_VERSION],
            read_types={-1: ManifestEntry, 2: DataFile},
            read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
            careful=careful,
        )
        self._layout = layout

    def _reader(self) -> Reader:
        resolver = _ExactDoubles(self.read_types, self.read_enums)
        wanted = self.read_schema if self._layout is None else self._in_order(self._layout)
        reader: Reader = visit_with_partner(self.schema, wanted, resolver, SchemaPartnerAccessor())  # type: ignore[misc]
        return reader

    def _in_order(self, layout: PartitionLayout) -> Schema:
        """The schema to read with: the manifest's own partition fields, in the order of the spec.

        Raises:
            ValueError: the manifest lacks one.
        """
        found = {field.field_id: field for field in self.schema.find_type(PARTITION).fields}  # type: ignore[attr-defined]
        missing = [name for field_id, name in zip(layout.field_ids, layout.names, strict=True) if field_id not in found]
        if missing:
            raise ValueError(f"its entries have no partition field {missing[0]}, by field id")
        partition = StructType(*(found[field_id] for field_id in layout.field_ids))
        return manifest_entry_schema_with_data_file(READ_VERSION, data_file_with_partition(partition, READ_VERSION))


def read_entries(
    io: FileIO, manifest: ManifestFile, layout: PartitionLayout | None = None, *, careful: bool = False
) -> list[ManifestEntry]:
    """All entries of one manifest with statistics, and with inherited sequence numbers, snapshot and row ids (spec).

    `layout`: the order of the partition values, which are matched by field id; None: as the manifest has them.
    `careful`: for a manifest that may be damaged; ten times slower (`avro_reference.CarefulDecoder`).

    Raises:
        RetryError: the file cannot be read or decoded.
    """
    with (
        retried(f"manifest {manifest.manifest_path} cannot be read", Reason.MANIFEST_UNREADABLE, RESTORE),
        _ManifestReader(io.new_input(manifest.manifest_path), layout, careful=careful) as reader,
    ):
        entries = [_inherit(entry, manifest) for entry in reader]
        _inherit_row_ids(entries, first_row_id(manifest))
        return entries


def _inherit(entry: ManifestEntry, manifest: ManifestFile) -> ManifestEntry:
    if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
        entry.snapshot_id = manifest.added_snapshot_id
    if entry.sequence_number is None and (not manifest.sequence_number or entry.status == ManifestEntryStatus.ADDED):
        entry.sequence_number = manifest.sequence_number or 0
    entry.data_file.spec_id = manifest.partition_spec_id
    return entry


def _inherit_row_ids(entries: Iterable[ManifestEntry], first: int | None) -> None:
    """Assign first row ids to data files, as Iceberg Java's ManifestReader does.

    A manifest without a first row id is older than the table's upgrade to V3: its files get none, even if an entry has
    one. Deleted entries keep their value and use up no ids.
    """
    for entry in entries:
        values = entry.data_file._data  # noqa: SLF001 - PyIceberg exposes no accessor for V3 fields yet
        if first is None:
            values[FIRST_ROW_ID] = None
        elif entry.status != ManifestEntryStatus.DELETED and values[FIRST_ROW_ID] is None:
            values[FIRST_ROW_ID] = first
            first += entry.data_file.record_count


def file_entry(entry: ManifestEntry, manifest_path: str, layout: PartitionLayout) -> FileEntry:
    """The planning columns of one manifest entry that was read with this layout."""
    file = entry.data_file
    values = tuple(file.partition[position] for position in range(len(layout.names)))
    content = CONTENT[int(file.content or 0)]
    return FileEntry(
        manifest_path=manifest_path,
        status=Status(int(entry.status)),
        snapshot_id=entry.snapshot_id,
        data_sequence_number=entry.sequence_number or 0,
        content=content,
        path=file.file_path,
        file_format=str(getattr(file.file_format, "value", file.file_format)).lower(),
        key=layout.key(values),
        partition=values,
        records=file.record_count,
        size=file.file_size_in_bytes,
        sort_order_id=file.sort_order_id,
        encrypted=file.key_metadata is not None,
        equality_ids=tuple(file.equality_ids or ()),
        applies_to=_applies_to(file) if content is Content.POSITION_DELETES else None,
        first_row_id=file._data[FIRST_ROW_ID],  # noqa: SLF001 - see _inherit_row_ids
        blob=_blob(file) if content is Content.POSITION_DELETES else None,
    )


_FIELDS = MANIFEST_ENTRY_SCHEMAS[READ_VERSION].find_field("data_file").field_type.fields  # type: ignore[attr-defined]
_NAMES = [field.name for field in _FIELDS]  # in the order of PyIceberg's records
REFERENCED_DATA_FILE = _NAMES.index("referenced_data_file")
FIRST_ROW_ID = _NAMES.index("first_row_id")
BLOB_OFFSET = _NAMES.index("content_offset")
BLOB_LENGTH = _NAMES.index("content_size_in_bytes")


def _blob(file: DataFile) -> tuple[int, int] | None:
    offset, length = file._data[BLOB_OFFSET], file._data[BLOB_LENGTH]  # noqa: SLF001 - see _inherit_row_ids
    return None if offset is None or length is None else (int(offset), int(length))


def _applies_to(file: DataFile) -> str | None:
    """The one data file that a delete names: its reference, else equal bounds of its paths (spec: delete files)."""
    values = file._data  # noqa: SLF001 - PyIceberg exposes no accessor for V3 fields yet
    if len(values) > REFERENCED_DATA_FILE and values[REFERENCED_DATA_FILE]:
        return str(values[REFERENCED_DATA_FILE])
    lower = (file.lower_bounds or {}).get(DELETE_FILE_PATH_FIELD)
    upper = (file.upper_bounds or {}).get(DELETE_FILE_PATH_FIELD)
    return lower.decode("utf-8") if lower is not None and lower == upper else None
