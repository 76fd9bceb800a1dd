"""One contract for the decoders of all formats: each event has exactly one result, and no bytes cause an exception."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streaming.commit_events.decoder import (
    MAX_EVENT_BYTES,
    BadEvent,
    Decoded,
    LocationChanged,
    NotACommit,
    RawEvent,
    Several,
    TableChanged,
    bad_of,
    changes_of,
    decode,
    together,
)
from streaming.commit_events.formats import BY_NAME as DECODER_BY_NAME
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.lakekeeper import LakekeeperDecoder
from tests.contracts.commit_event_fixtures import (
    BY_NAME,
    FIXTURES,
    LEAST,
    Fixture,
    ask,
    assert_usable,
    changed,
    each_fixture,
    raw,
    reason_of,
    same,
    written,
)

IN_JSON = [fixture for fixture in FIXTURES if fixture.value.lstrip()[:1] == b"{"]
each_in_json = pytest.mark.parametrize("fixture", IN_JSON, ids=lambda fixture: fixture.name)
ANY_TEXT = {"key", "repositoryId"}  # keys of other objects can be any text, and a repository can have no name


@each_fixture
def test_exactly_one_decoder_recognises_a_fixture(fixture):
    assert [decoder.source for decoder in DECODERS if decoder.recognises(fixture.event)] == [fixture.source]
    assert decode(fixture.event, DECODERS) == decode(fixture.event, DECODERS[::-1])


def test_decoders_come_in_detection_order():
    sources = [decoder.source for decoder in DECODERS]
    assert sources == [
        "kafka_connect", "lakekeeper", "polaris", "s3", "glue", "nessie", "openlineage", "commit_report", "canonical",
    ]  # fmt: skip
    assert list(DECODER_BY_NAME) == sources
    assert {fixture.source for fixture in FIXTURES} == set(sources)


def test_decoders_travel_to_executors():
    assert pickle.loads(pickle.dumps(DECODERS)) == DECODERS  # noqa: S301 - our own bytes


@each_fixture
def test_a_fixture_gets_its_answer(fixture):
    answer = ask(fixture.event)
    assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301 - our own bytes
    assert same(answer, fixture.answer), answer


@each_fixture
def test_a_topic_with_a_format_has_one_letter_for_each_event_of_another(fixture):
    for name, decoder in DECODER_BY_NAME.items():
        answer = decode(fixture.event, (decoder,))
        assert same(answer, fixture.answer) if name == fixture.source else reason_of(answer) == "unrecognised"
        if name != fixture.source:
            assert isinstance(decoder.decode(fixture.event), BadEvent), name


class Raising:
    source = "raising"

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
    assert "raising" in answer.detail
    assert "\n" not in answer.detail


def test_a_decoder_that_raises_costs_no_event_of_another():
    assert decode(written(LEAST), [Raising(), *DECODERS]) == changed()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "unrecognised"),
        (b"hello", "unrecognised"),
        (b"[]", "unrecognised"),
        (b"null", "unrecognised"),
        (b'"event-id":', "unrecognised"),
        (b'{"Records": []}', "unrecognised"),
        (b"\xc2", "unrecognised"),
        (b'{"event-id":' + b" " * MAX_EVENT_BYTES, "oversize"),
    ],
)
def test_what_no_decoder_is_asked_about(value, reason):
    assert reason_of(decode(raw(value), DECODERS)) == reason
    assert_usable(decode(raw(value), DECODERS))


def test_the_size_limit_is_a_setting_and_inclusive():
    event = written(LEAST)
    assert isinstance(decode(event, DECODERS, max_bytes=len(event.value)), TableChanged)
    assert isinstance(decode(event, DECODERS, max_bytes=len(event.value) - 1), BadEvent)


@each_fixture
def test_no_truncation_announces_a_commit(fixture):
    decoder = DECODER_BY_NAME[fixture.source]
    for length in range(len(fixture.value.rstrip())):
        event = fixture.with_value(fixture.value[:length])
        for answer in (decode(event, DECODERS), decoder.decode(event)):
            assert_usable(answer)
            assert isinstance(answer, BadEvent) or answer == fixture.answer
            assert not changes_of(answer)
            assert fixture.source != "kafka_connect" or isinstance(answer, NotACommit) or "json" not in answer.reason


@each_in_json
@pytest.mark.parametrize("opening", [b'{"x":', b"["])
def test_deep_nesting_is_one_letter_at_most(fixture, opening):
    """Nested 100,000 deep is no JSON for any reader; 900 deep is, and the field is unknown."""
    closing = b"}" if opening == b'{"x":' else b"]"
    inside = fixture.value.rstrip()[:-1] + b', "note": '
    answer = ask(fixture.with_value(inside + opening * 100_000 + b"1" + closing * 100_000 + b"}"))
    assert reason_of(answer) == "invalid_json" if changes_of(fixture.answer) else not changes_of(answer)
    shallow = ask(fixture.with_value(inside + opening * 60 + b"1" + closing * 60 + b"}"))
    assert same(shallow, fixture.answer)


def test_a_nested_value_in_a_field_that_is_read_is_one_letter():
    """At some depth the parser still follows, and a message about the value must not go as deep."""
    for depth in range(1, sys.getrecursionlimit() + 50):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            event = raw(f'{{"event-id":{opening * depth}1{closing * depth}}}'.encode())
            assert reason_of(decode(event, DECODERS)) in {"wrong_type", "invalid_json"}, depth


@each_in_json
def test_a_key_that_occurs_twice_is_one_letter(fixture):
    for key in json.loads(fixture.value):
        value = fixture.value.rstrip()[:-1] + f", {json.dumps(key)}: 1}}".encode()
        answer = ask(fixture.with_value(value))
        if changes_of(fixture.answer):
            assert reason_of(answer) == "invalid_json"
            assert "occurs twice" in answer.detail
        else:
            assert not changes_of(answer)


@each_in_json
def test_unknown_fields_are_ignored(fixture):
    event = json.loads(fixture.value)
    for unknown in (1, "x", None, [], {}, [{"x": [None]}]):
        grown = {"of-a-later-version": unknown, **event, "zzz": unknown}
        assert same(ask(fixture.with_value(json.dumps(grown).encode())), fixture.answer)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def inner(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def others(value: Any) -> list[Any]:
    """Values of other types, and values of the same type that no field can have."""
    unusable = ["", "a\nb", "\ud800", "x" * 5000, 10**30, -(10**30)]
    return [*(each for each in (7, "x", True, 1.5, [], [7], {}, {"x": 7}) if type(each) is not type(value)), *unusable]


@each_in_json
def test_a_wrong_type_of_any_field_changes_no_table(fixture):
    """The field is not read, or the event is one dead letter whose detail is short. Its other parts may count."""
    event = json.loads(fixture.value)
    chance = random.Random(fixture.name)
    for path in paths(event):
        for other in chance.sample(others(inner(event, path)), 3):
            damaged = deepcopy(event)
            inner(damaged, path[:-1])[path[-1]] = other
            answer = decode(fixture.with_value(json.dumps(damaged).encode("utf-8", "surrogatepass")), DECODERS)
            assert_usable(answer)
            if path[-1] in ANY_TEXT and isinstance(other, str):
                assert tables(answer) <= tables(fixture.answer)
            elif changes_of(fixture.answer):
                left_out = bad_of(answer) is not None and tables(answer) <= tables(fixture.answer)
                assert left_out or answer == fixture.answer, (path, other)
            else:
                assert not changes_of(answer), (path, other)


def tables(answer: Decoded) -> set[Any]:
    """What an answer announces: names of tables, and locations."""
    return {
        each
        for change in changes_of(answer)
        for each in (
            [change.metadata_location]
            if isinstance(change, LocationChanged)
            else [(change.namespace, change.name), change.metadata_location]
        )
    } - {None}


@each_in_json
def test_a_field_that_is_missing_changes_no_table(fixture):
    event = json.loads(fixture.value)
    for path in paths(event):
        for missing in (True, False):
            damaged = deepcopy(event)
            if missing and isinstance(path[-1], str):
                del inner(damaged, path[:-1])[path[-1]]
            else:
                inner(damaged, path[:-1])[path[-1]] = None
            answer = decode(fixture.with_value(json.dumps(damaged).encode()), DECODERS)
            assert_usable(answer)
            assert tables(answer) <= tables(fixture.answer), path


def nestings(fixture: Fixture, other: Fixture) -> Iterator[bytes]:
    """The event with the other inside: as a value, as text, and with the words of the other as texts."""
    event, inside = json.loads(fixture.value), json.loads(other.value)
    yield json.dumps({"a": inside, **event}).encode()
    yield json.dumps({**event, "z": [{"deep": inside}]}, separators=(",", ":")).encode()
    yield json.dumps({"a": json.dumps(inside), **event, "z": other.value.decode()}).encode()
    yield json.dumps({"a": list(inside), **event, "z": {"deep": [f'"{word}": ' for word in inside]}}).encode()


@each_in_json
def test_an_event_inside_an_event_is_not_read(fixture):
    """Whatever the order of the decoders: the fields at the top decide."""
    one_of_each = {other.source: other for other in IN_JSON if changes_of(other.answer) and other is not fixture}
    for other in one_of_each.values():
        for value in nestings(fixture, other):
            event = fixture.with_value(value)
            for decoders in (DECODERS, DECODERS[::-1]):
                answer = decode(event, decoders)
                if isinstance(fixture.answer, BadEvent):
                    assert isinstance(answer, BadEvent)
                else:
                    assert answer == fixture.answer, (other.name, value)


@given(
    prefix=st.sampled_from(
        [b"", b"\xc2\x01", b"\xc2\x01\x00\x02{}", b'{"event-id":', b'{"event-id":"x","identifier":', b'{"report-type":']
    ),
    rest=st.binary(max_size=300),
)
@example(b"", b'{"event-id":' + b"[" * 200_000)
@example(b"", b'{"event-id":' + b'{"a":' * 200_000)
@example(b"", b'{"event-id":' + b"9" * 100_000 + b"}")
@example(b"", b'{"event-id":' + b"[" * 900 + b"]" * 900 + b"}")
@example(b"", b"\xc2\x01\xff\xff" + b"[" * 65_535)
def test_no_bytes_raise(prefix, rest):
    ask(raw(prefix + rest))


HEADERS = BY_NAME["lakekeeper_update_table"].event.headers


@pytest.mark.parametrize("name", [name for name, _ in HEADERS])
@pytest.mark.parametrize("value", [b"", b"\xff", b"a\nb", b"x" * 5000, b"\x1f", None])
def test_a_bad_header_is_one_letter_at_most(name, value):
    """None: the header is missing."""
    fixture = BY_NAME["lakekeeper_update_table"]
    kept = tuple(header for header in HEADERS if header[0] != name)
    event = replace(fixture.event, headers=kept if value is None else (*HEADERS, (name, value)))
    answer = ask(event)
    assert isinstance(answer, BadEvent | NotACommit) or tables(answer) == tables(fixture.answer)
    assert_usable(LakekeeperDecoder().decode(event))


def test_earlier_versions_of_lakekeeper_join_levels_as_urls_do_and_do_not_tell_a_new_name():
    """lakekeeper 257dd0f9, `publisher.rs`: `to_url_string` for all events, no request for a rename or a creation."""
    created = BY_NAME["lakekeeper_create_table"].event
    headers = {**dict(created.headers), "ce_namespace": b"db\x1fother"}
    (table,) = tables(ask(replace(created, headers=tuple(headers.items()), value=b"null")))
    assert table[0] == ("db", "other")
    assert isinstance(ask(replace(BY_NAME["lakekeeper_rename_table"].event, value=b"null")), NotACommit)


def test_a_change_is_announced_once():
    first, second = changed(snapshot_id=1), changed(snapshot_id=2)
    place = LocationChanged("canonical", "e", "s3://a/b.metadata.json", 1)
    assert together("canonical", [first, place, second, place], "") == Several("canonical", (second, place))
    assert together("canonical", [first, second], "") == second
    assert together("canonical", [], "nothing") == NotACommit("canonical", "nothing")


def test_a_bad_part_of_an_event_drops_no_other():
    change, bad, other = changed(), BadEvent("missing_field", "first"), BadEvent("wrong_type", "second")
    assert together("canonical", [bad, change, other], "") == Several("canonical", (change,), bad)
    assert together("canonical", [bad, other], "") == bad
