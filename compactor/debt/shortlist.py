"""A shortlist of a table's partitions with debt: the due ones and the worst as objects, sums over all others. Pure.

A table can have a million partitions with debt. An object for each takes gigabytes, and no reader looks at all of them:
the dispatcher needs sums and the due partitions, metrics the worst ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from compactor.debt.board import PartitionCounts, PartitionDebt, Remainder
from compactor.partitions import PartitionKey

KEPT = 2_000
"""Partitions of one table that are kept as objects, about 1 KB each."""
KEPT_OF_A_SLOT = 64
"""The same for one slot of the ledger's state: eight times its share, so that 2,000 partitions are always kept."""

Judged = Callable[[PartitionKey, PartitionCounts], PartitionDebt]


@dataclass(frozen=True)
class Shortlist:
    """Due partitions first, then those with most small files. `others`: sums over the rest."""

    kept: Mapping[PartitionKey, PartitionDebt] = field(default_factory=dict)
    others: Remainder = field(default_factory=Remainder)

    @classmethod
    def of(
        cls, partitions: Iterable[tuple[PartitionKey, PartitionCounts]], judged: Judged, most: int = KEPT
    ) -> Shortlist:
        """The shortlist of these partitions; those without debt are left out."""
        return cls._shortened((judged(key, counts) for key, counts in partitions if counts.has_debt), Remainder(), most)

    @classmethod
    def joined(cls, lists: Iterable[Shortlist], most: int = KEPT) -> Shortlist:
        """The shortlist of the partitions of several lists."""
        lists = list(lists)
        others = reduce(Remainder.joined, (each.others for each in lists), Remainder())
        return cls._shortened((debt for each in lists for debt in each.kept.values()), others, most)

    @classmethod
    def _shortened(cls, debts: Iterable[PartitionDebt], others: Remainder, most: int) -> Shortlist:
        ranked: list[tuple[tuple[bool, int, int], PartitionKey, PartitionDebt]] = []
        for debt in debts:
            entry = (debt.urgency, debt.key, debt)
            if len(ranked) < most:
                heapq.heappush(ranked, entry)
            else:
                others = others.plus(heapq.heappushpop(ranked, entry)[-1])
        return cls({debt.key: debt for *_, debt in sorted(ranked, reverse=True)}, others)
