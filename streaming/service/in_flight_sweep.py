"""The sweep of in-flight records in a thread of its own: a slow catalog holds up neither the service nor its stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.table_names import TableName
from streaming.logs.events import LOG

PAUSE_SECONDS = 15.0
"""Between the end of one sweep and the start of the next."""
LONG_SECONDS = 300.0
"""After which the pages say that a sweep takes long."""

MayAsk = Callable[[TableName], bool]


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


@dataclass(eq=False)
class InFlightSweep:
    """Starts one sweep at a time.

    `sweep` deletes files; before each table it asks the function that it is given.
    `available`: whether a catalog answered last.
    """

    sweep: Callable[[MayAsk], object]
    available: Callable[[str], bool]
    ticks: Callable[[], float] = time.monotonic
    _due: float = field(default=float("-inf"), init=False)
    _since: float | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)

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
        return not self._stop.is_set() and self.available(table.catalog)

    def _run(self) -> None:
        try:
            self.sweep(self._may_ask)
        except Exception as error:  # noqa: BLE001 - the records stay, and so must the sweeps
            LOG.warning("in-flight records could not be swept, next try in %ss: %s", PAUSE_SECONDS, error)
        finally:
            self._due = self.ticks() + PAUSE_SECONDS
            self._since = None
