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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from py4j.protocol import Py4JNetworkError

from compactor.commit.sweep import GRACE_SECONDS
from compactor.debt.board import DebtBoard
from compactor.errors import FirnlineError, retried
from compactor.events import Event, RunCommitted
from compactor.iceberg.tables import Catalogs
from compactor.lease.holder import LeaseHolder
from compactor.lease.opening import lease_store
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.manifests.executor_job import ReadOnExecutors
from compactor.patience.holds import Holds
from compactor.reasons import Reason
from compactor.runs.dispatcher import Dispatcher
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
from streaming.kafka.clients import ensure_topics, producer
from streaming.kafka.commit_topic import check_commit_topic
from streaming.ledger.driver_ledger import Around, DriverLedger
from streaming.logs.events import LOG, log_event
from streaming.service.controls import Controls
from streaming.service.event_bus import EventBus
from streaming.service.in_flight_sweep import InFlightSweep, MayAsk, UnsteppedClock
from streaming.service.pages import ServiceState, metrics_server
from streaming.wiring import Rewriting, check_run_settings, history_of, manifest_cache, rewriting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORK_SECONDS, SPARK_SECONDS, STOP_SECONDS = 20.0, 25.0, 28.0
"""Of the 30 that SIGTERM is given: until when rewrites and streams must stop, then history and Spark, then the rest."""
LEAST_SECONDS = 0.3  # for a step that comes late, because those before it hung
HISTORY_SECONDS = 4.0
HOOK_SECONDS = 2.0
MANIFESTS_SECONDS = 2.0  # for decoded manifests that are not on disk yet: a cache
OFFSETS_SECONDS = 60.0
RETRY_SECONDS = 10.0  # first back-off of a failed table; it doubles up to 10 min
TELL_SECONDS = 60.0  # between writes of what waits, for `debt --why`
SAVE_AGAIN_SECONDS = 10.0  # between saves of requests that were dropped, and attempts on a disk that is full


