"""What a ledger's store holds, in a form that compares, and the file sizes of its tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import (
    LedgerStore,
    unpack,
)
from compactor.partitions import PartitionKey

SIZES = st.lists(st.sampled_from([1, 10, 749, 750, 751, 1500, 1501, 10_000]), min_size=1, max_size=3)
TARGET = "write.target-file-size-bytes"


def plain(counts: PartitionCounts) -> tuple[Any, ...]:
    """Everything but the time of the last change, which is no count."""
    *numbers, _changed_ms, equality_deletes = counts.to_list()
    return (*numbers, equality_deletes)


def counted_in(store: LedgerStore) -> dict[PartitionKey, PartitionCounts]:
    pairs = [pair for _, packed in store.slots() for pair in unpack(packed)]
    assert len(pairs) == len({key for key, _ in pairs}), "a partition is kept in two slots"
    return dict(pairs)
