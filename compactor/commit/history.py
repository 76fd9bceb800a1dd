"""The history of a branch as the table's metadata lists it, and our commits in it. Some catalogs (Nessie) list the
newest snapshot alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from compactor.commit.sends import Sent
from compactor.iceberg.other_compactors import DEPLOYMENT, POLARIS_ROLLBACK, RUN_ID
from compactor.spark.java_table import JavaTable

REPLACE: Final = "replace"
"""The operation of a snapshot that changes no rows."""
ENGINES = "firnline.engines"
PART = "firnline.part"


@dataclass(frozen=True)
class CommitSummary:
    """The properties that a commit adds to its snapshot's summary.

    `part`: "2/3" is the second of three commits; a long run makes several. `rollback_on_conflict`: when a writer's
    commit conflicts with this snapshot, Apache Polaris rolls the snapshot back instead of failing the writer (not on
    tables of format version 3).
    `deployment`: the id of the deployment; empty: none. `own`: the user's properties.
    """

    run_id: str
    engines: tuple[str, ...] = ()
    part: str = "1/1"
    rollback_on_conflict: bool = False
    deployment: str = ""
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The summary properties."""
        engines = ",".join(sorted(set(self.engines)))
        properties = {**self.own, RUN_ID: self.run_id, ENGINES: engines, PART: self.part}
        if self.deployment:
            properties[DEPLOYMENT] = self.deployment
        if self.rollback_on_conflict:
            properties[POLARIS_ROLLBACK] = "rollback"
        return properties

    def matches(self, summary: Mapping[str, str]) -> bool:
        """Whether the snapshot with this summary was made by this commit."""
        return summary.get(RUN_ID) == self.run_id and summary.get(PART) == self.part


def committed_id(table: JavaTable, sends: Collection[Sent], summary: CommitSummary) -> int | None:
    """The id of the branch's snapshot with this summary, as the table was read last; None if there is none.

    A catalog that lists the newest snapshot alone hides ours behind the next commit, which still lists the manifests
    that ours added: the newest of `sends` is looked for there.
    """
    head = at = table.handle.snapshot(table.view.ref)
    while at is not None and at.snapshotId() != table.snapshot_id:
        if summary.matches(dict(at.summary())):
            return int(at.snapshotId())
        parent = at.parentId()
        at = table.handle.snapshot(parent) if parent is not None else None
        if at is None and parent not in (None, table.snapshot_id):
            listed = {int(each.snapshotId()) for each in head.allManifests(table.handle.io())}
            return next((each.snapshot_id for each in reversed([*sends]) if each.snapshot_id in listed), None)
    return None


def snapshots_between(table: JavaTable, newest: int | None, oldest: int | None) -> list[Any] | None:
    """Snapshots after `oldest` up to `newest`, the newest first; None if the metadata does not list all of them, or if
    `newest` does not descend from `oldest`.
    """
    found: list[Any] = []
    at = newest
    while at != oldest:
        snapshot = table.handle.snapshot(at) if at is not None else None
        if snapshot is None:
            return None
        found.append(snapshot)
        at = snapshot.parentId()
    return found


def rolled_back_with(table: JavaTable, snapshot: Any) -> tuple[int, ...]:
    """The ids of the snapshots before a new one, the newest first: `replace` snapshots, and the first other one.

    A catalog that rolls rewrites back for a writer (Apache Polaris) removes `replace` snapshots in a row together, and
    the writer's takes their place. So this is asked before the table is read again.
    """
    found: list[int] = []
    at = snapshot
    while at is not None and at.parentId() is not None and at.operation() == REPLACE:
        found.append(int(at.parentId()))
        at = table.handle.snapshot(found[-1])
    return tuple(found)


def goes_on_without(table: JavaTable, before: Sequence[int]) -> bool:
    """Whether the branch goes on from the newest of these snapshots that it still has."""
    head = table.handle.snapshot(table.view.ref)
    for each in before:
        between = snapshots_between(table, head and head.snapshotId(), each)
        if between is not None:
            return bool(between)
    return False
