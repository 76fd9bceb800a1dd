"""Small-file debt: exact counts per (table, spec, partition), and the board that holds the newest counts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add, attrgetter, neg
from typing import Any, NamedTuple

from compactor.debt.manifest_debt import ManifestCounts
from compactor.iceberg.other_compactors import OtherCompactor
from compactor.iceberg.tables import DEFAULT_TARGET_FILE_SIZE
from compactor.partitions import JsonValue, PartitionKey
from compactor.patience.holds import Hold, Holds, Key, What
from compactor.table_names import TableName

_numbers = attrgetter(
    "data_files", "small_files", "data_bytes", "small_bytes", "delete_files", "records", "deleted_records"
)
SizeLadder = tuple[tuple[int, int, int], ...]
"""Small files by size: (step of `tiers.step_of`, files, bytes), ascending, no empty step."""


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Counts of the live files of one partition; sizes in bytes; `small` by the thresholds of the count.

    `changed_ms`: the last known commit of a writer to this partition; ignored by equality.
    `equality_deletes`: how many of the delete files are equality deletes.
    """

    data_files: int = 0
    small_files: int = 0
    data_bytes: int = 0
    small_bytes: int = 0
    delete_files: int = 0
    records: int = 0
    deleted_records: int = 0
    small_sizes: SizeLadder = ()
    changed_ms: int = field(default=0, compare=False)
    equality_deletes: int = 0

    def __add__(self, other: PartitionCounts) -> PartitionCounts:
        return self.from_list(
            [
                *map(add, _numbers(self), _numbers(other)),
                _joined(self.small_sizes, other.small_sizes),
                max(self.changed_ms, other.changed_ms),
                self.equality_deletes + other.equality_deletes,
            ]
        )

    def __neg__(self) -> PartitionCounts:
        ladder = [(step, -files, -size) for step, files, size in self.small_sizes]
        return self.from_list([*map(neg, _numbers(self)), ladder, self.changed_ms, -self.equality_deletes])

    def to_list(self) -> list[Any]:
        """As a list for JSON; `from_list` is the inverse."""
        return [*_numbers(self), self.small_sizes, self.changed_ms, self.equality_deletes]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> PartitionCounts:
        """The inverse of `to_list`."""
        *counts, ladder, changed_ms, equality_deletes = values
        small_sizes = tuple((step, files, size) for step, files, size in ladder)
        return cls(*[*counts, small_sizes, changed_ms, equality_deletes])

    @property
    def is_possible(self) -> bool:
        """Whether no number is negative; a negative number means that the ledger's counts are wrong."""
        return min(*_numbers(self), self.equality_deletes) >= 0 and all(
            files > 0 and size >= 0 for _, files, size in self.small_sizes
        )

    @property
    def has_debt(self) -> bool:
        """Whether the partition has small files or delete files; without them it is never due."""
        return self.small_files > 0 or self.delete_files > 0

    @property
    def is_empty(self) -> bool:
        """Whether the partition has no live file, so it is gone from the table."""
        return self.data_files == 0 and self.delete_files == 0


@dataclass(frozen=True, slots=True)
class PartitionDebt:
    """One partition's counts, with its values for people (`{field: value}`) and its bucket number, if it has one.

    `large_bytes`: of files that are not small and that a run reads because of their deletes, if the partition is due;
    an estimate.
    """

    key: PartitionKey
    partition: Mapping[str, JsonValue]
    bucket: int | None
    counts: PartitionCounts
    due: bool
    why: str
    large_bytes: int = 0

    @property
    def urgency(self) -> tuple[bool, int, int]:
        """Greater is more urgent: due before not due, then by small files, then by delete files."""
        return (self.due, self.counts.small_files, self.counts.delete_files)


class Remainder(NamedTuple):
    """Sums over partitions with debt that have no object of their own. `due_*`: over the due ones among them."""

    partitions: int = 0
    small_files: int = 0
    small_bytes: int = 0
    due_partitions: int = 0
    due_files: int = 0
    due_bytes: int = 0
    due_large_bytes: int = 0

    def plus(self, debt: PartitionDebt) -> Remainder:
        """With one partition more."""
        files, size = debt.counts.small_files, debt.counts.small_bytes
        due = (1, files, size, debt.large_bytes) if debt.due else (0, 0, 0, 0)
        return Remainder(*map(add, self, (1, files, size, *due)))

    def joined(self, other: Remainder) -> Remainder:
        """The sums over both."""
        return Remainder(*map(add, self, other))


NO_REMAINDER = Remainder()


