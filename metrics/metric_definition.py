"""The definition of one metric: kind, labels, unit, meaning and remedy; for a gauge, how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from compactor.debt.board import TableDebt
from metrics.moment import Moment, Samples

SECOND_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)

_UNITS = ("seconds", "bytes", "files", "records", "rows", "partitions", "tables", "groups", "runs", "events", "offsets")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. `meaning` is its help text; `remedy` says what to do when the value looks wrong.

    `read`: a gauge's samples at a scrape; None: the recorder sets or counts the metric when events come.
    """

    kind: Kind
    name: str
    meaning: str
    remedy: str
    labels: tuple[str, ...] = ()
    read: Callable[[Moment], Samples] | None = field(default=None, compare=False)

    @property
    def unit(self) -> str:
        """The last word of the name that is a unit, or ""."""
        return next((word for word in reversed(self.name.split("_")) if word in _UNITS), "")

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds in seconds: every histogram measures a duration."""
        return SECOND_BUCKETS if self.kind is Kind.HISTOGRAM else ()


counter = partial(MetricDefinition, Kind.COUNTER)
labelled_gauge = partial(MetricDefinition, Kind.GAUGE)
histogram = partial(MetricDefinition, Kind.HISTOGRAM)
engine_counter = partial(counter, labels=("engine", "reason"))


def gauge(name: str, meaning: str, remedy: str, read: Callable[[Moment], float | None]) -> MetricDefinition:
    """One number; None: no series."""

    def samples(moment: Moment) -> Samples:
        value = read(moment)
        return [] if value is None else [((), value)]

    return MetricDefinition(Kind.GAUGE, name, meaning, remedy, read=samples)


def table_gauge(name: str, meaning: str, remedy: str, read: Callable[[Moment, TableDebt], float]) -> MetricDefinition:
    """A number for each table. Table names are unbounded, so only these gauges have them: the series vanish with
    their table.
    """

    def samples(moment: Moment) -> Samples:
        return ((moment.labels[debt.table], read(moment, debt)) for debt in moment.named)

    return MetricDefinition(Kind.GAUGE, name, meaning, remedy, ("catalog", "table"), samples)
