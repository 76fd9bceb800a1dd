"""The two streaming queries of the service: started, watched and stopped together."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compactor.errors import FirnlineError
from compactor.events import BatchFinished, DeadLettered, Listener
from compactor.iceberg.tables import Catalogs
from compactor.reasons import Reason
from compactor.settings.tree import Settings
from streaming.ledger.batch_handler import BatchHandler
from streaming.ledger.queries import DEAD_LETTERS, start_dead_letters, start_ledger
from streaming.logs.events import LOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEAD_LETTERS_AGAIN_SECONDS = 30.0


@dataclass
class Streams:
    """The ledger's query and the dead-letter query. `write`: whether dead letters are written, False to observe."""

    session: SparkSession
    settings: Settings
    catalogs: Catalogs
    checkpoint: str
    handler: BatchHandler
    listener: Listener
    write: bool
    queries: list[StreamingQuery] = field(default_factory=list)
    _reported: dict[str, int] = field(default_factory=dict)
    _dead_letters_again: float = 0.0

    def start(self) -> None:
        """Start both; they resume from the checkpoint."""
        ledger = start_ledger(self.session, self.settings, self.catalogs, self.checkpoint, self.handler)
        self.queries = [ledger]
        self.queries.append(self._start_dead_letters())

    def check(self) -> None:
        """Report finished batches; start an ended dead-letter query again.

        Raises:
            FirnlineError: the ledger's query ended by itself; the message has its cause.
        """
        ledger, dead_letters = self.queries
        self._report_batches(ledger)
        self._report_batches(dead_letters)
        if not ledger.isActive:
            raise FirnlineError(
                f"the stream ledger ended: {ledger.exception()}; start the service again, it resumes where it was",
                reason=Reason.STREAM_ENDED,
            )
        if not dead_letters.isActive and time.monotonic() >= self._dead_letters_again:
            self._dead_letters_again = time.monotonic() + DEAD_LETTERS_AGAIN_SECONDS
            self._resume_dead_letters(dead_letters)

    @property
    def ended(self) -> tuple[str, ...]:
        """Names of the queries that do not run."""
        return tuple(str(query.name) for query in self.queries if not query.isActive)

    def stop(self) -> None:
        """Stop both."""
        with ExitStack() as stack:  # one that fails to stop must not keep the other
            for query in self.queries:
                stack.callback(query.stop)

    def finish_batches(self, until: float) -> None:
        """Let running batches end, at most until this `time.monotonic()`: an interrupted one logs stack traces."""
        for query in self.queries:
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
                time.sleep(0.05)

    def _report_batches(self, query: StreamingQuery) -> None:
        """Publish the batches that finished since the last call, each once. Spark keeps the last 100."""
        name = str(query.name)
        for progress in query.recentProgress:
            if progress.batchId <= self._reported.get(name, -1):
                continue
            self._reported[name] = progress.batchId
            self.listener(_finished(name, progress))
            dead_letters = (progress.observedMetrics or {}).get(DEAD_LETTERS)
            for reason, count in (dead_letters.asDict() if dead_letters is not None else {}).items():
                if count:
                    self.listener(DeadLettered(reason=reason, count=count))

    def _start_dead_letters(self) -> StreamingQuery:
        return start_dead_letters(self.session, self.settings, self.catalogs, self.checkpoint, write=self.write)

    def _resume_dead_letters(self, ended: StreamingQuery) -> None:
        """A dead-letter topic that refuses records stops nothing else; the same records are tried again."""
        LOG.warning("the stream %s ended and is started again: %s", ended.name, ended.exception())
        try:
            self.queries[1] = self._start_dead_letters()
        except Exception as error:  # noqa: BLE001 - any error is tried again
            LOG.warning("the stream %s could not be started: %s", ended.name, error)


def _finished(name: str, progress: Any) -> BatchFinished:
    behind = [int(source.metrics.get("maxOffsetsBehindLatest") or 0) for source in progress.sources]
    return BatchFinished(
        query=name,
        batch_id=progress.batchId,
        seconds=progress.durationMs.get("triggerExecution", 0) / 1000,
        input_rows=progress.numInputRows,
        lag_offsets=sum(behind),
        state_rows=sum(operator.numRowsTotal for operator in progress.stateOperators),
    )
