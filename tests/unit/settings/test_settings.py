"""Settings: file and environment become one frozen tree, or an error that names the key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from compactor.errors import InputError
from compactor.iceberg.tables import Catalogs, FileSizes, file_sizes
from compactor.settings.policy import PolicySettings, PolicyValues
from compactor.settings.tree import CommitSettings, Settings, TableRules, load_settings
from compactor.table_names import TableName

CATALOG = {"FIRNLINE_CATALOGS__LAKE__TYPE": "rest", "FIRNLINE_CATALOGS__LAKE__URI": "http://c"}
EVENTS = TableName("lake", ("db",), "events")


def from_file(folder: Path, text: str, environment: dict[str, str] | None = None) -> Settings:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environment or {})


def from_environment(**variables: str) -> Settings:
    return load_settings(None, {**CATALOG, **variables})


# --- defaults ---------------------------------------------------------------------------------------------------------


def test_defaults_touch_nothing_and_are_sparks() -> None:
    settings = from_environment()
    assert settings.tables == TableRules(include=(), observe=("*",), exclude=())
    assert settings.policy.target_file_size == "table"
    assert (settings.policy.min_file_size_ratio, settings.policy.min_input_files) == (0.75, 5)
    assert (settings.policy.delete_file_threshold, settings.policy.delete_ratio_threshold) == (2**31 - 1, 0.3)
    assert settings.policy.max_file_group_size == 100 * 2**30
    assert settings.catalogs == {"lake": {"type": "rest", "uri": "http://c"}}


def test_the_target_is_the_policys_else_the_tables_else_icebergs() -> None:
    own = {"write.target-file-size-bytes": "1000"}
    assert file_sizes(PolicyValues(), {}) == FileSizes(512 * 2**20, 384 * 2**20)
    assert file_sizes(PolicyValues(), own) == FileSizes(1000, 750)
    assert file_sizes(PolicyValues(target_file_size=2000), own) == FileSizes(2000, 1500)
    assert [FileSizes(1000, 750).is_small(size) for size in (749, 750)] == [True, False]
    assert file_sizes(PolicyValues(min_file_size=0), own) == FileSizes(1000, 0)
    assert (file_sizes(PolicyValues(), own).largest, file_sizes(PolicyValues(max_file_size=1001), own).largest) == (
        1800,
        1001,
    )


@pytest.mark.parametrize(
    ("setting", "elsewhere", "at_polaris"),
    [("auto", False, True), ("always", True, True), ("never", False, False)],
)
def test_apache_polaris_is_asked_to_let_writers_win_unless_told_otherwise(
    setting: str, elsewhere: bool, at_polaris: bool
) -> None:
    commit = CommitSettings.model_validate({"polaris_rollback": setting})
    assert commit.rolls_back(is_polaris=False, row_lineage=False) is elsewhere
    assert commit.rolls_back(is_polaris=True, row_lineage=False) is at_polaris
    assert commit.rolls_back(is_polaris=True, row_lineage=True) is (setting == "always"), "it fails writers there"
    assert from_environment().commit.polaris_rollback == "auto"


def test_apache_polaris_is_known_by_its_path() -> None:
    properties = {
        "polaris": {"type": "rest", "uri": "https://host/api/catalog"},
        "slash": {"type": "rest", "uri": "https://host/api/catalog/"},
        "other": {"type": "rest", "uri": "https://host/iceberg"},
        "sql": {"type": "sql", "uri": "sqlite:////api/catalog"},
    }
    assert [name for name in properties if Catalogs(properties).is_polaris(name)] == ["polaris", "slash"]


def test_every_key_says_what_it_is_for() -> None:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        inner = getattr(section, "model_fields", {name: field})
        assert [key for key, one in inner.items() if not one.description] == []


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_settings(tmp_path / "none.yaml", CATALOG)
    assert from_file(tmp_path, "", CATALOG) == from_environment()


# --- the environment --------------------------------------------------------------------------------------------------


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    text = "catalogs: {lake: {type: rest, uri: http://c}}\npolicy: {min_input_files: 7, growth: 3}"
    settings = from_file(tmp_path, text, {"FIRNLINE_POLICY__MIN_INPUT_FILES": "9"})
    assert (settings.policy.min_input_files, settings.policy.growth) == (9, 3)


def test_dotted_and_dashed_catalog_properties_are_spelled_as_pyiceberg_spells_them() -> None:
    settings = from_environment(
        FIRNLINE_CATALOGS__LAKE__S3__ENDPOINT="http://store:9000",
        FIRNLINE_CATALOGS__LAKE__S3__ACCESS_KEY_ID="me",
        FIRNLINE_CATALOGS__LAKE__URI="http://catalog:8181",
    )
    assert settings.catalogs["lake"] == {
        "type": "rest",
        "s3.endpoint": "http://store:9000",
        "s3.access-key-id": "me",
        "uri": "http://catalog:8181",
    }


def test_a_key_of_the_file_keeps_its_spelling(tmp_path: Path) -> None:
    text = "catalogs: {My-Lake: {type: sql, uri: 'sqlite://', init_catalog_tables: 'true', s3.secret-access-key: x}}"
    settings = from_file(
        tmp_path,
        text,
        {
            "FIRNLINE_CATALOGS__MY_LAKE__INIT_CATALOG_TABLES": "false",
            "FIRNLINE_CATALOGS__MY_LAKE__S3__SECRET_ACCESS_KEY": "secret",
        },
    )
    assert settings.catalogs == {
        "My-Lake": {"type": "sql", "uri": "sqlite://", "init_catalog_tables": "false", "s3.secret-access-key": "secret"}
    }


def test_kafka_options_have_dots_only() -> None:
    settings = from_environment(FIRNLINE_KAFKA__OPTIONS__SECURITY__PROTOCOL="SSL")
    assert settings.kafka.options == {"security.protocol": "SSL"}


def test_a_property_is_taken_as_it_is_even_if_it_looks_like_json() -> None:
    settings = from_environment(FIRNLINE_CATALOGS__LAKE__HEADER__X_FILTER='{"a": 1}')
    assert settings.catalogs["lake"]["header.x-filter"] == '{"a": 1}'


def test_maps_and_lists_are_json() -> None:
    settings = from_environment(
        FIRNLINE_TABLES__INCLUDE='["db.*", "lake.x.y"]',
        FIRNLINE_SPARK__CONF='{"spark.executor.memoryOverhead": "1g"}',
        FIRNLINE_POLICY__TABLES='{"db.*": {"min_input_files": 3}}',
    )
    assert settings.tables.include == ("db.*", "lake.x.y")
    assert settings.spark.conf == {"spark.executor.memoryOverhead": "1g"}
    assert settings.policy.for_table(EVENTS).min_input_files == 3


def test_a_whole_catalog_may_be_json_and_single_keys_come_after_it() -> None:
    settings = load_settings(
        None,
        {"FIRNLINE_CATALOGS__SEA": '{"type": "rest", "uri": "http://a"}', "FIRNLINE_CATALOGS__SEA__URI": "http://b"},
    )
    assert settings.catalogs == {"sea": {"type": "rest", "uri": "http://b"}}


def test_who_gave_no_settings_file_is_told_how() -> None:
    remedy = "no settings file is given: name one with -c FILE, or in FIRNLINE_CONFIG_FILE"
    for variables in ({}, {"FIRNLINE_POLICY__GROWTH": "4"}):
        with pytest.raises(InputError, match=re.escape("catalogs: this key is missing; ")) as raised:
            load_settings(None, variables)
        assert str(raised.value).endswith(f"\n  {remedy}")
    with pytest.raises(InputError) as raised:
        load_settings(None, {**CATALOG, "FIRNLINE_POLICY__GROWTH": "0"})
    assert "-c FILE" not in str(raised.value)


@pytest.mark.parametrize("kind", ["rest", "sql", "REST"])
def test_pyicebergs_own_settings_give_no_address(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its REST client as firnline opens it and Spark would not see them."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://elsewhere")
    with pytest.raises(InputError, match=r"catalogs\.lake\.uri: this key is missing"):
        load_settings(None, {"FIRNLINE_CATALOGS__LAKE__TYPE": kind})


def test_other_programs_variables_are_left_alone() -> None:
    assert load_settings(None, {**CATALOG, "PATH": "/bin", "MY_FIRNLINE_X": "1"}) == from_environment()


# --- which tables, and their policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "ignored", "acted_on"),
    [
        (TableRules(), False, False),
        (TableRules(include=("db.*",)), False, True),
        (TableRules(include=("lake.db.events",), observe=()), False, True),
        (TableRules(include=("other.*",), observe=()), True, False),
        (TableRules(include=("db.*",), exclude=("*.events",)), True, False),
        (TableRules(observe=("db.*",), exclude=("db.x",)), False, False),
    ],
)
def test_globs_decide_what_is_looked_at_and_what_is_rewritten(rules: TableRules, ignored: bool, acted_on: bool) -> None:
    assert rules.ignores(EVENTS) is ignored
    assert rules.acts_on(EVENTS, {}) is acted_on


@pytest.mark.parametrize(
    ("switch", "included", "observed"),
    [
        ("true", True, True),
        ("false", False, False),
        (" TRUE ", True, True),
        ("False", False, False),
        ("maybe", True, False),
    ],
)
def test_the_tables_own_switch_decides_over_include_but_not_over_exclude(
    switch: str, included: bool, observed: bool
) -> None:
    properties = {"firnline.enabled": switch}
    assert TableRules(include=("db.*",)).acts_on(EVENTS, properties) is included
    assert TableRules(observe=("db.*",)).acts_on(EVENTS, properties) is observed
    assert TableRules(include=("db.*",), exclude=("db.events",)).acts_on(EVENTS, properties) is False


def test_a_tables_override_falls_back_to_the_common_policy_key_by_key() -> None:
    policy = PolicySettings.model_validate(
        {
            "min_input_files": 8,
            "target_file_size": 1000,
            "tables": {
                "db.ev*": {"min_input_files": 3},
                "db.events": {"min_input_files": 2, "delete_ratio_threshold": 0.5},
                "*": {"target_file_size": 5},
            },
        }
    )
    events = policy.for_table(EVENTS)
    assert (events.min_input_files, events.target_file_size, events.delete_ratio_threshold) == (3, 1000, 0.3)
    other = policy.for_table(TableName("lake", ("x",), "y"))
    assert (other.min_input_files, other.target_file_size) == (8, 5)


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [
        ({}, "tiered"),
        ({"min_input_files": 5}, "tiered"),
        ({"tables": {"db.events": {"min_input_files": 3}}}, "tiered"),
        ({"strategy": "threshold"}, "threshold"),
        ({"strategy": "threshold", "tables": {"db.events": {"strategy": "tiered"}}}, "tiered"),
        ({"tables": {"db.events": {"strategy": "threshold"}}}, "threshold"),
    ],
)
def test_only_the_strategy_decides_the_strategy(policy: dict[str, Any], strategy: str) -> None:
    assert PolicySettings(**policy).for_table(EVENTS).strategy == strategy


def test_a_misspelled_override_is_refused_even_if_it_is_null() -> None:
    with pytest.raises(ValidationError, match="growht"):
        PolicySettings.model_validate({"tables": {"db.events": {"growht": None}}})


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kafka", "said"),
    [
        ({"dead_letter_topic": "a", "commit_topics": ["a"]}, "commit_topics: firnline writes to a"),
        ({"dead_letter_topic": "hook"}, "hooks: topic hook is one of kafka"),
        ({"commit_topics": ["hook"]}, "hooks: topic hook is one of kafka"),
        ({"commit_topics": ["a", {"topic": "a", "format": "s3"}]}, "commit_topics.*topic a is named twice"),
        ({"commit_topics": [{"pattern": "a"}, {"pattern": "a"}]}, "commit_topics.*pattern a is named twice"),
    ],
)
def test_a_topic_has_one_use(kafka: dict[str, Any], said: str) -> None:
    tree = {"catalogs": {"lake": {"type": "glue"}}, "hooks": [{"kind": "kafka", "topic": "hook"}]}
    with pytest.raises(ValidationError, match=said):
        Settings.model_validate({**tree, "kafka": kafka})
    Settings.model_validate({**tree, "kafka": {"commit_topics": ["z", "q", {"pattern": "q"}]}})  # both may name a topic
