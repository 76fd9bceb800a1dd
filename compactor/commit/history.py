"""The history of a branch as the table's metadata lists it. Some catalogs (Nessie) list the newest snapshot alone."""

from __future__ import annotations

from typing import Any

from compactor.spark.java_table import JavaTable


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
