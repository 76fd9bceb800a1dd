"""Delete files that a rewrite leaves without any row to delete: they leave in the same commit.

Iceberg's own commit removes deletion vectors with their data files, and nothing else. Its RemoveDanglingDeletes
compares sequence numbers per partition, which brings rows back where an equality delete is global. Here a delete file
goes only when every live data file it applies to is being rewritten: the rewrite has applied it to those, and the
outputs are beyond it (a position delete names other paths; an equality delete is not newer than the planned snapshot,
whose data sequence number the outputs carry). Data files committed later are newer than it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.inventory import Inventory
from compactor.manifests import FileEntry


@dataclass(frozen=True)
class CoverableDelete:
    """A delete file that applies to planned data files only: once all of `covers` are rewritten it dangles."""

    entry: FileEntry
    covers: frozenset[str]


def coverable_deletes(inventory: Inventory, entries: Sequence[FileEntry]) -> tuple[CoverableDelete, ...]:
    """Pure: the live delete files (deletion vectors apart) that apply to no data file but these, the planned ones.

    Those that apply to nothing at all are among them, unless nothing is planned.
    """
    if not entries or not inventory.deletes:
        return ()
    planned = {entry.path for entry in entries}
    applies_to: dict[str, set[str]] = defaultdict(set)
    for files in inventory.partitions.values():
        for file in files if files.has_deletes else ():
            for delete in (*file.deletes, *file.superseded):  # what was superseded applies again without its vector
                applies_to[delete.path].add(file.entry.path)
    return tuple(
        CoverableDelete(delete, frozenset(applies_to[delete.path]))
        for delete in inventory.deletes
        if not delete.is_deletion_vector and delete.key.commits_as_json and applies_to[delete.path] <= planned
    )


def dangling_deletes(
    coverable: Sequence[CoverableDelete], rewritten: AbstractSet[str], gone: AbstractSet[str]
) -> tuple[FileEntry, ...]:
    """Pure: the delete files to remove with the commit that rewrites `rewritten`; `gone` are removed already."""
    return tuple(delete.entry for delete in coverable if delete.covers <= rewritten and delete.entry.path not in gone)
