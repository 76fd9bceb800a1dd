"""What the ledger asks of its store, of every store there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import SLOTS, Head, LedgerStore, Recount, pack, slot_of, unpack
from compactor.iceberg.tables import FileSizes
from compactor.partitions import PartitionKey
from compactor.storage.ledger_database import LedgerDatabase, TableState
from tests.properties.ledger_counts import DictionaryStore

Between = Callable[[LedgerStore], LedgerStore]
"""What happens to a store between two steps of a test; returns the store to go on with."""
KINDS = ("dictionary", "database", "database, saved", "database, saved and read by another look", "database, reopened")


class Stores:
    """One kind of store. `next` is called between the steps of a test."""

    def __init__(self, kind: str, file: Path) -> None:
        self.kind = kind
        self._file = file
        self._database = None if kind == "dictionary" else LedgerDatabase(file)
        self.first: LedgerStore = DictionaryStore() if self._database is None else self._database.state("t")

    def next(self, store: LedgerStore) -> LedgerStore:
        if self._database is None or self.kind == "database":
            return store
        assert isinstance(store, TableState)
        store.save()
        if self.kind == "database, saved":
            return store
        if self.kind == "database, reopened":
            self._database.close()
            self._database = LedgerDatabase(self._file)
        return self._database.state("t")

    def close(self) -> None:
        if self._database is not None:
            self._database.close()


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    made = Stores(request.param, tmp_path / "ledger.sqlite")
    yield made
    made.close()


@pytest.fixture
def store(stores: Stores) -> LedgerStore:
    return stores.first


@pytest.fixture
def between(stores: Stores) -> Between:
    return stores.next


def test_a_new_store_is_empty(store: LedgerStore) -> None:
    assert store.head() is None
    assert store.slot(0) is None
    assert list(store.slots()) == []


def test_the_head_is_what_was_put_last(store: LedgerStore, between: Between) -> None:
    store.put_head("one")
    store = between(store)
    assert store.head() == "one"
    store.put_head("zwei · 二")
    assert store.head() == "zwei · 二"
    store = between(store)
    assert store.head() == "zwei · 二"


def test_slots_are_apart_and_come_back_as_bytes(store: LedgerStore, between: Between) -> None:
    store.put_slot(0, b"\x00\xff")
    store.put_slot(SLOTS - 1, b"")
    store = between(store)
    store.put_slot(0, b"again")
    for _ in range(2):
        assert (store.slot(0), store.slot(SLOTS - 1), store.slot(1)) == (b"again", b"", None)
        assert sorted(store.slots()) == [(0, b"again"), (SLOTS - 1, b"")]
        assert all(type(packed) is bytes for _, packed in store.slots())
        store = between(store)


def test_a_head_can_be_replaced_without_a_word_about_the_slots(store: LedgerStore, between: Between) -> None:
    store.put_head("one")
    store.put_slot(3, b"x")
    store = between(store)
    store.put_head("two")
    store = between(store)
    assert (store.head(), list(store.slots())) == ("two", [(3, b"x")])
    store.put_slot(3, b"y")
    store = between(store)
    assert (store.head(), list(store.slots())) == ("two", [(3, b"y")])


def test_a_slot_can_be_removed_even_if_it_never_was(store: LedgerStore, between: Between) -> None:
    store.put_slot(3, b"x")
    store = between(store)
    store.put_slot(3, None)
    store.put_slot(4, None)
    for _ in range(2):
        assert store.slot(3) is None
        assert list(store.slots()) == []
        store = between(store)


def test_clearing_forgets_head_and_slots(store: LedgerStore, between: Between) -> None:
    store.put_head("one")
    store.put_slot(3, b"x")
    store.put_slot(4, b"x")
    store = between(store)
    store.clear()
    assert (store.head(), store.slot(3), list(store.slots())) == (None, None, [])
    store.put_slot(3, b"y")
    assert list(store.slots()) == [(3, b"y")]
    store = between(store)
    assert (store.head(), store.slot(4), list(store.slots())) == (None, None, [(3, b"y")])


def test_a_store_that_was_cleared_stays_empty(store: LedgerStore, between: Between) -> None:
    store.put_head("one")
    store.put_slot(3, b"x")
    store = between(store)
    store.clear()
    store = between(store)
    assert (store.head(), list(store.slots())) == (None, [])


def test_slots_may_be_written_while_they_are_read(store: LedgerStore, between: Between) -> None:
    for number in range(3):
        store.put_slot(number, b"x")
    store = between(store)
    for read, _ in enumerate(store.slots()):
        store.put_slot(100 + read, b"new")
    assert len(list(store.slots())) == 6


def test_packed_counts_and_heads_come_back() -> None:
    counts = {
        PartitionKey(0, '["ü",null]'): PartitionCounts(1, 2, 3, 4, 5, 6, 7),
        PartitionKey(3, "[]"): PartitionCounts(),
    }
    assert dict(unpack(pack(counts.items()))) == counts
    for recount in (None, Recount(5, 2, "first_sight")):
        head = Head("uuid", 7, FileSizes(100, 75), PartitionCounts(1, 2, 3, 4, 5, 6, 7), -2, recount, begun_anew=3)
        assert Head.from_json(head.to_json()) == head


def test_a_partition_has_one_slot_for_good() -> None:
    """State outlives the process: another hash would count every partition twice."""
    assert [slot_of(PartitionKey(0, values)) for values in ('["a"]', '["b"]', "[]")] == [246, 175, 45]
    assert {slot_of(PartitionKey(1, f"[{i}]")) for i in range(5000)} == set(range(SLOTS))
