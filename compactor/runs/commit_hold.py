"""Hold a finished rewrite: while it is another's turn to write, then until right after a row-level commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compactor.errors import FirnlineError, LaterError, RetryError
from compactor.iceberg.tables import TableView
from compactor.patience.backoff import Backoff
from compactor.planning.commit_timing import Rhythm, good_until, wait_until, writers_rhythm
from compactor.reasons import Reason

LOOK_SECONDS: Final = 1.0
"""Between two looks at the table: a catalog call each, without a read of the store while nothing changes."""

SLOW_SECONDS: Final = 5.0
"""A look that takes longer counts as time without an answer: it tells what was, not what is."""

LOCK_LOOK_SECONDS: Final = 5.0
LOCKED_SECONDS: Final = 600.0
"""How long a finished rewrite waits for a lock, for a branch that is to be published, or for a writer that must commit
first (`policy.consecutive_replaces`).
"""

SILENT: Final = frozenset(
    {
        Reason.UNAVAILABLE,
        Reason.CATALOG_UNAVAILABLE,
        Reason.TABLE_UNREADABLE,
        Reason.MANIFEST_UNREADABLE,
        Reason.LOCK_UNREADABLE,
        Reason.STATE_UNWRITABLE,
        Reason.FLINK_CONVERTER,
    }
)
"""Reasons of errors that pass by themselves, in most cases within minutes."""
SILENT_SECONDS: Final = 600.0
"""How long a finished rewrite waits for an answer before it is thrown away."""
SILENCE_BACKOFF: Final = Backoff(1.0, 30.0)

MISSES: Final = 2
"""Moments that a commit may miss; then it is sent whenever it is ready."""
TOLD_AGAIN: Final = 10.0
"""The longest duration of a wait is published again when it grows by so many seconds."""


class MissedError(RetryError):
    """The moment of the commit has passed: it is another's turn, or the next writer may have begun. It was not sent."""


@dataclass
class Silence:
    """What a finished rewrite needs for its commit does not answer: catalog, store, lock or the state of the service;
    or Flink's converter must commit first.

    It is asked again. Nothing of this commit can have landed: else the error is a CommitUnknownError. `began`: by a
    steady clock; None: all answer.
    """

    began: float | None = None
    failures: int = 0

    def pause(self, error: RetryError, now: float) -> float | None:
        """Seconds until the next attempt; None: there is none. `now`: by the steady clock."""
        self.began = now if self.began is None else self.began
        self.failures += 1
        if error.reason not in SILENT or now - self.began >= SILENT_SECONDS:
            return None
        return SILENCE_BACKOFF.seconds(self.failures)


@dataclass(frozen=True)
class Held:
    """How long the commit was held, and whether a writer's commit ended that.

    `good_until`: until when to send it, by the steady clock; None: at any time.
    """

    seconds: float = 0.0
    after_writer: bool = False
    good_until: float | None = None


@dataclass
class _Wait:
    """One wait for a writer. Times are in seconds of a steady clock.

    Attributes:
        most_seconds: How long it lasts, counted from its start, from a commit that was not in time, or from the answer
            after a silence.
        ends: When it ends if no writer commits.
        latest: When it ends in any case.
        newest: The writers' rhythm at the last look.
        silent: Seconds without an answer of the catalog, since the newest commit.
        after_writer: Whether a writer's commit has ended it.
    """

    most_seconds: float
    ends: float
    latest: float
    newest: Rhythm | None = None
    silent: float = 0.0
    after_writer: bool = False

    def until(self, rhythm: Rhythm | None, silent: float, now: float, ticks: float) -> float | None:
        """Until when to wait; None: commit now.

        Args:
            rhythm: Of the table's writers; None: unknown.
            silent: Seconds without an answer before that.
            now: In seconds since the epoch.
            ticks: The same moment by the steady clock.
        """
        followed = self.newest is not None and rhythm is not None and rhythm.last > self.newest.last
        behind = rhythm is not None and followed and rhythm.behind
        self.newest = rhythm
        self.silent = silent + (0.0 if followed else self.silent)
        if silent or behind:
            self.ends = min(self.latest, ticks + self.most_seconds)
        in_time = rhythm is not None and now <= rhythm.moment_ends  # this process may have been stopped since
        self.after_writer = followed and in_time and not behind and not self.silent
        if self.after_writer:
            return None
        until = wait_until(rhythm, now, self.ends - ticks, self.silent)
        return None if until is None else ticks + until - now


