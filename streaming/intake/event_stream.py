"""The stream of commit events: its query is started, watched, started again after its end, and stopped.

A query that ends is always started again, with back-off. When it ends at the same offsets for a minute, although the
brokers answer and the checkpoint can be written, it goes on from the end of the topics, with a new checkpoint; then all
tables are looked at. Without the stream, looks still find all commits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from py4j.protocol import Py4JError, Py4JNetworkError

from compactor.events import BatchFinished, EventsLost, LagChanged, Listener, StreamEnded
from compactor.patience.backoff import Backoff
from streaming.intake.event_query import EVENTS_QUERY, GIVE_UP_SECONDS, EventQuery, offsets_fixed
from streaming.logs.events import LOG

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BACKOFF: Final = Backoff(first_seconds=1.0, longest_seconds=30.0)
DEAD_SECONDS: Final = 600.0
"""Of unexplained ends in a row, after which `/healthz` asks for a new process."""
ALIVE_SECONDS: Final = 10.0  # between two looks at whether the query waits for events
MOST_SHOWN: Final = 500
BROKER, HANDLER, OTHER = "kafka_unavailable", "unavailable", "unexpected"
"""Causes of an end; a metric label."""
REMEDIES: Final = {
    BROKER: "check the brokers of kafka.bootstrap_servers, the topics, and the rights of this principal",
    HANDLER: "the events could not be taken over: see the error",
    OTHER: "see the error; after a minute at the same offsets the stream goes on from the end of the topics, and all "
    "tables are looked at",
}

Offsets = Mapping[str, Mapping[str, int]]
"""The next offset to read, by topic and partition, as Spark writes it."""


class End(NamedTuple):
    """The last of `in_a_row` ends of the query. Times are of a steady clock, in seconds.

    `since`: the first of them. `place`: the offsets of the last unexplained one, and `place_since` of the first there;
    empty: it ended in no batch, or could not start.
    """

    in_a_row: int = 0
    since: float = 0.0
    cause: str = ""
    error: str = ""
    at: float = float("-inf")
    place: str = ""
    place_since: float | None = None

    def another(self, cause: str, error: str, place: str, now: float) -> End:
        """The query has ended once more."""
        there, there_since = self.place, self.place_since
        if cause == OTHER:
            is_known = there_since is not None and there == place
            there, there_since = place, there_since if is_known else now
        return End(self.in_a_row + 1, self.since if self.in_a_row else now, cause, error, now, there, there_since)

    @property
    def may_skip(self) -> bool:
        """Whether what is read at these offsets seems to be the reason: executors may also be preempted twice."""
        return self.cause == OTHER and self.place_since is not None and self.at - self.place_since >= GIVE_UP_SECONDS


class Broker(Protocol):
    """What is known of the brokers; `BrokerWatch`."""

    @property
    def trouble(self) -> str:
        """Why no events could be read when the topics were looked at last; empty if they could."""

    def ask(self) -> str:
        """The same, asked now."""

    def read(self, offsets: Offsets) -> None:
        """The stream has read up to these offsets. Does not block."""


class EventStream:
    """Watches the query of `source`; `check` is called every second.

    Attributes:
        query: The query; None: it is not started, or was started again.
        runs: Whether it ran when it was looked at last.
        may_sweep: Whether sweeps may start: offsets are fixed, or events cannot be read now (then sweeps find the
            commits).
        look_at_all: Called when events may not have been read.
        ticks: A steady clock in seconds.
    """

    def __init__(self, source: EventQuery, broker: Broker, listener: Listener) -> None:
        self.source = source
        self.broker = broker
        self.query: StreamingQuery | None = None
        self.runs = self.may_sweep = False
        self.look_at_all: Callable[[], object] = lambda: None
        self.ticks = time.monotonic
        self._batches = Batches(broker, listener)
        self._end = End()
        self._reads = False  # whether it has known once where it starts, since the start or since it was skipped

    @property
    def offsets_fixed(self) -> bool:
        """Whether the query knows where it starts: an event that is published from now on is not missed."""
        return self.query is not None and offsets_fixed(self.query)

    @property
    def behind(self) -> bool:
        """Whether there were more commit events than a batch takes, or none can be read now.

        A query runs on for minutes after its broker has fallen silent.
        """
        return not self.runs or bool(self.broker.trouble) or self._batches.lag_offsets > 0

    @property
    def trouble(self) -> str:
        """Why events are not read, with the remedy; empty if they are."""
        if self._end.in_a_row:
            return f"ended {self._end.in_a_row} times: {self._end.error}; {REMEDIES[self._end.cause]}"
        return "" if self.runs and self._reads else "has not begun to read events"

    @property
    def dead(self) -> bool:
        """Whether the query ends again and again, for a reason that a new process may not have."""
        unexplained = self._end.cause == OTHER and self.ticks() - self._end.since > DEAD_SECONDS
        return unexplained and not self.broker.trouble

    def check(self) -> None:
        """Report finished batches; start the query, and start it again if it has ended.

        Raises:
            Py4JNetworkError: Spark's JVM has ended.
        """
        query, trouble = self.query, self.broker.trouble
        self.runs = query is not None and query.isActive  # asked before the report, which then has its last batches
        if query is None:
            if not trouble and self.ticks() >= self._end.at + BACKOFF.seconds(self._end.in_a_row):
                self._start()
        else:
            finished, created_again = self._batches.report(query)
            if finished or (self.runs and self._batches.waits(query, self.ticks())):
                self._succeeded()
            if created_again:
                self.look_at_all()
            if not self.runs:
                self._ended(*_end(query))
        if not self._reads and self.offsets_fixed:  # a look at a table comes after: no commit falls between the two
            self._reads = True
            if self.may_sweep:
                self.look_at_all()
        self.may_sweep = self.may_sweep or self._reads or self._end.in_a_row > 0 or bool(trouble)

    def stop(self) -> None:
        """Stop the query."""
        if self.query is not None:
            self.query.stop()

    def finish_batch(self, until: float) -> None:
        """Let a running batch end, at most until this `time.monotonic()`: an interrupted one logs stack traces.

        Without a broker none ends.
        """
        query = None if self.broker.trouble else self.query
        while query is not None and query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(0.05)

    def _start(self) -> None:
        self.source.handler.refused = None
        try:
            self.query = self.source.start()
        except (Py4JNetworkError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - any error is tried again
            self._ended(str(error), "")

    def _ended(self, error: str, place: str) -> None:
        refused, self.query = self.source.handler.refused, None
        cause = BROKER if self.broker.trouble else OTHER if refused is None else HANDLER
        self._end = self._end.another(cause, shown(str(refused or error)), place, self.ticks())
        self._batches.listener(StreamEnded(query=EVENTS_QUERY, cause=cause))
        LOG.warning(
            "the stream %s ended and is started again in %.0f s: %s; %s",
            EVENTS_QUERY, BACKOFF.seconds(self._end.in_a_row), self._end.error, REMEDIES[cause],
        )  # fmt: skip
        if self._end.may_skip and not self.broker.ask():
            self._skip(place)

    def _skip(self, place: str) -> None:
        """Go on from the end of the topics: without a checkpoint, the query begins there."""
        self._end = self._end._replace(place_since=None)
        try:
            self.source.delete_checkpoint()
        except (Py4JError, OSError) as error:
            LOG.warning("nothing is skipped: the stream's checkpoint cannot be written: %s", error)
            return
        LOG.error(
            "the stream %s failed for a minute at the same offsets (%s) and goes on from the end of the topics: all "
            "tables are looked at; requested rewrites that were not read are lost: send them again",
            EVENTS_QUERY, place or json.dumps(self._batches.read_to),
        )  # fmt: skip
        self._reads, self._batches.skipped = False, True

    def _succeeded(self) -> None:
        if self._end.in_a_row:
            LOG.info("the stream %s runs again", EVENTS_QUERY)
        self._end = End()


class Batches:
    """What finished batches tell, each once. `lag_offsets`: left on the topics by the last one. `read_to`: its end.

    `skipped`: offsets were skipped before the next one.
    """

    def __init__(self, broker: Broker, listener: Listener) -> None:
        self.listener = listener
        self.lag_offsets = 0
        self.read_to: Offsets = {}
        self.skipped = False
        self._broker = broker
        self._reported = ""
        self._waited_at = float("-inf")

    def report(self, query: StreamingQuery) -> tuple[bool, bool]:
        """Publish what finished since the last call; whether anything has, and whether topics were created again."""
        last = query._jsq.lastProgress()  # noqa: SLF001 - PySpark would parse the progress each second
        if last is None or last.timestamp() == self._reported:
            return False, False
        created_again = False
        for progress in unreported(query.recentProgress, self._reported):
            self._reported = progress.timestamp
            self.lag_offsets = offsets_behind(progress.json)
            self.listener(LagChanged(query=EVENTS_QUERY, offsets=self.lag_offsets))
            seconds = progress.durationMs.get("triggerExecution", 0) / 1000
            self.listener(BatchFinished(query=EVENTS_QUERY, seconds=seconds, input_rows=progress.numInputRows))
            created_again |= self._has_read(next(_offsets(progress.json, "endOffset")))
        return True, created_again

    def waits(self, query: StreamingQuery, now: float) -> bool:
        """Whether the query waits for events, and so finishes no batch: it is alive. Asked now and then."""
        if now < self._waited_at + ALIVE_SECONDS:
            return False
        self._waited_at = now
        waits = query.isActive and not query.status["isTriggerActive"] and offsets_fixed(query)
        if waits:
            self.listener(BatchFinished(query=EVENTS_QUERY, seconds=0.0, input_rows=0))
        return waits

    def _has_read(self, end: Offsets) -> bool:
        """Up to these offsets. Report what was skipped; whether topics were deleted and created again."""
        if self.skipped:
            self.skipped = False
            lost = offsets_between(self.read_to, end) if self.read_to else 0
            self.listener(EventsLost(query=EVENTS_QUERY, count=max(1, lost)))
        created_again = [topic for topic in end if offsets_between(end, {topic: self.read_to.get(topic, {})})]
        if created_again:
            LOG.warning("topics were created again, and events of them were missed: %s", ", ".join(created_again))
        self.read_to = end
        self._broker.read(end)
        return bool(created_again)


def shown(error: str) -> str:
    """One line of an exception, for the log. Of one within a batch, the line that ends Python's traceback."""
    lines = [line for line in error.partition("=== Streaming Query")[0].splitlines() if line.strip()]
    of_python = [after for before, after in pairwise(lines) if before[:1] == " " != after[:1]]
    return (of_python or lines or ["no reason was given"])[-1 if of_python else 0][:MOST_SHOWN]


