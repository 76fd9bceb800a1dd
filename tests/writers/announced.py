"""What was announced: the events on the topics that the service reads, decoded by firnline's own decoders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from streaming.commit_events.decoder import RawEvent, TableChanged, changes_of, decode
from streaming.commit_events.formats import DECODERS
from tests.services.kafka_topics import records


def announced(records: Iterable[RawEvent]) -> dict[str, frozenset[int]]:
    """Snapshots that events name, by table in the namespace `db`."""
    found: dict[str, set[int]] = defaultdict(set)
    for record in records:
        for change in changes_of(decode(record, DECODERS)):
            if isinstance(change, TableChanged) and change.snapshot_id is not None:
                found[change.name].add(change.snapshot_id)
    return {table: frozenset(snapshots) for table, snapshots in found.items()}


def read(broker: str, topics: Sequence[str]) -> list[RawEvent]:
    """All committed records of the topics."""
    found = records(*topics, bootstrap_servers=broker, isolation_level="read_committed")
    return [RawEvent(each.key, each.value, tuple(each.headers), each.timestamp) for each in found]
