"""Hostile commit events: what somebody who may write to the topic could send. The same events for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from streaming.commit_events.decoder import MAX_EVENT_BYTES
from tests.contracts.commit_event_fixtures import BY_NAME, FULL
from tests.contracts.test_kafka_connect_events import HOSTILE_TYPES, framed, record_of

VALID = [fixture.event.value for fixture in BY_NAME.values() if fixture.event.value is not None]
NAMES = (
    "<script>alert(1)</script>", "../../../etc/passwd", "'; DROP TABLE t; --", "t`; DROP TABLE `u", "a" * 5000, "",
    "\x1b[2J\x1b[31m", "line\nforged log line", "\u202egnp.exe", "\ud800", "\x00", "${jndi:ldap://x/y}", "%s%n%x",
    "{0.__class__}", "db.t.u", "lake", ".", "..", "*", "t\r\nX-Header: 1", "\N{ZERO WIDTH SPACE}", "\U0001d565" * 300,
)  # fmt: skip
NUMBERS = (0, -1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), float("inf"), 1.5, True, None)


def hostile_events(seed: int, count: int) -> Iterator[bytes | None]:
    """`count` values of records; of some the reader sees a mark of a known format, of some nothing it knows."""
    rng = random.Random(seed)
    makers: tuple[tuple[Callable[[random.Random], bytes | None], int], ...] = (
        (_flipped, 30), (_cut, 10), (_spliced, 10), (_wrong_fields, 25), (_hostile_names, 15), (_hostile_schema, 4),
        (_noise, 4), (_deep, 1), (_many_keys, 0), (_tombstone, 1),
    )  # fmt: skip
    chosen = [maker for maker, weight in makers for _ in range(weight)]
    for number in range(count):
        # The large ones are rare: a hundred of them fill as much of a topic as all others.
        yield (_oversize if number % 2000 == 0 else _many_keys if number % 1000 == 1 else rng.choice(chosen))(rng)


def _flipped(rng: random.Random) -> bytes:
    """A valid event with a few other bits."""
    value = bytearray(rng.choice(VALID))
    for _ in range(rng.randint(1, 8)):
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    return bytes(value)


def _cut(rng: random.Random) -> bytes:
    value = rng.choice(VALID)
    start = rng.randrange(len(value))
    return value[start:] if rng.random() < 0.3 else value[:start]


def _spliced(rng: random.Random) -> bytes:
    """The beginning of one and the end of another."""
    first, second = rng.choice(VALID), rng.choice(VALID)
    return first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :]


def _wrong_fields(rng: random.Random) -> bytes:
    """JSON with values of other types at any place."""
    event: dict[str, Any] = json.loads(json.dumps(FULL))
    for _ in range(rng.randint(1, 4)):
        where = event["identifier"] if rng.random() < 0.3 and isinstance(event.get("identifier"), dict) else event
        where[rng.choice([*where, "new"])] = _value(rng, 3)
    return json.dumps(event).encode("utf-8", "surrogatepass")


def _value(rng: random.Random, depth: int) -> Any:
    match rng.randrange(5 if depth else 3):
        case 0:
            return rng.choice(NUMBERS)
        case 1:
            return rng.choice(NAMES)
        case 2:
            return rng.choice([[], {}, [None], ""])
        case 3:
            return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(NAMES): _value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _hostile_names(rng: random.Random) -> bytes:
    """Well formed, for a table, a catalog, a request or a snapshot of hostile names."""
    event: dict[str, Any] = json.loads(json.dumps(FULL))
    event["identifier"] = {
        "namespace": [rng.choice(NAMES) for _ in range(rng.randint(0, 3))],
        "name": rng.choice(NAMES),
    }
    event[rng.choice(["catalog", "source", "event-id", "ref-name", "metadata-location"])] = rng.choice(NAMES)
    if rng.random() < 0.3:
        event["operation-type"] = "compaction-requested"
        event["summary"] = {"firnline.request": rng.choice(NAMES)}
    return json.dumps(event).encode("utf-8", "surrogatepass")


def _hostile_schema(rng: random.Random) -> bytes:
    """An Avro event whose schema would exhaust a reader."""
    kind = rng.choice(list(HOSTILE_TYPES.values()))
    head = [{"name": "type", "type": "int"}, {"name": "payload", "type": record_of("P", kind)}]
    datum = b"\x06" + rng.randbytes(rng.randrange(200))
    value: bytes = framed({"type": "record", "name": "Event", "fields": head}, datum).value
    return value


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(300))


def _deep(rng: random.Random) -> bytes:
    """Nested deeper than a recursive reader can follow."""
    return rng.choice([b"[", b'{"a":']) * rng.randrange(1_000, 100_000)


def _many_keys(rng: random.Random) -> bytes:
    """Nearly as large as is read."""
    event = {**FULL, **{f"k{number}": rng.random() for number in range(20_000)}}
    return json.dumps(event).encode()[:MAX_EVENT_BYTES]


def _oversize(rng: random.Random) -> bytes:
    return json.dumps(FULL).encode() + b" " * (MAX_EVENT_BYTES + rng.randrange(3))


def _tombstone(_rng: random.Random) -> None:
    return None
