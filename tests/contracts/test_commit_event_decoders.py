"""One contract for all decoders of commit events, over fixtures of each wire format."""

import dataclasses
import json
import pickle
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.canonical import CanonicalDecoder
from streaming.commit_events.decoder import (
    MAX_EVENT_BYTES,
    BadEvent,
    BadEventReason,
    Decoded,
    NotACommit,
    RawEvent,
    TableChanged,
    decode,
)
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.kafka_connect import MAX_DATUM_BYTES
from streaming.ledger.table_resolution import resolve

ARRIVED_MS = 1_700_000_000_123
UUID = "7ab1e000-5555-4666-8777-888888888888"
KAFKA_CONNECT = Path(__file__).parent / "fixtures" / "kafka_connect"

FULL = {
    "event-id": "e-1",
    "source": "a writer",
    "timestamp-ms": 1_700_000_000_000,
    "operation-type": "update-table",
    "catalog": "lake",
    "identifier": {"namespace": ["db", "über"], "name": "orders"},
    "table-uuid": UUID,
    "ref-name": "main",
    "snapshot-id": 8744736658442914487,
    "sequence-number": 7,
    "operation": "append",
    "metadata-location": "s3://lake/db/orders/metadata/7.metadata.json",
    "summary": {"firnline.report": "full", "firnline.continues": "true", "added-files": "3"},
    "of-a-later-version": [{"x": None}],
}
LEAST = {"event-id": "e-2", "identifier": {"namespace": ["db"], "name": "orders"}}


@dataclass(frozen=True)
class Fixture:
    name: str
    source: str
    event: RawEvent
    answer: Decoded


def raw(value: bytes | None) -> RawEvent:
    return RawEvent(None, value, (), ARRIVED_MS)


def written(event: Any) -> RawEvent:
    return raw(json.dumps(event).encode())


def changed(**fields: Any) -> TableChanged:
    least = TableChanged("canonical", "e-2", None, ("db",), "orders", ARRIVED_MS)
    return replace(least, **fields)


def kafka_connect_answer(read: dict[str, Any]) -> Decoded:
    """The answer that what Iceberg's own decoder read asks for."""
    if read["type"] != "COMMIT_TO_TABLE":
        return NotACommit("kafka_connect", read["type"])
    if not read["namespace"]:
        return BadEvent("no_namespace", "")
    return TableChanged(
        source="kafka_connect",
        namespace=tuple(read["namespace"]),
        **{name: read[name] for name in ("event_id", "catalog", "name", "timestamp_ms", "table_uuid", "snapshot_id")},
    )


def fixtures() -> list[Fixture]:
    read = json.loads((KAFKA_CONNECT / "expected.json").read_text("utf-8"))
    full = TableChanged(
        "canonical", "e-1", "lake", ("db", "über"), "orders", 1_700_000_000_000, UUID, 8744736658442914487,
        "main", "append", "s3://lake/db/orders/metadata/7.metadata.json", report=True, continues=True,
    )  # fmt: skip
    drop = {"event-id": "e-3", "operation-type": "drop-table"}
    return [
        *(
            Fixture(
                name, "kafka_connect", raw((KAFKA_CONNECT / f"{name}.bin").read_bytes()), kafka_connect_answer(event)
            )
            for name, event in read.items()
        ),
        Fixture("canonical_full", "canonical", written(FULL), full),
        Fixture("canonical_least", "canonical", written(LEAST), changed()),
        Fixture("canonical_drop", "canonical", written(drop), NotACommit("canonical", "'drop-table'")),
    ]


FIXTURES = fixtures()
BY_NAME = {fixture.name: fixture for fixture in FIXTURES}
each_fixture = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)


def assert_usable(answer: Decoded) -> None:
    """The answer is one of the three, and every value in it can become a Spark row and a metric label."""
    assert isinstance(answer, TableChanged | NotACommit | BadEvent)
    for value in dataclasses.astuple(answer):
        for part in value if isinstance(value, tuple) else (value,):
            assert part is None or isinstance(part, str | int)
            if isinstance(part, str):
                assert 0 < len(part.encode("utf-8")) < 4 * 4096 + 1
            elif part is not None:
                assert -(2**63) <= part < 2**63
    if isinstance(answer, BadEvent):
        assert answer.reason in set(BadEventReason) - {"decoder_failed"}
        assert len(answer.detail) < 1000
    if isinstance(answer, TableChanged):
        assert answer.namespace


def reason_of(answer: Decoded) -> str:
    assert isinstance(answer, BadEvent)
    return answer.reason


def ask(event: RawEvent) -> Decoded:
    """Ask each decoder, whether it recognises the event or not, and return the answer of them all."""
    for decoder in DECODERS:
        assert decoder.recognises(event) in (True, False)
        assert_usable(decoder.decode(event))
    answer = decode(event, DECODERS)
    assert_usable(answer)
    return answer


@each_fixture
def test_exactly_one_decoder_recognises_a_fixture(fixture):
    assert [decoder.source for decoder in DECODERS if decoder.recognises(fixture.event)] == [fixture.source]
    assert decode(fixture.event, DECODERS) == decode(fixture.event, DECODERS[::-1])


