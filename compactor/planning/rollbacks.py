"""Commits that the catalog rolls back for a writer (Apache Polaris): which is rolled back, how long to watch one. Pure.

A writer that read the table before our commit and commits after it has our snapshot removed from the table. That can
happen until another commit builds on ours. A writer that commits every few seconds is nearly always under way, and
would undo one rewrite after the other; it is over soon, so the same outputs can be committed again right after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from pyiceberg.table.snapshots import Snapshot

from compactor.planning.commit_timing import ENDED, by_others, rhythm_of

OFTEN: Final = 10.0
"""Seconds between two commits of writers that are waited for. The rewrites of slower ones are seldom rolled back."""


class Fate(Enum):
    """What became of a snapshot that was committed."""

    NEWEST = "no commit has come since, as far as the metadata tells"
    STAYS = "another commit builds on it"
    ROLLED_BACK = "another commit has taken its place"


def fate_of(history: Iterable[Snapshot], snapshot_id: int, before: Collection[int]) -> Fate:
    """The fate of our snapshot, by the `history` of its branch, newest first.

    `before`: the snapshots before ours, as they were listed when it was committed, down to one that cannot be rolled
    back together with it. A writer that began before several rewrites has all of them removed.
    A catalog that answers with older metadata, or lists only the newest snapshots, does not make ours rolled back.
    """
    for number, each in enumerate(history):
        if each.snapshot_id == snapshot_id:
            return Fate.STAYS if number else Fate.NEWEST
        if each.snapshot_id in before:
            return Fate.NEWEST  # older metadata, or an operator went back
        if each.parent_snapshot_id in before:
            return Fate.ROLLED_BACK
    return Fate.NEWEST


def watch_seconds(history: Iterable[Snapshot], now: float) -> float:
    """For how long to watch a commit: until the next commits of the table's writers have come. 0: do not.

    `history`: snapshots of the branch, newest first; `now`: seconds since the epoch.
    """
    rhythm = rhythm_of(history, by_others)
    if rhythm is None or rhythm.every > OFTEN or now - rhythm.last > ENDED * OFTEN:
        return 0.0
    return ENDED * OFTEN
