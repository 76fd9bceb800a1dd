"""Gauges of rewrite slots, read at scrape time, and what the status page shows of the cluster."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from metrics.capacity_definitions import SLOT_METRICS
from metrics.metric_definition import MetricDefinition

MAX_HOSTS = 100
OTHER_HOSTS = "other"


@dataclass(frozen=True)
class SlotUse:
    """Slots, and the executors that they follow from, at one moment.

    Attributes:
        slots: Rewrite tasks that may run at once.
        in_use: Slots that runs hold. Above `slots` for a while after the cluster has shrunk.
        waiting_runs: Runs that wait for a slot.
        cores: Tasks that all executors run at once.
        host_tasks: Running tasks by host, with those of the stream.
    """

    slots: int = 0
    in_use: int = 0
    waiting_runs: int = 0
    cores: int = 0
    executors: int = 0
    host_tasks: Mapping[str, int] = field(default_factory=dict)


def bounded(host_tasks: Mapping[str, int], most: int = MAX_HOSTS) -> list[tuple[str, int]]:
    """The hosts with the most tasks; beyond `most` the others together as `other`."""
    if len(host_tasks) <= most:
        return sorted(host_tasks.items())
    busiest = dict(heapq.nlargest(most - 1, sorted(host_tasks.items()), key=itemgetter(1)))
    others = sum(host_tasks.values()) - sum(busiest.values())
    return [*sorted(busiest.items()), (OTHER_HOSTS, others)]


class SlotCollector(Collector):
    """Prometheus collector of `use`, which returns the slots and executors now."""

    def __init__(self, use: Callable[[], SlotUse]) -> None:
        self._use = use

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Families without samples: registration must not ask Spark."""
        return [_family(definition) for definition in SLOT_METRICS]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families with their current values."""
        use = self._use()
        for definition, value in zip(SLOT_METRICS, (use.slots, use.in_use), strict=True):
            family = _family(definition)
            family.add_metric((), value)
            yield family


def _family(definition: MetricDefinition) -> GaugeMetricFamily:
    return GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)
