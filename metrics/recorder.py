"""Count typed events in Prometheus metrics. The debt collector reads gauges of tables and queues at scrape time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from compactor import events
from compactor.errors import FirnlineError
from compactor.reasons import SIGNS_OF_DAMAGE
from metrics import definitions as d
from metrics import delete_definitions as of_deletes
from metrics import manifest_definitions as m
from metrics import stream_definitions as s
from metrics.definitions import CATALOGUE
from metrics.metric_definition import Kind, MetricDefinition, slug

MOST_OF_A_RUN_ID = 100
_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

RECORDED_GAUGES = (
    s.EVENT_LAG_OFFSETS,
    s.LAST_EVENT_TIMESTAMP_SECONDS,
    s.LAST_BATCH_TIMESTAMP_SECONDS,
    d.CATALOG_AVAILABLE,
    d.LAST_COMMIT_TIMESTAMP_SECONDS,
)


class Recorder:
    """Listener that counts every event. Thread-safe: its only state is Prometheus metrics, which have their own locks.

    Registers all counters and histograms of the catalogue and RECORDED_GAUGES with `registry`.
    `clock` returns seconds since the epoch.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        defined = {kind: [one for one in CATALOGUE if one.kind is kind] for kind in Kind}
        self._counters = {
            one.name: Counter(one.name, one.meaning, one.labels, registry=registry) for one in defined[Kind.COUNTER]
        }
        self._histograms = {
            one.name: Histogram(one.name, one.meaning, one.labels, registry=registry, buckets=one.buckets)
            for one in defined[Kind.HISTOGRAM]
        }
        self._gauges = {
            one.name: Gauge(one.name, one.meaning, one.labels, registry=registry) for one in RECORDED_GAUGES
        }
        for reason in d.RECOUNT_REASONS:  # Prometheus sees the first increase only after a zero
            self._counters[d.RECOUNTS.name].labels(reason)
        for outcome in d.LOOK_OUTCOMES:
            self._counters[d.LOOKS.name].labels(outcome)
        for deleted in d.DELETED_BECAUSE:
            self._counters[d.UNREFERENCED_FILES_REMOVED.name].labels(deleted)
        for sign in SIGNS_OF_DAMAGE:
            self._counters[d.TABLE_DAMAGE.name].labels(sign)

    def stream_alive(self, query: str) -> None:
        """The query runs and has nothing to do, or was just started: the alert on old batches counts from now."""
        self._set(s.LAST_BATCH_TIMESTAMP_SECONDS, self._clock(), query)

    def hook_known(self, hook: str) -> None:
        """A hook is configured. Prometheus sees the first failure only after a zero."""
        for result in d.HOOK_RESULTS:
            _child(self._counters[d.HOOK_CALLS.name], (hook, result))

    def __call__(self, event: events.Event) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per event type, checked for completeness
        match event:
            case events.RunPlanned():
                self._planned(event)
            case events.RunSkipped():
                self._count(d.RUNS_SKIPPED, 1, event.reason)
            case events.RunWouldRewrite():
                self._would_rewrite(event)
            case events.GroupRewritten():
                self._rewritten(event)
            case events.GroupDropped():
                self._count(d.DROPPED_GROUPS, 1, event.reason, event.reaction, run_id=event.run_id)
                self._damage(event)
            case events.RunCommitted():
                self._committed(event)
            case events.RunFailed():
                self._count(d.RUN_FAILURES, 1, event.stage, event.reason, event.reaction, run_id=event.run_id)
                self._damage(event)
            case events.ManifestsRewritten():
                self._manifests_rewritten(event)
            case events.CommitHeld():
                after = "writer" if event.after_writer else "time"
                self._count(of_deletes.COMMITS_HELD, 1, after, run_id=event.run_id)
                self._count(of_deletes.COMMIT_HOLD_SECONDS, event.seconds)
            case events.CommitRolledBack():
                self._count(of_deletes.COMMITS_ROLLED_BACK, 1, run_id=event.run_id)
            case events.EqualityDeletesConverted():
                self._converted(event)
            case events.FileDeleted():
                self._count(d.UNREFERENCED_FILES_REMOVED, 1, event.reason, run_id=event.run_id)
            case events.DeletionRefused():
                self._count(d.REFUSED_DELETIONS, len(event.paths))
            case events.ManifestsRead():
                self._manifests_read(event)
            case events.LedgerUpdated():
                self._ledger_updated(event)
            case events.EventsHeard():
                self._heard(event)
            case events.CommitUnannounced():
                self._count(s.UNANNOUNCED_COMMITS, 1, event.source)
            case events.HttpEventAnswered():
                self._count(s.HTTP_EVENTS, 1, event.result)
            case events.LocationUnresolved():
                self._count(s.UNRESOLVED_LOCATIONS, 1, event.source)
            case events.TableLooked():
                self._count(d.LOOKS, 1, event.outcome)
            case events.CatalogAnswers():
                self._set(d.CATALOG_AVAILABLE, event.available, event.catalog)
            case events.TableUnreadable():
                self._count(d.UNREADABLE_TABLES, 1, event.reason)
            case events.DeadLettered():
                self._count(s.DEAD_LETTERS, event.count, event.reason)
            case events.BatchFinished():
                self._batch_finished(event)
            case events.LagChanged():
                self._set(s.EVENT_LAG_OFFSETS, event.offsets, event.query)
            case events.StreamEnded():
                self._count(s.STREAM_ENDS, 1, event.query, event.cause)
            case events.EventsLost():
                self._count(s.EVENTS_LOST, event.count, event.query)
            case events.HookFinished():
                self._count(d.HOOK_CALLS, 1, event.hook, "failed" if event.error else "told")
                self._count(d.HOOK_SECONDS, event.seconds, event.hook)
            case events.HistoryWritten():
                self._count(d.HISTORY_ROWS, event.rows)
                self._count(d.HISTORY_DROPPED_ROWS, event.dropped)
                self._count(d.HISTORY_FAILED_APPENDS, 1 if event.error else 0)
            case events.GroupCommitted():
                self._count(of_deletes.CARRIED_ROWS, event.rows_carried)
                self._count(of_deletes.REBASED_ROWS, event.rows_rebased)
            case events.PartitionsSkipped() | events.RunMoved() | events.CommitWaits():
                pass  # each for the log, the history or the status page; other events count the run
            case _:
                assert_never(event)

    def _damage(self, event: events.GroupDropped | events.RunFailed) -> None:
        if event.reason in SIGNS_OF_DAMAGE and event.reaction == FirnlineError.reaction:  # not: planned or tried again
            self._count(d.TABLE_DAMAGE, 1, event.reason, run_id=event.run_id)

    def _heard(self, event: events.EventsHeard) -> None:
        now = self._clock()
        for source, count in event.by_source.items():
            self._count(s.EVENTS, count, source)
            self._set(s.LAST_EVENT_TIMESTAMP_SECONDS, now, source)
        for source, oldest_ms in event.oldest_ms.items():
            self._observe(s.EVENT_AGE_SECONDS, max(0.0, now - oldest_ms / 1000), source)

    def _planned(self, event: events.RunPlanned) -> None:
        self._count(d.RUNS_PLANNED, 1)
        self._count(d.PLANNED_GROUPS, event.groups)
        self._count(d.PLANNED_FILES, event.files)
        self._count(d.PLANNED_BYTES, event.bytes)
        self._observe(d.STAGE_SECONDS, event.seconds, "plan", run_id=event.run_id)

    def _would_rewrite(self, event: events.RunWouldRewrite) -> None:
        self._count(d.WOULD_REWRITE_RUNS, 1)
        self._count(d.WOULD_REWRITE_GROUPS, event.groups)
        self._count(d.WOULD_REWRITE_FILES, event.files)
        self._count(d.WOULD_REWRITE_OUTPUT_FILES, event.files_after)
        self._count(d.WOULD_REWRITE_BYTES, event.bytes)

    def _rewritten(self, event: events.GroupRewritten) -> None:
        engine, reason = event.engine, event.reason
        self._count(d.REWRITE_GROUPS, 1, engine, reason)
        self._count(d.REWRITE_INPUT_FILES, event.files_in, engine, reason)
        self._count(d.REWRITE_OUTPUT_FILES, event.files_out, engine, reason)
        self._count(d.REWRITE_INPUT_BYTES, event.bytes_in, engine, reason)
        self._count(d.REWRITE_OUTPUT_BYTES, event.bytes_out, engine, reason)
        self._count(d.REWRITE_DECODED_BYTES, event.bytes_decoded, engine, reason)
        self._count(d.REWRITE_INPUT_ROWS, event.rows_in, engine, reason)
        self._count(d.REWRITE_DELETED_ROWS, event.rows_deleted, engine, reason)
        self._count(d.REWRITE_OUTPUT_ROWS, event.rows_out, engine, reason)
        self._count(d.REWRITE_SECONDS, event.seconds, engine, reason, run_id=event.run_id)
        self._observe(d.REWRITE_GROUP_SECONDS, event.seconds, engine, run_id=event.run_id)

    def _committed(self, event: events.RunCommitted) -> None:
        self._count(d.COMMITS, 1, run_id=event.run_id)
        self._count(d.COMMIT_GROUPS, event.groups)
        self._count(d.COMMIT_INPUT_FILES, event.files_in)
        self._count(d.COMMIT_OUTPUT_FILES, event.files_out)
        self._count(d.COMMIT_INPUT_BYTES, event.bytes_in)
        self._count(d.COMMIT_OUTPUT_BYTES, event.bytes_out)
        self._count(of_deletes.COMMIT_REMOVED_DELETE_FILES, event.delete_files_removed)
        # RunPlanned observes the plan stage, also for runs that fail.
        self._observe(d.STAGE_SECONDS, event.rewrite_seconds, "rewrite", run_id=event.run_id)
        self._observe(d.STAGE_SECONDS, event.commit_seconds, "commit", run_id=event.run_id)
        self._set(d.LAST_COMMIT_TIMESTAMP_SECONDS, self._clock())
        if event.event_to_compacted_seconds is not None:
            self._observe(d.EVENT_TO_COMPACTED_SECONDS, event.event_to_compacted_seconds, run_id=event.run_id)

    def _manifests_rewritten(self, event: events.ManifestsRewritten) -> None:
        self._count(m.MANIFEST_REWRITES, 1, run_id=event.run_id)
        self._count(m.MANIFESTS_MERGED, max(0, event.before - event.after))
        self._count(m.MANIFEST_REWRITE_SECONDS, event.seconds)

    def _converted(self, event: events.EqualityDeletesConverted) -> None:
        self._count(of_deletes.CONVERTED_DELETE_FILES, event.delete_files, run_id=event.run_id)
        self._count(of_deletes.CONVERTED_ROWS, event.rows)
        self._count(of_deletes.CONVERSION_READ_BYTES, event.bytes_read)
        self._count(of_deletes.CONVERSION_SECONDS, event.seconds)

    def _manifests_read(self, event: events.ManifestsRead) -> None:
        self._count(m.MANIFEST_CACHE_HITS, event.hits)
        self._count(m.MANIFEST_CACHE_MISSES, event.misses)
        self._count(m.MANIFEST_DISK_HITS, event.disk_hits)
        self._count(m.MANIFESTS_PREFETCHED, event.prefetched)
        self._count(m.MANIFESTS_FORESEEN, event.foreseen)
        self._count(m.MANIFESTS_UNUSUAL, event.unusual)
        self._count(m.MANIFEST_READ_BYTES, event.bytes_read)
        self._count(m.MANIFEST_READ_SECONDS, event.seconds)

    def _ledger_updated(self, event: events.LedgerUpdated) -> None:
        if event.counted:
            self._count(d.LEDGER_UPDATES, 1)
        if event.recount_reason is not None:
            self._count(d.RECOUNTS, 1, event.recount_reason)
        if event.event_to_ledger_seconds is not None:
            self._observe(d.EVENT_TO_LEDGER_SECONDS, event.event_to_ledger_seconds)

    def _batch_finished(self, event: events.BatchFinished) -> None:
        self._observe(s.BATCH_SECONDS, event.seconds, event.query)
        self._count(s.BATCH_INPUT_ROWS, event.input_rows, event.query)
        self._set(s.LAST_BATCH_TIMESTAMP_SECONDS, self._clock(), event.query)

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
