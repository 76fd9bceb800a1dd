"""Hold a finished rewrite: while another maintenance holds its lock, then until right after a row-level commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compactor.errors import FirnlineError, LaterError
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
        """Wait for the next row-level commit, at most so many seconds. A catalog that does not answer ends that."""
        if most_seconds <= 0:
            return Held()
        started = self.ticks()
        try:
            rhythm = self._rhythm()
            now = self.clock()
            until = wait_until(rhythm, now, most_seconds)
            if until is None or rhythm is None:
                return Held()
            self.waits(until - now)
            last, deadline = rhythm.last, self.ticks() + until - now
            while rhythm is not None and rhythm.last == last and self.ticks() < deadline:
                if self.stopped(LOOK_SECONDS):
                    break
                self.moved()
                rhythm = self._rhythm()
        except FirnlineError:
            return Held(self.ticks() - started)
        return Held(self.ticks() - started, after_writer=rhythm is not None and rhythm.last != last)

    def _rhythm(self) -> Rhythm | None:
        return rhythm_of(self.look().history)
