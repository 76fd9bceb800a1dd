"""The debt ledger: exact counts per (spec, partition) of one table, updated by walking unseen snapshots.

`LedgerStore` hides the state, a database on local disk. For any history (rollback, expiry, a replaced table, changed
thresholds) the counts equal a full recount at the snapshot that they name: if the walk is not provably complete, the
table is recounted.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Protocol

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot

from compactor.debt.board import PartitionCounts
from compactor.debt.table_changes import (
    FIRST_SIGHT,
    HISTORY_GAP,
    NOT_LISTED,
    AddedManifests,
    CommitTimes,
    Deltas,
    Gap,
    deltas_of,
    gap_in,
    live_counts,
    manifests_added,
    total_data_files,
    unseen_snapshots,
)
from compactor.errors import RetryError
from compactor.iceberg.tables import FileSizes, TableView
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.reasons import Reason

SLOTS = 256
"""Number of packed values that hold all partitions of a table, so that a commit reads and writes few of them."""
STATE_VERSION = 3
"""Part of the state's name: state of another version is left alone, and every table is counted once more."""
FILES_PER_LOOK = 250_000
"""Most files that one look counts in a recount (at least one manifest): about 200 MB if each has its own partition."""


class StateDamagedError(RetryError):
    """The saved state of a table cannot be decoded: it changed on the disk. Delete it, and count the table again."""

    reason = Reason.STATE_UNREADABLE

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the ledger's state of the table is damaged, so that it is counted again: {error}")


@dataclass(frozen=True)
class Recount:
    """A recount in progress: the manifests of `snapshot_id` before `next_manifest` (in list order) are counted.

    `pieces`: how many looks it took so far; each left packed values of its own, which the last look joins.
    """

    snapshot_id: int
    next_manifest: int
    reason: str
    pieces: int = 0