def unreported(recent: Sequence[Any], reported: str) -> Sequence[Any]:
    """The batches after the one that began at `reported`; all if Spark keeps that one no more, or it is another run's.

    `recent`: Spark's progress of each batch, oldest first. Their order decides, not their times: the clock can be set
    back.
    """
    known = [number for number, progress in enumerate(recent) if progress.timestamp == reported]
    return recent[known[-1] + 1 :] if known else recent


def offsets_behind(progress: str) -> int:
    """Number of offsets after the end of a batch that were there when it began, from the JSON of Spark's progress.

    Spark's own figure (`maxOffsetsBehindLatest`) is of one partition, the worst.
    """
    return offsets_between(next(_offsets(progress, "endOffset")), next(_offsets(progress, "latestOffset")))


def offsets_between(start: Offsets, end: Offsets) -> int:
    """Number of offsets from `start` to `end`; of a partition that `start` does not know, all."""
    return sum(
        max(0, offset - start.get(topic, {}).get(number, 0))
        for topic, partitions in end.items()
        for number, offset in partitions.items()
    )


def _offsets(progress: str, name: str) -> Any:
    """These offsets of the source of a batch; empty where Spark has none."""
    return (source[name] or {} for source in json.loads(progress)["sources"])


def _end(query: StreamingQuery) -> tuple[str, str]:
    """Why the query ended, and the offsets from which its batch began."""
    failure = query._jsq.exception()  # noqa: SLF001 - PySpark keeps only the message
    if not failure.isDefined():
        return "", ""
    return str(query.exception()), str(failure.get().startOffset())
