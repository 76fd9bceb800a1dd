"""Gauges read at scrape time from the debt board and the dispatcher; a dropped table's series vanish with the table."""

from __future__ import annotations

import hashlib
import heapq
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.iceberg.other_compactors import DAY_SECONDS
from compactor.partitions import JsonValue
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
_VALUE_ESCAPES = re.compile(f'[/="{_CONTROL_OR_SURROGATE}]')

_Rank = tuple[int, int, int, str]


@dataclass(frozen=True)
class TableSummary:
    """Sums over one table's partitions. `worst`: its candidates for the fleet's worst partitions, worst first."""

    debt: TableDebt
    total: PartitionCounts
    due_partitions: int
    debt_files: int
    worst: tuple[PartitionDebt, ...]

    @property
    def table(self) -> TableName:
        return self.debt.table


class DebtCollector(Collector):
    """Prometheus collector of the debt board, the dispatcher's work, readiness and build information.

    `max_tables` and `worst_partitions` limit the number of series: tables with their own series, and partitions of
    all tables together. `waiting_looks` returns for each catalog the number of tables that wait for a look; `unlisted`
    the number of namespaces that could not be listed; `listed` for each catalog whether its last listing succeeded;
    `shard` the part of the tables that is this service's;
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
        worst_partitions: int = 20,
        waiting_looks: Callable[[], Mapping[str, int]] = dict,
        unlisted: Callable[[], int] = lambda: 0,
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
        self._worst_partitions = worst_partitions
        self._waiting_looks = waiting_looks
        self._unlisted = unlisted
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
        yield from self._partitions(summaries)
        yield from self._service(summaries, work, now)
        yield _family(d.WAITING_LOOKS, _by_catalog(self._waiting_looks(), sum))
        yield _family(d.CATALOG_LISTED, _by_catalog(self._listed(), min))
        yield _family(d.BUILD_INFO, [((self._version, platform.python_version()), 1)])

    def _summarize(self, debt: TableDebt) -> TableSummary:
        target = debt.target_bytes or DEFAULT_TARGET_BYTES
        partitions, others = debt.partitions.values(), debt.others
        removable = sum(_removable(partition.counts, target) for partition in debt.due)
        return TableSummary(
            debt=debt,
            total=debt.total,
            due_partitions=debt.due_partitions,
            debt_files=removable + max(0, others.due_files - max(others.due_partitions, others.due_bytes // target)),
            worst=tuple(heapq.nsmallest(self._worst_partitions, partitions, key=_partition_rank)),
        )

    def _tables(
        self, summaries: tuple[TableSummary, ...], working: frozenset[TableName], now: float
    ) -> Iterator[GaugeMetricFamily]:
        labels = [(_escaped(_NAME_ESCAPES, one.table.catalog), table_label(one.table)) for one in summaries]
        for definition, value in _TABLE_VALUES.items():
            yield _family(definition, zip(labels, (value(one, now) for one in summaries), strict=True))
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

    def _partitions(self, summaries: tuple[TableSummary, ...]) -> Iterator[GaugeMetricFamily]:
        # Lazy: reads one partition of each table, then only the worst.
        fleet = heapq.merge(*map(_ranked, summaries), key=itemgetter(0))
        worst = [(table, debt) for _, table, debt in islice(fleet, self._worst_partitions)]
        labels = [
            (
                table_label(table),
                str(debt.key.spec_id),
                partition_label(debt),
                "" if debt.bucket is None else str(debt.bucket),
            )
            for table, debt in worst
        ]
        for definition, value in _PARTITION_VALUES.items():
            yield _family(definition, zip(labels, (value(debt.counts) for _, debt in worst), strict=True))

    def _service(self, summaries: tuple[TableSummary, ...], work: Work, now: float) -> Iterator[GaugeMetricFamily]:
        rewritten = [summary for summary in summaries if summary.debt.acted_on]
        paused = {summary.table for summary in rewritten if self._paused(summary.table)}
        waiting = (_waiting_seconds(summary.debt, now) for summary in rewritten if summary.table not in paused)
        values = (
            len(summaries),
            self._uncounted(),
            len(summaries) - len(summaries[: self._max_tables]),
            sum(summary.debt.unreadable for summary in summaries),
            max(waiting, default=0.0),
            work.queued,
            work.running,
            work.oldest_due_seconds,
            work.late,
            work.oldest_run_seconds,
            work.silent_run_seconds,
            len(work.lost),
            len(paused),
            self._unlisted(),
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


def partition_label(debt: PartitionDebt) -> str:
    """`field=value/field=value`, escaped so that two partitions of one spec never share a label."""
    fields = (f"{_escaped(_VALUE_ESCAPES, name)}={_escaped_value(value)}" for name, value in debt.partition.items())
    return _shortened("/".join(fields))


def _escaped_value(value: JsonValue) -> str:
    if value == "null":
        return "%6Eull"  # the text "null", not a null
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _escaped(_VALUE_ESCAPES, str(value))


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


def _ranked(summary: TableSummary) -> Iterator[tuple[_Rank, TableName, PartitionDebt]]:
    for debt in summary.worst:
        yield _partition_rank(debt), summary.table, debt


def _partition_rank(debt: PartitionDebt) -> _Rank:
    return (-debt.counts.small_files, -debt.counts.delete_files, debt.key.spec_id, debt.key.values)


def _removable(counts: PartitionCounts, target_bytes: int) -> int:
    """Number of files that a rewrite removes: small files less the outputs (their bytes / target, at least one)."""
    outputs = max(1, -(-counts.small_bytes // target_bytes))
    return max(0, counts.small_files - outputs)


def _waiting_seconds(debt: TableDebt, now: float) -> float:
    return 0.0 if debt.waiting_since is None else max(0.0, now - debt.waiting_since)


def _has_other_firnline(debt: TableDebt, now: float) -> bool:
    return any(other.last > now - DAY_SECONDS for other in debt.other_firnlines)


def _manifests(summary: TableSummary) -> ManifestCounts:
    return summary.debt.manifests or ManifestCounts()


_TABLE_VALUES: Final[Mapping[MetricDefinition, Callable[[TableSummary, float], float]]] = {
    d.TABLE_FILES: lambda summary, _: summary.total.data_files,
    d.TABLE_SMALL_FILES: lambda summary, _: summary.total.small_files,
    d.TABLE_DATA_BYTES: lambda summary, _: summary.total.data_bytes,
    d.TABLE_SMALL_BYTES: lambda summary, _: summary.total.small_bytes,
    d.TABLE_DELETE_FILES: lambda summary, _: summary.total.delete_files,
    d.TABLE_RECORDS: lambda summary, _: summary.total.records,
    d.TABLE_DUE_PARTITIONS: lambda summary, _: summary.due_partitions,
    d.TABLE_DEBT_FILES: lambda summary, _: summary.debt_files,
    d.TABLE_WAITING_SECONDS: lambda summary, now: _waiting_seconds(summary.debt, now),
    d.TABLE_STALE: lambda summary, _: summary.debt.unreadable,
    d.TABLE_MANIFESTS: lambda summary, _: _manifests(summary).manifests,
    d.TABLE_MANIFEST_BYTES: lambda summary, _: _manifests(summary).bytes,
    d.TABLE_MANIFEST_DEPTH: lambda summary, _: _manifests(summary).depth,
}
_PARTITION_VALUES: Final[Mapping[MetricDefinition, Callable[[PartitionCounts], float]]] = {
    d.PARTITION_FILES: lambda counts: counts.data_files,
    d.PARTITION_SMALL_FILES: lambda counts: counts.small_files,
    d.PARTITION_DATA_BYTES: lambda counts: counts.data_bytes,
    d.PARTITION_SMALL_BYTES: lambda counts: counts.small_bytes,
    d.PARTITION_DELETE_FILES: lambda counts: counts.delete_files,
    d.PARTITION_RECORDS: lambda counts: counts.records,
}
_SERVICE_METRICS = (
    d.TABLES,
    d.UNCOUNTED_TABLES,
    d.TABLES_LEFT_OUT,
    d.STALE_TABLES,
    d.OLDEST_WAITING_SECONDS,
    d.QUEUED_RUNS,
    d.RUNNING_RUNS,
    d.OLDEST_DUE_SECONDS,
    d.LATE_TABLES,
    d.OLDEST_RUN_SECONDS,
    d.SILENT_RUN_SECONDS,
    d.LOST_RUNS,
    d.PAUSED_TABLES,
    d.UNLISTED_NAMESPACES,
    d.SERVICE_READY,
    d.ACTIVE,
    d.OBSERVING,
    d.OTHER_FIRNLINE_TABLES,
)
COLLECTED = (
    *_TABLE_VALUES,
    d.TABLE_ACTED_ON,
    d.TABLE_DUE_SECONDS,
    *_PARTITION_VALUES,
    *_SERVICE_METRICS,
    d.SHARD_MEMBERS,
    d.WAITING_LOOKS,
    d.CATALOG_LISTED,
    d.BUILD_INFO,
)
