"""Which due table comes next, and whether it may start now. Pure.

Order: files removed per byte rewritten, weighted by how long the debt is due and how often the table commits. A table
that has been due for an hour goes before all that have not, the oldest first, so that none starves.
Limits: quiet hours; bytes, requests and catalog calls per hour over all tables; `replace` commits per table and hour.
The last hour slides, and what is running counts with what it was granted, so that no hour has more than its cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time

from compactor.debt.board import TableDebt
from compactor.planning.budget import CATALOG_CALLS, Grant, Spent, requests_of
from compactor.settings.tree import LimitSettings
from compactor.table_names import TableName

HOUR = 3600.0
STARVING_SECONDS = HOUR
MINUTE = 60.0
LEAST_BYTES = 1024 * 1024
"""A run costs about as much as rewriting this, however little it rewrites."""

SHARE_OF_CAP = 0.1
"""What a run is granted at least: what is due is known by estimate alone."""


NOTHING = Spent()


@dataclass(frozen=True)
class Finished:
    """A run that has committed: when (seconds since the epoch), and what it cost; or one that is running, its grant."""

    table: TableName
    at: float
    bytes: int
    requests: int = 0
    catalog_calls: int = 0


@dataclass(frozen=True)
class Usage:
    """What the runs of the last hour have cost together, and how many of them there were by table."""

    spent: Spent = NOTHING
    commits: Counter[TableName] = field(default_factory=Counter)

    @classmethod
    def of(cls, runs: Iterable[Finished], now: float) -> Usage:
        """Of the runs given, those of the last hour."""
        recent = [run for run in runs if run.at > now - HOUR]
        spent = Spent(
            sum(run.bytes for run in recent),
            sum(run.requests for run in recent),
            sum(run.catalog_calls for run in recent),
        )
        return cls(spent, Counter(run.table for run in recent))


@dataclass(frozen=True)
class Limits:
    """What the user caps; None or empty: no cap. `quiet_hours`: (from, until) in UTC; from > until spans midnight."""

    quiet_hours: tuple[tuple[time, time], ...] = ()
    bytes_per_hour: int | None = None
    commits_per_table_and_hour: int | None = None
    requests_per_hour: int | None = None
    catalog_calls_per_hour: int | None = None

    @classmethod
    def of(cls, settings: LimitSettings) -> Limits:
        """The caps of the settings section `limits`."""
        return cls(
            quiet_hours=settings.quiet_spans,
            bytes_per_hour=settings.bytes_per_hour,
            commits_per_table_and_hour=settings.commits_per_table_and_hour,
            requests_per_hour=settings.requests_per_hour,
            catalog_calls_per_hour=settings.catalog_calls_per_hour,
        )

    def is_quiet(self, now: float) -> bool:
        """Whether no run may start at this moment."""
        moment = datetime.fromtimestamp(now, UTC).time()
        return any(_within(moment, start, end) for start, end in self.quiet_hours)

    def allow(self, debt: TableDebt, usage: Usage, now: float) -> bool:
        """Whether a run of this table may start now, given what the last hour has seen.

        A table with more due than an hour may have starts once the hour is empty, and does as much as it is granted.
        """
        if self.is_quiet(now):
            return False
        most = self.commits_per_table_and_hour
        if most is not None and usage.commits[debt.table] >= most:
            return False
        need, spent = needed(debt), usage.spent
        return all(
            cap is None or used == 0 or used + wanted <= cap
            for cap, used, wanted in (
                (self.bytes_per_hour, spent.bytes, need.bytes),
                (self.requests_per_hour, spent.requests, need.requests),
                (self.catalog_calls_per_hour, spent.catalog_calls, need.catalog_calls),
            )
        )

    def grant(self, debt: TableDebt, usage: Usage) -> Grant:
        """What a run that `allow` lets start may cost: about what it needs, and no more than the hour has left."""
        need = needed(debt)
        return Grant(
            _granted(self.bytes_per_hour, usage.spent.bytes, need.bytes),
            _granted(self.requests_per_hour, usage.spent.requests, need.requests),
        )


def _granted(cap: int | None, spent: int, need: int) -> int | None:
    return None if cap is None else max(0, min(cap - spent, max(need, int(cap * SHARE_OF_CAP))))


def reserved(debt: TableDebt, grant: Grant, now: float) -> Finished:
    """A running run as the limits see it."""
    need = needed(debt)
    return Finished(
        debt.table,
        now,
        need.bytes if grant.bytes is None else grant.bytes,
        need.requests if grant.requests is None else grant.requests,
        need.catalog_calls,
    )


def _within(moment: time, start: time, end: time) -> bool:
    return start <= moment < end if start <= end else moment >= start or moment < end


def bytes_due(debt: TableDebt) -> int:
    """About how many bytes a run would read."""
    return sum(partition.counts.small_bytes for partition in debt.due)


def needed(debt: TableDebt) -> Spent:
    """About what a run of all that is due would cost."""
    size = bytes_due(debt)
    files = sum(partition.counts.small_files for partition in debt.due)
    return Spent(size, requests_of(files, len(debt.due), size), CATALOG_CALLS)


def rank(debt: TableDebt, now: float) -> tuple[float, float, TableName]:
    """Sort key: the table to be rewritten first has the least."""
    if debt.requested:
        return (-math.inf, -math.inf, debt.table)  # somebody is waiting
    age = max(0.0, now - (debt.due_since if debt.due_since is not None else now))
    if age >= STARVING_SECONDS:
        return (-math.inf, -age, debt.table)
    removed = sum(max(1, partition.counts.small_files - 1) for partition in debt.due)
    worth = removed / max(LEAST_BYTES, bytes_due(debt))
    return (-worth * (1 + age / MINUTE) * (1 + math.log2(1 + debt.commits_per_hour)), -age, debt.table)


def commit_rate(known: float, since_last: float | None) -> float:
    """Commits per hour after one more commit, `since_last` seconds after the last; forgets within hours."""
    if since_last is None:
        return max(known, 1.0)
    return known * math.exp(-max(0.0, since_last) / HOUR) + 1.0
