"""The canonical commit event: one JSON object, modelled on the events endpoint proposed for the REST catalog.

`firnline emit` and `request` publish it, and writers may. `source` in the event is the name of the sender: free text
that firnline does not read.
"""

from __future__ import annotations

import json
from typing import Any

from streaming.commit_events.decoder import (
    TIMESTAMP_MS_MAX,
    Decoded,
    LocationChanged,
    NotACommit,
    TableChanged,
    shown,
)
from streaming.commit_events.strict_json import Fields, JsonDecoder, mark

SOURCE = "canonical"
UPDATE = "update-table"
REQUEST, EVERYTHING = "firnline.request", "*"

# A created or registered table can have files. Other operations (drops, renames, views) add none.
_BRINGS_FILES = frozenset({UPDATE, "create-table", "register-table"})


def _read(fields: Fields, arrived_ms: int) -> Decoded:
    event_id = fields.text("event-id")
    operation_type = fields.optional_text("operation-type")
    if operation_type is not None and operation_type not in _BRINGS_FILES:
        return NotACommit(SOURCE, shown(operation_type))
    metadata_location = fields.optional_text("metadata-location")
    timestamp_ms = fields.optional_integer("timestamp-ms", 0, TIMESTAMP_MS_MAX)
    timestamp_ms = arrived_ms if timestamp_ms is None else timestamp_ms
    if metadata_location is not None and not fields.has("identifier"):
        return LocationChanged(SOURCE, event_id, metadata_location, timestamp_ms)
    table = fields.record("identifier")
    summary = fields.optional_record("summary")
    request = summary.optional_text(REQUEST)
    return TableChanged(
        source=SOURCE,
        event_id=event_id,
        catalog=fields.optional_text("catalog"),
        namespace=table.namespace("namespace"),
        name=table.text("name"),
        timestamp_ms=timestamp_ms,
        table_uuid=fields.optional_uuid("table-uuid"),
        snapshot_id=fields.optional_integer("snapshot-id"),
        ref_name=fields.optional_text("ref-name"),
        operation=fields.optional_text("operation"),
        metadata_location=metadata_location,
        request="" if request == EVERYTHING else request,
    )


DECODER = JsonDecoder(SOURCE, ((mark("event-id"),),), _read)


def encode(changed: TableChanged, *, sender: str = "firnline") -> tuple[bytes, bytes]:
    """Key and value of the event. The key is the table, so events of one table stay in order in one partition."""
    value = json.dumps(_written(changed, sender), separators=(",", ":"), allow_nan=False)
    return _key(changed), value.encode("ascii")


def _key(changed: TableChanged) -> bytes:
    catalog = () if changed.catalog is None else (changed.catalog,)
    return ".".join((*catalog, *changed.namespace, changed.name)).encode("utf-8", "backslashreplace")


def _written(changed: TableChanged, sender: str) -> dict[str, Any]:
    summary = None if changed.request is None else {REQUEST: changed.request or EVERYTHING}
    optional = {
        "catalog": changed.catalog,
        "table-uuid": changed.table_uuid,
        "ref-name": changed.ref_name,
        "snapshot-id": changed.snapshot_id,
        "operation": changed.operation,
        "metadata-location": changed.metadata_location,
        "summary": summary,
    }
    required = {
        "event-id": changed.event_id,
        "source": sender,
        "timestamp-ms": changed.timestamp_ms,
        "operation-type": UPDATE,
        "identifier": {"namespace": list(changed.namespace), "name": changed.name},
    }
    return required | {name: value for name, value in optional.items() if value is not None}
