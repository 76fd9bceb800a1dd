"""Hostile commit events: what somebody who may write to the topic could send. The same events for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from streaming.commit_events.decoder import MAX_EVENT_BYTES
from tests.contracts.commit_event_fixtures import FULL
from tests.contracts.commit_event_mutations import mutated_events
from tests.contracts.test_kafka_connect_events import HOSTILE_TYPES, framed, record_of

NAMES = (
    "<script>alert(1)</script>", "../../../etc/passwd", "'; DROP TABLE t; --", "t`; DROP TABLE `u", "a" * 5000, "",
    "\x1b[2J\x1b[31m", "line\nforged log line", "\u202egnp.exe", "\ud800", "\x00", "${jndi:ldap://x/y}", "%s%n%x",
    "{0.__class__}", "db.t.u", "lake", ".", "..", "*", "t\r\nX-Header: 1", "\N{ZERO WIDTH SPACE}", "\U0001d565" * 300,
)  # fmt: skip


def hostile_events(seed: int, count: int) -> Iterator[bytes | None]:
    """`count` values of records; of some the reader sees a mark of a known format, of some nothing it knows."""
    rng, damaged = random.Random(seed), (event.value for event in mutated_events(seed, count))
    makers: tuple[tuple[Callable[[random.Random], bytes | None], int], ...] = (
        (lambda _: next(damaged), 79), (_hostile_names, 15), (_hostile_schema, 4), (_deep, 1), (lambda _: None, 1),
    )  # fmt: skip
    chosen = [maker for maker, weight in makers for _ in range(weight)]
    for number in range(count):
        # The large ones are rare: a hundred of them fill as much of a topic as all others.
        yield (_oversize if number % 2000 == 0 else _many_keys if number % 1000 == 1 else rng.choice(chosen))(rng)


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


def _deep(rng: random.Random) -> bytes:
    """Nested deeper than a recursive reader can follow."""
    return rng.choice([b"[", b'{"a":']) * rng.randrange(1_000, 100_000)


def _many_keys(rng: random.Random) -> bytes:
    """Nearly as large as is read."""
    event = {**FULL, **{f"k{number}": rng.random() for number in range(20_000)}}
    return json.dumps(event).encode()[:MAX_EVENT_BYTES]


def _oversize(rng: random.Random) -> bytes:
    return json.dumps(FULL).encode() + b" " * (MAX_EVENT_BYTES + rng.randrange(3))
