"""What the ledger asks of its store, of every store there is; Spark's own state is met in the integration tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import SLOTS, DictionaryStore, Head, LedgerStore, Recount, pack, slot_of, unpack
from compactor.iceberg.tables import FileSizes
from compactor.partitions import PartitionKey
from streaming.ledger.operator import StateLedgerStore
from tests.contracts.state_handles import FakeMapState, FakeValueState

STORES: dict[str, Callable[[], LedgerStore]] = {
    "dictionary": DictionaryStore,
    "state": lambda: StateLedgerStore(FakeValueState(), FakeMapState()),
}


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest) -> LedgerStore:
    return STORES[request.param]()


def test_a_new_store_is_empty(store: LedgerStore) -> None:
    assert store.head() is None
    assert store.slot(0) is None
    assert list(store.slots()) == []


def test_the_head_is_what_was_put_last(store: LedgerStore) -> None:
    store.put_head("one")
    store.put_head("zwei · 二")
    assert store.head() == "zwei · 二"


def test_slots_are_apart_and_come_back_as_bytes(store: LedgerStore) -> None:
    store.put_slot(0, b"\x00\xff")
    store.put_slot(SLOTS - 1, b"")
    store.put_slot(0, b"again")
    assert (store.slot(0), store.slot(SLOTS - 1), store.slot(1)) == (b"again", b"", None)
    assert sorted(store.slots()) == [b"", b"again"]
    assert all(type(packed) is bytes for packed in store.slots())


def test_a_slot_can_be_removed_even_if_it_never_was(store: LedgerStore) -> None:
    store.put_slot(3, b"x")
    store.put_slot(3, None)
    store.put_slot(4, None)
    assert store.slot(3) is None
    assert list(store.slots()) == []


def test_clearing_forgets_head_and_slots(store: LedgerStore) -> None:
    store.put_head("one")
    store.put_slot(3, b"x")
    store.clear()
    assert (store.head(), store.slot(3), list(store.slots())) == (None, None, [])
    store.put_slot(3, b"y")
    assert list(store.slots()) == [b"y"]


def test_slots_may_be_written_while_they_are_read(store: LedgerStore) -> None:
    for number in range(3):
        store.put_slot(number, b"x")
    for read, _ in enumerate(store.slots()):
        store.put_slot(100 + read, b"new")
    assert len(list(store.slots())) >= 3


def test_packed_counts_and_heads_come_back() -> None:
    counts = {
        PartitionKey(0, '["ü",null]'): PartitionCounts(1, 2, 3, 4, 5, 6, 7),
        PartitionKey(3, "[]"): PartitionCounts(),
    }
    assert dict(unpack(pack(counts.items()))) == counts
    for recount in (None, Recount(5, 2, "first_sight")):
        head = Head("uuid", 7, FileSizes(100, 75), PartitionCounts(1, 2, 3, 4, 5, 6, 7), -2, recount)
        assert Head.from_json(head.to_json()) == head


def test_a_partition_has_one_slot_for_good() -> None:
    """State outlives the process: another hash would count every partition twice."""
    assert [slot_of(PartitionKey(0, values)) for values in ('["a"]', '["b"]', "[]")] == [246, 175, 45]
    assert {slot_of(PartitionKey(1, f"[{i}]")) for i in range(5000)} == set(range(SLOTS))
