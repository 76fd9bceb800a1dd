"""Observe mode: nothing is written to a topic, so that what the table watcher finds is counted here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pandas as pd

from compactor.debt.ledger import DictionaryStore
from compactor.table_names import TableName
from streaming.commit_events.canonical import CanonicalDecoder
from streaming.commit_events.decoder import RawEvent, TableChanged
from streaming.ledger.batch_handler import BatchHandler
from streaming.ledger.operator import LedgerSettings, look


class DirectLedger:
    """The ledger without a stream: counts an event's table at once, by the ledger's own rules."""

    def __init__(self, settings: LedgerSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._stores: dict[TableName, DictionaryStore] = {}

    def count(self, handler: BatchHandler, value: bytes) -> None:
        """Count the table that this canonical event names. Takes the place of the commit topic."""
        event = RawEvent(key=None, value=value, headers=(), timestamp_ms=int(self._clock() * 1000))
        changed = CanonicalDecoder().decode(event)
        if isinstance(changed, TableChanged):
            handler.apply(self.rows(TableName(str(changed.catalog), changed.namespace, changed.name), changed))

    def rows(self, table: TableName, changed: TableChanged) -> list[dict[str, Any]]:
        """The rows that the stream yields for one event."""
        event = {
            "source": changed.source,
            "timestamp_ms": changed.timestamp_ms,
            "report": changed.report,
            "continues": changed.continues,
            "writes": False,
            "request": changed.request,
            "key": None,
            "value": None,
            "headers": "[]",
            "partition": 0,
            "topic": "",
            "offset": 0,
        }
        store = self._stores.setdefault(table, DictionaryStore())
        return look(self._settings, table, store, pd.DataFrame([event]), self._clock)