@dataclass(frozen=True)
class Head:
    """The ledger's state of a table as a whole.

    `drift`: total of the snapshot summary minus counted files; not 0 if a writer's summaries are wrong.
    `begun_anew`: how often the recount in progress lost what it had counted, because its snapshot expired.
    """

    table_uuid: str
    snapshot_id: int | None
    sizes: FileSizes
    totals: PartitionCounts = field(default_factory=PartitionCounts)
    drift: int = 0
    recount: Recount | None = None
    begun_anew: int = 0

    def to_json(self) -> str:
        """As text for the state store."""
        recount = self.recount
        return json.dumps(
            {
                "uuid": self.table_uuid,
                "snapshot": self.snapshot_id,
                "sizes": [self.sizes.target, self.sizes.small_below],
                "totals": self.totals.to_list(),
                "drift": self.drift,
                "recount": list(astuple(recount)) if recount else None,
                "begun_anew": self.begun_anew,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Head:
        """The inverse of `to_json`.

        Raises:
            StateDamagedError: it is no head.
        """
        try:
            tree = json.loads(text)
            return cls(
                tree["uuid"],
                tree["snapshot"],
                FileSizes(*tree["sizes"]),
                PartitionCounts.from_list(tree["totals"]),
                tree["drift"],
                Recount(*tree["recount"]) if tree["recount"] else None,
                tree["begun_anew"],
            )
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StateDamagedError(error) from error


class LedgerStore(Protocol):
    """State of one table: a head, and `SLOTS` packed values."""

    def head(self) -> str | None:
        """The head's text, None before the first count."""

    def put_head(self, text: str) -> None:
        """Replace the head."""

    def slot(self, number: int) -> bytes | None:
        """One packed value."""

    def put_slot(self, number: int, packed: bytes | None) -> None:
        """Replace (or with None: remove) one packed value."""

    def slots(self) -> Iterator[tuple[int, bytes]]:
        """All packed values with their numbers."""

    def clear(self) -> None:
        """Delete the table's state."""


@dataclass(frozen=True)
class LedgerUpdate:
    """The result of one look at a table.

    Attributes:
        counted: Whether the counts are complete at `snapshot_id`; False during a long recount.
        whole: Whether any partition may have changed: read the store. Else only `partitions` did.
        more: Whether the budget ended the look early: look again.
        recount_reason: Why the table is recounted; None for a walk.
        begins: Whether this look is the first one of a recount, which can take many.
        partitions: New counts of the partitions that a walk changed.
        begun_anew: How often this recount lost what it had counted, because its snapshot expired.
    """

    snapshot_id: int | None
    counted: bool = True
    whole: bool = False
    more: bool = False
    recount_reason: str | None = None
    totals: PartitionCounts = field(default_factory=PartitionCounts)
    partitions: Deltas = field(default_factory=dict)
    begins: bool = False
    begun_anew: int = 0


def advance(
    table: TableView,
    sizes: FileSizes,
    store: LedgerStore,
    cache: ManifestCache,
    *,
    manifest_budget: int,
) -> LedgerUpdate:
    """Bring one table's counts up to its current snapshot, within `manifest_budget` manifests.

    Raises:
        RetryError: a manifest or manifest list cannot be read; the state is that of the last completed step.
        StateDamagedError: the state cannot be decoded.
    """
    known = store.head()
    head = Head.from_json(known) if known is not None else None
    reason = _reason_to_recount(head, table, sizes)
    if reason is None and head is not None and head.recount is None:
        walk = unseen_snapshots(table.metadata, head.snapshot_id)
        if isinstance(walk, Gap):
            reason = walk.reason
        else:
            update = _walk(table, head, walk, store, cache, manifest_budget)
            if update is not None:
                return update
            reason = "summary_mismatch"
    return _recount(table, sizes, head, reason, store, cache, manifest_budget)


def _reason_to_recount(head: Head | None, table: TableView, sizes: FileSizes) -> str | None:
    if head is None:
        return FIRST_SIGHT
    if head.table_uuid != table.uuid:
        return "table_replaced"
    if head.sizes != sizes:
        return "thresholds_changed"
    if head.recount is not None and table.metadata.snapshot_by_id(head.recount.snapshot_id) is None:
        return gap_in(table.metadata).reason
    return None


def _walk(
    table: TableView, head: Head, unseen: tuple[Snapshot, ...], store: LedgerStore, cache: ManifestCache, budget: int
) -> LedgerUpdate | None:
    """Apply unseen snapshots, oldest first; None if the result contradicts the snapshot's own total."""
    taken = _within_budget(table, unseen, budget)
    deltas = deltas_of(table, taken, head.sizes, cache)
    totals = sum(deltas.values(), head.totals)
    snapshot = taken[-1][0] if taken else None
    claimed = total_data_files(snapshot)
    if claimed is not None and claimed - totals.data_files != head.drift:
        return None
    changed = _apply(store, deltas)
    if not all(counts.is_possible for counts in changed.values()):
        return None
    snapshot_id = snapshot.snapshot_id if snapshot else head.snapshot_id
    if taken:
        store.put_head(replace(head, snapshot_id=snapshot_id, totals=totals).to_json())
    return LedgerUpdate(snapshot_id, totals=totals, more=len(taken) < len(unseen), partitions=changed)


def _within_budget(table: TableView, unseen: tuple[Snapshot, ...], budget: int) -> list[AddedManifests]:
    """As many snapshots as the budget of manifests allows, at least one."""
    taken: list[AddedManifests] = []
    for snapshot, manifests in manifests_added(table, unseen):
        budget -= len(manifests)
        if taken and budget < 0:
            break
        taken.append((snapshot, manifests))
    return taken


def _recount(
    table: TableView,
    sizes: FileSizes,
    head: Head | None,
    reason: str | None,
    store: LedgerStore,
    cache: ManifestCache,
    budget: int,
) -> LedgerUpdate:
    """Count the live files of one snapshot, at most `budget` manifests at a time; continues a recount in progress."""
    going_on = head.recount if head is not None else None
    if reason is None and head is not None and going_on is not None:
        recount, totals, begun_anew = going_on, head.totals, head.begun_anew
    else:
        expired = going_on is not None and reason in {HISTORY_GAP, NOT_LISTED}
        begun_anew = head.begun_anew + 1 if head is not None and expired else 0
        totals = PartitionCounts()
        store.clear()
        if table.snapshot is None:
            store.put_head(Head(table.uuid, None, sizes).to_json())
            return LedgerUpdate(None, whole=True, recount_reason=reason, begins=True)
        recount = Recount(table.snapshot.snapshot_id, 0, reason or FIRST_SIGHT)
    counted_snapshot = table.metadata.snapshot_by_id(recount.snapshot_id)
    manifests = table.manifests(counted_snapshot)
    piece = _piece(manifests[recount.next_manifest : recount.next_manifest + budget])
    deltas = live_counts(cache.read(table, piece), sizes, CommitTimes.of(table.metadata))
    totals = sum(deltas.values(), totals)
    counted = recount.next_manifest + len(piece)
    done = counted >= len(manifests)
    _keep_piece(store, deltas, recount.pieces, done=done)
    claimed = total_data_files(counted_snapshot)
    new_head = Head(
        table_uuid=table.uuid,
        snapshot_id=recount.snapshot_id if done else None,
        sizes=sizes,
        totals=totals,
        drift=claimed - totals.data_files if done and claimed is not None else 0,
        recount=None if done else replace(recount, next_manifest=counted, pieces=recount.pieces + 1),
        begun_anew=0 if done else begun_anew,
    )
    store.put_head(new_head.to_json())
    behind = table.snapshot is None or table.snapshot.snapshot_id != recount.snapshot_id
    return LedgerUpdate(
        new_head.snapshot_id, done, done, more=not done or behind, recount_reason=recount.reason, totals=totals,
        begins=recount.pieces == 0, begun_anew=begun_anew,
    )  # fmt: skip


def _piece(manifests: Sequence[ManifestFile]) -> Sequence[ManifestFile]:
    """The first of these manifests, at least one, that list at most `FILES_PER_LOOK` live files together."""
    files = 0
    for number, manifest in enumerate(manifests):
        files += (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        if number and files > FILES_PER_LOOK:
            return manifests[:number]
    return manifests


def _keep_piece(store: LedgerStore, deltas: Deltas, earlier: int, *, done: bool) -> None:
    """Save what one look of a recount counted. Pieces are joined once, by the last look: to add each piece to all
    partitions counted before would take minutes for a million partitions. Empties `deltas`.
    """
    first = SLOTS * (earlier + 1) if earlier or not done else 0
    by_slot = _by_slot(deltas)
    while by_slot:
        number, counts = by_slot.popitem()
        store.put_slot(first + number, pack(counts.items()))
    if not done or not earlier:
        return
    for number in range(SLOTS):
        joined: Deltas = {}
        for piece in range(SLOTS + number, SLOTS * (earlier + 2), SLOTS):
            for key, counts_of_piece in unpack(packed) if (packed := store.slot(piece)) else ():
                joined[key] = joined[key] + counts_of_piece if key in joined else counts_of_piece
            store.put_slot(piece, None)
        store.put_slot(number, pack(joined.items()) if joined else None)


def _apply(store: LedgerStore, deltas: Deltas) -> Deltas:
    """Add deltas to the state, slot by slot; returns the new counts of each changed partition."""
    changed: Deltas = {}
    for number, changes in _by_slot(deltas).items():
        packed = store.slot(number)
        counts = dict(unpack(packed)) if packed else {}
        for key, change in changes.items():
            counts[key] = changed[key] = counts.get(key, PartitionCounts()) + change
            if counts[key].is_empty:
                del counts[key]
        store.put_slot(number, pack(counts.items()) if counts else None)
    return changed


def _by_slot(deltas: Deltas) -> dict[int, Deltas]:
    """The deltas by slot. Empties `deltas`, which can be large."""
    by_slot: dict[int, Deltas] = {}
    while deltas:
        key, change = deltas.popitem()
        by_slot.setdefault(slot_of(key), {})[key] = change
    return by_slot


def slot_of(key: PartitionKey) -> int:
    return zlib.crc32(f"{key.spec_id}:{key.values}".encode()) % SLOTS


def pack(counts: Iterable[tuple[PartitionKey, PartitionCounts]]) -> bytes:
    """Partitions and their counts as compressed JSON."""
    rows = [[key.spec_id, key.values, *value.to_list()] for key, value in counts]
    return zlib.compress(json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode(), level=1)


def unpack(packed: bytes) -> Iterator[tuple[PartitionKey, PartitionCounts]]:
    """The inverse of `pack`.

    Raises:
        StateDamagedError: the bytes are not those that `pack` made; zlib's checksum finds each changed bit.
    """
    try:
        rows = json.loads(zlib.decompress(packed))
    except (zlib.error, ValueError, TypeError) as error:
        raise StateDamagedError(error) from error
    for spec_id, values, *numbers in rows:
        yield PartitionKey(spec_id, values), PartitionCounts.from_list(numbers)
