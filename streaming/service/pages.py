"""The service's HTTP pages: metrics, health, status."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from compactor.commit.in_flight import InFlightRecords
from compactor.debt.board import DebtBoard
from compactor.events import Listener, ignore
from compactor.redaction import hide
from compactor.runs.dispatcher import NO_LIMITS, Dispatcher, Work
from compactor.runs.pauses import Pause, PauseWatch
from compactor.runs.slots import SlotPool
from compactor.runs.work_order import Limits
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING, Shard
from compactor.spark.cluster import ClusterWatch
from compactor.table_names import TableName
from metrics.gauges import Gauges
from metrics.http.http_access import BasicAuth, Certificate
from metrics.http.http_answer import TEXT, Answer
from metrics.http.http_intake import Intake
from metrics.http.http_server import MetricsServer, Site
from metrics.recent_work import RecentWork
from metrics.service_view import Counting, Health, Memory, SlotUse, StateSpace
from streaming.commit_events.decoder import MAX_EVENT_BYTES
from streaming.intake.event_intake import EventIntake, is_events_path
from streaming.intake.event_query import EVENTS_QUERY
from streaming.intake.event_sources import EventSources
from streaming.kafka.clients import producer
from streaming.logs.events import LOG
from streaming.service.process_memory import memory_now
from streaming.version import VERSION

if TYPE_CHECKING:
    from compactor.lease.holder import LeaseHolder
    from streaming.intake.event_stream import EventStream
    from streaming.kafka.broker_watch import BrokerWatch
    from streaming.ledger.driver_ledger import DriverLedger
    from streaming.service.in_flight_sweep import InFlightSweep
    from streaming.service.settings_reload import SettingsReload


HANG_SECONDS = 300.0
"""Without a round of a thread that comes round every second, after which `/healthz` asks for a new process."""
MOST_LOST = 2
"""Runs that were given up, above which `/healthz` asks for a new process: more than one table is concerned."""
OBSERVES = Answer(
    b"This service runs with --observe: it writes nothing, so it takes no events. Send them to a service without it.\n",
    TEXT,
    HTTPStatus.FORBIDDEN,
)
STARTS = Answer(
    b"The service starts or reaches no broker: it has not checked yet that the commit topic is its own. Send the event "
    b"again.\n",
    TEXT,
    HTTPStatus.SERVICE_UNAVAILABLE,
    (("Retry-After", "5"),),
)


@dataclass
class ServiceState:
    """What the pages show of the service's parts; a part is None until it is started."""

    observing: bool = False
    starting: bool = False
    ready: bool = False
    draining: bool = False
    reload: SettingsReload | None = None
    broker: BrokerWatch | None = None
    lease: LeaseHolder | None = None
    pauses: PauseWatch | None = None
    limits: Limits = NO_LIMITS
    dispatcher: Dispatcher | None = None
    sweep: InFlightSweep | None = None
    records: InFlightRecords | None = None
    certificate: Certificate | None = None
    ledger: DriverLedger | None = None
    shard: Shard = EVERYTHING
    stream: EventStream | None = None
    slots: SlotPool | None = None
    cluster: ClusterWatch | None = None
    ticks: Callable[[], float] = time.monotonic
    beat: float | None = None
    """When the main loop last came round; None before its start and after its end."""
    events_read: bool = True
    """Whether the query of commit events ran when the main loop last came round: a scrape must not ask Spark's JVM."""

    @property
    def active(self) -> bool:
        """Whether this service may commit; in observe mode, which needs no lease, whether it works."""
        return self.ready if self.lease is None else self.lease.active

    @property
    def current_pauses(self) -> tuple[Pause, ...]:
        """Pauses that hold now."""
        return () if self.pauses is None else self.pauses.current

    def paused(self, table: TableName) -> bool:
        """Whether the table is paused."""
        return self.pauses is not None and self.pauses.paused(table)

    def held_until(self, table: TableName) -> float:
        """When the table was paused last, in seconds since the epoch; 0 if it was not within a day."""
        return 0.0 if self.pauses is None else self.pauses.held_until(table)

    def open_seconds(self, since: float, now: float) -> float:
        """Seconds between two moments outside quiet hours, by the settings in force."""
        return self.limits.hours.seconds(since, now)

    @property
    def work(self) -> Work:
        """The dispatcher's queue."""
        return Work() if self.dispatcher is None else self.dispatcher.status

    @property
    def rewriting(self) -> SlotUse:
        """Slots and executors; empty before Spark has started."""
        if self.slots is None or self.cluster is None:
            return SlotUse()
        book, state = self.slots.book, self.cluster.state
        return SlotUse(
            slots=book.capacity,
            in_use=book.in_use,
            waiting_runs=len(book.waiting),
            cores=state.executors.cores,
            executors=state.executors.executors,
            host_tasks=dict(state.executors.tasks),
        )

    @property
    def counting(self) -> Counting | None:
        """How many tables were counted, of how many; None until a catalog was listed."""
        counted = self.ledger.counted if self.ledger is not None else None
        return None if counted is None else Counting(*counted)

    @property
    def space(self) -> StateSpace | None:
        """Space for the ledger's state; None before the ledger has started, or if its volume does not answer."""
        return None if self.ledger is None else self.ledger.space

    @property
    def memory(self) -> Memory:
        """Memory of the service's processes."""
        return memory_now()

    @property
    def settings_refused(self) -> bool:
        """Whether the settings file as it is now is not in force."""
        return self.reload is not None and self.reload.refused

    @property
    def unreadable(self) -> int:
        """In-flight records that were set aside."""
        return 0 if self.records is None else self.records.unreadable

    @property
    def waiting_looks(self) -> Mapping[str, int]:
        """Tables that wait for a look, by catalog."""
        return {} if self.ledger is None else self.ledger.waiting

    @property
    def listed(self) -> Mapping[str, bool]:
        """For each catalog whether its last listing succeeded."""
        return {} if self.ledger is None else self.ledger.listed

    @property
    def _hangs(self) -> dict[str, str]:
        """Threads of the service that make no progress: only a new process can help."""
        ages = {"main loop": 0.0 if self.beat is None else self.ticks() - self.beat}
        if self.dispatcher is not None:
            ages["dispatcher"] = self.dispatcher.hangs_seconds
        return {
            part: f"no progress for {seconds / 60:.0f} min" for part, seconds in ages.items() if seconds > HANG_SECONDS
        }

    @property
    def _not_ready(self) -> dict[str, str]:
        """Parts without which the service is not ready, beside the query of commit events."""
        troubles = {
            "kafka": "" if self.broker is None else self.broker.trouble,
            "lease": "" if self.lease is None else self.lease.trouble,
            "executors": "" if self.cluster is None else self.cluster.state.trouble,
        }
        return {part: trouble for part, trouble in troubles.items() if trouble}

    @property
    def ready_for_scrape(self) -> bool:
        """`health.ready`, without a call of Spark's JVM."""
        return self.ready and self.events_read and not self._not_ready

    @property
    def no_events(self) -> Answer | None:
        """Why no events are taken by HTTP now; None: they are."""
        if self.observing:
            return OBSERVES
        broker = self.broker  # nothing is written to topics before they exist and are known to be ours
        return None if broker is not None and broker.prepared else STARTS

    @property
    def health(self) -> Health:
        """Ready after the start, which waits for the lease, while all parts work.

        Not alive if only a new process can help.
        """
        details: dict[str, str] = {}
        lease = self.lease
        if not self.ready:
            details["service"] = (lease.waiting if lease is not None else "") or "starting or stopping"
        unread = "" if self.stream is None else self.stream.trouble
        details |= {f"stream {EVENTS_QUERY}": unread} if unread else {}
        if self.ledger is not None:
            details |= self.ledger.troubles
        work = self.work
        if self.draining:
            details["runs"] = "draining: none starts; the service ends with the last running one"
        for part, trouble in (
            ("settings", "" if self.reload is None else self.reload.trouble),
            ("pauses", "" if self.pauses is None else self.pauses.trouble),
            ("certificate", "" if self.certificate is None else self.certificate.trouble),
            ("in-flight sweep", "" if self.sweep is None else self.sweep.trouble),
            ("in-flight records", f"{self.unreadable} cannot be read and were set aside" if self.unreadable else ""),
        ):
            details |= {part: trouble} if trouble else {}
        details |= {f"run of {table}": "hangs and was given up; restart firnline" for table in work.lost}
        hangs = self._hangs
        details |= hangs
        troubles = self._not_ready
        details |= troubles
        details = {part: hide(text) for part, text in details.items()}
        dead = bool(hangs) or len(work.lost) > MOST_LOST or (self.stream is not None and self.stream.dead)
        return Health(
            live=not dead,
            ready=self.ready and not unread and not troubles,
            details=details,
            active=self.active,
            deployment="" if lease is None else lease.deployment,
        )


