"""The sweep of in-flight records in a thread of its own: a slow catalog holds up neither the service nor its stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from compactor.table_names import TableName
from streaming.logs.events import LOG

PAUSE_SECONDS = 15.0
"""Between the end of one sweep and the start of the next."""
LONG_SECONDS = 300.0
"""After which the pages say that something takes long."""

MayAsk = Callable[[TableName], bool]


class Sweeping(Protocol):
    """What a sweep is made of; `Rewriting`."""

    def sweep(self, now: float, may_ask: MayAsk) -> object:
        """Delete files; ask before each table. `now`: seconds since the epoch."""


class Catalogs(Protocol):
    """What is known of the catalogs; `DriverLedger`."""

    def available(self, catalog: str) -> bool:
        """Whether the catalog answered last."""


class UnsteppedClock:
    """Seconds since the epoch, which no step of the clock takes forward: leases of other hosts would be over.

    It is behind the clock by as much as that was set forward since the start.
    """

    def __init__(self, clock: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ticks = clock, ticks
        self._ahead = clock() - ticks()

    def __call__(self) -> float:
        """The time now."""
        return min(self._clock(), self._ahead + self._ticks())


class InFlightSweep:
    """Starts one sweep at a time. `ticks`: a steady clock in seconds."""

    def __init__(self, sweeping: Sweeping, catalogs: Catalogs) -> None:
        self.ticks = time.monotonic
        self._sweeping = sweeping
        self._catalogs = catalogs
        self._clock = UnsteppedClock()
        self._due = float("-inf")
        self._since: float | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def check(self) -> None:
        """Start a sweep if one is due and none is under way. Called every second by one thread."""
        if self._since is not None or self.ticks() < self._due or self._stop.is_set():
            return
        self._since = self.ticks()
        self._thread = threading.Thread(target=self._run, name="in-flight-sweep", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """End the sweep after its current table; wait at most `seconds` for that."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))

    @property
    def trouble(self) -> str:
        """What the pages say of a sweep that takes long; empty: nothing."""
        since = self._since
        seconds = 0.0 if since is None else self.ticks() - since
        if seconds <= LONG_SECONDS:
            return ""
        return f"takes {seconds / 60:.0f} min; until it ends, no other outputs of ended runs are deleted"

    def _may_ask(self, table: TableName) -> bool:
        return not self._stop.is_set() and self._catalogs.available(table.catalog)

    def _run(self) -> None:
        try:
            self._sweeping.sweep(self._clock(), self._may_ask)
        except Exception as error:  # noqa: BLE001 - the records stay, and so must the sweeps
            LOG.warning("in-flight records could not be swept, next try in %ss: %s", PAUSE_SECONDS, error)
        finally:
            self._due = self.ticks() + PAUSE_SECONDS
            self._since = None
