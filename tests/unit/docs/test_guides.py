"""What the guides show is accepted: settings by firnline, catalogs by Spark's translation, events by the decoder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from compactor.settings.tree import Settings, load_settings
from compactor.spark.catalogs import spark_catalog_conf
from compactor.spark.session import jar_sets
from streaming.commands.settings_report import settings_tree
from streaming.commit_events import canonical
from streaming.commit_events.decoder import RawEvent, TableChanged, decode

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
WRITERS = sorted((DOCS / "writers").glob("*.md"))
SECRETS = ("client-secret", "a-bearer-token", "user:password")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


SETTINGS = {f"{path.stem}-{number}": text for path in GUIDES for number, text in enumerate(blocks(path, "yaml"))}
FRAGMENTS = {f"{path.stem}-{number}": text for path in WRITERS for number, text in enumerate(blocks(path, "yaml"))}
"""Settings of sources of events; most leave out the catalogs."""
CATALOGS = "catalogs: {lake: {type: rest, uri: 'http://catalog:8181'}, attic: {type: rest, uri: 'http://other:8181'}}\n"


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_are_accepted(block: str, tmp_path: Path) -> None:
    """As `firnline check-config` does, and then what the start of Spark would do with them."""
    file = tmp_path / "firnline.yaml"
    file.write_text(SETTINGS[block])
    settings: Settings = load_settings(file, environment={})
    assert settings.catalogs
    for name, properties in settings.catalogs.items():
        assert spark_catalog_conf(name, properties)
    assert jar_sets(settings)
    shown = yaml.safe_dump(settings_tree(settings))
    assert not [secret for secret in SECRETS if secret in shown.replace("client-secret:", "")]


@pytest.mark.parametrize("block", FRAGMENTS)
def test_settings_of_sources_are_accepted(block: str, tmp_path: Path) -> None:
    file = tmp_path / "firnline.yaml"
    text = FRAGMENTS[block]
    file.write_text(text if "catalogs:" in text else CATALOGS + text)
    assert load_settings(file, environment={})


def test_the_commit_event_of_the_guide_is_understood() -> None:
    (code,) = blocks(DOCS / "guides" / "beside-your-ingestion.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "guide", "exec"), names)  # noqa: S102 - our own page
    key, value = names["commit_event"]("lake", "db", "events")  # type: ignore[operator]
    decoded = decode(RawEvent(key, value, (), 1), (canonical.DECODER,))
    assert isinstance(decoded, TableChanged)
    assert (decoded.catalog, decoded.namespace, decoded.name) == ("lake", ("db",), "events")