def metrics_server(
    settings: Settings,
    registry: CollectorRegistry,
    board: DebtBoard,
    state: ServiceState,
    work: RecentWork,
    listener: Listener = ignore,
) -> MetricsServer:
    """The HTTP server, not yet started.

    Raises:
        InputError: the certificate cannot be used.
    """
    registry.register(Gauges(board, state, VERSION))
    site = Site(registry, state, board, work)
    http = settings.http
    auth = BasicAuth(http.basic_auth) if http.basic_auth else None
    if http.basic_auth and not http.tls_certificate and not http.local:
        LOG.warning(
            "http.basic_auth: passwords are sent without encryption; set http.tls_certificate, or put a proxy before"
        )
    state.certificate = Certificate(http.tls_certificate, http.tls_key) if http.tls_certificate else None
    return MetricsServer(
        site,
        http.host,
        http.port,
        certificate=state.certificate,
        auth=auth,
        intake=_intake(settings, auth, state, listener) if auth is not None and http.accept_events else None,
    )


def _intake(settings: Settings, auth: BasicAuth, state: ServiceState, listener: Listener) -> Intake:
    sources = EventSources.of(settings.kafka, tuple(settings.catalogs))
    events = EventIntake(settings.kafka.commit_topic, sources, lambda: producer(settings.kafka), time.time, listener)
    return Intake(
        auth, is_events_path, events, MAX_EVENT_BYTES, events.close, lambda: state.no_events, unread=events.unread
    )
