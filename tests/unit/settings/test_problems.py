"""What is allowed, said from the type; where a value is set. All messages: tests/contracts/invalid_input.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.errors import InputError
from compactor.settings.environment import variable_of
from compactor.settings.origins import dotted
from compactor.settings.tree import Settings, load_settings, load_with_sources

CATALOG = {"FIRNLINE_CATALOGS__LAKE__TYPE": "rest", "FIRNLINE_CATALOGS__LAKE__URI": "http://c"}


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


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        ("basic_auth: {me: canary}", "the value of me is not a bcrypt hash of cost 4 to 14; make one with `htpasswd"),
        ("tls_certificate: /c.pem", "tls_certificate and tls_key must be set together"),
    ],
)
def test_pages_need_hashed_passwords_and_a_key(pages: str, problem: str, tmp_path: Path) -> None:
    (line,) = said(f"catalogs: {{lake: {{type: glue}}}}\nhttp: {{{pages}}}\n", tmp_path)
    assert problem in line
    assert "canary" not in line


def test_a_variable_that_replaces_a_wrong_value_of_the_file_repairs_it(tmp_path: Path) -> None:
    file = tmp_path / "firnline.yaml"
    file.write_text("catalogs: {lake: {type: glue, token: '********'}}\npolicy: {growth: 0}\n")
    right = {"FIRNLINE_POLICY__GROWTH": "4", "FIRNLINE_CATALOGS__LAKE__TOKEN": "t"}
    settings = load_settings(file, right)
    assert (settings.policy.growth, settings.catalogs["lake"]["token"]) == (4, "t")


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


ACCEPTED = {
    "state.checkpoint": [
        "/var/lib/c", "file:/var/lib/c", "file:///var/lib/c", "hdfs:///c", "hdfs://n:8020/c", "s3://b/c", "gs://b/c", ""
    ],
    "spark.master": [
        "local", "local[4]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://h:443",
        "spark://host:7077", "spark://a:7077,b:7077",
    ],
    "kafka.bootstrap_servers": ["kafka:9092", "a:1, b:2", "[::1]:9092", "10.0.0.1:9092", "SASL_SSL://k-1.x:9093"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in ACCEPTED.items() for text in texts])
def test_every_spelling_of_an_address_is_accepted(key: str, text: str) -> None:
    variable = "FIRNLINE_" + key.upper().replace(".", "__")
    section, name = key.split(".")
    assert getattr(getattr(load_settings(None, {**CATALOG, variable: text}), section), name) == text


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
