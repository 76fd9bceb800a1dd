"""Unit costs of events: decoding in a Python worker; whose table it is and what it asks for, on the driver."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pyarrow as pa

from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.intake.event_query import EventDecoder
from streaming.intake.event_sources import EventSources
from streaming.intake.heard import Heard
from tests.benchmarks.scale.measured import CATALOG, fitted, ledger, processor_seconds

EVENTS = 20_000
BATCH = 1024
MEMBERS = (1, 4, 16)
TABLES = 2_000


def measure(folder: Path) -> dict[str, float]:
    """Processor seconds for one event."""
    batches = _batches()
    decoder = EventDecoder(EventSources((CATALOG,)), EVERYTHING)
    decode = processor_seconds(lambda: sum(each.num_rows for each in decoder.rows(iter(batches))), EVENTS)
    names = [TableName(CATALOG, ("db",), f"t{number:05d}") for number in range(TABLES)]
    points = []
    for count in MEMBERS:
        shard = Shard(0, count)
        seconds = processor_seconds(lambda shard=shard: sum(map(shard.owns, names)), TABLES)  # type: ignore[misc]
        points.append(((1.0, float(count)), seconds))
    owns, owns_member = fitted(points)
    parts = ledger(folder, {"type": "sql", "uri": "sqlite://"})
    heard = [Heard(names[number % TABLES], "canonical", 1, writes=True, snapshot_id=number) for number in range(EVENTS)]
    for name in names:
        parts.driver.tables.of(name).put(name, listed=True)
    alone = processor_seconds(lambda: parts.driver.hear(heard), EVENTS)
    parts.stop(1.0)
    return {
        "event_decode": decode,
        "event_owner": owns,
        "event_owner_member": owns_member,
        "event_inbox": max(0.0, alone - owns - owns_member),
    }


def _batches() -> list[pa.RecordBatch]:
    """Commit events as the query gets them: value, bytes, time."""
    values = []
    for number in range(EVENTS):
        changed = TableChanged(
            source="bench",
            event_id=str(uuid.UUID(int=number)),
            catalog=CATALOG,
            namespace=("db",),
            name=f"t{number % TABLES:05d}",
            timestamp_ms=int(time.time() * 1000),
            snapshot_id=number,
            operation="append",
        )
        values.append(canonical.encode(changed, sender="bench")[1])
    return [
        pa.RecordBatch.from_pydict(
            {
                "value": pa.array(values[first : first + BATCH], pa.binary()),
                "bytes": pa.array([len(value) for value in values[first : first + BATCH]], pa.int32()),
                "timestamp_ms": pa.array([1] * len(values[first : first + BATCH]), pa.int64()),
            }
        )
        for first in range(0, EVENTS, BATCH)
    ]
