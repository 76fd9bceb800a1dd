"""A table's history from its retained snapshots: the time and writer of each commit, the files it added and removed.

Expired snapshots are unknown; files from before the oldest retained snapshot count as present from the start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.debt.table_changes import entries_changed, manifests_added
from compactor.iceberg.manifest_entries import Content, Status
from compactor.iceberg.tables import TableView, head_of
from compactor.iceberg.writers import Writer, writer_of
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.whatif.simulation import Arrival

Sizes = Mapping[PartitionKey, tuple[int, ...]]


@dataclass(frozen=True)
class Commit:
    """One commit.

    Attributes:
        at: Seconds since the epoch.
        rewrite: Whether it is a `replace`: the same rows in other files.
        writer: The writer that made it.
        added: Sizes of the data files that it added, by (spec, partition); a bucket is a partition.
        removed: Sizes of the data files that it removed.
    """

    at: float
    rewrite: bool
    writer: Writer
    added: Sizes
    removed: Sizes


def retained_ancestry(table: TableView) -> tuple[Snapshot, ...]:
    """The current snapshot and its retained ancestors, oldest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    found: list[Snapshot] = []
    current = head_of(table.metadata, table.ref)
    while current is not None:
        found.append(current)
        parent = current.parent_snapshot_id
        current = by_id.get(parent) if parent is not None else None
    return tuple(reversed(found))


def commits_of(table: TableView, cache: ManifestCache, most: int | None = None) -> list[Commit]:
    """The retained commits, oldest first; only the newest `most` if given.

    Raises:
        RetryError: a manifest cannot be read.
    """
    snapshots = retained_ancestry(table)
    return [_commit(table, snapshot, cache) for snapshot in snapshots[-most if most else None :]]


def _commit(table: TableView, snapshot: Snapshot, cache: ManifestCache) -> Commit:
    changed: dict[Status, dict[PartitionKey, list[int]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries_changed(table, manifests_added(table, [snapshot]), cache):
        if entry.content is Content.DATA:
            changed[entry.status][entry.key].append(entry.size)
    summary = snapshot.summary
    properties = summary.additional_properties if summary else {}
    added, removed = (
        {key: tuple(sizes) for key, sizes in changed[status].items()} for status in (Status.ADDED, Status.DELETED)
    )
    return Commit(
        at=snapshot.timestamp_ms / 1000,
        rewrite=summary is not None and summary.operation is Operation.REPLACE,
        writer=writer_of(properties),
        added=added,
        removed=removed,
    )


def arrivals_of(table: TableView, cache: ManifestCache) -> list[Arrival]:
    """The commits of writers, for a replay; buckets are (spec, partition) keys.

    Raises:
        RetryError: a manifest cannot be read.
    """
    return arrivals(commits_of(table, cache))


def arrivals(commits: Sequence[Commit]) -> list[Arrival]:
    """The commits of writers that added files."""
    return [Arrival(commit.at, commit.added) for commit in commits if commit.added and not commit.rewrite]
