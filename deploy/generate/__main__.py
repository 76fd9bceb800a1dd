"""Write the generated pages in docs/ and the dashboards: `make generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.generate.dashboards import DASHBOARDS
from deploy.generate.grafana import document, file_name
from deploy.generate.metrics_page import metrics_page
from deploy.generate.settings_page import settings_page
from deploy.generate.spark_options_page import spark_options_page
from deploy.generate.where_page import where_page

ROOT: Final = Path(__file__).parents[2]


def generated() -> Iterator[tuple[str, str]]:
    """Path below the repository and text of every generated file."""
    yield "docs/settings.md", settings_page()
    yield "docs/spark-options.md", spark_options_page()
    yield "docs/where.md", where_page()
    yield "docs/metrics.md", metrics_page()
    for dashboard in DASHBOARDS:
        text = json.dumps(document(dashboard), indent=2, ensure_ascii=False) + "\n"
        yield f"deploy/grafana/{file_name(dashboard)}", text


if __name__ == "__main__":
    for path, text in generated():
        (ROOT / path).write_text(text, encoding="utf-8")
