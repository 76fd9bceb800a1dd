"""Append decisions to the history table: in batches, by a background thread.

Decisions about the history table itself are not recorded: each would add a small file, which causes the next rewrite
and the next decision.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from compactor.errors import FirnlineError, RetryError
from compactor.events import Event, HistoryWritten, Listener
from compactor.history.decisions import RECORDED, Decision, RepeatFilter, decisions_of
from compactor.patience.backoff import LATER
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
MOST_EVENTS = 10_000  # waiting events during an append
BATCH_SECONDS = 300.0  # most seconds before a decision is appended: a file each, at most 288 a day
BATCH_ROWS = 1000  # most decisions in one append, about 100 KB of Parquet
MOST_ROWS = 20_000  # decisions in memory (about 1 KB each) while appends fail; the oldest are dropped first


class Target(Protocol):
    """A table that takes batches of decisions."""

    name: TableName

    def ensure(self) -> None:
        """Create the table, or raise if an existing table is not a history."""

    def append(self, decisions: Sequence[Decision], batch_id: str) -> None:
        """Append all rows or none. Does nothing if `batch_id` was appended before."""


class Batches:
    """Waiting decisions, and when the next batch is due. Has no thread and no clock: the caller passes the time.

    A failed batch keeps its rows and its id, so that a batch that was appended in spite of an error is recognised. No
    batch waits longer because the clock was set back.
    """

    def __init__(self, seconds: float = BATCH_SECONDS, rows: int = BATCH_ROWS, most: int = MOST_ROWS) -> None:
        """`seconds`, `rows`: when a batch is due. `most`: rows that wait."""
        self._seconds = seconds
        self._rows = rows
        self._most = most
        self._waiting: deque[Decision] = deque()
        self._failed: tuple[str, list[Decision]] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._due_at = math.inf

    def __len__(self) -> int:
        return len(self._waiting) + (len(self._failed[1]) if self._failed else 0)

    def add(self, decisions: Iterable[Decision]) -> int:
        """Add rows; return how many old rows were dropped to stay within the bound."""
        self._waiting.extend(decisions)
        too_many = min(len(self._waiting), max(0, len(self) - self._most))
        for _ in range(too_many):
            self._waiting.popleft()
        return too_many

    def due_in(self, now: float) -> float | None:
        """Seconds until the next batch is due (0: now); None if there are no rows."""
        if self._failed:
            self._not_before = min(self._not_before, now + LATER.seconds(self._failures))
            return max(0.0, self._not_before - now)
        if not self._waiting:
            return None
        if len(self._waiting) >= self._rows:
            return 0.0
        self._due_at = min(self._due_at, min(self._waiting[0].at, now) + self._seconds)
        return max(0.0, self._due_at - now)

    def take(self) -> tuple[str, list[Decision]]:
        """The next batch with its id: the failed batch, else new rows."""
        if self._failed:
            return self._failed
        self._due_at = math.inf
        count = min(len(self._waiting), self._rows)
        return str(uuid.uuid4()), [self._waiting.popleft() for _ in range(count)]

    def appended(self) -> None:
        """The taken batch is in the table."""
        self._failed, self._failures = None, 0

    def failed(self, batch: tuple[str, list[Decision]], now: float) -> None:
        """Keep the taken batch for a retry after the back-off."""
        self._failed, self._failures = batch, self._failures + 1
        self._not_before = now + LATER.seconds(self._failures)

    def give_up(self) -> int:
        """Drop all rows; return how many."""
        lost = len(self)
        self._waiting.clear()
        self._failed = None
        return lost


class History:
    """Listener with its own thread. A failed append is published as an event and retried."""

    def __init__(
        self, target: Target, batches: Batches, listener: Listener, clock: Callable[[], float] = time.time
    ) -> None:
        self._target = target
        self._listener = listener
        self._clock = clock
        self._batches = batches
        self._repeats = RepeatFilter()
        self._received: deque[tuple[float, Event]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)

    def __call__(self, event: Event) -> None:
        """Queue an event. Does not block."""
        if not isinstance(event, RECORDED):
            return
        lost = 0
        with self._changed:
            self._received.append((self._clock(), event))
            if len(self._received) > MOST_EVENTS:
                lost = len(decisions_of(self._received.popleft()[1], 0.0))
            self._changed.notify()
        self._report_lost(lost)

    def start(self) -> None:
        """Create or check the table, and start the thread.

        Raises:
            InputError: the table exists and is not a history.
        """
        try:
            self._target.ensure()
        except RetryError as error:
            LOG.warning("%s; the first append will try again", error)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Append the waiting rows, trying each batch once, and stop. Returns after at most `seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._received, self._batches.due_in(self._clock()))
                received, stopping = list(self._received), self._stopping
                self._received.clear()
            self._add(received)
            if stopping:
                self._finish()
                return
            if self._batches.due_in(self._clock()) == 0.0:
                self._append()

    def _add(self, received: Sequence[tuple[float, Event]]) -> None:
        found = [
            decision
            for at, event in received
            for decision in decisions_of(event, at)
            if decision.table != self._target.name and self._repeats.is_new(decision)
        ]
        self._report_lost(self._batches.add(found))

    def _append(self) -> bool:
        """Append the next batch; return whether it succeeded."""
        batch = self._batches.take()
        try:
            self._target.append(batch[1], batch[0])
        except FirnlineError as error:
            self._batches.failed(batch, self._clock())
            LOG.warning("cannot append %d decisions to the history; will retry: %s", len(self._batches), error)
            self._listener(HistoryWritten(rows=0, error=str(error)))
            return False
        self._batches.appended()
        self._listener(HistoryWritten(len(batch[1])))
        return True

    def _finish(self) -> None:
        while len(self._batches):
            if not self._append():
                self._report_lost(self._batches.give_up())

    def _report_lost(self, rows: int) -> None:
        if rows:
            LOG.warning("%d decisions were dropped and are missing in the history", rows)
            self._listener(HistoryWritten(rows=0, dropped=rows))
