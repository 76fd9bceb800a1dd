"""Which `replace` snapshots may follow one another: some readers give up at two in a row. Pure.

Incremental views of StarRocks are deactivated by `replace` snapshots without another commit in between
(StarRocks 75704, 73520). So a rewrite of manifests does not follow a rewrite of files at once, nor the other way round:
it waits for another writer's commit, or a time. A table whose readers accept fewer `replace` snapshots in a row sets a
limit (`policy.consecutive_replaces`), which has no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from pyiceberg.table.snapshots import Operation, Snapshot

LOOKED_AT: Final = 64
"""Newest snapshots of the branch that are looked at."""
TOUCHED: Final = ("deleted-data-files", "added-data-files", "added-delete-files", "removed-delete-files")
"""In the summary of a snapshot that replaces files; one that replaces manifests has none of them."""


@dataclass(frozen=True)
class Tail:
    """The `replace` snapshots at the end of a branch: how many, whether the newest replaced only manifests, and when it
    was committed (seconds since the epoch).
    """

    count: int = 0
    manifests: bool = False
    at: float = 0.0

    def wait_seconds(self, *, manifests: bool, most: int | None, seconds: float, now: float) -> float:
        """Seconds until a `replace` of manifests or of files may follow, unless another writer commits before; 0: now.

        Args:
            manifests: Whether the next `replace` replaces only manifests.
            most: How many `replace` snapshots may follow one another; None: no limit.
            seconds: After how long manifests may follow files, and files manifests.
            now: In seconds since the epoch.
        """
        if most is not None and self.count >= most:
            return math.inf
        if self.count and (manifests or self.manifests):
            return max(0.0, min(seconds, self.at + seconds - now))
        return 0.0

    def commits_left(self, most: int | None) -> int | None:
        """How many `replace` snapshots may follow at once; None: no limit."""
        return None if most is None else max(0, most - self.count)


def tail_of(snapshots: Iterable[Snapshot]) -> Tail:
    """The `replace` snapshots at the end of a branch, whose `snapshots` come newest first."""
    tail = list(islice(takewhile(_replaces, snapshots), LOOKED_AT))
    return Tail(len(tail), not _touches_files(tail[0]), tail[0].timestamp_ms / 1000) if tail else Tail()


def _replaces(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _touches_files(snapshot: Snapshot) -> bool:
    properties = snapshot.summary.additional_properties if snapshot.summary else {}
    return any(properties.get(key, "0") != "0" for key in TOUCHED)
