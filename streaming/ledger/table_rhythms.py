"""What looks and events tell of each table's commits: how often, and whether events announce them. Thread-safe.

It decides how often a table is looked at without an event, and shows that a source of events has fallen silent, or that
a table has a writer that announces nothing beside one that does.
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
LOST_SECONDS = 300.0
"""After a commit, after which no event of it is expected any more."""


@dataclass(frozen=True)
class _Table:
    """`source`: of the table's newest event. `head`: the snapshot that was counted last.

    `untold_at`: the oldest commit that a look has found and no event has told of so far, seconds since the epoch.
    """

    rhythm: Rhythm = UNKNOWN
    source: str = ""
    head: int | None = None
    untold_at: float | None = None

    def told(self, happened_at: float) -> _Table:
        """An event told of a commit at this time."""
        untold_at = self.untold_at
        if untold_at is not None and -LATE_SECONDS <= happened_at - untold_at <= LOST_SECONDS:
            untold_at = None
        return replace(self, untold_at=untold_at)


def _ignore(_event: object) -> None:
    """Publish nothing."""


@dataclass(eq=False)
class TableRhythms:
    """`listener` gets commits without an event of tables whose earlier commits had one.

    `behind`: whether events wait that could not be read yet: then nothing follows from a commit without one.
    """

    listener: Listener = _ignore
    clock: Callable[[], float] = time.time
    behind: Callable[[], bool] = lambda: False
    _tables: dict[TableName, _Table] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def of(self, table: TableName) -> Rhythm:
        """The table's rhythm."""
        return self._tables.get(table, _Table()).rhythm

    def source(self, table: TableName) -> str:
        """The source of the event that announced the table's newest announced commit; empty: none has announced one."""
        return self._tables.get(table, _Table()).source

    def heard(self, table: TableName, source: str, happened_at: float) -> None:
        """An event of this source announced a commit to the table. `happened_at`: seconds since the epoch."""
        with self._lock:
            known = self._tables.get(table, _Table())
            if known.source != source or not known.rhythm.announced or known.untold_at is not None:
                told = known.told(happened_at)
                self._tables[table] = replace(told, rhythm=replace(known.rhythm, announced=True), source=source)

    def counted(self, table: TableName, view: TableView, asked: Asked) -> None:
        """A look counted the table's head."""
        written = [each.timestamp_ms for each in view.metadata.snapshots[-NEWEST_COMMITS:] if not _is_rewrite(each)]
        head = view.snapshot
        committed_at = head.timestamp_ms / 1000 if head is not None else None
        now = self.clock()
        known = self._tables.get(table, _Table())
        found = _untold(view, known, asked)
        behind = bool(found or known.untold_at is not None) and self.behind()
        with self._lock:
            known = self._tables.get(table, _Table())  # an event may have come in between
            found = [] if behind else found
            waiting = found if behind or known.untold_at is None else [*found, known.untold_at]
            late = any(now - at > LATE_SECONDS for at in found)
            lost = any(now - at > LOST_SECONDS for at in waiting)
            rhythm = Rhythm(
                announced=known.rhythm.announced and not (found and asked.oldest_event is None),
                commit_seconds=commit_seconds(written),
                committed_at=committed_at,
                missed_at=now if lost else known.rhythm.missed_at,
            )
            untold_at = None if lost else min(waiting, default=None)
            self._tables[table] = _Table(rhythm, known.source, head.snapshot_id if head else None, untold_at)
        if (late or lost) and known.source:
            self.listener(CommitUnannounced(table=table, source=known.source))

    def forget(self, table: TableName) -> None:
        """The table does not exist any more, or is another service's."""
        with self._lock:
            self._tables.pop(table, None)


def _untold(view: TableView, known: _Table, asked: Asked) -> list[float]:
    """Commits that no event has told of when the look finds them, seconds since the epoch, the newest first.

    A sweep: all new ones. A look for events: those long before the oldest event, and before the newest commit, which
    one of the events tells of, whatever its clock says. A look after a commit of ours tells nothing.
    """
    if known.head is None or (asked.oldest_event is None and asked.lane is not Lane.SWEEP):
        return []
    commits = _commits(view, known)
    if asked.oldest_event is None or not commits:
        return commits
    told_from = min(asked.oldest_event, commits[0]) - LOST_SECONDS
    return [at for at in commits if at < told_from]


def _commits(view: TableView, known: _Table) -> list[float]:
    """When each commit since the last count was published in the main branch, the newest first, without rewrites."""
    found: list[float] = []
    published = {each.snapshot_id: each.timestamp_ms for each in view.metadata.snapshot_log}
    at_ms: int | None = None
    for each in _since(view, known):
        # One that never was the head was published with the one above it, e.g. by a fast forward from a branch.
        at_ms = published.get(each.snapshot_id, each.timestamp_ms if at_ms is None else at_ms)
        if not _is_rewrite(each):
            found.append(at_ms / 1000)
    return found


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
