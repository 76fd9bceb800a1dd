"""The inventory: every live data file of a table at one snapshot, with the delete files that apply to it.

Built from manifest entries, so that equality deletes, deletion vectors and foreign formats are seen as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestFile

from compactor.manifests import Content, FileEntry, ManifestCache
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.table_changes import writer_commits
from compactor.tables import TableView
from compactor.where import Where


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file and the delete files that may apply to it."""

    entry: FileEntry
    deletes: tuple[FileEntry, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the data file."""
        return self.entry.size

    @property
    def deleted_ratio(self) -> float:
        """Share of rows that deletes naming this very file remove (an upper bound: positions may repeat)."""
        named = sum(delete.records for delete in self.deletes if delete.applies_to == self.entry.path)
        return min(1.0, named / self.entry.records) if self.entry.records else 0.0


@dataclass(frozen=True)
class Inventory:
    """Live files by partition, in arrival order (data sequence number, then path), at one snapshot.

    `deletes`: every live delete file, whether it still applies to a data file or not; under a filter only those of
    which that can be told. `commits`: as `writer_commits`. `manifests`: all there are, read or not. Under a filter,
    partitions outside it may be missing, or lack their deletes: nothing may be planned for them.
    """

    table: TableView
    snapshot_id: int | None
    sequence_number: int
    partitions: Mapping[PartitionKey, tuple[LiveFile, ...]]
    layouts: Mapping[int, PartitionLayout]
    deletes: tuple[FileEntry, ...] = ()
    commits: Mapping[int, int] = field(default_factory=dict)
    manifests: tuple[ManifestFile, ...] = ()

    def idle_seconds(self, key: PartitionKey, now: float) -> float:
        """How long ago a writer last committed a file of this partition that is still live.

        Files whose snapshot has expired are as old as can be, so that a partition of these is idle since ever.
        """
        changed = max((self.commits.get(file.entry.snapshot_id or 0, 0) for file in self.partitions[key]), default=0)
        return now - changed / 1000


def take_inventory(table: TableView, cache: ManifestCache, where: Where | None = None) -> Inventory:
    """Read the manifests of the table's current snapshot (cached ones are not read again).

    `where`: manifests without a partition that it keeps are not read at all.

    Raises:
        RetryError: a manifest cannot be read.
    """
    snapshot = table.snapshot
    if snapshot is None:
        return Inventory(table, None, 0, {}, {})
    manifests = tuple(table.manifests())
    read = [manifest for manifest in manifests if where is None or where.keeps_manifest(manifest)]
    entries = [entry for manifest in cache.read(table, read) for entry in manifest if entry.is_live]
    layouts = {spec.spec_id: table.layout(spec.spec_id) for spec in table.metadata.partition_specs}
    return Inventory(
        table,
        snapshot.snapshot_id,
        snapshot.sequence_number or 0,
        match_deletes(entries, layouts),
        layouts,
        _deletes_known(entries, where if len(read) < len(manifests) else None),
        writer_commits(table.metadata),
        manifests,
    )


def _deletes_known(entries: Sequence[FileEntry], where: Where | None) -> tuple[FileEntry, ...]:
    """Delete files of which it is known what they apply to; `where` if manifests were skipped.

    A delete that seems to apply to nothing may apply to data files of skipped manifests: if it were taken for dangling
    and removed, their rows would come back.
    """
    deletes = tuple(entry for entry in entries if entry.content is not Content.DATA)
    if where is None:
        return deletes
    there = {entry.path for entry in entries if entry.content is Content.DATA}
    return tuple(
        delete
        for delete in deletes
        if where.accounts_for(delete) and (delete.applies_to is None or delete.applies_to in there)
    )


def listed_twice(inventory: Inventory) -> frozenset[str]:
    """Paths that more than one manifest entry lists: readers see their rows twice, a commit would remove them all."""
    counts = Counter(file.entry.path for files in inventory.partitions.values() for file in files)
    return frozenset(path for path, times in counts.items() if times > 1)


def match_deletes(
    entries: Iterable[FileEntry], layouts: Mapping[int, PartitionLayout]
) -> dict[PartitionKey, tuple[LiveFile, ...]]:
    """Pair data files with the deletes that may apply (spec: scan planning).

    A position delete applies when data.seq <= delete.seq, within its partition or to the file it names; an equality
    delete when data.seq < delete.seq, within its partition, or everywhere when its spec is unpartitioned.
    """
    data: dict[PartitionKey, list[FileEntry]] = defaultdict(list)
    index = _DeleteIndex(layouts)
    for entry in entries:
        if entry.content is Content.DATA:
            data[entry.key].append(entry)
        else:
            index.add(entry)
    return {
        key: tuple(
            LiveFile(entry, index.applying_to(entry))
            for entry in sorted(files, key=lambda file: (file.data_sequence_number, file.path))
        )
        for key, files in sorted(data.items())
    }


class _DeleteIndex:
    def __init__(self, layouts: Mapping[int, PartitionLayout]) -> None:
        self._layouts = layouts
        self._by_path: dict[str, list[FileEntry]] = defaultdict(list)
        self._by_partition: dict[PartitionKey, list[FileEntry]] = defaultdict(list)
        self._everywhere: list[FileEntry] = []

    def add(self, delete: FileEntry) -> None:
        if delete.applies_to is not None:
            self._by_path[delete.applies_to].append(delete)
        elif delete.content is Content.EQUALITY_DELETES and self._layouts[delete.key.spec_id].is_unpartitioned:
            self._everywhere.append(delete)
        else:
            self._by_partition[delete.key].append(delete)

    def applying_to(self, file: FileEntry) -> tuple[FileEntry, ...]:
        candidates = (
            *self._by_path.get(file.path, ()),
            *self._by_partition.get(file.key, ()),
            *self._everywhere,
        )
        return tuple(delete for delete in candidates if _applies(delete, file))


def _applies(delete: FileEntry, file: FileEntry) -> bool:
    if delete.content is Content.EQUALITY_DELETES:
        return file.data_sequence_number < delete.data_sequence_number
    return file.data_sequence_number <= delete.data_sequence_number
