"""Gauges of rewrite slots and of the cluster, read at scrape time; a host's series vanish with the host."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from metrics import capacity_definitions as d
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
        shortage_seconds: How long work has waited without any executor.
    """

    slots: int = 0
    in_use: int = 0
    waiting_runs: int = 0
    cores: int = 0
    executors: int = 0
    host_tasks: Mapping[str, int] = field(default_factory=dict)
    shortage_seconds: float = 0.0


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
        return [_family(definition) for definition in COLLECTED_SLOTS]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families with their current values."""
        use = self._use()
        values = (use.slots, use.in_use, use.waiting_runs, use.cores, use.executors, use.shortage_seconds)
        for definition, value in zip(_VALUES, values, strict=True):
            family = _family(definition)
            family.add_metric((), value)
            yield family
        hosts = _family(d.HOST_TASKS)
        for host, tasks in bounded(use.host_tasks):
            hosts.add_metric((host,), tasks)
        yield hosts


def _family(definition: MetricDefinition) -> GaugeMetricFamily:
    return GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)


_VALUES = (d.SLOTS, d.SLOTS_IN_USE, d.SLOT_WAITING_RUNS, d.EXECUTOR_CORES, d.EXECUTORS, d.NO_EXECUTOR_SECONDS)
COLLECTED_SLOTS = (*_VALUES, d.HOST_TASKS)
