"""Data files that could not be searched for deleted rows, or not be rewritten: they are left alone for an hour."""

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
"""After which another attempt is made, although the data files are the same."""


@dataclass(frozen=True)
class GivenUp:
    """Data files that were searched or rewritten together, by path, and why that failed."""

    paths: frozenset[str]
    why: str


@dataclass(frozen=True)
class _Noted:
    """`by`: what the work depends on besides its files; `at`: seconds since the epoch."""

    files: GivenUp
    by: tuple[object, ...]
    at: float

    def holds(self, table: TableView, live: AbstractSet[str] | None, now: float) -> bool:
        """Our own merges replace some of the files, and not the one that cannot be read."""
        is_young = self.seconds_left(now) > 0
        is_live = live is None or not self.files.paths.isdisjoint(live)
        return is_young and self.by == _by(table) and is_live

    def seconds_left(self, now: float) -> float:
        since = now - self.at
        return AGAIN_SECONDS - since if since >= 0 else 0.0


class GivenUpFiles:
    """The given-up files of all tables. One thread at a time works on one table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # runs of several tables note at the same time
        self._noted: dict[TableName, tuple[_Noted, ...]] = {}

    def note(self, table: TableView, given_up: Iterable[GivenUp], now: float) -> None:
        """The work on these files of `table` failed, and another attempt would fail too."""
        noted = tuple(_Noted(files, _by(table), now) for files in given_up)
        with self._lock:
            kept = {**self._noted, table.name: (*self._noted.get(table.name, ()), *noted)}
            self._noted = {name: each for name, each in kept.items() if any(one.seconds_left(now) > 0 for one in each)}

    def seconds_left(self, table: TableName, now: float) -> float | None:
        """After which another attempt may be made in the table; None: there is nothing to try."""
        left = [each.seconds_left(now) for each in self._noted.get(table, ())]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def of(self, table: TableView, live: AbstractSet[str] | None, now: float) -> Mapping[str, str]:
        """Data files that need not be tried now, and why: nothing has changed that can help, and it is too early.

        `live`: the table's data files; None if they are not known yet.
        """
        with self._lock:
            holding = tuple(each for each in self._noted.pop(table.name, ()) if each.holds(table, live, now))
            if holding:
                self._noted[table.name] = holding
        return {path: each.files.why for each in holding for path in each.files.paths}


def _by(table: TableView) -> tuple[object, ...]:
    return table.uuid, table.metadata.current_schema_id, table.properties.get(NAME_MAPPING)
