"""The service's HTTP pages: metrics, health, status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

from prometheus_client import CollectorRegistry

from compactor.debt.board import DebtBoard
from compactor.events import Listener, ignore
from compactor.redaction import hide
from compactor.runs.dispatcher import Work
from compactor.runs.pauses import Pause
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING, Shard
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
from streaming.kafka.broker_watch import BrokerWatch
from streaming.logs.events import LOG
from streaming.service.controls import Controls, Parts
from streaming.service.in_flight_sweep import LONG_SECONDS
from streaming.service.process_memory import memory_now
from streaming.version import VERSION

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


class Phase(Enum):
    """Where the service is in its life. A standby starts until it has the lease."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(eq=False)
class ServiceState:
    """What the pages show. `beat`: when the main loop last came round; None before its start and after its end."""

    parts: Parts
    controls: Controls
    broker: BrokerWatch
    observing: bool = False
    shard: Shard = EVERYTHING
    phase: Phase = Phase.STARTING
    beat: float | None = None
    certificate: Certificate | None = None

    @property
    def active(self) -> bool:
        """Whether this service may commit; in observe mode, which needs no lease, whether it works."""
        return self.phase is Phase.READY if self.parts.lease is None else self.parts.lease.active

    @property
    def current_pauses(self) -> tuple[Pause, ...]:
        """Pauses that hold now."""
        return () if self.parts.pauses is None else self.parts.pauses.current

    def paused(self, table: TableName) -> bool:
        """Whether the table is paused."""
        return self.parts.pauses is not None and self.parts.pauses.paused(table)

    def held_until(self, table: TableName) -> float:
        """When the table was paused last, in seconds since the epoch; 0 if it was not within a day."""
        return 0.0 if self.parts.pauses is None else self.parts.pauses.held_until(table)

    def open_seconds(self, since: float, now: float) -> float:
        """Seconds between two moments outside quiet hours, by the settings in force."""
        return self.controls.limits.hours.seconds(since, now)

    @property
    def work(self) -> Work:
        """The dispatcher's queue."""
        return Work() if self.parts.dispatcher is None else self.parts.dispatcher.status

    @property
    def rewriting(self) -> SlotUse:
        """Slots and executors; empty before Spark has started."""
        rewriting = self.parts.rewriting
        if rewriting is None:
            return SlotUse()
        book, executors = rewriting.slots.book, rewriting.cluster.state.executors
        return SlotUse(
            slots=book.capacity,
            in_use=book.in_use,
            waiting_runs=len(book.waiting),
            cores=executors.cores,
            executors=executors.executors,
            host_tasks=dict(executors.tasks),
        )

    @property
    def counting(self) -> Counting | None:
        """How many tables were counted, of how many; None until a catalog was listed."""
        counted = self.parts.ledger.counted if self.parts.ledger is not None else None
        return None if counted is None else Counting(*counted)

    @property
    def space(self) -> StateSpace | None:
        """Space for the ledger's state; None before the ledger has started, or if its volume does not answer."""
        return None if self.parts.ledger is None else self.parts.ledger.space

    @property
    def memory(self) -> Memory:
        """Memory of the service's processes."""
        return memory_now()

    @property
    def settings_refused(self) -> bool:
        """Whether the settings file as it is now is not in force."""
        return self.controls.reload.refused

    @property
    def unreadable(self) -> int:
        """In-flight records that were set aside."""
        return 0 if self.parts.rewriting is None else self.parts.rewriting.records.unreadable

    @property
    def waiting_looks(self) -> Mapping[str, int]:
        """Tables that wait for a look, by catalog."""
        return {} if self.parts.ledger is None else self.parts.ledger.waiting

    @property
    def listed(self) -> Mapping[str, bool]:
        """For each catalog whether its last listing succeeded."""
        return {} if self.parts.ledger is None else self.parts.ledger.listed

    @property
    def ready(self) -> bool:
        """As `health` says."""
        return self.health.ready

    def no_events(self) -> Answer | None:
        """Why no events are taken by HTTP now; None: they are."""
        if self.observing:
            return OBSERVES
        return None if self.broker.prepared else STARTS  # before, nothing is written: the topic may be another system's

    @property
    def health(self) -> Health:
        """Ready after the start, which waits for the lease, while all parts work.

        Not alive if only a new process can help.
        """
        parts, is_ready, lost = self.parts, self.phase is Phase.READY, self.work.lost
        starts = "" if is_ready else (parts.lease.waiting if parts.lease else "") or "starting or stopping"
        hangs, troubles = self._hangs(), self._troubles()
        draining = "draining: none starts; the service ends with the last running one"
        details = {
            "service": starts,
            **({} if parts.ledger is None else parts.ledger.troubles),
            "runs": draining if self.controls.draining else "",
            "settings": self.controls.reload.trouble,
            "pauses": parts.pauses.trouble if parts.pauses else "",
            "certificate": self.certificate.trouble if self.certificate else "",
            "in-flight sweep": parts.sweep.trouble if parts.sweep else "",
            "in-flight records": f"{self.unreadable} cannot be read and were set aside" if self.unreadable else "",
            **{f"run of {table}": "hangs and was given up; restart firnline" for table in lost},
            **hangs,
            **troubles,
        }
        dead = bool(hangs) or len(lost) > MOST_LOST or (parts.stream is not None and parts.stream.dead)
        return Health(
            live=not dead,
            ready=is_ready and not troubles,
            details={part: hide(text) for part, text in details.items() if text},
            active=self.active,
            deployment="" if parts.lease is None else parts.lease.deployment,
        )

    def _hangs(self) -> dict[str, str]:
        """Threads that come round every second, and have not for a while: only a new process can help."""
        ages = {"main loop": 0.0 if self.beat is None else time.monotonic() - self.beat}
        if self.parts.dispatcher is not None:
            ages["dispatcher"] = self.parts.dispatcher.hangs_seconds
        return {
            part: f"no progress for {seconds / 60:.0f} min" for part, seconds in ages.items() if seconds > LONG_SECONDS
        }

    def _troubles(self) -> dict[str, str]:
        """Parts without which the service is not ready."""
        parts = self.parts
        troubles = {
            f"stream {EVENTS_QUERY}": parts.stream.trouble if parts.stream else "",
            "kafka": self.broker.trouble,
            "lease": parts.lease.trouble if parts.lease else "",
            "executors": parts.rewriting.cluster.state.trouble if parts.rewriting else "",
        }
        return {part: trouble for part, trouble in troubles.items() if trouble}


