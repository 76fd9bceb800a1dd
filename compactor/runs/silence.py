"""Whether a store answers no work any more: file groups or searches in a row that got no answer."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Final

from compactor.table_names import TableName

SILENCE: Final = 3
"""Pieces of work that got no answer, with none done since the first of them began: the store answers none any more."""


class Silence:
    """The pieces of work without an answer since the last one that was done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._unanswered: set[Hashable] = set()

    @property
    def done(self) -> int:
        """How many pieces of work were done so far. Who begins one notes it: see `note`."""
        return self._done

    def note(self, work: Hashable, done_before: int) -> None:
        """This piece got no answer. It says nothing about the store if another one was done while it was under way.

        `done_before`: how many were done before it began.
        """
        with self._lock:
            if self._done == done_before:
                self._unanswered.add(work)

    def end(self) -> None:
        """Some work was done: the store answers."""
        with self._lock:
            self._done += 1
            self._unanswered.clear()

    @property
    def is_of_all(self) -> bool:
        """Whether the store answers no work any more."""
        with self._lock:
            return len(self._unanswered) >= SILENCE


class Unanswered:
    """Data files without an answer, of tables for which the store answered nothing: the next run begins with others.

    Else files in a place that is lost would end each run before it comes to the others. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[TableName, frozenset[str]] = {}

    def note(self, table: TableName, paths: Iterable[str]) -> None:
        """A run or conversion of `table` ended with nothing done; it got no answer for these data files."""
        with self._lock:
            self._files[table] = self.of(table) | frozenset(paths)

    def forget(self, table: TableName) -> None:
        """Something was committed: the files without an answer were given up."""
        with self._lock:
            self._files.pop(table, None)

    def of(self, table: TableName) -> frozenset[str]:
        """The data files of `table`."""
        return self._files.get(table, frozenset())
