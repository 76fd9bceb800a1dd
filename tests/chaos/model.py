"""What the table must hold: the writers' operations applied one after the other, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field

Row = tuple[str, str]
"""(v, p): the value and the partition of an id."""


@dataclass
class SerialModel:
    """Rows by id, and what they were at each snapshot that a writer or the compactor has made."""

    rows: dict[int, Row] = field(default_factory=dict)
    at_snapshot: dict[int, dict[int, Row]] = field(default_factory=dict)
    next_id: int = 0

    def note(self, snapshot_id: int | None) -> None:
        """The table's head now holds exactly `rows`."""
        if snapshot_id is not None:
            self.at_snapshot[snapshot_id] = dict(self.rows)

    def new_ids(self, count: int) -> list[int]:
        """Ids nobody has used."""
        first, self.next_id = self.next_id, self.next_id + count
        return list(range(first, self.next_id))

    def go_back(self, snapshot_id: int) -> None:
        """The table was rolled back."""
        self.rows = dict(self.at_snapshot[snapshot_id])
