"""Numbers of table properties and settings that Iceberg cannot hold: an error of that table or key, never a crash."""

from __future__ import annotations

from typing import Any

import pytest
from click import BadParameter

from compactor.debt.board import PartitionCounts
from compactor.debt.manifest_debt import count_manifests
from compactor.debt.table_changes import live_counts
from compactor.debt.tiers import step_edges, step_of
from compactor.errors import InputError
from compactor.iceberg.tables import FileSizes, file_sizes
from compactor.planning.policy import look_for_age
from compactor.settings.policy import PolicySettings, PolicyValues, refused_properties
from compactor.settings.tree import ManifestSettings, Settings, load_settings
from compactor.table_names import TableName
from compactor.whole_numbers import LARGEST, whole_number
from streaming.commands.simulate import parse_bytes

EVENTS = TableName("lake", ("db",), "events")
TOO_LARGE = [str(10**20), str(2**63), "9" * 5000]


def short(value: object) -> str:
    """The id of a test."""
    return str(value)[:24]


@pytest.mark.parametrize("text", [*TOO_LARGE, "²", "0", "-1", "1.5", "", "many"], ids=short)
def test_a_target_that_is_no_size_is_an_error_of_its_table(text: str) -> None:
    with pytest.raises(InputError) as refused:
        file_sizes(PolicyValues(), {"write.target-file-size-bytes": text})
    assert "table property write.target-file-size-bytes" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_the_largest_target_can_be_counted_with() -> None:
    sizes = file_sizes(PolicyValues(), {"write.target-file-size-bytes": f" {2**63 - 1} "})
    assert sizes.target == LARGEST == 2**63 - 1
    assert live_counts([], sizes) == {}
    assert live_counts([], FileSizes(LARGEST, LARGEST)) == {}
    assert max(step_edges(LARGEST)) <= LARGEST
    assert step_of(LARGEST) == 252


@pytest.mark.parametrize(
    "key", [key for key, field in PolicyValues.model_fields.items() if "int" in str(field.annotation)]
)
@pytest.mark.parametrize("text", TOO_LARGE, ids=short)
def test_a_property_that_is_too_large_is_told_and_the_files_setting_holds(key: str, text: str) -> None:
    properties = {f"firnline.policy.{key}": text}
    (refused,) = refused_properties(properties)
    assert f"firnline.policy.{key}=" in refused
    assert PolicySettings().for_table(EVENTS, properties) == PolicySettings().for_table(EVENTS)


@pytest.mark.parametrize(
    "size",
    ["100EB", "9223372036854775808", "9223372036854775808B", "9007199254740992PiB", 10**20, "9" * 2_000_000 + "GB"],
    ids=short,
)
def test_a_size_that_is_too_large_is_refused(size: Any) -> None:
    catalogs = {"lake": {"type": "rest", "uri": "http://c"}}
    for policy in (
        {"target_file_size": size},
        {"min_file_size": size},
        {"tables": {"db.*": {"min_file_size": size}}},
    ):
        with pytest.raises(ValueError, match=r"allowed|too large|valid"):
            Settings.model_validate({"catalogs": catalogs, "policy": policy})


def test_the_message_says_how_large_a_number_may_be() -> None:
    variables = {"FIRNLINE_CATALOGS__LAKE__TYPE": "rest", "FIRNLINE_CATALOGS__LAKE__URI": "http://c"}
    for key in ("POLICY__MIN_INPUT_FILES", "POLICY__TARGET_FILE_SIZE", "LIMITS__BYTES_PER_HOUR"):
        with pytest.raises(InputError, match=r"is too large; at most 9,223,372,036,854,775,807"):
            load_settings(None, {**variables, f"FIRNLINE_{key}": str(10**20)})


@pytest.mark.parametrize("text", [*TOO_LARGE, "99999999999PB"], ids=short)
def test_a_size_of_the_command_line_that_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1e-320", "5e-324", "1e-300"])
def test_a_tiny_age_does_not_stop_the_counting(text: str) -> None:
    values = PolicySettings().for_table(EVENTS, {"firnline.policy.max_small_file_age_seconds": text})
    counts = PartitionCounts(data_files=9, small_files=9, changed_ms=1_700_000_000_000)
    assert "9 small files" in str(look_for_age(values, counts, 60.0))


@pytest.mark.parametrize("text", ["²", *TOO_LARGE], ids=short)
def test_a_target_of_manifests_that_is_no_size_is_icebergs_default(text: str) -> None:
    name = "commit.manifest.target-size-bytes"
    counted = [count_manifests([], {}, ManifestSettings(), properties, 2) for properties in ({}, {name: text})]
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (" 7 ", 7),
        (str(2**63 - 1), LARGEST),
        *((text, None) for text in ("²", "", "-1", "1_0", "1.0", *TOO_LARGE)),
    ],
    ids=short,
)
def test_a_whole_number_fits_into_a_long(text: str, number: int | None) -> None:
    assert whole_number(text) == number
