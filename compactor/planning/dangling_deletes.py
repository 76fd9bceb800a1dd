"""Delete files that a rewrite leaves without any row to delete: they leave in the same commit.

Iceberg's own commit removes deletion vectors only where it has planned the scan itself, and no other delete file. Its
RemoveDanglingDeletes compares sequence numbers per partition, which brings rows back where a delete is global.
Here a delete file goes only when every live data file it applies to is being rewritten: the rewrite has applied it to
those, and the outputs are beyond it (a position delete or vector names other paths; an equality delete is not newer
than the planned snapshot, whose data sequence number the outputs carry). Data files committed later are newer than it.

Other writers, and versions of firnline before this rule held for vectors, leave delete files behind that apply to
nothing: they go with the next commit, or by a commit of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.planning.inventory import Inventory

Identity = tuple[str, tuple[int, int] | None]
"""`FileEntry.identity` of a delete file."""


@dataclass(frozen=True)
class CoverableDelete:
    """A delete file that applies to planned data files only: once all of `covers` are rewritten it dangles.

    An empty `covers`: it applies to no live data file already.
    """

    entry: FileEntry
    covers: frozenset[str]


def coverable_deletes(inventory: Inventory, entries: Sequence[FileEntry]) -> tuple[CoverableDelete, ...]:
    """Pure: the live delete files that apply to no data file but these, the planned ones, or to none at all."""
    if not inventory.deletes:
        return ()
    planned = {entry.path for entry in entries}
    applies_to: dict[Identity, set[str]] = defaultdict(set)
    for files in inventory.partitions.values():
        for file in files if files.has_deletes else ():
            for delete in (*file.deletes, *file.superseded):  # what was superseded applies again without its vector
                applies_to[delete.identity].add(file.entry.path)
    return tuple(
        CoverableDelete(delete, frozenset(applies_to[delete.identity]))
        for delete in inventory.deletes
        if delete.key.commits_as_json and applies_to[delete.identity] <= planned
    )


def dangling_deletes(
    coverable: Sequence[CoverableDelete], rewritten: AbstractSet[str], gone: AbstractSet[Identity]
) -> tuple[FileEntry, ...]:
    """Pure: the delete files to remove with the commit that rewrites `rewritten`; `gone` are removed already."""
    return tuple(
        delete.entry for delete in coverable if delete.covers <= rewritten and delete.entry.identity not in gone
    )


def worth_a_commit(coverable: Sequence[CoverableDelete], least: int) -> bool:
    """Pure: whether delete files that apply to nothing are worth a commit that removes nothing else.

    `least` vectors and position deletes are: each names a file that is gone, and nothing but a rewrite ever removes
    them. Equality deletes that apply to nothing are what every upsert writer leaves; they wait for the next rewrite.
    """
    found = sum(not delete.covers and delete.entry.content is Content.POSITION_DELETES for delete in coverable)
    return found >= least
