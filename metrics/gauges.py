"""Gauges read at scrape time from the debt board and the service; a dropped table's series vanish with the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from compactor.debt.board import DebtBoard, TableDebt
from metrics.definitions import CATALOGUE
from metrics.metric_definition import MetricDefinition
from metrics.moment import Moment
from metrics.service_view import ServiceView

MAX_TABLES = 5_000


class Gauges(Collector):
    """Prometheus collector of all gauges that are read. `max_tables` limits the tables with series of their own.

    `clock` returns seconds since the epoch.
    """

    def __init__(
        self,
        board: DebtBoard,
        service: ServiceView,
        version: str,
        max_tables: int = MAX_TABLES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._service = service
        self._version = version
        self._max_tables = max_tables
        self._clock = clock

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Families without samples, so that registration asks nobody but refuses a second collector."""
        return [_family(definition) for definition in CATALOGUE if definition.read is not None]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families with their current values."""
        now = self._clock()
        moment = Moment(worst_first(self._board), self._service, self._version, now, self._max_tables)
        for definition in CATALOGUE:
            if definition.read is not None:
                family = _family(definition)
                for labels, value in definition.read(moment):
                    family.add_metric(labels, value)
                yield family


def worst_first(board: DebtBoard) -> tuple[TableDebt, ...]:
    """All tables: most small files first, then by name, in which order the board has them."""
    return tuple(sorted(board.tables(), key=lambda debt: -debt.total.small_files))


def _family(definition: MetricDefinition) -> GaugeMetricFamily:
    return GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)
