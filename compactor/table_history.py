"""A table's past as its retained snapshots tell it: the commits of writers, with the files each added, by bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from pyiceberg.table.snapshots import Snapshot

from compactor.manifests import Content, ManifestCache, Status
from compactor.simulation import Arrival
from compactor.table_changes import entries_changed
from compactor.table_changes import writer_commits as commit_times
from compactor.tables import TableView, head_of


def retained_ancestry(table: TableView) -> tuple[Snapshot, ...]:
    """The snapshots that lead to the current one, oldest first, as far back as they are retained."""
    found: list[Snapshot] = []
    current = head_of(table.metadata, table.ref)
    while current is not None:
        found.append(current)
        parent = current.parent_snapshot_id
        current = table.metadata.snapshot_by_id(parent) if parent is not None else None
    return tuple(reversed(found))


def arrivals_of(table: TableView, cache: ManifestCache) -> list[Arrival]:
    """Commits of writers (not rewrites) that added data files, oldest first; buckets are (spec, partition) keys.

    Raises:
        RetryError: a manifest cannot be read.
    """
    times = commit_times(table.metadata)
    arrivals = []
    for snapshot in retained_ancestry(table):
        if snapshot.snapshot_id not in times:
            continue
        files: dict[Hashable, list[int]] = defaultdict(list)
        for entry in entries_changed(table, [snapshot], cache):
            if entry.status is Status.ADDED and entry.content is Content.DATA:
                files[entry.key].append(entry.size)
        if files:
            sizes = {key: tuple(found) for key, found in files.items()}
            arrivals.append(Arrival(snapshot.timestamp_ms / 1000, sizes))
    return arrivals
