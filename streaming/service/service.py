"""The service: everything started in a fixed order, watched, and stopped in the reverse order.

Start: HTTP (alive, not ready) → catalogs → Spark → sweep of in-flight records → dispatcher → queries → table watcher →
ready. Stop: watcher → dispatcher (running work ends or is cancelled) → queries → Spark → HTTP.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector

from compactor.commit.in_flight import sweep
from compactor.commit.manifest_rewrite import rewrite_manifests
from compactor.debt.board import DebtBoard, TableDebt
from compactor.debt.manifest_debt import manifests_of
from compactor.errors import FirnlineError, GiveUpError, InputError, LaterError, RetryError, StoppedError
from compactor.events import (
    Event,
    LedgerUpdated,
    PartitionsSkipped,
    RunCommitted,
    RunFailed,
    RunSkipped,
    RunWouldRewrite,
    UnreferencedFilesRemoved,
)
from compactor.iceberg.other_compactors import other_compactors
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests.executor_job import ReadOnExecutors
from compactor.manifests.prefetcher import Prefetcher
from compactor.partitions import PartitionKey
from compactor.planning.budget import CATALOG_CALLS, NO_GRANT, Grant, Spent, requests_of
from compactor.planning.plan_table import AS_THE_SERVICE, TablePlan, plan_table
from compactor.reasons import Reason
from compactor.runs.dispatcher import Dispatcher
from compactor.runs.open_requests import OpenRequests
from compactor.runs.results import DroppedGroup, NoGroupLeftError
from compactor.runs.rewriter import Rewriter
from compactor.runs.work_order import Limits
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from metrics.debt_collector import CollectorLimits, DebtCollector, WorkStatus
from metrics.http_server import MetricsServer, Site
from metrics.recent_work import RecentWork
from metrics.recorder import Recorder
from metrics.status_page import Counting, Health
from streaming.commit_events.canonical import CanonicalDecoder
from streaming.commit_events.decoder import RawEvent, TableChanged
from streaming.hooks.refresh_hooks import RefreshHooks, named_hooks
from streaming.kafka.clients import ensure_topics, producer
from streaming.kafka.topic_sample import check_commit_topic
from streaming.ledger.batch_handler import BatchHandler, skipped_partition
from streaming.ledger.dead_letters import DeadLetter
from streaming.ledger.operator import DirectLedger, ledger_settings
from streaming.ledger.queries import start_dead_letters, start_ledger
from streaming.ledger.query_progress import ProgressReader
from streaming.ledger.table_watcher import TableWatcher
from streaming.logs.events import LOG, log_event
from streaming.version import VERSION
from streaming.wiring import check_run_settings, history_of, in_flight_records, manifest_cache, rewrite_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STOP_SECONDS = 20.0  # of the 30 that SIGTERM is given; the rest is for the history and for Spark to stop
HISTORY_SECONDS = 4.0
HOOK_SECONDS = 2.0
DEAD_LETTERS_AGAIN_SECONDS = 30.0
IN_FLIGHT_SWEEP_SECONDS = 15.0


@dataclass
class Parts:
    """What is running; filled in start order."""

    session: SparkSession | None = None
    dispatcher: Dispatcher | None = None
    watcher: TableWatcher | None = None
    queries: list[StreamingQuery] = field(default_factory=list)
    checkpoint: str = ""


class Service:
    """The always-on compactor. `observe`: decide and report, write nothing to catalog, warehouse or Kafka."""

    def __init__(
        self,
        settings: Settings,
        *,
        observe: bool = False,
        listener: Callable[[Event], None] = lambda _event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._observe = observe
        self._outer_listener = listener
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._recorder = Recorder(self._registry)
        self._work = RecentWork(clock)
        self.board = DebtBoard()
        self._catalogs = Catalogs(settings.catalogs)
        self._cache = manifest_cache(settings, self.tell)
        self._prefetcher = Prefetcher(self._catalogs, self._cache)
        self._hooks = RefreshHooks((), self.tell)
        self._history = None if observe else history_of(settings, self._catalogs, self.tell, clock)
        self._parts = Parts()
        self._producer: Any = None
        self._observed: tempfile.TemporaryDirectory[str] | None = None
        self._ready = False
        self.starting = False
        self._stop_by = 0.0
        self._http = self._make_http()
        self._progress = ProgressReader(self.tell)
        self._direct = DirectLedger(ledger_settings(settings, self._catalogs), clock)

    @property
    def address(self) -> str:
        """Base URL of the HTTP pages."""
        host, port = self._http.address
        return f"http://{'127.0.0.1' if host in {'0.0.0.0', '::'} else host}:{port}"  # noqa: S104 - shown, not bound

    def tell(self, event: Event) -> None:
        """Every typed event of the process passes here: metrics, log, and whoever started the service."""
        self._recorder(event)
        self._work(event)
        if isinstance(event, RunCommitted):
            self._hooks.committed(event)
        elif isinstance(event, LedgerUpdated):
            self._prefetcher.heard_of(event.table)
        if self._history is not None:
            self._history(event)
        log_event(event)
        self._outer_listener(event)

    def start(self) -> None:
        """Start everything, in order.

        Raises:
            InputError: a setting makes it impossible; the message names the key.
            RetryError: a catalog or the broker does not answer.
        """
        self.starting = True
        check_run_settings(self._settings, observe=self._observe)
        self._http.start()
        LOG.info("http pages at %s", self.address)
        checkpoint = self._checkpoint()
        for name in self._catalogs.names:
            next(self._catalogs.list_tables(name), None)
        told = {hook.topic for hook in self._settings.hooks if hook.kind == "kafka"}
        ensure_topics(self._settings.kafka, create=not self._observe, told=told)
        check_commit_topic(self._settings.kafka, observe=self._observe)
        if not self._observe:
            self._producer = producer(self._settings.kafka)
        if self._history is not None:
            self._history.start()
        self._records = in_flight_records(self._settings, checkpoint, self._clock)
        requests = OpenRequests(checkpoint)
        self.board.resume(requests.load(), requests.save)
        self._parts.session = spark_session(self._settings)
        self._sweep_in_flight()
        self._start_work(self._parts.session, checkpoint)
        self._ready, self.starting = True, False
        LOG.info("ready: %d rewrite slots, checkpoint %s", self._slots(self._parts.session), checkpoint)

    def _slots(self, session: SparkSession) -> int:
        return rewrite_slots(session, self._settings.service.max_concurrent_file_group_rewrites)

    def _start_work(self, session: SparkSession, checkpoint: str) -> None:
        """Dispatcher, streams and watcher, in this order."""
        self._rewriter = Rewriter(
            session,
            self._catalogs,
            self._cache,
            self._records,
            slots=self._slots(session),
            lease_seconds=self._settings.service.lease_seconds,
            commit=self._settings.commit,
            check_seconds=self._settings.service.switch_check_seconds,
            listener=self.tell,
            clock=self._clock,
        )
        dispatcher = Dispatcher(
            self.board,
            self._would_rewrite if self._observe else self._rewrite,
            concurrent_runs=self._settings.service.concurrent_runs,
            first_backoff_seconds=self._settings.service.retry_seconds,
            limits=Limits.of(self._settings.limits),
            clock=self._clock,
        )
        watcher = TableWatcher(
            self._settings,
            self._catalogs,
            self._count_directly if self._observe else self._publish,
            self.tell,
            self._clock,
            known=self.board.known,
        )
        self._handler = handler = BatchHandler(
            self._settings, self.board, watcher, self._bury, dispatcher.wake, self.tell, self._clock
        )
        self._parts.dispatcher, self._parts.watcher = dispatcher, watcher
        if not session.sparkContext.master.startswith("local"):
            self._cache.read_by(ReadOnExecutors(session, self._settings.service.manifest_job_bytes))
        self._prefetcher.start()
        hooks = () if self._observe else self._settings.hooks  # nothing is committed in observe mode
        self._hooks = RefreshHooks(named_hooks(hooks, session, self._producer), self.tell)
        self._hooks.start()
        dispatcher.start()
        self._parts.queries = [
            start_ledger(session, self._settings, self._catalogs, checkpoint, handler),
            self._start_dead_letters(session, checkpoint),
        ]
        self._parts.checkpoint = checkpoint
        for query in self._parts.queries:
            self._recorder.stream_started(str(query.name))
        watcher.start()

    def _start_dead_letters(self, session: SparkSession, checkpoint: str) -> StreamingQuery:
        return start_dead_letters(session, self._settings, self._catalogs, checkpoint, write=not self._observe)

    def run_until(self, stop: threading.Event) -> None:
        """Watch over the parts until `stop` is set or the ledger dies.

        Raises:
            FirnlineError: the ledger's query ended by itself; its cause is in the message.
        """
        next_sweep = dead_letters_again = 0.0
        while not stop.wait(1.0):
            ledger, dead_letters = self._parts.queries
            self._progress.poll(ledger)
            self._progress.poll(dead_letters)
            if not ledger.isActive:
                self._ready = False
                raise FirnlineError(
                    f"the stream ledger ended: {ledger.exception()}; start the service again, it resumes where it was",
                    reason=Reason.STREAM_ENDED,
                )
            if not dead_letters.isActive and time.monotonic() >= dead_letters_again:
                dead_letters_again = time.monotonic() + DEAD_LETTERS_AGAIN_SECONDS
                self._resume_dead_letters(dead_letters)
            if time.monotonic() >= next_sweep:
                self._sweep_in_flight()
                next_sweep = time.monotonic() + IN_FLIGHT_SWEEP_SECONDS

    def _resume_dead_letters(self, ended: StreamingQuery) -> None:
        """A dead-letter topic that refuses stops nothing else; what it has not taken comes again."""
        LOG.warning("the stream %s ended and is started again: %s", ended.name, ended.exception())
        session = self._parts.session
        try:
            if session is not None:
                self._parts.queries[1] = self._start_dead_letters(session, self._parts.checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            LOG.warning("the stream %s could not be started: %s", ended.name, error)

    def stop(self) -> None:
        """Stop everything, in reverse order; running rewrites end before their commit or finish it.

        A step that fails stops no other: a signal to the whole process group ends Spark's JVM at the same moment.
        """
        self._ready = self.starting = False
        self._stop_by = time.monotonic() + STOP_SECONDS
        parts = self._parts
        steps: list[tuple[str, Callable[[], object]]] = []
        if parts.watcher is not None:
            steps.append(("table watcher", parts.watcher.stop))
            steps.append(("prefetcher", self._prefetcher.stop))
        if parts.dispatcher is not None:
            steps.append(("dispatcher", self._stop_dispatcher))
            steps.append(("refresh hooks", lambda: self._hooks.stop(HOOK_SECONDS)))
        if parts.queries:
            steps.append(("streams", self._finish_batches))
        steps.extend((f"stream {index}", query.stop) for index, query in enumerate(parts.queries))
        steps.append(("manifest cache", self._cache.written))
        if self._history is not None:
            history = self._history
            steps.append(("history", lambda: history.stop(HISTORY_SECONDS)))
        if self._producer is not None:
            steps.append(("producer", lambda: self._producer.close(timeout=3)))
        if parts.session is not None:
            steps.append(("spark", parts.session.stop))
        steps.append(("http", self._http.stop))
        if self._observed is not None:
            steps.append(("observe mode's checkpoint", self._observed.cleanup))
        for name, step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - stopping goes on
                LOG.debug("%s was gone already: %s", name, error)
        LOG.info("stopped")

    def _finish_batches(self) -> None:
        """Let batches under way end: Spark answers an interrupted one with pages of stack trace."""
        for query in self._parts.queries:
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < self._stop_by:
                time.sleep(0.05)

    def _stop_dispatcher(self) -> None:
        if self._parts.dispatcher is not None and not self._parts.dispatcher.stop(self._stop_by - time.monotonic()):
            LOG.warning("a rewrite was still running at the end; its outputs are swept at the next start")

    def _rewrite(self, debt: TableDebt, stopping: Callable[[], bool], grant: Grant) -> Spent:
        """One run of one table: its files, then its manifests, if they are due; what the files have cost."""
        asked = debt.requested[0] if debt.requested else None
        spent = self._rewrite_files(debt, asked, stopping, grant) if debt.due or asked is not None else Spent()
        if debt.manifests is not None and debt.manifests.due and not stopping():
            self._rewrite_manifests(debt.table)
        return spent

    def _rewrite_manifests(self, name: TableName) -> None:
        """From a fresh look at the table. A failure is told and left at that: files matter more."""
        run_id = str(uuid.uuid4())
        try:
            table = self._catalogs.load(name)
            counts = manifests_of(table, self._settings.manifests)
            session = self._parts.session
            wanted = self._settings.tables.acts_on(name, table.properties) and not self._is_left_to_another(table)
            if session is None or not counts.due or not wanted:
                return
            self.tell(rewrite_manifests(session, table, counts.due_specs, run_id))
            snapshot = self._catalogs.load(name).snapshot
        except FirnlineError as error:
            self.tell(
                RunFailed(
                    run_id=run_id,
                    table=name,
                    stage="manifests",
                    reason=error.reason,
                    reaction=error.reaction,
                    message=str(error),
                )
            )
            return
        if snapshot is not None:
            self._announce(name, snapshot.snapshot_id)

    def _is_left_to_another(self, table: TableView) -> bool:
        """Whether another compactor works on the table, and the settings leave it to that one."""
        leave = self._settings.tables.other_compactors == "leave"
        return leave and bool(other_compactors(table.metadata, self._clock()))

    def _announce(self, table: TableName, snapshot_id: int) -> None:
        if self._parts.watcher is None:
            return
        try:
            self._parts.watcher.announce(table, snapshot_id)
        except RetryError as error:
            LOG.warning("%s: the commit could not be announced, the sweep finds it: %s", table, error)

    def _rewrite_files(self, debt: TableDebt, asked: str | None, stopping: Callable[[], bool], grant: Grant) -> Spent:
        """The small and delete-heavy files that are due, from a fresh look at the table; what it has cost."""
        rules = self._settings.tables
        try:
            plan = self._planned(debt, asked, grant)
        except (InputError, StoppedError):
            self._served(debt, asked)  # a filter that this table does not take, or a table that is switched off
            raise
        if plan is None:
            self._served(debt, asked)
            return Spent()

        def enabled() -> bool:
            return rules.acts_on(debt.table, self._catalogs.load(debt.table).properties)

        try:
            result = self._rewriter.run(plan, enabled=enabled, stopping=stopping, waiting_since=debt.waiting_since)
        except GiveUpError as error:  # asked for again it would fail again, and nothing else of the table be done
            self._served(debt, asked)
            if asked is None and isinstance(error, NoGroupLeftError):
                self.board.decline(debt, {**self._left_alone(debt, plan), **_given_up(error.dropped)})
            raise
        self.board.settled(debt.table)
        self._served(debt, asked)
        if asked is None:
            self.board.decline(debt, {**self._left_alone(debt, plan), **_given_up(result.dropped)})
        if result.snapshot_after is not None:
            self._announce(debt.table, result.snapshot_after)
        size = sum(group.bytes_in for group in result.groups)
        files = sum(group.files_in for group in result.groups), sum(group.files_out for group in result.groups)
        return Spent(size, requests_of(*files, size), CATALOG_CALLS * result.commits)

    @staticmethod
    def _left_alone(debt: TableDebt, plan: TablePlan) -> dict[PartitionKey, str]:
        return plan.left_alone(partition.key for partition in debt.due)

    def _decline(self, debt: TableDebt, plan: TablePlan) -> None:
        """What the plan has left alone although its counts call it due."""
        left = self._left_alone(debt, plan)
        self.board.decline(debt, left)
        skipped = tuple(skipped_partition(each, left[each.key]) for each in debt.due if each.key in left)
        if skipped:
            self.tell(
                PartitionsSkipped(
                    table=debt.table, snapshot_id=plan.plan.snapshot_id, reason="declined", partitions=skipped
                )
            )

    def _served(self, debt: TableDebt, asked: str | None) -> None:
        if asked is not None:
            self.board.served(debt.table, asked)

    def _planned(self, debt: TableDebt, asked: str | None = None, grant: Grant = NO_GRANT) -> TablePlan | None:
        """A plan of the table as it is now; None (and counted) when nothing is due after all.

        `asked`: all small files of what this filter selects, since a person asked; empty for everything.

        Raises:
            StoppedError: the table is switched off; also counted.
            LaterError: another compactor works on it; also counted.
            FirnlineError: it cannot be planned; told as an event.
        """
        try:
            table = self._catalogs.load(debt.table)
            wanted = self._settings.tables.acts_on(debt.table, table.properties)
            act = wanted and not self._is_left_to_another(table)
            request = replace(AS_THE_SERVICE, grant=grant)
            if asked is not None:
                request = replace(request, where=asked or None, force=True)
            policy = self._settings.policy.for_table(debt.table, table.properties)
            plan = plan_table(table, policy, self._cache, request, wall_clock=self._clock) if act else None
            self._prefetcher.planned(debt.table)
        except FirnlineError as error:
            self.tell(
                RunFailed(
                    run_id="",
                    table=debt.table,
                    stage="plan",
                    reason=error.reason,
                    reaction=error.reaction,
                    message=str(error),
                )
            )
            raise
        except Exception as error:
            failure = GiveUpError(f"planning {debt.table} failed: {error}", reason=Reason.UNEXPECTED)
            self.tell(
                RunFailed(
                    run_id="",
                    table=debt.table,
                    stage="plan",
                    reason=failure.reason,
                    reaction=failure.reaction,
                    message=str(error),
                )
            )
            raise failure from error
        if plan is None and wanted:
            self.tell(RunSkipped(table=debt.table, reason=Reason.OTHER_COMPACTOR))
            self._served(debt, asked)
            raise LaterError(f"{debt.table} is left to another compactor")
        if plan is None:
            self.tell(RunSkipped(table=debt.table, reason=Reason.SWITCHED_OFF))
            raise StoppedError(f"{debt.table} is switched off")
        if asked is None:
            self._decline(debt, plan)
        if not plan.has_work:
            self.tell(RunSkipped(table=debt.table, reason=Reason.NOTHING_DUE))
            return None
        return plan

    def _would_rewrite(self, debt: TableDebt, _stopping: Callable[[], bool], _grant: Grant) -> Spent:
        """Observe mode: plan, report, and leave it at that."""
        asked = debt.requested[0] if debt.requested else None
        plan = self._planned(debt, asked)
        self._served(debt, asked)
        if plan is None:
            return Spent()
        files = sum(len(group.group.files) for group in plan.groups)
        after = sum(len(group.group.shares) for group in plan.groups)
        self.tell(
            RunWouldRewrite(table=debt.table, groups=len(plan.groups), files=files, files_after=after, bytes=plan.bytes)
        )
        return Spent()

    def _sweep_in_flight(self) -> None:
        if self._observe:
            return
        try:
            removed = sweep(
                self._records,
                self._catalogs,
                self._cache,
                now=self._clock(),
                grace_seconds=self._settings.service.grace_seconds,
            )
        except (FirnlineError, OSError) as error:
            LOG.warning("in-flight records could not be swept, next try in %ss: %s", IN_FLIGHT_SWEEP_SECONDS, error)
            return
        for table, files in removed.items():
            self.tell(UnreferencedFilesRemoved(table=table, files=files))

    def _checkpoint(self) -> str:
        if self._observe:  # a checkpoint of its own: the whole topic is heard, and the real one is left alone
            self._observed = tempfile.TemporaryDirectory(prefix="firnline-observe-", ignore_cleanup_errors=True)
            return "file://" + self._observed.name
        return self._settings.state.checkpoint.rstrip("/")

    def _count_directly(self, _key: bytes, value: bytes) -> None:
        """Observe mode: what the watcher would publish is counted here, by the ledger's own rules."""
        changed = CanonicalDecoder().decode(
            RawEvent(key=None, value=value, headers=(), timestamp_ms=int(self._clock() * 1000))
        )
        if isinstance(changed, TableChanged):
            table = TableName(str(changed.catalog), changed.namespace, changed.name)
            self._handler.apply(self._direct.rows(table, changed))

    def _publish(self, key: bytes, value: bytes) -> None:
        self._send(self._settings.kafka.commit_topic, key, value)

    def _bury(self, letter: DeadLetter) -> bool:
        """False: it cannot be sent, nor can others just now."""
        try:
            self._send(self._settings.kafka.dead_letter_topic, letter.key, letter.value, letter.headers)
        except RetryError as error:  # called within a batch, which an unwell dead-letter topic must not end
            LOG.warning("a dead letter is lost, and those after it in its batch: %s", error)
            return False
        return True

    def _send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        """Send without waiting; what the broker refuses later is logged.

        Raises:
            RetryError: the client cannot take the record.
        """
        if self._producer is None:
            return
        try:
            sent = self._producer.send(topic, key=key, value=value, headers=list(headers))
        except Exception as error:  # whatever the client raises: a stream or a rewrite must not die of it
            raise RetryError(f"topic {topic} takes no record: {error}", reason=Reason.KAFKA_UNAVAILABLE) from error
        sent.add_errback(lambda error: LOG.warning("topic %s took no record: %s", topic, error))

    def _make_http(self) -> MetricsServer:
        collector = DebtCollector(
            self.board,
            self._work_status,
            lambda: self._ready,
            version=VERSION,
            limits=CollectorLimits(worst_partitions=self._settings.service.worst_partitions),
        )
        self._registry.register(collector)
        runs = (lambda: self._work.running, lambda: self._work.finished)
        site = Site(self._registry, self._health, collector.summaries, *runs, self._counting)
        return MetricsServer(site, self._settings.http.host, self._settings.http.port)

    def _counting(self) -> Counting | None:
        """None until a catalog has been listed."""
        found = self._parts.watcher.found if self._parts.watcher is not None else None
        return None if found is None else Counting(len(found & self._handler.answered), len(found))

    def _work_status(self) -> WorkStatus:
        if self._parts.dispatcher is None:
            return WorkStatus()
        status = self._parts.dispatcher.status
        return WorkStatus(status.queued, status.running, status.oldest_due_seconds)

    def _health(self) -> Health:
        details: dict[str, str] = {}
        if not self._ready:
            details["service"] = "starting or stopping"
        for query in self._parts.queries:
            if not query.isActive:
                details[f"stream {query.name}"] = "not running"
        watcher = self._parts.watcher
        if watcher is not None and watcher.trouble:
            details["table watcher"] = watcher.trouble
        dead = "stream ledger" in details
        return Health(live=not dead, ready=self._ready and not dead, details=details)


def _given_up(dropped: Sequence[DroppedGroup]) -> dict[PartitionKey, str]:
    """Why groups of a run will not be tried again as they are."""
    return {drop.planned.group.key: str(drop.error) for drop in dropped if isinstance(drop.error, GiveUpError)}
