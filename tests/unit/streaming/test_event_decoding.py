"""What Python workers make of records: names and flags of events, and the headers of dead letters."""

from __future__ import annotations

import json
import uuid
from re._parser import parse  # type: ignore[import-not-found]
from typing import Any

import pyarrow as pa
import pytest

from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import (
    MAX_EVENT_BYTES,
    MAX_LEVELS,
    MAX_NAME_CHARACTERS,
    MAX_PARTS,
    TIMESTAMP_MS_MAX,
    TableChanged,
)
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.strict_json import JsonDecoder
from streaming.intake.event_query import MOST_FURTHER, EventDecoder, heard_of
from streaming.intake.event_sources import EventSources
from streaming.intake.heard import AnyHeard, Heard, HeardLocation
from streaming.intake.records import ARROW_BATCH_RECORDS, read_records

TABLE = TableName("lake", ("db",), "t")
SOURCES = EventSources(("lake",))
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("bytes", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_ms", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def event(name: str = "t", **fields: Any) -> bytes:
    values: dict[str, Any] = {"catalog": "lake", "namespace": ("db",), "timestamp_ms": 7, "operation": "append"}
    changed = TableChanged(source="canonical", event_id=str(uuid.uuid4()), name=name, **{**values, **fields})
    return canonical.encode(changed)[1]


def records(*values: bytes | None, **columns: Any) -> pa.RecordBatch:
    rows = [
        {
            "key": b"k",
            "value": None if value is None else value[: MAX_EVENT_BYTES + 1],
            "bytes": 0 if value is None else len(value),
            "headers": [{"key": "trace", "value": b"17"}],
            "timestamp_ms": 5,
            "topic": "commits",
            "partition": 3,
            "offset": 40 + number,
            **columns,
        }
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, COLUMNS)


def rows(*values: bytes | None, shard: Shard = EVERYTHING, **columns: Any) -> list[dict[str, Any]]:
    batches = EventDecoder(SOURCES, shard).rows(iter([records(*values, **columns)]))
    return [row for batch in batches for row in batch.to_pylist()]


def heard(*values: bytes | None) -> list[AnyHeard]:
    found = rows(*values)
    return [heard_of(row) for row in found if row["reason"] is None and row["left_out"] is None]


def tables(*values: bytes | None) -> list[TableName]:
    return [one.table for one in heard(*values) if isinstance(one, Heard)]


def letters(*values: bytes | None, **columns: Any) -> list[dict[str, bytes]]:
    """firnline's headers of each letter."""
    found = [row["letter"] for row in rows(*values, **columns) if row["reason"] is not None]
    return [{each["key"]: each["value"] for each in headers} for headers in found]


def test_of_an_event_names_and_flags_are_left() -> None:
    assert heard(event(), b"rubbish", None, event(catalog="attic"), event("u", timestamp_ms=9)) == [
        Heard(TABLE, "canonical", 7, writes=True),
        Heard(TableName("lake", ("db",), "u"), "canonical", 9, writes=True),
    ]


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        ({"operation": "replace"}, None),
        ({"request": ""}, ""),
        ({"request": "id > 3"}, "id > 3"),
    ],
)
def test_only_writers_commits_write(fields: dict[str, Any], request_: str | None) -> None:
    assert heard(event(**fields)) == [Heard(TABLE, "canonical", 7, writes=False, request=request_)]


def test_a_record_is_read_whatever_its_producer_wrote() -> None:
    (one,) = read_records(records(None, headers=None, timestamp_ms=-5, key=None))
    assert (one.event.key, one.event.value, one.event.headers, one.event.timestamp_ms) == (None, None, (), 0)
    (one,) = read_records(records(b"", headers=[{"key": "h", "value": None}], timestamp_ms=10**18))
    assert (one.event.value, one.event.headers) == (b"", (("h", b""),))
    assert one.event.timestamp_ms == TIMESTAMP_MS_MAX


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_a_letter_says_where_its_event_is_and_how_many_of_its_headers_it_keeps() -> None:
    (row,) = rows(event(), b"rubbish")[1:]
    assert (row["reason"], row["topic"], row["partition"], row["offset"], row["kept"]) == (
        "unrecognised", "commits", 3, 41, 1,
    )  # fmt: skip
    (letter,) = letters(event(), b"rubbish")
    assert [letter[f"firnline.{name}"] for name in ("topic", "partition", "offset")] == [b"commits", b"3", b"41"]


REPORT = {"report-type": "commit-report", "snapshot-id": 7}
NOTIFIED = {"eventSource": "x", "inner": {"eventSource": "aws:s3"}}
EVENTBRIDGE = {"source": "aws.ec2", "detail-type": "x", "detail": {"source": "aws.glue"}}


@pytest.mark.parametrize(
    ("reason", "value", "remedy"),
    [
        ("tombstone", None, b"send one of the formats of docs/commit-events.md"),
        ("unrecognised", b"rubbish", b"send one of the formats of docs/commit-events.md"),
        ("unrecognised", json.dumps(EVENTBRIDGE).encode(), b"send one of the formats of docs/commit-events.md"),
        ("unrecognised", json.dumps({"Records": [NOTIFIED]}).encode(), b"send one of the formats"),
        ("unknown_catalog", event(catalog="attic"), b"set kafka.catalog_names"),
        ("no_identifier", json.dumps({**REPORT, "table-name": "s3://b/t"}).encode(), b"write to the table by its name"),
    ],
)
def test_a_dead_letter_says_what_to_do(reason: str, value: bytes | None, remedy: bytes) -> None:
    (letter,) = letters(value)
    assert letter["firnline.reason"] == reason.encode()
    assert remedy in letter["firnline.detail"]


