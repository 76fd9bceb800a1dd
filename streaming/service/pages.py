"""The service's HTTP pages: metrics, health, status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from compactor.debt.board import DebtBoard
from compactor.runs.dispatcher import Dispatcher, Work
from compactor.settings.tree import Settings
from metrics.debt_collector import DebtCollector
from metrics.http_server import MetricsServer, Site
from metrics.recent_work import RecentWork
from metrics.status_page import Counting, Health
from streaming.version import VERSION

if TYPE_CHECKING:
    from streaming.ledger.batch_handler import BatchHandler
    from streaming.ledger.table_watcher import TableWatcher
    from streaming.service.streams import Streams


@dataclass
class ServiceState:
    """What the pages show of the service's parts; a part is None until it is started."""

    starting: bool = False
    ready: bool = False
    dispatcher: Dispatcher | None = None
    watcher: TableWatcher | None = None
    handler: BatchHandler | None = None
    streams: Streams | None = None

    @property
    def work(self) -> Work:
        """The dispatcher's queue."""
        return Work() if self.dispatcher is None else self.dispatcher.status

    @property
    def counting(self) -> Counting | None:
        """How many tables were counted, of how many; None until a catalog was listed."""
        found = self.watcher.found if self.watcher is not None else None
        if found is None or self.handler is None:
            return None
        return Counting(len(found & self.handler.answered), len(found))

    @property
    def health(self) -> Health:
        """Alive while the ledger's query runs; ready after the start."""
        details: dict[str, str] = {}
        if not self.ready:
            details["service"] = "starting or stopping"
        for name in self.streams.ended if self.streams is not None else ():
            details[f"stream {name}"] = "not running"
        if self.watcher is not None and self.watcher.trouble:
            details["table watcher"] = self.watcher.trouble
        dead = "stream ledger" in details
        return Health(live=not dead, ready=self.ready and not dead, details=details)


def metrics_server(
    settings: Settings, registry: CollectorRegistry, board: DebtBoard, state: ServiceState, work: RecentWork
) -> MetricsServer:
    """The HTTP server, not yet started."""
    worst = settings.service.worst_partitions
    collector = DebtCollector(board, lambda: state.work, lambda: state.ready, version=VERSION, worst_partitions=worst)
    registry.register(collector)
    site = Site(
        registry,
        lambda: state.health,
        collector.summaries,
        lambda: work.running,
        lambda: work.finished,
        lambda: state.counting,
    )
    return MetricsServer(site, settings.http.host, settings.http.port)
