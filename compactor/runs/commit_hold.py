"""Hold a finished rewrite: while another maintenance holds its lock, then until right after a row-level commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from compactor.errors import FirnlineError, LaterError, RetryError
from compactor.iceberg.tables import TableView
from compactor.planning.commit_timing import Rhythm, rhythm_of, wait_until
from compactor.reasons import Reason

LOOK_SECONDS: Final = 1.0
"""Between two looks at the table: a catalog call each, without a read of the store while nothing changes."""

LOCK_LOOK_SECONDS: Final = 5.0
LOCKED_SECONDS: Final = 600.0
"""How long a finished rewrite waits for a lock."""


@dataclass(frozen=True)
class Held:
    """How long the commit was held, and whether a writer's commit ended that."""

    seconds: float = 0.0
    after_writer: bool = False


@dataclass
class _Wait:
    """One wait for a writer.

    Attributes:
        began: In seconds since the epoch. The time since then is told by a steady clock.
        first, newest: Rhythm of the writers at the first look that found reason to wait, and at the last look.
        lost: Seconds without an answer of the catalog.
        lost_since: The same since the newest commit.
    """

    most_seconds: float
    began: float
    first: Rhythm | None = None
    newest: Rhythm | None = None
    lost: float = 0.0
    lost_since: float = 0.0

    @property
    def after_writer(self) -> bool:
        """Whether a commit has come since the wait began."""
        return self.first is not None and self.newest is not None and self.newest.last != self.first.last

    def left(self, rhythm: Rhythm | None, unanswered: float, waited: float) -> float | None:
        """Seconds to wait yet, at most; None: commit now.

        Args:
            rhythm: Of the table's writers now.
            unanswered: Seconds without an answer before that.
            waited: Seconds since the wait began.
        """
        followed = rhythm is not None and self.newest is not None and rhythm.last != self.newest.last
        self.newest = rhythm
        self.lost += unanswered
        self.lost_since = unanswered + (0.0 if followed else self.lost_since)
        if rhythm is not None and self.lost_since:
            rhythm = replace(rhythm, late=True)
        if rhythm is not None and followed and not rhythm.late:
            return None
        now = self.began + waited - self.lost_since
        until = wait_until(rhythm, now, self.most_seconds + min(self.lost, self.most_seconds) - waited)
        return None if until is None else until - now


@dataclass(frozen=True)
class CommitHold:
    """Waits for the right moment of a commit.

    Attributes:
        look: The table as it is now.
        locked: Whether another maintenance holds its lock on the table.
        stopped: Waits so many seconds; whether the run must stop.
        moved: Called after each look: a run that waits does not hang.
        waits: Called before a wait for a writer, with its longest duration in seconds.
        clock: Seconds since the epoch, to compare with the times of commits.
        ticks: A steady clock in seconds, for durations: the other one can be set back.
    """

    look: Callable[[], TableView]
    locked: Callable[[], bool]
    stopped: Callable[[float], bool]
    moved: Callable[[], object]
    waits: Callable[[float], object]
    clock: Callable[[], float]
    ticks: Callable[[], float]

    def until_unlocked(self) -> None:
        """Wait while another maintenance holds its lock on the table.

        Raises:
            LaterError: it still does after `LOCKED_SECONDS`.
            RetryError: the lock cannot be read.
        """
        started = self.ticks()
        while self.locked():
            if self.ticks() - started >= LOCKED_SECONDS:
                raise LaterError(
                    f"Flink's maintenance held its lock for {LOCKED_SECONDS:.0f} s: the rewrite was not committed",
                    reason=Reason.FLINK_LOCK,
                    seconds=LOCKED_SECONDS,
                )
            if self.stopped(LOCK_LOOK_SECONDS):
                return
            self.moved()

    def wait(self, most_seconds: float) -> Held:
        """Wait until right after a row-level commit of a writer, at most so many seconds.

        While the catalog does not answer, no writer can commit, and the time does not count. When it answers again, its
        writers begin at once. The wait ends when the catalog has not answered for `most_seconds`, and after twice that
        time in any case.
        """
        if most_seconds <= 0:
            return Held()
        wait, started = _Wait(most_seconds, self.clock()), self.ticks()
        try:
            while True:
                rhythm, unanswered = self._answered(most_seconds)
                left = wait.left(rhythm, unanswered, self.ticks() - started)
                if left is None:
                    break
                if wait.first is None:
                    wait.first = rhythm
                    self.waits(left)
                if self._stopped():
                    break
        except FirnlineError:
            pass  # the commit itself says what is wrong
        seconds = self.ticks() - started
        return Held(seconds, wait.after_writer) if seconds >= LOOK_SECONDS else Held()

    def _answered(self, most_seconds: float) -> tuple[Rhythm | None, float]:
        """The rhythm now, and for how many seconds the catalog did not answer.

        Raises:
            FirnlineError: it did not for `most_seconds`, or the run must stop.
        """
        asked, unanswered = self.ticks(), 0.0
        while True:
            try:
                return rhythm_of(self.look().history), unanswered
            except RetryError:
                stopped = self._stopped()
                unanswered = self.ticks() - asked
                if stopped or unanswered > most_seconds:
                    raise

    def _stopped(self) -> bool:
        """Wait until the next look; whether the run must stop."""
        stopped = self.stopped(LOOK_SECONDS)
        self.moved()
        return stopped
