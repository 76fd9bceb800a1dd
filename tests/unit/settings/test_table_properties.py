"""`firnline.*` table properties: they go before the file, and a bad one never stops anything."""

from __future__ import annotations

import pytest

from compactor.settings.policy import PolicySettings, refused_properties
from compactor.table_names import TableName

EVENTS = TableName("lake", ("db",), "events")


def test_a_property_goes_before_the_files_settings_of_the_table() -> None:
    policy = PolicySettings.model_validate({"growth": 2, "tables": {"db.events": {"growth": 4, "max_small_files": 9}}})
    values = policy.for_table(EVENTS, {"firnline.policy.growth": "6.5", "firnline.policy.where": "day > '2024-01-01'"})
    assert (values.growth, values.max_small_files, values.where) == (6.5, 9, "day > '2024-01-01'")
    assert policy.for_table(EVENTS, {"write.format.default": "orc"}) == policy.for_table(EVENTS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("firnline.policy.growth", "eight", "firnline.policy.growth='eight' is not used"),
        ("firnline.policy.target_file_size", "-5", "bytes, at least 1"),
        ("firnline.policy.min_file_size", "10m", "bytes, at least 0"),
        ("firnline.policy.settle_after_seconds", "soon", "30s, 10min, 1h"),
        ("firnline.policy.growth", "0.5", "a number, above 1"),
        ("firnline.policy.min_input_files", "", "firnline.policy.min_input_files='' is not used"),
        ("firnline.policy.strategy", "fast", "firnline.policy.strategy='fast' is not used"),
        ("firnline.policy.grwth", "4", "did you mean firnline.policy.growth?"),
        ("firnline.policy.tables", "{}", "firnline.policy.tables is unknown"),
        ("firnline.enabled", "yes", "neither true nor false"),
        ("firnline.anything", "1", "firnline.anything is unknown"),
    ],
)
def test_a_bad_property_is_told_and_the_files_setting_holds(name: str, value: str, said: str) -> None:
    policy = PolicySettings(growth=5)
    given = {name: value, "firnline.policy.max_small_files": "7"}
    (refused,) = refused_properties(given)
    assert said in refused
    assert policy.for_table(EVENTS, given) == policy.for_table(EVENTS, {"firnline.policy.max_small_files": "7"})


def test_sizes_and_times_of_a_table_may_have_units() -> None:
    given = {"target_file_size": "512MB", "min_row_group_size": "8 MiB", "settle_after_seconds": "10min"}
    values = PolicySettings().for_table(EVENTS, {f"firnline.policy.{key}": value for key, value in given.items()})
    assert (values.target_file_size, values.min_row_group_size) == (512_000_000, 8 * 2**20)
    assert values.settle_after_seconds == 600


def test_a_filter_of_a_table_that_cannot_be_read_is_no_filter_for_nothing() -> None:
    """Without it, partitions would be rewritten that the owner excludes: the plan must fail instead."""
    given = {"firnline.policy.where": "day >="}
    assert PolicySettings().for_table(EVENTS, given).where == "day >="
    assert refused_properties(given) == ()