def test_of_an_event_with_a_bad_part_the_rest_is_heard_and_a_letter_written() -> None:
    files = ("db/t/v1.metadata.json", "%FF/v1.metadata.json", "db/u/v1.metadata.json")
    parts = [
        {
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": key}},
        }
        for key in files
    ]
    value = json.dumps({"Records": parts}).encode()
    assert [one.metadata_location for one in heard(value) if isinstance(one, HeardLocation)] == [
        "s3://b/db/t/v1.metadata.json",
        "s3://b/db/u/v1.metadata.json",
    ]
    (letter,) = letters(value)
    assert letter["firnline.reason"] == b"invalid_text"


@pytest.mark.parametrize("value", [event(), b"rubbish", None, b"x" * (MAX_EVENT_BYTES + 1)])
def test_a_dead_letter_is_neither_heard_nor_written_again(value: bytes | None) -> None:
    """A pattern can match the topic to which another deployment writes its letters."""
    assert rows(value, headers=[{"key": "firnline.reason", "value": b"unrecognised"}], bytes=len(value or b"")) == []


def test_a_value_that_was_cut_is_reported_with_its_true_size() -> None:
    value = b'{"event-id":' + b"x" * (3 * MAX_EVENT_BYTES)
    (letter,) = letters(value)
    assert letter["firnline.reason"] == b"oversize"
    assert str(len(value)).encode() in letter["firnline.detail"]
    assert letter["firnline.truncated"] == b"true"
    assert heard(value) == []


def of_tables(names: list[str]) -> bytes:
    detail = {"typeOfChange": "CreateTable", "databaseName": "db", "changedTables": names}
    head = {"id": "e", "source": "aws.glue", "detail-type": "Glue Data Catalog Database State Change"}
    return json.dumps({**head, "account": "1", "region": "r", "detail": detail}).encode()


def test_an_event_names_a_thousand_tables_at_most() -> None:
    names = [f"t{number}" for number in range(MAX_PARTS)]
    assert [table.name for table in tables(of_tables(names), of_tables(names))] == [*names, *names]
    value = of_tables([*names, "one more"])
    assert heard(value) == []
    (letter,) = letters(value)
    assert letter["firnline.reason"] == b"oversize"
    assert letter["firnline.detail"].endswith(b"sweeps find the commits that it announces")


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ({"namespace": ("x",) * MAX_LEVELS}, {"namespace": ("x",) * (MAX_LEVELS + 1)}),
        ({"namespace": ("x",), "name": "y" * (MAX_NAME_CHARACTERS - 1)}, {"name": "y" * (MAX_NAME_CHARACTERS - 1)}),
    ],
    ids=["levels", "characters"],
)
def test_a_tables_name_is_bounded(most: dict[str, Any], more: dict[str, Any]) -> None:
    assert len(tables(event(**most))) == 1
    assert heard(event(**more)) == []
    (letter,) = letters(event(**more))
    assert letter["firnline.reason"] == b"oversize"
    assert letter["firnline.detail"].endswith(b"sweeps find the commits that it announces")


def test_rows_leave_in_batches_of_bounded_size() -> None:
    """However many tables the events of one batch name."""
    value = of_tables([f"t{number}" for number in range(MAX_PARTS)])
    sizes = [batch.num_rows for batch in EventDecoder(SOURCES, EVERYTHING).rows(iter([records(value, value, value)]))]
    assert sum(sizes) == 3 * MAX_PARTS
    assert max(sizes) <= ARROW_BATCH_RECORDS


def test_tables_beyond_the_bound_are_left_out_and_told_of() -> None:
    """2,000 events of 11 kB can name two million tables, a gigabyte in the driver. One of each event is heard."""
    values = [of_tables([f"t{1000 * number + each}" for each in range(MAX_PARTS)]) for number in range(12)]
    *found, told = rows(*values, b"rubbish")
    assert len(found) == 12 + MOST_FURTHER + 1
    assert {f"t{1000 * number}" for number in range(12)} <= {each["name"] for each in found}
    assert (told["source"], told["left_out"], found[-1]["reason"]) == ("glue", 1988, "unrecognised")


def test_an_event_of_the_greatest_size_is_heard() -> None:
    value = event()
    padded = value + b" " * (MAX_EVENT_BYTES - len(value))
    assert tables(padded) == [TABLE]
    assert heard(padded + b" ") == []


def test_each_letter_is_of_one_service() -> None:
    written = [letters(*[b"rubbish"] * 60, shard=Shard(number, 3)) for number in range(3)]
    assert sorted(int(letter["firnline.offset"]) for each in written for letter in each) == [*range(40, 100)]
    assert all(written)


def begins_with_certain_bytes(parsed: Any) -> bool:
    """Of a regular expression, as Python's parser gives it: so does each of its alternatives."""
    operation, argument = parsed[0]
    if str(operation) == "BRANCH":
        return all(map(begins_with_certain_bytes, argument[1]))
    return str(operation) == "LITERAL"


def test_a_long_run_of_letters_is_looked_through_once() -> None:
    """A pattern that begins with `[a-z]+` begins again at each letter of a run: an event of 1 MiB took ten minutes."""
    groups = [group for decoder in DECODERS if isinstance(decoder, JsonDecoder) for group in decoder.marks]
    marks = [each for group in groups for each in group]
    assert len(marks) > len(DECODERS)
    assert [each for each in marks if not begins_with_certain_bytes(parse(each.pattern.pattern))] == []
