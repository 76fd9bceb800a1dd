"""Which due table comes next, and whether it may start now. Pure.

Order: files removed per byte rewritten, weighted by how long the debt is due and how often the table commits. Tables
that have been due for an hour go first, the oldest before the others, so that none starves. Tables for which a person
requested a rewrite go before all. Where the limits leave too little for such a table, tables that share the budget wait
behind it.
Limits: quiet hours; bytes, requests and catalog calls per hour, over all tables and over the tables of a namespace;
`replace` commits per table and hour. The hour slides, and a running run counts with its grant, so that no hour exceeds
its cap (usage.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from compactor.debt.board import TableDebt
from compactor.planning.budget import CATALOG_CALLS, Grant, Spent, cost_of_merge, requests_of
from compactor.runs.open_hours import OpenHours
from compactor.runs.usage import HOUR, MINUTE, Cost, Usage
from compactor.settings.limits import HourCaps, LimitSettings
from compactor.table_names import TableName

STARVING_SECONDS = HOUR
LEAST_BYTES = 1024 * 1024
"""The fixed cost of a run, in bytes rewritten."""

SHARE_OF_CAP = 0.1
"""The least that a run is granted, as a share of the cap: what is due is an estimate. A table that goes first starts
with so much."""

ALL_TABLES: Final = "*"
CALLS: Final = "catalog_calls_per_hour"
Shared = tuple[str, str]
"""A budget of the hour: its limit, and the glob of the tables that share it."""
_COUNTED: Final[Mapping[str, Callable[[Spent], int]]] = {
    "bytes_per_hour": lambda spent: spent.bytes,
    "requests_per_hour": lambda spent: spent.requests,
    CALLS: lambda spent: spent.catalog_calls,
}
"""What each cap of an hour counts."""


@dataclass(frozen=True)
class Budget:
    """A limit of the hour: its setting, its cap, and what the runs of the last hour used, running ones included.

    `tables`: the glob of `limits.namespaces` whose tables share it, or `*`.
    """

    limit: str
    cap: int
    used: int
    tables: str = ALL_TABLES

    @property
    def left(self) -> int:
        """What further runs may use now."""
        return max(0, self.cap - self.used)

    @property
    def share(self) -> int:
        """The least that a run is granted."""
        return max(1, int(self.cap * SHARE_OF_CAP))

    def least(self, need: int) -> int:
        """With how much a table that goes first starts. A grant cuts a plan to its bytes and requests, not to calls."""
        return need if self.limit == CALLS else min(need, self.share)


@dataclass(frozen=True)
class Limits:
    """The user's caps, the settings section `limits`; None or empty means no cap."""

    settings: LimitSettings = field(default_factory=LimitSettings)

    @cached_property
    def hours(self) -> OpenHours:
        """The hours in which runs may start."""
        return OpenHours.of(self.settings.quiet_spans)

    @property
    def cap_anything(self) -> bool:
        """Whether any cap of an hour is set."""
        return bool(self.settings.commits_per_table_and_hour or self.budgets(Usage()))

    def is_quiet(self, now: float) -> bool:
        """Whether no run may start at this moment."""
        return self.hours.is_quiet(now)

    def usage(self, costs: Iterable[Cost], now: float) -> Usage:
        """What these costs of the last hour come to, by the namespaces of the settings too."""
        return Usage.of(costs, now, self._namespaces_of)

    def may_commit(self, debt: TableDebt, usage: Usage) -> bool:
        """Whether the table's commits of the last hour leave room for one more."""
        most = self.settings.commits_per_table_and_hour
        return most is None or usage.commits[debt.table] < most

    def short(self, debt: TableDebt, usage: Usage, now: float) -> frozenset[Shared]:
        """The budgets of the hour that the table shares and that have too little left for a run of it.

        A table needs all that is due, and at least something: that is an estimate, and nothing starts in an hour that
        is used up. One that goes first starts with a tenth of the cap, and does what its grant allows; so does one with
        more due than the cap, once the hour has no usage.
        """
        needs, first = needed(debt), goes_first(debt, now)
        found = set[Shared]()
        for each in self._budgets_of(debt.table, usage):
            need = max(1, _COUNTED[each.limit](needs))
            if each.used and each.left < (each.least(need) if first else need):
                found.add((each.limit, each.tables))
        return frozenset(found)

    def held_back(self, tables: Iterable[TableDebt], usage: Usage, now: float) -> tuple[int, int]:
        """How many of `tables` wait for a budget of the hour; how many of the others for their number of commits."""
        if not self.cap_anything:
            return 0, 0
        limited = capped = 0
        for debt in tables:
            if self.short(debt, usage, now):
                limited += 1
            elif not self.may_commit(debt, usage):
                capped += 1
        return limited, capped

    def next_of(
        self, tables: Iterable[TableDebt], usage: Usage, now: float, may_start: Callable[[TableName], bool]
    ) -> TableDebt | None:
        """The first of `tables`, which come in the order of `rank`, that may start now.

        A table that goes first and waits for a budget is not overtaken by others that share it: small tables would use
        up all that becomes free.
        """
        if self.is_quiet(now):
            return None
        awaited: set[Shared] = set()
        for debt in tables:
            if not self.may_commit(debt, usage):
                continue
            short = self.short(debt, usage, now)
            if not short and not self._shares(debt.table, usage, awaited) and may_start(debt.table):
                return debt
            if short and goes_first(debt, now) and may_start(debt.table):
                awaited |= short
        return None

    def _shares(self, table: TableName, usage: Usage, awaited: Collection[Shared]) -> bool:
        return bool(awaited) and any((each.limit, each.tables) in awaited for each in self._budgets_of(table, usage))

    def budgets(self, usage: Usage) -> tuple[Budget, ...]:
        """The budgets of the hour that the settings limit, with what is used of each."""
        return tuple(self._budgets(usage, self.settings.namespaces))

    def grant(self, debt: TableDebt, usage: Usage) -> Grant:
        """What a run may cost that `next_of` lets start: about what it needs, at most the rest of each budget."""
        need, granted = needed(debt), dict[str, int]()
        for each in self._budgets_of(debt.table, usage):
            wanted = max(_COUNTED[each.limit](need), each.share)
            granted[each.limit] = min(each.left, wanted, granted.get(each.limit, wanted))
        most = self.settings.commits_per_table_and_hour
        commits = None if most is None else max(1, most - usage.commits[debt.table])
        return Grant(granted.get("bytes_per_hour"), granted.get("requests_per_hour"), commits)

    def _budgets_of(self, table: TableName, usage: Usage) -> Iterator[Budget]:
        return self._budgets(usage, self._namespaces_of(table))

    def _budgets(self, usage: Usage, namespaces: Iterable[str]) -> Iterator[Budget]:
        yield from _budgets(self.settings, usage.spent, ALL_TABLES)
        for glob in namespaces:
            yield from _budgets(self.settings.namespaces[glob], usage.by_namespace.get(glob, Spent()), glob)

    def _namespaces_of(self, table: TableName) -> tuple[str, ...]:
        """The namespaces of the settings to which the table belongs."""
        if not self.settings.namespaces:
            return ()
        known = self._memory.get(table)
        if known is None:
            known = self._memory[table] = tuple(glob for glob in self.settings.namespaces if table.matches(glob))
        return known

    @cached_property
    def _memory(self) -> dict[TableName, tuple[str, ...]]:
        return {}


