"""A commit is watched until another one builds on it or has taken its place, by a steady clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.errors import RetryError
from compactor.patience.deadline import Deadline
from compactor.runs.rollback_watch import LOOK_SECONDS, RollbackWatch

NOW = 1_700_000_000.0
PARENT, OURS, OTHER = 4, 50, 60


def snapshot(number: int, parent: int | None, at: float) -> Snapshot:
    return Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        timestamp_ms=int(at * 1000),
        manifest_list="none",
        summary=Summary(Operation.APPEND),
    )


@dataclass
class Watched:
    """A branch on which something `happens` at the n-th wait."""

    every: float = 2.0
    happens: dict[int, Callable[[Watched], object]] = field(default_factory=dict)
    stops_at: int = 10**9
    day: float = NOW
    steady: float = 5.0
    left: float = 600.0
    waits: int = 0
    unreadable: bool = False

    def __post_init__(self) -> None:
        self.history = [snapshot(each, each - 1, NOW - (PARENT - each) * self.every) for each in range(PARENT, 0, -1)]
        self.history.insert(0, snapshot(OURS, PARENT, NOW))

    def rolled_back(self, most_seconds: float = 60.0) -> bool:
        watch = RollbackWatch(
            look=self._look,
            stopped=self._stopped,
            moved=lambda: None,
            clock=lambda: self.day,
            deadline=Deadline.after(self.left, lambda: self.steady, "the commit"),
        )
        return watch.rolled_back(OURS, (PARENT,), most_seconds)

    def builds_on(self) -> None:
        self.history.insert(0, snapshot(OTHER, OURS, self.day))

    def takes_its_place(self) -> None:
        self.history[0] = snapshot(OTHER, PARENT, self.day)

    def cannot_be_read(self) -> None:
        self.unreadable = True

    def can_be_read(self) -> None:
        self.unreadable = False

    def _look(self) -> Any:
        if self.unreadable:
            raise RetryError("the catalog does not answer")
        return SimpleNamespace(history=list(self.history))

    def _stopped(self, seconds: float) -> bool:
        self.waits += 1
        self.steady += seconds
        self.day += seconds
        assert self.waits < 2000, "it waits without end"
        self.happens.get(self.waits, lambda _: None)(self)
        return self.waits == self.stops_at


@pytest.mark.parametrize(
    ("act", "rolled_back"),
    [(Watched.builds_on, False), (Watched.takes_its_place, True)],
)
def test_the_next_commit_ends_the_watch(act: Callable[[Watched], object], rolled_back: bool) -> None:
    watched = Watched(happens={3: act})
    assert watched.rolled_back() == rolled_back
    assert watched.waits == 3


def test_a_catalog_that_does_not_answer_for_a_while_does_not_end_the_watch() -> None:
    watched = Watched(happens={3: Watched.cannot_be_read, 9: Watched.can_be_read, 12: Watched.takes_its_place})
    assert watched.rolled_back()
    assert watched.waits == 12


@pytest.mark.parametrize("at", [1, 3])
def test_what_became_of_a_commit_is_unknown_if_the_catalog_does_not_answer_again(at: int) -> None:
    assert not Watched(happens={at: Watched.cannot_be_read}).rolled_back()


def test_a_writer_that_was_faster_than_the_first_look_is_seen() -> None:
    watched = Watched(every=3600.0)
    watched.takes_its_place()
    assert watched.rolled_back()
    assert watched.waits == 0


@pytest.mark.parametrize(("every", "most", "seconds"), [(2.0, 60.0, 30.0), (2.0, 7.0, 7.0), (20.0, 60.0, 0.0)])
def test_a_watch_ends_although_no_writer_comes(every: float, most: float, seconds: float) -> None:
    watched = Watched(every)
    assert not watched.rolled_back(most)
    assert watched.waits == seconds / LOOK_SECONDS


def test_a_run_that_must_stop_watches_no_longer() -> None:
    watched = Watched(stops_at=2)
    assert not watched.rolled_back()
    assert watched.waits == 2


def test_a_watch_ends_at_the_deadline_of_the_commit() -> None:
    watched = Watched(left=10.0)
    assert not watched.rolled_back()
    assert watched.waits == 10.0 / LOOK_SECONDS
