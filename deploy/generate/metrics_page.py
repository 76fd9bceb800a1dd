"""docs/metrics.md: every metric with its meaning and its remedy."""

from __future__ import annotations

from metrics.definitions import CATALOGUE
from metrics.metric_definition import SECOND_BUCKETS, MetricDefinition

_PAGE_HEAD = """\
# Metrics

This page is generated from `metrics/definitions.py`: `make generate` writes it.

- Per-table metrics cover the tables with the most small files (5,000 unless set otherwise), per-partition metrics the
  fleet's partitions with the most small files (20 unless set otherwise). They vanish with what they describe.
- `table` is `catalog.namespace.name`; a dot, `%` or control character inside a part is written as `%XX`. `partition` is
  `field=value/field=value`; `/`, `=`, `%`, `"` and control characters in it are written as `%XX`; `spec` is the id of
  the partition spec, `bucket` the bucket number or empty. Long texts end in `~` and a checksum.
- `reason`, `stage`, `reaction`, `engine`, `source` and `query` are short slugs; anything else is counted as `other`.
- A counter with labels is absent until it first counts something.
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
