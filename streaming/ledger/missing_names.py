"""Names that events give and that no look has found: each costs about one catalog call in half a minute. Thread-safe.

An event can come before its table is committed, so a name is looked up again; and events can name anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from compactor.table_names import TableName

MISSING_SECONDS: Final = 30.0
"""How long a table that does not exist is not looked up again."""
MOST_NAMES: Final = 100_000
"""Names that are kept. Beyond that, each event of a missing name asks for a look."""


@dataclass(eq=False)
class MissingNames:
    """`clock`: seconds since the epoch. `_until`: until when a name is not looked up. `_due`: of looks that wait."""

    clock: Callable[[], float]
    _until: dict[TableName, float] = field(default_factory=dict, init=False)
    _due: dict[TableName, float] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def lost(self, table: TableName) -> bool:
        """A look did not find the table; returns whether that is news."""
        now = self.clock()
        with self._lock:
            if len(self._until) >= MOST_NAMES:
                self._until = {name: until for name, until in self._until.items() if until > now}
                self._due = {name: due for name, due in self._due.items() if due > now}
            is_news = table not in self._until
            if len(self._until) < MOST_NAMES:
                self._until[table] = now + MISSING_SECONDS
        return is_news

    def found(self, table: TableName) -> None:
        """A look found the table."""
        with self._lock:
            self._until.pop(table, None)
            self._due.pop(table, None)

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
            if self._due.get(table, 0.0) > now:
                return None
            self._due[table] = until
            return until - now
