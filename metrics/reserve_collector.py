"""Gauges of what the service has left and of what operators have changed, read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from compactor.runs.dispatcher import Work
from metrics import capacity_definitions as r
from metrics.metric_definition import MetricDefinition


@dataclass(frozen=True)
class StateSpace:
    """Free bytes of the volume with the ledger's state. `unsaved`: the state of the last look could not be saved."""

    unsaved: bool = False
    free_bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """Resident bytes by kind of process, and bytes that processes may still take; empty and None where none tells."""

    resident: Mapping[str, int] = field(default_factory=dict)
    free: int | None = None


class ReserveCollector(Collector):
    """Prometheus collector of `work`, of `space` (None before the ledger has started), and of `memory`.

    `refused`: whether the settings file as it is now is not in force; `unreadable`: in-flight records that were set
    aside.
    """

    def __init__(
        self,
        work: Callable[[], Work],
        space: Callable[[], StateSpace | None],
        refused: Callable[[], bool] = lambda: False,
        unreadable: Callable[[], int] = lambda: 0,
        memory: Callable[[], Memory] = Memory,
    ) -> None:
        self._work = work
        self._space = space
        self._refused = refused
        self._unreadable = unreadable
        self._memory = memory

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Families without samples: registration must not ask anybody."""
        return [_family(definition) for definition in r.RESERVE_METRICS]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families with their current values."""
        work, space, memory = self._work(), self._space(), self._memory()
        yield _family(r.QUIET, [((), work.quiet)])
        yield _family(r.LIMITED_TABLES, [((), work.limited)])
        yield _family(r.MEMORY_BYTES, [((process,), held) for process, held in sorted(memory.resident.items())])
        yield _family(r.FREE_MEMORY_BYTES, [] if memory.free is None else [((), memory.free)])
        yield _family(r.STATE_UNSAVED, [] if space is None else [((), space.unsaved)])
        yield _family(r.STATE_FREE_BYTES, [] if space is None else [((), space.free_bytes)])
        yield _family(r.UNREADABLE_RECORDS, [((), self._unreadable())])
        yield _family(r.SETTINGS_REFUSED, [((), self._refused())])


def _family(definition: MetricDefinition, samples: Iterable[tuple[tuple[str, ...], float]] = ()) -> GaugeMetricFamily:
    family = GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
