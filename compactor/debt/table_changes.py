"""Find what changed in a table since a snapshot, from unseen snapshots only; a gap in the history needs a recount."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

import numpy as np
import pandas as pd
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.debt.board import PartitionCounts, SizeLadder
from compactor.debt.tiers import step_edges, step_of
from compactor.iceberg.manifest_entries import CONTENT, Content, FileEntry, Status
from compactor.iceberg.tables import FileSizes, TableView, head_of
from compactor.manifests.cache import ManifestCache
from compactor.manifests.columns import EntryColumns
from compactor.manifests.rows import ManifestRows, Numbers
from compactor.partitions import PartitionKey
from compactor.table_names import MAIN
from compactor.whole_numbers import whole_number

FIRST_SIGHT = "first_sight"
"""Reason to count a table that the state does not have."""
HISTORY_GAP = "history_gap"
"""Reason to recount: snapshots have expired, or were rolled back."""
NOT_LISTED = "not_listed"
"""Reason to recount: the catalog lists the newest snapshot alone."""
_OF_NESSIE = "nessie.catalog.content-id"
"""Nessie puts this property into all metadata that it serves; no client can set it."""
Deltas = dict[PartitionKey, PartitionCounts]
_POSITION_DELETES = CONTENT.index(Content.POSITION_DELETES)


@dataclass(frozen=True)
class CommitTimes:
    """Commit times of writers, in milliseconds since the epoch, without rewrites.

    A file written by a rewrite is as old as the newest commit whose rows it can hold: it carries the sequence number of
    the snapshot that the rewrite was planned at. The times of expired snapshots are unknown.

    Attributes:
        by_snapshot: Times of retained snapshots that are not rewrites.
        by_sequence: (sequence number, milliseconds) of the same snapshots, ascending.
        rewrites: Times of retained snapshots that are rewrites.
    """

    by_snapshot: Mapping[int, int] = field(default_factory=dict)
    by_sequence: tuple[tuple[int, int], ...] = ()
    rewrites: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: TableMetadata) -> CommitTimes:
        written = [
            snapshot
            for snapshot in metadata.snapshots
            if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE
        ]
        by_sequence = {each.sequence_number: each.timestamp_ms for each in written if each.sequence_number}
        by_snapshot = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in written}
        rewrites = {
            each.snapshot_id: each.timestamp_ms for each in metadata.snapshots if each.snapshot_id not in by_snapshot
        }
        return cls(by_snapshot, tuple(sorted(by_sequence.items())), rewrites)

    def written_ms(self, snapshot_id: int | None, data_sequence_number: int) -> int:
        """When a file's rows were written: exact for files of writers, the latest time for rewrites; 0 if unknown."""
        known = self.by_snapshot.get(snapshot_id or 0)
        if known is not None:
            return known
        before = bisect_right(self.by_sequence, data_sequence_number, key=itemgetter(0))
        return self.by_sequence[before - 1][1] if before else 0

    def latest_ms(self, snapshot_id: int | None, data_sequence_number: int) -> int:
        """The latest time at which a file's rows can have been written.

        As `written_ms`; where that is unknown (V1 has no sequence numbers, or snapshots have expired), the time of the
        rewrite that wrote the file, or of the oldest snapshot that is retained. 0 if there is no snapshot.
        """
        known = self.written_ms(snapshot_id, data_sequence_number) or self.rewrites.get(snapshot_id or 0)
        return known or self._oldest_ms

    @cached_property
    def _oldest_ms(self) -> int:
        """Of the oldest snapshot that is retained: looked for once, since plans ask for each file."""
        return min((*self.by_snapshot.values(), *self.rewrites.values()), default=0)


NO_COMMITS = CommitTimes()


@dataclass(frozen=True)
class Gap:
    """The counted snapshot is not an ancestor of the head: a full recount is needed. `reason` is a slug."""

    reason: str


def gap_in(metadata: TableMetadata) -> Gap:
    """The gap of a table whose metadata does not list a snapshot that was counted.

    Tables of Nessie have one all the time. That one snapshot is listed does not tell: `retain_last` 1 leaves one too.
    """
    alone = len(metadata.snapshots) <= 1 and _OF_NESSIE in metadata.properties
    return Gap(NOT_LISTED if alone else HISTORY_GAP)


def unseen_snapshots(
    metadata: TableMetadata, counted_snapshot_id: int | None, ref: str = MAIN
) -> tuple[Snapshot, ...] | Gap:
    """The snapshots of the branch after the counted one, oldest first; empty if nothing is new.

    Walks back from the branch's head (spec: snapshots form a log by parent-snapshot-id).
    A rollback, an expired snapshot in between, and a replaced table result in a Gap. The counted snapshot itself may
    have expired, as long as its child still names it.
    """
    current = head_of(metadata, ref)
    if counted_snapshot_id is None:
        return Gap(FIRST_SIGHT) if current else ()
    new: list[Snapshot] = []
    snapshot_id = current.snapshot_id if current else None
    while snapshot_id != counted_snapshot_id:
        snapshot = metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            return gap_in(metadata)
        new.append(snapshot)
        snapshot_id = snapshot.parent_snapshot_id
    return tuple(reversed(new))


