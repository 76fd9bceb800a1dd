"""Change events of Lakekeeper: CloudEvents in binary mode, attributes in the headers and the REST request as value.

Source: `publisher.rs` in Lakekeeper's `service/events`, and its crate `lakekeeper-events-kafka`, which writes no other
mode. The value of an event without a request is `null`.
"""

from __future__ import annotations

from dataclasses import dataclass

from streaming.commit_events.decoder import (
    BadEventReason,
    Decoded,
    MalformedError,
    NotACommit,
    RawEvent,
    TableChanged,
    shown,
)
from streaming.commit_events.strict_json import Fields, parse_object

SOURCE = "lakekeeper"
ATTRIBUTE = "ce_"
MARKS = ("ce_type", "ce_warehouse-id")
CREATE, UPDATE, RENAME, UNDROP = "createTable", "updateTable", "renameTable", "undropTabulars"
TABLE = "Table"
LEVEL_SEPARATOR = "\x1f"
NO_REQUEST = b"null"

# Events whose namespace is joined by dots; the others, and these of earlier versions, join by U+001F, as URLs do.
_DOTTED = frozenset({CREATE, "registerTable"})
_BRINGS_FILES = _DOTTED | {UPDATE, RENAME, UNDROP}


@dataclass(frozen=True)
class LakekeeperDecoder:
    source: str = SOURCE

    def recognises(self, event: RawEvent) -> bool:
        names = {name for name, _ in event.headers}
        return all(mark in names for mark in MARKS)

    def decode(self, event: RawEvent) -> Decoded:
        try:
            return _read(_attributes(event), event)
        except MalformedError as malformed:
            return malformed.bad


def _attributes(event: RawEvent) -> Fields:
    """The attributes of the CloudEvent. Of headers with one name, Kafka's clients use the last."""
    values = {}
    for name, value in event.headers:
        if name.startswith(ATTRIBUTE):
            try:
                values[name] = value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise MalformedError(
                    BadEventReason.INVALID_TEXT, f"header {shown(name)} is {shown(value)}; it must be UTF-8"
                ) from error
    return Fields(values, "header ")


def _read(attributes: Fields, event: RawEvent) -> Decoded:
    kind, warehouse = attributes.text("ce_type"), attributes.text("ce_warehouse-id")
    tabular_type = attributes.optional_text("ce_tabular-type")
    if kind not in _BRINGS_FILES or tabular_type not in {None, TABLE}:
        return NotACommit(SOURCE, shown(kind))
    request = _request(event.value or b"")
    if kind == CREATE and request.values.get("stage-create") is True:  # the table comes with its first commit
        return NotACommit(SOURCE, f"{shown(kind)} of a staged table")
    if kind == RENAME and not request.values:  # earlier versions do not tell the new name
        return NotACommit(SOURCE, f"{shown(kind)} without a request")
    if kind == RENAME:
        destination = request.record("destination")
        namespace, name = destination.namespace("namespace"), destination.text("name")
    else:
        namespace, name = _levels(attributes, kind), attributes.text("ce_name")
    snapshot = _added_snapshot(request) if kind == UPDATE else Fields({})
    return TableChanged(
        source=SOURCE,
        event_id=attributes.text("ce_id"),
        catalog=warehouse,
        namespace=namespace,
        name=name,
        timestamp_ms=event.timestamp_ms,
        table_uuid=attributes.optional_uuid("ce_tabular-id"),
        snapshot_id=snapshot.optional_integer("snapshot-id"),
        operation=snapshot.optional_record("summary").optional_text("operation"),
    )


def _request(value: bytes) -> Fields:
    return Fields({} if value.strip() == NO_REQUEST else parse_object(value))


def _levels(attributes: Fields, kind: str) -> tuple[str, ...]:
    written = attributes.values.get("ce_namespace", "")
    dotted = kind in _DOTTED and LEVEL_SEPARATOR not in written
    levels = written.split("." if dotted else LEVEL_SEPARATOR) if written else []
    return Fields({"ce_namespace": levels}, attributes.path).namespace("ce_namespace")


def _added_snapshot(request: Fields) -> Fields:
    """The last snapshot that a commit adds; no fields if it adds none."""
    added = [
        update.record("snapshot")
        for update in request.optional_records("updates")
        if update.optional_text("action") == "add-snapshot"
    ]
    return added[-1] if added else Fields({})
