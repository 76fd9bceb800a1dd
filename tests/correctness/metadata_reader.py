"""Iceberg metadata read without firnline and without PyIceberg's readers: JSON and Avro, as the spec defines them.

Reads table metadata, manifest lists and manifests of format versions 1 to 3 from local files with fastavro, and applies
the spec's inheritance of snapshot ids, sequence numbers and first row ids ("Sequence Number Inheritance",
"First Row ID Inheritance").
"""

from __future__ import annotations

import gzip
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fastavro

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
FILE_PATH_FIELD = 2147483546
KINDS = {DATA: "data file", POSITION_DELETES: "position delete file", EQUALITY_DELETES: "equality delete file"}
PartitionKey = tuple[Any, ...]
NAN = ("NaN",)  # in a partition


@dataclass(frozen=True)
class Manifest:
    """One row of a manifest list. Counts are None where a version 1 writer left them out."""

    path: str
    size: int
    spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    snapshot_id: int
    first_row_id: int | None
    files: tuple[int | None, int | None, int | None]
    rows: tuple[int | None, int | None, int | None]
    partitions: tuple[Mapping[str, Any], ...] | None


@dataclass(frozen=True)
class Entry:
    """One manifest entry after inheritance. `sequence_number` is the data sequence number.

    `files` and `rows` of a manifest are indexed by status: existing, added, deleted.
    """

    manifest: str
    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    content: int
    spec_id: int
    partition: PartitionKey
    path: str
    file_format: str
    records: int
    size: int
    equality_ids: tuple[int, ...]
    sort_order_id: int | None
    referenced: str | None
    content_offset: int | None
    content_size: int | None
    first_row_id: int | None

    @property
    def is_vector(self) -> bool:
        """Whether this is a deletion vector."""
        return self.content == POSITION_DELETES and self.file_format == "puffin"

    @property
    def identity(self) -> tuple[str, int | None, str | None]:
        """What makes a listed file the same file: several vectors share one Puffin file."""
        return (self.path, self.content_offset, self.referenced) if self.is_vector else (self.path, None, None)

    @property
    def place(self) -> tuple[int, PartitionKey]:
        """Spec and partition."""
        return self.spec_id, self.partition

    @property
    def label(self) -> str:
        """For sentences."""
        name = self.path.rsplit("/", 1)[-1]
        if self.is_vector:
            return f"deletion vector {name}@{self.content_offset} of {(self.referenced or '?').rsplit('/', 1)[-1]}"
        return f"{KINDS[self.content]} {name}"


@dataclass(frozen=True)
class SnapshotState:
    """Everything that one snapshot lists."""

    snapshot: Mapping[str, Any]
    manifests: tuple[Manifest, ...]
    entries: tuple[Entry, ...]

    @property
    def snapshot_id(self) -> int:
        return int(self.snapshot["snapshot-id"])

    @property
    def sequence_number(self) -> int:
        """0 in format version 1."""
        return int(self.snapshot.get("sequence-number") or 0)

    @cached_property
    def live(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.status != DELETED)

    @cached_property
    def data(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.live if entry.content == DATA)

    @cached_property
    def deletes(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.live if entry.content != DATA)

    @cached_property
    def summary(self) -> Mapping[str, str]:
        return self.snapshot.get("summary") or {}


@dataclass(frozen=True)
class TableMetadata:
    """A table metadata file."""

    location: str
    document: Mapping[str, Any]

    @classmethod
    def read(cls, location: str) -> TableMetadata:
        content = local_path(location).read_bytes()
        return cls(location, json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content))

    @property
    def version(self) -> int:
        return int(self.document["format-version"])

    @cached_property
    def snapshots(self) -> Mapping[int, Mapping[str, Any]]:
        """By id."""
        return {each["snapshot-id"]: each for each in self.document.get("snapshots") or []}

    @cached_property
    def unpartitioned_specs(self) -> frozenset[int]:
        """Specs without fields, or with void ones only."""
        specs = self.document.get("partition-specs") or [{"spec-id": 0, "fields": self.document["partition-spec"]}]
        return frozenset(
            spec["spec-id"] for spec in specs if all(field["transform"] == "void" for field in spec["fields"])
        )

    def head(self, ref: str = "main") -> int | None:
        """The snapshot id of a branch or tag."""
        found = (self.document.get("refs") or {}).get(ref)
        if found:
            return int(found["snapshot-id"])
        current = self.document.get("current-snapshot-id")
        return int(current) if ref == "main" and current not in (None, -1) else None

    def state(self, snapshot_id: int) -> SnapshotState:
        """Read a snapshot's manifest list and manifests."""
        snapshot = self.snapshots[snapshot_id]
        if snapshot.get("manifest-list"):
            rows = _avro(snapshot["manifest-list"])[0]
            manifests = tuple(_manifest(row) for row in rows)
        else:  # version 1 may list manifests in the table metadata; their lengths and counts are unknown
            raise ValueError(f"snapshot {snapshot_id} of {self.location} has no manifest list")
        entries = tuple(entry for manifest in manifests for entry in _entries(manifest))
        return SnapshotState(snapshot, manifests, entries)


