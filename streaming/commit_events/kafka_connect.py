"""Events on the control topic of Iceberg's Kafka Connect sink.

A record is the bytes C2 01, the writer's Avro schema as Java's `writeUTF` leaves it, then one Avro datum. Each event
carries its own schema, so a newer connector with more fields is read like an older one. Coordinators write in
transactions: the topic must be read with `isolation.level=read_committed`, else aborted commits are heard too.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from fastavro import schemaless_reader

from streaming.commit_events.decoder import (
    TIMESTAMP_MS_MAX,
    Decoded,
    Fields,
    MalformedError,
    NotACommit,
    RawEvent,
    TableChanged,
    explained,
    parse_object,
    shown,
)

SOURCE = "kafka_connect"
MAGIC = b"\xc2\x01"
COMMIT_TO_TABLE = 3
TYPE_NAMES = ("START_COMMIT", "DATA_WRITTEN", "DATA_COMPLETE", "COMMIT_TO_TABLE", "COMMIT_COMPLETE")
MAX_SCHEMA_NODES = 500
MAX_SCHEMA_DEPTH = 12  # a commit needs 5
MAX_DATUM_BYTES = 64 * 1024  # a commit has a few hundred; a byte can become several Python objects
MICROS_PER_MILLI = 1000

_LENGTH_BYTES = 2
_PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


@dataclass(frozen=True)
class KafkaConnectDecoder:
    """Reads COMMIT_TO_TABLE; the other four types only coordinate workers."""

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
    # The head is read by itself: lists of data files are none of our business, and may be long.
    head, _ = _record(_head(schema), datum[:MAX_DATUM_BYTES])
    event_type = head.integer("type")
    if event_type != COMMIT_TO_TABLE:
        return NotACommit(SOURCE, _type_name(event_type))
    if len(datum) > MAX_DATUM_BYTES:
        raise MalformedError("oversize", f"the commit has {len(datum)} bytes; at most {MAX_DATUM_BYTES} are read")
    event, length = _record(schema, datum)
    if length != len(datum):
        raise MalformedError("invalid_avro", f"{len(datum) - length} bytes follow the datum")
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
    """The writer's schema and the bytes of the datum."""
    start = len(MAGIC) + _LENGTH_BYTES
    end = start + int.from_bytes(value[len(MAGIC) : start], "big")
    if len(value) < end:
        raise MalformedError("invalid_avro", f"the value has {len(value)} bytes and ends before its schema does")
    return parse_object(_standard_utf8(value[start:end])), value[end:]


def _standard_utf8(modified: bytes) -> bytes:
    """Java's modified UTF-8 writes a character beyond U+FFFF as two surrogates of three bytes each.

    It writes NUL in two bytes too; that is not undone, as JSON has no place for a bare NUL.
    """
    try:
        halves = modified.decode("utf-8", "surrogatepass")
        return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le").encode("utf-8")
    except UnicodeError as error:
        raise MalformedError("invalid_avro", f"the schema is not modified UTF-8: {explained(error)}") from error


def _head(schema: dict[str, Any]) -> dict[str, Any]:
    """The event's schema up to its payload."""
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(part, dict) for part in fields):
        raise MalformedError("invalid_avro", "the schema is not a record's")
    names = [part.get("name") for part in fields]
    return schema | {"fields": fields[: names.index("payload")] if "payload" in names else fields}


def _record(schema: dict[str, Any], datum: bytes) -> tuple[Fields, int]:
    """The record at the start of the datum, and how many bytes it takes."""
    plain = _PlainSchema().of(schema, "", 0)
    source = io.BytesIO(datum)
    try:
        record = schemaless_reader(source, plain, None)
    except Exception as error:  # fastavro raises whatever hostile bytes provoke, from EOFError to IndexError
        raise MalformedError("invalid_avro", f"the datum does not fit its schema: {explained(error)}") from error
    if not isinstance(record, dict):
        raise MalformedError("invalid_avro", "the datum is not a record")
    return Fields(record), source.tell()


@dataclass
class _PlainSchema:
    """Rebuilds an untrusted schema so that reading with it takes time and memory in proportion to the datum.

    fastavro reads in C without a recursion limit: a record that contains itself overflows the stack and kills the
    process, and a list of 2^60 nulls takes no bytes. So names are replaced by what they stand for (a name is unknown
    inside its own definition), every type but the null of a union takes a byte or more, and depth and size are bounded.
    Properties are left out, logical types with them: values come as Avro stores them, whatever the schema claims.
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
            raise _unusable(f"{shown(schema)} is no type")
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
        plain: dict[str, Any] = {"type": kind, "name": f"t{self.nodes}"}  # each use gets a name of its own
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
                raise _unusable(f"{shown(part)} is no field")
            plain.append({"name": part.get("name"), "type": self.of(part.get("type"), namespace, depth + 1)})
        return plain

    def _reference(self, name: str, namespace: str, depth: int) -> Any:
        # Avro's Java writes names of the null namespace bare, also inside a record that has a namespace, where
        # fastavro would not find them.
        for full_name in (f"{namespace}.{name}", name):
            if full_name in self.named:
                definition, outer = self.named[full_name]
                return self.of(definition, outer, depth + 1)
        raise _unusable(f"type {shown(name)} is not defined before its use")


def _full_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """A named type's full name, and the namespace that holds inside it."""
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
    return MalformedError("invalid_avro", f"the schema cannot be used: {why}")
