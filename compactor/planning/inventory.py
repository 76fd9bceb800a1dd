"""The inventory: every live data file of a table at one snapshot, with the delete files that apply to it.

It is built from manifest entries, so that equality deletes, deletion vectors and foreign formats appear as they are.
A filter is evaluated here: once on each manifest, once on each partition, and on column bounds of files if the policy
prunes files. Later steps use the result.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.manifest import ManifestFile

from compactor.debt.table_changes import NO_COMMITS, CommitTimes
from compactor.events import ManifestsRead
from compactor.filters.where import Where
from compactor.iceberg.manifest_entries import Content, FileEntry, read_entries
from compactor.iceberg.tables import TableView
from compactor.manifests.cache import ManifestCache
from compactor.manifests.live_files import DeleteIndex, LiveFile, LiveFiles, LiveRows
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.timing import Stages

READERS = 8  # threads that read column bounds


@dataclass(frozen=True)
class Inventory:
    """Live files by partition, in arrival order (data sequence number, then path), at one snapshot.

    Attributes:
        partitions: All partitions of the manifests that were read. Under a filter, partitions outside of it may be
            missing or lack deletes: plan nothing for them.
        selected: The partitions that may be planned: those that the filter keeps; all without a filter.
        deletes: Every live delete file, whether it still applies to a data file or not. Under a filter, only delete
            files for which that is known.
        manifests: The manifests that were read.
        skipped: The manifests that the filter rules out.
        reads: Where the entries came from.
    """

    table: TableView
    snapshot_id: int | None
    partitions: Mapping[PartitionKey, LiveFiles]
    selected: Mapping[PartitionKey, LiveFiles]
    layouts: Mapping[int, PartitionLayout]
    deletes: tuple[FileEntry, ...] = ()
    commits: CommitTimes = NO_COMMITS
    manifests: Sequence[ManifestFile] = ()
    skipped: Sequence[ManifestFile] = ()
    rows: LiveRows = field(default_factory=lambda: LiveRows(()), repr=False)
    reads: tuple[ManifestsRead, ...] = ()

    def idle_seconds(self, key: PartitionKey, now: float) -> float:
        """At least how many seconds ago a writer last committed live rows to this partition.

        Files of expired snapshots count as written in 1970, so a partition of such files is always idle.
        """
        commits = {(file.entry.snapshot_id, file.entry.data_sequence_number) for file in self.partitions[key]}
        return min((now - self.commits.written_ms(*commit) / 1000 for commit in commits), default=now)

    def age_seconds(self, file: LiveFile, now: float) -> float:
        """At least how many seconds ago the rows of a file were written. Never too much: a file that seems old is
        rewritten, and so would be the output at the next commit.
        """
        entry = file.entry
        return now - self.commits.latest_ms(entry.snapshot_id, entry.data_sequence_number) / 1000

    def not_as_json(self, key: PartitionKey) -> str | None:
        """Why a commit can name no file of this partition; None if it can (`PartitionLayout.not_as_json`)."""
        return self.layouts[key.spec_id].not_as_json(key)


def take_inventory(
    table: TableView, cache: ManifestCache, where: Where | None = None, stages: Stages | None = None
) -> Inventory:
    """Read the manifests of the table's current snapshot; cached manifests are not read again.

    `where`: skips manifests that hold no partition it keeps. `stages`: records the seconds of listing, reading and
    grouping.

    Raises:
        RetryError: a manifest cannot be read.
    """
    snapshot = table.snapshot
    if snapshot is None:
        return Inventory(table=table, snapshot_id=None, partitions={}, selected={}, layouts={})
    stages = stages or Stages()
    manifests = table.manifests()
    stages.done("list")
    if where is not None and where.keeps_everything:
        where = None
    read, skipped = _pruned(manifests, where)
    layouts = table.layouts()
    reads: list[Any] = []
    entries = cache.read(table, read, listener=reads.append)
    stages.done("read")
    rows = LiveRows(entries)
    index = DeleteIndex(rows.deletes(), layouts)
    partitions = selected = rows.by_partition(index)
    deletes = index.deletes
    if where is not None:
        keys = partitions.keys() | {delete.key for delete in deletes}
        kept = {key for key in keys if where.keeps(key)}
        selected = {key: files for key, files in partitions.items() if key in kept}
        deletes = _deletes_known(deletes, rows, layouts, kept) if skipped else deletes
    stages.done("group")
    return Inventory(
        table=table,
        snapshot_id=snapshot.snapshot_id,
        partitions=partitions,
        selected=selected,
        layouts=layouts,
        deletes=deletes,
        commits=CommitTimes.of(table.metadata),
        manifests=read,
        skipped=skipped,
        rows=rows,
        reads=tuple(reads),
    )


def _pruned(
    manifests: Sequence[ManifestFile], where: Where | None
) -> tuple[Sequence[ManifestFile], Sequence[ManifestFile]]:
    """The manifests to read, and those that the filter rules out."""
    if where is None:
        return manifests, ()
    read: list[ManifestFile] = []
    skipped: list[ManifestFile] = []
    for manifest in manifests:
        (read if where.keeps_manifest(manifest) else skipped).append(manifest)
    return read, skipped


def _deletes_known(
    deletes: Sequence[FileEntry],
    rows: LiveRows,
    layouts: Mapping[int, PartitionLayout],
    kept: AbstractSet[PartitionKey],
) -> tuple[FileEntry, ...]:
    """The delete files whose data files have all been read, where manifests were skipped.

    Other delete files may seem to apply to nothing, yet apply to data files of skipped manifests. If one were removed
    as dangling, deleted rows would come back.
    """
    there = rows.live_among({delete.applies_to for delete in deletes if delete.applies_to is not None})
    return tuple(
        delete
        for delete in deletes
        if applies_within(kept, delete, layouts[delete.key.spec_id])
        and (delete.applies_to is None or delete.applies_to in there)
    )


def applies_within(kept: AbstractSet[PartitionKey], delete: FileEntry, layout: PartitionLayout) -> bool:
    """Whether every data file that a delete file can apply to lies in the partitions `kept`.

    A global equality delete (`layout`: of the delete's spec) may apply to data files of any partition.
    """
    is_global = delete.content is Content.EQUALITY_DELETES and layout.is_unpartitioned
    return delete.key in kept and not is_global


def prune_files(inventory: Inventory, where: Where) -> Inventory:
    """The inventory without selected files whose column bounds rule out a match (`policy.prune_files`).

    A pruned file is not merged; that is safe even if its bounds are wrong. It stays as it is, and so do the deletes
    that apply to it. Partitions left empty are left out. PyIceberg reads the files' manifests once more, with the
    column bounds, which the manifest cache does not keep.

    Raises:
        RetryError: a manifest cannot be read.
    """
    entries = [file.entry for files in inventory.selected.values() for file in files]
    paths, manifests = {entry.path for entry in entries}, {entry.manifest_path for entry in entries}

    def ruled_out(manifest: ManifestFile) -> set[str]:
        files = (entry.data_file for entry in read_entries(inventory.table.io, manifest))
        return {file.file_path for file in files if file.file_path in paths and not where.keeps_file(file)}

    with ThreadPoolExecutor(READERS, thread_name_prefix="bounds") as pool:
        wanted = [manifest for manifest in inventory.manifests if manifest.manifest_path in manifests]
        pruned = set[str]().union(*pool.map(ruled_out, wanted))
    return leave_out(inventory, pruned)


def leave_out(inventory: Inventory, paths: Container[str]) -> Inventory:
    """The inventory without these selected files. They are not merged, and the deletes that apply to them stay."""
    kept = {key: [file for file in files if file.entry.path not in paths] for key, files in inventory.selected.items()}
    return replace(inventory, selected={key: LiveFiles.of(files) for key, files in kept.items() if files})
