"""Find dangling delete files: delete files with no row left to delete after a rewrite. The same commit removes them.

Iceberg's own commit removes deletion vectors only if it planned the scan itself, and no other delete files. Its
RemoveDanglingDeletes compares sequence numbers per partition, which brings rows back if a delete is global. Here a
delete file is removed only if every live data file that it applies to is rewritten: the rewrite has applied it to these
files, and it does not apply to the outputs (a position delete or vector names other paths; an equality delete is not
newer than the planned snapshot, whose data sequence number the outputs carry) nor to data files committed later.

Other writers, and old versions of firnline, leave delete files that apply to nothing. The next commit removes them, or
a commit of its own.
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
    """A delete file that applies only to planned data files (`covers`): it dangles once all of them are rewritten.

    Empty `covers`: it applies to no live data file, so it dangles already.
    """

    entry: FileEntry
    covers: frozenset[str]


def coverable_deletes(inventory: Inventory, entries: Sequence[FileEntry]) -> tuple[CoverableDelete, ...]:
    """Pure: the live delete files that apply to no data files except the planned `entries`.

    Without those in partitions that JSON cannot express: Iceberg would refuse the commit after all work was done.
    """
    if not inventory.deletes:
        return ()
    planned = {entry.path for entry in entries}
    applies_to: dict[Identity, set[str]] = defaultdict(set)
    for files in inventory.partitions.values():
        for file in files if files.has_deletes else ():
            for delete in (*file.deletes, *file.superseded):  # superseded deletes apply again without the vector
                applies_to[delete.identity].add(file.entry.path)
    return tuple(
        CoverableDelete(delete, frozenset(applies_to[delete.identity]))
        for delete in inventory.deletes
        if inventory.not_as_json(delete.key) is None and applies_to[delete.identity] <= planned
    )


def dangling_deletes(
    coverable: Sequence[CoverableDelete], rewritten: AbstractSet[str], gone: AbstractSet[Identity]
) -> tuple[FileEntry, ...]:
    """Pure: the delete files to remove in the commit that rewrites `rewritten`; `gone` were removed before."""
    return tuple(
        delete.entry for delete in coverable if delete.covers <= rewritten and delete.entry.identity not in gone
    )


def worth_a_commit(coverable: Sequence[CoverableDelete], least: int) -> bool:
    """Pure: whether dangling delete files are worth a commit of their own.

    At least `least` vectors and position deletes are: the file that each names is gone, and only a rewrite removes
    them. Dangling equality deletes do not count: every upsert writer leaves some; they wait for the next rewrite.
    """
    found = sum(not delete.covers and delete.entry.content is Content.POSITION_DELETES for delete in coverable)
    return found >= least
