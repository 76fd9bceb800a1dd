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
        self._dropped: list[TableName] = []

    def take(self, table: TableName, text: str) -> bool:
        """Keep a request; False: too many wait. A request that waits already is not kept twice."""
        waits = [*self._waiting.get(table, ()), *self.kept.get(table, ())]
        if text in waits:
            return True
        added = Counter() if self._is_known(table) else _size(table, text)
        unknown = self._unknown + added if added else added
        is_room = len(waits) < MOST_REQUESTS and sum(map(len, (*waits, text))) <= MOST_CHARACTERS
        if not is_room or unknown["requests"] > MOST_UNKNOWN_REQUESTS or unknown["size"] > MOST_UNKNOWN_CHARACTERS:
            self._dropped.append(table)
            return False
        self.kept.setdefault(table, []).append(text)
        if added:
            self._unknown.update(added)
        return True

    @cached_property
    def _unknown(self) -> Counter[str]:
        """What waits of tables that are not known. Most batches do not ask."""
        unknown = [table for table in self._waiting if not self._is_known(table)]
        sizes = [_size(table, text) for table in unknown for text in self._waiting[table]]
        return sum(sizes, Counter())

    def tell_of_dropped(self) -> None:
        """One warning, however many there are."""
        if self._dropped:
            LOG.warning(
                "%d requested rewrites are dropped, the first of %.200s: too many wait, more than %d of one table with "
                "%d characters in all, or %d of tables that are not counted yet with %d; send them again later",
                len(self._dropped), self._dropped[0], MOST_REQUESTS, MOST_CHARACTERS, MOST_UNKNOWN_REQUESTS,
                MOST_UNKNOWN_CHARACTERS,
            )  # fmt: skip


def _size(table: TableName, text: str) -> Counter[str]:
    return Counter(requests=1, size=len(str(table)) + len(text))
