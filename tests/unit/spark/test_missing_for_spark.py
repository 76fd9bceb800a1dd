"""A table that Spark does not find: Iceberg's Java client writes spaces of names in a way that some catalogs refuse."""

from __future__ import annotations

import pytest

from compactor.spark.java_table import missing_for_spark
from compactor.table_names import TableName


@pytest.mark.parametrize("name", [TableName("lake", ("my db",), "t"), TableName("lake", ("db", "x"), "my table")])
def test_a_space_in_a_name_is_the_cause_and_not_the_properties(name: TableName) -> None:
    said = missing_for_spark(name)
    assert str(name) in said
    assert "17759" in said
    assert "properties" not in said


def test_without_a_space_the_properties_are_to_be_checked() -> None:
    assert "Spark's properties of catalog lake" in missing_for_spark(TableName("lake", ("my+db",), "t"))
