"""Damaged and random commit events: mutations of all fixtures in bytes, JSON and headers, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from streaming.commit_events.decoder import RawEvent
from tests.contracts.commit_event_fixtures import ARRIVED_MS, FIXTURES, Fixture

IN_JSON = [fixture for fixture in FIXTURES if fixture.value.lstrip()[:1] == b"{"]
EVENTS = {fixture.name: json.loads(fixture.value) for fixture in IN_JSON}
KEYS = sorted({key for event in EVENTS.values() for key in event})
WORDS = (
    *KEYS, "", " ", "a.b.c", "a/b", "`a`.b", "\x1f", "\x00", "\ud800", "a\nb", "x" * 5000, "%FF", "%", "s3://a/b",
    "null", "AFTER_UPDATE_TABLE", "CONTENT_STORED", "commit-report", "ObjectCreated:Put", "aws:s3", "aws.glue",
    "COMPLETE", "a/v1.metadata.json", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
    "٣", "-0",
)  # fmt: skip
NUMBERS = (0, -1, 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308, True, False, None)
BYTES = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\x00",
    b"\xff",
    b"\xc3\x28",
    b" ",
    b"0",
)

Mutation = Callable[[random.Random, Fixture], RawEvent]


def mutated_events(seed: int, count: int) -> Iterator[RawEvent]:
    """`count` events, of which about one in ten is random and not made of a fixture."""
    chance = random.Random(seed)
    mutations: tuple[tuple[Mutation, int], ...] = (
        (_flipped, 20), (_inserted, 15), (_cut, 8), (_spliced, 8), (_rewritten, 30), (_nested, 5), (_merged, 5),
        (_headers, 8), (_encoded, 2), (_random_bytes, 4), (_random_json, 6),
    )  # fmt: skip
    chosen = [mutation for mutation, weight in mutations for _ in range(weight)]
    for _ in range(count):
        yield chance.choice(chosen)(chance, chance.choice(FIXTURES))


def _flipped(chance: random.Random, fixture: Fixture) -> RawEvent:
    value = bytearray(fixture.value)
    for _ in range(chance.randint(1, 6)):
        value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
    return fixture.with_value(bytes(value))


def _inserted(chance: random.Random, fixture: Fixture) -> RawEvent:
    """Other bytes in a few places: instead of what was there, or before it."""
    value = fixture.value
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(value) + 1)
        value = value[:at] + chance.choice(BYTES) + value[at + chance.randint(0, 2) :]
    return fixture.with_value(value)


def _cut(chance: random.Random, fixture: Fixture) -> RawEvent:
    start, end = sorted(chance.randrange(len(fixture.value) + 1) for _ in range(2))
    return fixture.with_value(fixture.value[start:end] if chance.random() < 0.3 else fixture.value[:end])


def _spliced(chance: random.Random, fixture: Fixture) -> RawEvent:
    """The beginning of one and the end of another."""
    other = chance.choice(FIXTURES).value
    at = chance.randrange(len(fixture.value))
    return fixture.with_value(fixture.value[:at] + other[chance.randrange(len(other)) :])


def _rewritten(chance: random.Random, _fixture: Fixture) -> RawEvent:
    """JSON with a few values that are other, missing or in the place of each other."""
    fixture = chance.choice(IN_JSON)
    event = json.loads(fixture.value)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(event))
        if not places:
            break
        where, key = chance.choice(places)
        elsewhere, other = chance.choice(places)
        match chance.randrange(5):
            case 0:
                where.pop(key)
            case 1:
                where[key] = deepcopy(elsewhere[other])
            case 2 if isinstance(where, dict):
                where[chance.choice(WORDS)] = where.pop(key)
            case _:
                where[key] = _value(chance, 2)
    return fixture.with_value(_json(event))


def _nested(chance: random.Random, _fixture: Fixture) -> RawEvent:
    fixture, inside = chance.choice(IN_JSON), chance.choice(IN_JSON)
    event = json.loads(fixture.value)
    where, key = chance.choice(list(_places(event)))
    where[key] = chance.choice([EVENTS[inside.name], json.dumps(EVENTS[inside.name]), inside.value.decode()])
    return fixture.with_value(_json(event))


def _merged(chance: random.Random, _fixture: Fixture) -> RawEvent:
    """An event with the fields of several formats."""
    event = {
        key: value for _ in range(chance.randint(2, 3)) for key, value in chance.choice(list(EVENTS.values())).items()
    }
    keys = chance.sample(sorted(event), len(event))
    return chance.choice(IN_JSON).with_value(_json({key: event[key] for key in keys}))


def _headers(chance: random.Random, fixture: Fixture) -> RawEvent:
    """Headers of a fixture that has some, damaged, on any event."""
    headers = list(chance.choice([each for each in FIXTURES if each.event.headers]).event.headers)
    for _ in range(chance.randint(0, 3)):
        name, value = headers[at := chance.randrange(len(headers))]
        word = chance.choice(WORDS).encode("utf-8", "surrogatepass")
        headers[at] = chance.choice(
            [(name, word), (word.decode("utf-8", "replace"), value), (name, value[1:] + b"\xff")]
        )
        if chance.random() < 0.3:
            del headers[chance.randrange(len(headers))]
    return replace(fixture.event, headers=tuple(headers))


def _encoded(chance: random.Random, _fixture: Fixture) -> RawEvent:
    fixture = chance.choice(IN_JSON)
    encoding = chance.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp037"])
    return fixture.with_value(fixture.value.decode().encode(encoding, "replace"))


def _random_bytes(chance: random.Random, fixture: Fixture) -> RawEvent:
    start = chance.choice([b"", b"{", b"\xc2\x01", fixture.value[:20]])
    return RawEvent(None, start + chance.randbytes(chance.randrange(400)), fixture.event.headers, ARRIVED_MS)


def _random_json(chance: random.Random, _fixture: Fixture) -> RawEvent:
    event = {chance.choice(WORDS): _value(chance, 4) for _ in range(chance.randrange(8))}
    return RawEvent(None, _json(event), (), chance.choice([0, ARRIVED_MS]))


def _value(chance: random.Random, depth: int) -> Any:
    match chance.randrange(5 if depth else 2):
        case 0:
            return chance.choice(NUMBERS)
        case 1:
            return chance.choice(WORDS)
        case 2:
            return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return {chance.choice(WORDS): _value(chance, depth - 1) for _ in range(chance.randrange(4))}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container inside a JSON value, with each of its keys or indexes."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inside in items:
        yield value, key
        yield from _places(inside)


def _json(event: Any) -> bytes:
    return json.dumps(event).encode("utf-8", "surrogatepass")
