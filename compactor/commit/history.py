"""The history of a branch as the table's metadata lists it. Some catalogs (Nessie) list the newest snapshot alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from compactor.spark.java_table import JavaTable

REPLACE: Final = "replace"
"""The operation of a snapshot that changes no rows."""


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
