"""Gauges read at scrape time from the debt board and the dispatcher, so that what vanishes there vanishes here."""

from __future__ import annotations

import hashlib
import heapq
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.partitions import JsonValue
from compactor.table_names import TableName
from metrics import definitions as d
from metrics.metric_definition import MetricDefinition

DEFAULT_TARGET_BYTES = 512 * 1024 * 1024  # Iceberg's default of write.target-file-size-bytes

LONGEST_LABEL = 256
_CHECKSUM_LETTERS = 12
_CONTROL_OR_SURROGATE = "%\x00-\x1f\x7f-\x9f\ud800-\udfff"  # a lone surrogate cannot be written as UTF-8
_NAME_ESCAPES = re.compile(f"[.{_CONTROL_OR_SURROGATE}]")
_VALUE_ESCAPES = re.compile(f'[/="{_CONTROL_OR_SURROGATE}]')

_Rank = tuple[int, int, int, str]

_TABLE_METRICS = (
    d.TABLE_FILES,
    d.TABLE_SMALL_FILES,
    d.TABLE_DATA_BYTES,
    d.TABLE_SMALL_BYTES,
    d.TABLE_DELETE_FILES,
    d.TABLE_RECORDS,
    d.TABLE_DUE_PARTITIONS,
    d.TABLE_DEBT_FILES,
    d.TABLE_WAITING_SECONDS,
    d.TABLE_STALE,
    d.TABLE_ACTED_ON,
    d.TABLE_MANIFESTS,
    d.TABLE_MANIFEST_BYTES,
    d.TABLE_MANIFEST_DEPTH,
)
_PARTITION_METRICS = (
    d.PARTITION_FILES,
    d.PARTITION_SMALL_FILES,
    d.PARTITION_DATA_BYTES,
    d.PARTITION_SMALL_BYTES,
    d.PARTITION_DELETE_FILES,
    d.PARTITION_RECORDS,
)
_SINGLE_METRICS = (
    d.TABLES,
    d.TABLES_LEFT_OUT,
    d.STALE_TABLES,
    d.OLDEST_WAITING_SECONDS,
    d.QUEUED_RUNS,
    d.RUNNING_RUNS,
    d.OLDEST_DUE_SECONDS,
    d.SERVICE_READY,
)
COLLECTED = (*_TABLE_METRICS, *_PARTITION_METRICS, *_SINGLE_METRICS, d.BUILD_INFO)


@dataclass(frozen=True)
class WorkStatus:
    """What the dispatcher has to do. `oldest_due_seconds`: how long the longest-waiting due table has been due."""

    queued: int = 0
    running: int = 0
    oldest_due_seconds: float = 0.0


@dataclass(frozen=True)
class CollectorLimits:
    """Bounds of the exposition: tables with series of their own, and partitions shown over the whole fleet."""

    max_tables: int = 5_000
    worst_partitions: int = 20


@dataclass(frozen=True)
class TableSummary:
    """One table's debt, added up. `worst` are the candidates for the fleet's worst partitions, worst first."""

    debt: TableDebt
    total: PartitionCounts
    due_partitions: int
    debt_files: int
    worst: tuple[PartitionDebt, ...]

    @property
    def table(self) -> TableName:
        return self.debt.table


