"""The definition of one metric: kind, labels, unit, meaning and remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

SECOND_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)

OTHER = "other"
_UNITS = ("seconds", "bytes", "files", "records", "rows", "partitions", "tables", "groups", "runs", "events", "offsets")
_SLUG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")

# Table names are unbounded. Only gauges read from the debt board carry them: those series vanish with their table.
_PER_TABLE = ("catalog", "table")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. `meaning` is its help text; `remedy` says what to do when the value looks wrong."""

    kind: Kind
    name: str
    meaning: str
    remedy: str
    labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The last word of the name that is a unit, or ""."""
        return next((word for word in reversed(self.name.split("_")) if word in _UNITS), "")

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds in seconds: every histogram measures a duration."""
        return SECOND_BUCKETS if self.kind is Kind.HISTOGRAM else ()


def slug(text: str) -> str:
    """`text` if it is one short ASCII word, else "other", so that labels have few values. Most names of catalogs are
    such words: two that share a series would hide each other from alerts.
    """
    return text if _SLUG.fullmatch(text) else OTHER


counter = partial(MetricDefinition, Kind.COUNTER)
gauge = partial(MetricDefinition, Kind.GAUGE)
histogram = partial(MetricDefinition, Kind.HISTOGRAM)
table_gauge = partial(gauge, labels=_PER_TABLE)
engine_counter = partial(counter, labels=("engine", "reason"))
