"""What rewrites cost in the last hour: every cost when it arises, also of runs that fail. Pure.

The hour outlives the process: see usage_file.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compactor.planning.budget import Spent
from compactor.table_names import TableName

HOUR: Final = 3600.0
MINUTE: Final = 60.0


@dataclass(frozen=True)
class Cost:
    """A cost of a table: when (seconds since the epoch) and what; or a running run, whose cost is its grant."""

    table: TableName
    at: float
    spent: Spent


def _none(_table: TableName) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Usage:
    """What the last hour cost in all and by namespace (a glob of tables), and the commits of each table in it."""

    spent: Spent = field(default_factory=Spent)
    commits: Counter[TableName] = field(default_factory=Counter)
    by_namespace: Mapping[str, Spent] = field(default_factory=dict)

    @classmethod
    def of(
        cls, costs: Iterable[Cost], now: float, namespaces_of: Callable[[TableName], Iterable[str]] = _none
    ) -> Usage:
        """The usage by those of `costs` that lie within the hour before `now`."""
        recent = [cost for cost in costs if cost.at > now - HOUR]
        commits: Counter[TableName] = Counter()
        by_namespace: dict[str, list[Cost]] = {}
        for cost in recent:
            commits[cost.table] += cost.spent.commits
            for glob in namespaces_of(cost.table):
                by_namespace.setdefault(glob, []).append(cost)
        return cls(_sum(recent), commits, {glob: _sum(found) for glob, found in by_namespace.items()})


def _sum(costs: Iterable[Cost]) -> Spent:
    return sum((cost.spent for cost in costs), Spent())


class HourOfUsage:
    """The costs of the last hour, by table and minute, and the reservations of running runs. Thread-safe."""

    def __init__(self, costs: Iterable[Cost] = ()) -> None:
        """`costs`: those of an earlier process."""
        self._lock = threading.Lock()
        self._costs: dict[tuple[TableName, int], Cost] = {}
        self._reserved: dict[TableName, Cost] = {}
        for cost in costs:
            self._add(cost)

    def reserve(self, run: Cost) -> None:
        """A run starts: its grant counts until it ends, less what was charged."""
        with self._lock:
            self._reserved[run.table] = run

    def charge(self, table: TableName, at: float, spent: Spent) -> None:
        """A cost has arisen at `at`."""
        with self._lock:
            self._add(Cost(table, at, spent))
            reserved = self._reserved.get(table)
            if reserved is not None:
                self._reserved[table] = replace(reserved, spent=reserved.spent.less(spent))

    def release(self, table: TableName) -> None:
        """The run of the table has ended."""
        with self._lock:
            self._reserved.pop(table, None)

    def recent(self, now: float) -> list[Cost]:
        """Costs and reservations of the hour before `now`; older ones are forgotten.

        A cost of a later time is one of now: the clock was set back, and limits must not hold longer than an hour.
        """
        with self._lock:
            self._costs = {
                key: cost if cost.at <= now else replace(cost, at=now)
                for key, cost in self._costs.items()
                if cost.at > now - HOUR
            }
            return [*self._costs.values(), *(replace(run, at=now) for run in self._reserved.values())]

    def _add(self, cost: Cost) -> None:
        key = (cost.table, int(cost.at // MINUTE))
        known = self._costs.get(key)
        if known is not None:
            cost = replace(cost, at=max(known.at, cost.at), spent=known.spent + cost.spent)
        self._costs[key] = cost
