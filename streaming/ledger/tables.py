"""What the ledger knows of all tables: what events, settings and metadata folders ask for. No clock, thread or call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from compactor.patience.holds import Holds
from compactor.settings.current import WorkSettings
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard, Heard
from streaming.ledger.catalog_calls import MOST_SHOWN
from streaming.ledger.catalog_tables import CatalogTables, Scope
from streaming.ledger.metadata_folders import MOST_SHARING, MetadataFolders
from streaming.ledger.table_record import NO_RECORD, Asked, Forget, Lane, Now, TableRecord
from streaming.logs.events import LOG

MOST_OF_A_TABLE = 65_536
"""Characters of one table's requests that wait: a hundred, or five thousand values of an IN."""
MOST_OF_UNKNOWN = 262_144
"""Characters of all requests that wait of tables that are not known, created since the last listing: 400."""
EACH = 600
"""Characters that a request counts besides its name and filter."""


class KeptRequests:
    """Which of the requests that the events of a batch bring are kept. Anyone who may write to the topic can send them.

    Each waits in memory and in a file until a look has found its table, or a run has done it. Many requests are only
    kept for tables that are known: events can name any number of others.

    `waiting`: those that wait already. `kept`: what the batch adds to them.
    """

    def __init__(self, waiting: Mapping[TableName, tuple[str, ...]], is_known: Callable[[TableName], bool]) -> None:
        self.kept: dict[TableName, list[str]] = {}
        self.dropped: list[TableName] = []
        self._waiting = waiting
        self._is_known = is_known
        self._unknown: int | None = None

    def take(self, table: TableName, text: str) -> bool:
        """Keep a request; False: too many wait. A request that waits already is not kept twice."""
        waits = [*self._waiting.get(table, ()), *self.kept.get(table, ())]
        if text in waits:
            return True
        added = 0 if self._is_known(table) else _size(table, text)
        if sum(_size(table, each) for each in (*waits, text)) > MOST_OF_A_TABLE or not self._has_room(added):
            self.dropped.append(table)
            return False
        self.kept.setdefault(table, []).append(text)
        return True

    def _has_room(self, added: int) -> bool:
        """Whether a request of an unknown table has room; then it takes it. Most batches do not ask."""
        if not added:
            return True
        if self._unknown is None:
            unknown = [table for table in self._waiting if not self._is_known(table)]
            self._unknown = sum(_size(table, text) for table in unknown for text in self._waiting[table])
        if self._unknown + added > MOST_OF_UNKNOWN:
            return False
        self._unknown += added
        return True

    def tell_of_dropped(self) -> None:
        """One warning, however many there are."""
        if self.dropped:
            LOG.warning(
                "%d requested rewrites are dropped, the first of %.200s: too many wait of one table, or of tables that "
                "are not counted yet; send them again later",
                len(self.dropped), self.dropped[0],
            )  # fmt: skip


def _size(table: TableName, text: str) -> int:
    return EACH + len(str(table)) + len(text)


class Tables:
    """The tables of all catalogs."""

    def __init__(
        self, settings: WorkSettings, catalogs: Iterable[str], holds: Holds, shard: Shard = EVERYTHING
    ) -> None:
        self._scope = Scope(settings, shard)
        self._folders = MetadataFolders()
        self.catalogs = {name: CatalogTables(name, self._scope, holds, self._folders) for name in catalogs}

    def of(self, table: TableName) -> CatalogTables:
        """The tables of its catalog."""
        return self.catalogs[table.catalog]

    def get(self, table: TableName) -> TableRecord:
        """What is known of the table."""
        return self.of(table).get(table) if table.catalog in self.catalogs else NO_RECORD

    def watches(self, table: TableName) -> bool:
        """Whether the table is ours and not ignored."""
        return table.catalog in self.catalogs and self._scope.has(table)

    def hear(
        self, events: Iterable[AnyHeard], waiting: Mapping[TableName, tuple[str, ...]], now: Now
    ) -> tuple[Mapping[TableName, Sequence[str]], Mapping[TableName, Asked]]:
        """Events came: the requests to keep, and then the looks that they ask for. `waiting`: earlier requests.

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
        return requests.kept, looks

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
            self._folders.search(written, now.ticks)
        return [
            Heard(table, event.source, event.timestamp_ms, writes=True, metadata_location=written)
            for table in (tables if len(tables) <= MOST_SHARING else ())
        ]

    def search_folders(self, now: Now) -> None:
        """List the catalogs if the tables of metadata folders are searched. Called every second."""
        if self._folders.must_list(now.ticks):
            for catalog in self.catalogs.values():
                catalog.listings.soon()

    def sweep_soon(self) -> None:
        """List all catalogs and look at all tables now: events were missed."""
        for catalog in self.catalogs.values():
            catalog.sweep_soon()

    def settings_changed(self, board: Collection[TableName]) -> list[Forget]:
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
        if not any(each.listings.ended for each in self.catalogs.values()):
            return None
        answered, listed = zip(*(each.counted for each in self.catalogs.values()), strict=True)
        return sum(answered), sum(listed)

    def listed(self, now: Now) -> dict[str, bool]:
        """For each catalog whether its last listing succeeded; one that hangs, or misses a namespace, has not.

        Not before the first ends.
        """
        listings = {name: each.listings for name, each in self.catalogs.items()}
        fails = {
            name: bool(each.trouble or each.unlisted or each.hangs_seconds(now)) for name, each in listings.items()
        }
        return {name: not fails[name] for name, each in listings.items() if each.ended or fails[name]}

    def troubles(self, now: Now) -> dict[str, str]:
        """Catalogs that do not answer, listings that hang, and why catalogs or namespaces could not be listed."""
        found, failed, unlisted = dict[str, str](), list[str](), list[str]()
        for name, each in self.catalogs.items():
            found |= {} if each.calls.answered else {f"catalog {name}": "does not answer"}
            seconds = each.listings.hangs_seconds(now)
            found |= {f"listing of catalog {name}": f"takes {seconds / 60:.0f} min"} if seconds else {}
            failed += filter(None, [each.listings.trouble])
            unlisted += map(str, each.listings.unlisted.values())
        if len(unlisted) > MOST_SHOWN:
            unlisted[MOST_SHOWN:] = [f"and {len(unlisted) - MOST_SHOWN} more namespaces"]
        return found | ({"table watcher": "; ".join((*failed, *unlisted))} if failed or unlisted else {})
