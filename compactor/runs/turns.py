"""Whether it is our turn to write to a table, or another's: Flink's table maintenance, a writer before the next
`replace` snapshot, a job that is to publish a branch.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compactor.errors import LaterError
from compactor.events import Listener, RunSkipped
from compactor.iceberg.tables import TableView
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.planning.replace_order import may_follow, tail_of
from compactor.planning.unpublished import unpublished
from compactor.reasons import Reason
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName

LOCK_SECONDS: Final = 30.0
"""Between two looks at a lock that is held."""
BRANCH_SECONDS: Final = 60.0
"""Between two looks at a table with a branch that is to be published."""


def locked(table: TableName, locks: Locks) -> LaterError | None:
    """Why Flink's maintenance goes first; None: it does not.

    Raises:
        RetryError: the lock cannot be read.
    """
    lock = locks.holder(table)
    if lock is None:
        return None
    return LaterError(
        f"Flink's maintenance holds its lock {lock} on {table}", reason=Reason.FLINK_LOCK, seconds=LOCK_SECONDS
    )


def unpublished_first(table: TableView, now: float) -> LaterError | None:
    """Why a job that is to publish a branch or a staged snapshot goes first; None: there is none.

    `now`: in seconds since the epoch.
    """
    found = unpublished(table, now)
    if found is None:
        return None
    until = dt.datetime.fromtimestamp(found.until, dt.UTC)
    return LaterError(
        f"{table.name}: {found.what}; after a rewrite of main it could not be published any more. Publish or drop it: "
        f"main is rewritten then, or from {until:%Y-%m-%d %H:%M} UTC if nothing more is committed to it",
        reason=Reason.UNPUBLISHED,
        seconds=BRANCH_SECONDS,
    )


def writer_first(table: TableView, most: int | None, run_id: str) -> LaterError | None:
    """Why another writer must commit before the next commit of this run; None: it need not.

    `most`: how many `replace` snapshots may follow one another; None: no limit.
    """
    return None if may_follow(table.history, most, run_id) else _waits_for_a_writer(table, math.inf)


def _waits_for_a_writer(table: TableView, seconds: float) -> LaterError:
    return LaterError(
        f"{table.name} waits for another writer's commit before the next replace snapshot "
        "(firnline.policy.consecutive_replaces; an hour between merges of manifests and rewrites)",
        reason=Reason.REPLACES_IN_A_ROW,
        seconds=seconds,
    )


@dataclass(frozen=True)
class Turns:
    """Asked before each run, conversion and merge of manifests. A turn that is another's is published as skipped."""

    settings: WorkSettings
    listener: Listener
    clock: Callable[[], float]
    locks: Locks = NO_LOCKS

    def check(self, table: TableView, *, manifests: bool = False, requested: bool = False) -> None:
        """Pass if a `replace` snapshot may be committed to the table now: of manifests only, or of files.

        A person's request waits for a lock, for a branch, and where the table has a limit of `replace` snapshots in a
        row.

        Raises:
            LaterError: a Flink job holds its lock on the table, a branch is to be published, another writer must commit
                first, or a time pass.
            RetryError: the lock cannot be read.
        """
        theirs = locked(table.name, self.locks) or unpublished_first(table, self.clock())
        if theirs is not None:
            raise self._told(table.name, theirs)
        most = self.settings.policy.for_table(table.name, table.properties).consecutive_replaces
        seconds = 0.0 if requested else self.settings.manifests.wait_seconds
        wait = tail_of(table.history).wait_seconds(manifests=manifests, most=most, seconds=seconds, now=self.clock())
        if wait:
            raise self._told(table.name, _waits_for_a_writer(table, wait))

    def _told(self, table: TableName, later: LaterError) -> LaterError:
        self.listener(RunSkipped(table=table, reason=later.reason))
        return later
