"""The history at work: decisions are gathered in the background and appended in batches; nobody waits for them.

What is decided about the history table itself is no part of it: an entry about its own rewrite would be a new small
file, the next rewrite, the next entry.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from compactor.errors import FirnlineError, RetryError
from compactor.events import Event, HistoryWritten, Listener
from compactor.history.decisions import TELLING, Decision, Repeats, decisions_of
from compactor.settings.history import HistorySettings
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
MOST_EVENTS = 10_000  # that wait to become rows while an append is under way
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0


class Target(Protocol):
    """Where batches go."""

    name: TableName

    def ensure(self) -> None:
        """Make it, or refuse what is something else."""

    def append(self, decisions: Sequence[Decision], batch_id: str) -> None:
        """All of them or none; the same `batch_id` again is no second time."""


class Batches:
    """Decisions on their way, and when the next batch is due. No thread, no clock: the caller says what time it is.

    A batch that has failed keeps its rows and its id, so that it can be recognised if it has landed after all.
    """

    def __init__(self, settings: HistorySettings) -> None:
        self._settings = settings
        self._waiting: deque[Decision] = deque()
        self._failed: tuple[str, list[Decision]] | None = None
        self._failures = 0
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + (len(self._failed[1]) if self._failed else 0)

    def add(self, decisions: Iterable[Decision]) -> int:
        """Take rows in; how many old ones had to go for them."""
        self._waiting.extend(decisions)
        too_many = min(len(self._waiting), max(0, len(self) - self._settings.buffer_rows))
        for _ in range(too_many):
            self._waiting.popleft()
        return too_many

    def due_in(self, now: float) -> float | None:
        """Seconds until the next batch is due, 0 if it is; None when nothing waits."""
        if self._failed:
            return max(0.0, self._not_before - now)
        if not self._waiting:
            return None
        if len(self._waiting) >= self._settings.batch_rows:
            return 0.0
        return max(0.0, self._waiting[0].at + self._settings.batch_seconds - now)

    def take(self) -> tuple[str, list[Decision]]:
        """The next batch with its id: the one that failed, else new rows."""
        if self._failed:
            return self._failed
        count = min(len(self._waiting), self._settings.batch_rows)
        return str(uuid.uuid4()), [self._waiting.popleft() for _ in range(count)]

    def appended(self) -> None:
        """What was taken is in the table."""
        self._failed, self._failures = None, 0

    def failed(self, batch: tuple[str, list[Decision]], now: float) -> None:
        """What was taken is to be tried again, after a pause that grows."""
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 10))
        self._failed, self._failures, self._not_before = batch, self._failures + 1, now + pause

    def give_up(self) -> int:
        """Forget everything; how many rows that was."""
        lost = len(self)
        self._waiting.clear()
        self._failed = None
        return lost


class History:
    """A listener with a thread of its own. An append that fails is told as an event and tried again."""

    def __init__(
        self, target: Target, settings: HistorySettings, listener: Listener, clock: Callable[[], float] = time.time
    ) -> None:
        self._target = target
        self._listener = listener
        self._clock = clock
        self._batches = Batches(settings)
        self._repeats = Repeats(settings.repeat_skips_seconds)
        self._heard: deque[tuple[float, Event]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)

    def __call__(self, event: Event) -> None:
        """Note an event; returns at once."""
        if not isinstance(event, TELLING):
            return
        lost = 0
        with self._changed:
            self._heard.append((self._clock(), event))
            if len(self._heard) > MOST_EVENTS:
                lost = len(decisions_of(self._heard.popleft()[1], 0.0))
            self._changed.notify()
        self._tell_lost(lost)

    def start(self) -> None:
        """Begin to append.

        Raises:
            InputError: the table is no history.
        """
        try:
            self._target.ensure()
        except RetryError as error:
            LOG.warning("%s; the first append tries again", error)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Append what waits, each batch tried once, and end; at the latest after `seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._heard, self._batches.due_in(self._clock()))
                heard, stopping = list(self._heard), self._stopping
                self._heard.clear()
            self._take_in(heard)
            if stopping:
                self._finish()
                return
            if self._batches.due_in(self._clock()) == 0.0:
                self._append()

    def _take_in(self, heard: Sequence[tuple[float, Event]]) -> None:
        found = [
            decision
            for at, event in heard
            for decision in decisions_of(event, at)
            if decision.table != self._target.name and self._repeats.are_news(decision)
        ]
        self._tell_lost(self._batches.add(found))

    def _append(self) -> bool:
        """Write the next batch; whether it was written."""
        batch = self._batches.take()
        try:
            self._target.append(batch[1], batch[0])
        except FirnlineError as error:
            self._batches.failed(batch, self._clock())
            LOG.warning("%d decisions could not be written to the history: %s", len(self._batches), error)
            self._listener(HistoryWritten(rows=0, error=str(error)))
            return False
        self._batches.appended()
        self._listener(HistoryWritten(len(batch[1])))
        return True

    def _finish(self) -> None:
        while len(self._batches):
            if not self._append():
                self._tell_lost(self._batches.give_up())

    def _tell_lost(self, rows: int) -> None:
        if rows:
            LOG.warning("%d decisions are lost to the history", rows)
            self._listener(HistoryWritten(rows=0, dropped=rows))
