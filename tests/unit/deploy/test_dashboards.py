"""Dashboards: as generated, complete, and over metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.grafana import Dashboard, document, file_name
from tests.unit.deploy.test_alerts import ALERTS, NAME, exported

FOLDER = Path(__file__).parents[3] / "deploy" / "grafana"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_dashboards_are_up_to_date(dashboard: Dashboard) -> None:
    written = json.loads((FOLDER / file_name(dashboard)).read_text(encoding="utf-8"))
    assert written == document(dashboard), "run: make generate"


def test_no_dashboard_is_left_over() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {file_name(dashboard) for dashboard in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_panels_say_what_good_looks_like_and_name_what_exists(dashboard: Dashboard) -> None:
    names = exported()
    assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)
    for panel in dashboard.panels:
        assert panel.good.endswith(".")
        for legend, expression in panel.queries:
            assert set(NAME.findall(expression)) <= names.keys(), expression
            for label in re.findall(r"\{\{(\w+)\}\}", legend):
                known = {known for name in NAME.findall(expression) for known in names[name]}
                assert label in known | {"instance", "query"}, (panel.title, label)


def test_panels_do_not_overlap_and_have_stable_ids() -> None:
    for dashboard in DASHBOARDS:
        panels = document(dashboard)["panels"]
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len(panels) == len({panel["id"] for panel in panels})
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_panel_of_readiness_leaves_standbys_out_as_the_alert_does() -> None:
    """A standby that waits is not ready, and nothing is wrong."""
    (alert,) = (each for each in ALERTS if each["alert"] == "FirnlineNotReady")
    (panel,) = (panel for dashboard in DASHBOARDS for panel in dashboard.panels if panel.title == "Ready")
    ((_, expression),) = panel.queries
    of_services = expression.removeprefix("(min(").removesuffix(")) or on () vector(0)")
    assert f"min by (job, namespace) ({of_services}) == 0" in " ".join(alert["expr"].split())


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_several_deployments_on_one_prometheus_are_told_apart(dashboard: Dashboard) -> None:
    """Every selector of every panel follows the two variables, which the alerts' labels fill."""
    made = document(dashboard)
    asked = {variable["name"]: variable for variable in made["templating"]["list"]}
    assert {"job", "namespace"} <= asked.keys()
    for panel in made["panels"]:
        for target in panel["targets"]:
            selectors = re.findall(r"\b(?:firnline|process)_[a-z0-9_]+(\{[^}]*\})?", target["expr"])
            assert selectors
            for selector in selectors:
                assert 'job=~"$job"' in selector, target["expr"]
                assert 'namespace=~"$namespace"' in selector, target["expr"]
