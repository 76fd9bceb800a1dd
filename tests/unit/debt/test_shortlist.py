"""A shortlist keeps the most urgent partitions and exact sums over all others, whole or joined from slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from compactor.debt.board import PartitionCounts, PartitionDebt, Remainder, TableDebt
from compactor.debt.ledger import slot_of
from compactor.debt.shortlist import Shortlist
from compactor.partitions import PartitionKey
from compactor.table_names import TableName

Counted = list[tuple[PartitionKey, PartitionCounts]]
TABLE = TableName("lake", ("db",), "t")


def judged(key: PartitionKey, counts: PartitionCounts) -> PartitionDebt:
    due = counts.small_files % 3 == 0
    return PartitionDebt(key, {"p": key.values}, None, counts, due, "so it is", large_bytes=counts.delete_files)


def partition(number: int, small: int, size: int, deletes: int) -> tuple[PartitionKey, PartitionCounts]:
    key = PartitionKey(number % 2, f"[{number}]")
    return key, PartitionCounts(small + 1, small, size + 9, size, deletes)


def numbered(values: Sequence[tuple[int, int, int]]) -> Counted:
    return [partition(number, *each) for number, each in enumerate(values)]


PARTITIONS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100), st.integers(0, 2)), max_size=60).map(
    numbered
)  # few different values: ties are the rule


def in_debt(counted: Counted) -> list[PartitionDebt]:
    """All partitions with debt, the most urgent first, by sorting all of them."""
    debts = [judged(key, counts) for key, counts in counted if counts.small_files or counts.delete_files]
    return sorted(
        debts, key=lambda each: (each.due, each.counts.small_files, each.counts.delete_files, each.key), reverse=True
    )


def sums(debts: Iterable[PartitionDebt]) -> Remainder:
    debts = list(debts)
    due = [each for each in debts if each.due]
    return Remainder(
        len(debts),
        sum(each.counts.small_files for each in debts),
        sum(each.counts.small_bytes for each in debts),
        len(due),
        sum(each.counts.small_files for each in due),
        sum(each.counts.small_bytes for each in due),
        sum(each.large_bytes for each in due),
    )


def total(shortlist: Shortlist) -> Remainder:
    return sums(shortlist.kept.values()).joined(shortlist.others)


def slots(counted: Counted) -> list[Counted]:
    by_slot: dict[int, Counted] = {}
    for each in counted:
        by_slot.setdefault(slot_of(each[0]) % 5, []).append(each)
    return list(by_slot.values())


@given(PARTITIONS, st.integers(0, 70))
def test_a_shortlist_is_what_sorting_all_partitions_gives(counted: Counted, most: int) -> None:
    everything = in_debt(counted)
    for shortlist in (Shortlist.of(counted, judged, most), Shortlist.of(counted[::-1], judged, most)):
        assert list(shortlist.kept.items()) == [(debt.key, debt) for debt in everything[:most]]
        assert shortlist.others == sums(everything[most:])


@given(PARTITIONS, st.integers(0, 70), st.integers(0, 70))
def test_joined_slots_have_exact_sums_whatever_is_kept(counted: Counted, of_a_slot: int, most: int) -> None:
    joined = Shortlist.joined((Shortlist.of(slot, judged, of_a_slot) for slot in slots(counted)), most)
    assert total(joined) == sums(in_debt(counted))
    assert len(joined.kept) <= most


@given(PARTITIONS, st.integers(0, 70))
def test_joined_slots_are_the_list_of_all_while_each_slot_keeps_its_own(counted: Counted, most: int) -> None:
    parts = slots(counted)
    of_a_slot = max(map(len, parts), default=0)
    joined = Shortlist.joined((Shortlist.of(slot, judged, of_a_slot) for slot in parts), most)
    expected = Shortlist.of(counted, judged, most)
    assert list(joined.kept.items()) == list(expected.kept.items())
    assert joined.others == expected.others


@given(PARTITIONS, st.integers(0, 70))
def test_a_tables_due_sums_are_exact_however_few_partitions_are_kept(counted: Counted, most: int) -> None:
    shortlist = Shortlist.of(counted, judged, most)
    debt = TableDebt(TABLE, 1, shortlist.kept, others=shortlist.others)
    everything = sums(in_debt(counted))
    assert (debt.due_partitions, debt.due_files, debt.due_bytes, debt.due_large_bytes) == everything[3:]
    assert debt.has_work is (everything.due_partitions > 0 and most > 0)
