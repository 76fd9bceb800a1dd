"""Which `replace` snapshots may follow one another: some readers give up at two in a row. Pure.

Incremental views of StarRocks are deactivated by `replace` snapshots without another commit in between
(StarRocks 75704, 73520). So a rewrite of manifests does not follow a rewrite of files at once, nor the other way round:
it waits for another writer's commit, or a time. Files are often due again by then and go first, but not before
manifests that have waited for as long (runs/table_worker.py). A table whose readers accept fewer `replace` snapshots in
a row sets a limit (`policy.consecutive_replaces`), which has no time. Where the table does not list what came before
(Nessie lists the newest snapshot alone, others expire), the limit counts as reached: the next writer's commit ends that
too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Final

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.iceberg.other_compactors import RUN_ID

LOOKED_AT: Final = 64
"""Newest snapshots of the branch that are looked at."""
TOUCHED: Final = ("deleted-data-files", "added-data-files", "added-delete-files", "removed-delete-files")
"""In the summary of a snapshot that replaces files; one that replaces manifests has none of them."""


@dataclass(frozen=True)
class Tail:
    """The `replace` snapshots at the end of a branch: how many, whether the newest replaced only manifests, and when it
    was committed (seconds since the epoch).

    `longer`: more of them may have come before, which are not listed.
    """

    count: int = 0
    manifests: bool = False
    at: float = 0.0
    longer: bool = False

    def wait_seconds(self, *, manifests: bool, most: int | None, seconds: float, now: float) -> float:
        """Seconds until a `replace` of manifests or of files may follow, unless another writer commits before; 0: now.

        Args:
            manifests: Whether the next `replace` replaces only manifests.
            most: How many `replace` snapshots may follow one another; None: no limit.
            seconds: After how long manifests may follow files, and files manifests.
            now: In seconds since the epoch.
        """
        if self.commits_left(most) == 0:
            return math.inf
        if self.count and (manifests or self.manifests):
            return max(0.0, min(seconds, self.at + seconds - now))
        return 0.0

    def commits_left(self, most: int | None) -> int | None:
        """How many `replace` snapshots may follow at once; None: no limit."""
        if most is None:
            return None
        return 0 if self.longer else max(0, most - self.count)


def tail_of(snapshots: Iterable[Snapshot]) -> Tail:
    """The `replace` snapshots at the end of a branch, whose `snapshots` come newest first."""
    newest = list(islice(snapshots, LOOKED_AT))
    tail = list(takewhile(_replaces, newest))
    if not tail:
        return Tail()
    longer = len(tail) == len(newest) and tail[-1].parent_snapshot_id is not None
    return Tail(len(tail), not _touches_files(tail[0]), tail[0].timestamp_ms / 1000, longer)


def may_follow(snapshots: Iterable[Snapshot], most: int | None, run_id: str) -> bool:
    """Whether a commit of this run may follow a branch's `snapshots`, which come newest first.

    What came before the run's own commits is not asked again: they were allowed to follow it.
    """
    newest = list(islice(snapshots, LOOKED_AT))
    tail = tail_of(newest)
    oldest = newest[tail.count - 1].summary if tail.count else None
    own = oldest is not None and oldest.additional_properties.get(RUN_ID) == run_id
    return replace(tail, longer=tail.longer and not own).commits_left(most) != 0


def _replaces(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _touches_files(snapshot: Snapshot) -> bool:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    return any(properties.get(key, "0") != "0" for key in TOUCHED)
