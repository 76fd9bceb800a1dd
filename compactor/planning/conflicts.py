"""Find the file groups of a run that conflict with commits made since the plan, from the new manifests alone.

A file group has a conflict if one of its files was removed or was added a second time (a commit removes files by path,
so it would remove both: rows that count twice would count once), if a position delete or deletion vector was added that
may name one of its rows, or if a delete that the rewrite has applied was removed. New equality deletes are no conflict:
the outputs carry the planned snapshot's data sequence number, so newer deletes still apply (spec: scan planning). Where
the table gives such numbers a second time, the run is planned again (`numbers_went_back`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.table.snapshots import Snapshot

from compactor.debt.table_changes import Gap, entries_changed, manifests_added, unseen_snapshots
from compactor.errors import ReplanError, RetryError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import TableView
from compactor.manifests.cache import ManifestCache
from compactor.manifests.tails import of_all
from compactor.partitions import PartitionKey
from compactor.planning.planner import FileGroup
from compactor.reasons import Reason


def is_traced(now: TableView, snapshot_id: int) -> bool:
    """Whether the table's metadata lists every commit of the branch after `snapshot_id`."""
    return not isinstance(unseen_snapshots(now.metadata, snapshot_id, now.ref), Gap)


def changes_since(now: TableView, planned: TableView, snapshot_id: int, cache: ManifestCache) -> tuple[FileEntry, ...]:
    """All files added and removed on the branch after the planned snapshot.

    Where the metadata does not list all commits in between (they expired, or the catalog shows the newest alone, as
    Nessie does), the files of both snapshots are compared: what was added and removed again is not among the changes.

    Raises:
        ReplanError: the branch no longer descends from that snapshot (a rollback), its manifests are gone, or the
            table's sequence numbers went back.
        RetryError: a manifest cannot be read.
    """
    before, head = planned.metadata.snapshot_by_id(snapshot_id), now.snapshot
    changes = _changes(now, planned, snapshot_id, before, cache)
    numbers = [(each.sequence_number or 0) if each else 0 for each in (before, head)]
    if numbers_went_back(numbers[0], numbers[1], changes):
        raise ReplanError(
            f"{now.name} has given sequence numbers up to {numbers[0]}, that of the planned snapshot {snapshot_id}, a "
            "second time: its catalog took commits back, or was restored",
            reason=Reason.HISTORY_GAP,
        )
    return changes


def _changes(
    now: TableView, planned: TableView, snapshot_id: int, before: Snapshot | None, cache: ManifestCache
) -> tuple[FileEntry, ...]:
    unseen = unseen_snapshots(now.metadata, snapshot_id, now.ref)
    if not isinstance(unseen, Gap):
        return tuple(entries_changed(now, manifests_added(now, unseen), cache))
    if before is None or now.metadata.snapshot_by_id(snapshot_id) is not None:
        raise ReplanError(
            f"branch {now.ref} of {now.name} no longer descends from the planned snapshot {snapshot_id}: it was rolled "
            "back",
            reason=Reason.HISTORY_GAP,
        )
    try:
        return _differences(planned, before, now, cache)
    except RetryError as error:
        raise ReplanError(
            f"the history of {now.name} since the planned snapshot {snapshot_id} expired: {error}",
            reason=Reason.HISTORY_GAP,
        ) from error


def _differences(planned: TableView, before: Snapshot, now: TableView, cache: ManifestCache) -> tuple[FileEntry, ...]:
    """Live files that one of two snapshots has more often than the other; manifests that both list are not read."""
    old, new = (
        {each.manifest_path: each for each in each_of} for each_of in (planned.manifests(before), now.manifests())
    )
    gone = _live(cache.read(planned, [each for path, each in old.items() if path not in new]))
    come = _live(cache.read(now, [each for path, each in new.items() if path not in old]))
    added, removed = more_often(come, gone), more_often(gone, come)
    return (
        *(entry._replace(status=Status.DELETED) for entry in removed),
        *(entry._replace(status=Status.ADDED) for entry in added),
    )


def _live(manifests: Iterable[Iterable[FileEntry]]) -> list[FileEntry]:
    return [entry for entries in manifests for entry in entries if entry.is_live]


def more_often(some: Iterable[FileEntry], others: Iterable[FileEntry]) -> Iterator[FileEntry]:
    """Pure: entries of `some` that `others` have not, or not as often.

    With another data sequence number a file is another one: other deletes apply to it, or it to other files.
    """
    left = Counter((entry.identity, entry.data_sequence_number) for entry in others)
    for entry in some:
        key = (entry.identity, entry.data_sequence_number)
        if left[key]:
            left[key] -= 1
        else:
            yield entry


def numbers_went_back(planned: int, head: int, changes: Iterable[FileEntry]) -> bool:
    """Pure: whether outputs with the planned snapshot's sequence number would miss deletes that are to apply to them.

    A catalog that goes back to older metadata gives the same numbers a second time: Apache Polaris after it has rolled
    a rewrite back for a writer, Nessie after a branch was reset, any catalog that was restored. An equality delete with
    such a number applies to the inputs and would not apply to the outputs. New position deletes are written for the
    outputs, but the numbers of these, and of all later deletes, follow the head's.

    `planned`, `head`: sequence numbers of the planned snapshot and of the branch's head. A planned snapshot that merely
    expired is older than the head and than every delete that was added since.
    """
    deletes = [entry for entry in changes if entry.content is Content.EQUALITY_DELETES]
    removed = [entry for entry in deletes if entry.status is Status.DELETED]
    added = [entry for entry in deletes if entry.status is not Status.DELETED]
    return head < planned or any(entry.data_sequence_number <= planned for entry in more_often(added, removed))


def touched_groups(groups: Sequence[FileGroup], changes: Iterable[FileEntry]) -> dict[int, str]:
    """Pure: the index of each file group with a conflict → the conflict, for people."""
    owner = {file.entry.path: index for index, group in enumerate(groups) for file in group.files}
    in_partition: Mapping[PartitionKey, list[int]] = _indexes((group.key, index) for index, group in enumerate(groups))
    # One Puffin file holds the deletion vectors of many data files.
    using_delete: Mapping[tuple[str, str | None], list[int]] = _indexes(
        (used, index)
        for index, group in enumerate(groups)
        for used in {(each.path, each.applies_to) for each in of_all(file.deletes for file in group.files)}
    )
    touched: dict[int, str] = {}
    for entry in changes:
        removed = entry.status is Status.DELETED
        if entry.content is Content.DATA:
            hit = [owner[entry.path]] if entry.path in owner else []
            what = f"{entry.path} was {'removed from' if removed else 'added once more to'} the table"
        elif removed:
            hit = using_delete.get((entry.path, entry.applies_to), [])
            what = f"delete file {entry.path}, which the rewrite had applied, was removed"
        elif entry.content is Content.EQUALITY_DELETES:
            continue
        elif entry.applies_to is not None:
            hit = [owner[entry.applies_to]] if entry.applies_to in owner else []
            what = f"rows of {entry.applies_to} were deleted"
        else:
            hit = in_partition.get(entry.key, [])
            what = f"position deletes {entry.path} were added to the partition"
        for index in hit:
            touched.setdefault(index, what)
    return touched


def _indexes(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for key, index in pairs:
        if not found[key] or found[key][-1] != index:
            found[key].append(index)
    return found
