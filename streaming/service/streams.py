"""The two streaming queries of the service, commit events and dead letters: started, watched and stopped together.

A query that ends is started again, as long as the service runs: without it, sweeps still find all commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from compactor.events import Listener
from compactor.patience.backoff import Backoff
from compactor.settings.tree import Settings
from compactor.shards import Shard
from streaming.kafka.oldest_offsets import oldest_offsets
from streaming.kafka.topic_watch import existing_topics
from streaming.ledger.dead_letter_query import DEAD_LETTERS_QUERY, Missing, start_dead_letters
from streaming.ledger.dead_letter_query import FOLDER as LETTERS_FOLDER
from streaming.ledger.event_reader import EVENTS_QUERY, start_events
from streaming.ledger.event_reader import FOLDER as EVENTS_FOLDER
from streaming.ledger.heard import AnyHeard
from streaming.service.stream_failures import Cause, Offsets
from streaming.service.watched_query import WatchedQuery, set_aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=30.0)
LETTERS_BACKOFF = Backoff(first_seconds=10.0, longest_seconds=300.0)
DEAD_SECONDS = 600.0
"""Of unexplained ends in a row, after which `/healthz` asks for a new process. The checkpoint was set aside before."""


@dataclass
class Streams:
    """The query of commit events and that of dead letters.

    `handle`: gets the usable events of each batch. `missing`: which of these tables do not exist. `shard`: whose dead
    letters are written. `write`: whether they are written, False to observe. `alive`: called with the name of a query
    that waits for events, at each check. `skipped`: called when commit events may not have been read.
    `read`: called with the offsets up to which commit events were read, at each check. `silent`: why the brokers cannot
    be read from; while it says something, nothing is started. `may_sweep`: whether sweeps may start: offsets are fixed,
    or events cannot be read now (then sweeps find the commits).
    """

    session: SparkSession
    settings: Settings
    catalogs: tuple[str, ...]
    checkpoint: str
    handle: Callable[[Sequence[AnyHeard]], None]
    missing: Missing
    shard: Callable[[], Shard]
    listener: Listener
    write: bool
    alive: Callable[[str], None] = lambda _query: None
    skipped: Callable[[], None] = lambda: None
    read: Callable[[Offsets], None] = lambda _offsets: None
    silent: Callable[[], str] = lambda: ""
    ticks: Callable[[], float] = time.monotonic
    may_sweep: bool = field(default=False, init=False)
    _watched: list[WatchedQuery] = field(default_factory=list, init=False)
    _reads: bool = field(default=False, init=False)
    """Whether the query of commit events has known once where it starts."""

    def _start(self) -> None:
        """Start both; they resume from the checkpoint, else at the end of the topics. `check` tries again."""
        for name, folder, start, backoff in (
            (EVENTS_QUERY, EVENTS_FOLDER, self._start_events, EVENTS_BACKOFF),
            (DEAD_LETTERS_QUERY, LETTERS_FOLDER, self._start_dead_letters, LETTERS_BACKOFF),
        ):
            put_aside = partial(set_aside, self.session, f"{self.checkpoint}/{folder}")
            query = WatchedQuery(
                name, start, put_aside, backoff, self.listener, self._oldest_offsets, self._partitions, self.ticks
            )
            self._watched.append(query)
            query.start()

    @property
    def queries(self) -> list[StreamingQuery]:
        """The queries as last started; one that could not be started is left out."""
        return [each.query for each in self._watched if each.query is not None]

    @property
    def offsets_fixed(self) -> bool:
        """Whether both queries know where they start: an event that is published from now on is not missed."""
        return bool(self._watched) and all(each.offsets_fixed for each in self._watched)

    @property
    def lag_offsets(self) -> int:
        """Offsets of commit events that were not read: 0 if the last batch read all, and no transaction hides any."""
        return self._watched[0].lag_offsets if self._watched else 0

    @property
    def behind(self) -> bool:
        """Whether there were more commit events than a batch takes, or none can be read now.

        A query runs on for minutes after its broker has fallen silent.
        """
        reads = bool(self._watched) and self._watched[0].runs and not self.silent()
        return not reads or self.lag_offsets > 0

    @property
    def troubles(self) -> dict[str, str]:
        """Queries that do not run, with the cause and the remedy; or that miss what is published now."""
        found = {} if self._reads else {EVENTS_QUERY: "has not begun to read events"}
        return found | {each.name: each.trouble for each in self._watched if each.trouble}

    @property
    def dead(self) -> bool:
        """Whether the query of commit events ends again and again, for a reason that a new process may not have."""
        return any(
            each.name == EVENTS_QUERY
            and each.failures.in_a_row > 0
            and each.failures.cause is Cause.OTHER
            and self.ticks() - each.failures.since > DEAD_SECONDS
            for each in self._watched
        )

    def topics_recreated(self, topics: frozenset[str]) -> None:
        """These topics were deleted and created again: the next `check` reads them from their beginning."""
        for each in self._watched:
            each.read_anew(topics)

    def events_hidden(self, offsets: int) -> None:
        """So many offsets have waited behind open transactions. Called by another thread."""
        for each in self._watched:
            each.hidden_offsets = offsets

    def check(self) -> None:
        """Report finished batches; start queries, and ended ones again, with back-off."""
        if not self._watched and not self.silent():
            self._start()
        for each in self._watched:
            each.check()
            if each.waits:
                self.alive(each.name)
            if each.name == EVENTS_QUERY:
                self.read(each.read_to)
            if each.take_skipped() and each.name == EVENTS_QUERY:
                self.skipped()
        self._let_sweep()

    def _let_sweep(self) -> None:
        """A sweep comes after the offsets are fixed: so no commit falls between the two."""
        if not self._reads and self._watched and self._watched[0].offsets_fixed:
            self._reads = True
            if self.may_sweep:
                self.skipped()
        decided = bool(self._watched) and all(each.offsets_fixed or each.failures.in_a_row for each in self._watched)
        self.may_sweep = self.may_sweep or decided or bool(self.silent())

    def stop(self) -> None:
        """Stop both."""
        with ExitStack() as stack:  # one that fails to stop must not keep the other
            for query in self.queries:
                stack.callback(query.stop)

    def finish_batches(self, until: float) -> None:
        """Let running batches end, at most until this `time.monotonic()`: an interrupted one logs stack traces.

        Without a broker none ends.
        """
        for query in () if self.silent() else self.queries:
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
                time.sleep(0.05)

    def _start_events(self, starting: str) -> StreamingQuery:
        return start_events(self.session, self.settings, self.catalogs, self.checkpoint, self.handle, starting=starting)

    def _start_dead_letters(self, starting: str) -> StreamingQuery:
        return start_dead_letters(
            self.session,
            self.settings,
            self.catalogs,
            self.checkpoint,
            write=self.write,
            shard=self.shard,
            missing=self.missing,
            listener=self.listener,
            starting=starting,
        )

    def _oldest_offsets(self, topics: Offsets) -> Offsets:
        return oldest_offsets(self.settings.kafka, topics)

    def _partitions(self) -> Mapping[str, int]:
        return existing_topics(self.settings.kafka).partitions
