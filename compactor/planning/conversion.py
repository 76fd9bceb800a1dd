"""Which equality deletes can be converted to positions, and the data files to search for their rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.planning.dangling_deletes import Identity
from compactor.planning.inventory import Inventory

FILES_OF_A_SEARCH = 200
"""Data files that one Spark task searches. It reads all their deletes once: fewer files would read them more often."""


@dataclass(frozen=True)
class Conversion:
    """Equality deletes of a table at one snapshot.

    Attributes:
        searches: Data files of one partition each, at most `FILES_OF_A_SEARCH`, to which equality deletes apply.
        deletes: All live equality deletes; some may apply to no data file any more.
    """

    searches: tuple[tuple[LiveFile, ...], ...]
    deletes: tuple[FileEntry, ...]

    @property
    def files(self) -> list[LiveFile]:
        """All data files to search."""
        return [file for search in self.searches for file in search]


def plan_conversion(inventory: Inventory) -> Conversion:
    """The conversion of all equality deletes of a table."""
    searches: list[tuple[LiveFile, ...]] = []
    for files in inventory.partitions.values():
        hit = [file for file in files if any(map(_by_value, file.deletes))] if files.has_deletes else []
        starts = range(0, len(hit), FILES_OF_A_SEARCH)
        searches += [tuple(hit[start : start + FILES_OF_A_SEARCH]) for start in starts]
    return Conversion(tuple(searches), tuple(filter(_by_value, inventory.deletes)))


def converted(
    conversion: Conversion, refused: Iterable[Sequence[LiveFile]], gone: AbstractSet[Identity]
) -> list[FileEntry]:
    """The equality deletes to remove: live ones, of which every data file was searched."""
    kept = {delete.identity for files in refused for file in files for delete in file.deletes}
    return [delete for delete in conversion.deletes if delete.identity not in kept | gone]


def overtaken_by(deletes: Sequence[FileEntry], changes: Iterable[FileEntry]) -> str | None:
    """Why deletes must not be removed after these commits: a data file was added to which one of them applies.

    Only rewrites add files with an older sequence number than their commit's.
    """
    newest = max((delete.data_sequence_number for delete in deletes), default=0)
    for entry in changes:
        if entry.content is Content.DATA and entry.status is Status.ADDED and entry.data_sequence_number < newest:
            return f"{entry.path} was added, to which older deletes apply"
    return None


def _by_value(delete: FileEntry) -> bool:
    return delete.content is Content.EQUALITY_DELETES
