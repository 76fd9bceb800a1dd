"""What Python workers make of records: names and flags of events, numbers of bad ones, dead letters."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
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
    BadEventReason,
    TableChanged,
)
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.strict_json import JsonDecoder
from streaming.ledger.dead_letter_query import RECORD_COLUMNS, LetterDecoder, found
from streaming.ledger.event_reader import EventDecoder, events_of, heard_of, take_over_offsets
from streaming.ledger.event_sources import EventSources
from streaming.ledger.heard import Heard
from streaming.ledger.records import ARROW_BATCH_RECORDS, read_records
from streaming.service.watched_query import offsets_read

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


def heard(*values: bytes | None) -> list[Heard]:
    batches = EventDecoder(SOURCES).heard(iter([records(*values)]))
    return [heard_of(row) for batch in batches for row in batch.to_pylist()]


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


def test_names_with_dots_and_levels_stay_apart() -> None:
    (one,) = heard(event("a.b", namespace=("x.y", "z")))
    assert one.table == TableName("lake", ("x.y", "z"), "a.b")


def test_a_record_is_read_whatever_its_producer_wrote() -> None:
    (one,) = read_records(records(None, headers=None, timestamp_ms=-5, key=None))
    assert (one.event.key, one.event.value, one.event.headers, one.event.timestamp_ms) == (None, None, (), 0)
    (one,) = read_records(records(b"", headers=[{"key": "h", "value": None}], timestamp_ms=10**18))
    assert (one.event.value, one.event.headers) == (b"", (("h", b""),))
    assert one.event.timestamp_ms == TIMESTAMP_MS_MAX


# --- dead letters -----------------------------------------------------------------------------------------------------


def counted(decoder: LetterDecoder, *values: bytes | None) -> tuple[dict[str, int], dict[TableName, int]]:
    rows = [row for batch in decoder.found(iter([records(*values)])) for row in batch.to_pylist()]
    bad, tables = found(rows)
    return dict(bad), dict(tables)


def letters(decoder: LetterDecoder, *values: bytes | None) -> list[dict[str, bytes]]:
    """The headers of each letter, from columns as Spark hands them over."""
    found = headers_of_batch(decoder, records(*values))
    return [{each["key"]: each["value"] for each in headers} for headers in found if headers is not None]


def headers_of_batch(decoder: LetterDecoder, batch: pa.RecordBatch) -> list[list[dict[str, Any]] | None]:
    frame = batch.to_pandas()
    return decoder.headers(*(frame[name] for name in RECORD_COLUMNS))


def test_the_first_pass_counts() -> None:
    decoder = LetterDecoder(SOURCES, EVERYTHING)
    values = (event(), event(), b"rubbish", None, None, event("gone"))
    gone = TableName("lake", ("db",), "gone")
    assert counted(decoder, *values) == ({"unrecognised": 1, "tombstone": 2}, {(TABLE,): 2, (gone,): 1})
    assert counted(decoder) == ({}, {})


def test_an_event_of_a_missing_table_is_a_letter() -> None:
    value = event("gone")
    gone = TableName("lake", ("db",), "gone")
    (letter,) = letters(LetterDecoder(EventSources(("lake", "attic")), EVERYTHING, frozenset({gone})), event(), value)
    assert letter == {
        "trace": b"17",
        "firnline.reason": b"unknown_table",
        "firnline.detail": b"table lake.db.gone does not exist, or this service may not load it "
        b"(catalogs configured: lake, attic); correct the name, allow this service to load the table, or exclude it "
        b"(tables.exclude)",
        "firnline.topic": b"commits",
        "firnline.partition": b"3",
        "firnline.offset": b"41",
    }


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
        ("unknown_table", event("gone"), b"correct the name, allow this service to load the table, or exclude it"),
        ("unknown_catalog", event(catalog="attic"), b"set kafka.catalog_names"),
        ("no_identifier", json.dumps({**REPORT, "table-name": "s3://b/t"}).encode(), b"write to the table by its name"),
    ],
)
def test_a_dead_letter_says_what_to_do(reason: str, value: bytes | None, remedy: bytes) -> None:
    missing = frozenset({TableName("lake", ("db",), "gone")})
    (letter,) = letters(LetterDecoder(SOURCES, EVERYTHING, missing), value)
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
    assert [one.metadata_location for one in heard(value)] == [
        "s3://b/db/t/v1.metadata.json",
        "s3://b/db/u/v1.metadata.json",
    ]
    (letter,) = letters(LetterDecoder(SOURCES, EVERYTHING), value)
    assert letter["firnline.reason"] == b"invalid_text"
    assert counted(LetterDecoder(SOURCES, EVERYTHING), value) == ({"invalid_text": 1}, {})


@pytest.mark.parametrize("value", [event(), b"rubbish", None, b"x" * (MAX_EVENT_BYTES + 1)])
def test_a_dead_letter_is_neither_heard_nor_written_again(value: bytes | None) -> None:
    """A pattern can match the topic to which another deployment writes its letters."""
    batch = records(value, headers=[{"key": "firnline.reason", "value": b"unrecognised"}], bytes=len(value or b""))
    decoder = LetterDecoder(SOURCES, EVERYTHING)
    assert list(EventDecoder(SOURCES).heard(iter([batch]))) == []
    assert list(decoder.found(iter([batch]))) == []
    assert headers_of_batch(decoder, batch) == [None]


def test_a_value_that_was_cut_is_reported_with_its_true_size() -> None:
    value = b'{"event-id":' + b"x" * (3 * MAX_EVENT_BYTES)
    (letter,) = letters(LetterDecoder(SOURCES, EVERYTHING), value)
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
    assert [one.table.name for one in heard(of_tables(names), of_tables(names))] == [*names, *names]
    value = of_tables([*names, "one more"])
    assert heard(value) == []
    (letter,) = letters(LetterDecoder(SOURCES, EVERYTHING), value)
    assert letter["firnline.reason"] == b"oversize"
    assert letter["firnline.detail"].endswith(b"sweeps find the commits that it announces")


def test_a_namespace_has_64_levels_at_most() -> None:
    (one,) = heard(event(namespace=("x",) * MAX_LEVELS))
    assert len(one.table.namespace) == MAX_LEVELS
    value = event(namespace=("x",) * (MAX_LEVELS + 1))
    assert heard(value) == []
    (letter,) = letters(LetterDecoder(SOURCES, EVERYTHING), value)
    assert letter["firnline.reason"] == b"oversize"
    assert letter["firnline.detail"].endswith(b"sweeps find the commits that it announces")


def test_namespace_and_name_have_4096_characters_at_most_together() -> None:
    parts = ("x" * 1000,) * 4
    (one,) = heard(event(namespace=parts, name="y" * (MAX_NAME_CHARACTERS - 4000)))
    assert one.table.namespace == parts
    value = event(namespace=parts, name="y" * (MAX_NAME_CHARACTERS - 3999))
    assert heard(value) == []
    (letter,) = letters(LetterDecoder(SOURCES, EVERYTHING), value)
    assert letter["firnline.reason"] == b"oversize"
    assert letter["firnline.detail"].endswith(b"sweeps find the commits that it announces")


def test_rows_leave_in_batches_of_bounded_size() -> None:
    """However many tables the events of one batch name."""
    value = of_tables([f"t{number}" for number in range(MAX_PARTS)])
    sizes = [batch.num_rows for batch in EventDecoder(SOURCES).heard(iter([records(value, value, value)]))]
    assert sum(sizes) == 3 * MAX_PARTS
    assert max(sizes) <= ARROW_BATCH_RECORDS


def rows_of_events(events: int, tables: Callable[[int], list[str]]) -> list[dict[str, Any]]:
    """The rows of one batch of events, each with the tables of its number."""
    batch = iter([records(*(of_tables(tables(number)) for number in range(events)))])
    return [row for each in EventDecoder(SOURCES).heard(batch) for row in each.to_pylist()]


def numbered(number: int) -> list[str]:
    return [f"t{1000 * number + each}" for each in range(MAX_PARTS)]


def test_events_that_name_the_same_thousand_tables_are_as_many_rows_as_their_tables() -> None:
    """2,000 events of 11 kB named two million tables, a gigabyte in the driver."""
    rows = rows_of_events(50, lambda _: numbered(0))
    assert len(rows) == 50 + 10_000 + MAX_PARTS - 1
    assert {each.table.name for each in events_of(rows)} == {*numbered(0)}


def test_tables_beyond_the_bound_are_left_out_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of_events(25, numbered)
    assert len(rows) == 25 + 20_000 + 1
    heard_ = events_of(rows)
    assert len({each.table for each in heard_}) == len(heard_) == 25 + 20_000
    assert {f"t{1000 * number}" for number in range(25)} <= {each.table.name for each in heard_}, "one of each event"
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "events of glue name too many tables in one batch: besides the first of each event and 20000 others, "
        "4975 times a table was left out; sweeps find its commits"
    )


def test_tables_that_dead_letters_check_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    values = [of_tables(numbered(number)) for number in range(12)]
    _, groups = counted(LetterDecoder(SOURCES, EVERYTHING), *values, *values[:3])
    assert sum(map(len, groups)) == 12 + 10_000
    assert [*groups.values()] == [2] * 3 + [1] * 9
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "events name too many tables in one batch of dead letters: besides the first of each event and 10000 others, "
        "1988 times a table was not checked; its event is no dead letter if the table does not exist"
    )


def test_an_event_of_the_greatest_size_is_heard() -> None:
    value = event()
    padded = value + b" " * (MAX_EVENT_BYTES - len(value))
    assert [one.table for one in heard(padded)] == [TABLE]
    assert heard(padded + b" ") == []


def test_each_letter_is_of_one_service() -> None:
    """Also while tables move: nobody owns a table then, and its letter cannot wait."""
    members = ("a", "b", "c")
    values = [event(f"t{number}") if number % 2 else b"rubbish" for number in range(60)]
    missing = frozenset(TableName("lake", ("db",), f"t{number}") for number in range(60))
    shards = [Shard(me, members, (("a", "b"),)).lasting for me in members]
    written = [letters(LetterDecoder(SOURCES, shard, missing), *values) for shard in shards]
    offsets = [int(letter["firnline.offset"]) for each in written for letter in each]
    assert sorted(offsets) == list(range(40, 100))
    assert all(written)
    counts = [counted(LetterDecoder(SOURCES, shard), *values) for shard in shards]
    assert sum(bad["unrecognised"] for bad, _ in counts) == 30
    assert sum(len(tables) for _, tables in counts) == 30


def test_an_event_of_several_missing_tables_is_one_letter_of_one_service() -> None:
    members = ("a", "b", "c")
    names = [f"t{number}" for number in range(20)]
    missing = frozenset(TableName("lake", ("db",), name) for name in names)
    shards = [Shard(me, members, (("a", "b"),)).lasting for me in members]
    assert len({next(shard.me for shard in shards if shard.owns(table)) for table in missing}) > 1
    values = [of_tables(names[first:] + names[:first]) for first in range(20)]
    written = [letters(LetterDecoder(SOURCES, shard, missing), *values) for shard in shards]
    assert sorted(int(letter["firnline.offset"]) for each in written for letter in each) == [*range(40, 60)]
    assert all(written)
    counts = [counted(LetterDecoder(SOURCES, shard), *values)[1] for shard in shards]
    assert sum(sum(each.values()) for each in counts) == len(values)


def test_reasons_survive_the_way_to_the_driver() -> None:
    bad, tables = found([{"reason": "oversize", "events": events, "left_out": None} for events in (2, 3)])
    assert (dict(bad), dict(tables)) == ({BadEventReason.OVERSIZE: 5}, {})


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_of_an_earlier_checkpoint_are_taken_over_once(tmp_path: Any) -> None:
    old = tmp_path / "ledger-v2-p1"
    for name in ("offsets", "commits", "sources", "state"):
        (old / name).mkdir(parents=True)
        (old / name / "0").write_text(name)
    (old / "metadata").write_text("id")
    checkpoint = f"file://{tmp_path}"
    assert take_over_offsets(checkpoint)
    new = tmp_path / "events-v3"
    assert {path.name for path in new.iterdir()} == {"metadata", "offsets", "commits", "sources"}
    assert (new / "offsets" / "0").read_text() == "offsets"
    (new / "offsets" / "1").write_text("later")
    assert not take_over_offsets(checkpoint)
    assert (new / "offsets" / "1").exists()
    new.rename(tmp_path / "events-v3.aside-000001")
    assert not take_over_offsets(checkpoint), "offsets from before the upgrade, after the checkpoint was set aside"
    assert not new.exists()
    assert not take_over_offsets("s3://bucket/checkpoint")
    assert not take_over_offsets(f"file://{tmp_path}/nothing")


def test_the_offsets_of_a_batch_are_those_of_all_partitions() -> None:
    def read(start: Any, end: Any) -> int | None:
        return offsets_read(json.dumps({"sources": [{"startOffset": start, "endOffset": end}]}))

    assert read({"a": {"0": 5, "1": 7}}, {"a": {"0": 6, "1": 7}, "b": {"0": 3}}) == 4
    assert read(None, {"a": {"0": 6}}) is None


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