def local_path(location: str) -> Path:
    """The path of a local file, given as a path or a `file:` URI."""
    if not location.startswith("file:"):
        return Path(location)
    plain = location.removeprefix("file://") if location.startswith("file://") else location.removeprefix("file:")
    return Path(plain)


def is_local(location: str) -> bool:
    return location.startswith(("file:", "/"))


def _avro(location: str) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    with local_path(location).open("rb") as file:
        reader = fastavro.reader(file)
        return list(reader), dict(reader.metadata)


def _manifest(row: Mapping[str, Any]) -> Manifest:
    def three(kind: str) -> tuple[int | None, int | None, int | None]:
        found = [
            row.get(f"{status}_{kind}_count", row.get(f"{status}_data_{kind}_count"))
            for status in ("existing", "added", "deleted")
        ]
        return found[0], found[1], found[2]

    partitions = row.get("partitions")
    return Manifest(
        path=row["manifest_path"],
        size=row["manifest_length"],
        spec_id=row["partition_spec_id"],
        content=row.get("content") or 0,
        sequence_number=row.get("sequence_number") or 0,
        min_sequence_number=row.get("min_sequence_number") or 0,
        snapshot_id=row["added_snapshot_id"],
        first_row_id=row.get("first_row_id"),
        files=three("files"),
        rows=three("rows"),
        partitions=tuple(partitions) if partitions is not None else None,
    )


def _entries(manifest: Manifest) -> Iterator[Entry]:
    next_row_id = manifest.first_row_id
    for row in _avro(manifest.path)[0]:
        file, status = row["data_file"], row["status"]
        snapshot_id = row.get("snapshot_id")
        inherits = status == ADDED or manifest.sequence_number == 0
        sequence_numbers = [
            manifest.sequence_number if found is None and inherits else found
            for found in (row.get("sequence_number"), row.get("file_sequence_number"))
        ]
        first_row_id = file.get("first_row_id") if manifest.first_row_id is not None else None
        if first_row_id is None and next_row_id is not None and status != DELETED:
            first_row_id = next_row_id
            next_row_id += file["record_count"]
        yield Entry(
            manifest=manifest.path,
            status=status,
            snapshot_id=manifest.snapshot_id if snapshot_id is None else snapshot_id,
            sequence_number=sequence_numbers[0],
            file_sequence_number=sequence_numbers[1],
            content=file.get("content") or 0,
            spec_id=manifest.spec_id,
            partition=tuple(comparable(value) for value in file["partition"].values()),
            path=file["file_path"],
            file_format=file["file_format"].lower(),
            records=file["record_count"],
            size=file["file_size_in_bytes"],
            equality_ids=tuple(file.get("equality_ids") or ()),
            sort_order_id=file.get("sort_order_id"),
            referenced=file.get("referenced_data_file") or _only_path(file),
            content_offset=file.get("content_offset"),
            content_size=file.get("content_size_in_bytes"),
            first_row_id=first_row_id,
        )


def _only_path(file: Mapping[str, Any]) -> str | None:
    """The one data file that a position delete file names, if its bounds say so."""
    if file.get("content") != POSITION_DELETES:
        return None
    lower, upper = (
        next((pair["value"] for pair in file.get(bounds) or () if pair["key"] == FILE_PATH_FIELD), None)
        for bounds in ("lower_bounds", "upper_bounds")
    )
    return lower.decode() if lower is not None and lower == upper else None


def comparable(value: Any) -> Any:
    """A partition value of which equality is Iceberg's: NaN equals NaN, and the zeros differ."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else struct.pack(">d", value)
    return value
