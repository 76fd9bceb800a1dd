"""How many commits of rewrites meet a statement of a row-level writer that is under way: simulated writers."""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.commit.decisions import Do, Rules, Seen, Turn, Writers, begin, decide
from compactor.planning.commit_timing import writers_rhythm
from tests.properties.table_history import NAME

OVERWRITE = Summary(Operation.OVERWRITE)
STATEMENTS, REWRITES, KNOWN = 300, 150, 60
HOLD_SECONDS = 60.0


@dataclass(frozen=True)
class Writer:
    """A writer with a schedule, in seconds. It begins a statement at its time, or as soon as the one before is done.

    A statement takes about `takes`. A share of them, `stalled`, takes 10 to 30 seconds more, as if a store did not
    answer. The writer makes up for one missed time, not for more.
    """

    every: float
    takes: float
    stalled: float = 0.0

    def statements(self) -> list[tuple[float, float]]:
        """Begin and commit of each."""
        chance, now, due, made = random.Random(f"{self}"), 0.0, 0.0, list[tuple[float, float]]()
        while len(made) < STATEMENTS:
            begins = max(now, due)
            due = max(due + self.every, begins - self.every)
            stall = chance.uniform(10, 30) if chance.random() < self.stalled else 0.0
            now = begins + self.takes * chance.uniform(0.75, 1.25) + stall
            made.append((begins, now))
            now += 0.3
        return made


@dataclass
class Race:
    """Rewrites that are done at random times beside a writer."""

    writer: Writer

    def __post_init__(self) -> None:
        self.statements = self.writer.statements()
        self.commits = [commit for _, commit in self.statements]
        self.snapshots = [
            Snapshot(snapshot_id=1, timestamp_ms=int(at * 1000), manifest_list="x", summary=OVERWRITE)
            for at in self.commits
        ]

    def met(self, hold_seconds: float) -> float:
        """The share of our commits that land while a statement is under way."""
        chance = random.Random(1)
        ready = [chance.uniform(self.commits[KNOWN], self.commits[-10]) for _ in range(REWRITES)]
        return sum(self._meets(self._lands(at, hold_seconds, chance.uniform(0.5, 2.5))) for at in ready) / REWRITES

    def _lands(self, ready: float, hold_seconds: float, prepared_in: float) -> float:
        now = ready
        state, action = begin(Rules("run", NAME, hold_seconds=hold_seconds), now)
        while action.do is not Do.PREPARE:
            now += action.wait
            seen: Seen = Turn()
            if action.do is Do.LOOK_AT_TABLE:
                newest = bisect.bisect_right(self.commits, now)
                history = self.snapshots[max(0, newest - KNOWN) : newest][::-1]
                seen = Writers(rhythm=writers_rhythm(history, {}, state.hold.newest if state.hold else None))
            state, action = decide(state, seen, now)
        return now + prepared_in

    def _meets(self, at: float) -> bool:
        next_one = bisect.bisect_right(self.commits, at)
        return self.statements[next_one][0] < at


@pytest.mark.parametrize(
    ("writer", "most"),
    [
        (Writer(every=20, takes=3), 0.0),
        (Writer(every=10, takes=3), 0.0),
        (Writer(every=60, takes=20), 0.0),
        (Writer(every=10, takes=3, stalled=0.08), 0.02),
        (Writer(every=5, takes=1, stalled=0.04), 0.04),
    ],
)
def test_a_rewrite_meets_hardly_any_statement_of_a_writer_with_a_schedule(writer: Writer, most: float) -> None:
    race = Race(writer)
    assert race.met(HOLD_SECONDS) <= most
    assert race.met(0.0) >= 0.1, "without waiting it does"