def metrics_server(
    settings: Settings,
    registry: CollectorRegistry,
    board: DebtBoard,
    state: ServiceState,
    recent: RecentWork,
    listener: Listener = ignore,
) -> MetricsServer:
    """The HTTP server, not yet started.

    Raises:
        InputError: the certificate cannot be used.
    """
    registry.register(Gauges(board, state, VERSION))
    site = Site(registry, state, board, recent)
    http = settings.http
    auth = BasicAuth(http.basic_auth) if http.basic_auth else None
    if auth is not None and not http.tls_certificate and not http.local:
        LOG.warning(
            "http.basic_auth: passwords are sent without encryption; set http.tls_certificate, or put a proxy before"
        )
    state.certificate = Certificate(http.tls_certificate, http.tls_key) if http.tls_certificate else None
    intake = _intake(settings, auth, state, listener) if auth is not None and http.accept_events else None
    return MetricsServer(site, http.host, http.port, certificate=state.certificate, auth=auth, intake=intake)


def _intake(settings: Settings, auth: BasicAuth, state: ServiceState, listener: Listener) -> Intake:
    events = EventIntake(settings.kafka, EventSources.of(settings.kafka, tuple(settings.catalogs)), listener)
    return Intake(auth, is_events_path, events, MAX_EVENT_BYTES, events.close, state.no_events, unread=events.unread)
