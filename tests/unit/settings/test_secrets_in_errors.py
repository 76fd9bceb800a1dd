"""An error of settings says where it is and what to do, and never shows a secret: it is logged, also at a reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.errors import InputError
from compactor.settings.tree import load_settings

SECRET = "Tr0ub4dorAnd3Horse"  # noqa: S105 - of no one
CATALOG = "catalogs: {lake: {type: sql, uri: 'sqlite://'}}\n"


def error_of(folder: Path, text: str, **variables: str) -> str:
    """The message about a settings file with this text. The secret is in neither half of it."""
    path = folder / "firnline.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_settings(path, variables)
    message = str(caught.value)
    assert not [part for part in (SECRET, "Tr0ub4dor", "And3Horse") if part in message], message
    return message


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("!{}", "(line 4) a tag: a value that begins with ! must be in quotes"),
        ("!!{} x", "a value that begins with ! must be in quotes"),
        ("!<{}> x", "a value that begins with ! must be in quotes"),
        ("!e!{}", "a value that begins with ! must be in quotes"),
        ("!{}(", "a value that begins with ! must be in quotes"),
        ("!!binary ä{}", "line 4"),
        ("!!int {}", "line 4"),
        ("*{}", "line 4, column 17: a value that begins with * must be in quotes"),
        ("[&{0} a, &{0} b]", "a value that begins with & must be in quotes"),
        ("%{}", "a value that begins with % must be in quotes"),
        ("@{}", "a value that begins with @ must be in quotes"),
        ("`{}", "a value that begins with ` must be in quotes"),
        ("|{}", "a value that begins with | must be in quotes"),
        (">{}", "a value that begins with > must be in quotes"),
        ('"{}\\qx"', "in double quotes, \\ begins an escape: use single quotes"),
        ("a: {}", "mapping values are not allowed here"),
        ("{{{}", "a quote, bracket, colon or comma may be wrong"),
        ("{{{}}}", "catalogs.lake.credential: a map is not allowed; put the value in quotes"),
        ("[{}]", "catalogs.lake.credential: a list is not allowed"),
        ("'{}", "a quote, bracket, colon or comma may be wrong"),
    ],
)
def test_a_credential_without_quotes_is_not_shown(tmp_path: Path, value: str, said: str) -> None:
    text = "catalogs:\n  lake:\n    type: sql\n    credential: " + value.format(SECRET) + "\n"
    assert said in error_of(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CATALOGS", '{"lake":{"credential":"id:%s",}}', "; it is not JSON from character"),
        ("CATALOGS__LAKE", '{"type":"rest","credential":"id:%s",}', "catalogs.lake: text is not a map of properties"),
        ("CATALOGS__LAKE", "%s", "catalogs.lake: text is not a map of properties"),
        ("KAFKA__OPTIONS", '{"other": "%s", }', "kafka.options: text is not allowed; allowed: a map"),
        ("SPARK__CONF", '{"spark.x.account.key": "%s", }', "; it is not JSON from character"),
        ("SPARK__CONF", '{"spark.x.account.key": "%s', "; it is not JSON from character 25 on"),
        ("SPARK__CONF", "spark.x.account.key=%s", "spark.conf: text is not allowed; allowed: a map"),
        ("SPARK", '{"conf":{"spark.x.account.key": "%s"}', "spark: text is not allowed; allowed: a map of settings"),
        ("HTTP__BASIC_AUTH", '{"alice": "%s", }', "http.basic_auth: text is not allowed; allowed: a map"),
        ("HTTP__BASIC_AUTH", '{"alice:%s": ""}', "a user name must not be empty or contain a colon"),
        ("HOOKS", '[{"uri": "x", "user": "%s"', "hooks: text is not allowed; allowed: a list"),
        ("HOOKS", '["%s"]', "hooks[0]: text is not allowed; allowed: a map of settings"),
        ("KAFKA__COMMIT_TOPICS", "%s", "kafka.commit_topics: text is not allowed"),
    ],
)  # fmt: skip
def test_what_should_be_a_map_is_not_shown(tmp_path: Path, variable: str, value: str, said: str) -> None:
    text = "" if variable.startswith("CATALOGS") else CATALOG
    assert said in error_of(tmp_path, text, **{f"FIRNLINE_{variable}": value % SECRET})


def test_a_number_that_should_be_a_map_is_not_shown(tmp_path: Path) -> None:
    message = error_of(tmp_path, f"{CATALOG}spark: {{conf: 4711}}\n")
    assert "spark.conf: text is not allowed" in message
    assert "4711" not in message


@pytest.mark.parametrize("password", [SECRET, f"a/{SECRET}", f"a@{SECRET}", f"{SECRET}@b", f"{SECRET}#c?d"])
@pytest.mark.parametrize(
    "text",
    [
        "catalogs: {lake: {type: rest, uri: 'http//user:%s@catalog'}}",
        "catalogs: {lake: {type: rest, uri: 'http://user:%s@catalog:port'}}",
        "catalogs: {lake: {type: hive, uri: 'http://user:%s@catalog'}}",
        "catalogs: {lake: {type: sql, uri: 'oracle://user:%s@catalog'}}",
        CATALOG + "kafka: {bootstrap_servers: 'SASL_SSL://user:%s@broker:9092'}",
        CATALOG + "hooks: [{kind: trino, statement: x, uri: 'mysql://user:%s@trino'}]",
    ],
)
def test_the_password_of_an_address_is_not_shown(tmp_path: Path, text: str, password: str) -> None:
    error_of(tmp_path, text % password)
