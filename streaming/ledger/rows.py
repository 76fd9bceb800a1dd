"""Rows from the ledger to the driver: one per table, per partition and per event of an unknown table."""

from __future__ import annotations

import json
from typing import Any

from compactor.debt.board import PartitionCounts, PartitionDebt
from compactor.debt.ledger import LedgerUpdate
from compactor.debt.manifest_debt import ManifestCounts
from compactor.partitions import JsonValue, PartitionKey
from compactor.planning.policy import Judgement
from compactor.table_names import TableName
from streaming.commit_events.decoder import BadEventReason

COLUMNS = ("table_name", "kind", "body", "value")
SCHEMA = "table_name string, kind string, body string, value binary"
"""`table_name`: JSON array of catalog, namespace, name. `body`: JSON by kind. `value`: bytes of a dead event."""


def table_key(table: TableName) -> str:
    """The stream's key of a table: JSON, because names can contain dots."""
    return json.dumps([table.catalog, *table.identifier], ensure_ascii=False)


def parse_table_key(text: str) -> TableName:
    """Inverse of `table_key`."""
    catalog, *namespace, name = json.loads(text)
    return TableName(catalog, tuple(namespace), name)


def table_row(
    table: TableName,
    status: str,
    received: dict[str, Any],
    *,
    update: LedgerUpdate | None = None,
    enabled: str = "",
    reason: str | None = None,
    message: str = "",
    manifests: ManifestCounts | None = None,
    refused: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Result of one table in this batch. `status`: counted, counting, unknown, unreadable or ignored."""
    body = {
        "status": status,
        **received,
        "reason": reason,
        "message": message,
        "enabled": enabled,
        "snapshot_id": update.snapshot_id if update else None,
        "whole": update.whole if update else False,
        "more": update.more if update else False,
        "recount_reason": update.recount_reason if update else None,
        "totals": update.totals.to_list() if update else None,
        "manifests": manifests.to_list() if manifests else None,
        "refused": refused,
    }
    return {"table_name": table_key(table), "kind": "table", "body": json.dumps(body), "value": None}


def partition_row(
    table: TableName,
    key: PartitionKey,
    partition: dict[str, JsonValue],
    bucket: int | None,
    counts: PartitionCounts,
    judgement: Judgement,
) -> dict[str, Any]:
    body = {
        "spec_id": key.spec_id,
        "values": key.values,
        "partition": partition,
        "bucket": bucket,
        "counts": counts.to_list(),
        "due": judgement.due,
        "why": judgement.why,
    }
    return {"table_name": table_key(table), "kind": "partition", "body": json.dumps(body), "value": None}


def partition_debt(body: dict[str, Any]) -> PartitionDebt:
    """Inverse of `partition_row`."""
    return PartitionDebt(
        key=PartitionKey(body["spec_id"], body["values"]),
        partition=body["partition"],
        bucket=body["bucket"],
        counts=PartitionCounts.from_list(body["counts"]),
        due=body["due"],
        why=body["why"],
    )


def unknown_event_row(table: TableName, event: dict[str, Any], message: str) -> dict[str, Any]:
    """An event whose table does not exist, with the fields of its dead letter."""
    body = {
        "reason": BadEventReason.UNKNOWN_TABLE.value,
        "message": message,
        "topic": event["topic"],
        "partition": int(event["partition"]),
        "offset": int(event["offset"]),
        "timestamp_ms": int(event["timestamp_ms"]),
        "headers": json.loads(event["headers"] or "[]"),
        "key": bytes(event["key"]).hex() if event["key"] is not None else None,
    }
    return {"table_name": table_key(table), "kind": "dead", "body": json.dumps(body), "value": event["value"]}
