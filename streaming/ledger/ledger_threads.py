"""The threads of the ledger: for each catalog a few that look at its tables, and one that lists it.

A catalog that does not answer holds up its own threads only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from compactor.errors import RetryError
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger.table_driver import TableDriver
from streaming.logs.events import LOG

WAIT_SECONDS = 1.0
LISTING_WAIT_SECONDS = 0.5
START_WAIT_SECONDS = 0.1
LOOK_SECONDS = 600.0
"""After which a look hangs: clients of catalogs and stores give up after a minute, and one look reads a limited number
of manifests."""
MOST_HANGING = 8
"""Threads of a catalog that hang and were replaced. With more, the catalog gets no further threads."""


@dataclass(eq=False)
class LedgerThreads:
    """`per_catalog`: threads that look. `may_list`: whether the stream has fixed its first offsets: only then can no
    commit fall between the two.
    """

    driver: TableDriver
    per_catalog: int
    may_list: Callable[[], bool] = lambda: True
    ticks: Callable[[], float] = time.monotonic
    _busy: dict[str, tuple[TableName, float]] = field(default_factory=dict, init=False)
    _hanging: dict[str, TableName] = field(default_factory=dict, init=False)
    _replaced: set[str] = field(default_factory=set, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        for catalog in self.driver.tables.catalogs:
            for _ in range(self.per_catalog):
                self._start_thread(catalog)
            threading.Thread(target=self._list, args=(catalog,), name=f"sweep-{catalog}", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """End the threads after their current table; wait at most `seconds` for all of them. Listings end alone."""
        self._stop.set()
        self.driver.close()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.name not in self._hanging:
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def hanging(self) -> tuple[TableName, ...]:
        """Tables whose looks hang; other threads have taken over their work, as far as `MOST_HANGING` allows."""
        return tuple(sorted(self._hanging.values()))

    def check(self) -> None:
        """Replace threads whose look hangs. The table is stale until its look ends after all."""
        now = self.ticks()
        for name, (table, since) in [*self._busy.items()]:
            if now - since <= LOOK_SECONDS or name in self._replaced:
                continue
            with self._lock:
                if self._busy.get(name) != (table, since):  # its look has just ended
                    continue
                is_new = name not in self._hanging
                self._hanging[name] = table
                replaces = sum(self._hanging[each].catalog == table.catalog for each in self._replaced) < MOST_HANGING
                if replaces:
                    self._replaced.add(name)
            if is_new:
                error = RetryError(
                    f"the look at {table} takes more than {LOOK_SECONDS / 60:.0f} min: its catalog or store does not "
                    "answer; restart firnline if it never does",
                    reason=Reason.LOOK_HANGS,
                )
                LOG.error("%s", error)
                self.driver.hangs(table, error)
            if replaces:
                self._start_thread(table.catalog)

    def _start_thread(self, catalog: str) -> None:
        name = f"look-{catalog}-{len(self._threads)}"
        thread = threading.Thread(target=self._look, args=(catalog, name), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _look(self, catalog: str, name: str) -> None:
        while not self._stop.is_set():
            try:
                taken = self.driver.take(catalog, WAIT_SECONDS)
            except Exception:  # noqa: BLE001 - as in `_outlived`
                LOG.exception("catalog %s: the next look could not be chosen, because of an unexpected error", catalog)
                self._stop.wait(WAIT_SECONDS)
                continue
            if taken is not None:
                self._busy[name] = (taken[0], self.ticks())
                with _outlived(taken[0]):
                    self.driver.look(*taken)
                if self._has_ended(name):
                    return

    def _has_ended(self, name: str) -> bool:
        """A look of this thread ended; returns whether the thread ends too, because another one has replaced it."""
        with self._lock:
            del self._busy[name]
            self._hanging.pop(name, None)
            replaced = name in self._replaced
            self._replaced.discard(name)
            return replaced

    def _list(self, catalog: str) -> None:
        while not self._stop.is_set():
            may_list = False
            with _outlived(catalog):
                may_list = self.may_list()
                if may_list:
                    self.driver.list_if_due(catalog)
            self._stop.wait(LISTING_WAIT_SECONDS if may_list else START_WAIT_SECONDS)


@contextmanager
def _outlived(what: TableName | str) -> Iterator[None]:
    """Log an unexpected error and go on: a thread serves many tables, and must outlive each of them."""
    try:
        yield
    except Exception:  # noqa: BLE001 - see above
        LOG.exception("%s: the look failed with an unexpected error", what)
