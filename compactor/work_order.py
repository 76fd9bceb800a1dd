"""Which due table comes next, and whether it may start now. Pure.

Order: files removed per byte rewritten, weighted by how long the debt is due and how often the table commits. A table
that has been due for an hour goes before all that have not, the oldest first, so that none starves.
Limits: quiet hours, bytes per hour over all tables, `replace` commits per table and hour; the last hour slides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time

from compactor.debt import TableDebt
from compactor.table_names import TableName

HOUR = 3600.0
STARVING_SECONDS = HOUR
MINUTE = 60.0
LEAST_BYTES = 1024 * 1024
"""A run costs about as much as rewriting this, however little it rewrites."""


@dataclass(frozen=True)
class Finished:
    """A run that has committed: when (seconds since the epoch), and the bytes it read."""

    table: TableName
    at: float
    bytes: int


@dataclass(frozen=True)
class Limits:
    """What the user caps; None or empty: no cap. `quiet_hours`: (from, until) in UTC; from > until spans midnight."""

    quiet_hours: tuple[tuple[time, time], ...] = ()
    bytes_per_hour: int | None = None
    commits_per_table_and_hour: int | None = None

    def is_quiet(self, now: float) -> bool:
        """Whether no run may start at this moment."""
        moment = datetime.fromtimestamp(now, UTC).time()
        return any(_within(moment, start, end) for start, end in self.quiet_hours)

    def allow(self, debt: TableDebt, finished: Sequence[Finished], now: float) -> bool:
        """Whether a run of this table may start now, given the runs of the last hour.

        A table with more bytes due than an hour may have starts once the hour is empty: a cap must not stop it forever.
        """
        if self.is_quiet(now):
            return False
        recent = [run for run in finished if run.at > now - HOUR]
        commits = sum(run.table == debt.table for run in recent)
        if self.commits_per_table_and_hour is not None and commits >= self.commits_per_table_and_hour:
            return False
        spent = sum(run.bytes for run in recent)
        return self.bytes_per_hour is None or spent == 0 or spent + bytes_due(debt) <= self.bytes_per_hour


def _within(moment: time, start: time, end: time) -> bool:
    return start <= moment < end if start <= end else moment >= start or moment < end


def bytes_due(debt: TableDebt) -> int:
    """About how many bytes a run would read."""
    return sum(partition.counts.small_bytes for partition in debt.due)


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
    return known * math.exp(-since_last / HOUR) + 1.0
