"""Small-file debt: exact counts per (table, spec, partition), and the board that holds the newest of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from compactor.debt.manifest_debt import ManifestCounts
    from compactor.partitions import JsonValue, PartitionKey
    from compactor.table_names import TableName


_VALUES = 10  # of a `PartitionCounts` as a list
SizeLadder = tuple[tuple[int, int, int], ...]
"""Small files by size: (step of `tiers.step_of`, files, bytes), ascending, no empty step."""


@dataclass(frozen=True)
class PartitionCounts:
    """Live files of one partition. Sizes in bytes. `small` is by the thresholds the count was made with.

    `changed_ms`: when a writer last committed here, as far as known: no count, and no part of equality.
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
        return PartitionCounts(
            data_files=self.data_files + other.data_files,
            small_files=self.small_files + other.small_files,
            data_bytes=self.data_bytes + other.data_bytes,
            small_bytes=self.small_bytes + other.small_bytes,
            delete_files=self.delete_files + other.delete_files,
            records=self.records + other.records,
            deleted_records=self.deleted_records + other.deleted_records,
            small_sizes=_joined(self.small_sizes, other.small_sizes),
            changed_ms=max(self.changed_ms, other.changed_ms),
            equality_deletes=self.equality_deletes + other.equality_deletes,
        )

    def __neg__(self) -> PartitionCounts:
        return PartitionCounts(
            data_files=-self.data_files,
            small_files=-self.small_files,
            data_bytes=-self.data_bytes,
            small_bytes=-self.small_bytes,
            delete_files=-self.delete_files,
            records=-self.records,
            deleted_records=-self.deleted_records,
            small_sizes=tuple((step, -files, -size) for step, files, size in self.small_sizes),
            changed_ms=self.changed_ms,
            equality_deletes=-self.equality_deletes,
        )

    def to_list(self) -> list[Any]:
        """For JSON; `from_list` reads it."""
        return [*self._counts, self.small_sizes, self.changed_ms, self.equality_deletes]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> PartitionCounts:
        """The inverse of `to_list`. State written before equality deletes were counted has none; it is counted anew."""
        numbers = values if len(values) == _VALUES else (*values, 0)
        data_files, small_files, data_bytes, small_bytes, deletes, records, deleted, ladder, changed, equality = numbers
        return cls(
            data_files,
            small_files,
            data_bytes,
            small_bytes,
            deletes,
            records,
            deleted,
            tuple((step, files, size) for step, files, size in ladder),
            changed,
            equality,
        )

    @property
    def is_possible(self) -> bool:
        """Whether no number is below zero: a ledger that subtracts what it never added has lost its way."""
        return min(*self._counts, self.equality_deletes) >= 0 and all(
            files > 0 and size >= 0 for _, files, size in self.small_sizes
        )

    @property
    def _counts(self) -> tuple[int, ...]:
        return (
            self.data_files,
            self.small_files,
            self.data_bytes,
            self.small_bytes,
            self.delete_files,
            self.records,
            self.deleted_records,
        )

    @property
    def has_debt(self) -> bool:
        """Whether anything here could ever be due."""
        return self.small_files > 0 or self.delete_files > 0

    @property
    def is_empty(self) -> bool:
        """No live file at all: the partition is gone from the table."""
        return self.data_files == 0 and self.delete_files == 0


@dataclass(frozen=True)
class PartitionDebt:
    """One partition's counts with the words to show them: `{field: value}` and the bucket number where there is one."""

    key: PartitionKey
    partition: Mapping[str, JsonValue]
    bucket: int | None
    counts: PartitionCounts
    due: bool
    why: str


@dataclass(frozen=True)
class TableDebt:
    """One table as of `snapshot_id`. `stale` says why the counts may be old, else None.

    `partitions` holds those with debt (small or delete files), `counted` the sums over all partitions.
    Times are seconds since the epoch: `waiting_since` that of the oldest event not yet answered by a rewrite,
    `due_since` when the table was first seen due, `heard_at` when its last commit was counted; `commits_per_hour` is an
    average over about the last hour. `requested`: filters by which people asked for a rewrite, empty for everything.
    `refused`: table properties in firnline's name that are not used, with the reason.
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
    heard_at: float | None = None
    requested: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    manifests: ManifestCounts | None = None

    @property
    def has_work(self) -> bool:
        """Whether the policy calls a partition due, or the manifests are."""
        return bool(self.due) or (self.manifests is not None and self.manifests.due)

    @property
    def total(self) -> PartitionCounts:
        """The table's counts over all partitions."""
        if self.counted is not None:
            return self.counted
        return sum((debt.counts for debt in self.partitions.values()), PartitionCounts())

    @cached_property
    def due(self) -> tuple[PartitionDebt, ...]:
        """Partitions the policy calls due, most small files first."""
        chosen = [debt for debt in self.partitions.values() if debt.due]
        return tuple(sorted(chosen, key=lambda debt: (-debt.counts.small_files, debt.key)))


def _joined(left: SizeLadder, right: SizeLadder) -> SizeLadder:
    if not left or not right:
        return left or right
    steps = {step: (files, size) for step, files, size in left}
    for step, files, size in right:
        known_files, known_size = steps.get(step, (0, 0))
        steps[step] = (known_files + files, known_size + size)
    return tuple((step, *steps[step]) for step in sorted(steps) if steps[step] != (0, 0))


