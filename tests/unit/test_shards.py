"""Each table has one owner among the members; a member that joins or leaves moves only its share."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.shards import EVERYTHING, NOBODY, Shard, owner
from compactor.table_names import TableName

NAMES = st.sets(st.text(min_size=1, max_size=12), min_size=1, max_size=6)
TABLES = st.builds(
    TableName,
    st.text(max_size=5),
    st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
    st.text(max_size=8),
)


def tables(count: int) -> list[TableName]:
    return [TableName("lake", ("db",), f"events_{number}") for number in range(count)]


def owner_of(table: TableName, members: tuple[str, ...]) -> str:
    (one,) = [me for me in members if Shard(me, members).owns(table)]
    return one


@given(NAMES, TABLES)
def test_each_table_has_exactly_one_owner_whatever_the_order_of_the_members(names: set[str], table: TableName) -> None:
    members = tuple(sorted(names))
    assert owner_of(table, members) == owner_of(table, members[::-1])


def test_all_spellings_of_a_name_have_one_owner() -> None:
    """Catalogs that do not distinguish capitals find a table by any of them."""
    shard = Shard("a", ("a", "b"))
    for table in tables(20):
        assert shard.owns(TableName("lake", ("DB",), table.name.upper())) == shard.owns(table)
        other = TableName("Lake", ("CAFÉ",), table.name)
        assert shard.owns(other) == shard.owns(TableName("lake", ("café",), table.name))


@given(NAMES, st.text(min_size=1, max_size=12), st.lists(TABLES, max_size=20))
def test_a_new_member_only_takes_tables_to_itself(names: set[str], new: str, some: list[TableName]) -> None:
    before, after = tuple(sorted(names - {new})), tuple(sorted(names | {new}))
    for table in some if before else ():
        assert owner_of(table, after) in {owner_of(table, before), new}


@given(NAMES, st.integers(0, 100), st.integers(0, 2**62))
def test_each_record_has_exactly_one_owner(names: set[str], partition: int, offset: int) -> None:
    members = tuple(names)
    assert sum(Shard(me, members).owns_record("commits", partition, offset) for me in members) == 1


@pytest.mark.parametrize(
    ("count", "services", "spread"),
    [(200, 2, 0.25), (200, 3, 0.25), (200, 5, 0.5), (10_000, 8, 0.1)],
)
def test_the_tables_are_balanced(count: int, services: int, spread: float) -> None:
    """`spread`: how far the share of a service may be from the mean."""
    members = tuple(f"firnline-{number}" for number in range(services))
    counts = {me: sum(Shard(me, members).owns(table) for table in tables(count)) for me in members}
    assert sum(counts.values()) == count
    mean = count / services
    assert all(abs(counts[me] - mean) <= spread * mean for me in members), counts


def test_a_member_that_leaves_spreads_its_tables_over_all_others() -> None:
    members = tuple(f"firnline-{number}" for number in range(5))
    moved = [table for table in tables(2000) if owner_of(table, members) == "firnline-2"]
    taken = Counter(owner_of(table, tuple(me for me in members if me != "firnline-2")) for table in moved)
    assert len(taken) == 4
    assert min(taken.values()) > len(moved) / 4 * 0.7


def test_the_owner_does_not_depend_on_the_process() -> None:
    """Python's own hash of text differs between processes: two services would both own a table, or none."""
    code = (
        "from compactor.shards import Shard; from compactor.table_names import TableName\n"
        "m = ('a', 'b', 'c'); t = [TableName('lake', ('db',), f'events_{n}') for n in range(50)]\n"
        "print([next(me for me in m if Shard(me, m).owns(x)) for x in t])"
    )
    runs = {subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout for _ in range(2)}
    assert len(runs) == 1
    members = ("a", "b", "c")
    assert runs == {f"{[owner_of(table, members) for table in tables(50)]}\n".encode()}


def test_the_hash_does_not_change_with_the_version() -> None:
    """Two versions run side by side during an update. A change here needs a new protocol name in shard_group.py."""
    members = ("lake-0", "lake-1", "lake-2")
    assert [owner_of(table, members)[-1] for table in tables(12)] == list("101210020010")


def test_a_service_without_a_group_takes_care_of_everything() -> None:
    assert all(EVERYTHING.owns(table) for table in tables(20))
    assert EVERYTHING.owns_record("commits", 0, 7)
    assert EVERYTHING.owns_everything
    assert not EVERYTHING.owns_nothing


def test_who_is_no_member_owns_no_table() -> None:
    assert owner(NOBODY, b"key") is None
    for shard in (Shard("a", ()), Shard("a", ("b",)), Shard("a", ("a",), (NOBODY,)), Shard("a", ("a",), (("b",),))):
        assert shard.owns_nothing
        assert not any(shard.owns(table) for table in tables(20))


def test_while_settling_a_table_needs_both_memberships() -> None:
    old, new = ("a", "b"), ("a", "c")
    for table in tables(50):
        expected = owner_of(table, old) == "a" and owner_of(table, new) == "a"
        assert Shard("a", new, (old,)).owns(table) == expected


def test_a_record_does_not_wait_for_the_settle_time() -> None:
    shards = [Shard(me, ("a", "b"), (NOBODY,)) for me in ("a", "b")]
    assert all(sum(shard.owns_record("commits", 0, offset) for shard in shards) == 1 for offset in range(50))


def test_names_are_kept_apart() -> None:
    """`("a.b", "c")` and `("a", "b.c")` are two tables: they must not always share their owner."""
    members = tuple(f"firnline-{number}" for number in range(50))
    pairs = [(TableName("lake", (f"a{n}", "b"), "c"), TableName("lake", (f"a{n}",), "bc")) for n in range(20)]
    assert any(owner_of(one, members) != owner_of(other, members) for one, other in pairs)
