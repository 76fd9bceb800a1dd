"""Values without quotes stay as they are written, until their setting reads them: a secret may look like a number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from compactor.errors import InputError
from compactor.settings.tree import Settings, load_settings

CATALOG = "catalogs: {lake: {type: rest, uri: http://c}}\n"
AS_WRITTEN = [
    "0123456701", "001234567012", "0777_1", "1_000", "12:30:45", "1:30.5", "1.10", "0x1F", "0b101", "+5", "-0",
    "1.0e+3", ".5", "8181", ".inf", "True", "FALSE", "2024-01-01", "2001-12-14 21:59:43", "1e5", "=", "yes", "No", "ON",
]  # fmt: skip


def read(folder: Path, text: str, environment: dict[str, str] | None = None) -> Settings:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environment or {})


def refusal(folder: Path, text: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(InputError) as refused:
        read(folder, text, environment)
    assert refused.value.reason == "bad_setting"
    return str(refused.value)


@pytest.mark.parametrize("value", AS_WRITTEN)
def test_a_property_is_the_text_that_the_file_has(value: str, tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        f"catalogs: {{lake: {{type: rest, uri: http://c, token: {value}, !!str b: {value}, c: !!str {value}}}}}\n"
        f"kafka:\n  options:\n    sasl.password: {value}\n  catalog_names:\n    POLARIS: lake\n"
        f"spark: {{conf: {{spark.a: {value}}}}}\n",
    )
    assert settings.catalogs["lake"] == {"type": "rest", "uri": "http://c", "token": value, "b": value, "c": value}
    assert settings.kafka.options == {"sasl.password": value}
    assert settings.spark.conf == {"spark.a": value}


def test_a_property_that_is_used_again_or_merged_is_the_text_that_the_file_has(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        "catalogs:\n"
        "  a: &a {type: rest, uri: http://c, token: &token 0123, glue.id: 007}\n"
        "  b: {<<: *a, uri: http://d, other: *token}\n"
        "  c: {<<: [{x: 1.10}, *a]}\n"
        "  d: *a\n"
        "spark: {conf: {spark.a: &count 0b1}}\n"
        "policy: {growth: &growth 6.50}\n"
        "kafka: {options: {x.y: *growth}}\n",
    )
    first = {"type": "rest", "uri": "http://c", "token": "0123", "glue.id": "007"}
    assert settings.catalogs == {
        "a": first, "b": {**first, "uri": "http://d", "other": "0123"}, "c": {**first, "x": "1.10"}, "d": first,
    }  # fmt: skip
    assert settings.spark.conf == {"spark.a": "0b1"}
    assert (settings.policy.growth, settings.kafka.options) == (6.5, {"x.y": "6.50"})


def test_a_boolean_setting_may_be_yes_or_no(tmp_path: Path) -> None:
    settings = read(tmp_path, f"{CATALOG}manifests: {{rewrite: no}}\nhttp: {{basic_auth: {{}}, accept_events: off}}")
    assert (settings.manifests.rewrite, settings.http.accept_events) == (False, False)


def test_a_key_may_look_like_a_number(tmp_path: Path) -> None:
    names = read(tmp_path, f"{CATALOG}kafka: {{catalog_names: {{0123456701: lake}}}}").kafka.catalog_names
    assert names == {"0123456701": "lake"}


def test_the_parts_of_a_secret_that_looks_like_a_map_are_not_shown(tmp_path: Path) -> None:
    said = refusal(tmp_path, "catalogs: {lake: {type: rest, uri: http://c, credential: {pa55: 0777}}}")
    assert "a map is not allowed; put the value in quotes" in said
    assert not re.search("pa55|0777|511", said)


@pytest.mark.parametrize(
    ("value", "number"),
    [("6", 6.0), ("6.50", 6.5), ("+6.5", 6.5), ("1.0e3", 1000.0), ("1.0e+3", 1000.0), ("1e3", 1000.0)],
)
def test_a_decimal_number_is_a_number(value: str, number: float, tmp_path: Path) -> None:
    assert read(tmp_path, f"{CATALOG}policy: {{growth: {value}}}").policy.growth == number


JSON_TEXTS = {"a": "1.10", "b": "5", "c": "1E400", "d": "true", "e": "-0"}


@pytest.mark.parametrize(
    ("variable", "document", "found"),
    [
        ("FIRNLINE_SPARK__CONF", '{"spark.a": %s}', lambda settings: settings.spark.conf["spark.a"]),
        ("FIRNLINE_SPARK", '{"conf": {"spark.a": %s}}', lambda settings: settings.spark.conf["spark.a"]),
        ("FIRNLINE_KAFKA__OPTIONS", '{"a.b": %s}', lambda settings: settings.kafka.options["a.b"]),
        (
            "FIRNLINE_CATALOGS",
            '{"lake": {"type": "rest", "uri": "http://c", "x": %s}}',
            lambda settings: settings.catalogs["lake"]["x"],
        ),
        (
            "FIRNLINE_CATALOGS__LAKE",
            '{"type": "rest", "uri": "http://c", "x": %s}',
            lambda settings: settings.catalogs["lake"]["x"],
        ),
    ],
)
@pytest.mark.parametrize("value", JSON_TEXTS.values())
def test_a_number_in_json_keeps_its_text(variable: str, document: str, found: Any, value: str, tmp_path: Path) -> None:
    assert found(read(tmp_path, CATALOG, {variable: document % value})) == value


def test_a_number_of_a_setting_in_json_is_a_number(tmp_path: Path) -> None:
    policy = read(tmp_path, CATALOG, {"FIRNLINE_POLICY": '{"growth": 6.50, "min_input_files": 7}'}).policy
    assert (policy.growth, policy.min_input_files) == (6.5, 7)


def test_a_number_in_json_with_thousands_of_digits_is_an_error_of_its_variable(tmp_path: Path) -> None:
    said = refusal(tmp_path, CATALOG, {"FIRNLINE_POLICY": json.dumps({"growth": 4}).replace("4", "9" * 5000)})
    assert "FIRNLINE_POLICY" in said
