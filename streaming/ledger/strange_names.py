"""Names that events give and that no listing has: of tables that do not exist, and other spellings of a table's name.

An event can come before its table is committed, so a name is looked up again. Events can name anything, so a name that
was not found costs about one catalog call in `MISSING_SECONDS` after its first tries. Its events are dead letters once
it was not found some seconds after one of them, and as long as looks go on without finding it.

Catalogs that do not distinguish capitals find db.t when DB.T is requested. Only the name that the catalog itself gives
is the table's: `tables.exclude`, pauses and policies are about that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.table_names import TableName

MISSING_SECONDS = 30.0
"""How long a table that does not exist is not looked up again."""
NO_TABLE_SECONDS = 45.0
"""How long events of a name that is no table are dead letters without a call. Each look that does not find it either
begins this time again. Longer than `MISSING_SECONDS`, after which the next event asks for a look."""
MOST_NAMES = 100_000
"""Names that are kept of each kind. Beyond that, each event of a missing name asks for a look."""


@dataclass(eq=False)
class StrangeNames:
    """Thread-safe. `clock`: seconds since the epoch.

    `_until`: by missing name, until when it is not looked up. `_put_off`: when a look that waits is due.
    `_no_tables`: by name that is no table, until when that holds.
    """

    clock: Callable[[], float]
    _until: dict[TableName, float] = field(default_factory=dict, init=False)
    _put_off: dict[TableName, float] = field(default_factory=dict, init=False)
    _no_tables: dict[TableName, float] = field(default_factory=dict, init=False)
    _called: dict[TableName, TableName] = field(default_factory=dict, init=False)
    _spellings: dict[TableName, set[TableName]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def lost(self, table: TableName) -> None:
        """A look did not find the table. Other spellings of its name mean nothing any more."""
        now = self.clock()
        with self._lock:
            if _has_room(self._until, now):
                self._until[table] = now + MISSING_SECONDS
            if self._no_tables.get(table, 0.0) > now:
                self._no_tables[table] = now + NO_TABLE_SECONDS
            for name in self._spellings.pop(table, ()):
                self._called.pop(name, None)

    def no_table(self, table: TableName) -> None:
        """The name was not found, although its event has waited for the commit."""
        self.lost(table)
        now = self.clock()
        with self._lock:
            if _has_room(self._no_tables, now):
                self._no_tables[table] = now + NO_TABLE_SECONDS

    def is_no_table(self, table: TableName) -> bool:
        """Whether events of the name are dead letters, as far as is known without a call."""
        return self._no_tables.get(table, 0.0) > self.clock()

    def found(self, table: TableName) -> None:
        """A look found the table under this name."""
        with self._lock:
            self._found(table)

    def is_called(self, name: TableName, called: TableName) -> None:
        """The catalog has found `name`, and calls the table `called`."""
        with self._lock:
            self._found(name)
            if len(self._called) < MOST_NAMES:
                self._called[name] = called
                self._spellings.setdefault(called, set()).add(name)

    def name_of(self, table: TableName) -> TableName:
        """The name that the catalog gives the table, as far as looks have found out."""
        return self._called.get(table, table)

    def is_missing(self, table: TableName) -> bool:
        """Whether a look within the last `MISSING_SECONDS` did not find the table."""
        return self._until.get(table, 0.0) > self.clock()

    def put_off(self, table: TableName) -> float | None:
        """In how many seconds to look for a table that an event names; None: such a look waits already."""
        now = self.clock()
        with self._lock:
            until = self._until.get(table, 0.0)
            if until <= now:
                return 0.0
            if self._put_off.get(table, 0.0) > now or not _has_room(self._put_off, now):
                return None
            self._put_off[table] = until
            return until - now

    def _found(self, table: TableName) -> None:
        self._until.pop(table, None)
        self._put_off.pop(table, None)
        self._no_tables.pop(table, None)
        called = self._called.pop(table, None)
        if called is not None:
            spellings = self._spellings[called]
            spellings.discard(table)
            if not spellings:
                del self._spellings[called]


def _has_room(times: dict[TableName, float], now: float) -> bool:
    """Whether another name fits in, after those whose time is over have left if need be."""
    if len(times) >= MOST_NAMES:
        for name in [name for name, at in times.items() if at <= now]:
            del times[name]
    return len(times) < MOST_NAMES
