"""What looks and events tell of each table's commits: how often, and whether events announce them. Thread-safe.

It decides how often a table is looked at without an event, and shows that a source of events has fallen silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.events import CommitUnannounced, Listener
from compactor.iceberg.tables import TableView
from compactor.table_names import TableName
from streaming.ledger.look_queue import Asked, Lane
from streaming.ledger.sweep_schedule import UNKNOWN, Rhythm, commit_seconds

NEWEST_COMMITS = 20
LATE_SECONDS = 60.0
"""After a commit, in which its event arrives if there is one."""


@dataclass(frozen=True)
class _Table:
    """`source`: of the table's newest event. `head`: the snapshot that was counted last."""

    rhythm: Rhythm = UNKNOWN
    source: str = ""
    head: int | None = None


def _ignore(_event: object) -> None:
    """Publish nothing."""


@dataclass(eq=False)
class TableRhythms:
    """`listener` gets commits without an event of tables whose earlier commits had one."""

    listener: Listener = _ignore
    clock: Callable[[], float] = time.time
    _tables: dict[TableName, _Table] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def of(self, table: TableName) -> Rhythm:
        """The table's rhythm."""
        return self._tables.get(table, _Table()).rhythm

    def heard(self, table: TableName, source: str) -> None:
        """An event of this source announced a commit to the table."""
        with self._lock:
            known = self._tables.get(table, _Table())
            if known.source != source or not known.rhythm.announced:
                self._tables[table] = replace(known, rhythm=replace(known.rhythm, announced=True), source=source)

    def counted(self, table: TableName, view: TableView, asked: Asked) -> None:
        """A look counted the table's head."""
        written = [each.timestamp_ms for each in view.metadata.snapshots[-NEWEST_COMMITS:] if not _is_rewrite(each)]
        head = view.snapshot
        committed_at = head.timestamp_ms / 1000 if head is not None else None
        unannounced = ""
        with self._lock:
            known = self._tables.get(table, _Table())
            is_news = known.head is not None and head is not None and head.snapshot_id != known.head
            missed = is_news and asked.lane is Lane.SWEEP and not _is_rewrite(head)
            if missed and committed_at is not None and self.clock() - committed_at > LATE_SECONDS:
                unannounced = known.source
            rhythm = Rhythm(known.rhythm.announced and not missed, commit_seconds(written), committed_at)
            self._tables[table] = _Table(rhythm, known.source, head.snapshot_id if head is not None else None)
        if unannounced:
            self.listener(CommitUnannounced(table=table, source=unannounced))

    def forget(self, table: TableName) -> None:
        """The table does not exist any more, or is another service's."""
        with self._lock:
            self._tables.pop(table, None)


def _is_rewrite(snapshot: Snapshot | None) -> bool:
    """Maintenance seldom announces its rewrites, and they bring no rows."""
    return snapshot is not None and snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
