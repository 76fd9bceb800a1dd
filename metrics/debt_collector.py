"""Gauges read at scrape time from the debt board and the dispatcher; a dropped table's series vanish with the table."""

from __future__ import annotations

import hashlib
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from compactor.debt.board import DebtBoard, PartitionCounts, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.iceberg.other_compactors import DAY_SECONDS
from compactor.runs.dispatcher import Work
from compactor.runs.work_order import STARVING_SECONDS
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from metrics import definitions as d
from metrics.metric_definition import MetricDefinition, slug

DEFAULT_TARGET_BYTES = 512 * 1024 * 1024  # Iceberg's default of write.target-file-size-bytes

LONGEST_LABEL = 256
MAX_TABLES = 5_000
_CHECKSUM_LETTERS = 12
_CONTROL_OR_SURROGATE = "%\x00-\x1f\x7f-\x9f\ud800-\udfff"  # a lone surrogate cannot be written as UTF-8
_NAME_ESCAPES = re.compile(f"[.{_CONTROL_OR_SURROGATE}]")


@dataclass(frozen=True)
class TableSummary:
    """Sums over one table's partitions."""

    debt: TableDebt
    total: PartitionCounts
    due_partitions: int
    debt_files: int

    @property
    def table(self) -> TableName:
        return self.debt.table


