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

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.tails import Tails
from compactor.planning.inventory import Inventory

Identity = tuple[str, tuple[int, int] | None]
"""`FileEntry.identity` of a delete file."""


@dataclass(frozen=True)
class CoverableDelete:
    """A delete file that applies only to planned data files: it dangles once all of them are rewritten.

    `covers`: paths of files that it applies to. `first`: so many of the first of `files` are more of them; all deletes
    of a partition share `files`, the oldest first. If there is none, it applies to no live data file: it dangles
    already.
    """

    entry: FileEntry
    covers: frozenset[str]
    files: tuple[str, ...] = ()
    first: int = 0

    @property
    def dangles(self) -> bool:
        return not self.covers and not self.first


def coverable_deletes(inventory: Inventory, entries: Sequence[FileEntry]) -> tuple[CoverableDelete, ...]:
    """Pure: the live delete files that apply to no data files except the planned `entries`.

    Without those in partitions that JSON cannot express: Iceberg would refuse the commit after all work was done.
    """
    if not inventory.deletes:
        return ()
    planned = {entry.path for entry in entries}
    applies_to: dict[Identity, set[str]] = defaultdict(set)
    shared: _Shared = {}
    for files in inventory.partitions.values():
        for file in files if files.has_deletes else ():
            for deletes in (file.deletes, file.superseded):  # superseded deletes apply again without the vector
                if isinstance(deletes, Tails):
                    for part, start in deletes.parts:
                        shared.setdefault(id(part), (part, []))[1].append((start, file.entry.path))
                else:
                    for delete in deletes:
                        applies_to[delete.identity].add(file.entry.path)
    first_files = _first_files(shared)
    found = (
        CoverableDelete(delete, frozenset(applies_to[delete.identity]), *first_files.get(delete.identity, ((), 0)))
        for delete in inventory.deletes
        if inventory.not_as_json(delete.key) is None
    )
    return tuple(_covered_by(planned, found))


_Shared = dict[int, tuple[tuple[FileEntry, ...], list[tuple[int, str]]]]
"""By id, each tuple of deletes that data files share, with the index of the first delete that applies to each file."""


def _first_files(shared: _Shared) -> dict[Identity, tuple[tuple[str, ...], int]]:
    """For each delete of a shared tuple: the paths of its data files, and how many of the first it applies to."""
    found: dict[Identity, tuple[tuple[str, ...], int]] = {}
    for deletes, files in shared.values():
        files.sort()
        starts, paths = [start for start, _ in files], tuple(path for _, path in files)
        for index, delete in enumerate(deletes):
            first, other = bisect_right(starts, index), found.get(delete.identity)
            if other is not None:  # it names its data file in one of its two entries only
                found[delete.identity] = (*other[0][: other[1]], *paths[:first]), other[1] + first
            else:
                found[delete.identity] = paths, first
    return found


def _covered_by(paths: AbstractSet[str], deletes: Iterable[CoverableDelete]) -> Iterator[CoverableDelete]:
    """The deletes that apply to no other data files."""
    among_first: dict[int, int] = {}
    for delete in deletes:
        if id(delete.files) not in among_first:
            among_first[id(delete.files)] = next(
                (index for index, path in enumerate(delete.files) if path not in paths), len(delete.files)
            )
        if delete.covers <= paths and delete.first <= among_first[id(delete.files)]:
            yield delete


def dangling_deletes(
    coverable: Sequence[CoverableDelete], rewritten: AbstractSet[str], changed: AbstractSet[Identity]
) -> tuple[FileEntry, ...]:
    """Pure: the delete files to remove in the commit that rewrites `rewritten`.

    `changed` were removed since the plan, or added once more; these stay.
    """
    return tuple(delete.entry for delete in _covered_by(rewritten, coverable) if delete.entry.identity not in changed)


def worth_a_commit(coverable: Sequence[CoverableDelete], least: int) -> bool:
    """Pure: whether dangling delete files are worth a commit of their own.

    At least `least` vectors and position deletes are: the file that each names is gone, and only a rewrite removes
    them. Dangling equality deletes do not count: every upsert writer leaves some; they wait for the next rewrite.
    """
    found = sum(delete.dangles and delete.entry.content is Content.POSITION_DELETES for delete in coverable)
    return found >= least
