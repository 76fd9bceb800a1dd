"""When a finished rewrite is committed: right after a row-level commit of another writer, if one is expected. Pure.

A writer that deletes rows (MERGE, UPDATE, DELETE, INSERT OVERWRITE) fails if a file that it has read is replaced before
its commit. Snapshots tell when such a writer committed, not when it started. Right after its commit it is not under
way; the longer that is ago, the more likely the next one has begun. So a rewrite waits for the next commit, but not for
one that is expected later than it may wait: that writer has hardly begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.iceberg.other_compactors import RUN_ID

LOOKED_AT: Final = 64
"""Newest snapshots of the branch that are looked at."""
AFTER_FIRST: Final = 20.0
"""The fewest seconds that are assumed between the first row-level commit and the second, which may be under way."""
MOST: Final = 9
JUST_COMMITTED: Final = 0.25
"""Fraction of the usual time between two commits during which the next writer has hardly begun."""
ENDED: Final = 3.0
"""After so many times the usual time without a commit, the rhythm has ended."""
UPSERTS: Final = "added-equality-delete-files"
"""In the summary of writers that delete by value: they read no file, and no rewrite makes them fail."""


@dataclass(frozen=True)
class Rhythm:
    """Row-level commits of other writers: when the last one was (seconds since the epoch), and the usual seconds
    between two; after the only one, an assumption.
    """

    last: float
    every: float


def deletes_rows(snapshot: Snapshot) -> bool:
    """Whether a snapshot is a row-level commit of another writer."""
    summary = snapshot.summary
    if summary is None or summary.operation not in {Operation.OVERWRITE, Operation.DELETE}:
        return False
    properties = summary.additional_properties
    return RUN_ID not in properties and properties.get(UPSERTS, "0") == "0"


def rhythm_of(snapshots: Iterable[Snapshot], counts: Callable[[Snapshot], bool] = deletes_rows) -> Rhythm | None:
    """The rhythm of the commits of a branch for which `counts` is true; None: there are none.

    `snapshots` come newest first.
    """
    looked_at = list(islice(snapshots, LOOKED_AT))
    times = [each.timestamp_ms / 1000 for each in looked_at if counts(each)][:MOST]
    if not times:
        return None
    gaps = sorted(max(0.0, newer - older) for newer, older in pairwise(times))
    if not gaps:  # none came in all the time before this one: the next one comes no sooner
        gaps = [max(AFTER_FIRST, times[0] - looked_at[-1].timestamp_ms / 1000)]
    return Rhythm(times[0], gaps[len(gaps) // 2])


def wait_until(rhythm: Rhythm | None, now: float, most_seconds: float) -> float | None:
    """Until when to wait for the next row-level commit, at most `most_seconds` from now; None: commit now."""
    if rhythm is None or most_seconds <= 0:
        return None
    since = now - rhythm.last
    if since <= JUST_COMMITTED * rhythm.every or since > ENDED * rhythm.every:
        return None
    due = rhythm.last + rhythm.every
    if due - now > most_seconds:
        return None
    return min(now + most_seconds, rhythm.last + ENDED * rhythm.every)
