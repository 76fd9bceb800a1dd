"""What one snapshot lists, against itself, its parent and its summary; Iceberg's spec, "Manifests", "Snapshots" and
"Row Lineage".

Only what the snapshot itself wrote is judged: manifests and entries that other writers left may be wrong already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from tests.correctness.metadata_reader import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    NAN,
    POSITION_DELETES,
    Entry,
    Manifest,
    SnapshotState,
    TableMetadata,
    local_path,
)

ROW_LINEAGE_VERSION = 3
STATUSES = {EXISTING: "existing", ADDED: "added", DELETED: "deleted"}
Measure = Callable[[Iterable[Entry]], int]


def _count(*contents: int) -> Measure:
    return lambda entries: sum(entry.content in contents for entry in entries)


def _rows(content: int) -> Measure:
    return lambda entries: sum(entry.records for entry in entries if entry.content == content)


def _bytes(entries: Iterable[Entry]) -> int:
    """Iceberg counts a deletion vector's blob, not the Puffin file that it shares with others."""
    return sum((entry.content_size if entry.is_vector else None) or entry.size for entry in entries)


MEASURES: Mapping[str, tuple[str, str, Measure]] = {
    "data-files": ("added", "deleted", _count(DATA)),
    "delete-files": ("added", "removed", _count(POSITION_DELETES, EQUALITY_DELETES)),
    "records": ("added", "deleted", _rows(DATA)),
    "files-size": ("added", "removed", _bytes),
    "position-deletes": ("added", "removed", _rows(POSITION_DELETES)),
    "equality-deletes": ("added", "removed", _rows(EQUALITY_DELETES)),
}
"""Of a summary: what is counted, how it names what came and went."""


def by_snapshot(state: SnapshotState, status: int) -> list[Entry]:
    """Entries that this very snapshot added or deleted."""
    return [entry for entry in state.entries if (entry.status, entry.snapshot_id) == (status, state.snapshot_id)]


def summary_problems(after: SnapshotState, before: SnapshotState | None) -> Iterator[str]:
    """Deltas equal what the snapshot's entries added and deleted; totals change by as much as the live files did.

    Where the parent's total was wrong or missing, only the change is judged.
    """
    added, deleted = by_snapshot(after, ADDED), by_snapshot(after, DELETED)
    for what, (came, went, measure) in MEASURES.items():
        for key, entries in ((f"{came}-{what}", added), (f"{went}-{what}", deleted)):
            claimed, found = int(after.summary.get(key) or 0), measure(entries)
            if claimed != found:
                yield f"the summary's {key} is {claimed}, the manifests hold {found}"
        total = f"total-{what}"
        claimed_before = before.summary.get(total) if before else "0"
        if total not in after.summary:
            if claimed_before is not None:
                yield f"the summary has no {total}"
            continue
        offset = int(claimed_before) - (measure(before.live) if before else 0) if claimed_before is not None else 0
        claimed, found = int(after.summary[total]), measure(after.live)
        if claimed != found + offset:
            yield f"the summary's {total} is {claimed}, the manifests hold {found}"


def duplicate_problems(after: SnapshotState, before: SnapshotState | None) -> Iterator[str]:
    """No file is listed twice, unless it was before."""
    earlier = Counter(entry.identity for entry in before.live) if before else Counter()
    labels = {entry.identity: entry.label for entry in after.live}
    for identity, times in Counter(entry.identity for entry in after.live).items():
        if times > max(1, earlier[identity]):
            yield f"{labels[identity]} is listed {times} times"


def manifest_problems(after: SnapshotState) -> Iterator[str]:
    """The manifest list's lengths, counts and sequence numbers equal the manifests'."""
    if len({manifest.path for manifest in after.manifests}) != len(after.manifests):
        yield "a manifest is listed twice"
    for manifest in after.manifests:
        name = manifest.path.rsplit("/", 1)[-1]
        if manifest.snapshot_id != after.snapshot_id:
            continue
        size = local_path(manifest.path).stat().st_size
        if size != manifest.size:
            yield f"manifest {name}: {manifest.size} bytes in the manifest list, {size} on disk"
        entries = [entry for entry in after.entries if entry.manifest == manifest.path]
        for status, what in STATUSES.items():
            mine = [entry for entry in entries if entry.status == status]
            found = (len(mine), sum(entry.records for entry in mine))
            if (manifest.files[status], manifest.rows[status]) != found:
                claimed = f"{manifest.files[status]} {what} files and {manifest.rows[status]} rows"
                yield f"manifest {name}: {claimed} in the manifest list, {found[0]} and {found[1]} in the manifest"
        if any((entry.content == DATA) != (manifest.content == DATA) for entry in entries):
            yield f"manifest {name}: data files and delete files in one manifest"
        yield from (f"manifest {name}: {problem}" for problem in _partition_problems(manifest, entries))
        lowest = min((entry.sequence_number or 0 for entry in entries if entry.status != DELETED), default=None)
        if lowest is not None and manifest.min_sequence_number > lowest:
            yield f"manifest {name}: least sequence number {manifest.min_sequence_number}, an entry has {lowest}"


