"""docs/metrics.md: every metric with its meaning and its remedy."""

from __future__ import annotations

from metrics.definitions import CATALOGUE
from metrics.gauges import MAX_TABLES
from metrics.metric_definition import SECOND_BUCKETS, MetricDefinition
from metrics.moment import LONGEST_LABEL

_PAGE_HEAD = f"""\
# Metrics

This page is generated from `metrics/definitions.py`: `make generate` writes it.

- Per-table metrics exist for {MAX_TABLES:,} tables: unreadable ones first, then those that have been due for more than
  an hour, then those with the most small files. The series of a dropped table vanish.
- `table` is `catalog.namespace.name`; a dot, `%` or control character inside a part is written as `%XX`. Labels over
  {LONGEST_LABEL} characters end in `~` and a checksum.
- `reason`, `stage`, `reaction`, `engine`, `source`, `query`, `hook` and `result` are short slugs; other values are
  counted as `other`.
- A counter with labels is absent before its first increment; `firnline_ledger_recounts_total`,
  `firnline_looks_total` and `firnline_hook_calls_total` start at 0.
"""


def _row(definition: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels)
    cells = (f"`{definition.name}`", definition.kind, labels, definition.unit, definition.meaning, definition.remedy)
    return "| " + " | ".join(cell or "-" for cell in cells) + " |"


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    buckets = ", ".join(f"{bound:g}" for bound in SECOND_BUCKETS)
    table = ["| Name | Kind | Labels | Unit | Meaning | When it looks wrong |", "|---|---|---|---|---|---|"]
    rows = [_row(definition) for definition in CATALOGUE]
    return "\n".join([_PAGE_HEAD + f"- Histogram buckets in seconds: {buckets}.", "", *table, *rows, ""])
