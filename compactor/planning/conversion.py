"""Which equality deletes can be converted to positions, and the data files to search for their rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.manifests.tails import Converted, of_all, only
from compactor.partitions import PartitionKey
from compactor.planning.budget import Grant, Spent, requests_of
from compactor.planning.compared_columns import not_compared
from compactor.planning.dangling_deletes import Identity
from compactor.planning.delete_rules import is_by_value
from compactor.planning.inventory import Inventory

NOTHING_KNOWN: Final[Mapping[str, str]] = MappingProxyType({})
FILES_OF_A_SEARCH = 200
"""Data files that one Spark task searches. It reads all their deletes once: fewer files would read them more often."""


@dataclass(frozen=True)
class Conversion:
    """Equality deletes of a table at one snapshot.

    Attributes:
        searches: Data files of one partition each, at most `FILES_OF_A_SEARCH`, to which equality deletes apply.
        deletes: Live equality deletes to convert; some may apply to no data file any more.
        refused: Number of live equality deletes that cannot be converted, and `why` the first cannot.
        refused_in: Partitions of these deletes, and why.
    """

    searches: tuple[tuple[LiveFile, ...], ...]
    deletes: tuple[FileEntry, ...]
    refused: int = 0
    why: str = ""
    refused_in: Mapping[PartitionKey, str] = field(default_factory=dict)

    @property
    def files(self) -> list[LiveFile]:
        """All data files to search."""
        return [file for search in self.searches for file in search]

    @property
    def bytes(self) -> int:
        """Sizes of the data files to search."""
        return sum(file.size for file in self.files)


NOTHING_TO_CONVERT = Conversion((), ())


def not_beside(compactor: str) -> str:
    """Why equality deletes are not converted in a table that another compactor rewrites too.

    A rewrite that has read the data files before a delete keeps the deleted row, to which the equality delete still
    applies. Positions name the old file, and Iceberg's validation of that rewrite does not see those that a `replace`
    commit added.
    """
    return f"{compactor} rewrites this table too: a rewrite of it that is under way would bring deleted rows back"


MAYBE_BESIDE: Final = (
    "the table does not list all snapshots of the last day; another compactor may rewrite it too: a rewrite of it that "
    "is under way would bring deleted rows back. Keep snapshots for two days"
)
"""Why equality deletes are not converted where `not_beside` cannot be told."""


def plan_conversion(inventory: Inventory, unsearchable: Mapping[str, str] = NOTHING_KNOWN) -> Conversion:
    """The conversion of the equality deletes of a table.

    Without deletes that `encode` could not apply either. Without deletes in partitions that JSON cannot express, or
    that apply to data files there: Iceberg would refuse the commit.

    `unsearchable`: data files of searches that were refused, and why: deletes that apply to them stay too.
    """
    equality_deletes = [delete for delete in inventory.deletes if is_by_value(delete)]
    if not equality_deletes:
        return NOTHING_TO_CONVERT
    hit = {
        key: [file for file in files if any(map(is_by_value, file.deletes))]
        for key, files in inventory.partitions.items()
        if files.has_deletes
    }
    refused = _refused(inventory, equality_deletes, [file for files in hit.values() for file in files], unsearchable)
    not_refused: Converted[FileEntry, FileEntry] = only(lambda each: each.identity not in refused)
    searches: list[tuple[LiveFile, ...]] = []
    for files in hit.values():
        left = [file._replace(deletes=not_refused(file.deletes)) for file in files]
        left = [file for file in left if any(map(is_by_value, file.deletes))]
        searches += [tuple(left[start : start + FILES_OF_A_SEARCH]) for start in range(0, len(left), FILES_OF_A_SEARCH)]
    return Conversion(
        searches=tuple(searches),
        deletes=tuple(delete for delete in equality_deletes if delete.identity not in refused),
        refused=len(refused),
        why=next(iter(refused.values()), ""),
        refused_in={each.key: refused[each.identity] for each in equality_deletes if each.identity in refused},
    )


def within_grant(conversion: Conversion, grant: Grant) -> Conversion:
    """The part of a conversion that a run may do. At least one piece, even above the grant.

    A piece: searches that share equality deletes, mostly those of one partition. A delete leaves only when all its data
    files were searched. Pieces with the most deletes come first: because of them the conversion is due.
    """
    if grant.bytes is None and grant.requests is None:
        return conversion
    chosen: set[int] = set()
    put_off: set[Identity] = set()
    files = size = 0
    for numbers, deletes in sorted(_pieces(conversion.searches), key=lambda piece: -len(piece[1])):
        found = [file for number in numbers for file in conversion.searches[number]]
        more = sum(file.size for file in found)  # the most: a search reads key columns only
        if not chosen or grant.covers(Spent(size + more, requests_of(files + len(found), 0, size + more))):
            chosen.update(numbers)
            files, size = files + len(found), size + more
        else:
            put_off |= deletes
    return replace(
        conversion,
        searches=tuple(search for number, search in enumerate(conversion.searches) if number in chosen),
        deletes=tuple(delete for delete in conversion.deletes if delete.identity not in put_off),
    )


def searched_bytes(files: Sequence[LiveFile], columns: int) -> int:
    """About how many bytes a search of these data files reads: the key columns, if all columns are equally large."""
    deletes = of_all(file.deletes for file in files)
    keys = {field_id for delete in deletes if is_by_value(delete) for field_id in delete.equality_ids}
    return sum(file.size for file in files) * min(len(keys), columns) // columns


def _pieces(searches: Sequence[Sequence[LiveFile]]) -> list[tuple[list[int], set[Identity]]]:
    """The numbers of searches that share equality deletes, and these deletes, for each piece."""
    joined_to = list(range(len(searches)))

    def first_of(number: int) -> int:
        while joined_to[number] != number:
            joined_to[number] = joined_to[joined_to[number]]
            number = joined_to[number]
        return number

    every = (of_all(file.deletes for file in search) for search in searches)
    deletes = [{each.identity for each in found if is_by_value(each)} for found in every]
    known: dict[Identity, int] = {}
    for number, identities in enumerate(deletes):
        for identity in identities:
            joined_to[first_of(number)] = first_of(known.setdefault(identity, number))
    pieces: dict[int, tuple[list[int], set[Identity]]] = {}
    for number, identities in enumerate(deletes):
        numbers, of_piece = pieces.setdefault(first_of(number), ([], set()))
        numbers.append(number)
        of_piece |= identities
    return list(pieces.values())


def _refused(
    inventory: Inventory, deletes: Iterable[FileEntry], files: Sequence[LiveFile], unsearchable: Mapping[str, str]
) -> dict[Identity, str]:
    """Equality deletes that stay, and why: they cannot be compared, or apply to a file whose columns cannot be read;
    or a commit cannot name their file, or a data file to which they apply; or that file is listed twice.
    """
    found: dict[Identity, str] = {}
    schema = inventory.table.metadata.schema()
    for delete in deletes:
        why = not_compared(schema, delete.equality_ids) or _not_parquet(delete) or inventory.not_as_json(delete.key)
        if why is not None:
            found[delete.identity] = why
    twice = inventory.rows.listed_twice([file.entry for file in files])
    for file in files:
        entry = file.entry
        why = (
            _not_parquet(entry)
            or inventory.not_as_json(entry.key)
            or (_LISTED_TWICE.format(entry.path) if entry.path in twice else None)
            or unsearchable.get(entry.path)
        )
        if why is not None:
            found.update((delete.identity, why) for delete in file.deletes if is_by_value(delete))
    return found


_LISTED_TWICE: Final = "{} is listed twice: positions would delete the rows of both entries"
"""After a writer's repeated commit, an equality delete applies to the older entry alone: the newer one's rows stay."""


def _not_parquet(entry: FileEntry) -> str | None:
    if entry.encrypted:
        return f"{entry.path} is encrypted"
    return None if entry.file_format == "parquet" else f"{entry.path} is not a Parquet file"


def converted(
    conversion: Conversion, refused: Iterable[Sequence[LiveFile]], gone: AbstractSet[Identity]
) -> list[FileEntry]:
    """The equality deletes to remove: live ones, of which every data file was searched."""
    kept = {delete.identity for files in refused for delete in of_all(file.deletes for file in files)}
    return [delete for delete in conversion.deletes if delete.identity not in kept | gone]


def overtaken_by(
    deletes: Sequence[FileEntry], searched: Iterable[LiveFile], changes: Iterable[FileEntry]
) -> str | None:
    """Why deletes must not be removed after these commits, and positions not added for the files that were searched.

    A data file was added to which one of the deletes applies: only rewrites add files with an older sequence number
    than their commit's. Or a writer has repeated its commit: it added one of the deletes or of the data files once
    more. The conversion would remove both entries of the delete, also the newer one, which applies to more data files;
    positions would delete the rows of both entries of a data file.
    """
    newest = max((delete.data_sequence_number for delete in deletes), default=0)
    removed, paths = {delete.identity for delete in deletes}, {file.entry.path for file in searched}
    for entry in changes:
        if entry.status is Status.DELETED:
            continue
        if entry.identity in removed or (entry.content is Content.DATA and entry.path in paths):
            return f"{entry.path} was added once more"
        if entry.content is Content.DATA and entry.data_sequence_number < newest:
            return f"{entry.path} was added, to which older deletes apply"
    return None
