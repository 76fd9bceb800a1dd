"""Carries out what the records of the tables decide: looks, listings, and what follows from them. Thread-safe.

events, listings, requests → tables (decide) → looks, one thread for each → board. Threads of `ledger_threads.py` call
`take`, `look` and `list_if_due`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from compactor.errors import FirnlineError, RetryError
from compactor.events import CatalogAnswers, EventsHeard, TableUnreadable
from compactor.iceberg.namespaces import Namespace
from compactor.iceberg.tables import OtherNameError
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard
from streaming.ledger.catalog_calls import Listing
from streaming.ledger.looker import Looker, failure_of
from streaming.ledger.table_record import Action, Asked, Forget, Lane, Looked, Lost, Now, Outcome, Stale
from streaming.ledger.tables import Tables


class TableDriver:
    """`ticks`, `behind`: as of `Now`; the clock is the board writer's."""

    def __init__(self, tables: Tables, looker: Looker) -> None:
        self.tables = tables
        self.looker = looker
        self.ticks = time.monotonic
        self.behind = False
        self._board, self._listener = looker.writer.board, looker.writer.listener
        self._changed = threading.Condition()
        self._closed = False

    # --- what the rest of the service asks for ------------------------------------------------------------------------

    def hear(self, events: Sequence[AnyHeard]) -> None:
        """A batch of events: ask for looks, and keep requested rewrites. Waits for no look."""
        with self.deciding() as now:
            requests, looks = self.tables.hear(events, self._board.pending(), now)
        if requests:
            self._board.request_all(requests)
        with self.deciding() as now:
            for table, asked in looks.items():
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
            self.tables.search_folders(now)

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
                until = deadline if tables.order.next_at is None else min(deadline, tables.order.next_at)
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
                looked = Looked(Outcome.MISSING, OtherNameError(table, listed))
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
        with self.deciding(wakes=False) as now:
            if not tables.starts_listing(now):
                return
        names, unlisted, failure = set[TableName](), dict[Namespace, RetryError](), None
        try:
            for table in self.looker.catalogs.list_tables(catalog, unlisted.__setitem__):
                if self._closed:
                    return
                names.add(table)
                with self.deciding(wakes=False) as now:  # of thousands in a row
                    tables.found(table, now)
        except Exception as error:  # noqa: BLE001 - the thread must outlive every failure of a client
            failure = failure_of(error)
        listing = Listing(frozenset(names), unlisted, {*self._board.known(), *self.looker.saved()}, failure)
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
        return Now(self.ticks(), self.looker.writer.clock(), self.behind)

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
