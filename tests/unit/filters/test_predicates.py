"""Predicates: what an AND says of a key besides one value of it is asked of that value."""

from __future__ import annotations

import pytest

from compactor.filters.where import bind_where
from tests.properties.filters import table_view


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("int_column = 1 AND (int_column > 5 OR long_column = 2)", "int_column = 1 AND long_column = 2"),
        ("int_column = 1 AND int_column > 5", "false"),
        ("int_column IN (1, 7, 9) AND int_column > 5", "int_column IN (7, 9) AND int_column > 5"),
        ("int_column IN (1, 7) AND int_column > 5", "int_column = 7"),
        ("int_column IN (1, 7) AND int_column IN (7, 8) AND long_column > 3", "int_column = 7 AND long_column > 3"),
        ("int_column = 1 AND (int_column = 2 OR long_column = 2)", "int_column = 1 AND long_column = 2"),
        ("long_column = 3 OR (int_column = 1 AND int_column != 1)", "long_column = 3"),
        ("int_column = 1 AND int_column IS NULL", "false"),
        ("int_column = 1 AND int_column IS NOT NULL", "int_column = 1"),
        ("int_column > 1 AND int_column < 0", "int_column > 1 AND int_column < 0"),
    ],
)
def test_what_is_said_besides_one_value_is_asked_of_it(given: str, same: str) -> None:
    assert bind_where(table_view(), given).predicate == bind_where(table_view(), same).predicate
