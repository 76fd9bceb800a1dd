"""A finished rewrite waits as long as it may by a steady clock, whatever becomes of the time of day."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.errors import LaterError, RetryError
from compactor.runs.commit_hold import LOCKED_SECONDS, CommitHold

NOW = 1_700_000_000.0
EVERY = 60.0
HALF_WAY = EVERY / 2


def deletion(at: float) -> Snapshot:
    return Snapshot(
        snapshot_id=int(at),
        timestamp_ms=int(at * 1000),
        manifest_list="none",
        summary=Summary(Operation.DELETE),
    )


@dataclass
class Waiting:
    """A wait whose time passes in `stopped`. After `set_back_after` waits the time of day is set back by an hour."""

    set_back_after: int = 10**9
    day: float = NOW
    steady: float = 5.0
    locked: bool = False
    told: list[float] = field(default_factory=list)
    history: list[Snapshot] = field(default_factory=list)
    commits_after: int = 10**9
    silent: Collection[int] = ()
    waits: int = 0

    def __post_init__(self) -> None:
        self.history = [deletion(NOW - HALF_WAY - number * EVERY) for number in range(4)]

    @property
    def hold(self) -> CommitHold:
        return CommitHold(
            look=self._look,
            locked=lambda: self.locked,
            stopped=self._stopped,
            moved=lambda: None,
            waits=self.told.append,
            clock=lambda: self.day,
            ticks=lambda: self.steady,
        )

    def _look(self) -> Any:
        if self.waits in self.silent:
            raise RetryError("the catalog does not answer")
        return SimpleNamespace(history=self.history)

    def _stopped(self, seconds: float) -> bool:
        self.waits += 1
        self.steady += seconds
        self.day += seconds - (3600 if self.waits == self.set_back_after else 0)
        if self.waits == self.commits_after:
            self.history.insert(0, deletion(self.day - 0.9))
        assert self.waits < 2000, "it waits without end"
        return False


@pytest.mark.parametrize("set_back_after", [10**9, 3])
def test_a_wait_for_a_writer_that_does_not_come_ends_in_time(set_back_after: int) -> None:
    waiting = Waiting(set_back_after)
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer, waiting.told) == (40.0, False, [40.0])


@pytest.mark.parametrize("set_back_after", [10**9, 3])
def test_the_writers_commit_ends_the_wait(set_back_after: int) -> None:
    waiting = Waiting(set_back_after, commits_after=7)
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer) == (7.0, True)


def test_a_commit_that_was_made_between_two_looks_is_followed_at_once() -> None:
    """Of a writer so frequent that the next one may have begun by the time of the look."""
    waiting = Waiting(commits_after=2)
    waiting.history = [deletion(NOW - 2 - number * 4) for number in range(4)]
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer) == (2.0, True)


def test_the_time_without_an_answer_of_the_catalog_does_not_count() -> None:
    waiting = Waiting(silent=range(3, 33))
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer, waiting.told) == (40.0 + 30.0, False, [40.0])


def test_when_the_catalog_answers_again_its_writer_begins_at_once() -> None:
    """Before, the rewrite was committed at once, and made the commit fail that had just begun."""
    waiting = Waiting(silent=range(30), commits_after=35)
    waiting.history = [deletion(NOW - 1 - number * EVERY) for number in range(4)]
    held = waiting.hold.wait(60.0)
    assert (held.seconds, held.after_writer) == (35.0, True)


@pytest.mark.parametrize(
    ("silent", "seconds"),
    [(range(10**9), 41.0), ([number for number in range(10**4) if number % 10], 60.0)],
    ids=["without end", "again and again"],
)
def test_a_catalog_that_does_not_answer_ends_the_wait_in_time(silent: Collection[int], seconds: float) -> None:
    waiting = Waiting(silent=silent)
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer) == (seconds, False)


@pytest.mark.parametrize("set_back_after", [10**9, 3])
def test_a_lock_is_waited_for_as_long_as_is_said(set_back_after: int) -> None:
    waiting = Waiting(set_back_after, locked=True)
    with pytest.raises(LaterError):
        waiting.hold.until_unlocked()
    assert waiting.steady == 5.0 + LOCKED_SECONDS
