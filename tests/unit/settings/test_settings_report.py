"""`check-config`: its output can be read back, says where each value comes from, and gives no secret away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from compactor.errors import InputError
from compactor.settings.tree import load_settings, load_with_sources
from streaming.cli import main
from streaming.commands.settings_report import settings_document, settings_yaml

ROOT = Path(__file__).parents[3]
TEXT = """\
catalogs:
  lake: {type: rest, uri: "http://me:pass-word@catalog:8181", s3.secret-access-key: top}
policy:
  growth: 4
  min_input_files: 5
  where: "a = 'x # y'"
  tables:
    "db.*": {strategy: tiered, target_file_size: 1GiB}
tables: {include: ["db.*", "sea.*"]}
hooks:
  - {kind: trino, uri: "http://me:pass-word@trino:8080", statement: "CALL f()", password_env: TRINO}
"""
PLAIN = TEXT.replace("me:pass-word@", "").replace(", s3.secret-access-key: top", "")
VARIABLES = {"FIRNLINE_SPARK__CONF": '{"spark.app.name": "f"}', "FIRNLINE_HTTP__PORT": "9464"}


def file_of(text: str, folder: Path) -> Path:
    path = folder / "given.yaml"
    path.write_text(text)
    return path


def comments(text: str) -> dict[str, str]:
    """The comment of each key that has one; keys are unique enough here."""
    rows = (line.split("  # ") for line in text.splitlines() if "  # " in line)
    return {row[0].strip().partition(": ")[0].rstrip(":"): row[-1] for row in rows}


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\n", "\r", "\t", "\x0b", "\x1c", "\ufeff", "ß"])
def test_a_character_that_ends_a_line_elsewhere_comes_back(character: str, tmp_path: Path) -> None:
    glob = f"db.a{character}b"
    tree = {
        "catalogs": {"lake": {"type": "rest", "uri": "http://catalog:8181", "note": f"{character} x"}},
        "tables": {"include": [glob, f"db.{character * 3}-c"]},
        "policy": {"tables": {glob: {"growth": 4}}},
    }
    given = file_of(json.dumps(tree), tmp_path)
    loaded = load_with_sources(given, {})
    assert loaded.settings.tables.include[0] == glob
    first = settings_yaml(loaded)
    again = load_with_sources(file_of(first, tmp_path), {})
    assert again.settings == loaded.settings
    assert settings_yaml(again) == first
    assert first.count("  # file") == 5


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").rglob("firnline.yaml")), ids=lambda path: path.parent.name)
def test_the_settings_of_the_deployments_can_be_read_back(path: Path, tmp_path: Path) -> None:
    secrets = {"FIRNLINE_CATALOGS__LAKE__S3__SECRET_ACCESS_KEY": "secret"}
    first = settings_yaml(load_with_sources(path, secrets))
    assert settings_yaml(load_with_sources(file_of(first, tmp_path), secrets)) == first


def test_every_value_says_where_it_comes_from(tmp_path: Path) -> None:
    loaded = load_with_sources(file_of(TEXT, tmp_path), VARIABLES)
    said = comments(settings_yaml(loaded))
    expected = {
        "uri": "file", "growth": "file", "min_input_files": "default", "where": "file", "include": "file",
        "spark.app.name": "FIRNLINE_SPARK__CONF", "port": "FIRNLINE_HTTP__PORT", "host": "default",
        "observe": "default",
        "hooks": "file", "strategy": "file", "target_file_size": "file", "exclude": "default",
    }  # fmt: skip
    assert {key: said.get(key) for key in expected} == expected
    keys = settings_document(loaded)["origins"]
    assert len(keys) == settings_yaml(loaded).count("  # ")


def test_the_document_names_the_line(tmp_path: Path) -> None:
    path = file_of(TEXT, tmp_path)
    document = settings_document(load_with_sources(path, VARIABLES))
    origins = document["origins"]
    assert origins["policy.growth"] == f"{path}:4"
    assert origins["policy.min_input_files"] == f"{path}:5"  # the file says it, although it is the default
    assert origins["policy.tables.db.*.target_file_size"] == f"{path}:8"
    assert origins["policy.settle_after_seconds"] == "default"
    assert origins["http.port"] == "FIRNLINE_HTTP__PORT"
    assert document["settings"]["policy"]["tables"] == {"db.*": {"strategy": "tiered", "target_file_size": 2**30}}


def test_secrets_are_hidden_and_are_refused_when_they_are_read_back(tmp_path: Path) -> None:
    loaded = load_with_sources(file_of(TEXT, tmp_path), {})
    text = settings_yaml(loaded) + json.dumps(settings_document(loaded))
    assert "top" not in text.replace("topic", "")
    assert "pass-word" not in text
    assert "TRINO" in text
    path = file_of(settings_yaml(loaded), tmp_path)
    with pytest.raises(InputError) as refused:
        load_settings(path, {})
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "catalogs.lake.uri", "catalogs.lake.s3.secret-access-key", "hooks[0].uri",
    ]  # fmt: skip
    assert "FIRNLINE_CATALOGS__LAKE__S3__SECRET_ACCESS_KEY" in lines[1]


def test_the_command_prints_both_forms(tmp_path: Path) -> None:
    path = file_of(PLAIN, tmp_path)
    done = CliRunner().invoke(main, ["-c", str(path), "check-config"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout)["policy"]["growth"] == 4
    found = json.loads(CliRunner().invoke(main, ["-c", str(path), "check-config", "--output", "json"]).stdout)
    assert list(found) == ["version", "settings", "origins"]
    assert found["version"] == 1
    assert found["settings"] == yaml.safe_load(done.stdout)
