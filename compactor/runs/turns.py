"""Whether it is our turn to write to a table, or another's: Flink's table maintenance, a writer before the next
`replace` snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compactor.errors import LaterError
from compactor.events import Listener, RunSkipped
from compactor.iceberg.tables import TableView
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.planning.replace_order import tail_of
from compactor.reasons import Reason
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName

LOCK_SECONDS: Final = 30.0
"""Between two looks at a lock that is held."""


@dataclass(frozen=True)
class Turns:
    """Asked before each run, conversion and merge of manifests. A turn that is another's is published as skipped."""

    settings: WorkSettings
    listener: Listener
    clock: Callable[[], float]
    locks: Locks = NO_LOCKS

    def check(self, table: TableView, *, manifests: bool = False, requested: bool = False) -> None:
        """Pass if a `replace` snapshot may be committed to the table now: of manifests only, or of files.

        A person's request waits for a lock, and where the table has a limit of `replace` snapshots in a row.

        Raises:
            LaterError: a Flink job holds its lock on the table, or another writer must commit first, or a time pass.
            RetryError: the lock cannot be read.
        """
        lock = self.locks.holder(table.name)
        if lock is not None:
            message = f"Flink's maintenance holds its lock {lock} on {table.name}"
            raise self._later(table.name, message, Reason.FLINK_LOCK, LOCK_SECONDS)
        most = self.settings.policy.for_table(table.name, table.properties).consecutive_replaces
        seconds = 0.0 if requested else self.settings.manifests.wait_seconds
        wait = tail_of(table.history).wait_seconds(manifests=manifests, most=most, seconds=seconds, now=self.clock())
        if wait:
            message = (
                f"{table.name} waits for another writer's commit before the next replace snapshot "
                "(policy.consecutive_replaces, manifests.wait_seconds)"
            )
            raise self._later(table.name, message, Reason.REPLACES_IN_A_ROW, wait)

    def _later(self, table: TableName, message: str, reason: Reason, seconds: float) -> LaterError:
        self.listener(RunSkipped(table=table, reason=reason))
        return LaterError(message, reason=reason, seconds=seconds)
