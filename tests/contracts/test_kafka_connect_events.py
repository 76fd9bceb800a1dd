"""Control events of Iceberg's Kafka Connect sink: the schema comes with the event, from whoever wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streaming.commit_events.decoder import NotACommit, RawEvent
from streaming.commit_events.kafka_connect import MAX_DATUM_BYTES
from tests.contracts.commit_event_fixtures import BY_NAME, ask, raw, reason_of


def framed(schema: Any, datum: bytes) -> RawEvent:
    text = json.dumps(schema).encode()
    return raw(b"\xc2\x01" + len(text).to_bytes(2, "big") + text + datum)


def parts(name: str) -> tuple[dict[str, Any], bytes]:
    value = BY_NAME[name].event.value
    end = 4 + int.from_bytes(value[2:4], "big")
    return json.loads(value[4:end]), value[end:]


def test_a_newer_writer_is_read_by_its_own_schema():
    schema, datum = parts("commit_to_table")
    labels = {"name": "labels", "type": {"type": "map", "values": ["null", "string"]}}
    schema["fields"][4]["type"]["fields"].insert(0, labels)
    head = 16 + 1 + 8 + 21  # id, type, timestamp, group id
    event = framed(schema, datum[:head] + b"\x02\x02a\x02\x02b\x00" + datum[head:])
    assert ask(event) == BY_NAME["commit_to_table"].answer


def test_an_older_writer_without_table_uuid_is_read_by_its_own_schema():
    schema, datum = parts("commit_to_table_no_table_uuid")
    schema["fields"][4]["type"]["fields"][1]["type"]["fields"].pop()
    absent = len(datum) - 4  # before the snapshot id (two bytes) and the absent valid-through
    event = framed(schema, datum[:absent] + datum[absent + 1 :])
    assert ask(event) == BY_NAME["commit_to_table_no_table_uuid"].answer


def test_a_bare_name_is_looked_for_in_the_enclosing_namespace_too():
    schema, datum = parts("commit_to_table")
    assert schema["fields"][0]["type"].pop("namespace") == ""
    assert ask(framed(schema, datum)) == BY_NAME["commit_to_table"].answer


@pytest.mark.parametrize(("length", "reason"), [(1, "invalid_avro"), (MAX_DATUM_BYTES, "oversize")])
def test_bytes_after_the_commit_are_refused(length, reason):
    assert reason_of(ask(raw(BY_NAME["commit_to_table"].event.value + b"\x00" * length))) == reason


def test_only_the_head_of_other_events_is_read():
    schema, datum = parts("data_written_partitioned")
    assert ask(framed(schema, datum[:60] + b"\xff" * 200_000)) == NotACommit("kafka_connect", "DATA_WRITTEN")


@pytest.mark.parametrize(("byte", "what"), [(b"\x0a", "type 5"), (b"\x01", "type -1")])
def test_types_of_a_later_version_are_no_commits(byte, what):
    schema, datum = parts("start_commit")
    assert ask(framed(schema, datum[:16] + byte + datum[17:])) == NotACommit("kafka_connect", what)


def record_of(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def nested(depth: int) -> Any:
    return "int" if depth == 0 else {"type": "array", "items": nested(depth - 1)}


TENFOLD = [record_of("R0", "int"), *(record_of(f"R{n}", *[f"R{n - 1}"] * 10) for n in range(1, 4))]
HOSTILE_TYPES = {
    "a record that contains itself": record_of("R", ["null", "R"]),
    "a record that is itself": record_of("R", "R"),
    "a list of nothing": {"type": "array", "items": "null"},
    "a list of empty records": {"type": "array", "items": record_of("E")},
    "a list of no bytes": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
    "a fixed of huge size": {"type": "fixed", "name": "F", "size": 2**62},
    "records of ten records of ten": record_of("D", *TENFOLD),
    "lists in lists": nested(200),
    "an unknown name": "Elsewhere",
    "no type": None,
    "a number": 7,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", HOSTILE_TYPES.values(), ids=HOSTILE_TYPES)
def test_a_hostile_schema_is_refused(kind):
    """Given to the Avro library as they are, some of these overflow its stack or fill the memory."""
    head = [{"name": "type", "type": "int"}, {"name": "payload", "type": record_of("P", kind)}]
    schema = {"type": "record", "name": "Event", "fields": head}
    answer = ask(framed(schema, b"\x06" + b"\xfe" * 4 + b"\x7f" + b"\x02" * 60_000))
    assert reason_of(answer) == "invalid_avro"
    assert "the schema cannot be used" in answer.detail


def test_a_long_head_is_refused():
    """A list of 80,000 integers before the payload: only so much of the datum is looked at for the event's type."""
    schema = record_of("Event", {"type": "array", "items": "int"})
    assert reason_of(ask(framed(schema, b"\x80\xe2\x09" + b"\x02" * 80_000 + b"\x00"))) == "invalid_avro"
