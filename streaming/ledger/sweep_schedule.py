"""When a table is looked at without an event: by what is known of its commits, within a budget of catalog calls. Pure.

A table whose commits are announced needs a look rarely: only a lost event makes it necessary. One without events is
looked at twice between two of its commits, on average; so is one that has a writer with events and a writer without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from compactor.table_names import TableName

RARELY = 12.0
"""Sweep intervals between two looks at a table whose commits are announced: an hour by default. As long, a table counts
as one without events after a commit that none announced.
"""
SELDOM = 4.0
"""Sweep intervals, at most, between two looks at a table without events."""
OFTEN_SECONDS = 15.0
"""Least time between two looks at a table without events, however often it commits."""
LOOKS_PER_COMMIT = 2.0
BEHIND_SECONDS = 20.0
"""At most between two looks, and two listings, while events wait in the topic that cannot be read in time."""
LIKELY_SHARE = 0.25
"""Of the budget, for tables that may own an unknown folder of metadata."""
LIKELY_SECONDS = 30.0
"""Least time between two looks at such a table."""
IDLE_SHARE = 0.25
"""A table that has been idle for an hour is expected to stay so for a quarter of an hour."""


@dataclass(frozen=True)
class Rhythm:
    """What looks and events tell of one table.

    `announced`: its newest known change was announced by an event. `commit_seconds`: mean time between its newest
    commits; None: unknown. `committed_at`: its newest commit, seconds since the epoch; None: it has none. `missed_at`:
    when it last turned out that no event announced one of its commits, seconds since the epoch; None: never.
    """

    announced: bool = False
    commit_seconds: float | None = None
    committed_at: float | None = None
    missed_at: float | None = None


UNKNOWN = Rhythm()


def wanted_seconds(rhythm: Rhythm, now: float, sweep_seconds: float, *, behind: bool = False) -> float:
    """Seconds between two looks at a table, without regard to other tables. `behind`: the stream is behind."""
    if behind:
        return min(BEHIND_SECONDS, sweep_seconds)
    rarely = RARELY * sweep_seconds
    if rhythm.announced and (rhythm.missed_at is None or now - rhythm.missed_at > rarely):
        return rarely
    if rhythm.commit_seconds is None:
        return sweep_seconds
    idle = max(0.0, now - rhythm.committed_at) if rhythm.committed_at is not None else 0.0
    expected = max(rhythm.commit_seconds / LOOKS_PER_COMMIT, idle * IDLE_SHARE)
    return min(max(expected, min(OFTEN_SECONDS, sweep_seconds)), SELDOM * sweep_seconds)


def stretch(seconds: Iterable[float], calls_per_second: float) -> float:
    """The factor (at least 1) by which all intervals grow, so that looks stay within the budget."""
    return max(1.0, sum(1.0 / each for each in seconds) / calls_per_second)


def due(
    intervals: Mapping[TableName, float],
    asked_at: Mapping[TableName, float],
    now: float,
    calls_per_second: float,
    passed: float,
    likely: Sequence[TableName] = (),
) -> list[TableName]:
    """Tables to look at now: `likely` ones, new ones, then by how late they are. Times in seconds of one clock.

    `intervals`: of all tables, from `wanted_seconds`. `passed`: seconds since the last round, for which the budget
    holds. New tables (not in `asked_at`) do not count, because nothing is known of them. `likely`: may own an unknown
    folder of metadata, the likeliest first; they get `LIKELY_SHARE` of the budget.
    """
    calls = max(1, int(calls_per_second * passed))
    waiting = (each for each in likely if each in intervals and now - asked_at.get(each, now) >= LIKELY_SECONDS)
    searched = [*islice(waiting, max(1, int(calls * LIKELY_SHARE)))]
    factor = stretch(intervals.values(), calls_per_second)
    late = {
        table: (now - asked_at[table]) / (seconds * factor) if table in asked_at else float("inf")
        for table, seconds in intervals.items()
    }
    for table in searched:
        del late[table]
    wanted = sorted((table for table, each in late.items() if each >= 1.0), key=lambda table: -late[table])
    new = sum(table not in asked_at for table in wanted)
    return searched + wanted[: new + max(1, calls - len(searched))]


def commit_seconds(times_ms: Iterable[int]) -> float | None:
    """Mean seconds between commits at these times (milliseconds since the epoch); None for less than two."""
    times = sorted(times_ms)
    return None if len(times) < 2 else max(0.001, (times[-1] - times[0]) / 1000 / (len(times) - 1))  # noqa: PLR2004
