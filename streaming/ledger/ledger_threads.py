"""The threads of the ledger: for each catalog a few that look at its tables, and one that lists it.

A catalog that does not answer holds up its own threads only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compactor.errors import RetryError
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger.table_driver import TableDriver
from streaming.logs.events import LOG

WAIT_SECONDS = 0.5
LOOK_SECONDS = 600.0
"""After which a look hangs: clients of catalogs and stores give up after a minute, and one look reads a limited number
of manifests."""
MOST_HANGING = 8
"""Threads of a catalog that hang and were replaced. With more, the catalog gets no further threads."""


@dataclass(eq=False)
class _Seat:
    """One thread, and the look that it is busy with. `replaced`: another thread goes on in its place."""

    thread: threading.Thread
    catalog: str
    table: TableName | None = None
    since: float = 0.0
    hangs: bool = False
    replaced: bool = False


class LedgerThreads:
    """`per_catalog`: threads that look.

    Attributes:
        may_list: Whether the stream has fixed its first offsets: only then can no commit fall between the two.
        ticks: A steady clock in seconds.
    """

    def __init__(self, driver: TableDriver, per_catalog: int) -> None:
        self.may_list = False
        self.ticks = time.monotonic
        self._driver = driver
        self._per_catalog = per_catalog
        self._seats: list[_Seat] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        for catalog in self._driver.tables.catalogs:
            for _ in range(self._per_catalog):
                self._start_thread(catalog)
            threading.Thread(target=self._list, args=(catalog,), name=f"sweep-{catalog}", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """End the threads after their current table; wait at most `seconds` for all of them. Listings end alone."""
        self._stop.set()
        self._driver.close()
        deadline = time.monotonic() + seconds
        for seat in [*self._seats]:
            if not seat.hangs:
                seat.thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def hanging(self) -> tuple[TableName, ...]:
        """Tables whose looks hang; other threads have taken over their work, as far as `MOST_HANGING` allows."""
        return tuple(sorted(table for each in [*self._seats] if each.hangs and (table := each.table) is not None))

    def check(self) -> None:
        """Replace threads whose look hangs. The table is stale until its look ends after all."""
        for seat in [*self._seats]:
            with self._lock:  # else its look could end in between
                table, is_new = seat.table, not seat.hangs
                if table is None or seat.replaced or self.ticks() - seat.since <= LOOK_SECONDS:
                    continue
                replaced = sum(each.replaced for each in self._seats if each.catalog == seat.catalog)
                seat.hangs, seat.replaced = True, replaced < MOST_HANGING
            if is_new:
                error = RetryError(
                    f"the look at {table} takes more than {LOOK_SECONDS / 60:.0f} min: its catalog or store does not "
                    "answer; restart firnline if it never does",
                    reason=Reason.LOOK_HANGS,
                )
                LOG.error("%s", error)
                self._driver.hangs(table, error)
            if seat.replaced:
                self._start_thread(seat.catalog)

    def _start_thread(self, catalog: str) -> None:
        thread = threading.Thread(name=f"look-{catalog}", daemon=True, target=lambda: self._look(seat))
        seat = _Seat(thread, catalog)
        with self._lock:
            self._seats.append(seat)
        thread.start()

    def _look(self, seat: _Seat) -> None:
        while not self._stop.is_set() and not seat.replaced:
            with self._outlived(seat.catalog):
                taken = self._driver.take(seat.catalog, WAIT_SECONDS)
                if taken is not None:
                    seat.since, seat.table = self.ticks(), taken[0]
                    self._driver.look(*taken)
            with self._lock:
                seat.table, seat.hangs = None, False
        with self._lock:
            self._seats = [each for each in self._seats if each is not seat]

    def _list(self, catalog: str) -> None:
        while not self._stop.wait(WAIT_SECONDS):
            if self.may_list:
                with self._outlived(catalog):
                    self._driver.list_if_due(catalog)

    @contextmanager
    def _outlived(self, catalog: str) -> Iterator[None]:
        """Log an unexpected error and go on: a thread serves many tables, and must outlive each of them."""
        try:
            yield
        except Exception:  # noqa: BLE001 - see above
            LOG.exception("catalog %s: a look or listing failed with an unexpected error", catalog)
            self._stop.wait(WAIT_SECONDS)
