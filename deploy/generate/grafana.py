"""Grafana's JSON model of a dashboard, made from short descriptions of panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMNS = 24  # of Grafana's grid
PANEL_WIDTH, PANEL_HEIGHT = 8, 7


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


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    table = {
        "name": "table",
        "label": "Table",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": "label_values(firnline_table_files, table)", "refId": "table"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
    return [source, table] if dashboard.by_table else [source]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = COLUMNS // PANEL_WIDTH
    source = {"type": "prometheus", "uid": "$datasource"}
    is_table = panel.kind == "table"
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
                "expr": expression,
                "legendFormat": legend,
                **({"instant": True, "format": "table"} if is_table else {}),
                **({"exemplar": True} if "_bucket[" in expression else {}),
            }
            for position, (legend, expression) in enumerate(panel.queries)
        ],
    }
