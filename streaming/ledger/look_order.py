"""The order of looks in one catalog, in three lanes, and looks that wait for a time. Pure.

Tables that an event names and that are known; tables that are asked for by a sweep or by the service itself; names of
unknown tables. The first lane goes first, the other two take turns, so that neither a sweep of ten thousand tables nor
a flood of wrong names delays an event. One look in eight is for the other two: tables without events are counted too
while events ask for more looks than a slow catalog answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from compactor.table_names import TableName
from streaming.ledger.table_record import Lane

EVENTS_IN_A_ROW = 7
"""Looks for events, after which one for another table follows."""


@dataclass
class LookOrder:
    """Tables that wait, by lane, the first one first. `_events`: looks for events in a row."""

    _lanes: dict[Lane, dict[TableName, None]] = field(default_factory=lambda: {lane: {} for lane in Lane})
    _turn: Lane = Lane.SWEEP
    _events: int = 0
    _timers: list[tuple[float, int, TableName]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def add(self, table: TableName, lane: Lane) -> None:
        """The table waits; one that waits in this lane keeps its place."""
        if table not in self._lanes[lane]:
            for tables in self._lanes.values():
                tables.pop(table, None)
            self._lanes[lane][table] = None

    def take(self) -> TableName | None:
        """Take out the next table."""
        other = Lane.UNKNOWN if self._turn is Lane.SWEEP else Lane.SWEEP
        late = self._events >= EVENTS_IN_A_ROW
        for lane in (self._turn, other, Lane.EVENT) if late else (Lane.EVENT, self._turn, other):
            if self._lanes[lane]:
                self._events = self._events + 1 if lane is Lane.EVENT else 0
                if lane is not Lane.EVENT:
                    self._turn = other
                table = next(iter(self._lanes[lane]))
                del self._lanes[lane][table]
                return table
        return None

    def waiting(self, lane: Lane) -> int:
        """How many tables wait in a lane."""
        return len(self._lanes[lane])

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def wake(self, table: TableName, at: float) -> None:
        """`due` gives the table at this time."""
        heapq.heappush(self._timers, (at, next(self._numbers), table))

    @property
    def next_at(self) -> float | None:
        """When `due` gives the next table; None: none waits for a time."""
        return self._timers[0][0] if self._timers else None

    def due(self, ticks: float) -> Iterator[TableName]:
        """Take out the tables whose time has come."""
        while self._timers and self._timers[0][0] <= ticks:
            yield heapq.heappop(self._timers)[2]
