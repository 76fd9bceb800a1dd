"""What looks and events tell of a table's commits, and how often it is looked at without an event therefore. Pure.

A table whose commits are announced needs a look rarely: only a lost event makes it necessary. One without events is
looked at twice between two of its commits, on average; so is one that has a writer with events and a writer without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.iceberg.other_compactors import RUN_ID
from compactor.iceberg.tables import TableView
from compactor.table_names import TableName

RARELY = 12.0
"""Sweep intervals between two looks at a table whose commits are announced: an hour by default. As long, a table counts
as one without events after a commit that none announced.
"""
SELDOM = 4.0
"""Sweep intervals, at most, between two looks at a table without events."""
OFTEN_SECONDS = 15.0
"""Least time between two looks at a table without events, however often it commits; also after a failed listing."""
LOOKS_PER_COMMIT = 2.0
BEHIND_SECONDS = 20.0
"""At most between two looks, and two listings, while events wait in the topic that cannot be read in time."""
IDLE_SHARE = 0.25
"""A table that has been idle for an hour is expected to stay so for a quarter of an hour."""
NEWEST_COMMITS = 20
LATE_SECONDS = 60.0
"""After a commit, in which its event arrives if there is one."""
LOST_SECONDS = 300.0
"""After a commit, after which no event of it is expected any more."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What looks and events tell of one table. Times are in seconds since the epoch.

    Attributes:
        announced: Whether an event announced its newest known change.
        source: Of the newest event that announced a commit; empty: none has.
        head: The snapshot that was counted last.
        commit_seconds: Mean time between its newest commits; None: unknown.
        committed_at: Its newest commit; None: it has none.
        untold_at: The oldest commit that a look has found and no event has told of so far.
        missed_at: When it last turned out that no event announced one of its commits; None: never.
    """

    announced: bool = False
    source: str = ""
    head: int | None = None
    commit_seconds: float | None = None
    committed_at: float | None = None
    untold_at: float | None = None
    missed_at: float | None = None

    def heard(self, source: str, happened_at: float) -> Rhythm:
        """With an event of this source that announced a commit."""
        untold_at = self.untold_at
        if untold_at is not None and -LATE_SECONDS <= happened_at - untold_at <= LOST_SECONDS:
            untold_at = None
        if (self.announced, self.source, self.untold_at) == (True, source, untold_at):
            return self
        return replace(self, announced=True, source=source, untold_at=untold_at)

    def counted(
        self, commits: Commits, now: float, *, swept: bool, oldest_event: float | None, behind: bool
    ) -> tuple[Rhythm, bool]:
        """With what a look counted; and whether a commit turned out to have no event although earlier ones had.

        `swept`: a sweep asked for the look; else, without an `oldest_event`, a commit of ours. `behind`: events wait
        that could not be read yet: then nothing follows from a commit without one.
        """
        found = [] if behind else self._untold(commits, oldest_event, swept=swept)
        waiting = found if behind or self.untold_at is None else [*found, self.untold_at]
        lost = any(now - at > LOST_SECONDS for at in waiting)
        late = lost or any(now - at > LATE_SECONDS for at in found)
        after = Rhythm(
            announced=self.announced and not (found and oldest_event is None),
            source=self.source,
            head=commits.head,
            commit_seconds=commits.seconds,
            committed_at=commits.newest,
            untold_at=None if lost else min(waiting, default=None),
            missed_at=now if lost else self.missed_at,
        )
        return after, late and bool(self.source)

    def _untold(self, commits: Commits, oldest_event: float | None, *, swept: bool) -> list[float]:
        """Commits that no event has told of when the look finds them, seconds since the epoch, the newest first.

        A sweep: all new ones. A look for events: those long before the oldest event, and before the newest commit,
        which one of the events tells of, even if its clock is wrong. A look after a commit of ours tells nothing.
        """
        if self.head is None or (oldest_event is None and not swept):
            return []
        if oldest_event is None or not commits.new:
            return [*commits.new]
        told_from = min(oldest_event, commits.new[0]) - LOST_SECONDS
        return [at for at in commits.new if at < told_from]


UNKNOWN = Rhythm()


@dataclass(frozen=True)
class Commits:
    """What a count has seen of the table's commits.

    `seconds`: as of `Rhythm.commit_seconds`. `newest`: when the head was committed. `new`: when each commit since the
    last count was published in the main branch, the newest first, without rewrites; seconds since the epoch.
    """

    head: int | None = None
    seconds: float | None = None
    newest: float | None = None
    new: tuple[float, ...] = ()

    @classmethod
    def of(cls, view: TableView, known: Rhythm) -> Commits:
        """Of a loaded table. `known`: what was known before."""
        written = [each.timestamp_ms for each in view.metadata.snapshots[-NEWEST_COMMITS:] if not _is_rewrite(each)]
        head = view.snapshot
        if head is None:
            return cls(seconds=commit_seconds(written), new=_new(view, known))
        return cls(head.snapshot_id, commit_seconds(written), head.timestamp_ms / 1000, _new(view, known))


def _new(view: TableView, known: Rhythm) -> tuple[float, ...]:
    found: list[float] = []
    published = {each.snapshot_id: each.timestamp_ms for each in view.metadata.snapshot_log}
    at_ms: int | None = None
    for each in _since(view, known):
        # One that never was the head was published with the one above it, e.g. by a fast forward from a branch.
        at_ms = published.get(each.snapshot_id, each.timestamp_ms if at_ms is None else at_ms)
        if not _is_rewrite(each):
            found.append(at_ms / 1000)
    return tuple(found)


def _since(view: TableView, known: Rhythm) -> list[Snapshot]:
    """The snapshots after the one that was counted last; if it was expired or rolled back, those of a later time."""
    found: list[Snapshot] = []
    for each in view.history if known.head is not None else ():
        if each.snapshot_id == known.head:
            return found
        found.append(each)
    counted_ms = (known.committed_at or 0.0) * 1000
    return [each for each in found if each.timestamp_ms > counted_ms]


def _is_rewrite(snapshot: Snapshot) -> bool:
    """Maintenance seldom announces its commits, and they bring no rows. Each commit of firnline is maintenance."""
    summary = snapshot.summary
    return summary is not None and (summary.operation is Operation.REPLACE or RUN_ID in summary.additional_properties)


def commit_seconds(times_ms: Iterable[int]) -> float | None:
    """Mean seconds between commits at these times (milliseconds since the epoch); None for less than two."""
    times = sorted(times_ms)
    return None if len(times) < 2 else max(0.001, (times[-1] - times[0]) / 1000 / (len(times) - 1))  # noqa: PLR2004


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
    asked_at: Mapping[TableName, float | None],
    now: float,
    calls_per_second: float,
    passed: float,
) -> list[TableName]:
    """Tables to look at now: new ones, then by how late they are. Times in seconds of one clock.

    `intervals`: of all tables, from `wanted_seconds`. `passed`: seconds since the last round, for which the budget
    holds. New tables (never asked for) do not count, because nothing is known of them.
    """
    factor = stretch(intervals.values(), calls_per_second)
    late = {
        table: float("inf") if (at := asked_at[table]) is None else (now - at) / (seconds * factor)
        for table, seconds in intervals.items()
    }
    wanted = sorted((table for table, each in late.items() if each >= 1.0), key=lambda table: -late[table])
    new = sum(asked_at[table] is None for table in wanted)
    return wanted[: new + max(1, int(calls_per_second * passed))]
