"""The ledger as a Spark operator: keyed by table, state in RocksDB, one count of a table per micro-batch.

A failing catalog, a dropped table or an unreadable manifest becomes a row with the error. An exception would end the
stream, so none may be raised.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from compactor.debt.ledger import LedgerStore, LedgerUpdate, advance
from compactor.debt.manifest_debt import ManifestCounts, manifests_of
from compactor.errors import FirnlineError
from compactor.iceberg.tables import Catalogs, TableMissingError, TableView, file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.manifests.disk import ManifestDisk
from compactor.planning.policy import Policy
from compactor.planning.tiered_policy import policy_of
from compactor.settings.policy import PolicySettings, refused_properties
from compactor.settings.tree import ManifestSettings, Settings, TableRules
from compactor.spark.python_worker import reduce_task_overhead
from compactor.table_names import TableName
from streaming.ledger.rows import COLUMNS, partition_row, table_row, unknown_event_row
from streaming.wiring import manifest_disk

COUNTING_CACHE_BYTES = 16 * 1024 * 1024
"""Small, because an update reads each manifest once. The planner finds the decoded manifests on the host's disk."""


@dataclass(frozen=True)
class LedgerSettings:
    """The settings of the operator; pickled to the executors."""

    catalogs: Catalogs
    tables: TableRules
    policy: PolicySettings
    manifests_per_batch: int
    manifests: ManifestSettings
    disk: ManifestDisk | None


def ledger_settings(settings: Settings, catalogs: Catalogs) -> LedgerSettings:
    return LedgerSettings(
        catalogs=catalogs,
        tables=settings.tables,
        policy=settings.policy,
        manifests_per_batch=settings.service.manifests_per_batch,
        manifests=settings.manifests,
        disk=manifest_disk(settings),
    )


class StateLedgerStore:
    """`LedgerStore` in Spark's keyed state."""

    def __init__(self, head: Any, slots: Any) -> None:
        self._head = head
        self._slots = slots

    def head(self) -> str | None:
        return str(self._head.get()[0]) if self._head.exists() else None

    def put_head(self, text: str) -> None:
        self._head.update((text,))

    def slot(self, number: int) -> bytes | None:
        return bytes(self._slots.getValue((number,))[0]) if self._slots.containsKey((number,)) else None

    def put_slot(self, number: int, packed: bytes | None) -> None:
        if packed is None:
            self._slots.removeKey((number,))
        else:
            self._slots.updateValue((number,), (packed,))

    def slots(self) -> Iterator[bytes]:
        for value in list(self._slots.values()):
            yield bytes(value[0])

    def clear(self) -> None:
        self._head.clear()
        self._slots.clear()


class DebtLedger(StatefulProcessor):  # type: ignore[misc]  # pyspark ships no types for this class
    """Events of one table in; the table's row and rows of its changed partitions out."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        reduce_task_overhead()
        self._head = handle.getValueState("head", "json string")
        self._slots = handle.getMapState("slots", "number int", "packed binary")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        """Handle one table's events of the batch; yields at least the table's row."""
        events = pd.concat(list(rows), ignore_index=True)
        catalog, *namespace, name = json.loads(key[0])
        table = TableName(catalog, tuple(namespace), name)
        out = look(self._settings, table, StateLedgerStore(self._head, self._slots), events)
        yield pd.DataFrame(out, columns=list(COLUMNS)).astype(object)

    def close(self) -> None:
        """Nothing to close."""


def look(
    settings: LedgerSettings,
    table: TableName,
    store: LedgerStore,
    events: pd.DataFrame,
    clock: Callable[[], float] = time.time,
) -> list[dict[str, Any]]:
    """Update one table's counts; a failure becomes a row with the error."""
    received = _received(events)
    if settings.tables.ignores(table):
        return [table_row(table, "ignored", received)]
    try:
        view = settings.catalogs.load(table)
        values = settings.policy.for_table(table, view.properties)
        sizes = file_sizes(values, view.properties)
        with ManifestCache(COUNTING_CACHE_BYTES, disk=settings.disk) as cache:
            report = bool(events["report"].any())
            update = advance(view, sizes, store, cache, manifest_budget=settings.manifests_per_batch, report=report)
        manifests = manifests_of(view, settings.manifests)
    except TableMissingError as error:
        store.clear()
        requests = (events["report"] | events["continues"]).astype(bool)  # the watcher's own: no dead letters
        unknown = [unknown_event_row(table, event, str(error)) for event in events[~requests].to_dict("records")]
        return [table_row(table, "unknown", received, message=str(error)), *unknown]
    except FirnlineError as error:
        return [table_row(table, "unreadable", received, reason=error.reason, message=str(error))]
    except Exception as error:  # noqa: BLE001 - the stream and the other tables must continue
        message = f"{type(error).__name__}: {error}"
        return [table_row(table, "unreadable", received, reason="unexpected", message=message)]
    return _rows(table, view, policy_of(values, sizes), update, received, manifests, clock())


def _received(events: pd.DataFrame) -> dict[str, Any]:
    """Events by source, the time of the oldest event about a writer's commit, and requested rewrites."""
    announced = events[events["writes"].astype(bool)]
    oldest = announced["timestamp_ms"].min() if len(announced) else None
    return {
        "sources": dict(Counter(events["source"])),
        "oldest_event_ms": None if oldest is None else int(oldest),
        "counted_ms": int(time.time() * 1000),
        "requests": sorted({request for request in events["request"] if isinstance(request, str)}),
    }


def _rows(
    table: TableName,
    view: TableView,
    policy: Policy,
    update: LedgerUpdate,
    received: dict[str, Any],
    manifests: ManifestCounts,
    now: float,
) -> list[dict[str, Any]]:
    status = "counted" if update.counted else "counting"
    enabled = view.properties.get("firnline.enabled", "")
    refused = refused_properties(view.properties)
    rows = [table_row(table, status, received, update=update, enabled=enabled, manifests=manifests, refused=refused)]
    if not update.counted:
        return rows
    layouts = view.layouts()
    for key, counts in update.partitions.items():
        layout = layouts[key.spec_id]
        judgement = policy.judge(counts, now - counts.changed_ms / 1000)
        rows.append(partition_row(table, key, layout.readable(key), layout.bucket(key), counts, judgement))
    return rows