@dataclass(frozen=True)
class CommitHold:
    """Waits for the right moment of a commit.

    Attributes:
        look: The table as it is now.
        theirs: Why it is another's turn to write to the table; None: it is ours.
        stopped: Waits so many seconds; whether the run must stop.
        moved: Called after each look: a run that waits does not hang.
        waits: Called before a wait for a writer, with its longest duration in seconds.
        clock: Seconds since the epoch, to compare with the times of commits.
        ticks: A steady clock in seconds, for durations: the other one can be set back.
    """

    look: Callable[[], TableView]
    theirs: Callable[[], LaterError | None]
    stopped: Callable[[float], bool]
    moved: Callable[[], object]
    waits: Callable[[float], object]
    clock: Callable[[], float]
    ticks: Callable[[], float]

    def until_our_turn(self) -> None:
        """Wait while it is another's turn.

        Raises:
            LaterError: it still is after `LOCKED_SECONDS`.
            RetryError: a lock cannot be read.
        """
        started = self.ticks()
        while (later := self.theirs()) is not None:
            if self.ticks() - started >= LOCKED_SECONDS:
                raise LaterError(
                    f"the rewrite was not committed within {LOCKED_SECONDS:.0f} s: {later}",
                    reason=later.reason,
                    seconds=LOCKED_SECONDS,
                )
            if self.stopped(LOCK_LOOK_SECONDS):
                return
            self.moved()

    def wait(self, most_seconds: float) -> Held:
        """Wait until right after a row-level commit of a writer, at most so many seconds.

        A commit of a writer that is behind its schedule is not followed, nor one that was made while the catalog did
        not answer us: the writer may begin the next one at once. The wait then starts again; it ends after twice
        `most_seconds` in any case.
        """
        if most_seconds <= 0:
            return Held()
        day, started = self.clock(), self.ticks()
        wait = _Wait(most_seconds, ends=started + most_seconds, latest=started + 2 * most_seconds)
        told: float | None = None
        while True:
            rhythm, silent = self._answer(wait)
            ticks = self.ticks()
            until = wait.until(rhythm, silent, day + ticks - started, ticks)
            if until is None:
                break
            if told is None or until > told + TOLD_AGAIN:
                told = until
                self.waits(until - ticks)
            if self._stopped():
                break
        good = good_until(rhythm, day + ticks - started)
        waited = told is not None or wait.silent > 0
        return Held(
            seconds=self.ticks() - started if waited else 0.0,
            after_writer=wait.after_writer,
            good_until=None if good is None else good - day + started,
        )

    def _answer(self, wait: _Wait) -> tuple[Rhythm | None, float]:
        """The rhythm of the table's writers, and for how many seconds the catalog did not answer before.

        None: there is no row-level writer; or the catalog did not answer until the latest end of the wait, or refuses,
        and the commit itself will say why.
        """
        first, failed = self.ticks(), False
        while True:
            asked = self.ticks()
            try:
                view = self.look()
                rhythm = writers_rhythm(view.history, view.properties, wait.newest)
            except RetryError:
                failed = True
                if self._stopped() or self.ticks() >= wait.latest:
                    return None, self.ticks() - first
            except FirnlineError:
                return None, self.ticks() - first if failed else 0.0
            else:
                now = self.ticks()
                return rhythm, now - first if failed or now - asked > SLOW_SECONDS else 0.0

    def _stopped(self) -> bool:
        """Wait until the next look; whether the run must stop."""
        stopped = self.stopped(LOOK_SECONDS)
        self.moved()
        return stopped
