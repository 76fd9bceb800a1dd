"""The look queue: tables that wait to be looked at. A table that is asked for many times while it waits is one look.

Three lanes: tables that an event names and that are known; tables that are asked for by a sweep or by the service
itself; names of unknown tables. The first lane goes first, the other two take turns, and the third is bounded, so
that neither a sweep of ten thousand tables nor a flood of wrong names delays an event. One look in eight is for the
other two: tables without events are counted too while events ask for more looks than a slow catalog answers.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

from compactor.debt.board import earliest
from compactor.table_names import TableName

PAUSE_SECONDS = 0.5
"""Least time between two looks at one table: a table with a hundred commits per second costs two looks per second."""
MOST_ANNOUNCED = 16
"""Announcements that one look checks."""
EVENTS_IN_A_ROW = 7
"""Looks for events, after which one for another table follows."""
MOST_UNKNOWN = 1_000
"""Unknown names that wait at a time. Sweeps find what is dropped."""


class Lane(IntEnum):
    """Why a table is looked at, most urgent first."""

    EVENT = 0
    SWEEP = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class Asked:
    """What a look has to answer.

    `oldest_event`: time of the oldest announced commit, seconds since the epoch. `calls`: whether to ask the catalog;
    False: judge again what was counted, because partitions become due by time too. `announced`: snapshots and metadata
    files that events told of. `tries`: looks that did not find them, because events can come before their commit.
    `requested`: a requested rewrite of an unknown table waits for the answer. Few do, so no flood displaces the look.
    """

    lane: Lane = Lane.SWEEP
    oldest_event: float | None = None
    calls: bool = True
    announced: frozenset[int | str] = frozenset()
    tries: int = 0
    requested: bool = False

    def joined(self, other: Asked) -> Asked:
        """One look for both."""
        oldest = earliest(self.oldest_event, other.oldest_event)
        announced = self.announced | other.announced
        if len(announced) > MOST_ANNOUNCED:
            announced = frozenset()  # so many commits: the next one asks for a look too
        tries = min(self.tries, other.tries)
        lane, requested = min(self.lane, other.lane), self.requested or other.requested
        return Asked(lane, oldest, self.calls or other.calls, announced, tries, requested)


@dataclass
class _Waiting:
    """Tables of one catalog that wait, by lane."""

    lanes: Mapping[Lane, dict[TableName, Asked]] = field(default_factory=lambda: {lane: {} for lane in Lane})
    turn: Lane = Lane.SWEEP
    events: int = 0  # taken in a row

    def find(self, table: TableName) -> Asked | None:
        return next((asked for lane in self.lanes.values() if (asked := lane.get(table)) is not None), None)

    def remove(self, table: TableName) -> None:
        for lane in self.lanes.values():
            lane.pop(table, None)

    def take(self) -> tuple[TableName, Asked] | None:
        other = Lane.UNKNOWN if self.turn is Lane.SWEEP else Lane.SWEEP
        late = self.events >= EVENTS_IN_A_ROW
        for lane in (self.turn, other, Lane.EVENT) if late else (Lane.EVENT, self.turn, other):
            if self.lanes[lane]:
                self.events = self.events + 1 if lane is Lane.EVENT else 0
                if lane is not Lane.EVENT:
                    self.turn = other
                table = next(iter(self.lanes[lane]))
                return table, self.lanes[lane].pop(table)
        return None

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))


class LookQueue:
    """Thread-safe. A table is looked at by one thread at a time: after `take`, call `done`."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._changed = threading.Condition()
        self._catalogs: dict[str, _Waiting] = {}
        self._busy: dict[TableName, Asked | None] = {}
        self._later: list[tuple[float, int, TableName, Asked]] = []
        self._numbers = count()
        self._rest: dict[TableName, float] = {}
        self._closed = False

    def put(self, table: TableName, asked: Asked, *, after_seconds: float = 0.0) -> None:
        """Ask for a look at the table. Does not block.

        `after_seconds`: a back-off. A request for the table before it ends is put off until then.
        """
        with self._changed:
            now = self._ticks()
            at = max(now + after_seconds, self._rest.get(table, 0.0))
            if at > now:
                self._rest[table] = at
                heapq.heappush(self._later, (at, next(self._numbers), table, asked))
            else:
                self._add(table, asked)
            self._changed.notify_all()

    def put_later(self, table: TableName, asked: Asked, seconds: float) -> None:
        """Ask for a look at the table in so many seconds. Other requests do not wait for it."""
        with self._changed:
            heapq.heappush(self._later, (self._ticks() + seconds, next(self._numbers), table, asked))
            self._changed.notify_all()

    def take(self, catalog: str, timeout: float = 1.0) -> tuple[TableName, Asked] | None:
        """The next table of this catalog; None if none is due within `timeout` seconds, or after `close`."""
        deadline = self._ticks() + timeout
        with self._changed:
            while not self._closed:
                now = self._ticks()
                self._move_due(now)
                taken = self._waiting(catalog).take()
                if taken is not None:
                    self._busy[taken[0]] = None
                    return taken
                if now >= deadline:
                    return None
                until = min(deadline, self._later[0][0]) if self._later else deadline
                self._changed.wait(max(0.001, until - now))
            return None

    def done(self, table: TableName) -> None:
        """The look ended; if the table was requested during the look, it is looked at again after a pause."""
        with self._changed:
            again = self._busy.pop(table, None)
            self._rest[table] = self._ticks() + PAUSE_SECONDS
            if again is not None:
                heapq.heappush(self._later, (self._rest[table], next(self._numbers), table, again))
            self._changed.notify_all()

    def give_back(self, table: TableName, asked: Asked) -> None:
        """The look did not take place: the table waits again."""
        with self._changed:
            again = self._busy.pop(table, None)
            self._add(table, asked if again is None else asked.joined(again))

    def close(self) -> None:
        """End all `take` calls."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def waiting(self, catalog: str) -> int:
        """Tables of one catalog that wait, those of a later time not counted."""
        with self._changed:
            return len(self._waiting(catalog))

    def _waiting(self, catalog: str) -> _Waiting:
        return self._catalogs.setdefault(catalog, _Waiting())

    def _move_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            *_, table, asked = heapq.heappop(self._later)
            rest = self._rest.get(table, 0.0)
            if rest > now:  # a back-off has begun since
                heapq.heappush(self._later, (rest, next(self._numbers), table, asked))
            else:
                self._add(table, asked)
        for table in [table for table, at in self._rest.items() if at <= now]:
            del self._rest[table]

    def _add(self, table: TableName, asked: Asked) -> None:
        if table in self._busy:
            before = self._busy[table]
            self._busy[table] = asked if before is None else before.joined(asked)
            return
        waiting = self._waiting(table.catalog)
        before = waiting.find(table)
        joined = asked if before is None else before.joined(asked)
        if before is not None and before.lane is joined.lane:
            waiting.lanes[joined.lane][table] = joined  # keeps its place
            return
        is_full = len(waiting.lanes[Lane.UNKNOWN]) >= MOST_UNKNOWN
        if joined.lane is Lane.UNKNOWN and is_full and not joined.requested:
            return
        waiting.remove(table)
        waiting.lanes[joined.lane][table] = joined
