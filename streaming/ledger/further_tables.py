"""Tables that the events of a batch name beyond one each: bounded, so that memory depends on no event.

One event can name a thousand tables, and a batch has thousands of events. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from compactor.table_names import TableName

MOST_FURTHER: Final = 10_000
"""Tables or metadata files of one batch beyond the first of each event, 2 kB each in the driver. As many tables are
kept once more, with what all further events say of them; sweeps find the commits of the rest."""

Row = dict[str, Any]
"""One table or metadata file that an event names, with the columns of `event_reader.HEARD_SCHEMA`."""


def bounded(events: Iterable[Iterable[Row]]) -> Iterator[Row]:
    """The rows of a batch, by event; the first row of each event and `MOST_FURTHER` others as they are.

    Of the rest, one row for each table at the end: it asks for a look at the table. Then, for each source of rows for
    which there is no more room, a row with `source` and `left_out`, their number.
    """
    room, joined, left_out = MOST_FURTHER, dict[tuple[Any, ...], Row](), Counter[str]()
    for rows in events:
        for number, row in enumerate(rows):
            if number == 0:
                yield row
            elif room > 0:
                room -= 1
                yield row
            elif (subject := _subject(row)) in joined or len(joined) < MOST_FURTHER:
                joined[subject] = _newer(joined.get(subject, row), row)
            else:
                left_out[row["source"]] += 1
    yield from joined.values()
    yield from ({"source": source, "left_out": number} for source, number in left_out.items())


def _subject(row: Row) -> tuple[Any, ...]:
    if row["metadata_location"] is not None:
        return row["source"], row["metadata_location"].rpartition("/")[0]
    return row["source"], row["writes"], row["catalog"], row["namespace"], row["name"]


def _newer(one: Row, other: Row) -> Row:
    """The newer of two rows of a table; without a snapshot, whose look might be left out, if they differ in it."""
    newer = max(one, other, key=lambda row: row["timestamp_ms"])  # the first of two that are equally new
    if one.get("snapshot_id") == other.get("snapshot_id"):
        return newer
    return {**newer, "snapshot_id": None}


@dataclass
class Groups:
    """Numbers of events by the tables that they name: of each event the first, and of others `MOST_FURTHER` in all.

    `left_out`: tables that events name and their groups have not.
    """

    events: Counter[tuple[TableName, ...]] = field(default_factory=Counter)
    left_out: int = 0
    _room: int = MOST_FURTHER

    def add(self, tables: Sequence[TableName]) -> None:
        """Count an event of these tables, at least one."""
        group = tuple(tables)
        if group not in self.events:
            group = group[: 1 + self._room]
            self.left_out += len(tables) - len(group)
            self._room -= 0 if group in self.events else len(group) - 1
        self.events[group] += 1
