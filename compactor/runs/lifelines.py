"""Signs of life of runs, and of the dispatcher: when each last made progress, so that one that hangs is stopped, then
given up.

A run is alive while it waits for a slot, and with every output, plan and commit. One that is silent is stopped by its
supervisor; if it does not end, the dispatcher releases its lane and treats its commit as unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

STALLED_SECONDS: Final = 1800.0
"""Without progress, after which a run is stopped: far longer than one output file or one commit takes, and longer than
Iceberg's commit timeout."""
ABANDONED_SECONDS: Final = STALLED_SECONDS + 300.0
"""Without progress, after which the dispatcher does not wait for a run any more."""


class Lifelines:
    """When each run last moved. Thread-safe. `ticks`: a steady clock in seconds."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._lock = threading.Lock()
        self._moved: dict[Hashable, float] = {}

    def moved(self, table: Hashable) -> None:
        """The table's run starts, or makes progress."""
        with self._lock:
            self._moved[table] = self._ticks()

    def ended(self, table: Hashable) -> None:
        """The table's run has ended."""
        with self._lock:
            self._moved.pop(table, None)

    def silent_seconds(self, table: Hashable) -> float:
        """How long the table's run has made no progress; 0 if it does not run."""
        with self._lock:
            moved = self._moved.get(table)
        return 0.0 if moved is None else self._ticks() - moved

    def stalled(self, table: Hashable) -> bool:
        """Whether the run must be stopped."""
        return self.silent_seconds(table) > STALLED_SECONDS

    def is_lost(self, table: Hashable) -> bool:
        """Whether the run did not end although it was stopped."""
        return self.silent_seconds(table) > ABANDONED_SECONDS