AddedManifests = tuple[Snapshot, Sequence[ManifestFile]]
"""A snapshot and the manifests that it wrote itself; older manifests were counted with their own snapshot."""


def manifests_added(table: TableView, snapshots: Iterable[Snapshot]) -> Iterator[AddedManifests]:
    """Each snapshot with the manifests that it wrote; each manifest list is read when its snapshot is reached.

    Raises:
        RetryError: a manifest list cannot be read.
    """
    for snapshot in snapshots:
        manifests = table.manifests(snapshot)
        yield snapshot, [each for each in manifests if each.added_snapshot_id == snapshot.snapshot_id]


def entries_changed(table: TableView, commits: Iterable[AddedManifests], cache: ManifestCache) -> Iterator[FileEntry]:
    """The files that snapshots added and removed, in order (spec: an entry belongs to the snapshot whose id it has).

    Raises:
        RetryError: a manifest cannot be read.
    """
    for snapshot, manifests in commits:
        for entries in cache.read(table, manifests):
            for entry in entries:
                if entry.status is not Status.EXISTING and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry


def deltas_of(table: TableView, commits: Iterable[AddedManifests], sizes: FileSizes, cache: ManifestCache) -> Deltas:
    """The change in counts per partition over some snapshots."""
    deltas: Deltas = defaultdict(PartitionCounts)
    times = CommitTimes.of(table.metadata)
    for entry in entries_changed(table, commits, cache):
        counts = counts_of(entry, sizes, times.written_ms(entry.snapshot_id, entry.data_sequence_number))
        deltas[entry.key] += counts if entry.status is Status.ADDED else -counts
    return deltas


def live_counts(manifests: Sequence[EntryColumns], sizes: FileSizes, commits: CommitTimes = NO_COMMITS) -> Deltas:
    """Counts per partition of the live entries of some manifests: the sum of `counts_of` over all entries."""
    rows = ManifestRows(manifests)
    changed_ms = _changed_ms(rows, commits)
    records, size, content = rows.numbers("records"), rows.numbers("size"), rows.numbers("content")
    edges = np.array(step_edges(sizes.small_below), np.int64)
    counts: Deltas = defaultdict(PartitionCounts)
    for key, part in rows.live_data.items():
        small = np.sort(size[part][size[part] < sizes.small_below])
        counts[key] += PartitionCounts(
            data_files=len(part),
            small_files=len(small),
            data_bytes=int(size[part].sum()),
            small_bytes=int(small.sum()),
            records=int(records[part].sum()),
            small_sizes=_ladder(small, edges),
            changed_ms=int(changed_ms[part].max()),
        )
    for key, part in rows.live_deletes.items():
        by_position = content[part] == _POSITION_DELETES
        counts[key] += PartitionCounts(
            delete_files=len(part),
            deleted_records=int(records[part[by_position]].sum()),
            changed_ms=int(changed_ms[part].max()),
            equality_deletes=int((~by_position).sum()),
        )
    return counts


def _changed_ms(rows: ManifestRows, commits: CommitTimes) -> Numbers:
    """For each row, when a writer committed the file; 0 if unknown."""
    by_snapshot, snapshot_ids = pd.factorize(rows.snapshot_ids())
    by_sequence, sequences = pd.factorize(rows.numbers("data_sequence_number"))
    codes, distinct = pd.factorize(by_snapshot * max(1, len(sequences)) + by_sequence)
    pairs = (divmod(int(each), len(sequences)) for each in distinct)
    found = [commits.written_ms(int(snapshot_ids[one]), int(sequences[other])) for one, other in pairs]
    changed: Numbers = np.array(found, np.int64)[codes]
    return changed


def _ladder(ascending: Numbers, edges: Numbers) -> SizeLadder:
    """Small files by size; `edges` are those of `tiers.step_edges`."""
    steps, starts, files = np.unique(
        np.searchsorted(edges, ascending, side="right") - 1, return_index=True, return_counts=True
    )
    total = np.add.reduceat(ascending, starts) if len(starts) else ()
    return tuple((int(step), int(count), int(size)) for step, count, size in zip(steps, files, total, strict=True))


def counts_of(entry: FileEntry, sizes: FileSizes, changed_ms: int = 0) -> PartitionCounts:
    """The counts of one live file. `changed_ms`: when a writer committed it, 0 if unknown."""
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
    by_position = entry.content is Content.POSITION_DELETES
    return PartitionCounts(
        delete_files=1,
        deleted_records=entry.records if by_position else 0,
        changed_ms=changed_ms,
        equality_deletes=int(not by_position),
    )


def total_data_files(snapshot: Snapshot | None) -> int | None:
    """The count of data files in the snapshot's summary, if the writer keeps one: a cheap check of the ledger."""
    if snapshot is None or snapshot.summary is None:
        return None
    return whole_number(snapshot.summary.additional_properties.get("total-data-files", ""))
