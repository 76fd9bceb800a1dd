"""The stream of commit events: its query is started, watched, started again after its end, and stopped.

A query that ends is always started again, with back-off. When it has failed twice at the same offsets, although the
brokers answer, it goes on from the end of the topics, with a new checkpoint; then all tables are looked at. Without the
stream, looks still find all commits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from py4j.protocol import Py4JError, Py4JNetworkError

from compactor.events import BatchFinished, EventsLost, LagChanged, Listener, StreamEnded
from compactor.patience.backoff import Backoff
from streaming.intake.event_query import EVENTS_QUERY, EventQuery, offsets_fixed
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
    OTHER: "see the error; at the second end at the same offsets the stream goes on from the end of the topics, and "
    "all tables are looked at",
}

Offsets = Mapping[str, Mapping[str, int]]
"""The next offset to read, by topic and partition, as Spark writes it."""


@dataclass(frozen=True)
class Ends:
    """Ends of the query in a row, since `since` (seconds of a steady clock), and why it ended last.

    `place`: the offsets at which it ended; empty: it ended in no batch, or could not start. `at_place`: how often, for
    a reason that may be what is read there.
    """

    in_a_row: int = 0
    since: float = 0.0
    cause: str = ""
    error: str = ""
    place: str = ""
    at_place: int = 0

    def another(self, cause: str, error: str, place: str, now: float) -> Ends:
        """The query has ended once more."""
        since = self.since if self.in_a_row else now
        ends = replace(self, in_a_row=self.in_a_row + 1, since=since, cause=cause, error=error)
        if cause != OTHER:
            return ends
        return replace(ends, place=place, at_place=1 + (self.at_place if place == self.place else 0))

    @property
    def may_skip(self) -> bool:
        """Whether to go on from the end now: after the second, fourth, eighth … end at a place."""
        return self.cause == OTHER and self.at_place > 1 and self.at_place & (self.at_place - 1) == 0


class Broker(Protocol):
    """What is known of the brokers; `BrokerWatch`."""

    @property
    def trouble(self) -> str:
        """Why no events could be read when the topics were looked at last; empty if they could."""

    def ask(self) -> str:
        """The same, asked now."""

    def read(self, offsets: Offsets) -> None:
        """The stream has read up to these offsets. Does not block."""


@dataclass(eq=False)
class EventStream:
    """`alive`: called while the query waits for events. `look_at_all`: called when events may not have been read."""

    source: EventQuery
    broker: Broker
    listener: Listener
    look_at_all: Callable[[], object]
    alive: Callable[[str], object] = lambda _query: None
    ticks: Callable[[], float] = time.monotonic
    query: StreamingQuery | None = field(default=None, init=False)
    may_sweep: bool = field(default=False, init=False)
    """Whether sweeps may start: offsets are fixed, or events cannot be read now (then sweeps find the commits)."""
    ends: Ends = field(default=Ends(), init=False)
    lag_offsets: int = field(default=0, init=False)
    """Offsets that the last batch left on the topics."""
    _again: float | None = field(default=float("-inf"), init=False)
    """When to start the query; None: it is started, or its end was not noticed yet."""
    _reads: bool = field(default=False, init=False)
    """Whether the query has known once where it starts, since the start or since it went on from the end."""
    _skipped: bool = field(default=False, init=False)
    _read_to: Offsets = field(default_factory=dict, init=False)
    _reported: str = field(default="", init=False)
    _look_again: float = field(default=0.0, init=False)

    @property
    def runs(self) -> bool:
        """Whether the query runs now."""
        return self.query is not None and self.query.isActive

    @property
    def offsets_fixed(self) -> bool:
        """Whether the query knows where it starts: an event that is published from now on is not missed."""
        return self.query is not None and offsets_fixed(self.query)

    @property
    def behind(self) -> bool:
        """Whether there were more commit events than a batch takes, or none can be read now.

        A query runs on for minutes after its broker has fallen silent.
        """
        return not self.runs or bool(self.broker.trouble) or self.lag_offsets > 0

    @property
    def trouble(self) -> str:
        """Why events are not read, with the remedy; empty if they are."""
        if self.ends.in_a_row:
            return f"ended {self.ends.in_a_row} times: {self.ends.error}; {REMEDIES[self.ends.cause]}"
        return "" if self.runs and self._reads else "has not begun to read events"

    @property
    def dead(self) -> bool:
        """Whether the query ends again and again, for a reason that a new process may not have."""
        ends, reads = self.ends, not self.broker.trouble
        return reads and ends.in_a_row > 0 and ends.cause == OTHER and self.ticks() - ends.since > DEAD_SECONDS

    def check(self) -> None:
        """Report finished batches; start the query, and start it again if it has ended.

        Raises:
            Py4JNetworkError: Spark's JVM has ended.
        """
        runs = self.runs  # asked before the report, which then has all batches of a query that has ended
        if self.query is not None:
            self._report_batches(self.query)
        if self.query is not None and runs:
            self._is_alive(self.query)
        elif self._again is None and self.query is not None:
            self._ended(*_end(self.query))
        elif self._again is not None and self.ticks() >= self._again and not self.broker.trouble:
            self._start()
        self._let_sweep()

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
        else:
            self._again = None

    def _ended(self, error: str, place: str) -> None:
        refused = self.source.handler.refused
        cause = BROKER if self.broker.trouble else OTHER if refused is None else HANDLER
        self.ends = self.ends.another(cause, shown(str(refused or error)), place, self.ticks())
        seconds = BACKOFF.seconds(self.ends.in_a_row)
        self._again = self.ticks() + seconds
        self.listener(StreamEnded(query=EVENTS_QUERY, cause=cause))
        LOG.warning(
            "the stream %s ended and is started again in %.0f s: %s; %s",
            EVENTS_QUERY, seconds, self.ends.error, REMEDIES[cause],
        )  # fmt: skip
        if self.ends.may_skip and not self.broker.ask():
            self._skip(place)

    def _skip(self, place: str) -> None:
        """Go on from the end of the topics: without a checkpoint, the query begins there."""
        try:
            self.source.delete_checkpoint()
        except (Py4JError, OSError) as error:
            LOG.warning("the checkpoint of the stream %s cannot be deleted: %s", EVENTS_QUERY, error)
            return
        LOG.error(
            "the stream %s failed twice at the same offsets (%s) and goes on from the end of the topics: all tables "
            "are looked at; requested rewrites that were not read are lost: send them again",
            EVENTS_QUERY, place or json.dumps(self._read_to),
        )  # fmt: skip
        self.query, self._reads, self._skipped = None, False, True

    def _let_sweep(self) -> None:
        """A look at a table comes after the offsets are fixed: so no commit falls between the two."""
        if not self._reads and self.offsets_fixed:
            self._reads = True
            if self.may_sweep:
                self.look_at_all()
        self.may_sweep = self.may_sweep or self._reads or self.ends.in_a_row > 0 or bool(self.broker.trouble)

    def _is_alive(self, query: StreamingQuery) -> None:
        """A query without events finishes no batch: it is alive while it waits for the next trigger."""
        if self.ticks() >= self._look_again:
            self._look_again = self.ticks() + ALIVE_SECONDS
            if query.isActive and not query.status["isTriggerActive"] and offsets_fixed(query):
                self._succeeded()
                self.alive(EVENTS_QUERY)

    def _succeeded(self) -> None:
        if self.ends.in_a_row:
            LOG.info("the stream %s runs again", EVENTS_QUERY)
        self.ends = Ends()

    def _report_batches(self, query: StreamingQuery) -> None:
        """Publish the batches that finished since the last call, each once."""
        last = query._jsq.lastProgress()  # noqa: SLF001 - PySpark would parse the progress each second
        if last is None or last.timestamp() == self._reported:
            return
        for progress in unreported(query.recentProgress, self._reported):
            self._reported = progress.timestamp
            self._succeeded()
            self.lag_offsets = offsets_behind(progress.json)
            self.listener(LagChanged(query=EVENTS_QUERY, offsets=self.lag_offsets))
            seconds, rows = progress.durationMs.get("triggerExecution", 0) / 1000, progress.numInputRows
            self.listener(
                BatchFinished(query=EVENTS_QUERY, batch_id=progress.batchId, seconds=seconds, input_rows=rows)
            )
            self._has_read(next(_offsets(progress.json, "endOffset")))

    def _has_read(self, end: Offsets) -> None:
        """Up to these offsets. Report what was skipped, and topics that were deleted and created again."""
        if self._skipped:
            self._skipped = False
            lost = offsets_between(self._read_to, end) if self._read_to else 0
            self.listener(EventsLost(query=EVENTS_QUERY, count=max(1, lost)))
        created_again = [topic for topic in end if offsets_between(end, {topic: self._read_to.get(topic, {})})]
        if created_again:
            LOG.warning("topics were created again, and events of them were missed: %s", ", ".join(created_again))
            self.look_at_all()
        self._read_to = end
        self.broker.read(end)


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
