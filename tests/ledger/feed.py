"""Commit events on their way to the ledger: late, out of order, more than once, or never."""

from __future__ import annotations

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from compactor.table_names import TableName
from streaming.commit_events.canonical import encode
from streaming.commit_events.decoder import TableChanged
from streaming.intake.event_query import _row, heard_of
from streaming.intake.event_sources import EventSources
from streaming.intake.heard import Heard
from streaming.intake.records import Named, named, record_of

CATALOG = "lake"
NOW, READ, LATER, BARE, LOST = "now", "now, and one look", "later", "later, without a snapshot", "lost"
FULL = "now, while the disk is full"
TOLD = (NOW, NOW, NOW, READ, READ, FULL, LATER, BARE, LOST)
"""How the ledger hears of a change, as often as it is drawn."""


@dataclass(frozen=True)
class Sent:
    """One record of the topic, and which change of its table it announces."""

    table: TableName
    change: int
    value: bytes


@dataclass
class Feed:
    """The topic of one sequence.

    Attributes:
        sent: All records, in order.
        pending: Those that the ledger has not read yet.
        changes: How often each table was changed, announced or not.
    """

    sent: list[Sent] = field(default_factory=list)
    pending: list[Sent] = field(default_factory=list)
    changes: dict[TableName, int] = field(default_factory=lambda: defaultdict(int))

    def changed(self, table: TableName) -> None:
        """The table is not what it was, and nobody says so."""
        self.changes[table] += 1

    def announce(
        self, table: TableName, now_ms: int, snapshot_id: int | None, operation: str | None, *, bare: bool
    ) -> None:
        """Send an event about the newest change. `bare`: it names no snapshot and no operation."""
        event = TableChanged(
            source="canonical",
            event_id=str(uuid.uuid4()),
            catalog=table.catalog,
            namespace=table.namespace,
            name=table.name,
            timestamp_ms=now_ms,
            snapshot_id=None if bare else snapshot_id,
            operation=None if bare else operation,
        )
        one = Sent(table, self.changes[table], encode(event)[1])
        self.sent.append(one)
        self.pending.append(one)

    def take(self, count: int, seed: int) -> list[Sent]:
        """Some pending records in another order; they are read now."""
        chosen = random.Random(seed).sample(self.pending, min(count, len(self.pending)))
        self.pending = [one for one in self.pending if one not in chosen]
        return chosen

    def again(self, count: int, seed: int) -> list[Sent]:
        """Some records of the topic once more, in another order."""
        return random.Random(seed).sample(self.sent, min(count, len(self.sent)))


def heard(records: Iterable[Sent]) -> Sequence[Heard]:
    """The records as the driver gets them from the query of commit events."""
    found = []
    for record in records:
        fields = {
            "value": record.value,
            "bytes": len(record.value),
            "timestamp_ms": json.loads(record.value)["timestamp-ms"],
        }
        (decoded,) = named(record_of(fields), EventSources((CATALOG,)))
        assert isinstance(decoded, Named), decoded
        event = heard_of(_row(decoded))
        assert isinstance(event, Heard)
        found.append(event)
    return found
