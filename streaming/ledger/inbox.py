"""The inbox: what the driver does with the events of a micro-batch. It asks for looks and never waits for one.

An event that names a metadata file and no table is of a table that keeps its metadata there: all that do are looked at.
If no look has told of such a table yet, it is searched. It is not searched if every name that the path suggests is
ignored or another service's: looks never tell where such tables are.

An event is a hint. It is dropped if its table is ignored or belongs to another service, and if it is older than the
table's last look and announces a snapshot that is counted (a duplicate or late event). A request is no hint: nothing
else tells of it. Requested rewrites are saved once, before the batch ends and before a look may drop them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from compactor.debt.board import DebtBoard
from compactor.events import EventsHeard, Listener
from compactor.settings.current import WorkSettings
from compactor.shards import Shard
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard, Heard
from streaming.ledger.kept_requests import KeptRequests
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.looker import Looker
from streaming.ledger.lookers import TRY_AGAIN_SECONDS
from streaming.ledger.table_locations import MOST_SHARING, folder_of, guesses
from streaming.logs.events import LOG


@dataclass(frozen=True)
class Inbox:
    """The callable that gets each batch's events. `is_found`: whether the last sweep listed a table.

    `shared`: folders of the metadata of too many tables.
    """

    settings: WorkSettings
    board: DebtBoard
    queue: LookQueue
    looker: Looker
    catalogs: Sequence[str]
    shard: Shard
    is_found: Callable[[TableName], bool]
    listener: Listener
    shared: set[str] = field(default_factory=set, init=False)

    def __call__(self, events: Sequence[AnyHeard]) -> None:
        asked = dict[TableName, Asked]()
        requests = KeptRequests(self.board.pending(), lambda table: self._lane(table) is Lane.EVENT)
        for event in (found for each in events for found in self._with_tables(each)):
            if self.settings.tables.ignores(event.table) or not self.shard.owns(event.table):
                continue
            is_kept = event.request is None or requests.take(event.table, event.request)
            one = self._asks(event) if is_kept else None
            if one is not None:
                asked[event.table] = one.joined(asked[event.table]) if event.table in asked else one
        if requests.kept:
            self.board.request_all(requests.kept)
        requests.tell_of_dropped()
        for table, one in asked.items():
            self._put(table, one)
        if events:
            self._publish(events)

    def _put(self, table: TableName, asked: Asked) -> None:
        """Ask for the look; for one that did not find the table a moment ago, once more later."""
        seconds = self.looker.names.put_off(table) if asked.lane is Lane.UNKNOWN else 0.0
        if seconds == 0.0:
            self.queue.put(table, asked)
        elif seconds is not None:
            self.queue.put_later(table, replace(asked, tries=len(TRY_AGAIN_SECONDS)), seconds)

    def _asks(self, event: Heard) -> Asked | None:
        """The look that the event asks for; None: it is no news."""
        table, lane, happened_at = event.table, self._lane(event.table), event.timestamp_ms / 1000
        if event.writes and lane is Lane.EVENT:
            self.looker.rhythms.heard(table, event.source, happened_at)
        is_request, snapshot_id = event.request is not None, event.snapshot_id
        if not is_request and snapshot_id is not None and self.looker.has_seen(table, snapshot_id, happened_at):
            return None
        told = (snapshot_id, event.metadata_location) if event.writes else ()
        return Asked(
            lane,
            happened_at if event.writes else None,
            announced=frozenset(each for each in told if each is not None),
            requested=is_request and lane is Lane.UNKNOWN,
        )

    def _publish(self, events: Sequence[AnyHeard]) -> None:
        oldest: dict[str, int] = {}
        for event in events:
            oldest[event.source] = min(event.timestamp_ms, oldest.get(event.source, event.timestamp_ms))
        self.listener(EventsHeard(by_source=Counter(event.source for event in events), oldest_ms=oldest))

    def _with_tables(self, event: AnyHeard) -> Sequence[Heard]:
        """The event for each table that it may be of; none: the table of its metadata file is searched if need be."""
        if isinstance(event, Heard):
            listed = self.looker.spelled(event.table)
            return (event if listed is None else replace(event, table=listed),)
        locations, written, at = self.looker.locations, event.metadata_location, event.timestamp_ms / 1000
        tables = locations.find(written)
        if len(tables) > MOST_SHARING:
            self._tell_of_shared(folder_of(written), len(tables))
            return ()
        if tables:
            return [
                Heard(table, event.source, event.timestamp_ms, writes=True, metadata_location=written)
                for table in tables
            ]
        suggested = [*guesses(folder_of(written), self.catalogs)]
        ours = [guess for guess in suggested if self.shard.owns(guess) and not self.settings.tables.ignores(guess)]
        if suggested and not ours:
            return ()
        if locations.search(written, event.source, at) is not None:
            for guess in ours:
                if not self.looker.names.is_missing(guess):
                    # Once: the listings of the search find a table that comes later.
                    self.queue.put(guess, Asked(self._lane(guess), at, tries=len(TRY_AGAIN_SECONDS)))
        return ()

    def _tell_of_shared(self, folder: str, tables: int) -> None:
        """Once for each folder."""
        if folder not in self.shared:
            self.shared.add(folder)
            LOG.warning(
                "%d tables keep their metadata in %s, so that storage events do not tell whose commit it was: sweeps "
                "find their commits; give the tables folders of their own (write.metadata.path)",
                tables, folder,
            )  # fmt: skip

    def _lane(self, table: TableName) -> Lane:
        known = self.looker.is_known(table) or self.board.has_read(table) or self.is_found(table)
        return Lane.EVENT if known else Lane.UNKNOWN
