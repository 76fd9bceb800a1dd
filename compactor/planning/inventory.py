"""The inventory: every live data file of a table at one snapshot, with the delete files that apply to it.

Built from manifest entries, so that equality deletes, deletion vectors and foreign formats are seen as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile

from compactor.debt.table_changes import NO_COMMITS, CommitTimes
from compactor.events import ManifestsRead
from compactor.filters.where import Where
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.tables import TableView
from compactor.manifests.cache import ManifestCache
from compactor.manifests.live_files import DeleteIndex, LiveFile, LiveFiles, LiveRows
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.timing import Stages


@dataclass(frozen=True)
class Inventory:
    """Live files by partition, in arrival order (data sequence number, then path), at one snapshot.

    `deletes`: every live delete file, whether it still applies to a data file or not; under a filter only those of
    which that can be told. `manifests`: all there are, read or not. Under a filter,
    partitions outside it may be missing, or lack their deletes: nothing may be planned for them. `skipped_deletes`:
    manifests of deletes that were not read. `reads`: where the entries came from.
    """

    table: TableView
    snapshot_id: int | None
    sequence_number: int
    partitions: Mapping[PartitionKey, LiveFiles]
    layouts: Mapping[int, PartitionLayout]
    deletes: tuple[FileEntry, ...] = ()
    commits: CommitTimes = NO_COMMITS
    manifests: tuple[ManifestFile, ...] = ()
    skipped_deletes: tuple[ManifestFile, ...] = ()
    rows: LiveRows = field(default_factory=lambda: LiveRows(()), repr=False)
    reads: tuple[ManifestsRead, ...] = ()

    def idle_seconds(self, key: PartitionKey, now: float) -> float:
        """How long ago a writer last committed rows that live in this partition, at least.

        Files whose snapshot has expired are as old as can be, so that a partition of these is idle since ever.
        """
        commits = {(file.entry.snapshot_id, file.entry.data_sequence_number) for file in self.partitions[key]}
        return min((now - self.commits.written_ms(*commit) / 1000 for commit in commits), default=now)

    def age_seconds(self, file: LiveFile, now: float) -> float:
        """How long ago the rows of a file were written, at least; of expired snapshots, since ever."""
        entry = file.entry
        return now - self.commits.written_ms(entry.snapshot_id, entry.data_sequence_number) / 1000

    def listed_twice(self, files: Collection[FileEntry]) -> frozenset[str]:
        """Which of the files are listed twice: readers see their rows twice, a commit would remove them all."""
        return self.rows.listed_twice(files)


def take_inventory(
    table: TableView, cache: ManifestCache, where: Where | None = None, stages: Stages | None = None
) -> Inventory:
    """Read the manifests of the table's current snapshot (cached ones are not read again).

    `where`: manifests without a partition that it keeps are not read at all. `stages`: notes how long listing, reading
    and grouping took.

    Raises:
        RetryError: a manifest cannot be read.
    """
    snapshot = table.snapshot
    if snapshot is None:
        return Inventory(table=table, snapshot_id=None, sequence_number=0, partitions={}, layouts={})
    stages = stages or Stages()
    manifests = tuple(table.manifests())
    stages.done("list")
    read, skipped = _pruned(manifests, where)
    layouts = table.layouts()
    reads: list[Any] = []
    entries = cache.read(table, read, tell=reads.append)
    stages.done("read")
    rows = LiveRows(entries)
    index = DeleteIndex(rows.deletes(), layouts)
    partitions = rows.by_partition(index)
    stages.done("group")
    return Inventory(
        table=table,
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        partitions=partitions,
        layouts=layouts,
        deletes=_deletes_known(index.deletes, rows, where if skipped else None),
        commits=CommitTimes.of(table.metadata),
        manifests=manifests,
        skipped_deletes=tuple(manifest for manifest in skipped if manifest.content == ManifestContent.DELETES),
        rows=rows,
        reads=tuple(reads),
    )


def _pruned(
    manifests: Sequence[ManifestFile], where: Where | None
) -> tuple[Sequence[ManifestFile], Sequence[ManifestFile]]:
    """The manifests to read, and the others."""
    if where is None:
        return manifests, ()
    kept = [where.keeps_manifest(manifest) for manifest in manifests]
    return list(compress(manifests, kept)), list(compress(manifests, map(not_, kept)))


def _deletes_known(deletes: tuple[FileEntry, ...], rows: LiveRows, where: Where | None) -> tuple[FileEntry, ...]:
    """Delete files of which it is known what they apply to; `where` if manifests were skipped.

    A delete that seems to apply to nothing may apply to data files of skipped manifests: if it were taken for dangling
    and removed, their rows would come back.
    """
    if where is None:
        return deletes
    there = rows.which_are_there({delete.applies_to for delete in deletes if delete.applies_to is not None})
    return tuple(
        delete
        for delete in deletes
        if where.accounts_for(delete) and (delete.applies_to is None or delete.applies_to in there)
    )
