"""Commits that PyIceberg has no method for: row deltas, replaced files, merged manifests, staged snapshots.

They are written by PyIceberg's own manifest writers, and look as Iceberg's Java library makes them: a manifest that
loses files is written again, with its removed files marked as deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

MAIN = "main"
_EQUALITY_IDS = NestedField(135, "equality_ids", ListType(136, IntegerType(), element_required=True), required=False)
Group = tuple[int, ManifestContent]
"""A partition spec and a kind of files: manifests hold files of one group."""


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """With ids of compared columns as integers (spec). PyIceberg writes longs, which Java cannot read."""
        made = super()._with_partition(format_version)
        data_file = made.find_type("data_file")
        fields = [_EQUALITY_IDS if field.field_id == _EQUALITY_IDS.field_id else field for field in data_file.fields]
        return Schema(
            *[
                NestedField(field.field_id, field.name, StructType(*fields), required=True)
                if field.name == "data_file"
                else field
                for field in made.fields
            ]
        )


class RawCommit(_SnapshotProducer["RawCommit"]):
    """One snapshot that adds and removes any files.

    Attributes:
        added: New files with their spec ids; a number beside a file is its data sequence number, None inherits it.
        removed: Paths of files that leave.
        merge: Whether the manifests of each group become one, as a rewrite of manifests does.
    """

    def __init__(
        self,
        transaction: Any,
        operation: Operation,
        added: Sequence[tuple[DataFile, int | None]] = (),
        removed: Collection[str] = (),
        *,
        merge: bool = False,
        branch: str | None = MAIN,
        properties: dict[str, str] | None = None,
    ) -> None:
        super().__init__(operation, transaction, transaction._table.io, None, properties or {}, branch)
        self._added, self._removed, self._merge = added, frozenset(removed), merge
        self._left: list[DataFile] = []

    def _manifests(self) -> list[ManifestFile]:
        written = [self._written(group, entries) for group, entries in self._new_entries().items()]
        kept: list[ManifestFile] = []
        merged: dict[Group, list[ManifestEntry]] = defaultdict(list)
        for manifest in self._parent_manifests():
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            group = (manifest.partition_spec_id, manifest.content)
            if not entries:
                continue
            if self._merge:
                merged[group] += [self._kept_or_removed(entry) for entry in entries]
            elif any(entry.data_file.file_path in self._removed for entry in entries):
                written.append(self._written(group, map(self._kept_or_removed, entries)))
            else:
                kept.append(manifest)
        return [*written, *(self._written(group, entries) for group, entries in merged.items()), *kept]

    def _parent_manifests(self) -> list[ManifestFile]:
        if self._parent_snapshot_id is None:
            return []
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        return [] if parent is None else parent.manifests(self._io)

    def _new_entries(self) -> dict[Group, list[ManifestEntry]]:
        found: dict[Group, list[ManifestEntry]] = defaultdict(list)
        for file, sequence_number in self._added:
            is_data = file.content == DataFileContent.DATA
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=sequence_number,
                file_sequence_number=None,
                data_file=file,
            )
            found[file.spec_id, ManifestContent.DATA if is_data else ManifestContent.DELETES].append(entry)
        return found

    def _kept_or_removed(self, entry: ManifestEntry) -> ManifestEntry:
        is_removed = entry.data_file.file_path in self._removed
        if is_removed:
            self._left.append(entry.data_file)
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            snapshot_id=self._snapshot_id if is_removed else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _written(self, group: Group, entries: Iterable[ManifestEntry]) -> ManifestFile:
        spec_id, content = group
        with self._writer(spec_id, content) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _writer(self, spec_id: int, content: ManifestContent) -> ManifestWriter:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(self.spec(spec_id))
        return _DeleteManifestWriter(
            self.spec(spec_id), self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        """PyIceberg's own summaries know no `replace`. Called after `_manifests`."""
        metadata = self._transaction.table_metadata
        parent = None if self._parent_snapshot_id is None else metadata.snapshot_by_id(self._parent_snapshot_id)
        before = {} if parent is None or parent.summary is None else parent.summary.additional_properties
        totals = {}
        for name, is_data in (("data", True), ("delete", False)):
            added = sum((file.content == DataFileContent.DATA) is is_data for file, _ in self._added)
            gone = sum((file.content == DataFileContent.DATA) is is_data for file in self._left)
            total = int(before.get(f"total-{name}-files", "0")) + added - gone
            verb = "deleted" if is_data else "removed"
            totals |= {f"added-{name}-files": added, f"{verb}-{name}-files": gone, f"total-{name}-files": total}
        texts = {name: str(number) for name, number in totals.items()}
        return Summary(self._operation, **texts, **(snapshot_properties or {}))

    def _existing_manifests(self) -> list[ManifestFile]:
        raise NotImplementedError

    def _deleted_entries(self) -> list[ManifestEntry]:
        raise NotImplementedError


def commit(table: Table, operation: Operation, *more: Any, **options: Any) -> None:
    """Commit one snapshot; `more` and `options` as `RawCommit`."""
    with table.transaction() as transaction:
        RawCommit(transaction, operation, *more, **options).commit()