def test_decoders_come_in_detection_order():
    sources = [decoder.source for decoder in DECODERS]
    assert sources == ["kafka_connect", "canonical"]


def test_decoders_travel_to_executors():
    assert pickle.loads(pickle.dumps(DECODERS)) == DECODERS  # noqa: S301 - our own bytes


@each_fixture
def test_a_fixture_gets_its_answer(fixture):
    answer = ask(fixture.event)
    assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301 - our own bytes
    if isinstance(fixture.answer, BadEvent):
        assert isinstance(answer, BadEvent)
        assert answer.reason == fixture.answer.reason
    else:
        assert answer == fixture.answer


class Raising(CanonicalDecoder):
    def recognises(self, event: RawEvent) -> bool:
        if event.value == b"recognises":
            raise RuntimeError("a bug\nover two lines")
        return True

    def decode(self, event: RawEvent) -> Decoded:
        assert event.value
        raise RecursionError("a bug\nover two lines")


@pytest.mark.parametrize("where", [b"recognises", b"decode"])
def test_a_decoder_that_raises_costs_one_dead_letter(where):
    answer = decode(raw(where), [Raising()])
    assert reason_of(answer) == "decoder_failed"
    assert "canonical" in answer.detail
    assert "\n" not in answer.detail


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "unrecognised"),
        (b"hello", "unrecognised"),
        (b"[]", "unrecognised"),
        (b'{"Records": []}', "unrecognised"),
        (b"\xc2", "unrecognised"),
        (b'{"event-id"' + b" " * MAX_EVENT_BYTES, "oversize"),
    ],
)
def test_what_no_decoder_is_asked_about(value, reason):
    assert reason_of(decode(raw(value), DECODERS)) == reason


def test_the_size_limit_is_a_setting_and_inclusive():
    event = written(LEAST)
    assert isinstance(decode(event, DECODERS, max_bytes=len(event.value)), TableChanged)
    assert isinstance(decode(event, DECODERS, max_bytes=len(event.value) - 1), BadEvent)


@each_fixture
def test_no_truncation_raises_or_announces_a_commit(fixture):
    for length in range(len(fixture.event.value)):
        answer = ask(raw(fixture.event.value[:length]))
        assert not isinstance(answer, TableChanged)
        assert fixture.source == "canonical" or isinstance(answer, NotACommit) or "json" not in reason_of(answer)


@each_fixture
@given(data=st.data())
def test_no_flipped_bytes_raise(fixture, data):
    value = bytearray(fixture.event.value)
    # Half of the flips go into the last bytes: in Avro events the datum is short and the schema long.
    place = st.integers(0, len(value) - 1) | st.integers(max(0, len(value) - 120), len(value) - 1)
    for at, byte in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=8)):
        value[at] = byte
    ask(raw(bytes(value)))


@pytest.mark.parametrize("name", ["commit_to_table", "canonical_full"])
def test_no_single_flip_raises(name):
    value = BY_NAME[name].event.value
    chance = random.Random(7)
    for at in range(len(value)):
        for byte in (0x00, 0xFF, 0x80, value[at] ^ 1, chance.randrange(256)):
            ask(raw(value[:at] + bytes([byte]) + value[at + 1 :]))


@given(
    prefix=st.sampled_from(
        [b"", b"\xc2\x01", b"\xc2\x01\x00\x02{}", b'{"event-id":', b'{"event-id":"x","identifier":']
    ),
    rest=st.binary(max_size=300),
)
@example(b"", b'{"event-id":' + b"[" * 200_000)
@example(b"", b'{"event-id":' + b'{"a":' * 200_000)
@example(b"", b'{"event-id":' + b"9" * 100_000 + b"}")
@example(b"", b"\xc2\x01\xff\xff" + b"[" * 65_535)
def test_no_bytes_raise(prefix, rest):
    ask(raw(prefix + rest))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["namespace", "name", "x"]), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(FULL)), json_values))
def test_no_json_object_raises(damage):
    ask(written(FULL | damage))


# The canonical event

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(
        TableChanged,
        source=st.just("canonical"),
        event_id=NAMES,
        catalog=st.none() | NAMES,
        namespace=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
        name=NAMES,
        timestamp_ms=st.integers(0, 253_402_300_799_999),
        table_uuid=st.none() | st.uuids().map(str),
        snapshot_id=st.none() | INT64,
        ref_name=st.none() | NAMES,
        operation=st.none() | NAMES,
        metadata_location=st.none() | NAMES,
        report=st.booleans(),
        continues=st.booleans(),
        request=st.none() | st.just("") | NAMES.filter(lambda text: text != canonical.EVERYTHING),
    )
)
def test_what_is_encoded_is_decoded(announced):
    key, value = canonical.encode(announced, sender="watcher")
    assert decode(raw(value), DECODERS) == announced
    parts = [part for part in (announced.catalog, *announced.namespace, announced.name) if part is not None]
    assert key.decode() == ".".join(parts)


