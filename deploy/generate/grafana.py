"""Grafana's JSON model of a dashboard, made from short descriptions of panels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

COLUMNS = 24  # of Grafana's grid
PANEL_WIDTH, PANEL_HEIGHT = 8, 7
DEPLOYMENT = ("job", "namespace")
OF_DEPLOYMENT = ", ".join(f'{label}=~"${label}"' for label in DEPLOYMENT)
SELECTOR = re.compile(r"\b((?:firnline|process)_[a-z0-9_]+)\b(\{[^}]*\})?")


@dataclass(frozen=True)
class Panel:
    """One panel. `queries`: (legend, expression); `unit`: Grafana's unit; `good`: which values are good."""

    title: str
    good: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. `uid` must not change, so that links stay valid; `by_table`: it has the variable `$table`."""

    uid: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    by_table: bool = False


def file_name(dashboard: Dashboard) -> str:
    return f"{dashboard.uid}.json"


def document(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["firnline", "iceberg"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def of_deployment(expression: str) -> str:
    """The expression with the variables of job and namespace in each selector. `All` selects any.

    Labels after the name of a metric are kept.
    """

    def selected(match: re.Match[str]) -> str:
        name, others = match[1], (match[2] or "").strip("{}")
        return f"{name}{{{OF_DEPLOYMENT}{', ' if others else ''}{others}}}"

    return SELECTOR.sub(selected, expression)


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    values = {label: f"label_values(firnline_build_info, {label})" for label in DEPLOYMENT}
    if dashboard.by_table:
        values["table"] = f"label_values(firnline_table_files{{{OF_DEPLOYMENT}}}, table)"
    return [source, *(_variable(label, query) for label, query in values.items())]


def _variable(label: str, query: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = COLUMNS // PANEL_WIDTH
    source = {"type": "prometheus", "uid": "$datasource"}
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.good,
        "type": panel.kind,
        "datasource": source,
        "gridPos": {
            "x": number % per_row * PANEL_WIDTH,
            "y": number // per_row * PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": None if "-1" in panel.title else 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": source,
                "expr": of_deployment(expression),
                "legendFormat": legend,
                **({"exemplar": True} if "_bucket[" in expression else {}),
            }
            for position, (legend, expression) in enumerate(panel.queries)
        ],
    }
