"""Each table has one owner among the services; another count of services moves only the tables that must move."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName

COUNTS = st.integers(1, 6)
TABLES = st.builds(
    TableName,
    st.text(max_size=5),
    st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
    st.text(max_size=8),
)


def tables(count: int) -> list[TableName]:
    return [TableName("lake", ("db",), f"events_{number}") for number in range(count)]


def owner_of(table: TableName, count: int) -> int:
    (one,) = [number for number in range(count) if Shard(number, count).owns(table)]
    return one


@given(COUNTS, TABLES)
def test_each_table_has_one_owner_and_a_new_service_only_takes(count: int, table: TableName) -> None:
    assert owner_of(table, count + 1) in {owner_of(table, count), count}


@given(COUNTS, st.integers(0, 100), st.integers(0, 2**62))
def test_each_record_has_exactly_one_owner(count: int, partition: int, offset: int) -> None:
    assert sum(Shard(number, count).owns_record("commits", partition, offset) for number in range(count)) == 1


def test_all_spellings_of_a_name_have_one_owner() -> None:
    """Catalogs that do not distinguish capitals find a table by any of them."""
    shard = Shard(0, 2)
    for table in tables(20):
        assert shard.owns(TableName("lake", ("DB",), table.name.upper())) == shard.owns(table)
        other = TableName("Lake", ("CAFÉ",), table.name)
        assert shard.owns(other) == shard.owns(TableName("lake", ("café",), table.name))


@pytest.mark.parametrize(("tables_", "count", "spread"), [(200, 2, 0.25), (200, 5, 0.5), (10_000, 8, 0.1)])
def test_the_tables_are_balanced(tables_: int, count: int, spread: float) -> None:
    """`spread`: how far the share of a service may be from the mean."""
    shares = [sum(map(Shard(number, count).owns, tables(tables_))) for number in range(count)]
    mean = tables_ / count
    assert all(abs(share - mean) <= spread * mean for share in shares), shares


def test_the_owner_depends_neither_on_the_process_nor_on_the_version() -> None:
    """Python's own hash of text differs between processes; two versions run side by side during an update."""
    code = (
        "from compactor.shards import Shard; from compactor.table_names import TableName\n"
        "t = [TableName('lake', ('db',), f'events_{n}') for n in range(12)]\n"
        "print(*(n for x in t for n in range(3) if Shard(n, 3).owns(x)), sep='')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "220101010101"


def test_names_are_kept_apart() -> None:
    """`("a.b", "c")` and `("a", "b.c")` are two tables: they must not always share their owner."""
    pairs = [(TableName("lake", (f"a{n}", "b"), "c"), TableName("lake", (f"a{n}",), "bc")) for n in range(20)]
    assert any(owner_of(one, 50) != owner_of(other, 50) for one, other in pairs)


def test_what_settings_say() -> None:
    assert Shard.of("") == EVERYTHING
    assert Shard.of("3/4") == Shard(3, 4)
    for wrong in ("4/4", "1", "-1/4", "a/b", "0/0", "1/2/3", "1/20000"):
        with pytest.raises(ValueError, match="below a count of services"):
            Shard.of(wrong)
