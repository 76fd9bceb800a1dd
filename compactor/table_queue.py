"""A queue of tables: the newest item of each table, in the order in which the tables were first added."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from compactor.table_names import TableName

Item = TypeVar("Item")


class TableQueue(Generic[Item]):
    """A table that is added several times while it waits is taken once, with its newest item. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[TableName, Item] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, table: TableName, item: Item) -> None:
        """Add the table, or replace its item. Does not block."""
        with self._changed:
            self._waiting[table] = item
            self._changed.notify()

    def take(self) -> tuple[TableName, Item] | None:
        """Wait for the next table and its item; None once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            if not self._waiting:
                return None
            table = next(iter(self._waiting))
            return table, self._waiting.pop(table)

    def close(self) -> None:
        """End waiting `take` calls once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drained(self) -> list[TableName]:
        """Remove and return all waiting tables."""
        with self._changed:
            tables = list(self._waiting)
            self._waiting.clear()
            return tables
