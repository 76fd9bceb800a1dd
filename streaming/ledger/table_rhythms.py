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
from compactor.iceberg.other_compactors import RUN_ID
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

    def source(self, table: TableName) -> str:
        """The source of the event that announced the table's newest announced commit; empty: none has announced one."""
        return self._tables.get(table, _Table()).source

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
        silent = False
        with self._lock:
            known = self._tables.get(table, _Table())
            missed: list[Snapshot] = []
            if known.head is not None and asked.lane is Lane.SWEEP:
                missed = [each for each in _since(view, known) if not _is_rewrite(each)]
                silent = any(self.clock() - each.timestamp_ms / 1000 > LATE_SECONDS for each in missed)
            rhythm = Rhythm(known.rhythm.announced and not missed, commit_seconds(written), committed_at)
            self._tables[table] = _Table(rhythm, known.source, head.snapshot_id if head is not None else None)
        if silent and known.source:
            self.listener(CommitUnannounced(table=table, source=known.source))

    def forget(self, table: TableName) -> None:
        """The table does not exist any more, or is another service's."""
        with self._lock:
            self._tables.pop(table, None)


def _since(view: TableView, known: _Table) -> list[Snapshot]:
    """The snapshots after the one that was counted last; if it was expired or rolled back, those of a later time."""
    found: list[Snapshot] = []
    for each in view.history:
        if each.snapshot_id == known.head:
            return found
        found.append(each)
    counted_ms = (known.rhythm.committed_at or 0.0) * 1000
    return [each for each in found if each.timestamp_ms > counted_ms]


def _is_rewrite(snapshot: Snapshot) -> bool:
    """Maintenance seldom announces its commits, and they bring no rows. Each commit of firnline is maintenance."""
    summary = snapshot.summary
    return summary is not None and (summary.operation is Operation.REPLACE or RUN_ID in summary.additional_properties)
