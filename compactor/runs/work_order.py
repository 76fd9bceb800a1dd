"""Which due table comes next, and whether it may start now. Pure.

Order: files removed per byte rewritten, weighted by how long the debt is due and how often the table commits. Tables
that have been due for an hour go first, the oldest before the others, so that none starves.
Limits: quiet hours; bytes, requests and catalog calls per hour over all tables; `replace` commits per table and hour.
The hour slides, and a running run counts with its grant, so that no hour exceeds its cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from compactor.debt.board import TableDebt
from compactor.planning.budget import CATALOG_CALLS, Grant, Spent, requests_of
from compactor.runs.open_hours import OpenHours
from compactor.settings.tree import LimitSettings
from compactor.table_names import TableName

HOUR = 3600.0
STARVING_SECONDS = HOUR
MINUTE = 60.0
LEAST_BYTES = 1024 * 1024
"""The fixed cost of a run, in bytes rewritten."""

SHARE_OF_CAP = 0.1
"""The least that a run is granted, as a share of the cap: what is due is an estimate."""


@dataclass(frozen=True)
class Finished:
    """A committed run: when (seconds since the epoch) and what it cost; or a running one, whose cost is its grant."""

    table: TableName
    at: float
    bytes: int
    requests: int = 0
    catalog_calls: int = 0


@dataclass(frozen=True)
class Usage:
    """What the runs of the last hour cost together, and how many runs each table had."""

    spent: Spent = field(default_factory=Spent)
    commits: Counter[TableName] = field(default_factory=Counter)

    @classmethod
    def of(cls, runs: Iterable[Finished], now: float) -> Usage:
        """The usage by those of `runs` that ended within the hour before `now`."""
        recent = [run for run in runs if run.at > now - HOUR]
        spent = Spent(
            sum(run.bytes for run in recent),
            sum(run.requests for run in recent),
            sum(run.catalog_calls for run in recent),
        )
        return cls(spent, Counter(run.table for run in recent))


@dataclass(frozen=True)
class Budget:
    """A limit of the hour: its setting, its cap, and what the runs of the last hour used, running ones included."""

    limit: str
    cap: int
    used: int

    @property
    def left(self) -> int:
        """What further runs may use now."""
        return max(0, self.cap - self.used)


@dataclass(frozen=True)
class Limits:
    """The user's caps, the settings section `limits`; None or empty means no cap."""

    settings: LimitSettings = field(default_factory=LimitSettings)

    @cached_property
    def hours(self) -> OpenHours:
        """The hours in which runs may start."""
        return OpenHours.of(self.settings.quiet_spans)

    def is_quiet(self, now: float) -> bool:
        """Whether no run may start at this moment."""
        return self.hours.is_quiet(now)

    def allow(self, debt: TableDebt, usage: Usage, now: float) -> bool:
        """Whether a run of this table may start now, given the usage of the last hour.

        A table with more due than the cap of an hour starts once the hour has no usage, and does what its grant allows.
        """
        if self.is_quiet(now):
            return False
        most = self.settings.commits_per_table_and_hour
        return (most is None or usage.commits[debt.table] < most) and self.fits(debt, usage)

    def fits(self, debt: TableDebt, usage: Usage) -> bool:
        """Whether the budgets of the hour have enough left for a run of this table."""
        need, budgets = needed(debt), self.budgets(usage)
        wanted = {
            "bytes_per_hour": need.bytes,
            "requests_per_hour": need.requests,
            "catalog_calls_per_hour": need.catalog_calls,
        }
        return all(each.used == 0 or wanted[each.limit] <= each.cap - each.used for each in budgets)

    def budgets(self, usage: Usage) -> tuple[Budget, ...]:
        """The budgets of the hour that the settings limit, with what is used of each."""
        caps, spent = self.settings, usage.spent
        found = (
            ("bytes_per_hour", caps.bytes_per_hour, spent.bytes),
            ("requests_per_hour", caps.requests_per_hour, spent.requests),
            ("catalog_calls_per_hour", caps.catalog_calls_per_hour, spent.catalog_calls),
        )
        return tuple(Budget(limit, cap, used) for limit, cap, used in found if cap is not None)

    def grant(self, debt: TableDebt, usage: Usage) -> Grant:
        """What a run may cost that `allow` lets start: about what it needs, at most the rest of the hour's cap."""
        need = needed(debt)
        return Grant(
            _granted(self.settings.bytes_per_hour, usage.spent.bytes, need.bytes),
            _granted(self.settings.requests_per_hour, usage.spent.requests, need.requests),
        )


def _granted(cap: int | None, spent: int, need: int) -> int | None:
    return None if cap is None else max(0, min(cap - spent, max(need, int(cap * SHARE_OF_CAP))))


def reserved(debt: TableDebt, grant: Grant, now: float) -> Finished:
    """A running run, as `Usage` counts it."""
    need = needed(debt)
    return Finished(
        debt.table,
        now,
        need.bytes if grant.bytes is None else grant.bytes,
        need.requests if grant.requests is None else grant.requests,
        need.catalog_calls,
    )


def needed(debt: TableDebt) -> Spent:
    """What a run of everything due would cost, estimated."""
    size = debt.due_bytes
    return Spent(size, requests_of(debt.due_files, debt.due_partitions, size), CATALOG_CALLS)


def rank(debt: TableDebt, now: float) -> tuple[float, float, TableName]:
    """Sort key: the next table has the smallest."""
    if debt.requested:
        return (-math.inf, -math.inf, debt.table)  # a person is waiting
    age = max(0.0, now - (debt.due_since if debt.due_since is not None else now))
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
