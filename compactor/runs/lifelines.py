"""Signs of life of runs: when each last made progress, so that one that hangs is stopped, then given up.

A run is alive while it waits for a slot, and with every output, plan and commit. One that is silent is stopped by its
supervisor; if it does not end, the dispatcher releases its lane and treats its commit as unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compactor.table_names import TableName

STALLED_SECONDS: Final = 1800.0
"""Without progress, after which a run is stopped: far longer than one output file or one commit takes, and longer than
Iceberg's commit timeout."""
ABANDONED_SECONDS: Final = STALLED_SECONDS + 300.0
"""Without progress, after which the dispatcher does not wait for a run any more."""


@dataclass(frozen=True)
class _Line:
    started: float
    moved: float


class Lifelines:
    """When each run started and last moved. Thread-safe. `ticks`: a steady clock in seconds."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._lock = threading.Lock()
        self._lines: dict[TableName, _Line] = {}

    def moved(self, table: TableName) -> None:
        """The table's run starts, or makes progress."""
        now = self._ticks()
        with self._lock:
            known = self._lines.get(table)
            self._lines[table] = _Line(known.started if known else now, now)

    def ended(self, table: TableName) -> None:
        """The table's run has ended."""
        with self._lock:
            self._lines.pop(table, None)

    def silent_seconds(self, table: TableName) -> float:
        """How long the table's run has made no progress; 0 if it does not run."""
        with self._lock:
            line = self._lines.get(table)
        return 0.0 if line is None else self._ticks() - line.moved

    def stalled(self, table: TableName) -> bool:
        """Whether the run must be stopped."""
        return self.silent_seconds(table) > STALLED_SECONDS

    def is_lost(self, table: TableName) -> bool:
        """Whether the run did not end although it was stopped."""
        return self.silent_seconds(table) > ABANDONED_SECONDS

    @property
    def oldest_seconds(self) -> float:
        """Age of the oldest run; 0 without runs."""
        now = self._ticks()
        with self._lock:
            return max((now - line.started for line in self._lines.values()), default=0.0)

    @property
    def most_silent_seconds(self) -> float:
        """The longest time that some run has made no progress; 0 without runs."""
        now = self._ticks()
        with self._lock:
            return max((now - line.moved for line in self._lines.values()), default=0.0)
