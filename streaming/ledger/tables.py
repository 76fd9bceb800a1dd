"""What the ledger knows of all tables: what events, settings and metadata folders ask for. No clock, thread or call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from compactor.events import LocationUnresolved
from compactor.patience.holds import Holds
from compactor.settings.current import WorkSettings
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard, Heard
from streaming.ledger.actions import Action, Forget, Told
from streaming.ledger.catalog_tables import MOST_SHOWN, CatalogTables
from streaming.ledger.kept_requests import KeptRequests
from streaming.ledger.metadata_folders import MOST_SHARING, MetadataFolders
from streaming.ledger.table_record import NO_RECORD, Asked, Lane, Now, TableRecord
from streaming.logs.events import LOG


class Tables:
    """The tables of all catalogs."""

    def __init__(
        self, settings: WorkSettings, catalogs: Iterable[str], holds: Holds, shard: Shard = EVERYTHING
    ) -> None:
        self._settings = settings
        self._shard = shard
        self._folders = MetadataFolders()
        self.catalogs = {name: CatalogTables(name, settings, self.watches, holds, self._folders) for name in catalogs}

    def of(self, table: TableName) -> CatalogTables:
        """The tables of its catalog."""
        return self.catalogs[table.catalog]

    def get(self, table: TableName) -> TableRecord:
        """What is known of the table."""
        return self.of(table).get(table) if table.catalog in self.catalogs else NO_RECORD

    def watches(self, table: TableName) -> bool:
        """Whether the table is ours and not ignored."""
        return table.catalog in self.catalogs and not self._settings.tables.ignores(table) and self._shard.owns(table)

    def hear(self, events: Iterable[AnyHeard], waiting: Mapping[TableName, tuple[str, ...]], now: Now) -> Told:
        """Events came. `waiting`: requests that wait already.

        An event is a hint. It is dropped if its table is ignored or belongs to another service, and if it is older than
        the table's last look and announces a snapshot that is counted (a duplicate or late event). A request is no
        hint: nothing else tells of it. Requests must be saved before their looks, which may drop them.
        """
        looks = dict[TableName, Asked]()
        requests = KeptRequests(waiting, lambda table: self.get(table).known)
        for event in (found for each in events for found in self._with_tables(each, now)):
            table = event.table
            if not self.watches(table) or not (event.request is None or requests.take(table, event.request)):
                continue
            asked = self._asks(event)
            if asked is not None:
                looks[table] = asked.joined(looks.get(table))
        requests.tell_of_dropped()
        return Told(requests.kept, looks)

    def _asks(self, event: Heard) -> Asked | None:
        """The look that the event asks for; None: it is no news."""
        table, record, happened_at = event.table, self.get(event.table), event.timestamp_ms / 1000
        if event.writes and record.known:
            rhythm = record.rhythm.heard(event.source, happened_at)
            if rhythm is not record.rhythm:
                self.of(table).put(table, rhythm=rhythm)
        is_request, snapshot_id = event.request is not None, event.snapshot_id
        if not is_request and snapshot_id is not None and record.count and record.count.has(snapshot_id, happened_at):
            return None
        told = (snapshot_id, event.metadata_location) if event.writes else ()
        return Asked(
            Lane.EVENT if record.known else Lane.UNKNOWN,
            happened_at if event.writes else None,
            announced=frozenset(each for each in told if each is not None),
            requested=is_request and not record.known,
        )

    def _with_tables(self, event: AnyHeard, now: Now) -> Sequence[Heard]:
        """The event for each table that it may be of; none: the table of its metadata file is searched if need be."""
        if isinstance(event, Heard):
            table = event.table
            listed = self.of(table).spelled(table) if table.catalog in self.catalogs else table
            return (event if listed is table else replace(event, table=listed),)
        written = event.metadata_location
        tables = self._folders.find(written)
        if not tables:
            self._folders.search(written, event.source, now.ticks)
        return [
            Heard(table, event.source, event.timestamp_ms, writes=True, metadata_location=written)
            for table in (tables if len(tables) <= MOST_SHARING else ())
        ]

    def search_folders(self, now: Now) -> list[Action]:
        """Give up searches of metadata folders that take too long; list the catalogs for the others. Each second."""
        given_up = self._folders.given_up(now.ticks)
        if self._folders.must_list(now.ticks):
            for catalog in self.catalogs.values():
                catalog.list_soon()
        for source, folder in given_up:
            LOG.info("events of %s: no table of the catalogs has its metadata in %s", source, folder)
        return [LocationUnresolved(source=source, folder=folder) for source, folder in given_up]

    def sweep_soon(self) -> None:
        """List all catalogs and look at all tables now: events were missed."""
        for catalog in self.catalogs.values():
            catalog.sweep_soon()

    def settings_changed(self, board: Collection[TableName]) -> list[Action]:
        """Forget tables that are ignored now, and look at all others. `board`: tables with debt or requests."""
        names = {*board, *(table for each in self.catalogs.values() for table in each.names)}
        gone = [table for table in names if not self.watches(table)]
        for table in gone:
            if table.catalog in self.catalogs:
                self.of(table).forget(table)
        self.sweep_soon()
        return [Forget(table) for table in gone]

    @property
    def counted(self) -> tuple[int, int] | None:
        """Tables that were counted since the start, of those that are listed; None before the first listing ended."""
        if not any(each.listed for each in self.catalogs.values()):
            return None
        answered, listed = zip(*(each.counted for each in self.catalogs.values()), strict=True)
        return sum(answered), sum(listed)

    def listed(self, now: Now) -> dict[str, bool]:
        """For each catalog whether its last listing succeeded; one that hangs, or misses a namespace, has not.

        Not before the first ends.
        """
        catalogs = self.catalogs.items()
        fails = {name: bool(each.trouble or each.unlisted or each.hangs_seconds(now)) for name, each in catalogs}
        return {name: not fails[name] for name, each in self.catalogs.items() if each.listed or fails[name]}

    def troubles(self, now: Now) -> dict[str, str]:
        """Catalogs that do not answer, listings that hang, and why catalogs or namespaces could not be listed."""
        found, unlisted = dict[str, str](), list[str]()
        for name, each in self.catalogs.items():
            found |= {} if each.calls.answered else {f"catalog {name}": "does not answer"}
            seconds = each.hangs_seconds(now)
            found |= {f"listing of catalog {name}": f"takes {seconds / 60:.0f} min"} if seconds else {}
            unlisted += map(str, each.unlisted.values())
        if len(unlisted) > MOST_SHOWN:
            unlisted[MOST_SHOWN:] = [f"and {len(unlisted) - MOST_SHOWN} more namespaces"]
        listings = "; ".join((*(each.trouble for each in self.catalogs.values() if each.trouble), *unlisted))
        return found | ({"table watcher": listings} if listings else {})
