"""Searches of deleted rows that were refused: their equality deletes are left alone until a search may succeed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from compactor.iceberg.tables import TableView
from compactor.rewrite.tasks.task_input import NAME_MAPPING
from compactor.table_names import TableName

AGAIN_SECONDS: Final = 3600.0
"""After which a refused search is tried again, although its data files are the same."""


@dataclass(frozen=True)
class RefusedSearch:
    """Data files that were searched together, by path, and why that was refused."""

    paths: frozenset[str]
    why: str


@dataclass(frozen=True)
class _Noted:
    """`by`: what a search depends on besides its files; `at`: seconds since the epoch."""

    search: RefusedSearch
    by: tuple[object, ...]
    at: float

    def holds(self, table: TableView, live: AbstractSet[str] | None, now: float) -> bool:
        """Our own merges replace some of the files, and not the one that cannot be searched."""
        is_young = self.seconds_left(now) > 0
        is_live = live is None or not self.search.paths.isdisjoint(live)
        return is_young and self.by == _by(table) and is_live

    def seconds_left(self, now: float) -> float:
        since = now - self.at
        return AGAIN_SECONDS - since if since >= 0 else 0.0


class RefusedSearches:
    """The refused searches of all tables. One thread at a time works on one table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # runs of several tables note at the same time
        self._noted: dict[TableName, tuple[_Noted, ...]] = {}

    def note(self, table: TableView, searches: Iterable[RefusedSearch], now: float) -> None:
        """These searches of `table` were refused."""
        noted = tuple(_Noted(search, _by(table), now) for search in searches)
        with self._lock:
            kept = {**self._noted, table.name: (*self._noted.get(table.name, ()), *noted)}
            self._noted = {name: each for name, each in kept.items() if any(one.seconds_left(now) > 0 for one in each)}

    def seconds_left(self, table: TableName, now: float) -> float | None:
        """After which a refused search of the table may be tried again; None: there is none."""
        left = [each.seconds_left(now) for each in self._noted.get(table, ())]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def of(self, table: TableView, live: AbstractSet[str] | None, now: float) -> Mapping[str, str]:
        """Data files that need not be searched now, and why: nothing has changed that can help, and it is too early.

        `live`: the table's data files; None if they are not known yet.
        """
        with self._lock:
            holding = tuple(each for each in self._noted.pop(table.name, ()) if each.holds(table, live, now))
            if holding:
                self._noted[table.name] = holding
        return {path: each.search.why for each in holding for path in each.search.paths}


def _by(table: TableView) -> tuple[object, ...]:
    return table.uuid, table.metadata.current_schema_id, table.properties.get(NAME_MAPPING)
