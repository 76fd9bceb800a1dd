"""The service: starts its parts in a fixed order, watches them, and stops them in the reverse order.

Start: HTTP pages (alive, not ready) → catalogs, topics → lease (a standby waits here) → history → Spark → sweep of
in-flight records → dispatcher → stream → ledger → ready. Without a broker the stream starts once one answers; looks
find all commits until then. Every part that starts adds the step that stops it.
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from py4j.protocol import Py4JNetworkError

from compactor.debt.board import DebtBoard
from compactor.errors import FirnlineError, retried
from compactor.events import Event, Listener, RunCommitted, ignore
from compactor.iceberg.tables import Catalogs
from compactor.lease.holder import LeaseHolder
from compactor.lease.opening import lease_store
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.manifests.executor_job import ReadOnExecutors
from compactor.patience.backoff import LATER
from compactor.reasons import Reason
from compactor.runs.dispatcher import Dispatcher, Gate, TableQueue
from compactor.runs.file_holds import FileHolds
from compactor.runs.open_requests import OpenRequests
from compactor.runs.pauses import PauseFolder, PauseWatch
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import ObserveWorker, RewriteWorker
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING, Shard
from compactor.spark.session import spark_session
from metrics.recent_work import RecentWork
from metrics.recorder import Recorder
from streaming.hooks.refresh_hooks import RefreshHooks, named_hooks
from streaming.intake.event_query import EVENTS_QUERY, BatchHandler, EventDecoder, EventQuery
from streaming.intake.event_sources import EventSources
from streaming.intake.event_stream import EventStream
from streaming.intake.heard import AnyHeard
from streaming.kafka.broker_watch import BrokerWatch
from streaming.kafka.clients import ensure_topics
from streaming.kafka.commit_topic import check_commit_topic
from streaming.ledger.driver_ledger import NOBODY, DriverLedger, Holder
from streaming.logs.events import LOG, log_event
from streaming.service.controls import Controls, Parts
from streaming.service.event_bus import EventBus
from streaming.service.in_flight_sweep import InFlightSweep
from streaming.service.pages import Phase, ServiceState, metrics_server
from streaming.service.stopping import SPARK_SECONDS, STOP_SECONDS, StopSteps
from streaming.wiring import Rewriting, check_run_settings, history_of, manifest_cache, rewriting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLUSH_SECONDS = 2.0
"""At the stop, for hooks and the cache of manifests; twice as long for the history."""
OFFSETS_SECONDS = 60.0
SAVE_SECONDS = 30.0
"""Between saves of requests that were dropped or could not be saved, and of what waits, for `debt --why`."""


class Service:
    """The always-on compactor. `observe`: decide and report, write nothing to catalog, warehouse or Kafka.

    `path`: the settings file, which is read again when it changes; None: never.
    """

    def __init__(
        self, settings: Settings, *, observe: bool = False, path: Path | None = None, listener: Listener = ignore
    ) -> None:
        self._settings = settings
        self._board = DebtBoard()
        self._catalogs = Catalogs(settings.catalogs)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._recorder = Recorder(registry)
        recent = RecentWork()
        self._bus = EventBus(self._recorder, recent, last=(log_event, listener))
        self._cache = manifest_cache(settings, self._bus.publish)
        parts = Parts()
        broker = BrokerWatch(settings.kafka, self._check_topics, commits=not observe)
        shard = EVERYTHING if observe else Shard.of(settings.service.shard)
        self._state = ServiceState(parts, Controls(settings, path, parts), broker, observe, shard)
        self._http = metrics_server(settings, registry, self._board, self._state, recent, self._bus.publish)
        self._stop = StopSteps()

    @property
    def address(self) -> str:
        """Base URL of the HTTP pages."""
        host, port = self._http.address
        scheme = "https" if self._settings.http.tls_certificate else "http"
        if host in {"0.0.0.0", "::"}:  # noqa: S104 - shown, not bound
            host = "127.0.0.1"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def starting(self) -> bool:
        """Whether the service has not started completely."""
        return self._state.phase is Phase.STARTING

    def start(self) -> None:
        """Start everything, in order.

        Raises:
            InputError: a setting makes it impossible; the message names the key.
            RetryError: no catalog answers.
        """
        check_run_settings(self._settings, observe=self._state.observing)
        checkpoint = self._checkpoint()
        self._stop.add("http", self._http.stop, STOP_SECONDS)
        self._http.start()
        LOG.info("http pages at %s", self.address)
        self._check_surroundings()
        self._state.parts.pauses = pauses = PauseWatch(
            PauseFolder(checkpoint), tables=lambda: [debt.table for debt in self._board.tables()]
        )
        self._stop.add("pauses", pauses.stop, STOP_SECONDS)
        pauses.start()
        right = self._become_active(checkpoint)
        self._state.controls.catch_up()
        requests = OpenRequests(checkpoint, right.confirm)
        self._board.restore_requests(requests.load(), requests.save)
        self._stop.add("requests", self._board.save_requests, SPARK_SECONDS)
        files = FileHolds(self._board.holds, None if self._state.observing else checkpoint, right.confirm)
        files.load()
        session = self._start_session()
        self._state.parts.rewriting = made = rewriting(
            self._settings,
            session,
            self._catalogs,
            self._cache,
            self._bus.publish,
            checkpoint=checkpoint,
            beside_stream=True,
            right=right,
            current=self._state.controls.settings,
            files=files,
        )
        self._stop.add("cluster", made.cluster.stop, SPARK_SECONDS)
        ledger = self._make_ledger(checkpoint)
        self._start_sweep(made, ledger)
        if not session.sparkContext.master.startswith("local"):
            self._cache.use_reader(ReadOnExecutors(session))
        self._start_hooks()
        dispatcher = self._make_dispatcher(made, ledger, checkpoint)
        self._start_in_order(dispatcher, self._make_stream(session, checkpoint), ledger)
        self._state.phase = Phase.READY
        LOG.info("ready: %d rewrite slots, checkpoint %s", made.slots.book.capacity, checkpoint)

    def run_until(self, stop: threading.Event) -> None:
        """Watch over the parts until `stop` is set, or until the service is drained.

        Raises:
            FirnlineError: Spark or its JVM has ended, or another service has taken over: only a new process can go on.
            InputError: the broker answers for the first time, and the topics cannot be used.
        """
        state, parts = self._state, self._state.parts
        saved_at = time.monotonic()
        while not stop.wait(1.0):
            state.beat = time.monotonic()
            if state.beat - saved_at >= SAVE_SECONDS:
                saved_at = state.beat
                self._board.save_requests()
                if parts.rewriting is not None:
                    parts.rewriting.rewriter.files.tell()
            if parts.lease is not None:
                parts.lease.check()
            if state.controls.check():
                return
            state.broker.check()
            if parts.stream is not None:
                with spark_needed(parts.stream.source.session):
                    parts.stream.check()
            if parts.stream is not None and parts.ledger is not None:
                parts.ledger.check(behind=parts.stream.behind, may_list=parts.stream.may_sweep)
            if parts.sweep is not None:
                parts.sweep.check()

    def reload(self) -> None:
        """Read the settings file within a second. Called by a signal handler."""
        self._state.controls.reload.ask()

    def drain(self) -> None:
        """Start no more runs, and end once the running ones have ended. Called by a signal handler."""
        self._state.controls.drain()

    def stops_now(self) -> None:
        """The time of the stop begins, although `stop` is called later. Called by a signal handler."""
        self._stop.begin()

    def stop(self) -> None:
        """Stop everything that was started; running rewrites end before their commit or finish it."""
        self._state.phase, self._state.beat = Phase.STOPPING, None
        self._stop.close()
        LOG.info("stopped")

    def _checkpoint(self) -> str:
        if not self._state.observing:
            return self._settings.state.checkpoint.rstrip("/")
        # A checkpoint of its own: the whole topic is read, and the service's checkpoint stays as it is.
        folder = tempfile.TemporaryDirectory(prefix="firnline-observe-", ignore_cleanup_errors=True)
        self._stop.add("observe mode's checkpoint", folder.cleanup, STOP_SECONDS)
        return "file://" + folder.name

    def _check_surroundings(self) -> None:
        """A catalog answers; if a broker does, topics exist and are ours. Nothing is written before."""
        check_catalogs(self._catalogs)
        broker = self._state.broker
        broker.look()
        self._stop.add("broker watch", broker.stop)
        broker.start()

    def _check_topics(self) -> None:
        hook_topics = {hook.topic for hook in self._settings.hooks if hook.kind == "kafka"}
        ensure_topics(self._settings.kafka, create=not self._state.observing, hook_topics=hook_topics)
        check_commit_topic(self._settings.kafka, observe=self._state.observing)

    def _become_active(self, checkpoint: str) -> CommitRight:
        """Wait for the lease on the checkpoint. It is given back at the end of the stop, when nothing can be committed.

        Raises:
            RetryError: the checkpoint's store does not answer.
        """
        if self._state.observing:
            return UNLIMITED
        with retried("the lease in state.checkpoint cannot be opened", Reason.STATE_UNREADABLE):
            store = lease_store(checkpoint)
        self._state.parts.lease = lease = LeaseHolder(store, deployment=self._shard_deployment())
        self._stop.add("lease", lease.release, STOP_SECONDS)
        lease.acquire(waits=self._state.controls.check)
        return lease.right

    def _shard_deployment(self) -> str:
        """Services that divide the tables are one deployment with several checkpoints; empty without others."""
        kafka = self._settings.kafka
        place = f"kafka:{kafka.bootstrap_servers}/{kafka.commit_topic}"
        return str(uuid.uuid5(uuid.NAMESPACE_URL, place)) if self._state.shard.count > 1 else ""

    def _start_session(self) -> SparkSession:
        """History and Spark. The history stops before Spark, whose stop may hang."""
        sessions: list[SparkSession] = []
        self._stop.add("spark", lambda: [session.stop() for session in sessions], SPARK_SECONDS)
        observes = self._state.observing
        history = None if observes else history_of(self._settings, self._catalogs, self._bus.publish)
        if history is not None:
            history.start()  # before Spark: a table that is no history table is refused early
            self._bus.subscribe(history)
            self._stop.add("history", partial(history.stop, 2 * FLUSH_SECONDS), SPARK_SECONDS)
        self._stop.add("manifest cache", partial(self._cache.flush, FLUSH_SECONDS), SPARK_SECONDS)
        sessions.append(spark_session(self._settings))
        return sessions[0]

    def _make_ledger(self, checkpoint: str) -> DriverLedger:
        lease = self._state.parts.lease
        self._state.parts.ledger = ledger = DriverLedger(
            self._state.controls.settings,
            self._catalogs,
            self._board,
            self._cache,
            checkpoint,
            self._bus.publish,
            self._state.shard,
            NOBODY if lease is None else Holder(lease.deployment, lease.token),
        )
        self._stop.add("ledger", lambda: ledger.stop(self._stop.left()))
        return ledger

    def _start_sweep(self, made: Rewriting, ledger: DriverLedger) -> None:
        """Clean up after ended runs, now and then again and again. Observe mode deletes nothing."""
        if not self._state.observing:
            self._state.parts.sweep = sweep = InFlightSweep(made, ledger)
            self._stop.add("in-flight sweep", lambda: sweep.stop(self._stop.left()))
            sweep.check()

    def _start_hooks(self) -> None:
        """None in observe mode: it commits nothing."""
        named = named_hooks(() if self._state.observing else self._settings.hooks, self._settings.kafka)
        for hook in named:
            self._recorder.hook_known(hook.name)
        hooks = RefreshHooks(named, self._bus.publish)

        def committed(event: Event) -> None:
            if isinstance(event, RunCommitted):
                hooks.committed(event)

        self._bus.subscribe(committed)
        self._stop.add("refresh hooks", partial(hooks.stop, FLUSH_SECONDS))
        hooks.start()

    def _make_dispatcher(self, made: Rewriting, ledger: DriverLedger, checkpoint: str) -> Dispatcher:
        state, driver = self._state, ledger.driver
        planner = TablePlanner(
            made.rewriter,
            state.controls.settings,
            self._board,
            planned=driver.planned,
            owns=state.shard.owns,
            look=driver.look_soon,
        )
        worker = ObserveWorker(planner) if state.observing else RewriteWorker(planner, made.rewriter, driver.look_soon)
        queue = TableQueue(
            self._board,
            LATER.first_seconds,
            state.controls.limits,
            state.controls.open_usage(checkpoint, made.rewriter.right.confirm),
            Gate(
                may_start=lambda table: state.shard.owns(table) and ledger.available(table.catalog),
                paused=state.paused,
                held_until=state.held_until,
            ),
        )
        return Dispatcher(
            queue,
            worker.work,
            concurrent_runs=self._settings.service.concurrent_runs,
            slots=made.slots,
            lifelines=made.rewriter.lifelines,
        )

    def _hear(self, events: Sequence[AnyHeard]) -> None:
        """A batch of the stream. If another service took over, it is that one's: the query ends."""
        parts = self._state.parts
        if parts.lease is not None and not parts.lease.active:
            parts.lease.confirm()
        if parts.ledger is not None:
            parts.ledger.driver.hear(events)

    def _make_stream(self, session: SparkSession, checkpoint: str) -> EventStream:
        state, kafka = self._state, self._settings.kafka
        decoder = EventDecoder(EventSources.of(kafka, self._catalogs.names), state.shard)
        handler = BatchHandler(kafka, decoder, self._hear, self._bus.publish, write=not state.observing)
        return EventStream(EventQuery(session, self._settings, checkpoint, handler), state.broker, self._bus.publish)

    def _start_in_order(self, dispatcher: Dispatcher, stream: EventStream, ledger: DriverLedger) -> None:
        self._state.parts.dispatcher, self._state.parts.stream = dispatcher, stream
        ledger.writer.wake = dispatcher.wake
        stream.look_at_all = ledger.driver.sweep_soon
        self._stop.add("stream", stream.stop)
        self._stop.add("batch", lambda: stream.finish_batch(time.monotonic() + self._stop.left()))
        self._stop.add("usage", partial(self._state.controls.save_usage, at_once=True))
        self._stop.add("dispatcher", self._stop_dispatcher)
        dispatcher.start()
        stream.check()
        self._recorder.stream_alive(EVENTS_QUERY)
        ledger.start()
        deadline = time.monotonic() + OFFSETS_SECONDS
        while not stream.may_sweep and time.monotonic() < deadline:
            time.sleep(0.05)  # ready means: an event that is published from now on is heard
            stream.check()
        ledger.check(behind=stream.behind, may_list=stream.may_sweep)

    def _stop_dispatcher(self) -> None:
        dispatcher = self._state.parts.dispatcher
        if dispatcher is not None and not dispatcher.stop(self._stop.left()):
            LOG.warning("a rewrite still runs; the next start deletes its unreferenced outputs")


