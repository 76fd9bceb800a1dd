"""The two streaming queries of the service, commit events and dead letters: started, watched and stopped together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compactor.backoff import Backoff
from compactor.errors import FirnlineError
from compactor.events import BatchFinished, Listener
from compactor.reasons import Reason
from compactor.settings.tree import Settings
from compactor.shards import Shard
from streaming.ledger.dead_letter_query import DEAD_LETTERS_QUERY, Missing, start_dead_letters
from streaming.ledger.event_reader import EVENTS_QUERY, offsets_fixed, start_events
from streaming.ledger.heard import Heard
from streaming.logs.events import LOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=30.0)
EVENTS_ATTEMPTS = 5  # ends in a row, without a batch between them, after which the service ends
ALIVE_SECONDS = 10.0  # between two looks at whether a query waits for events
LETTERS_BACKOFF = Backoff(first_seconds=10.0, longest_seconds=300.0)


@dataclass
class _Watched:
    """A query with its restarts. `failures`: ends in a row without a batch or an idle trigger between them."""

    start: Callable[[], StreamingQuery]
    query: StreamingQuery
    backoff: Backoff
    failures: int = 0
    again: float | None = None
    reported: str = ""
    lag_offsets: int = 0
    look_again: float = 0.0

    @property
    def name(self) -> str:
        return str(self.query.name)


@dataclass
class Streams:
    """The query of commit events and that of dead letters.

    `handle`: gets the usable events of each batch. `missing`: which of these tables do not exist. `shard`: whose dead
    letters are written. `write`: whether they are written, False to observe. `alive`: called with the name of a query
    that waits for events, at each check.
    """

    session: SparkSession
    settings: Settings
    catalogs: tuple[str, ...]
    checkpoint: str
    handle: Callable[[Sequence[Heard]], None]
    missing: Missing
    shard: Callable[[], Shard]
    listener: Listener
    write: bool
    alive: Callable[[str], None] = lambda _query: None
    ticks: Callable[[], float] = time.monotonic
    _watched: list[_Watched] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start both; they resume from the checkpoint, else at the end of the topics."""
        for start, backoff in ((self._start_events, EVENTS_BACKOFF), (self._start_dead_letters, LETTERS_BACKOFF)):
            self._watched.append(_Watched(start, start(), backoff))

    @property
    def queries(self) -> list[StreamingQuery]:
        """The queries as last started."""
        return [each.query for each in self._watched]

    @property
    def offsets_fixed(self) -> bool:
        """Whether both queries know where they start: an event that is published from now on is not missed."""
        return bool(self._watched) and all(offsets_fixed(query) for query in self.queries)

    @property
    def lag_offsets(self) -> int:
        """Offsets that the last batch of commit events left on the topics: 0 if it read all there was."""
        return self._watched[0].lag_offsets if self._watched else 0

    @property
    def behind(self) -> bool:
        """Whether there were more commit events than a batch takes."""
        return self.lag_offsets > 0

    @property
    def ended(self) -> tuple[str, ...]:
        """Names of the queries that do not run."""
        return tuple(each.name for each in self._watched if not each.query.isActive)

    def check(self) -> None:
        """Report finished batches; start ended queries again, with back-off.

        Raises:
            FirnlineError: the query of commit events ends again and again; the message has its cause.
        """
        for each in self._watched:
            self._report_batches(each)
            if not each.query.isActive:
                self._has_ended(each)
            elif self.ticks() >= each.look_again:
                each.look_again = self.ticks() + ALIVE_SECONDS
                self._is_alive(each)

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

    def _start_events(self) -> StreamingQuery:
        return start_events(self.session, self.settings, self.catalogs, self.checkpoint, self.handle)

    def _start_dead_letters(self) -> StreamingQuery:
        return start_dead_letters(
            self.session,
            self.settings,
            self.catalogs,
            self.checkpoint,
            write=self.write,
            shard=self.shard,
            missing=self.missing,
            listener=self.listener,
        )

    def _report_batches(self, watched: _Watched) -> None:
        """Publish the batches that finished since the last call, each once. Spark keeps the last twenty."""
        last = watched.query._jsq.lastProgress()  # noqa: SLF001 - PySpark would parse the progress each second
        if last is None or last.timestamp() <= watched.reported:
            return
        for progress in watched.query.recentProgress:
            if progress.timestamp <= watched.reported:  # the start of the batch, in UTC and of fixed width
                continue
            watched.reported = progress.timestamp
            watched.failures = 0
            finished = finished_batch(watched.name, progress)
            watched.lag_offsets = finished.lag_offsets
            self.listener(finished)

    def _is_alive(self, watched: _Watched) -> None:
        """A query without events finishes no batch: it is alive while it waits for the next trigger."""
        if not watched.query.status["isTriggerActive"] and offsets_fixed(watched.query):
            watched.failures = 0
            self.alive(watched.name)

    def _has_ended(self, watched: _Watched) -> None:
        now = self.ticks()
        if watched.again is None:
            watched.failures += 1
            cause = watched.query.exception()
            if watched.name == EVENTS_QUERY and watched.failures >= EVENTS_ATTEMPTS:
                raise FirnlineError(
                    f"the stream {EVENTS_QUERY} ended {EVENTS_ATTEMPTS} times in a row: {cause}; start the service "
                    "again when the cause is removed, it resumes where it was",
                    reason=Reason.STREAM_ENDED,
                )
            seconds = watched.backoff.seconds(watched.failures)
            watched.again = now + seconds
            LOG.warning("the stream %s ended and is started again in %.0f s: %s", watched.name, seconds, cause)
        if now < watched.again:
            return
        try:
            watched.query = watched.start()
        except Exception as error:  # noqa: BLE001 - any error is tried again
            watched.failures += 1
            watched.again = now + watched.backoff.seconds(watched.failures)
            LOG.warning("the stream %s could not be started: %s", watched.name, error)
        else:
            watched.again = None


def finished_batch(name: str, progress: Any) -> BatchFinished:
    """The event of one finished batch, from Spark's progress."""
    behind = [int(source.metrics.get("maxOffsetsBehindLatest") or 0) for source in progress.sources]
    rows = progress.numInputRows
    if name == DEAD_LETTERS_QUERY:  # Spark counts the records of both passes
        rows = min(rows, offsets_read(progress.json) or rows)
    return BatchFinished(
        query=name,
        batch_id=progress.batchId,
        seconds=progress.durationMs.get("triggerExecution", 0) / 1000,
        input_rows=rows,
        lag_offsets=sum(behind),
    )


def offsets_read(progress: str) -> int | None:
    """Number of offsets of a batch, from the JSON of Spark's progress; None for the first, whose start is not given.

    Markers of transactions and deleted records have offsets too.
    """
    total = 0
    for source in json.loads(progress)["sources"]:
        starts, ends = source["startOffset"], source["endOffset"]
        if not starts or not ends:
            return None
        for topic, partitions in ends.items():
            known = starts.get(topic, {})
            total += sum(end - known.get(number, 0) for number, end in partitions.items())
    return total