class DebtCollector(Collector):
    """A Prometheus collector of the debt board, the dispatcher's work, readiness and the build.

    `target_bytes` gives a table's target file size and `clock` seconds since the epoch.
    """

    def __init__(
        self,
        board: DebtBoard,
        work: Callable[[], WorkStatus],
        ready: Callable[[], bool],
        *,
        version: str,
        limits: CollectorLimits | None = None,
        target_bytes: Callable[[TableName], int] = lambda _table: DEFAULT_TARGET_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._work = work
        self._ready = ready
        self._version = version
        self._limits = limits or CollectorLimits()
        self._target_bytes = target_bytes
        self._clock = clock
        self._summaries: dict[TableName, TableSummary] = {}

    def summaries(self) -> tuple[TableSummary, ...]:
        """Every table's debt added up, most small files first.

        Adding up a million partitions takes seconds, so a table is summed again only after its debt was replaced. The
        kept sums are replaced as a whole, never changed: scrapes at the same time need no lock.
        """
        known = self._summaries
        fresh: dict[TableName, TableSummary] = {}
        for debt in self._board.tables():
            kept = known.get(debt.table)
            fresh[debt.table] = kept if kept is not None and kept.debt is debt else self._summarize(debt)
        self._summaries = fresh
        # The board's order is by name and sorting is stable: equally bad tables are in name order.
        return tuple(sorted(fresh.values(), key=lambda summary: -summary.total.small_files))

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The families without samples: registering the collector reads no board, and a second one is refused."""
        return [_family(definition) for definition in COLLECTED]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauge families, as of now."""
        now = self._clock()
        summaries = self.summaries()
        yield from self._tables(summaries[: self._limits.max_tables], now)
        yield from self._partitions(summaries)
        yield from self._singles(summaries, now)
        yield _family(d.BUILD_INFO, [((self._version, platform.python_version()), 1)])

    def _summarize(self, debt: TableDebt) -> TableSummary:
        target = max(1, self._target_bytes(debt.table))
        partitions = debt.partitions.values()
        return TableSummary(
            debt=debt,
            total=debt.total,
            due_partitions=sum(partition.due for partition in partitions),
            debt_files=sum(_removable(partition.counts, target) for partition in partitions),
            worst=tuple(heapq.nsmallest(self._limits.worst_partitions, partitions, key=_partition_rank)),
        )

    def _tables(self, summaries: tuple[TableSummary, ...], now: float) -> Iterator[GaugeMetricFamily]:
        families = [_family(definition) for definition in _TABLE_METRICS]
        for summary in summaries:
            labels = (_escaped(_NAME_ESCAPES, summary.table.catalog), table_label(summary.table))
            for family, value in zip(families, _table_values(summary, now), strict=True):
                family.add_metric(labels, value)
        yield from families

    def _partitions(self, summaries: tuple[TableSummary, ...]) -> Iterator[GaugeMetricFamily]:
        families = [_family(definition) for definition in _PARTITION_METRICS]
        # Lazy: looks at one partition of each table, then only at the worst.
        fleet = heapq.merge(*map(_ranked, summaries), key=itemgetter(0))
        for _, table, debt in islice(fleet, self._limits.worst_partitions):
            bucket = "" if debt.bucket is None else str(debt.bucket)
            labels = (table_label(table), str(debt.key.spec_id), partition_label(debt), bucket)
            for family, value in zip(families, _count_values(debt.counts), strict=True):
                family.add_metric(labels, value)
        yield from families

    def _singles(self, summaries: tuple[TableSummary, ...], now: float) -> Iterator[GaugeMetricFamily]:
        work = self._work()
        waiting = (_waiting_seconds(summary.debt, now) for summary in summaries if summary.debt.acted_on)
        values = (
            len(summaries),
            len(summaries) - len(summaries[: self._limits.max_tables]),
            sum(summary.debt.stale is not None for summary in summaries),
            max(waiting, default=0.0),
            work.queued,
            work.running,
            work.oldest_due_seconds,
            int(self._ready()),
        )
        for definition, value in zip(_SINGLE_METRICS, values, strict=True):
            yield _family(definition, [((), value)])


def table_label(table: TableName) -> str:
    """`catalog.namespace.name`, with dots inside a part escaped: two tables never share a label."""
    return _shortened(".".join(_escaped(_NAME_ESCAPES, part) for part in (table.catalog, *table.identifier)))


def partition_label(debt: PartitionDebt) -> str:
    """`field=value/field=value`, escaped so that two partitions of one spec never share a label."""
    fields = (f"{_escaped(_VALUE_ESCAPES, name)}={_escaped_value(value)}" for name, value in debt.partition.items())
    return _shortened("/".join(fields))


def _escaped_value(value: JsonValue) -> str:
    if value == "null":
        return "%6Eull"  # the text, not the absence of a value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _escaped(_VALUE_ESCAPES, str(value))


def _escaped(unsafe: re.Pattern[str], text: str) -> str:
    return unsafe.sub(lambda found: f"%{ord(found.group()):02X}", text)


def _shortened(label: str) -> str:
    """A partition value may be a whole document; a checksum keeps two such labels apart."""
    if len(label) <= LONGEST_LABEL:
        return label
    checksum = hashlib.sha256(label.encode()).hexdigest()[:_CHECKSUM_LETTERS]
    return f"{label[: LONGEST_LABEL - _CHECKSUM_LETTERS - 1]}~{checksum}"


def _family(definition: MetricDefinition, samples: Iterable[tuple[tuple[str, ...], float]] = ()) -> GaugeMetricFamily:
    family = GaugeMetricFamily(definition.name, definition.meaning, labels=definition.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _ranked(summary: TableSummary) -> Iterator[tuple[_Rank, TableName, PartitionDebt]]:
    for debt in summary.worst:
        yield _partition_rank(debt), summary.table, debt


def _partition_rank(debt: PartitionDebt) -> _Rank:
    return (-debt.counts.small_files, -debt.counts.delete_files, debt.key.spec_id, debt.key.values)


def _removable(counts: PartitionCounts, target_bytes: int) -> int:
    """Small files less the files of target size that their bytes fill, at least one."""
    outputs = max(1, -(-counts.small_bytes // target_bytes))
    return max(0, counts.small_files - outputs)


def _waiting_seconds(debt: TableDebt, now: float) -> float:
    return 0.0 if debt.waiting_since is None else max(0.0, now - debt.waiting_since)


def _count_values(counts: PartitionCounts) -> tuple[int, ...]:
    return (
        counts.data_files,
        counts.small_files,
        counts.data_bytes,
        counts.small_bytes,
        counts.delete_files,
        counts.records,
    )


def _table_values(summary: TableSummary, now: float) -> tuple[float, ...]:
    debt = summary.debt
    return (
        *_count_values(summary.total),
        summary.due_partitions,
        summary.debt_files,
        _waiting_seconds(debt, now),
        int(debt.stale is not None),
        int(debt.acted_on),
        *_manifest_values(debt.manifests),
    )


def _manifest_values(counts: ManifestCounts | None) -> tuple[float, ...]:
    return (counts.manifests, counts.bytes, counts.depth) if counts is not None else (0, 0, 0)
