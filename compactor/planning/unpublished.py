"""Whether commits beside a table's main branch wait to be published: write, audit, publish. Pure.

Some jobs write to a branch or stage a snapshot, check it, and then move main to it (Iceberg: `fast_forward`, and
`cherrypick_snapshot` of a staged overwrite). That works only as long as main has not moved: a rewrite on main in the
meantime makes each attempt fail, for good. So main is left alone until it is done.

A branch may also be kept for months, for an experiment. It counts for a limited time only, and not once main has moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.iceberg.tables import TableView
from compactor.table_names import MAIN

ABANDONED: Final = 86_400.0
"""Seconds without a commit after which a branch or a staged snapshot is not expected to be published any more."""
LONGEST: Final = 7 * ABANDONED
"""Seconds from its first commit after which a branch is kept for another purpose, however often it is written."""
BEGINS: Final = 3_600.0
"""Seconds in which a new branch is expected to get its first commit."""
BRANCH: Final = "branch"
STAGED: Final = "wap.id"
"""In the summary of a staged snapshot (`spark.wap.id`)."""
PUBLISHED: Final = "published-wap-id"
"""In the summary of the snapshot that published it."""
DYNAMIC: Final = "replace-partitions"
"""In the summary of an overwrite of whole partitions, which may be published also after other commits."""


@dataclass(frozen=True)
class Unpublished:
    """A branch or a staged snapshot that is to be published.

    Attributes:
        what: For people.
        until: When it counts no more, in seconds since the epoch, unless something is committed to it.
    """

    what: str
    until: float


def unpublished(table: TableView, now: float) -> Unpublished | None:
    """What waits longest to be published to main; None: nothing, or the view is of another branch.

    `now`: in seconds since the epoch.
    """
    head = table.snapshot
    if head is None or table.ref != MAIN:
        return None
    waiting = [each for each in (*_branches(table, head), *_staged(table, head, now)) if _counts(each, now)]
    return max(waiting, key=lambda each: each.until, default=None)


def _counts(found: Unpublished, now: float) -> bool:
    return 0 < found.until - now < 2 * ABANDONED  # a clock that is days ahead must not stop everything


def _branches(table: TableView, head: Snapshot) -> Iterator[Unpublished]:
    by_id = {each.snapshot_id: each for each in table.metadata.snapshots}
    for name, ref in table.metadata.refs.items():
        if name == MAIN or ref.snapshot_ref_type != BRANCH:
            continue
        own = _own_commits(by_id, ref.snapshot_id, head)
        if own:
            until = min(_at(own[0]) + ABANDONED, _at(own[-1]) + LONGEST)
            yield Unpublished(f"branch {name} is not published to main", until)
        elif own is not None and _begins_at(table, head):
            until = min(table.metadata.last_updated_ms / 1000 + BEGINS, _at(head) + ABANDONED)
            yield Unpublished(f"branch {name} was made from the newest snapshot of main", until)


def _own_commits(by_id: Mapping[int, Snapshot], newest: int, main: Snapshot) -> list[Snapshot] | None:
    """The commits of a branch after main's head, newest first; None: it does not descend from that."""
    found: list[Snapshot] = []
    at = by_id.get(newest)
    while at is not None and at.snapshot_id != main.snapshot_id:
        if (at.sequence_number or 0) < (main.sequence_number or 0):
            return None  # it left main before, maybe thousands of commits ago
        found.append(at)
        at = by_id.get(at.parent_snapshot_id or 0)
    return None if at is None else found


def _begins_at(table: TableView, head: Snapshot) -> bool:
    """Whether a branch at main's head was made after it: main got this snapshot by a commit, not from the branch."""
    log = table.metadata.snapshot_log
    return bool(log) and (log[-1].snapshot_id, log[-1].timestamp_ms) == (head.snapshot_id, head.timestamp_ms)


def _staged(table: TableView, head: Snapshot, now: float) -> Iterator[Unpublished]:
    """An append can be published at any time, whole partitions beside other commits, all else from main's head only."""
    recent = [
        each
        for each in table.metadata.snapshots
        if _property(each, STAGED) and not _appends(each) and now - _at(each) < ABANDONED
    ]
    if not recent:
        return
    line = {each.snapshot_id for each in table.history}
    published = {_property(each, PUBLISHED) for each in table.history}
    for each in recent:
        parents = line if _property(each, DYNAMIC) == "true" else {head.snapshot_id}
        done = each.snapshot_id in line or _property(each, STAGED) in published
        if each.parent_snapshot_id in parents and not done:
            yield Unpublished(f"staged snapshot {each.snapshot_id} is not published to main", _at(each) + ABANDONED)


def _property(snapshot: Snapshot, name: str) -> str:
    return snapshot.summary.additional_properties.get(name, "") if snapshot.summary else ""


def _appends(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def _at(snapshot: Snapshot) -> float:
    return snapshot.timestamp_ms / 1000
