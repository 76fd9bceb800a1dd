"""Alerts: each names what exists, has a runbook section with all its parts, and a story in promtool's tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from compactor.reasons import SIGNS_OF_DAMAGE
from metrics.definitions import CATALOGUE, TABLE_DAMAGE
from metrics.metric_definition import Kind
from tests.slow import slow

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "firnline.rules.yaml").read_text())
TESTS = yaml.safe_load((FOLDER / "firnline.rules.test.yaml").read_text())["tests"]
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
RECORDS = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
NAME = re.compile(r"\bfirnline[_:][a-z0-9_:]+")


def exported() -> dict[str, tuple[str, ...]]:
    """Every series name a scrape can hold → its labels."""
    found: dict[str, tuple[str, ...]] = {}
    for metric in CATALOGUE:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        found |= {metric.name + suffix: metric.labels for suffix in suffixes}
    return found


def every_rule() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_expressions_name_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    names = exported()
    for name in NAME.findall(rule["expr"]):
        assert name in names or name in RECORDS, name
    for name, labels in re.findall(r"(firnline_[a-z0-9_]+)\{([^}]*)\}", rule["expr"]):
        for label in re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", labels):
            assert label in names[name], f"{name} has no label {label}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_has_its_section_of_the_runbook(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    section = RUNBOOK.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
    for part in ("Meaning", "Impact", "Diagnosis", "Remedy"):
        text = section.split(f"**{part}.**", 1)[1].split("**", 1)[0]
        assert len(text.strip()) > 20, part


def test_no_page_names_an_alert_or_a_metric_that_is_gone() -> None:
    alerts = {alert["alert"] for alert in ALERTS}
    assert set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == alerts
    known = {metric.name for metric in CATALOGUE} | exported().keys() | {"firnline_history", "firnline_version"}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named = page.read_text()
        assert set(re.findall(r"\bFirnline[A-Z]\w+", named)) <= alerts, page
        assert {name.rstrip("_") for name in re.findall(r"\bfirnline_[a-z0-9_]+", named)} <= known, page


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_is_seen_silent_firing_and_recovered(alert: dict[str, Any]) -> None:
    stories = [
        [bool(step.get("exp_alerts")) for step in test["alert_rule_test"] if step["alertname"] == alert["alert"]]
        for test in TESTS
    ]
    for test, story in zip(TESTS, stories, strict=True):
        if story:
            print(f"{alert['alert']}: {test['name']}: {', '.join('fires' if fires else 'silent' for fires in story)}")
    assert any(story[0] is False and True in story and story[-1] is False for story in stories if story)


def test_one_critical_alert_tells_of_damage_at_its_first_sign() -> None:
    """It waits for nothing; `promtool` sees that it fires once, and no other alert with it."""
    (alert,) = (each for each in ALERTS if each["alert"] == "FirnlineTableMayBeDamaged")
    assert alert["labels"] == {"severity": "critical"}
    assert "for" not in alert
    assert f"increase({TABLE_DAMAGE.name}[1d]) > 0" in alert["expr"]
    section = RUNBOOK.split(f"\n## {alert['alert']}\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"`(\w+)`", section)) >= SIGNS_OF_DAMAGE


STORIES = (("test", "firnline.rules.test.yaml"), ("test", "firnline.silent.test.yaml"))


@pytest.mark.parametrize(("command", "file"), [("check", "firnline.rules.yaml"), *slow(*STORIES)])
def test_promtool_agrees(command: str, file: str) -> None:
    """promtool needs some minutes for the stories."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; `make test-monitoring` installs it")
    done = subprocess.run([promtool, command, "rules", file], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
