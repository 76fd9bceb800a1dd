"""What commits since the plan did to the inputs of a file group, from their manifest entries. Pure.

Deletes of positions can follow the rows into the outputs. What cannot: an input that was removed or listed a second
time, and position deletes that were taken back. Rows of a removed input cannot be deleted in the output either: Iceberg
refuses a `replace` snapshot that adds more rows than it replaces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.dangling_deletes import Identity
from compactor.planning.planner import FileGroup


@dataclass(frozen=True)
class InputChange:
    """What happened to one input.

    Attributes:
        conflict: Why its deletes cannot follow its rows; empty: they can.
        read: Delete files that tell which of its rows are deleted now: all of them if `whole`, else the new ones.
        whole: The rows that the rewrite left out or carries must be among them, because a delete file that told so
            was removed, or a vector took the place of the delete files.
        lost_equality: An equality delete that the rewrite has applied was removed: its rows must be among them too.
    """

    conflict: str = ""
    read: tuple[FileEntry, ...] = ()
    whole: bool = False
    lost_equality: bool = False


class OthersChanges:
    """The entries of commits since the plan, by what they name."""

    def __init__(self, changes: Iterable[FileEntry]) -> None:
        self.data: dict[str, list[Status]] = defaultdict(list)
        self.times: Counter[Identity] = Counter()
        """How often a delete file was added, less how often it was removed."""
        self.named: dict[str, list[FileEntry]] = defaultdict(list)
        self.in_partition: dict[PartitionKey, list[FileEntry]] = defaultdict(list)
        for entry in changes:
            if entry.content is Content.DATA:
                self.data[entry.path].append(entry.status)
                continue
            self.times[entry.identity] += -1 if entry.status is Status.DELETED else 1
            if entry.status is Status.DELETED or entry.content is Content.EQUALITY_DELETES:
                continue
            if entry.applies_to is not None:
                self.named[entry.applies_to].append(entry)
            else:
                self.in_partition[entry.key].append(entry)

    def is_live(self, delete: FileEntry) -> bool:
        """Whether a delete file that was live at the plan still is."""
        return self.times[delete.identity] >= 0

    def new_ones(self, key: PartitionKey) -> list[FileEntry]:
        """New position delete files of a partition that name no single data file, and are live."""
        return [entry for entry in self.in_partition.get(key, ()) if self.times[entry.identity] > 0]

    def new_ones_of(self, paths: AbstractSet[str]) -> list[FileEntry]:
        """New delete files that name one of these data files alone, and are live."""
        named = [entry for path in paths for entry in self.named.get(path, ())]
        return [entry for entry in named if self.times[entry.identity] > 0]

    def of_inputs(self, group: FileGroup) -> dict[str, InputChange]:
        """What happened to the inputs of a group, by path; inputs to which nothing happened are left out."""
        found = {file.entry.path: _change(file, self) for file in group.files}
        return {path: change for path, change in found.items() if change != InputChange()}


def _change(file: LiveFile, seen: OthersChanges) -> InputChange:
    statuses = seen.data.get(file.entry.path, ())
    if any(status is not Status.DELETED for status in statuses):
        return InputChange(conflict=f"{file.entry.path} was added once more to the table")
    if statuses:
        return InputChange(conflict=f"{file.entry.path} was removed from the table")
    lost = [delete for delete in file.deletes if not seen.is_live(delete)]
    positions = {delete.identity: delete for delete in (*file.deletes, *file.superseded) if _by_position(delete)}
    live = {identity: delete for identity, delete in positions.items() if seen.is_live(delete)}
    new = {
        delete.identity: delete
        for delete in (*seen.named.get(file.entry.path, ()), *seen.new_ones(file.entry.key))
        if seen.times[delete.identity] > 0 and _applies(delete, file.entry) and delete.identity not in positions
    }
    vectors = [delete for delete in (*live.values(), *new.values()) if delete.is_deletion_vector]
    if len(vectors) > 1:
        return InputChange(conflict=f"{file.entry.path} has two deletion vectors")
    lost_equality = any(not _by_position(delete) for delete in lost)
    if vectors and vectors[0].identity in new:
        return InputChange(read=tuple(vectors), whole=True, lost_equality=lost_equality)
    if lost:
        return InputChange(read=(*live.values(), *new.values()), whole=True, lost_equality=lost_equality)
    return InputChange(read=() if vectors else tuple(new.values()))


def _by_position(delete: FileEntry) -> bool:
    return delete.content is Content.POSITION_DELETES


def _applies(delete: FileEntry, entry: FileEntry) -> bool:
    """By sequence number (spec: scan planning)."""
    return delete.is_deletion_vector or entry.data_sequence_number <= delete.data_sequence_number
