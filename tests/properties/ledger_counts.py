"""A ledger's store in memory, and what a store holds in a form that compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import (
    LedgerStore,
    unpack,
)
from compactor.partitions import PartitionKey


def plain(counts: PartitionCounts) -> tuple[Any, ...]:
    """Everything but the time of the last change, which is no count."""
    *numbers, _changed_ms, equality_deletes = counts.to_list()
    return (*numbers, equality_deletes)


def counted_in(store: LedgerStore) -> dict[PartitionKey, PartitionCounts]:
    pairs = [pair for _, packed in store.slots() for pair in unpack(packed)]
    assert len(pairs) == len({key for key, _ in pairs}), "a partition is kept in two slots"
    return dict(pairs)


class DictionaryStore:
    """A `LedgerStore` in memory: the reference for the database."""

    def __init__(self) -> None:
        self._head: str | None = None
        self._slots: dict[int, bytes] = {}

    def head(self) -> str | None:
        return self._head

    def put_head(self, text: str) -> None:
        self._head = text

    def slot(self, number: int) -> bytes | None:
        return self._slots.get(number)

    def put_slot(self, number: int, packed: bytes | None) -> None:
        if packed is None:
            self._slots.pop(number, None)
        else:
            self._slots[number] = packed

    def slots(self) -> Iterator[tuple[int, bytes]]:
        return iter(list(self._slots.items()))

    def clear(self) -> None:
        self._head = None
        self._slots.clear()
