"""Events of the AWS Glue Data Catalog, as EventBridge delivers them.

Sources: "Automating AWS Glue with EventBridge" in the Glue developer guide, and the event types of AWS CDK
(`GlueDataCatalogTableStateChange`, `GlueDataCatalogDatabaseStateChange`). Iceberg commits to Glue with UpdateTable.
"""

from __future__ import annotations

import re

from streaming.commit_events.decoder import (
    SEND_ANOTHER,
    BadEventReason,
    Decoded,
    MalformedError,
    NotACommit,
    TableChanged,
    shown,
    together,
)
from streaming.commit_events.strict_json import Fields, JsonDecoder, mark

SOURCE = "glue"
EVENTBRIDGE = "aws.glue"
TABLE, DATABASE = "Glue Data Catalog Table State Change", "Glue Data Catalog Database State Change"

# The other changes are of databases, of Hive's partitions, or remove tables.
_BRINGS_FILES = frozenset({"CreateTable", "UpdateTable"})


def _read(event: Fields, arrived_ms: int) -> Decoded:
    source, kind = event.text("source"), event.text("detail-type")
    if source != EVENTBRIDGE:
        raise MalformedError(
            BadEventReason.UNRECOGNISED, f"source is {shown(source)}, not {EVENTBRIDGE}; {SEND_ANOTHER}"
        )
    if kind not in {TABLE, DATABASE}:
        return NotACommit(SOURCE, shown(kind))
    detail = event.record("detail")
    change = detail.text("typeOfChange")
    if change not in _BRINGS_FILES:
        return NotACommit(SOURCE, shown(change))
    names = (detail.text("tableName"),) if kind == TABLE else detail.texts("changedTables")
    return together(SOURCE, (_changed(event, detail, name, arrived_ms) for name in names), f"{change} of no table")


def _changed(event: Fields, detail: Fields, name: str, arrived_ms: int) -> TableChanged:
    time_ms = event.optional_instant_ms("time")
    return TableChanged(
        source=SOURCE,
        event_id=event.text("id"),
        catalog=event.text("account"),
        namespace=(detail.text("databaseName"),),
        name=name,
        timestamp_ms=arrived_ms if time_ms is None else time_ms,
        realm=event.text("region"),
    )


DECODER = JsonDecoder(SOURCE, ((mark("detail-type"), mark("source", re.escape(EVENTBRIDGE))),), _read)
