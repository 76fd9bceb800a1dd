"""Table names: read from text, written for Spark, matched by globs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import InputError
from compactor.table_names import TableName


@pytest.mark.parametrize(
    ("text", "catalogs", "expected"),
    [
        ("db.t", ["lake"], TableName("lake", ("db",), "t")),
        ("lake.db.t", ["lake"], TableName("lake", ("db",), "t")),
        ("a.b.t", ["lake"], TableName("lake", ("a", "b"), "t")),
        ("lake.a.b.t", ["lake", "sea"], TableName("lake", ("a", "b"), "t")),
        ("sea.db.t", ["lake", "sea"], TableName("sea", ("db",), "t")),
        ("lake.t", ["lake"], TableName("lake", ("lake",), "t")),  # too short to name a catalog: a namespace called lake
    ],
)
def test_a_name_is_read_with_or_without_its_catalog(text: str, catalogs: list[str], expected: TableName) -> None:
    assert TableName.parse(text, catalogs) == expected


@pytest.mark.parametrize("text", ["", "t", ".t", "db.", "db..t", "."])
def test_a_name_without_namespace_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"namespace\.table"):
        TableName.parse(text, ["lake"])


@pytest.mark.parametrize("text", ["db.t", "other.db.t"])
def test_of_several_catalogs_one_must_be_named(text: str) -> None:
    with pytest.raises(InputError, match="configured catalogs: lake, sea"):
        TableName.parse(text, ["sea", "lake"])


def test_a_name_is_shown_in_full_in_short_and_quoted() -> None:
    name = TableName("lake", ("a", "b`c"), "t")
    assert str(name) == "lake.a.b`c.t"
    assert name.short == "a.b`c.t"
    assert name.identifier == ("a", "b`c", "t")
    assert name.spark == "`lake`.`a`.`b``c`.`t`"


@pytest.mark.parametrize(
    ("glob", "matches"),
    [
        ("db.events", True),
        ("lake.db.events", True),
        ("*", True),
        ("db.*", True),
        ("*.events", True),
        ("lake.*", True),
        ("db.event[s]", True),
        ("events", False),
        ("DB.events", False),
        ("sea.*", False),
        ("db", False),
        ("d.*", False),
        ("", False),
    ],
)
def test_a_glob_is_matched_with_and_without_the_catalog(glob: str, matches: bool) -> None:
    assert TableName("lake", ("db",), "events").matches(glob) is matches


parts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(parts, st.lists(parts, min_size=1, max_size=3), parts)
def test_the_key_of_a_table_comes_back_whatever_the_names_hold(catalog: str, namespace: list[str], name: str) -> None:
    table = TableName(catalog, tuple(namespace), name)
    assert TableName.of_key(table.key) == table


@pytest.mark.parametrize("text", ["lake.db.t", '["lake","db"', "{}", "1", '"lake"', "[]", '["t"]', '["lake", 1, "t"]'])
def test_a_damaged_key_is_no_name(text: str) -> None:
    with pytest.raises(ValueError):
        TableName.of_key(text)


def test_names_sort_by_catalog_namespace_and_name() -> None:
    names = [TableName("b", ("a",), "a"), TableName("a", ("b",), "a"), TableName("a", ("a",), "b")]
    assert sorted(names) == names[::-1]
