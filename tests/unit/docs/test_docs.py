"""The docs say what is: generated pages are fresh, links lead somewhere, the map has every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from deploy.generate.history_columns import columns_table
from deploy.generate.settings_page import settings_page

ROOT = Path(__file__).parents[3]
PACKAGES = ("compactor", "metrics", "streaming")
LONGEST_FILE = 550
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.stem != "__init__"]


def test_settings_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_page(), "run: make generate"


def test_the_historys_columns_are_on_its_page() -> None:
    assert columns_table() in (ROOT / "docs" / "history.md").read_text()


def test_every_setting_says_what_it_is_for() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 25
    assert all(len(row.rsplit("|", 2)[1].strip()) > 15 for row in rows)


@pytest.mark.parametrize("page", ["runbook", "monitoring", "operations", "planning", "guarantees"])
def test_settings_that_operators_are_told_to_change_exist(page: str) -> None:
    known = set(re.findall(r"^\| `([a-z_.]+)", settings_page(), re.MULTILINE))
    others = r"spark\.|write\.|firnline\.|message\.|retention\.|requests\.|usage\.|.*\.(?:py|yaml|json|sqlite)$"
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?::[^`]*)?`", (ROOT / "docs" / f"{page}.md").read_text()))
    missing = {name for name in named if not re.match(others, name) and name not in known}
    assert not {name for name in missing if not any(each.startswith(f"{name}.") for each in known)}


def test_the_map_has_a_line_for_each_package() -> None:
    page = (ROOT / "docs" / "map.md").read_text()
    lines = re.findall(r"^\| `((?:compactor|metrics|streaming)/[^`]*)` \|", page, re.MULTILINE)
    assert sorted(lines) == sorted({f"{path.parent.relative_to(ROOT)}/" for path in modules()})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https://)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_outgrows_a_reader(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= LONGEST_FILE


def test_sample_settings_load() -> None:
    settings = load_settings(ROOT / "deploy" / "firnline.yaml", {})
    assert settings.tables.include == ("db.*",)
    for table in ("events", "hot"):
        assert settings.policy.for_table(TableName("lake", ("db",), table)).strategy == "tiered"
