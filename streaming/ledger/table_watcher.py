"""The table watcher: sweeps the catalogs and requests reports from the ledger.

A sweep lists the catalogs and publishes one canonical event per table that requests a full report. So commits without
events are found, and a driver that has just started receives the counts of all tables.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable

from compactor.errors import FirnlineError
from compactor.events import Listener, TableUnreadable, ignore
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged

LOG = logging.getLogger("firnline")
SOURCE = "firnline-watcher"
SWEEP_AGAIN_SECONDS = 15.0


Publisher = Callable[[bytes, bytes], None]
"""Publishes key and value of one event on the commit topic."""


class TableWatcher:
    """Sweeps in its own thread; also publishes recount requests and our own commits."""

    def __init__(
        self,
        settings: Settings,
        catalogs: Catalogs,
        publish: Publisher,
        listener: Listener = ignore,
        clock: Callable[[], float] = time.time,
        *,
        known: Callable[[], Iterable[TableName]] = tuple,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._known = known
        self._ticks = ticks
        self._catalogs = catalogs
        self._publish = publish
        self._listener = listener
        self._clock = clock
        self._stop = threading.Event()
        self._requests: dict[tuple[TableName, bool], float] = {}
        self._found: dict[str, frozenset[TableName]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="table-watcher", daemon=True)
        self.trouble: str | None = None

    def start(self) -> None:
        """Start the thread; it sweeps at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current table."""
        self._stop.set()
        self._thread.join(timeout=10)

    def announce(self, table: TableName, snapshot_id: int) -> None:
        """Publish our own commit, so that the ledger counts it like any other."""
        self._send(table, snapshot_id=snapshot_id, operation="replace")

    def request_recount(self, table: TableName, *, continues: bool, after_seconds: float = 0.0) -> None:
        """Request another count: to continue a long recount (`continues`), or after a failed read."""
        with self._lock:
            self._requests.setdefault((table, continues), self._ticks() + after_seconds)

    @property
    def found(self) -> frozenset[TableName] | None:
        """Tables of the last sweep that are not ignored; None before the first listing."""
        found = self._found
        return frozenset().union(*found.values()) if found else None

    def sweep(self) -> int:
        """List every catalog and request a report of every table that is not ignored; return their number.

        Also request reports of known tables that are not listed: dropped tables, and tables known from events only.
        """
        requested = 0
        self.trouble = None
        for catalog in self._catalogs.names:
            try:
                listed, failure = self._list(catalog)
                for table in self._keep_found(catalog, listed, complete=failure is None):
                    if self._stop.is_set():
                        return requested
                    self._send(table, report=True)
                    requested += 1
                if failure is not None:
                    raise failure
                if self._stop.is_set():
                    return requested
                seen = set(listed)
                for table in self._known():
                    if table.catalog == catalog and table not in seen:
                        self._send(table, report=True)
            except FirnlineError as error:
                self.trouble = str(error)
                self._listener(
                    TableUnreadable(table=TableName(catalog, (), "*"), reason=error.reason, message=str(error))
                )
        return requested

    def _list(self, catalog: str) -> tuple[list[TableName], FirnlineError | None]:
        """The catalog's tables; after a failure, those listed before it, with the error."""
        listed: list[TableName] = []
        try:
            for table in self._catalogs.list_tables(catalog):
                if self._stop.is_set():
                    break
                listed.append(table)
        except FirnlineError as error:
            return listed, error
        return listed, None

    def _keep_found(self, catalog: str, listed: list[TableName], *, complete: bool) -> list[TableName]:
        watched = [table for table in listed if not self._settings.tables.ignores(table)]
        before = frozenset[TableName]() if complete else self._found.get(catalog, frozenset())
        if watched or complete:
            self._found = {**self._found, catalog: before.union(watched)}  # assign a new map: other threads read it
        return watched

    def _serve(self) -> None:
        next_sweep = self._ticks()
        while not self._stop.is_set():
            now = self._ticks()
            if now >= next_sweep:
                swept = self._guarded(self.sweep)
                pause = self._settings.service.sweep_seconds
                next_sweep = now + (pause if swept else min(pause, SWEEP_AGAIN_SECONDS))
            self._guarded(self._send_what_is_due)
            self._stop.wait(0.5)

    def _guarded(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the thread must survive failures of the broker
            if self.trouble is None:
                LOG.warning("the table watcher failed and will try again: %s", error)
            self.trouble = str(error)
            return False
        return True

    def _send_what_is_due(self) -> None:
        now = self._ticks()
        with self._lock:
            due = [request for request, at in self._requests.items() if at <= now]
            for request in due:
                del self._requests[request]
        while due:
            table, continues = due[0]
            try:
                self._send(table, continues=continues, report=not continues)
            except BaseException:
                for table, continues in due:  # keep all requests if the broker fails
                    self.request_recount(table, continues=continues)
                raise
            del due[0]

    def _send(
        self,
        table: TableName,
        *,
        report: bool = False,
        continues: bool = False,
        snapshot_id: int | None = None,
        operation: str | None = None,
    ) -> None:
        changed = TableChanged(
            source=SOURCE,
            event_id=str(uuid.uuid4()),
            catalog=table.catalog,
            namespace=table.namespace,
            name=table.name,
            timestamp_ms=int(self._clock() * 1000),
            snapshot_id=snapshot_id,
            operation=operation,
            report=report,
            continues=continues,
        )
        self._publish(*canonical.encode(changed, sender=SOURCE))
