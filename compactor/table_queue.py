"""What waits to be done about tables: the newest word about each, in the order in which tables were first heard of."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from compactor.table_names import TableName

Word = TypeVar("Word")


class TableQueue(Generic[Word]):
    """However often a table is heard of while its turn has not come, it comes up once. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[TableName, Word] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, table: TableName, word: Word) -> None:
        """The newest word about a table. Returns at once."""
        with self._changed:
            self._waiting[table] = word
            self._changed.notify()

    def take(self) -> tuple[TableName, Word] | None:
        """Wait for the next one; None after `close`, once nothing waits any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            if not self._waiting:
                return None
            table = next(iter(self._waiting))
            return table, self._waiting.pop(table)

    def close(self) -> None:
        """Nobody waits for more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drained(self) -> list[TableName]:
        """Take all that waits at once."""
        with self._changed:
            tables = list(self._waiting)
            self._waiting.clear()
            return tables
