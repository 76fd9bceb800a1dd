"""Events on the control topic of Iceberg's Kafka Connect sink.

A record is the bytes C2 01, the writer's Avro schema as written by Java's `writeUTF`, then one Avro datum. Each event
contains its own schema, so events of newer connectors with more fields can be read. Coordinators write in transactions:
read the topic with `isolation.level=read_committed`, or aborted commits are received too.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from fastavro import schemaless_reader

from streaming.commit_events.decoder import (
    TIMESTAMP_MS_MAX,
    BadEventReason,
    Decoded,
    MalformedError,
    NotACommit,
    RawEvent,
    TableChanged,
    explained,
    shown,
)
from streaming.commit_events.strict_json import Fields, parse_object

SOURCE = "kafka_connect"
MAGIC = b"\xc2\x01"
COMMIT_TO_TABLE = 3
TYPE_NAMES = ("START_COMMIT", "DATA_WRITTEN", "DATA_COMPLETE", "COMMIT_TO_TABLE", "COMMIT_COMPLETE")
MAX_SCHEMA_NODES = 500
MAX_SCHEMA_DEPTH = 12  # a commit needs 5
MAX_DATUM_BYTES = 64 * 1024  # a commit has a few hundred bytes; a byte can become several Python objects
MICROS_PER_MILLI = 1000

_LENGTH_BYTES = 2
_PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


@dataclass(frozen=True)
class KafkaConnectDecoder:
    """Decodes COMMIT_TO_TABLE; the other four types only coordinate workers."""

    source: str = SOURCE

    def recognises(self, event: RawEvent) -> bool:
        return event.value is not None and event.value.startswith(MAGIC)

    def decode(self, event: RawEvent) -> Decoded:
        try:
            return _read(event.value or b"")
        except MalformedError as malformed:
            return malformed.bad


def _read(value: bytes) -> Decoded:
    schema, datum = _unframed(value)
    # Decode the head alone first: events of other types can contain long lists of data files.
    head, _ = _record(_head(schema), datum[:MAX_DATUM_BYTES])
    event_type = head.integer("type")
    if event_type != COMMIT_TO_TABLE:
        return NotACommit(SOURCE, _type_name(event_type))
    if len(datum) > MAX_DATUM_BYTES:
        raise MalformedError(
            BadEventReason.OVERSIZE, f"the commit has {len(datum)} bytes; at most {MAX_DATUM_BYTES} are read"
        )
    event, length = _record(schema, datum)
    if length != len(datum):
        raise MalformedError(BadEventReason.INVALID_AVRO, f"{len(datum) - length} bytes follow the datum")
    return _table_changed(event)


def _type_name(event_type: int) -> str:
    return TYPE_NAMES[event_type] if 0 <= event_type < len(TYPE_NAMES) else f"type {event_type}"


def _table_changed(event: Fields) -> TableChanged:
    payload = event.record("payload")
    table = payload.record("table_reference")
    micros = event.integer("timestamp", 0, TIMESTAMP_MS_MAX * MICROS_PER_MILLI)
    return TableChanged(
        source=SOURCE,
        event_id=event.uuid("id"),
        catalog=table.text("catalog"),
        namespace=table.namespace("namespace"),
        name=table.text("name"),
        timestamp_ms=micros // MICROS_PER_MILLI,
        table_uuid=table.optional_uuid("table_uuid"),
        snapshot_id=payload.optional_integer("snapshot_id"),
    )


def _unframed(value: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a record into the writer's schema and the bytes of the datum."""
    start = len(MAGIC) + _LENGTH_BYTES
    end = start + int.from_bytes(value[len(MAGIC) : start], "big")
    if len(value) < end:
        raise MalformedError(
            BadEventReason.INVALID_AVRO, f"the value has {len(value)} bytes and ends within its schema"
        )
    return parse_object(_standard_utf8(value[start:end])), value[end:]


def _standard_utf8(modified: bytes) -> bytes:
    """Convert Java's modified UTF-8, which writes a character beyond U+FFFF as two surrogates of three bytes each.

    It also writes NUL as two bytes. Leave those: JSON does not allow a bare NUL.
    """
    try:
        halves = modified.decode("utf-8", "surrogatepass")
        return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le").encode("utf-8")
    except UnicodeError as error:
        raise MalformedError(
            BadEventReason.INVALID_AVRO, f"the schema is not modified UTF-8: {explained(error)}"
        ) from error


