"""What changed in a table since a snapshot: only unseen snapshots are read; on any gap the answer is "recount"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.debt import PartitionCounts, SizeLadder
from compactor.manifest_cache import ManifestCache
from compactor.manifest_columns import CONTENT, EntryColumns
from compactor.manifest_rows import ManifestRows, Numbers
from compactor.manifests import Content, FileEntry, Status
from compactor.partitions import PartitionKey
from compactor.tables import MAIN, FileSizes, TableView, head_of
from compactor.tiers import step_edges, step_of

Deltas = dict[PartitionKey, PartitionCounts]
_POSITION_DELETES = CONTENT.index(Content.POSITION_DELETES)
NO_COMMITS: Mapping[int, int] = {}


@dataclass(frozen=True)
class Unseen:
    """Snapshots of the branch that follow the one already counted, oldest first. Empty: nothing new."""

    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class Gap:
    """The counted snapshot is not an ancestor of the current one; `reason` is a slug. A full recount is needed."""

    reason: str


def unseen_snapshots(metadata: TableMetadata, counted_snapshot_id: int | None, ref: str = MAIN) -> Unseen | Gap:
    """Walk back from the branch's head to the counted one (spec: snapshots form a log through parent-snapshot-id).

    Rollback, expiry of a snapshot in between, and a table replaced under its name all end as a Gap. The counted
    snapshot itself may have expired, as long as its child still names it.
    """
    current = head_of(metadata, ref)
    if counted_snapshot_id is None:
        return Gap("first_sight") if current else Unseen(())
    new: list[Snapshot] = []
    snapshot_id = current.snapshot_id if current else None
    while snapshot_id != counted_snapshot_id:
        snapshot = metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            return Gap("history_gap")
        new.append(snapshot)
        snapshot_id = snapshot.parent_snapshot_id
    return Unseen(tuple(reversed(new)))


def manifests_added(table: TableView, snapshot: Snapshot) -> list[ManifestFile]:
    """Manifests that `snapshot` itself wrote; older ones were counted with their own snapshot."""
    return [manifest for manifest in table.manifests(snapshot) if manifest.added_snapshot_id == snapshot.snapshot_id]


def entries_changed(table: TableView, snapshots: Iterable[Snapshot], cache: ManifestCache) -> Iterator[FileEntry]:
    """What `snapshots` added and removed, in their order (spec: an entry belongs to the snapshot whose id it carries).

    Raises:
        RetryError: a manifest cannot be read.
    """
    for snapshot in snapshots:
        for entries in cache.read(table, manifests_added(table, snapshot)):
            for entry in entries:
                if entry.status is not Status.EXISTING and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry


def deltas_of(table: TableView, snapshots: Iterable[Snapshot], sizes: FileSizes, cache: ManifestCache) -> Deltas:
    """Change in counts per partition over `snapshots`."""
    deltas: Deltas = {}
    commits = writer_commits(table.metadata)
    for entry in entries_changed(table, snapshots, cache):
        counts = counts_of(entry, sizes, commits.get(entry.snapshot_id or 0, 0))
        add(deltas, entry.key, counts if entry.status is Status.ADDED else -counts)
    return deltas


def live_counts(manifests: Sequence[EntryColumns], sizes: FileSizes, commits: Mapping[int, int] = NO_COMMITS) -> Deltas:
    """Counts per partition of the live entries given: the recount, whole or a part of it; as `counts_of` for each."""
    rows = ManifestRows(manifests)
    changed_ms = _changed_ms(rows, commits)
    records, size, content = rows.numbers("records"), rows.numbers("size"), rows.numbers("content")
    edges = np.array(step_edges(sizes.small_below), np.int64)
    counts: Deltas = {}
    for key, part in _partitions(rows, rows.live_data):
        small = np.sort(size[part][size[part] < sizes.small_below])
        change = PartitionCounts(
            data_files=len(part),
            small_files=len(small),
            data_bytes=int(size[part].sum()),
            small_bytes=int(small.sum()),
            records=int(records[part].sum()),
            small_sizes=_ladder(small, edges),
            changed_ms=int(changed_ms[part].max()),
        )
        add(counts, key, change)
    for key, part in _partitions(rows, rows.live_deletes):
        change = PartitionCounts(
            delete_files=len(part),
            deleted_records=int(records[part[content[part] == _POSITION_DELETES]].sum()),
            changed_ms=int(changed_ms[part].max()),
        )
        add(counts, key, change)
    return counts


def _partitions(rows: ManifestRows, chosen: Numbers) -> Iterator[tuple[PartitionKey, Numbers]]:
    order, ends = rows.by_partition(chosen)
    for part in np.split(order, ends[:-1]) if len(order) else ():
        yield rows.key(part[0]), part


def _changed_ms(rows: ManifestRows, commits: Mapping[int, int]) -> Numbers:
    """Row by row, when a writer committed the file; 0 if unknown."""
    codes, snapshot_ids = pd.factorize(rows.snapshot_ids())
    changed: Numbers = np.array([commits.get(int(each), 0) for each in snapshot_ids], np.int64)[codes]
    return changed


def _ladder(ascending: Numbers, edges: Numbers) -> SizeLadder:
    """Small files by size; `edges` are those of `tiers.step_edges`."""
    steps, starts, files = np.unique(
        np.searchsorted(edges, ascending, side="right") - 1, return_index=True, return_counts=True
    )
    total = np.add.reduceat(ascending, starts) if len(starts) else ()
    return tuple((int(step), int(count), int(size)) for step, count, size in zip(steps, files, total, strict=True))


def writer_commits(metadata: TableMetadata) -> dict[int, int]:
    """Snapshot id → milliseconds since the epoch, of retained snapshots that are not rewrites."""
    return {
        snapshot.snapshot_id: snapshot.timestamp_ms
        for snapshot in metadata.snapshots
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE
    }


def counts_of(entry: FileEntry, sizes: FileSizes, changed_ms: int = 0) -> PartitionCounts:
    """What one live file adds to its partition's counts. `changed_ms`: when a writer committed it, 0 if unknown."""
    if entry.content is Content.DATA:
        small = sizes.is_small(entry.size)
        return PartitionCounts(
            data_files=1,
            small_files=int(small),
            data_bytes=entry.size,
            small_bytes=entry.size if small else 0,
            records=entry.records,
            small_sizes=((step_of(entry.size), 1, entry.size),) if small else (),
            changed_ms=changed_ms,
        )
    deleted = entry.records if entry.content is Content.POSITION_DELETES else 0
    return PartitionCounts(delete_files=1, deleted_records=deleted, changed_ms=changed_ms)


def add(counts: Deltas, key: PartitionKey, change: PartitionCounts) -> None:
    """Add `change` to one partition's counts, in place."""
    counts[key] = counts.get(key, PartitionCounts()) + change


def total_data_files(snapshot: Snapshot | None) -> int | None:
    """The snapshot summary's own count of data files, where the writer keeps one: a cheap check of the ledger."""
    if snapshot is None or snapshot.summary is None:
        return None
    text: Mapping[str, str] = snapshot.summary.additional_properties
    value = text.get("total-data-files")
    return int(value) if value is not None and value.isdigit() else None