@dataclass(frozen=True)
class TableDebt:
    """The debt of one table. Times are in seconds since the epoch.

    Attributes:
        partitions: Partitions with debt (small files or delete files): all of them, or those that a shortlist keeps.
        others: Sums over the partitions with debt that are not in `partitions`.
        counted: Sums over all partitions.
        acted_on: Whether the settings allow to rewrite the table.
        stale: Why the counts may be old, else None.
        recounting: Whether they are old only because a long count goes on.
        waiting_since: Time of the oldest event that no rewrite has followed yet.
        due_since: When the table became due.
        commits_per_hour: Average over about the last hour.
        counted_at: When its last commit was counted.
        requested: Filters of requested rewrites; an empty filter means everything.
        refused: Table properties of firnline that are not used, with the reason.
        target_bytes: The table's target file size.
        other_firnlines: Other deployments of firnline that rewrote the table within the day before its last commit.
        basis: What plans depend on besides the files, e.g. policy and schema: what a plan declined holds while it is
            equal.
    """

    table: TableName
    snapshot_id: int | None = None
    partitions: Mapping[PartitionKey, PartitionDebt] = field(default_factory=dict)
    counted: PartitionCounts | None = None
    acted_on: bool = False
    stale: str | None = None
    waiting_since: float | None = None
    due_since: float | None = None
    commits_per_hour: float = 0.0
    counted_at: float | None = None
    requested: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    manifests: ManifestCounts | None = None
    others: Remainder = NO_REMAINDER
    target_bytes: int | None = None
    other_firnlines: tuple[OtherCompactor, ...] = ()
    recounting: bool = False
    basis: object = None

    @property
    def unreadable(self) -> bool:
        """Whether the last look could not read the table."""
        return self.stale is not None and not self.recounting

    @property
    def has_work(self) -> bool:
        """Whether a partition or the manifests are due."""
        return bool(self.due) or self.due_manifests is not None

    @property
    def due_manifests(self) -> ManifestCounts | None:
        """The counts of the manifests, if some are due."""
        return self.manifests if self.manifests is not None and self.manifests.due else None

    @property
    def due_partitions(self) -> int:
        """The number of due partitions."""
        return len(self.due) + self.others.due_partitions

    @property
    def due_files(self) -> int:
        """Small files of the due partitions."""
        return sum(partition.counts.small_files for partition in self.due) + self.others.due_files

    @property
    def due_bytes(self) -> int:
        """Bytes of these files."""
        return sum(partition.counts.small_bytes for partition in self.due) + self.others.due_bytes

    @property
    def due_large_bytes(self) -> int:
        """Bytes of files that are not small and that a run reads because of their deletes; an estimate."""
        return sum(partition.large_bytes for partition in self.due) + self.others.due_large_bytes

    def may_hold(self, key: PartitionKey) -> bool:
        """Whether the partition has debt, as far as the board knows: partitions without an object have no names."""
        return key in self.partitions or self.others.partitions > 0

    @property
    def total(self) -> PartitionCounts:
        """The table's counts over all partitions."""
        if self.counted is not None:
            return self.counted
        return sum((debt.counts for debt in self.partitions.values()), PartitionCounts())

    @cached_property
    def due(self) -> tuple[PartitionDebt, ...]:
        """The due partitions that have an object, most small files first."""
        chosen = [debt for debt in self.partitions.values() if debt.due]
        return tuple(sorted(chosen, key=lambda debt: (-debt.counts.small_files, debt.key)))

    @cached_property
    def debt_files(self) -> int:
        """Files that a rewrite of the due partitions removes: small files less the outputs, by bytes and target."""
        target, others = self.target_bytes or DEFAULT_TARGET_FILE_SIZE, self.others
        outputs = (max(1, -(-each.counts.small_bytes // target)) for each in self.due)
        removed = sum(max(0, each.counts.small_files - left) for each, left in zip(self.due, outputs, strict=True))
        return removed + max(0, others.due_files - max(others.due_partitions, others.due_bytes // target))


def _joined(left: SizeLadder, right: SizeLadder) -> SizeLadder:
    if not left or not right:
        return left or right
    steps = {step: (files, size) for step, files, size in left}
    for step, files, size in right:
        known_files, known_size = steps.get(step, (0, 0))
        steps[step] = (known_files + files, known_size + size)
    return tuple((step, *steps[step]) for step in sorted(steps) if steps[step] != (0, 0))


def earliest(*moments: float | None) -> float | None:
    """The earliest known moment; None if none is known."""
    return min((moment for moment in moments if moment is not None), default=None)


def judged(partition: PartitionDebt, basis: object) -> object:
    """What a plan's decision to leave a due partition alone depends on; `basis`: the table's, see `TableDebt`.

    A partition that is not worth merging now may be worth it when it is idle, or by another policy.
    """
    return partition.counts, partition.why, basis


def as_held(partition: PartitionDebt, hold: Hold | None, basis: object) -> PartitionDebt:
    """The partition, not due if a plan has left it alone and nothing has changed since. `basis`: the table's now."""
    if hold is None or not partition.due or hold.basis != judged(partition, basis):
        return partition
    return replace(partition, due=False, why=hold.why)


class DebtBoard:
    """The newest `TableDebt` of every table, for the dispatcher and for metrics. Thread-safe; values are frozen.

    `holds`: what is not to be worked on again yet, for all parts of the process; the board holds partitions.
    """

    def __init__(self, holds: Holds | None = None) -> None:
        self.holds = holds or Holds()
        self._lock = threading.Lock()
        self._tables: dict[TableName, TableDebt] = {}
        self._with_work: set[TableName] = set()  # so that the dispatcher need not look at ten thousand others
        self._requested: dict[TableName, dict[str, int | None]] = {}  # files that the last part of each has left
        self._saving = threading.Lock()
        self._save: Callable[[Mapping[TableName, tuple[str, ...]]], bool] = lambda _requests: True
        self._changes = self._saved = 0  # of requests, counted

    def get(self, table: TableName) -> TableDebt | None:
        """The newest debt of `table`; None if the table is unknown."""
        with self._lock:
            return self._tables.get(table)

    def tables(self) -> tuple[TableDebt, ...]:
        """Every table's newest debt, in name order."""
        with self._lock:
            return tuple(self._tables[name] for name in sorted(self._tables))

    def with_work(self) -> tuple[TableDebt, ...]:
        """The debt of tables that may be rewritten and are due or requested, in name order."""
        with self._lock:
            return tuple(self._tables[name] for name in sorted(self._with_work))

    def put(self, debt: TableDebt) -> None:
        """Replace the debt of one table."""
        with self._lock:
            debt = replace(debt, requested=tuple(self._requested.get(debt.table, ())))
            self._keep(_without_held(debt, self.holds.of(What.PARTITION, debt.table)))

    def _keep(self, debt: TableDebt) -> None:
        self._tables[debt.table] = debt
        wanted = debt.acted_on and (debt.has_work or bool(debt.requested))
        (self._with_work.add if wanted else self._with_work.discard)(debt.table)

    def decline(
        self,
        seen: TableDebt,
        left_alone: Mapping[PartitionKey, str],
        selected: Collection[PartitionKey] = (),
        until: float = math.inf,
    ) -> None:
        """Hold partitions that a plan for `seen` left alone: they are not due until something changes (see `judged`).

        `selected`: the partitions that the plan selected. For all others, the decisions of earlier plans hold: a plan
        may say nothing of them, since they are not due. If they were forgotten, they would be due again, in turns.
        `until`: seconds since the epoch, after which another plan may select them though nothing has changed.
        """
        table, now = seen.table, self.holds.clock()
        held = [
            Hold(Key(What.PARTITION, table, each.key), left_alone[each.key], now, until, judged(each, seen.basis))
            for each in seen.due
            if each.key in left_alone
        ]
        with self._lock:
            known = self._tables.get(table)
            if known is None:
                return
            self.holds.release(What.PARTITION, table, selected)
            self.holds.put(What.PARTITION, table, held)
            self._keep(_without_held(known, self.holds.of(What.PARTITION, table)))

    def request(self, table: TableName, filters: Iterable[str]) -> None:
        """Add requests to rewrite what these filters select; a request that is already pending is not added again."""
        self.request_all({table: filters})

    def request_all(self, requests: Mapping[TableName, Iterable[str]]) -> None:
        """As `request`, of many tables; saved once."""
        with self._lock:
            for table, filters in requests.items():
                self._set_requests(table, (*self._requested.get(table, ()), *filters))
        self.save_requests()

    def requests(self, table: TableName) -> tuple[str, ...]:
        """Filters of the table's pending requests."""
        with self._lock:
            return tuple(self._requested.get(table, ()))

    def pending(self) -> Mapping[TableName, tuple[str, ...]]:
        """Filters of all pending requests, by table."""
        with self._lock:
            return {table: tuple(filters) for table, filters in self._requested.items()}

    def request_has_begun(self, table: TableName, filter_text: str) -> bool:
        """Whether a part of a pending request was done, because a limit cut the run or another commit overtook it, and
        another part follows.
        """
        with self._lock:
            return self._requested.get(table, {}).get(filter_text) is not None

    def request_goes_on(self, table: TableName, filter_text: str, files_left: int) -> bool:
        """Whether another part of a request follows one that has left so many files; else the request ends.

        Each part must leave fewer files than the one before: beside a writer that adds them faster than the parts merge
        them, a request would never end.
        """
        with self._lock:
            requests = self._requested.get(table, {})
            before = requests.get(filter_text)
            if filter_text not in requests or files_left == 0 or (before is not None and files_left >= before):
                return False
            requests[filter_text] = files_left
            return True

    def known(self) -> tuple[TableName, ...]:
        """Tables with a known debt or a pending request."""
        with self._lock:
            return tuple(dict.fromkeys((*self._tables, *self._requested)))

    def restore_requests(
        self,
        requests: Mapping[TableName, tuple[str, ...]],
        save: Callable[[Mapping[TableName, tuple[str, ...]]], bool],
    ) -> None:
        """Restore pending requests; `save` is called with all of them on each change, and tells whether it could."""
        with self._lock:
            self._requested = {table: dict.fromkeys(filters) for table, filters in requests.items()}
            self._save = save

    def _set_requests(self, table: TableName, filters: Iterable[str]) -> None:
        before = self._requested.pop(table, {})
        after = {text: before.get(text) for text in filters}
        if after:
            self._requested[table] = after
        if table in self._tables:
            self._keep(replace(self._tables[table], requested=tuple(after)))
        self._changes += list(after) != list(before)

    def save_requests(self) -> None:
        """Save all pending requests, if they have changed since the last save: what was dropped, or could not be saved.

        Outside of the board's lock: the store may be slow. The last save is complete.
        """
        with self._saving:
            with self._lock:
                changes = self._changes
            requests = self.pending()
            if changes != self._saved and self._save(requests):
                self._saved = changes

    def finish_request(self, table: TableName, filter_text: str) -> None:
        """Remove a request that has been carried out, or cannot be."""
        with self._lock:
            self._set_requests(table, [text for text in self._requested.get(table, ()) if text != filter_text])
        self.save_requests()

    def drop_requests(self, table: TableName) -> None:
        """Remove all requests of a table that is not acted on. Saved later: a restart drops them too."""
        with self._lock:
            self._set_requests(table, ())

    def forget(self, table: TableName, *, keep_requests: bool = False) -> None:
        """Drop a table that no longer exists, or is another service's. Its requests may wait for it.

        Dropped requests are saved later: a restart drops them too.
        """
        with self._lock:
            self._tables.pop(table, None)
            self._with_work.discard(table)
            self.holds.release(What.PARTITION, table)
            self.holds.release(What.TABLE, table)
            if not keep_requests:
                self._set_requests(table, ())

    def mark_stale(
        self,
        table: TableName,
        reason: str,
        waiting_since: float | None = None,
        *,
        acted_on: bool = False,
        recounting: bool = False,
    ) -> None:
        """Keep the last counts, but mark them as possibly old.

        `waiting_since`: time of an event that is not counted yet. `acted_on`: for a table without counts, whether the
        settings allow to rewrite it. `recounting`: the table can be read, and a long count of it goes on.
        """
        with self._lock:
            known = self._tables.get(table) or TableDebt(table, acted_on=acted_on)
            waiting = earliest(known.waiting_since, waiting_since)
            self._keep(replace(known, stale=reason, waiting_since=waiting, recounting=recounting))

    def left_to_others(self, table: TableName) -> None:
        """The table waits on purpose: it is not late, and becomes due again with its next change."""
        self._change(table, due_since=None)

    def settled(self, table: TableName) -> None:
        """Clear the waiting times of a table after the commit of a rewrite."""
        self._change(table, waiting_since=None, due_since=None)

    def _change(self, table: TableName, **changes: Any) -> None:
        with self._lock:
            if (known := self._tables.get(table)) is not None:
                self._keep(replace(known, **changes))


def _without_held(debt: TableDebt, held: Mapping[PartitionKey, Hold]) -> TableDebt:
    changed = {
        key: after
        for key, partition in (debt.partitions if held else {}).items()  # at most `KEPT`; `held` may be many
        if (after := as_held(partition, held.get(key), debt.basis)) is not partition
    }
    if not changed:
        return debt
    cleared = replace(debt, partitions={**debt.partitions, **changed})
    return cleared if cleared.has_work else replace(cleared, due_since=None)
