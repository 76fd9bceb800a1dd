"""Carries out what the records of the tables decide: looks, listings, and what follows from them. Thread-safe.

events, listings, requests → tables (decide) → looks, one thread for each → board. Threads of `ledger_threads.py` call
`take`, `look` and `list_if_due`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from compactor.errors import FirnlineError, RetryError
from compactor.events import CatalogAnswers, EventsHeard, TableUnreadable
from compactor.iceberg.namespaces import Namespace
from compactor.iceberg.tables import TableMissingError
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard
from streaming.ledger.actions import Action, Forget, Listing, Lost, Stale
from streaming.ledger.looker import Looker, failure_of
from streaming.ledger.table_record import Asked, Lane, Looked, Now, Outcome
from streaming.ledger.tables import Tables


class TableDriver:
    """`saved`: tables whose state is on disk. `clock`, `ticks`, `behind`: as of `Now`."""

    def __init__(
        self,
        tables: Tables,
        looker: Looker,
        saved: Callable[[], Iterable[TableName]] = lambda: (),
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tables = tables
        self.looker = looker
        self.clock = clock
        self.ticks = ticks
        self.behind = False
        self._saved = saved
        self._board, self._listener = looker.writer.board, looker.writer.listener
        self._changed = threading.Condition()
        self._closed = False

    # --- what the rest of the service asks for ------------------------------------------------------------------------

    def hear(self, events: Sequence[AnyHeard]) -> None:
        """A batch of events: ask for looks, and keep requested rewrites. Waits for no look."""
        with self.deciding() as now:
            told = self.tables.hear(events, self._board.pending(), now)
        if told.requests:
            self._board.request_all(told.requests)
        with self.deciding() as now:
            for table, asked in told.looks.items():
                self.tables.of(table).hear(table, asked, now)
        if events:
            self._listener(EventsHeard(by_source=Counter(event.source for event in events)))

    def look_soon(self, table: TableName) -> None:
        """Ask for a look at a table: we committed to it, or did not find it."""
        with self.deciding() as now:
            self.tables.of(table).ask(table, Asked(Lane.EVENT), now)

    def planned(self, table: TableName) -> None:
        """The table was planned: from now on, read its new manifests before the next plan needs them."""
        with self.deciding(wakes=False):
            self.tables.of(table).put(table, planned=True)

    def sweep_soon(self) -> None:
        """List all catalogs and look at all tables now: events were missed."""
        with self.deciding():
            self.tables.sweep_soon()

    def settings_changed(self) -> None:
        """Forget tables that are ignored now, and look at all others."""
        with self.deciding():
            actions = self.tables.settings_changed(self._board.known())
        self._carry_out(actions)

    def search_folders(self) -> None:
        """Go on with searches of metadata folders. Called every second."""
        with self.deciding() as now:
            actions = self.tables.search_folders(now)
        self._carry_out(actions)

    # --- looks --------------------------------------------------------------------------------------------------------

    def take(self, catalog: str, timeout: float) -> tuple[TableName, Asked] | None:
        """The next table to look at; None if none is due within `timeout` seconds, or after `close`."""
        deadline, tables = self.ticks() + timeout, self.tables.catalogs[catalog]
        with self._changed:
            while not self._closed:
                now = self.now()
                taken = tables.next_look(now)
                if taken is not None or now.ticks >= deadline:
                    return taken
                until = deadline if tables.next_at is None else min(deadline, tables.next_at)
                self._changed.wait(max(0.001, until - now.ticks))
            return None

    def look(self, table: TableName, asked: Asked) -> Looked | None:
        """Look at a table that was taken. None: its known counts were judged again."""
        tables = self.tables.of(table)
        try:
            with self.deciding(wakes=False):
                record, listed = tables.get(table), tables.spelled(table)
            if not asked.calls and self.looker.judge(table, record.count):
                return None
            if listed != table:
                error = TableMissingError(f"no listing has {table}, but {listed}: events of that name alone are used")
                looked = Looked(Outcome.MISSING, error)
            else:
                looked = self.looker.look(table, asked, record)
            with self.deciding() as now:
                actions = tables.looked(table, asked, looked, now)
            self._carry_out(actions)
            return looked
        finally:
            with self.deciding() as now:
                tables.done(table, now)

    def hangs(self, table: TableName, error: FirnlineError) -> None:
        """A look at the table does not end: its counts may be old."""
        self._carry_out([Stale(table, error)])

    # --- listings -----------------------------------------------------------------------------------------------------

    def list_if_due(self, catalog: str) -> None:
        """List the catalog, if it is time. Looks go on during that: thousands of namespaces take minutes."""
        tables = self.tables.catalogs[catalog]
        with self.deciding() as now:
            if not tables.starts_listing(now):
                return
        names, unlisted = set[TableName](), dict[Namespace, RetryError]()
        try:
            for table in self.looker.catalogs.list_tables(catalog, unlisted.__setitem__):
                if self._closed:
                    return
                names.add(table)
                with self.deciding(wakes=False) as now:  # of thousands in a row
                    tables.found(table, now)
            others = {*self._board.known(), *self._saved()}
            listing = Listing(frozenset(names), unlisted, others)
        except Exception as error:  # noqa: BLE001 - the thread must outlive every failure of a client
            listing = Listing(error=failure_of(error))
        with self.deciding() as now:
            actions = tables.listing_ended(listing, now)
        self._carry_out(actions)

    # ------------------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish the state of each catalog, so that its metric exists before anything happens."""
        for name, catalog in self.tables.catalogs.items():
            self._listener(CatalogAnswers(catalog=name, available=catalog.calls.answered))

    def close(self) -> None:
        """End all `take` calls, and listings after their current namespace."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def now(self) -> Now:
        """This moment."""
        return Now(self.ticks(), self.clock(), self.behind)

    @contextmanager
    def deciding(self, *, wakes: bool = True) -> Iterator[Now]:
        """Only this thread uses the records. `wakes`: threads that wait for a look ask again afterwards, at once."""
        with self._changed:
            yield self.now()
            if wakes:
                self._changed.notify_all()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Forget():
                    self._board.forget(action.table)
                    self.looker.writer.forget(action.table)
                case Lost():
                    self.looker.lost(action)
                case Stale(table, error, oldest_event):
                    self.looker.writer.unreadable(table, error, oldest_event)
                    self._listener(TableUnreadable(table=table, reason=error.reason, message=str(error)))
                case _:
                    self._listener(action)
