"""A finished rewrite waits as long as it may by a steady clock, whatever becomes of the time of day."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.errors import LaterError, RetryError
from compactor.patience.deadline import Deadline
from compactor.planning.commit_timing import MOMENT
from compactor.reasons import Reason
from compactor.runs.commit_hold import SLOW_SECONDS, WAIT_SECONDS, CommitHold, Held, commit_deadline

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
    properties: dict[str, str] = field(default_factory=dict)
    commits_after: Collection[int] = ()
    silent: Collection[int] = ()
    slow: float = 0.0
    frozen_after: Mapping[int, float] = field(default_factory=dict)
    stops_after: int = 10**9
    ends: float = math.inf
    waits: int = 0
    moves: int = 0

    def __post_init__(self) -> None:
        self.history = [deletion(NOW - HALF_WAY - number * EVERY) for number in range(4)]

    @property
    def hold(self) -> CommitHold:
        return CommitHold(
            look=self._look,
            theirs=lambda: LaterError("another's turn", reason=Reason.FLINK_LOCK) if self.locked else None,
            stopped=self._stopped,
            moved=self._moved,
            waits=self.told.append,
            clock=lambda: self.day,
            deadline=Deadline(self.ends, lambda: self.steady),
        )

    def _moved(self) -> None:
        self.moves += 1

    def _look(self) -> Any:
        self.steady += self.slow
        self.day += self.slow
        if self.waits in self.silent:
            raise RetryError("the catalog does not answer")
        return SimpleNamespace(history=self.history, properties=self.properties)

    def _stopped(self, seconds: float) -> bool:
        self.waits += 1
        self.steady += seconds
        self.day += seconds - (3600 if self.waits == self.set_back_after else 0)
        if self.waits in self.commits_after:
            self.history.insert(0, deletion(self.day - 0.5))
        self.steady += self.frozen_after.get(self.waits, 0.0)
        self.day += self.frozen_after.get(self.waits, 0.0)
        assert self.waits < 2000, "it waits without end"
        return self.waits >= self.stops_after


@pytest.mark.parametrize("set_back_after", [10**9, 3])
def test_a_wait_for_a_writer_that_does_not_come_ends_in_time(set_back_after: int) -> None:
    waiting = Waiting(set_back_after)
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer, waiting.told) == (40.0, False, [40.0])


@pytest.mark.parametrize(("set_back_after", "after_writer"), [(10**9, True), (3, False)])
def test_the_writers_commit_ends_the_wait(set_back_after: int, after_writer: bool) -> None:
    """Also if the commit seems to be older than the one before it; it may then be older metadata as well."""
    waiting = Waiting(set_back_after, commits_after=[7])
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer, waiting.moves) == (7.0, after_writer, 7)
    assert held.good_until == (5.0 + 6.5 + MOMENT * EVERY if after_writer else None)


def test_a_clock_that_moves_between_two_lines_makes_no_silence() -> None:
    waiting = Waiting(commits_after=[7])

    def ticks() -> float:
        waiting.steady += 0.001
        return waiting.steady

    assert replace(waiting.hold, deadline=Deadline(math.inf, ticks)).wait(40.0).after_writer


def test_a_commit_that_was_made_between_two_looks_is_followed_at_once() -> None:
    """Of a writer so frequent that the next one may have begun by the time of the look."""
    waiting = Waiting(commits_after=[2])
    waiting.history = [deletion(NOW - 2 - number * 3) for number in range(4)]
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer) == (2.0, True)


def test_before_the_first_row_level_commit_an_append_is_followed_if_the_table_has_such_writers() -> None:
    waiting = Waiting(properties={"write.merge.mode": "merge-on-read"})
    append = deletion(NOW - 2).model_copy(update={"summary": Summary(Operation.APPEND)})
    waiting.history = [append.model_copy(update={"timestamp_ms": int((NOW - 2 - at) * 1000)}) for at in (0, 4, 8)]
    waiting.commits_after = [3]
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer) == (3.0, True)
    waiting.properties, waiting.history = {}, waiting.history[1:]
    assert waiting.hold.wait(40.0).seconds == 0


def test_a_late_commit_is_not_followed_but_the_one_after_it() -> None:
    """Its writer keeps a schedule, and begins the next one at once. The wait starts again."""
    waiting = Waiting(commits_after=[35, 60])
    waiting.history = [deletion(NOW - number * 20) for number in range(1, 9)]
    held = waiting.hold.wait(60.0)
    assert (held.seconds, held.after_writer, waiting.told) == (60.0, True, [40.0, 59.5])


def test_a_commit_that_is_seen_too_late_is_not_followed() -> None:
    """This process was stopped for a while: the next statement may have begun."""
    waiting = Waiting(commits_after=[5, 8], frozen_after={5: 6.0})
    waiting.history = [deletion(NOW - 5 - number * 10) for number in range(9)]
    held = waiting.hold.wait(60.0)
    assert (held.seconds, held.after_writer) == (8.0 + 6.0, True)


def test_a_commit_that_comes_early_after_a_late_one_is_not_followed_either() -> None:
    """Its writer has not caught up yet."""
    waiting = Waiting(commits_after=[35, 38, 57])
    waiting.history = [deletion(NOW - number * 20) for number in range(1, 9)]
    held = waiting.hold.wait(60.0)
    assert (held.seconds, held.after_writer) == (57.0, True)


def test_a_wait_that_ends_after_a_late_commit_has_followed_none() -> None:
    waiting = Waiting(commits_after=[35])
    waiting.history = [deletion(NOW - number * 20) for number in range(1, 9)]
    held = waiting.hold.wait(60.0)
    assert (held.seconds, held.after_writer) == (95.0, False)


def test_the_time_without_an_answer_of_the_catalog_does_not_count() -> None:
    waiting = Waiting(silent=range(3, 33))
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer, waiting.told) == (33.0 + 40.0, False, [40.0, 40.0])


@pytest.mark.parametrize(("commits", "seconds"), [([35], 35.0), ([29, 33], 33.0), ([29, 80], 80.0)])
def test_when_the_catalog_answers_again_its_writer_begins_at_once(commits: list[int], seconds: float) -> None:
    """What was committed in the meantime is not followed."""
    waiting = Waiting(silent=range(30), commits_after=commits)
    waiting.history = [deletion(NOW - 26 - number * EVERY) for number in range(6)]
    held = waiting.hold.wait(60.0)
    assert (held.seconds, held.after_writer) == (seconds, True)


@pytest.mark.parametrize(
    "silent",
    [range(10**9), range(70), [number for number in range(10**4) if number % 20]],
    ids=["always", "for long", "again and again"],
)
def test_a_catalog_that_does_not_answer_ends_the_wait_in_time(silent: Collection[int]) -> None:
    waiting = Waiting(silent=silent)
    held = waiting.hold.wait(40.0)
    assert (held.seconds, held.after_writer, waiting.moves) == (80.0, False, 80)


def test_an_answer_that_comes_late_is_no_answer() -> None:
    waiting = Waiting(slow=SLOW_SECONDS + 1, commits_after=[3])
    waiting.history = [deletion(NOW - 1 - number * 30) for number in range(4)]
    held = waiting.hold.wait(60.0)
    assert not held.after_writer


def test_a_slow_look_at_a_table_without_row_level_writers_is_no_wait() -> None:
    waiting = Waiting(slow=1.5)
    waiting.history = []
    assert waiting.hold.wait(60.0) == Held()


@pytest.mark.parametrize("silent", [(), range(10**9)])
def test_a_run_that_must_stop_does_not_wait(silent: Collection[int]) -> None:
    waiting = Waiting(silent=silent, stops_after=2)
    assert waiting.hold.wait(40.0).seconds == 2.0


@pytest.mark.parametrize("listed", [1, 512], ids=["the newest snapshot alone", "all snapshots"])
def test_an_append_ends_no_wait_for_a_row_level_commit(listed: int) -> None:
    """Nessie lists the newest snapshot alone: the one that a rewrite waits for is not the append."""
    waiting = Waiting()
    waiting.history = [deletion(NOW - 10 - number * 45) for number in range(4)]

    def look() -> Any:
        if waiting.waits == 11:
            append = deletion(waiting.day - 0.5).model_copy(update={"summary": Summary(Operation.APPEND)})
            waiting.history.insert(0, append)
        if waiting.waits == 35:
            waiting.history.insert(0, deletion(waiting.day))
        return SimpleNamespace(history=waiting.history[:listed], properties={})

    held = replace(waiting.hold, look=look).wait(60.0)
    assert (held.seconds, held.after_writer) == (35.0, True)
    assert held.good_until is not None
    assert held.good_until > waiting.steady


def test_older_metadata_is_no_commit() -> None:
    """A catalog of several servers, or a writer's rollback."""
    waiting = Waiting()
    answers = [list(waiting.history), *[waiting.history[1:]] * 100]

    def look() -> Any:
        return SimpleNamespace(history=answers[waiting.waits], properties={})

    held = replace(waiting.hold, look=look).wait(40.0)
    assert (held.seconds, held.after_writer) == (40.0, False)


@pytest.mark.parametrize("set_back_after", [10**9, 3])
def test_a_lock_is_waited_for_until_the_deadline(set_back_after: int) -> None:
    waiting = Waiting(set_back_after, locked=True)
    deadline = commit_deadline(60.0, lambda: waiting.steady)
    with pytest.raises(LaterError, match="another's turn") as error:
        replace(waiting.hold, deadline=deadline).until_our_turn()
    assert error.value.reason is Reason.FLINK_LOCK
    assert waiting.steady == 5.0 + WAIT_SECONDS + 120.0


def test_a_wait_for_a_writer_ends_at_the_deadline() -> None:
    waiting = Waiting(ends=35.0)
    assert waiting.hold.wait(40.0).seconds == 30.0