def _head(schema: dict[str, Any]) -> dict[str, Any]:
    """The part of the event's schema before the payload."""
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(part, dict) for part in fields):
        raise MalformedError(BadEventReason.INVALID_AVRO, "the schema is not a record")
    names = [part.get("name") for part in fields]
    return schema | {"fields": fields[: names.index("payload")] if "payload" in names else fields}


def _record(schema: dict[str, Any], datum: bytes) -> tuple[Fields, int]:
    """Decode the record at the start of the datum; return it and its number of bytes."""
    plain = _PlainSchema().of(schema, "", 0)
    source = io.BytesIO(datum)
    try:
        record = schemaless_reader(source, plain, None)
    except Exception as error:  # fastavro raises many types for invalid bytes, from EOFError to IndexError
        raise MalformedError(
            BadEventReason.INVALID_AVRO, f"the datum does not fit its schema: {explained(error)}"
        ) from error
    if not isinstance(record, dict):
        raise MalformedError(BadEventReason.INVALID_AVRO, "the datum is not a record")
    return Fields(record), source.tell()


@dataclass
class _PlainSchema:
    """Rebuilds an untrusted schema so that decoding takes time and memory in proportion to the datum.

    fastavro decodes in C without a recursion limit: a record that contains itself overflows the stack and kills the
    process, and a list of 2^60 nulls takes no bytes. So replace names by their definitions (a name is unknown inside
    its own definition), require at least one byte for every type except null in a union, and limit depth and size.
    Drop properties and logical types: values come as Avro stores them.
    """

    named: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    nodes: int = 0

    def of(self, schema: Any, namespace: str, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_SCHEMA_NODES or depth > MAX_SCHEMA_DEPTH:
            raise _unusable("it is too large or too deep")
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._reference(schema, namespace, depth)
        if isinstance(schema, list):
            return [part if part == "null" else self.of(part, namespace, depth + 1) for part in schema]
        if not isinstance(schema, dict):
            raise _unusable(f"{shown(schema)} is not a type")
        return self._compound(schema, namespace, depth)

    def _compound(self, schema: dict[str, Any], namespace: str, depth: int) -> Any:
        kind = schema.get("type")
        if kind == "array":
            return {"type": "array", "items": self.of(schema.get("items"), namespace, depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self.of(schema.get("values"), namespace, depth + 1)}
        if kind in ("record", "fixed", "enum"):
            return self._definition(schema, kind, namespace, depth)
        return self.of(kind, namespace, depth + 1)

    def _definition(self, schema: dict[str, Any], kind: str, namespace: str, depth: int) -> dict[str, Any]:
        full_name, inner = _full_name(schema, namespace)
        plain: dict[str, Any] = {"type": kind, "name": f"t{self.nodes}"}  # a unique name for each use
        if kind == "record":
            plain["fields"] = self._fields(schema.get("fields"), inner, depth)
        elif kind == "fixed":
            plain["size"] = _fixed_size(schema.get("size"))
        else:
            plain["symbols"] = schema.get("symbols")
        self.named[full_name] = (schema, namespace)
        return plain

    def _fields(self, fields: Any, namespace: str, depth: int) -> list[dict[str, Any]]:
        if not isinstance(fields, list) or not fields:
            raise _unusable("a record without fields takes no bytes")
        plain = []
        for part in fields:
            if not isinstance(part, dict):
                raise _unusable(f"{shown(part)} is not a field")
            plain.append({"name": part.get("name"), "type": self.of(part.get("type"), namespace, depth + 1)})
        return plain

    def _reference(self, name: str, namespace: str, depth: int) -> Any:
        # Avro's Java library writes names of the null namespace without a dot, also inside a record with a namespace.
        # fastavro would not find those.
        for full_name in (f"{namespace}.{name}", name):
            if full_name in self.named:
                definition, outer = self.named[full_name]
                return self.of(definition, outer, depth + 1)
        raise _unusable(f"type {shown(name)} is not defined before its use")


def _full_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """A named type's full name, and the namespace inside it."""
    name, own = schema.get("name"), schema.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str):
        raise _unusable("a type's name and namespace must be text")
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{own}.{name}" if own else name), own


def _fixed_size(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_DATUM_BYTES:
        raise _unusable(f"a fixed type of {shown(size)} bytes")
    return size


def _unusable(why: str) -> MalformedError:
    return MalformedError(BadEventReason.INVALID_AVRO, f"the schema cannot be used: {why}")