def earliest(*moments: float | None) -> float | None:
    """The earliest of the moments that are known, None when none is."""
    return min((moment for moment in moments if moment is not None), default=None)


@dataclass(frozen=True)
class Declined:
    """A partition that a plan has left alone although its counts call it due.

    It holds while the counts stand and call it due for the same reason (`judged`): what is not worth merging now may
    be once it is idle.
    """

    counts: PartitionCounts
    judged: str
    why: str


class DebtBoard:
    """The newest `TableDebt` of every table, for the dispatcher and for metrics. Thread-safe; values are frozen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[TableName, TableDebt] = {}
        self._declined: dict[TableName, dict[PartitionKey, Declined]] = {}
        self._requested: dict[TableName, tuple[str, ...]] = {}
        self._keeping = threading.Lock()
        self._keep: Callable[[Mapping[TableName, tuple[str, ...]]], None] = lambda _requests: None

    def get(self, table: TableName) -> TableDebt | None:
        """The newest debt of `table`, or None when nothing has been heard of it."""
        with self._lock:
            return self._tables.get(table)

    def tables(self) -> tuple[TableDebt, ...]:
        """Every table's newest debt, in name order."""
        with self._lock:
            return tuple(self._tables[name] for name in sorted(self._tables))

    def put(self, debt: TableDebt) -> None:
        """Replace what is known of one table."""
        with self._lock:
            debt = replace(debt, requested=self._requested.get(debt.table, ()))
            self._tables[debt.table] = _without_declined(debt, self._declined.get(debt.table, {}))

    def decline(self, seen: TableDebt, left_alone: Mapping[PartitionKey, str]) -> None:
        """A plan made for `seen` has left these partitions alone: they are not due until their counts change."""
        declined = {
            partition.key: Declined(partition.counts, partition.why, left_alone[partition.key])
            for partition in seen.due
            if partition.key in left_alone
        }
        with self._lock:
            known_before = self._declined.get(seen.table, {})
            declined = {**{key: old for key, old in known_before.items() if key in left_alone}, **declined}
            self._declined[seen.table] = declined
            known = self._tables.get(seen.table)
            if known is not None and declined:
                self._tables[seen.table] = _without_declined(known, declined)

    def request(self, table: TableName, filters: Iterable[str]) -> None:
        """People ask for a rewrite of what these filters select. Asking again before it is done changes nothing."""
        with self._lock:
            changed = self._ask(table, tuple(dict.fromkeys((*self._requested.get(table, ()), *filters))))
        self._keep_if(changed)

    def known(self) -> tuple[TableName, ...]:
        """Tables of which something is known, or asked for."""
        with self._lock:
            return tuple(dict.fromkeys((*self._tables, *self._requested)))

    def resume(
        self,
        requests: Mapping[TableName, tuple[str, ...]],
        keep: Callable[[Mapping[TableName, tuple[str, ...]]], None],
    ) -> None:
        """What the last process left undone; `keep` is told from now on of all that is open whenever that changes."""
        with self._lock:
            self._requested, self._keep = dict(requests), keep

    def _ask(self, table: TableName, filters: tuple[str, ...]) -> bool:
        before = self._requested.pop(table, ())
        if filters:
            self._requested[table] = filters
        if table in self._tables:
            self._tables[table] = replace(self._tables[table], requested=filters)
        return filters != before

    def _keep_if(self, changed: bool) -> None:
        """Outside the board's lock, which everybody waits for: the store may be slow. The last to keep keeps all."""
        if changed:
            with self._keeping:
                with self._lock:
                    requests = dict(self._requested)
                self._keep(requests)

    def served(self, table: TableName, filter_text: str) -> None:
        """What was asked for has been done, or cannot be."""
        with self._lock:
            left = tuple(text for text in self._requested.get(table, ()) if text != filter_text)
            changed = self._ask(table, left)
        self._keep_if(changed)

    def forget(self, table: TableName) -> None:
        """Drop a table that no longer exists."""
        with self._lock:
            self._tables.pop(table, None)
            self._declined.pop(table, None)
            changed = self._ask(table, ())
        self._keep_if(changed)

    def mark_stale(
        self, table: TableName, reason: str, waiting_since: float | None = None, *, acted_on: bool = False
    ) -> None:
        """Keep the last counts, and say that they may be old. `waiting_since`: an event heard but not yet counted.
        `acted_on`: whether the table is to be rewritten as far as the settings tell; where nothing is known yet.
        """
        with self._lock:
            known = self._tables.get(table) or TableDebt(table, acted_on=acted_on)
            waiting = earliest(known.waiting_since, waiting_since)
            self._tables[table] = replace(known, stale=reason, waiting_since=waiting)

    def settled(self, table: TableName) -> None:
        """A rewrite has been committed: events heard so far have been answered."""
        with self._lock:
            known = self._tables.get(table)
            if known is not None:
                self._tables[table] = replace(known, waiting_since=None, due_since=None)


def _without_declined(debt: TableDebt, declined: Mapping[PartitionKey, Declined]) -> TableDebt:
    changed = {
        key: replace(partition, due=False, why=known.why)
        for key, known in declined.items()
        if (partition := debt.partitions.get(key)) is not None
        and partition.due
        and (partition.counts, partition.why) == (known.counts, known.judged)
    }
    if not changed:
        return debt
    cleared = replace(debt, partitions={**debt.partitions, **changed})
    return cleared if cleared.has_work else replace(cleared, due_since=None)
