"""What was announced: the events on the topics that the service reads, decoded by firnline's own decoders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from streaming.commit_events.decoder import RawEvent, TableChanged, changes_of, decode
from streaming.commit_events.formats import DECODERS

POLL_MS = 1000
EMPTY_POLLS = 3
"""After which a topic counts as read: markers of transactions are no records, but have offsets."""


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
    consumer = KafkaConsumer(
        bootstrap_servers=broker, enable_auto_commit=False, group_id=None, isolation_level="read_committed"
    )
    try:
        partitions = [
            TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or ()
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        found: list[RawEvent] = []
        empty = 0
        while empty < EMPTY_POLLS:
            records: list[Any] = [each for batch in consumer.poll(timeout_ms=POLL_MS).values() for each in batch]
            empty = 0 if records else empty + 1
            found += [RawEvent(each.key, each.value, tuple(each.headers), each.timestamp) for each in records]
        return found
    finally:
        consumer.close()
