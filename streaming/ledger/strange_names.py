"""Names that events give and that no listing has: of tables that do not exist, and other spellings of a table's name.

An event can come before its table is committed, so a name is looked up again. Events can name anything, so a name that
was not found costs at most one catalog call in `MISSING_SECONDS` after its first tries.

Catalogs that do not distinguish capitals find db.t when DB.T is requested. Only the name that the catalog itself gives
is the table's: `tables.exclude`, pauses and policies are about that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.table_names import TableName

MISSING_SECONDS = 30.0
"""How long a table that does not exist is not asked for again."""
MOST_NAMES = 100_000
"""Names that are kept of either kind. Of others nothing is kept: each of their events asks for a look."""


@dataclass(eq=False)
class StrangeNames:
    """`clock`: seconds since the epoch."""

    clock: Callable[[], float]
    _until: dict[TableName, float] = field(default_factory=dict, init=False)
    _put_off: set[TableName] = field(default_factory=set, init=False)
    _called: dict[TableName, TableName] = field(default_factory=dict, init=False)

    def lost(self, table: TableName) -> None:
        """A look did not find the table. Other spellings of its name mean nothing any more."""
        now = self.clock()
        if len(self._until) >= MOST_NAMES:
            self._until = {name: until for name, until in self._until.copy().items() if until > now}
        if len(self._until) < MOST_NAMES:
            self._until[table] = now + MISSING_SECONDS
        self._put_off.discard(table)
        if self._called:
            self._called = {name: called for name, called in self._called.copy().items() if called != table}

    def found(self, table: TableName) -> None:
        """A look found the table under this name."""
        self._until.pop(table, None)
        self._put_off.discard(table)
        self._called.pop(table, None)

    def is_called(self, name: TableName, called: TableName) -> None:
        """The catalog has found `name`, and calls the table `called`."""
        self.found(name)
        if len(self._called) < MOST_NAMES:
            self._called[name] = called

    def name_of(self, table: TableName) -> TableName:
        """The name that the catalog gives the table, as far as looks have found out."""
        return self._called.get(table, table)

    def is_missing(self, table: TableName) -> bool:
        """Whether a look within the last `MISSING_SECONDS` did not find the table."""
        return self._until.get(table, 0.0) > self.clock()

    def put_off(self, table: TableName) -> float | None:
        """In how many seconds to look for a table that an event names; None: such a look was put off before."""
        seconds = self._until.get(table, 0.0) - self.clock()
        if seconds <= 0.0:
            return 0.0
        if table in self._put_off:
            return None
        self._put_off.add(table)
        return seconds
