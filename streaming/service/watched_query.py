"""One streaming query and its restarts: why it ended, when it starts again, what became of its checkpoint."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError

from compactor.errors import FirnlineError
from compactor.events import BatchFinished, EventsLost, LagChanged, Listener, StreamEnded
from compactor.patience.backoff import Backoff
from streaming.kafka.clients import LATEST
from streaming.ledger.batch_rows import causes_of, causes_of_java
from streaming.ledger.dead_letter_query import DEAD_LETTERS_QUERY
from streaming.ledger.event_reader import ASIDE, offsets_fixed
from streaming.logs.events import LOG
from streaming.service.stream_failures import (
    BatchOffsets,
    Cause,
    Checkpoint,
    Failures,
    Offsets,
    added_partitions,
    cause_of,
    gaps,
    shown,
    starting_offsets,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NO_BATCH = BatchOffsets()
ALIVE_SECONDS = 10.0  # between two looks at whether a query waits for events
KEPT_ASIDE = 2


@dataclass
class WatchedQuery:
    """Starts a query, reports its batches, and starts it again after its end.

    `begin`: starts it, given Spark's `startingOffsets` for a new checkpoint. `set_aside`: renames the checkpoint.
    `oldest`: the oldest offsets that the topics still have. `partitions`: their number by topic, of those that exist.
    """

    name: str
    begin: Callable[[str], StreamingQuery]
    set_aside: Callable[[], str | None]
    backoff: Backoff
    listener: Listener
    oldest: Callable[[Offsets], Offsets]
    partitions: Callable[[], Mapping[str, int]]
    ticks: Callable[[], float]
    query: StreamingQuery | None = None
    failures: Failures = field(default_factory=Failures)
    hidden_offsets: int = 0
    """Behind open transactions, as `TopicWatch` tells: Spark does not see them."""
    waits: bool = False
    _unread: int = 0
    _told_lag: int | None = None
    _again: float | None = None
    _ends: Offsets = field(default_factory=dict)
    _reported: str = ""
    _error: str = ""
    _look_again: float = 0.0
    _first_batch: bool = True
    _skipped: bool = False
    _noticed: deque[frozenset[str]] = field(default_factory=deque)
    _anew: frozenset[str] = frozenset()
    """Topics that were created again. A new checkpoint begins at their beginning."""
    _outdated: bool = False
    """The checkpoint is that of the topics before, and must be set aside before the next start."""
    _is_new: bool = False
    """There is no checkpoint, or none with offsets: the query goes on at `_ends`."""

    @property
    def runs(self) -> bool:
        """Whether the query runs now."""
        return self.query is not None and self.query.isActive

    @property
    def offsets_fixed(self) -> bool:
        """Whether the query knows where it starts."""
        return self.query is not None and offsets_fixed(self.query)

    @property
    def read_to(self) -> Offsets:
        """The next offset to read of each partition; empty before the first batch."""
        return self._ends

    @property
    def trouble(self) -> str:
        """Why the query does not run, with the remedy; empty if it does."""
        if self.runs and not self.failures.in_a_row:
            return ""
        cause = self.failures.cause
        return f"ended {self.failures.in_a_row} times: {self._error}; {cause.remedy}" if cause else "not running"

    @property
    def lag_offsets(self) -> int:
        """Offsets that the last batch left on the topics, or could not see."""
        return self._unread + self.hidden_offsets

    def take_skipped(self) -> bool:
        """Whether events may have been skipped since the last call."""
        skipped, self._skipped = self._skipped, False
        return skipped

    def start(self) -> None:
        """Start the query. If it cannot start, `check` tries again.

        Raises:
            Py4JNetworkError: Spark's JVM has ended.
        """
        try:
            if self._outdated:
                self._put_aside()
            self.query = self.begin(self._starting())
        except (Py4JNetworkError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - any error is tried again
            self._failed(causes_of(error), str(error))
        else:
            self._again, self._first_batch = None, True

    def _starting(self) -> str:
        """Where a query without a checkpoint starts. Topics may have changed since it ended, or failed to start."""
        if not self._is_new or not (self._ends or self._anew):
            return LATEST
        return json.dumps(starting_offsets(self.partitions(), self._ends, self._anew))

    def read_anew(self, topics: frozenset[str]) -> None:
        """Read these topics from their beginning, at the next check. Called by another thread."""
        self._noticed.append(topics)

    def check(self) -> None:
        """Report batches that have finished, and a changed lag; start the query again if it has ended."""
        self._check()
        lag = self.lag_offsets
        if lag != self._told_lag:
            self._told_lag = lag
            self.listener(LagChanged(query=self.name, offsets=lag))

    def _check(self) -> None:
        self.waits = False
        runs = self.runs  # asked before the report, which then has all batches of a query that has ended
        if self.query is not None:
            self._report_batches(self.query)
        if self._noticed:
            self._start_anew()
        elif self.query is not None and runs:
            if self.ticks() >= self._look_again:
                self._look_again = self.ticks() + ALIVE_SECONDS
                self._is_alive(self.query)
        elif self._again is None and self.query is not None:
            exceptions, batch = _end(self.query)
            self._failed(exceptions, str(self.query.exception()), batch)
        elif self._again is None or self.ticks() >= self._again:
            self.start()

    def _start_anew(self) -> None:
        """Stop, and start without the checkpoint. If it cannot be set aside, that is tried again before each start."""
        while self._noticed:
            topics = self._noticed.popleft()
            LOG.warning("%s: created again; the stream %s reads it from its beginning", ", ".join(topics), self.name)
            self.listener(StreamEnded(query=self.name, cause=Cause.RECREATED.value))
            self._anew |= topics
        self._ends = {topic: offsets for topic, offsets in self._ends.items() if topic not in self._anew}
        self._outdated = self._skipped = True
        query, self.query = self.query, None
        if query is not None:
            query.stop()
        self.start()

    def _is_alive(self, query: StreamingQuery) -> None:
        """A query without events finishes no batch: it is alive while it waits for the next trigger."""
        if query.isActive and not query.status["isTriggerActive"] and offsets_fixed(query):
            self._succeeded()
            self.waits = True

    def _succeeded(self) -> None:
        if self.failures.in_a_row:
            LOG.info("the stream %s runs again", self.name)
            self._skipped = (
                True  # if its checkpoint was new, or retention was exceeded: the sweep counts what it missed
            )
        self.failures, self._error = Failures(), ""
        self._is_new, self._anew = False, frozenset()

    def _failed(self, exceptions: str, error: str, batch: BatchOffsets = NO_BATCH) -> None:
        cause = cause_of(exceptions)
        self._error = shown(error)
        self.failures = self.failures.failed(cause, self.ticks(), str(batch))
        seconds = self.backoff.seconds(self.failures.in_a_row)
        self._again = self.ticks() + seconds
        self.listener(StreamEnded(query=self.name, cause=cause.value))
        LOG.warning(
            "the stream %s ended and is started again in %.0f s: %s; %s", self.name, seconds, self._error, cause.remedy
        )
        choice = self.failures.checkpoint
        if choice is not Checkpoint.KEEP:
            self._renew_checkpoint(choice, batch)

    def _renew_checkpoint(self, choice: Checkpoint, batch: BatchOffsets = NO_BATCH) -> None:
        try:
            where = self._put_aside()
        except (Py4JError, OSError) as error:
            LOG.warning("the checkpoint of the stream %s cannot be set aside: %s", self.name, error)
            return
        if choice is Checkpoint.SKIP_BATCH:
            self._skip(batch)
        elif choice is Checkpoint.SET_ASIDE_AND_SKIP:
            self._goes_on({})
        if where is not None and choice is not Checkpoint.SKIP_BATCH:
            goes_on = "at the last offsets that were read" if self._ends else "at the end of the topics"
            LOG.warning(
                "the checkpoint of the stream %s may be damaged and was set aside at %s; the stream goes on %s, and a "
                "sweep counts what it skips", self.name, where, goes_on,
            )  # fmt: skip

    def _put_aside(self) -> str | None:
        where = self.set_aside()
        self._outdated, self._is_new = False, True
        return where

    def _skip(self, batch: BatchOffsets) -> None:
        """Go on behind a batch that cannot be read; at the end of the topics if Spark does not tell its offsets."""
        batch = batch if batch.start else replace(batch, start=self._ends)
        offsets = str(batch) or "to the end of the topics"
        LOG.warning("the stream %s skips the batch that cannot be read: %s", self.name, offsets)
        for gap in batch.lacks:
            self.listener(EventsLost(query=self.name, topic=gap.topic, count=gap.count, unreadable=True))
        self._goes_on(batch.end)

    def _goes_on(self, ends: Offsets) -> None:
        """A new checkpoint begins at these offsets, also of topics that were created again."""
        self._ends, self._anew = ends, frozenset()

    def _report_batches(self, query: StreamingQuery) -> None:
        """Publish the batches that finished since the last call, each once. Spark keeps the last twenty."""
        last = query._jsq.lastProgress()  # noqa: SLF001 - PySpark would parse the progress each second
        if last is None or last.timestamp() == self._reported:
            return
        for progress in unreported(query.recentProgress, self._reported):
            self._reported = progress.timestamp
            self._succeeded()
            self._unread = offsets_behind(progress.json)
            self.listener(finished_batch(self.name, progress))
            self._look_for_gaps(progress)

    def _look_for_gaps(self, progress: Any) -> None:
        """Whether topics lost events that were never read, or have more partitions than before."""
        for start, end in _offsets(progress.json):
            self._ends = end
            looks = self._first_batch or self.lag_offsets > 0
            oldest: Offsets = {}
            if looks and start:
                with suppress(FirnlineError):  # the broker does not answer: the next batch looks again
                    oldest = self.oldest(start)
                    self._first_batch = False
            for gap in gaps(start, oldest):
                self._skipped = True
                self.listener(EventsLost(query=self.name, topic=gap.topic, count=gap.count))
            for topic, count in added_partitions(start, end).items():
                LOG.info("topic %s has %d partitions now; the stream %s reads all", topic, count, self.name)


def set_aside(session: SparkSession, folder: str) -> str | None:
    """Rename a checkpoint folder in its own file system; keep the newest of those set aside. None: there is none.

    Raises:
        Py4JError: the file system refuses.
    """
    context = session.sparkContext
    jvm: Any = context._jvm  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    earlier = sorted(
        str(each.getPath()) for each in files.globStatus(jvm.org.apache.hadoop.fs.Path(f"{folder}{ASIDE}*")) or ()
    )
    for old in earlier[: len(earlier) - KEPT_ASIDE + 1] if len(earlier) >= KEPT_ASIDE else ():
        files.delete(jvm.org.apache.hadoop.fs.Path(old), True)
    if not files.exists(path):
        return None
    number = int(earlier[-1].rpartition(ASIDE)[2]) + 1 if earlier else 1
    target = f"{folder}{ASIDE}{number:06d}"
    if not files.rename(path, jvm.org.apache.hadoop.fs.Path(target)):
        raise OSError(f"{folder} could not be renamed to {target}")
    return target


def unreported(recent: Sequence[Any], reported: str) -> Sequence[Any]:
    """The batches after the one that began at `reported`; all if Spark keeps that one no more, or it is another run's.

    `recent`: Spark's progress of each batch, oldest first. Their order decides, not their times: the clock can be set
    back.
    """
    known = [number for number, progress in enumerate(recent) if progress.timestamp == reported]
    return recent[known[-1] + 1 :] if known else recent


def finished_batch(name: str, progress: Any) -> BatchFinished:
    """The event of one finished batch, from Spark's progress."""
    rows = progress.numInputRows
    if name == DEAD_LETTERS_QUERY:  # Spark counts the records of both passes
        rows = min(rows, offsets_read(progress.json) or rows)
    return BatchFinished(
        query=name,
        batch_id=progress.batchId,
        seconds=progress.durationMs.get("triggerExecution", 0) / 1000,
        input_rows=rows,
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


def offsets_behind(progress: str) -> int:
    """Number of offsets after the end of a batch that were there when it began, from the JSON of Spark's progress.

    Spark's own figure (`maxOffsetsBehindLatest`) is of one partition, the worst.
    """
    total = 0
    for source in json.loads(progress)["sources"]:
        ends = source["endOffset"] or {}
        for topic, partitions in (source["latestOffset"] or {}).items():
            read = ends.get(topic, {})
            total += sum(max(0, latest - read.get(number, 0)) for number, latest in partitions.items())
    return total


def _offsets(progress: str) -> Iterator[tuple[Offsets, Offsets]]:
    """(start, end) of each source of a batch; the start is empty for the first batch of a checkpoint."""
    for source in json.loads(progress)["sources"]:
        yield source["startOffset"] or {}, source["endOffset"] or {}


def _end(query: StreamingQuery) -> tuple[str, BatchOffsets]:
    """Why the query ended, and at which batch."""
    failure = query._jsq.exception()  # noqa: SLF001 - PySpark keeps only the message
    if not failure.isDefined():
        return "", BatchOffsets()
    exception = failure.get()
    return causes_of_java(exception), BatchOffsets.of(exception.startOffset(), exception.endOffset())
