"""A finished rewrite waits as long as it may by a steady clock, whatever becomes of the time of day."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.errors import LaterError
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
    waits: int = 0

    def __post_init__(self) -> None:
        self.history = [deletion(NOW - HALF_WAY - number * EVERY) for number in range(4)]

    @property
    def hold(self) -> CommitHold:
        view: Any = SimpleNamespace(history=self.history)
        return CommitHold(
            look=lambda: view,
            locked=lambda: self.locked,
            stopped=self._stopped,
            moved=lambda: None,
            waits=self.told.append,
            clock=lambda: self.day,
            ticks=lambda: self.steady,
        )

    def _stopped(self, seconds: float) -> bool:
        self.waits += 1
        self.steady += seconds
        self.day += seconds - (3600 if self.waits == self.set_back_after else 0)
        if self.waits == self.commits_after:
            self.history.insert(0, deletion(self.day))
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


@pytest.mark.parametrize("set_back_after", [10**9, 3])
def test_a_lock_is_waited_for_as_long_as_is_said(set_back_after: int) -> None:
    waiting = Waiting(set_back_after, locked=True)
    with pytest.raises(LaterError):
        waiting.hold.until_unlocked()
    assert waiting.steady == 5.0 + LOCKED_SECONDS
