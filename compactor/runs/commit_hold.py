"""Hold a finished rewrite: while it is another's turn to write, then until right after a row-level commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compactor.errors import FirnlineError, LaterError, RetryError
from compactor.iceberg.tables import TableView
from compactor.patience.deadline import Deadline
from compactor.planning.commit_timing import Rhythm, good_until, wait_until, writers_rhythm
from compactor.reasons import Reason

LOOK_SECONDS: Final = 1.0
"""Between two looks at the table: a catalog call each, without a read of the store while nothing changes."""

SLOW_SECONDS: Final = 5.0
"""A look that takes longer counts as time without an answer: it tells what was, not what is."""

LOCK_LOOK_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 600.0
"""How long a finished rewrite waits for its commit, beside the wait for a writer: see `commit_deadline`."""

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
MISSES: Final = 2
"""Moments that a commit may miss; then it is sent whenever it is ready."""
TOLD_AGAIN: Final = 10.0
"""The longest duration of a wait is published again when it grows by so many seconds."""


class MissedError(RetryError):
    """The moment of the commit has passed: it is another's turn, or the next writer may have begun. It was not sent."""


def commit_deadline(hold_seconds: float, ticks: Callable[[], float]) -> Deadline:
    """Until when a finished rewrite waits for its commit, in all its waits together; then it is thrown away.

    A lock, a branch that is to be published, a writer that must commit first (`policy.consecutive_replaces`), a
    catalog, store or lock that does not answer, commits that others beat or the catalog rolls back for writers: ten
    minutes for all of them, since most pass by themselves within minutes. Beside them, twice `commit.hold_seconds` for
    the commit of a writer that deletes rows. A request that is under way then is not interrupted.
    """
    return Deadline.after(WAIT_SECONDS + 2 * hold_seconds, ticks, "the commit of a finished rewrite")


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
        deadline: Of the commit. Its clock is steady, for durations: the other one can be set back.
    """

    look: Callable[[], TableView]
    theirs: Callable[[], LaterError | None]
    stopped: Callable[[float], bool]
    moved: Callable[[], object]
    waits: Callable[[float], object]
    clock: Callable[[], float]
    deadline: Deadline

    @property
    def ticks(self) -> Callable[[], float]:
        """The steady clock."""
        return self.deadline.ticks

    def until_our_turn(self) -> None:
        """Wait while it is another's turn.

        Raises:
            LaterError: it still is at the deadline.
            RetryError: a lock cannot be read.
        """
        while (later := self.theirs()) is not None:
            if self.deadline.is_over:
                raise LaterError(
                    f"the rewrite was not committed in time: {later}", reason=later.reason, seconds=WAIT_SECONDS
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
        latest = min(started + 2 * most_seconds, self.deadline.ends)
        wait = _Wait(most_seconds, ends=min(started + most_seconds, latest), latest=latest)
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
