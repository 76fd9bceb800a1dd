"""Which of the rewrites that the events of a batch request are kept. Anyone who may write to the topic can send them.

Each waits in memory and in a file until a look has found its table, or a run has done it. Many requests are only kept
for tables that are known: events can name any number of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from compactor.table_names import TableName
from streaming.logs.events import LOG

MOST_REQUESTS: Final = 100
"""Requested rewrites of one table that wait at a time, each with another filter."""
MOST_CHARACTERS: Final = 65_536
"""Of these filters: five thousand values of an IN."""
MOST_UNKNOWN_REQUESTS: Final = 1_000
"""Requested rewrites that wait of all tables that are not known: tables that were created since the last listing."""
MOST_UNKNOWN_CHARACTERS: Final = 262_144
"""Of the names and filters of these requests."""


class KeptRequests:
    """The requests of one batch. `waiting`: those that wait already. `kept`: what the batch adds to them."""

    def __init__(self, waiting: Mapping[TableName, tuple[str, ...]], is_known: Callable[[TableName], bool]) -> None:
        self.kept: dict[TableName, list[str]] = {}
        self._waiting = waiting
        self._is_known = is_known
        self._dropped: dict[str, list[TableName]] = {}

    def take(self, table: TableName, text: str) -> bool:
        """Keep a request; False: too many wait. A request that waits already is not kept twice."""
        waits = [*self._waiting.get(table, ()), *self.kept.get(table, ())]
        if text in waits:
            return True
        unknown = not self._is_known(table)
        too_many = self._too_many(waits, text) or (self._too_many_unknown(_size(table, text)) if unknown else None)
        if too_many is not None:
            self._dropped.setdefault(too_many, []).append(table)
            return False
        self.kept.setdefault(table, []).append(text)
        if unknown:
            self._unknown.update(requests=1, characters=_size(table, text))
        return True

    @cached_property
    def _unknown(self) -> Counter[str]:
        """What waits of tables that are not known. Most batches do not ask."""
        unknown = [table for table in self._waiting if not self._is_known(table)]
        sizes = [_size(table, text) for table in unknown for text in self._waiting[table]]
        return Counter(requests=len(sizes), characters=sum(sizes))

    def _too_many(self, waits: list[str], text: str) -> str | None:
        if len(waits) < MOST_REQUESTS and sum(map(len, (*waits, text))) <= MOST_CHARACTERS:
            return None
        return f"of one table, at most {MOST_REQUESTS} wait, with {MOST_CHARACTERS:,} characters in all"

    def _too_many_unknown(self, size: int) -> str | None:
        is_room = self._unknown["characters"] + size <= MOST_UNKNOWN_CHARACTERS
        if self._unknown["requests"] < MOST_UNKNOWN_REQUESTS and is_room:
            return None
        return (
            f"of tables that are not counted yet, at most {MOST_UNKNOWN_REQUESTS:,} wait, with "
            f"{MOST_UNKNOWN_CHARACTERS:,} characters in all"
        )

    def tell_of_dropped(self) -> None:
        """One warning for each reason, however many there are."""
        for reason, tables in self._dropped.items():
            LOG.warning(
                "%d requested rewrites are dropped, the first of %.200s: %s; send them again later",
                len(tables), tables[0], reason,
            )  # fmt: skip


def _size(table: TableName, text: str) -> int:
    return len(str(table)) + len(text)