def test_an_encoded_event_has_the_documented_fields():
    value = json.loads(canonical.encode(changed(report=True), sender="watcher")[1])
    assert value == {
        "event-id": "e-2",
        "source": "watcher",
        "timestamp-ms": ARRIVED_MS,
        "operation-type": "update-table",
        "identifier": {"namespace": ["db"], "name": "orders"},
        "summary": {"firnline.report": "full"},
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"event-id": None}, "missing_field"),
        ({"identifier": None}, "missing_field"),
        ({"identifier": None, "metadata-location": "s3://x"}, "no_identifier"),
        ({"identifier": {"name": "orders"}}, "missing_field"),
        ({"identifier": {"namespace": [], "name": "orders"}}, "no_namespace"),
        ({"identifier": {"namespace": "db", "name": "orders"}}, "wrong_type"),
        ({"identifier": {"namespace": ["db", 1], "name": "orders"}}, "wrong_type"),
        ({"identifier": {"namespace": ["db", ""], "name": "orders"}}, "invalid_text"),
        ({"identifier": {"namespace": ["db"], "name": "a\nb"}}, "invalid_text"),
        ({"identifier": {"namespace": ["db"], "name": "\ud800"}}, "invalid_text"),
        ({"identifier": {"namespace": ["db"], "name": "n" * 4097}}, "invalid_text"),
        ({"identifier": "db.orders"}, "wrong_type"),
        ({"event-id": 7}, "wrong_type"),
        ({"catalog": ["x" * 5000]}, "wrong_type"),
        ({"timestamp-ms": "1700000000000"}, "wrong_type"),
        ({"timestamp-ms": -1}, "out_of_range"),
        ({"timestamp-ms": 253_402_300_800_000}, "out_of_range"),
        ({"snapshot-id": True}, "wrong_type"),
        ({"snapshot-id": 1.0}, "wrong_type"),
        ({"snapshot-id": 2**63}, "out_of_range"),
        ({"snapshot-id": float("nan")}, "invalid_json"),
        ({"of-a-later-version": float("inf")}, "invalid_json"),
        ({"table-uuid": "orders"}, "invalid_text"),
        ({"table-uuid": "{" + UUID + "}"}, "invalid_text"),
        ({"summary": "firnline.report"}, "wrong_type"),
        ({"summary": {"firnline.report": True}}, "wrong_type"),
    ],
)
def test_the_canonical_decoder_is_strict(change, reason):
    assert reason_of(ask(written(LEAST | change))) == reason


@pytest.mark.parametrize(
    "value",
    [
        b'{"event-id": "a", "event-id": "b", "identifier": {"namespace": ["db"], "name": "t"}}',
        b'{"event-id": "a", "identifier": {"namespace": ["db"], "name": "t", "name": "u"}}',
        b'{"event-id": "\xff"}',
        b'{"event-id": "a", "snapshot-id": ' + b"9" * 5000 + b"}",
        b'{"event-id": "a"} {}',
        b'{"event-id": "a", }',
    ],
)
def test_loose_json_is_refused(value):
    assert reason_of(ask(raw(value))) == "invalid_json"


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"catalog": None, "snapshot-id": None, "summary": None}, changed()),
        ({"table-uuid": UUID.upper()}, changed(table_uuid=UUID)),
        ({"summary": {"firnline.report": "partial", "firnline.continues": "yes", "x": 1}}, changed()),
        ({"summary": {"firnline.continues": "true"}}, changed(continues=True)),
        ({"operation-type": "register-table"}, changed()),
        ({"timestamp-ms": 0}, changed(timestamp_ms=0)),
    ],
)
def test_what_the_canonical_decoder_tolerates(change, answer):
    assert ask(written(LEAST | change)) == answer


# Kafka Connect: the schema comes with the event, from whoever wrote it


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


# Resolution


@pytest.mark.parametrize(
    ("source", "named", "catalogs", "expected"),
    [
        ("canonical", "lake", ["lake", "ice"], "lake"),
        ("canonical", "else", ["lake", "ice"], "unknown_catalog"),
        ("canonical", "else", ["lake"], "unknown_catalog"),
        ("canonical", None, ["lake"], "lake"),
        ("canonical", None, ["lake", "ice"], "ambiguous_catalog"),
        ("canonical", None, [], "ambiguous_catalog"),
        ("kafka_connect", "ice", ["lake", "ice"], "ice"),
        ("kafka_connect", "connector", ["lake"], "lake"),
        ("kafka_connect", "connector", ["lake", "ice"], "ambiguous_catalog"),
        ("polaris", None, ["lake"], "lake"),
    ],
)
def test_an_event_means_one_configured_table_or_none(source, named, catalogs, expected):
    answer = resolve(changed(source=source, catalog=named), catalogs)
    if expected in set(BadEventReason):
        assert isinstance(answer, BadEvent)
        assert answer.reason == expected
        assert all(catalog in answer.detail for catalog in catalogs)
    else:
        assert answer == TableName(expected, ("db",), "orders")