@contextmanager
def spark_needed(session: SparkSession) -> Iterator[None]:
    """Raise the end of Spark, or of its JVM, as an error that says so. Other errors of Java pass.

    A cluster that ends the application stops Spark, and the JVM goes on: each call then fails, and queries with it.

    Raises:
        FirnlineError: Spark has stopped, or the JVM does not answer any more.
    """
    try:
        if session.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - PySpark has no public way to ask
            raise FirnlineError(
                "Spark has stopped: its cluster has ended the application, e.g. because the master removed it, or "
                "because YARN's application master ended. The logs of the cluster's master and of the executors say "
                "why. firnline ends too; start it again, it resumes where it was",
                reason=Reason.SPARK_LOST,
            )
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise FirnlineError(
            "Spark's JVM has ended: it was killed, or had no memory. firnline ends too; start it again, it resumes "
            "where it was. If this happens often, give the host more memory or lower spark.driver.memory",
            reason=Reason.SPARK_LOST,
        ) from error


def check_catalogs(catalogs: Catalogs) -> None:
    """Ask every catalog at once. One that does not answer stops nothing while another does.

    Raises:
        RetryError: no catalog answers; the error is that of the first.
    """
    with ThreadPoolExecutor(len(catalogs.names), thread_name_prefix="catalog") as pool:
        listings = (catalogs.list_tables(name, lambda _namespace, _error: None) for name in catalogs.names)
        asked = [pool.submit(next, listing, None) for listing in listings]  # the sweeps tell which were skipped
    failed = [error for answer in asked if (error := answer.exception()) is not None]
    for error in failed:
        if len(failed) == len(asked) or not isinstance(error, FirnlineError):
            raise error
        LOG.warning("%s; its tables are counted and rewritten once it answers", error)
