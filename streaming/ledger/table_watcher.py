"""The table watcher: sweeps list the catalogs and ask for a look at every table, so that commits without events count.

It also asks for looks after our own commits. A sweep publishes nothing: an unchanged table costs one catalog call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from compactor.errors import FirnlineError
from compactor.events import Listener, TableUnreadable
from compactor.iceberg.tables import Catalogs
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.lookers import Breakers
from streaming.logs.events import LOG

SWEEP_AGAIN_SECONDS = 15.0
"""After a sweep that could not list a catalog."""
LISTING_SECONDS = 900.0
"""Of one listing, after which it hangs: a namespace is one call, and each call has a time limit."""
BEHIND_SECONDS = 20.0
"""While the stream is behind: commits whose events wait in the topic are found by sweeps."""


@dataclass(frozen=True)
class Surroundings:
    """What a sweep asks the rest of the service.

    Attributes:
        known: Tables on the debt board; those that are not listed any more are looked at too.
        owns: Whether the table is this service's.
        may_start: Whether the stream has fixed its first offsets: only then can no commit fall between the two.
        behind: Whether the stream is behind.
    """

    known: Callable[[], Iterable[TableName]]
    owns: Callable[[TableName], bool] = lambda _table: True
    may_start: Callable[[], bool] = lambda: True
    behind: Callable[[], bool] = lambda: False


@dataclass(eq=False)
class TableWatcher:
    """Sweeps each catalog in its own thread, so that one that does not answer holds up no other."""

    settings: WorkSettings
    catalogs: Catalogs
    queue: LookQueue
    breakers: Breakers
    surroundings: Surroundings
    listener: Listener
    ticks: Callable[[], float] = time.monotonic
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _listing: dict[str, float] = field(default_factory=dict, init=False)
    _found: dict[str, frozenset[TableName]] = field(default_factory=dict, init=False)
    _troubles: dict[str, str] = field(default_factory=dict, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start the threads; they sweep as soon as the stream allows it."""
        for catalog in self.catalogs.names:
            thread = threading.Thread(target=self._serve, args=(catalog,), name=f"sweep-{catalog}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop after the current namespace; a catalog that does not answer is not waited for."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def committed(self, table: TableName) -> None:
        """We committed to this table: count it."""
        self.queue.put(table, Asked(Lane.EVENT))

    def sweep_soon(self) -> None:
        """Sweep all catalogs now: other tables are ours."""
        self._wake.set()

    @property
    def found(self) -> frozenset[TableName] | None:
        """Tables of the last sweep that are ours; None before the first listing."""
        found = self._found
        return frozenset().union(*found.values()) if found else None

    def is_found(self, table: TableName) -> bool:
        """Whether the last sweep listed the table."""
        return table in self._found.get(table.catalog, ())

    @property
    def trouble(self) -> str | None:
        """Why catalogs could not be listed by their last sweep."""
        return "; ".join(self._troubles.values()) or None

    @property
    def hanging(self) -> Mapping[str, float]:
        """Catalogs whose listing takes longer than any should, with its seconds so far."""
        now = self.ticks()
        ages = {catalog: now - since for catalog, since in [*self._listing.items()]}
        return {catalog: seconds for catalog, seconds in ages.items() if seconds > LISTING_SECONDS}

    def sweep(self, catalog: str) -> int:
        """List one catalog and ask for a look at each table that is ours and not ignored; return their number.

        Raises:
            FirnlineError: it cannot be listed; the tables that were listed before are asked for.
        """
        listed: set[TableName] = set()
        try:
            for table in self.catalogs.list_tables(catalog):
                if self._stop.is_set():
                    return len(listed)
                if self._watches(table):
                    listed.add(table)
                    self.queue.put(table, Asked(Lane.SWEEP))
        except FirnlineError:
            if listed:
                self._keep(catalog, self._found.get(catalog, frozenset()) | listed)
            raise
        self._keep(catalog, frozenset(listed))
        for table in self.surroundings.known():
            if table.catalog == catalog and table not in listed and self._watches(table):
                self.queue.put(table, Asked(Lane.SWEEP))
        return len(listed)

    def _watches(self, table: TableName) -> bool:
        return not self.settings.tables.ignores(table) and self.surroundings.owns(table)

    def _keep(self, catalog: str, found: frozenset[TableName]) -> None:
        self._found = {**self._found, catalog: found}  # assign a new map: other threads read it

    def _serve(self, catalog: str) -> None:
        while not self.surroundings.may_start():
            if self._stop.wait(0.1):
                return
        while not self._stop.is_set():
            started = self.ticks()
            pause = self._swept(catalog)
            while not self._stop.is_set() and self.ticks() < started + pause:
                if self._wake.wait(0.5):
                    break
                if self.surroundings.behind():
                    pause = min(pause, BEHIND_SECONDS)
            self._stop.wait(0.5)  # every catalog's thread sees the wake-up
            self._wake.clear()

    def _swept(self, catalog: str) -> float:
        """Sweep once; returns the seconds until the next sweep. Nothing ends the thread."""
        pause = self.settings.service.sweep_seconds
        seconds = self.breakers.start(catalog)
        if seconds > 0:
            return min(pause, seconds)
        error: FirnlineError | None = None
        self._listing[catalog] = self.ticks()
        try:
            self.sweep(catalog)
            self._troubles.pop(catalog, None)
        except FirnlineError as failure:
            error = failure
            self._troubles[catalog] = str(failure)
            self.listener(
                TableUnreadable(table=TableName(catalog, (), "*"), reason=failure.reason, message=str(failure))
            )
        except Exception as failure:  # noqa: BLE001 - the thread must outlive every failure of a client
            LOG.warning("catalog %s could not be swept: %s", catalog, failure)
            self._troubles[catalog] = str(failure)
        finally:
            del self._listing[catalog]
        self.breakers.listed(catalog, error)
        return min(pause, SWEEP_AGAIN_SECONDS) if catalog in self._troubles else pause