class Service:
    """The always-on compactor. `observe`: decide and report, write nothing to catalog, warehouse or Kafka.

    `path`: the settings file, which is read again when it changes; None: never.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        observe: bool = False,
        path: Path | None = None,
        listener: Callable[[Event], None] = lambda _event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._observe = observe
        self._clock = clock
        self._board = DebtBoard(Holds(clock))
        self._catalogs = Catalogs(settings.catalogs)
        self._shard = EVERYTHING if observe else Shard.of(settings.service.shard)
        self._state = ServiceState(observing=observe, shard=self._shard)
        self._controls = Controls(settings, path, self._state, clock)
        self._broker = BrokerWatch(settings.kafka, self._check_topics, commits=not observe)
        self._state.broker = self._broker
        self._files = FileHolds(self._board.holds)
        self._stop_steps = ExitStack()
        self._stopping_at: float | None = None
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._recorder = Recorder(registry)
        work = RecentWork(clock)
        self._bus = EventBus(self._recorder, work, last=(log_event, listener))
        self._cache = manifest_cache(settings, self._bus.publish)
        self._http = metrics_server(settings, registry, self._board, self._state, work, self._bus.publish)

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
        """Whether `start` is under way."""
        return self._state.starting

    def start(self) -> None:
        """Start everything, in order.

        Raises:
            InputError: a setting makes it impossible; the message names the key.
            RetryError: no catalog answers.
        """
        self._state.starting = True
        check_run_settings(self._settings, observe=self._observe)
        checkpoint = self._checkpoint()
        self._at_stop("http", self._http.stop, STOP_SECONDS)
        self._http.start()
        LOG.info("http pages at %s", self.address)
        self._check_surroundings()
        self._state.pauses = pauses = PauseWatch(
            PauseFolder(checkpoint), self._clock, tables=lambda: [debt.table for debt in self._board.tables()]
        )
        self._at_stop("pauses", pauses.stop, STOP_SECONDS)
        pauses.start()
        right = self._become_active(checkpoint)
        self._controls.catch_up()
        requests = OpenRequests(checkpoint, right.confirm)
        self._board.restore_requests(requests.load(), requests.save)
        self._at_stop("requests", self._board.save_requests, SPARK_SECONDS)
        self._files = FileHolds(self._board.holds, None if self._observe else checkpoint, right.confirm)
        self._files.load()
        session = self._start_session()
        parts = rewriting(
            self._settings,
            session,
            self._catalogs,
            self._cache,
            self._bus.publish,
            checkpoint=checkpoint,
            beside_stream=True,
            right=right,
            clock=self._clock,
            current=self._controls.settings,
            files=self._files,
        )
        self._state.slots, self._state.cluster = parts.slots, parts.cluster
        self._at_stop("cluster", parts.cluster.stop, SPARK_SECONDS)
        self._start_sweep(parts)
        self._start_work(session, parts, checkpoint)
        self._state.ready, self._state.starting = True, False
        LOG.info("ready: %d rewrite slots, checkpoint %s", parts.slots.book.capacity, checkpoint)

    def run_until(self, stop: threading.Event) -> None:
        """Watch over the parts until `stop` is set, or until the service is drained.

        Raises:
            FirnlineError: Spark or its JVM has ended, or another service has taken over: only a new process can go on.
            InputError: the broker answers for the first time, and the topics cannot be used.
        """
        state, saved_at = self._state, self._state.ticks()
        told_at = saved_at
        while not stop.wait(1.0):
            state.beat = state.ticks()
            if state.beat - saved_at >= SAVE_AGAIN_SECONDS:
                saved_at = state.beat
                self._board.save_requests()
            if state.beat - told_at >= TELL_SECONDS:
                told_at = state.beat
                self._files.tell()
            if state.lease is not None:
                state.lease.check()
            if self._controls.check():
                return
            self._broker.check()
            if state.ledger is not None:
                state.ledger.check()
            if state.stream is not None:
                with spark_needed(state.stream.source.session):
                    state.stream.check()
                    state.events_read = not state.stream.trouble
            if state.sweep is not None:
                state.sweep.check()

    def reload(self) -> None:
        """Read the settings file within a second. Called by a signal handler."""
        self._controls.reload()

    def drain(self) -> None:
        """Start no more runs, and end once the running ones have ended. Called by a signal handler."""
        self._controls.drain()

    def stops_now(self) -> None:
        """The time of the stop begins, although `stop` is called later. Called by a signal handler."""
        self._stopping_at = self._stopping_at or time.monotonic()

    def stop(self) -> None:
        """Stop everything that was started; running rewrites end before their commit or finish it."""
        self._state.ready = self._state.starting = False
        self._state.beat = None
        self.stops_now()
        self._stop_steps.close()
        LOG.info("stopped")

    def _stop_left(self, seconds: float) -> float:
        """How much of the first `seconds` of the stop is left."""
        now = time.monotonic()
        return max(LEAST_SECONDS, (self._stopping_at or now) + seconds - now)

    def _at_stop(self, name: str, step: Callable[[], object], by: float = WORK_SECONDS) -> None:
        """At the stop, call `step` before all steps that were added earlier; one that fails stops no other.

        `by`: seconds after the begin of the stop, after which a step that hangs is left behind: a broker, catalog or
        store that does not answer, or Spark.
        """

        def run() -> None:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a signal to the process group ends Spark's JVM at the same moment
                LOG.debug("%s had stopped already: %s", name, error)

        def run_in_time() -> None:
            thread = threading.Thread(target=run, name=f"stop-{name}", daemon=True)
            thread.start()
            thread.join(self._stop_left(by) + LEAST_SECONDS)
            if thread.is_alive():
                LOG.warning("%s did not stop in time; the service ends without it", name)

        self._stop_steps.callback(run_in_time)

    def _checkpoint(self) -> str:
        if not self._observe:
            return self._settings.state.checkpoint.rstrip("/")
        # A checkpoint of its own: the whole topic is read, and the service's checkpoint stays as it is.
        folder = tempfile.TemporaryDirectory(prefix="firnline-observe-", ignore_cleanup_errors=True)
        self._at_stop("observe mode's checkpoint", folder.cleanup, STOP_SECONDS)
        return "file://" + folder.name

    def _check_surroundings(self) -> None:
        """A catalog answers; if a broker does, topics exist and are ours. Nothing is written before."""
        check_catalogs(self._catalogs)
        self._broker.look()
        self._at_stop("broker watch", self._broker.stop)
        self._broker.start()

    def _check_topics(self) -> None:
        hook_topics = {hook.topic for hook in self._settings.hooks if hook.kind == "kafka"}
        ensure_topics(self._settings.kafka, create=not self._observe, hook_topics=hook_topics)
        check_commit_topic(self._settings.kafka, observe=self._observe)

    def _become_active(self, checkpoint: str) -> CommitRight:
        """Wait for the lease on the checkpoint. It is given back at the end of the stop, when nothing can be committed.

        Raises:
            RetryError: the checkpoint's store does not answer.
        """
        if self._observe:
            return UNLIMITED
        with retried("the lease in state.checkpoint cannot be opened", Reason.STATE_UNREADABLE):
            store = lease_store(checkpoint)
        self._state.lease = lease = LeaseHolder(store, deployment=self._shard_deployment())
        self._at_stop("lease", lease.release, STOP_SECONDS)
        lease.acquire(waits=self._controls.check)
        return lease.right

    def _shard_deployment(self) -> str:
        """Services that divide the tables are one deployment with several checkpoints; empty without others."""
        kafka = self._settings.kafka
        place = f"kafka:{kafka.bootstrap_servers}/{kafka.commit_topic}"
        return str(uuid.uuid5(uuid.NAMESPACE_URL, place)) if self._shard.count > 1 else ""

    def _start_session(self) -> SparkSession:
        """History and Spark. The history stops before Spark, whose stop may hang."""
        sessions: list[SparkSession] = []
        self._at_stop("spark", lambda: [session.stop() for session in sessions], SPARK_SECONDS)
        if not self._observe:
            self._start_history()
        self._at_stop("manifest cache", lambda: self._cache.flush(MANIFESTS_SECONDS), SPARK_SECONDS)
        sessions.append(spark_session(self._settings))
        return sessions[0]

    def _start_history(self) -> None:
        history = history_of(self._settings, self._catalogs, self._bus.publish, self._clock)
        if history is not None:
            history.start()  # before Spark: a table that is no history table is refused early
            self._bus.subscribe(history)
            self._at_stop("history", lambda: history.stop(HISTORY_SECONDS), SPARK_SECONDS)

    def _start_sweep(self, parts: Rewriting) -> None:
        """Clean up after ended runs, now and then again and again. Observe mode deletes nothing."""
        if self._observe:
            return
        state, grace, clock = self._state, GRACE_SECONDS, UnsteppedClock(self._clock)
        state.records = parts.records

        def swept(may_ask: MayAsk) -> None:
            parts.sweep(clock(), grace, may_ask)

        def available(catalog: str) -> bool:
            return state.ledger is None or state.ledger.available(catalog)

        state.sweep = sweep = InFlightSweep(swept, available)
        self._at_stop("in-flight sweep", lambda: sweep.stop(self._stop_left(WORK_SECONDS)))
        sweep.check()

    def _start_work(self, session: SparkSession, parts: Rewriting, checkpoint: str) -> None:
        """Hooks, dispatcher, ledger and stream, in this order."""
        if not session.sparkContext.master.startswith("local"):
            self._cache.use_reader(ReadOnExecutors(session))
        self._start_hooks()
        state, controls = self._state, self._controls
        ledger = DriverLedger(
            settings=controls.settings,
            catalogs=self._catalogs,
            board=self._board,
            plans=self._cache,
            checkpoint=checkpoint,
            around=Around(
                wake=lambda: state.dispatcher.wake() if state.dispatcher is not None else None,
                shard=self._shard,
                may_sweep=lambda: state.stream is not None and state.stream.may_sweep,
                behind=lambda: state.stream is not None and state.stream.behind,
            ),
            listener=self._bus.publish,
            clock=self._clock,
            deployment="" if state.lease is None else state.lease.deployment,
            token=0 if state.lease is None else state.lease.token,
        )
        state.ledger = ledger
        self._at_stop("ledger", lambda: ledger.stop(self._stop_left(WORK_SECONDS)))

        def handle(events: Sequence[AnyHeard]) -> None:
            if state.lease is not None and not state.lease.active:
                state.lease.confirm()  # raises if another service took over: the batch is that one's
            ledger.driver.hear(events)

        planner = TablePlanner(
            settings=controls.settings,
            catalogs=self._catalogs,
            cache=self._cache,
            board=self._board,
            listener=self._bus.publish,
            clock=self._clock,
            planned=ledger.driver.planned,
            owns=self._shard.owns,
            look=ledger.driver.look_soon,
            locks=parts.rewriter.locks,
            files=parts.rewriter.files,
        )
        announce = ledger.driver.look_soon
        worker = ObserveWorker(planner) if self._observe else RewriteWorker(planner, parts.rewriter, announce)
        dispatcher = Dispatcher(
            self._board,
            worker.work,
            concurrent_runs=self._settings.service.concurrent_runs,
            first_backoff_seconds=RETRY_SECONDS,
            limits=state.limits,
            usage=controls.open_usage(checkpoint, parts.rewriter.right.confirm),
            slots=parts.slots,
            may_start=lambda table: self._shard.owns(table) and ledger.available(table.catalog),
            paused=state.paused,
            held_until=state.held_until,
            lifelines=parts.rewriter.lifelines,
        )
        sources = EventSources.of(self._settings.kafka, self._catalogs.names)
        handler = BatchHandler(
            self._settings.kafka,
            EventDecoder(sources, self._shard),
            handle,
            self._bus.publish,
            write=not self._observe,
        )
        stream = EventStream(
            EventQuery(session, self._settings, checkpoint, handler),
            self._broker,
            self._bus.publish,
            ledger.driver.sweep_soon,
            self._recorder.stream_alive,
        )
        self._start_in_order(dispatcher, stream, ledger)

    def _start_in_order(self, dispatcher: Dispatcher, stream: EventStream, ledger: DriverLedger) -> None:
        self._state.dispatcher, self._state.stream = dispatcher, stream
        self._at_stop("stream", stream.stop)
        self._at_stop("batch", lambda: stream.finish_batch(time.monotonic() + self._stop_left(WORK_SECONDS)))
        self._at_stop("usage", lambda: self._controls.save_usage(at_once=True))
        self._at_stop("dispatcher", self._stop_dispatcher)
        dispatcher.start()
        stream.check()
        self._recorder.stream_alive(EVENTS_QUERY)
        ledger.start()
        deadline = time.monotonic() + OFFSETS_SECONDS
        while not stream.may_sweep and time.monotonic() < deadline:
            time.sleep(0.05)  # ready means: an event that is published from now on is heard
            stream.check()

    def _start_hooks(self) -> None:
        """None in observe mode: it commits nothing."""
        settings = () if self._observe else self._settings.hooks
        named = named_hooks(settings, lambda: producer(self._settings.kafka))
        for hook in named:
            self._recorder.hook_known(hook.name)
        hooks = RefreshHooks(named, self._bus.publish)

        def committed(event: Event) -> None:
            if isinstance(event, RunCommitted):
                hooks.committed(event)

        self._bus.subscribe(committed)
        self._at_stop("refresh hooks", lambda: hooks.stop(HOOK_SECONDS))
        hooks.start()

    def _stop_dispatcher(self) -> None:
        dispatcher = self._state.dispatcher
        if dispatcher is not None and not dispatcher.stop(self._stop_left(WORK_SECONDS)):
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
