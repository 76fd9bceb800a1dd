"""Gauges of what the service has left and of what operators have changed, read at scrape time.

Left: budgets of the hour, memory, space for the service's state. Changed: a drain, settings that were read again.
"""

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
    """The volume with the ledger's state, in bytes. `unsaved`: the state of the last look could not be saved."""

    unsaved: bool = False
    free_bytes: int = 0
    volume_bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """Resident bytes by kind of process, and bytes that processes may still take; empty and None where none tells."""

    resident: Mapping[str, int] = field(default_factory=dict)
    free: int | None = None


@dataclass(frozen=True)
class ControlState:
    """What operators have changed at run time.

    `settings_refused`: the settings file as it is now is not in force. `settings_kept`: keys that have another value in
    the file, and hold until a restart.
    """

    draining: bool = False
    settings_refused: bool = False
    settings_kept: int = 0


class ReserveCollector(Collector):
    """Prometheus collector of the budgets in `work`, of `space` (None before the ledger has started), of `controls` and
    `memory`.

    `unreadable`: the number of in-flight records that were set aside.
    """

    def __init__(
        self,
        work: Callable[[], Work],
        space: Callable[[], StateSpace | None],
        controls: Callable[[], ControlState] = ControlState,
        unreadable: Callable[[], int] = lambda: 0,
        memory: Callable[[], Memory] = Memory,
    ) -> None:
        self._work = work
        self._space = space
        self._controls = controls
        self._unreadable = unreadable
        self._memory = memory

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Families without samples: registration must not ask anybody."""
        return [_family(definition) for definition in r.RESERVE_METRICS]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families with their current values."""
        work, space, controls, memory = self._work(), self._space(), self._controls(), self._memory()
        yield _family(r.QUIET, [((), work.quiet)])
        ratios = [((each.limit, each.tables), each.left / each.cap) for each in work.budgets]
        yield _family(r.LIMIT_REMAINING_RATIO, ratios)
        yield _family(r.LIMITED_TABLES, [((), work.limited)])
        yield _family(r.MEMORY_BYTES, [((process,), held) for process, held in sorted(memory.resident.items())])
        yield _family(r.FREE_MEMORY_BYTES, [] if memory.free is None else [((), memory.free)])
        values = () if space is None else (space.unsaved, space.free_bytes, space.volume_bytes)
        for definition, value in zip((r.STATE_UNSAVED, r.STATE_FREE_BYTES, r.STATE_VOLUME_BYTES), values, strict=False):
            yield _family(definition, [((), value)])
        yield _family(r.UNREADABLE_RECORDS, [((), self._unreadable())])
        yield _family(r.DRAINING, [((), controls.draining)])
        yield _family(r.SETTINGS_REFUSED, [((), controls.settings_refused)])
        yield _family(r.SETTINGS_NEED_RESTART, [((), controls.settings_kept)])


def _family(definition: MetricDefinition, samples: Iterable[tuple[tuple[str, ...], float]] = ()) -> GaugeMetricFamily:
    family = GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
