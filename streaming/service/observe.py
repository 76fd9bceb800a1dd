"""Observe mode: nothing is written to a topic, so that what the table watcher finds is counted here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compactor.table_names import TableName
from streaming.commit_events.canonical import CanonicalDecoder
from streaming.commit_events.decoder import RawEvent, TableChanged
from streaming.ledger.batch_handler import BatchHandler
from streaming.ledger.operator import DirectLedger


@dataclass(frozen=True)
class DirectCounter:
    """Takes the place of the commit topic: counts an event's table at once, by the ledger's own rules."""

    ledger: DirectLedger
    clock: Callable[[], float]

    def count(self, handler: BatchHandler, value: bytes) -> None:
        """Count the table that this canonical event names."""
        event = RawEvent(key=None, value=value, headers=(), timestamp_ms=int(self.clock() * 1000))
        changed = CanonicalDecoder().decode(event)
        if isinstance(changed, TableChanged):
            table = TableName(str(changed.catalog), changed.namespace, changed.name)
            handler.apply(self.ledger.rows(table, changed))
