"""First row ids of data files: which entries of a manifest take one, and where the manifest's own comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from compactor.iceberg.manifest_entries import Content, FileEntry, file_entry, read_entries
from compactor.iceberg.manifest_lists import first_row_id, read_manifest_list
from compactor.iceberg.tables import Catalogs
from compactor.manifests.decoder import RawManifest, decode_manifests
from compactor.partitions import PartitionLayout
from compactor.table_names import TableName
from tests.unit.manifests.manifest_files import positions, record

ADDED, EXISTING, DELETED = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
Given = tuple[ManifestEntryStatus, int, int | None]
"""Status, record count, and the id that the entry itself holds."""


@pytest.fixture
def io() -> FileIO:
    return load_file_io({})


def write_manifest(io: FileIO, path: Path, given: list[Given], content: DataFileContent, version: int = 3) -> None:
    schema = MANIFEST_ENTRY_SCHEMAS[version]
    files = schema.find_field("data_file").field_type
    entries = []
    for number, (status, records, own) in enumerate(given):
        values = {
            "content": content,
            "file_path": f"f{number}",
            "file_format": FileFormat.PARQUET,
            "partition": Record(),
            "record_count": records,
            "file_size_in_bytes": 10,
        }
        if own is not None:
            values["first_row_id"] = own
        file = record(DataFile, files, **values)
        entries.append(record(ManifestEntry, schema, status=status, snapshot_id=1, sequence_number=4, data_file=file))
    with AvroOutputFile[ManifestEntry](io.new_output(str(path)), schema, "manifest_entry", schema) as writer:
        writer.write_block(entries)


def write_list(io: FileIO, path: Path, *manifests: tuple[Path, ManifestContent, int | None], version: int = 3) -> None:
    schema = MANIFEST_LIST_FILE_SCHEMAS[version]
    numbers = {name: 0 for name in positions(schema) if name.endswith("count")}
    rows = [
        record(
            ManifestFile,
            schema,
            manifest_path=str(manifest),
            manifest_length=1,
            partition_spec_id=0,
            content=content,
            sequence_number=4,
            min_sequence_number=4,
            added_snapshot_id=1,
            **numbers,
            **({"first_row_id": first} if version > 2 else {}),
        )
        for manifest, content, first in manifests
    ]
    with AvroOutputFile[ManifestFile](io.new_output(str(path)), schema, "manifest_file", schema) as writer:
        writer.write_block(rows)


def entries_of(io: FileIO, folder: Path, given: list[Given], first: int | None, **more: Any) -> list[FileEntry]:
    content = more.pop("content", DataFileContent.DATA)
    kind = ManifestContent.DATA if content == DataFileContent.DATA else ManifestContent.DELETES
    write_manifest(io, folder / "m.avro", given, content)
    write_list(io, folder / "list.avro", (folder / "m.avro", kind, first), **more)
    (manifest,) = read_manifest_list(io, str(folder / "list.avro"))
    layout = PartitionLayout(0, (), (), ())
    found = [file_entry(entry, manifest.manifest_path, layout) for entry in read_entries(io, manifest)]
    (columns,) = decode_manifests([RawManifest(manifest, (folder / "m.avro").read_bytes())], {0: layout})
    assert list(columns) == found
    return found


MIXED: list[Given] = [
    (EXISTING, 50, 7),
    (ADDED, 10, None),
    (DELETED, 1000, None),
    (EXISTING, 20, None),
    (DELETED, 2000, 9),
    (ADDED, 30, 4000),
    (ADDED, 5, None),
]


def test_entries_without_an_id_count_up_from_the_manifests(io: FileIO, tmp_path: Path) -> None:
    found = entries_of(io, tmp_path, MIXED, 100)
    assert [entry.first_row_id for entry in found] == [7, 100, None, 110, 9, 4000, 130]


def test_a_manifest_that_starts_at_zero_gives_ids(io: FileIO, tmp_path: Path) -> None:
    assert [entry.first_row_id for entry in entries_of(io, tmp_path, MIXED[1:2], 0)] == [0]


def test_files_of_a_manifest_without_an_id_have_none(io: FileIO, tmp_path: Path) -> None:
    assert {entry.first_row_id for entry in entries_of(io, tmp_path, MIXED, None)} == {None}


def test_files_of_a_snapshot_from_before_the_upgrade_have_none(io: FileIO, tmp_path: Path) -> None:
    assert {entry.first_row_id for entry in entries_of(io, tmp_path, MIXED, None, version=2)} == {None}


def test_delete_files_take_no_ids(io: FileIO, tmp_path: Path) -> None:
    given: list[Given] = [(ADDED, 10, None), (ADDED, 10, 3)]
    found = entries_of(io, tmp_path, given, 100, content=DataFileContent.POSITION_DELETES)
    assert [(entry.content, entry.first_row_id) for entry in found] == [(Content.POSITION_DELETES, None)] * 2


@pytest.mark.parametrize(("key", "encrypted"), [(b"key", True), (b"", True), (None, False)])
def test_a_file_with_key_metadata_is_encrypted(key: bytes | None, encrypted: bool) -> None:
    """Iceberg tells nothing else of encryption: such a file may look like plain Parquet from outside."""
    schema = MANIFEST_ENTRY_SCHEMAS[3]
    values = {"content": DataFileContent.DATA, "file_path": "f", "file_format": FileFormat.PARQUET}
    values |= {"partition": Record(), "record_count": 1, "file_size_in_bytes": 1, "key_metadata": key}
    file = record(DataFile, schema.find_field("data_file").field_type, **values)
    entry = record(ManifestEntry, schema, status=ADDED, snapshot_id=1, sequence_number=4, data_file=file)
    assert file_entry(entry, "m", PartitionLayout(0, (), (), ())).encrypted is encrypted


def test_lists_tell_the_ids_of_their_own_snapshot(io: FileIO, tmp_path: Path) -> None:
    """The same manifest has other ids in another branch, or none before the upgrade: no path may stand for an id."""
    path = tmp_path / "m.avro"
    for number, first in enumerate([None, 5, 900]):
        write_list(io, tmp_path / f"{number}", (path, ManifestContent.DATA, first))
        (manifest,) = read_manifest_list(io, str(tmp_path / str(number)))
        assert (manifest.manifest_path, first_row_id(manifest)) == (str(path), first)


@pytest.mark.parametrize("version", ["1", "2"])
def test_lists_of_older_formats_are_what_pyiceberg_reads(tmp_path: Path, version: str) -> None:
    name = TableName("lake", ("db",), f"v{version}")
    catalogs = Catalogs(
        {"lake": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}}
    )
    catalogs.catalog("lake").create_namespace("db")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    schema = Schema(NestedField(1, "id", "long"))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    table = catalogs.catalog("lake").create_table(
        name.identifier, schema, partition_spec=spec, properties={"format-version": version}
    )
    for _ in range(2):
        table.append(rows)
    view = catalogs.load(name)
    assert view.metadata.format_version == int(version)
    assert view.snapshot is not None
    expected = list(view.snapshot.manifests(view.io))
    found = view.manifests()
    fields = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[2].fields if field.name != "partitions"]
    assert len(found) == 2
    for mine, other in zip(found, expected, strict=True):
        assert {field: getattr(mine, field) for field in fields} == {field: getattr(other, field) for field in fields}
        assert mine.content is other.content
        assert [summary.lower_bound for summary in mine.partitions or ()] == [
            summary.lower_bound for summary in other.partitions or ()
        ]
        assert first_row_id(mine) is None
