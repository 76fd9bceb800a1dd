"""When a finished rewrite is committed: right after a row-level commit of another writer, if one is expected. Pure.

A writer that deletes rows (MERGE, UPDATE, DELETE, INSERT OVERWRITE) fails if a file that it has read is replaced before
its commit. Snapshots tell when such a writer committed, not when it started. Right after its commit it is not under
way; the longer that is ago, the more likely the next one has begun. So a rewrite waits for the next commit, but not for
one that is expected later than it may wait: that writer has hardly begun.

A writer that keeps a schedule and is behind it (its catalog or store did not answer, its cluster was busy) begins the
next statement at once: it commits late, and then early until it has caught up. Right after such a commit is no good
time, and a rewrite waits for the next one.

Before the first row-level commit nothing tells that such a writer is under way. A new table whose properties say how
its rows are changed will have one: until then, a rewrite follows any commit of a writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Final

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.iceberg.other_compactors import RUN_ID

LOOKED_AT: Final = 512
"""Newest snapshots of the branch that are looked at: a writer that only appends may commit far more often."""
NEW: Final = 64
"""A table is new as long as it has fewer snapshots, its first one among them."""
AFTER_FIRST: Final = 20.0
"""The fewest seconds that are assumed between the first row-level commit and the second, which may be under way."""
GAPS: Final = 32
"""Times between two commits that are looked at: a writer that catches up after faults still shows its schedule."""
JUST_COMMITTED: Final = 0.15
"""Fraction of the usual time between two commits during which the next writer has hardly begun. A commit of ours takes
a second or more, and the next statement may take most of the time.
"""
MOMENT: Final = 0.4
"""Fraction of the usual time after a commit in which ours may still be sent. What takes longer to prepare, because the
catalog or the store is slow, would reach a statement that is under way.
"""
SHORTEST_MOMENT: Final = 3.0
"""Seconds. A commit that others beat once takes one or two."""
ENDED: Final = 3.0
"""After so many times the usual time without a commit, the rhythm has ended."""
INTERRUPTED: Final = 60.0
"""The rhythm has not ended before so many seconds: a frequent writer is interrupted for longer than `ENDED` usual times
when a store or a node fails, and goes on with what it had begun.
"""
IN_TIME: Final = (0.9, 1.25)
"""A commit is in time if it comes between so many times the usual time after the one before. Commits vary less; one of
a writer that catches up comes as soon as its statement is done.
"""
RECOVERED: Final = 30.0
"""Commits in time for so many seconds, three at most, show that a writer has caught up. While a store or a cluster
recovers, statements are slow, and one that begins at once may be done in time by chance: simulated with a commit every
ten seconds, an eighth of the moments after one commit in time were wrong, and one in four hundred after three.
"""
OVERDUE: Final = 1.5
"""A commit after more than so many times the usual time is none that a schedule brings."""
SELDOM: Final = 0.25
"""Of a writer that keeps a schedule, at most this share of commits comes later than `OVERDUE` times the usual time: of
one whose commits come at random, a third does.
"""
FEWEST: Final = 4
"""So many times between two commits show whether there is a schedule."""
SLOWER: Final = 3
"""So many late commits in a row are a new schedule."""
IDLE: Final = 0.5
"""Fraction of the usual time in which a writer that is in time has no statement under way."""
UPSERTS: Final = "added-equality-delete-files"
"""In the summary of writers that delete by value: they read no file, and no rewrite makes them fail."""
MODES: Final = ("write.merge.mode", "write.update.mode", "write.delete.mode")
"""Table properties that are set for row-level writers (Iceberg, "Write properties")."""


@dataclass(frozen=True)
class Rhythm:
    """Commits of other writers.

    Attributes:
        last: When the last one was, in seconds since the epoch.
        every: The usual seconds between two; after the only one, an assumption.
        behind: Its writer is so late that the next statement may begin at once.
        announced: No row-level commit has come yet; these are other commits of a table that will have some.
    """

    last: float
    every: float
    behind: bool = False
    announced: bool = False

    @property
    def moment_ends(self) -> float:
        """Until when a commit of ours may follow the last one."""
        return self.last + max(MOMENT * self.every, SHORTEST_MOMENT)

    @property
    def ends(self) -> float:
        """When the rhythm has ended, if no commit comes."""
        return self.last + max(ENDED * self.every, 0.0 if self.announced else INTERRUPTED)


def deletes_rows(snapshot: Snapshot) -> bool:
    """Whether a snapshot is a row-level commit of another writer."""
    summary = snapshot.summary
    if summary is None or summary.operation not in {Operation.OVERWRITE, Operation.DELETE}:
        return False
    return by_others(snapshot) and summary.additional_properties.get(UPSERTS, "0") == "0"


def by_others(snapshot: Snapshot) -> bool:
    """Whether a snapshot is a commit of another writer."""
    return snapshot.summary is None or RUN_ID not in snapshot.summary.additional_properties


def writers_rhythm(
    snapshots: Iterable[Snapshot], properties: Mapping[str, str], known: Rhythm | None = None
) -> Rhythm | None:
    """The rhythm of the row-level writers of a table with these properties; None: it has none.

    `snapshots` of its branch come newest first. `known`: the rhythm at an earlier look. It goes on where the snapshots
    do not reach back to its last commit (Nessie lists the newest one alone, others expire).
    """
    newest = list(islice(snapshots, LOOKED_AT))
    rhythm = rhythm_of(newest)
    if known is not None and not known.announced and _all_after(known.last, newest):
        return known if rhythm is None else replace(rhythm, every=known.every)
    if rhythm is not None or not any(mode in properties for mode in MODES):
        return rhythm
    is_new = 0 < len(newest) < NEW and newest[-1].parent_snapshot_id is None
    any_commits = rhythm_of(newest, _writes) if is_new and sum(map(_writes, newest)) > 1 else None
    return any_commits and replace(any_commits, behind=False, announced=True)


def _all_after(at: float, newest: Sequence[Snapshot]) -> bool:
    """Whether there are snapshots, and none reaches back to this time in seconds since the epoch."""
    return bool(newest) and newest[-1].timestamp_ms / 1000 > at


def _writes(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    return by_others(snapshot) and (summary is None or summary.operation is not Operation.REPLACE)


def rhythm_of(snapshots: Iterable[Snapshot], counts: Callable[[Snapshot], bool] = deletes_rows) -> Rhythm | None:
    """The rhythm of the commits of a branch for which `counts` is true; None: there are none.

    `snapshots` come newest first.
    """
    looked_at = list(islice(snapshots, LOOKED_AT))
    times = [each.timestamp_ms / 1000 for each in looked_at if counts(each)][: GAPS + 1]
    if not times:
        return None
    gaps = [max(0.0, newer - older) for newer, older in pairwise(times)]
    if not gaps:  # none came in all the time before this one: the next one comes no sooner
        gaps = [max(AFTER_FIRST, times[0] - looked_at[-1].timestamp_ms / 1000)]
    usual = sorted(gaps)[len(gaps) // 2]
    return Rhythm(times[0], usual, _is_behind(gaps, usual))


def _is_behind(gaps: Sequence[float], usual: float) -> bool:
    """Whether the writer is so late that its next statement begins at once. `gaps` in seconds, the newest first.

    It had caught up when its commits were in time for `RECOVERED` seconds. How much the commits since then came late
    and early, in all, is how late it is now.
    """
    if len(gaps) < FEWEST or sum(gap > OVERDUE * usual for gap in gaps) > SELDOM * len(gaps):
        return False  # no schedule is known
    early, late = (factor * usual for factor in IN_TIME)
    in_time = [early <= gap <= late for gap in gaps]
    some = min(max(1, int(RECOVERED / usual)), 3) if usual else 1
    caught_up = (number for number in range(len(gaps)) if in_time[number : number + some] == [True] * some)
    since = gaps[: next(caught_up, len(gaps))]
    if len(since) >= SLOWER and min(since[:SLOWER]) > late:
        return False
    return sum(gap - usual for gap in since) > max(0.0, IDLE * usual - SHORTEST_MOMENT)


def wait_until(rhythm: Rhythm | None, now: float, most_seconds: float, silent: float = 0.0) -> float | None:
    """Until when to wait for the next row-level commit, at most `most_seconds` from now; None: commit now.

    `silent`: seconds since the last commit in which the catalog did not answer. They do not end a rhythm; after
    them the next commit may begin at once.
    """
    if rhythm is None or most_seconds <= 0:
        return None
    behind = rhythm.behind or silent > 0
    hardly_begun = not behind and now - rhythm.last <= JUST_COMMITTED * rhythm.every
    due, ends = rhythm.last + (0 if rhythm.behind else rhythm.every), rhythm.ends + silent
    if hardly_begun or now > ends or due - now > most_seconds:
        return None
    return min(now + most_seconds, ends)


def good_until(rhythm: Rhythm | None, now: float) -> float | None:
    """Until when to send a commit that is not held any longer; None: at any time, as it follows no commit."""
    if rhythm is None or rhythm.announced:
        return None
    return rhythm.moment_ends if now <= rhythm.moment_ends else None