class DebtCollector(Collector):
    """Prometheus collector of the debt board, the dispatcher's work, readiness and build information.

    `max_tables` limits the number of tables with their own series. `waiting_looks` returns for each catalog the number
    of tables that wait for a look; `listed` for each catalog whether its last listing succeeded; `shard` the part of
    the tables that is this service's;
    `active` whether this service may commit; `uncounted` the number of tables that were found and not looked at yet;
    `open_seconds` the seconds between two moments outside quiet hours; `paused` whether a table is paused, `held_until`
    when it was last; `clock` returns seconds since the epoch. `observing`: whether the service only observes.
    """

    def __init__(
        self,
        board: DebtBoard,
        work: Callable[[], Work],
        ready: Callable[[], bool],
        *,
        version: str,
        max_tables: int = MAX_TABLES,
        waiting_looks: Callable[[], Mapping[str, int]] = dict,
        listed: Callable[[], Mapping[str, bool]] = dict,
        shard: Shard = EVERYTHING,
        active: Callable[[], bool] = lambda: True,
        observing: bool = False,
        uncounted: Callable[[], int] = lambda: 0,
        open_seconds: Callable[[float, float], float] = lambda since, now: now - since,
        paused: Callable[[TableName], bool] = lambda _table: False,
        held_until: Callable[[TableName], float] = lambda _table: 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._work = work
        self._ready = ready
        self._version = version
        self._max_tables = max_tables
        self._waiting_looks = waiting_looks
        self._listed = listed
        self._shard = shard
        self._active = active
        self._observing = observing
        self._uncounted = uncounted
        self._open_seconds = open_seconds
        self._paused = paused
        self._held_until = held_until
        self._clock = clock
        self._summaries: dict[TableName, TableSummary] = {}

    def summaries(self) -> tuple[TableSummary, ...]:
        """Sums of every table, most small files first.

        Adding up a million partitions takes seconds, so a table's sums are cached until its debt is replaced. Each call
        replaces the cache as a whole, so concurrent scrapes need no lock.
        """
        known = self._summaries
        fresh: dict[TableName, TableSummary] = {}
        for debt in self._board.tables():
            kept = known.get(debt.table)
            fresh[debt.table] = kept if kept is not None and kept.debt is debt else self._summarize(debt)
        self._summaries = fresh
        # The board is in name order and sorting is stable: tables with equal counts stay in name order.
        return tuple(sorted(fresh.values(), key=lambda summary: -summary.total.small_files))

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Families without samples, so that registration does not read the board but refuses a second collector."""
        return [_family(definition) for definition in COLLECTED]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families with their current values."""
        now = self._clock()
        summaries, work = self.summaries(), self._work()
        named = sorted(summaries, key=lambda summary: _table_rank(summary.debt, now))[: self._max_tables]
        yield from self._tables(tuple(named), work.working, now)
        yield from self._service(summaries, work, now)
        yield _family(d.WAITING_LOOKS, _by_catalog(self._waiting_looks(), sum))
        yield _family(d.CATALOG_LISTED, _by_catalog(self._listed(), min))
        yield _family(d.BUILD_INFO, [((self._version, platform.python_version()), 1)])

    def _summarize(self, debt: TableDebt) -> TableSummary:
        target = debt.target_bytes or DEFAULT_TARGET_BYTES
        others = debt.others
        removable = sum(_removable(partition.counts, target) for partition in debt.due)
        return TableSummary(
            debt=debt,
            total=debt.total,
            due_partitions=debt.due_partitions,
            debt_files=removable + max(0, others.due_files - max(others.due_partitions, others.due_bytes // target)),
        )

    def _tables(
        self, summaries: tuple[TableSummary, ...], working: frozenset[TableName], now: float
    ) -> Iterator[GaugeMetricFamily]:
        labels = [(_escaped(_NAME_ESCAPES, one.table.catalog), table_label(one.table)) for one in summaries]
        for definition, value in _TABLE_VALUES.items():
            yield _family(definition, zip(labels, (value(one) for one in summaries), strict=True))
        paused = [self._paused(one.table) for one in summaries]
        acted_on = (one.debt.acted_on and not held for one, held in zip(summaries, paused, strict=True))
        yield _family(d.TABLE_ACTED_ON, zip(labels, acted_on, strict=True))
        ages = (
            0.0 if held or one.table in working else self._due_seconds(one.debt, now)
            for one, held in zip(summaries, paused, strict=True)
        )
        yield _family(d.TABLE_DUE_SECONDS, zip(labels, ages, strict=True))

    def _due_seconds(self, debt: TableDebt, now: float) -> float:
        if debt.due_since is None:
            return 0.0
        return max(0.0, self._open_seconds(max(debt.due_since, self._held_until(debt.table)), now))

    def _service(self, summaries: tuple[TableSummary, ...], work: Work, now: float) -> Iterator[GaugeMetricFamily]:
        values = (
            len(summaries),
            self._uncounted(),
            sum(summary.debt.unreadable for summary in summaries),
            work.queued,
            work.running,
            work.oldest_due_seconds,
            work.late,
            len(work.lost),
            sum(one.debt.acted_on and self._paused(one.table) for one in summaries),
            self._ready(),
            self._active(),
            self._observing,
            sum(_has_other_firnline(summary.debt, now) for summary in summaries),
        )
        for definition, value in zip(_SERVICE_METRICS, values, strict=True):
            yield _family(definition, [((), value)])
        yield _family(d.SHARD_MEMBERS, [((str(self._shard.number),), self._shard.count)])


def table_label(table: TableName) -> str:
    """`catalog.namespace.name`, with dots inside a part escaped, so that two tables never share a label."""
    return _shortened(".".join(_escaped(_NAME_ESCAPES, part) for part in (table.catalog, *table.identifier)))


def _escaped(unsafe: re.Pattern[str], text: str) -> str:
    return unsafe.sub(lambda found: f"%{ord(found.group()):02X}", text)


def _shortened(label: str) -> str:
    """Cut long labels (a partition value can be a whole document); a checksum keeps them distinct."""
    if len(label) <= LONGEST_LABEL:
        return label
    checksum = hashlib.sha256(label.encode()).hexdigest()[:_CHECKSUM_LETTERS]
    return f"{label[: LONGEST_LABEL - _CHECKSUM_LETTERS - 1]}~{checksum}"


def _family(definition: MetricDefinition, samples: Iterable[tuple[tuple[str, ...], float]] = ()) -> GaugeMetricFamily:
    family = GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _by_catalog(
    values: Mapping[str, float], joined: Callable[[Iterable[float]], float]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Labelled as the recorder labels catalogs, so that series can be compared: names that are no slugs share one."""
    labels = {catalog: slug(catalog) for catalog in values}
    for label in dict.fromkeys(labels.values()):
        yield (label,), joined(value for catalog, value in values.items() if labels[catalog] == label)


def _table_rank(debt: TableDebt, now: float) -> tuple[int, float]:
    """Which tables have series of their own: first those that alerts are about, in the order of their trouble."""
    if debt.unreadable:
        return (0, 0.0)
    if debt.acted_on and debt.due_since is not None and now - debt.due_since > STARVING_SECONDS:
        return (1, debt.due_since)
    return (2, 0.0)  # in the given order


def _removable(counts: PartitionCounts, target_bytes: int) -> int:
    """Number of files that a rewrite removes: small files less the outputs (their bytes / target, at least one)."""
    outputs = max(1, -(-counts.small_bytes // target_bytes))
    return max(0, counts.small_files - outputs)


def _has_other_firnline(debt: TableDebt, now: float) -> bool:
    return any(other.last > now - DAY_SECONDS for other in debt.other_firnlines)


def _manifests(summary: TableSummary) -> ManifestCounts:
    return summary.debt.manifests or ManifestCounts()


_TABLE_VALUES: Final[Mapping[MetricDefinition, Callable[[TableSummary], float]]] = {
    d.TABLE_FILES: lambda summary: summary.total.data_files,
    d.TABLE_SMALL_FILES: lambda summary: summary.total.small_files,
    d.TABLE_DATA_BYTES: lambda summary: summary.total.data_bytes,
    d.TABLE_DELETE_FILES: lambda summary: summary.total.delete_files,
    d.TABLE_RECORDS: lambda summary: summary.total.records,
    d.TABLE_DUE_PARTITIONS: lambda summary: summary.due_partitions,
    d.TABLE_DEBT_FILES: lambda summary: summary.debt_files,
    d.TABLE_STALE: lambda summary: summary.debt.unreadable,
    d.TABLE_MANIFESTS: lambda summary: _manifests(summary).manifests,
}
_SERVICE_METRICS = (
    d.TABLES,
    d.UNCOUNTED_TABLES,
    d.STALE_TABLES,
    d.QUEUED_RUNS,
    d.RUNNING_RUNS,
    d.OLDEST_DUE_SECONDS,
    d.LATE_TABLES,
    d.LOST_RUNS,
    d.PAUSED_TABLES,
    d.SERVICE_READY,
    d.ACTIVE,
    d.OBSERVING,
    d.OTHER_FIRNLINE_TABLES,
)
COLLECTED = (
    *_TABLE_VALUES,
    d.TABLE_ACTED_ON,
    d.TABLE_DUE_SECONDS,
    *_SERVICE_METRICS,
    d.SHARD_MEMBERS,
    d.WAITING_LOOKS,
    d.CATALOG_LISTED,
    d.BUILD_INFO,
)
