"""What defining a metric takes: its kind, its labels and their bounds, its unit, which its name carries."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

SECOND_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)

OTHER = "other"
_UNITS = ("seconds", "bytes", "files", "records", "rows", "partitions", "tables", "groups", "runs", "events", "offsets")
_SLUG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,59}")

# Table names are unbounded, so only gauges read from the debt board carry them: they vanish with their table.
_PER_TABLE = ("catalog", "table")
# `spec` tells apart partitions of the same text under two partition specs of one table.
_PER_PARTITION = ("table", "spec", "partition", "bucket")


class Kind(StrEnum):
    """How Prometheus reads a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. `meaning` is its help text; `remedy` says what to do when the value looks wrong."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    meaning: str
    remedy: str
    buckets: tuple[float, ...] = ()


def slug(text: str) -> str:
    """`text` when it is a short lower-case slug, else "other": a label's values stay few whatever an event says."""
    return text if _SLUG.fullmatch(text) else OTHER


def _unit(name: str) -> str:
    """A name carries its unit, so the two cannot contradict each other: the last word of it that is a unit."""
    return next((word for word in reversed(name.split("_")) if word in _UNITS), "")


def counter(name: str, meaning: str, remedy: str, *, labels: tuple[str, ...] = ()) -> MetricDefinition:
    return MetricDefinition(
        name=name, kind=Kind.COUNTER, labels=labels, unit=_unit(name), meaning=meaning, remedy=remedy
    )


def gauge(name: str, meaning: str, remedy: str, *, labels: tuple[str, ...] = ()) -> MetricDefinition:
    return MetricDefinition(name=name, kind=Kind.GAUGE, labels=labels, unit=_unit(name), meaning=meaning, remedy=remedy)


def histogram(name: str, meaning: str, remedy: str, *, labels: tuple[str, ...] = ()) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind=Kind.HISTOGRAM,
        labels=labels,
        unit=_unit(name),
        meaning=meaning,
        remedy=remedy,
        buckets=SECOND_BUCKETS,
    )


def table_gauge(name: str, meaning: str, remedy: str) -> MetricDefinition:
    """A gauge of each table."""
    return gauge(name, meaning, remedy, labels=_PER_TABLE)


def engine_counter(name: str, meaning: str, remedy: str) -> MetricDefinition:
    """A counter by engine and the reason it was chosen."""
    return counter(name, meaning, remedy, labels=("engine", "reason"))


def of_partition(table_metric: MetricDefinition) -> MetricDefinition:
    """The same figure of the fleet's worst partitions."""
    return replace(
        table_metric,
        name=table_metric.name.replace("_table_", "_partition_"),
        labels=_PER_PARTITION,
        meaning=table_metric.meaning.replace(" of the table.", " of one of the fleet's worst partitions."),
        remedy="Only the partitions with the most small files are listed; `firnline plan` shows all of a table's.",
    )
