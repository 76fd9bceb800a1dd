"""Count typed events in Prometheus metrics. The debt collector reads gauges of tables and queues at scrape time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from compactor import events
from compactor.errors import FirnlineError
from compactor.reasons import SIGNS_OF_DAMAGE
from compactor.settings.kafka import EventFormat
from metrics import definitions as d
from metrics.metric_definition import Kind, MetricDefinition
from metrics.moment import slug

MOST_OF_A_RUN_ID = 100
HISTORY = "history"
"""What the history of decisions is called among the hooks: these are called like `0-trino`."""
_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)
_FROM_ZERO = {
    d.RECOUNTS: d.RECOUNT_REASONS,
    d.LOOKS: d.LOOK_OUTCOMES,
    d.UNREFERENCED_FILES_REMOVED: d.DELETED_BECAUSE,
    d.TABLE_DAMAGE: SIGNS_OF_DAMAGE,
    d.UNANNOUNCED_COMMITS: get_args(EventFormat),
}
"""Counters with the values of their label: Prometheus sees the first increase only after a zero."""


class Recorder:
    """Listener that counts every event. Thread-safe: its only state is Prometheus metrics, which have their own locks.

    Registers all metrics of the catalogue that are not read at a scrape with `registry`. `clock` returns seconds since
    the epoch.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        defined = {kind: [one for one in d.CATALOGUE if one.kind is kind and one.read is None] for kind in Kind}
        self._counters = {
            one.name: Counter(one.name, one.meaning, one.labels, registry=registry) for one in defined[Kind.COUNTER]
        }
        self._histograms = {
            one.name: Histogram(one.name, one.meaning, one.labels, registry=registry, buckets=one.buckets)
            for one in defined[Kind.HISTOGRAM]
        }
        self._gauges = {
            one.name: Gauge(one.name, one.meaning, one.labels, registry=registry) for one in defined[Kind.GAUGE]
        }
        for definition, values in _FROM_ZERO.items():
            for value in values:
                self._counters[definition.name].labels(value)
        self.hook_known(HISTORY)

    def stream_alive(self, query: str) -> None:
        """The query runs and has nothing to do, or was just started: the alert on old batches counts from now."""
        self._set(d.LAST_BATCH_TIMESTAMP_SECONDS, self._clock(), query)
        _child(self._counters[d.EVENTS_LOST.name], (query,))  # from the start, at 0

    def hook_known(self, hook: str) -> None:
        """A hook is configured. Prometheus sees the first failure only after a zero."""
        for result in d.HOOK_RESULTS:
            _child(self._counters[d.HOOK_CALLS.name], (hook, result))

    def __call__(self, event: events.Event) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per event type
        match event:
            case events.RunPlanned():
                self._observe(d.STAGE_SECONDS, event.seconds, "plan", run_id=event.run_id)
            case events.RunSkipped():
                self._count(d.RUNS_SKIPPED, 1, event.reason)
            case events.GroupRewritten():
                self._count(d.REWRITE_GROUPS, 1, event.engine, event.reason, run_id=event.run_id)
                self._count(d.REWRITE_INPUT_BYTES, event.bytes_in, event.engine, event.reason)
            case events.GroupDropped():
                self._count(d.DROPPED_GROUPS, 1, event.reason, event.reaction, run_id=event.run_id)
                self._damage(event)
            case events.RunCommitted():
                self._committed(event)
            case events.RunFailed():
                self._count(d.RUN_FAILURES, 1, event.stage, event.reason, event.reaction, run_id=event.run_id)
                self._damage(event)
            case events.ManifestsRewritten():
                self._count(d.MANIFESTS_MERGED, event.before - event.after, run_id=event.run_id)
            case events.FileDeleted():
                self._count(d.UNREFERENCED_FILES_REMOVED, 1, event.reason, run_id=event.run_id)
            case events.ManifestsRead():
                self._count(d.MANIFEST_CACHE_MISSES, event.misses)
            case events.LedgerUpdated():
                if event.recount_reason is not None:
                    self._count(d.RECOUNTS, 1, event.recount_reason)
            case events.EventsHeard():
                for source, count in event.by_source.items():
                    self._count(d.EVENTS, count, source)
            case events.CommitUnannounced():
                self._count(d.UNANNOUNCED_COMMITS, 1, event.source)
            case events.HttpEventAnswered():
                self._count(d.HTTP_EVENTS, 1, event.result)
            case events.TableLooked():
                self._count(d.LOOKS, 1, event.outcome)
            case events.CatalogAnswers():
                self._set(d.CATALOG_AVAILABLE, event.available, event.catalog)
            case events.DeadLettered():
                self._count(d.DEAD_LETTERS, event.count, event.reason)
            case events.BatchFinished():
                self._set(d.LAST_BATCH_TIMESTAMP_SECONDS, self._clock(), event.query)
            case events.LagChanged():
                self._set(d.EVENT_LAG_OFFSETS, event.offsets, event.query)
            case events.StreamEnded():
                self._count(d.STREAM_ENDS, 1, event.query, event.cause)
            case events.EventsLost():
                self._count(d.EVENTS_LOST, event.count, event.query)
            case events.HookFinished():
                self._count(d.HOOK_CALLS, 1, event.hook, "failed" if event.error else "told")
            case events.HistoryWritten():
                self._count(d.HOOK_CALLS, 1, HISTORY, "told" if event.rows else "failed")
            case _:
                pass  # for the log, the history or the status page

    def _damage(self, event: events.GroupDropped | events.RunFailed) -> None:
        if event.reason in SIGNS_OF_DAMAGE and event.reaction == FirnlineError.reaction:  # not: planned or tried again
            self._count(d.TABLE_DAMAGE, 1, event.reason, run_id=event.run_id)

    def _committed(self, event: events.RunCommitted) -> None:
        self._count(d.COMMITS, 1, run_id=event.run_id)
        self._count(d.COMMIT_INPUT_FILES, event.files_in)
        self._count(d.COMMIT_OUTPUT_FILES, event.files_out)
        self._count(d.COMMIT_INPUT_BYTES, event.bytes_in)
        # RunPlanned observes the plan stage, also for runs that fail.
        self._observe(d.STAGE_SECONDS, event.rewrite_seconds, "rewrite", run_id=event.run_id)
        self._observe(d.STAGE_SECONDS, event.commit_seconds, "commit", run_id=event.run_id)
        if event.event_to_compacted_seconds is not None:
            self._observe(d.EVENT_TO_COMPACTED_SECONDS, event.event_to_compacted_seconds, run_id=event.run_id)

    def _count(self, definition: MetricDefinition, amount: float, *labels: str, run_id: str = "") -> None:
        _child(self._counters[definition.name], labels).inc(_not_negative(amount), _exemplar(run_id))

    def _observe(self, definition: MetricDefinition, value: float, *labels: str, run_id: str = "") -> None:
        _child(self._histograms[definition.name], labels).observe(_not_negative(value), _exemplar(run_id))

    def _set(self, definition: MetricDefinition, value: float, *labels: str) -> None:
        _child(self._gauges[definition.name], labels).set(value)


def _child(metric: _Metric, labels: tuple[str, ...]) -> _Metric:
    return metric.labels(*map(slug, labels)) if labels else metric


def _exemplar(run_id: str) -> dict[str, str] | None:
    """Links a sample to the run's log lines, snapshot and history. OpenMetrics allows 128 characters."""
    return {"run_id": run_id} if run_id and len(run_id) <= MOST_OF_A_RUN_ID else None


def _not_negative(value: float) -> float:
    """Return 0 for negative values, NaN and infinity.

    Clocks of two machines differ, so a latency can be negative; a counter raises on it. NaN and infinity would stay in
    a sum forever.
    """
    return value if math.isfinite(value) and value > 0 else 0.0