def _partition_problems(manifest: Manifest, entries: Iterable[Entry]) -> Iterator[str]:
    """Readers skip a manifest by its partition summaries: they must admit every live entry's values."""
    columns = zip(*(entry.partition for entry in entries if entry.status != DELETED), strict=True)
    for number, (summary, values) in enumerate(zip(manifest.partitions or (), columns, strict=False)):
        if None in values and not summary["contains_null"]:
            yield f"partition field {number} has nulls, its summary says that it has none"
        if NAN in values and summary.get("contains_nan") is False:
            yield f"partition field {number} has NaN, its summary says that it has none"
        if {*values} - {None, NAN} and None in (summary["lower_bound"], summary["upper_bound"]):
            yield f"partition field {number} has values, its summary has no bounds"


def history_problems(after: SnapshotState, before: SnapshotState | None) -> Iterator[str]:
    """Live files are the parent's without those deleted and with those added; what stays is listed as it was.

    A file that another writer listed twice has no single entry to compare with.
    """
    if before is None:
        return
    earlier = {entry.identity: entry for entry in before.live}
    times = Counter(entry.identity for entry in before.live)
    added = {entry.identity for entry in by_snapshot(after, ADDED)}
    deleted = {entry.identity: entry for entry in by_snapshot(after, DELETED)}
    live = {entry.identity for entry in after.live}
    for identity, entry in earlier.items():
        if identity not in live and identity not in deleted:
            yield f"{entry.label} vanished: no entry says that it was deleted"
    for identity, entry in deleted.items():
        if identity not in earlier:
            yield f"{entry.label} is deleted, but was not live in the parent"
    for entry in after.live:
        was = earlier.get(entry.identity)
        if was is None and entry.identity not in added:
            yield f"{entry.label} appeared: no entry says that this snapshot added it"
        if was is not None and times[entry.identity] == 1:
            yield from _change_problems(was, entry)


def _change_problems(was: Entry, entry: Entry) -> Iterator[str]:
    if was.first_row_id is None:  # of a snapshot before format version 3
        was = replace(was, first_row_id=entry.first_row_id)
    if _unchanging(was) != _unchanging(entry):
        yield f"{entry.label} was listed as {_unchanging(was)}, and is as {_unchanging(entry)}"
    if entry.status == EXISTING and _origin(was) != _origin(entry):
        yield f"{entry.label} was added by snapshot, sequence number {_origin(was)}, and is now by {_origin(entry)}"


def _unchanging(entry: Entry) -> tuple[object, ...]:
    lineage = entry.first_row_id
    return entry.place, entry.records, entry.size, entry.equality_ids, entry.sequence_number, lineage, entry.referenced


def _origin(entry: Entry) -> tuple[int | None, int | None]:
    return entry.snapshot_id, entry.file_sequence_number


def sequence_problems(metadata: TableMetadata, after: SnapshotState, planned: int | None) -> Iterator[str]:
    """Added data files carry the planned snapshot's sequence number, and nothing one above the snapshot's own."""
    if metadata.version == 1:
        return
    own = after.sequence_number
    orders = {order["order-id"] for order in metadata.document.get("sort-orders") or ()} | {None, 0}
    for entry in after.live:
        numbers = entry.sequence_number, entry.file_sequence_number
        if None in numbers:
            yield f"{entry.label}: without sequence number"
        elif max(number or 0 for number in numbers) > own:
            yield f"{entry.label}: sequence numbers {numbers}, the snapshot's is {own}"
    for entry in by_snapshot(after, ADDED):
        if entry.content == DATA and planned is not None and entry.sequence_number != planned:
            yield f"{entry.label}: data sequence number {entry.sequence_number}, the planned snapshot's is {planned}"
        if entry.file_sequence_number != own:
            yield f"{entry.label}: file sequence number {entry.file_sequence_number}, the snapshot's is {own}"
        if entry.sort_order_id not in orders:
            yield f"{entry.label}: sort order {entry.sort_order_id}, which the table does not have"


def lineage_problems(metadata: TableMetadata, after: SnapshotState) -> Iterator[str]:
    """Row ids of live data files are disjoint and assigned; snapshot, manifests and table metadata agree on them."""
    first = after.snapshot.get("first-row-id")
    if first is None:
        if metadata.version >= ROW_LINEAGE_VERSION:
            yield "without first-row-id"
        return
    next_row_id, end = int(metadata.document["next-row-id"]), first + int(after.snapshot.get("added-rows") or 0)
    if end > next_row_id:
        yield f"row ids {first} to {end}, the table's next-row-id is {next_row_id}"
    for manifest in after.manifests:
        if manifest.content == DATA and manifest.first_row_id is None:
            yield f"manifest {manifest.path.rsplit('/', 1)[-1]}: without first_row_id"
    for entry in by_snapshot(after, ADDED):
        if entry.first_row_id is not None and not first <= entry.first_row_id <= end - entry.records:
            yield f"{entry.label}: row ids from {entry.first_row_id}, the snapshot's are {first} to {end}"
    yield from _range_problems(after.data, next_row_id)


def _range_problems(data: Iterable[Entry], next_row_id: int) -> Iterator[str]:
    ranges = []
    for entry in data:
        if entry.first_row_id is None:
            yield f"{entry.label}: without first row id"
        elif entry.first_row_id + entry.records > next_row_id:
            yield f"{entry.label}: row ids from {entry.first_row_id}, the table's next-row-id is {next_row_id}"
        else:
            ranges.append((entry.first_row_id, entry.first_row_id + entry.records, entry.label))
    for (_, end, label), (start, _, other) in pairwise(sorted(ranges)):
        if start < end:
            yield f"{label} and {other} share row ids from {start}"
