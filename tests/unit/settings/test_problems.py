"""What is allowed, said from the type; where a value is set. All messages: tests/contracts/invalid_input.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.errors import InputError
from compactor.settings.allowed import allowed
from compactor.settings.environment import variable_of
from compactor.settings.hooks import HookSettings
from compactor.settings.origins import dotted
from compactor.settings.section import Section
from compactor.settings.tree import Settings, load_settings, load_with_sources

CATALOG = {"FIRNLINE_CATALOGS__LAKE__TYPE": "rest", "FIRNLINE_CATALOGS__LAKE__URI": "http://c"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("policy.target_file_size", "bytes, at least 1; or `table`"),
        ("policy.min_file_size", "bytes, at least 0; or null"),
        ("policy.min_file_size_ratio", "a number, above 0 and at most 1"),
        ("policy.min_input_files", "a whole number, at least 1"),
        ("policy.strategy", "`tiered` or `threshold`"),
        ("policy.tables", "a map"),
        ("policy.prune_files", "true or false"),
        ("service.sweep_seconds", "seconds, above 0 and at most 86,400"),
        ("tables.include", "a list, each item a table name or glob"),
        ("kafka.bootstrap_servers", "addresses host:port, separated by commas; or empty"),
        ("history.table", "text"),
    ],
)
def test_what_is_allowed_is_said_from_the_type(key: str, text: str) -> None:
    section, name = key.split(".")
    kind = Settings.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    assert allowed(kind.model_fields[name], examples=False) == text


def test_an_example_follows() -> None:
    assert allowed(HookSettings.model_fields["timeout_seconds"]).endswith("(or with a unit: 30s, 10min, 1h)")
    assert allowed(HookSettings.model_fields["tables"]).endswith(', e.g. ["db.*"]')


def said(text: str, folder: Path, **environment: str) -> list[str]:
    file = folder / "firnline.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load_settings(file, environment)
    return str(refused.value).splitlines()[1:]


def test_every_problem_has_its_line_or_variable(tmp_path: Path) -> None:
    text = "catalogs: {lake: {type: rest, uri: http://c}}\npolicy:\n  growth: 0\nhooks:\n- kind: kafka\n  topic: a b\n"
    lines = said(text, tmp_path, FIRNLINE_HTTP__PORT="-1", FIRNLINE_SPARK__CONF='{"spark.a": [1]}')
    assert [line[line.rindex("(") :] for line in lines] == [
        "(FIRNLINE_SPARK__CONF)", "(line 3)", "(FIRNLINE_HTTP__PORT)", "(line 6)",
    ]  # fmt: skip


def test_a_variable_that_replaces_a_wrong_value_of_the_file_repairs_it(tmp_path: Path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text("catalogs: {lake: {type: glue, token: '********'}}\npolicy: {growth: 0}\n")
    right = {"FIRNLINE_POLICY__GROWTH": "4", "FIRNLINE_CATALOGS__LAKE__TOKEN": "t"}
    settings = load_settings(file, right)
    assert (settings.policy.growth, settings.catalogs["lake"]["token"]) == (4, "t")


def test_an_empty_section_of_the_file_may_be_filled_by_variables(tmp_path: Path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text("catalogs: {lake: {type: rest, uri: http://c}}\nkafka:\n")
    settings = load_settings(file, {"FIRNLINE_KAFKA__COMMIT_TOPIC": "commits"})
    assert settings.kafka.commit_topic == "commits"


def test_keys_may_be_merged_and_used_again(tmp_path: Path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text(
        "catalogs: {lake: {type: rest, uri: http://c}}\n"
        "policy:\n  tables:\n    db.a: &hot {growth: 4, min_input_files: 3}\n    db.b: *hot\n"
        "    db.c: {<<: *hot, growth: 2}\n"
    )
    tables = load_settings(file, {}).policy.tables
    assert [(each.growth, each.min_input_files) for each in tables.values()] == [(4, 3), (4, 3), (2, 3)]


def test_numbers_and_booleans_of_properties_become_text(tmp_path: Path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text(
        "catalogs: {lake: {type: rest, uri: http://c}}\n"
        "spark: {conf: {spark.executor.cores: 4, spark.ui.enabled: true}}\n"
        "kafka: {options: {request.timeout.ms: 1000}}\n"
    )
    settings = load_settings(file, {})
    assert settings.spark.conf == {"spark.executor.cores": "4", "spark.ui.enabled": "true"}
    assert settings.kafka.options == {"request.timeout.ms": "1000"}


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        (("policy", "growth"), "FIRNLINE_POLICY__GROWTH"),
        (("catalogs", "lake", "s3.secret-access-key"), "FIRNLINE_CATALOGS__LAKE__S3__SECRET_ACCESS_KEY"),
        (("kafka", "options", "sasl.password"), "FIRNLINE_KAFKA__OPTIONS__SASL__PASSWORD"),
        (
            ("spark", "conf", "spark.hadoop.fs.s3a.secret.key"),
            "FIRNLINE_SPARK__CONF__SPARK__HADOOP__FS__S3A__SECRET__KEY",
        ),
        (("spark", "conf", "spark.mySecret"), None),
        (("hooks", 0, "uri"), None),
    ],
)
def test_a_variable_sets_the_key_that_it_is_named_for(key: tuple[str | int, ...], variable: str | None) -> None:
    assert variable_of(key) == variable
    if variable is not None:
        found = load_with_sources(None, {**CATALOG, variable: "8"}).sources
        assert str(found.origin(key)) == variable
        assert found.has(key), dotted(key)


@pytest.mark.parametrize(
    "checkpoint",
    ["/var/lib/c", "file:/var/lib/c", "file:///var/lib/c", "hdfs:///c", "hdfs://n:8020/c", "s3://b/c", "gs://b/c", ""],
)
def test_a_checkpoint_may_lie_on_a_volume_or_a_file_system_of_spark(checkpoint: str) -> None:
    settings = load_settings(None, {**CATALOG, "FIRNLINE_STATE__CHECKPOINT": checkpoint})
    assert settings.state.checkpoint == checkpoint


@pytest.mark.parametrize(
    "master",
    ["local", "local[4]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://h:443",
     "spark://host:7077", "spark://a:7077,b:7077"],
)  # fmt: skip
def test_every_kind_of_spark_master_is_accepted(master: str) -> None:
    assert load_settings(None, {**CATALOG, "FIRNLINE_SPARK__MASTER": master}).spark.master == master


@pytest.mark.parametrize("brokers", ["kafka:9092", "a:1, b:2", "[::1]:9092", "10.0.0.1:9092", "SASL_SSL://k-1.x:9093"])
def test_every_spelling_of_brokers_is_accepted(brokers: str) -> None:
    settings = load_settings(None, {**CATALOG, "FIRNLINE_KAFKA__BOOTSTRAP_SERVERS": brokers})
    assert settings.kafka.bootstrap_servers == brokers


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"type": "REST", "uri": "https://user:pw@host/api/catalog"},
        {"uri": "thrift://a:9083,thrift://b:9083"},
        {"type": "sql", "uri": "postgresql+psycopg2://u:p@h:5432/d"},
        {"type": "sql", "uri": "sqlite:////folder/with space.db"},
        {"type": "glue"},
        {"py-catalog-impl": "my.module.Catalog"},
    ],
)
def test_every_kind_of_catalog_is_accepted(properties: dict[str, str]) -> None:
    assert Settings.model_validate({"catalogs": {"lake": properties}}).catalogs == {"lake": properties}
