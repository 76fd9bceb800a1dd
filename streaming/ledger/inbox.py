"""The inbox: what the driver does with the events of a micro-batch. It asks for looks and never waits for one.

An event is a hint. It is dropped if its table is ignored or belongs to another service, and if it announces a snapshot
that is counted already (a duplicate or late event). Requested rewrites are saved before the batch ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.debt.board import DebtBoard
from compactor.events import EventsHeard, Listener
from compactor.settings.current import WorkSettings
from compactor.shards import Shard
from compactor.table_names import TableName
from streaming.ledger.heard import Heard
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.looker import Looker
from streaming.logs.events import LOG

MOST_REQUESTS = 100
"""Requested rewrites of one table that wait at a time, each with another filter."""


@dataclass(frozen=True)
class Inbox:
    """The callable that gets each batch's events. `found`: tables that the last sweep listed."""

    settings: WorkSettings
    board: DebtBoard
    queue: LookQueue
    looker: Looker
    shard: Callable[[], Shard]
    is_found: Callable[[TableName], bool]
    listener: Listener

    def __call__(self, events: Sequence[Heard]) -> None:
        shard, asked = self.shard(), dict[TableName, Asked]()
        for event in events:
            table = event.table
            if not shard.owns(table) or self.settings.tables.ignores(table):
                continue
            if event.request is not None:
                self._request(table, event.request)
            elif event.snapshot_id is not None and self.looker.has_seen(table, event.snapshot_id):
                continue
            one = Asked(self._lane(table), event.timestamp_ms / 1000 if event.writes else None)
            asked[table] = one.joined(asked[table]) if table in asked else one
        for table, one in asked.items():
            if one.lane is not Lane.UNKNOWN or not self.looker.is_missing(table):
                self.queue.put(table, one)
        if events:
            self.listener(EventsHeard(by_source=Counter(event.source for event in events)))

    def _lane(self, table: TableName) -> Lane:
        known = self.looker.is_known(table) or self.board.get(table) is not None or self.is_found(table)
        return Lane.EVENT if known else Lane.UNKNOWN

    def _request(self, table: TableName, filter_text: str) -> None:
        """Note a requested rewrite. The look drops it if the table is not acted on or does not exist."""
        waiting = self.board.requests(table)
        if filter_text not in waiting and len(waiting) >= MOST_REQUESTS:
            LOG.warning("%s: a requested rewrite is dropped, because %d others wait", table, len(waiting))
            return
        self.board.request(table, [filter_text])