def _budgets(caps: HourCaps, spent: Spent, tables: str) -> Iterator[Budget]:
    for limit, counted in _COUNTED.items():
        cap: int | None = getattr(caps, limit)
        if cap is not None:
            yield Budget(limit, cap, counted(spent), tables)


def reserved(debt: TableDebt, grant: Grant, now: float) -> Cost:
    """A running run, as `Usage` counts it: with its grant."""
    need = needed(debt)
    granted = Spent(
        need.bytes if grant.bytes is None else grant.bytes,
        need.requests if grant.requests is None else grant.requests,
        need.catalog_calls,
        commits=1 if grant.commits is None else grant.commits,
    )
    return Cost(debt.table, now, granted)


def needed(debt: TableDebt) -> Spent:
    """What a run of everything due would cost, estimated; if a person requested one: of all small files."""
    files, partitions, size = debt.due_files, debt.due_partitions, debt.due_bytes
    if debt.requested:
        total = debt.total
        files, size = max(files, total.small_files), max(size, total.small_bytes)
        partitions = max(partitions, len(debt.partitions) + debt.others.partitions)
    size += debt.due_large_bytes
    merge = cost_of_merge(debt.due_manifests) if debt.due_manifests is not None else Spent()
    return Spent(size + merge.bytes, requests_of(files, partitions, size) + merge.requests, CATALOG_CALLS)


def goes_first(debt: TableDebt, now: float) -> bool:
    """Whether a person requested a rewrite of the table, or it has been due for an hour."""
    return bool(debt.requested) or _due_seconds(debt, now) >= STARVING_SECONDS


def _due_seconds(debt: TableDebt, now: float) -> float:
    return max(0.0, now - (debt.due_since if debt.due_since is not None else now))


def rank(debt: TableDebt, now: float) -> tuple[float, float, TableName]:
    """Sort key: the next table has the smallest."""
    if debt.requested:
        return (-math.inf, -math.inf, debt.table)  # a person is waiting
    age = _due_seconds(debt, now)
    if age >= STARVING_SECONDS:
        return (-math.inf, -age, debt.table)
    others = debt.others
    removed = sum(max(1, partition.counts.small_files - 1) for partition in debt.due)
    removed += max(others.due_partitions, others.due_files - others.due_partitions)
    worth = removed / max(LEAST_BYTES, debt.due_bytes)
    return (-worth * (1 + age / MINUTE) * (1 + math.log2(1 + debt.commits_per_hour)), -age, debt.table)


def commit_rate(known: float, since_last: float | None) -> float:
    """Commits per hour after one more commit, `since_last` seconds after the last one; old commits decay in an hour."""
    if since_last is None:
        return max(known, 1.0)
    return known * math.exp(-max(0.0, since_last) / HOUR) + 1.0
