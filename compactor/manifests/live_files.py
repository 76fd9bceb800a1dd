"""Live data files by partition, from the columns of many manifests; a file becomes an object on first use.

Of a million files, most lie in partitions that are not due. The columns alone show that: the number of small files, and
whether a delete may apply.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat, takewhile
from operator import attrgetter
from typing import Final, NamedTuple, overload

import numpy as np

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.columns import EntryColumns
from compactor.manifests.rows import ManifestRows
from compactor.manifests.tails import Part, Tails, Unseen, of_all
from compactor.partitions import PartitionKey, PartitionLayout


class LiveFile(NamedTuple):
    """A data file and the delete files that may apply to it; a named tuple for speed, like `FileEntry`.

    `deletes`: position deletes that name the file come first, equality deletes of other specs last. `superseded`:
    position deletes that do not apply because a deletion vector replaces them.
    """

    entry: FileEntry
    deletes: Sequence[FileEntry] = ()
    superseded: Sequence[FileEntry] = ()

    @property
    def size(self) -> int:
        """Bytes of the data file."""
        return self.entry.size

    @property
    def deleted_ratio(self) -> float:
        """Ratio of rows that deletes of this very file remove; an upper bound, since positions may repeat."""
        named = takewhile(lambda delete: delete.applies_to is not None, self.deletes)
        deleted = sum(delete.records for delete in named)
        return min(1.0, deleted / self.entry.records) if self.entry.records else 0.0


OWN_DELETES: Final = 64
"""The most delete files that a data file holds in a tuple of its own; more are ends of shared tuples."""
_sequence_number: Final = attrgetter("data_sequence_number")
_live_file: Final = partial(tuple.__new__, LiveFile)  # twice as fast as LiveFile(...)


class LiveFiles(Sequence[LiveFile]):
    """The live files of one partition, in arrival order (data sequence number, then path).

    Their number, `small` and `has_deletes` are known without making objects.
    """

    def __init__(
        self,
        count: int,
        small: Callable[[int], int],
        load: Callable[[], tuple[LiveFile, ...]],
        *,
        has_deletes: bool,
    ) -> None:
        self.small: Final = small
        """The number of files smaller than a number of bytes."""
        self.has_deletes = has_deletes
        self._count = count
        self._load = load

    @classmethod
    def of(cls, files: Sequence[LiveFile]) -> LiveFiles:
        """Files that exist as objects, in arrival order."""
        return cls(
            len(files),
            lambda small_below: sum(file.size < small_below for file in files),
            lambda: tuple(files),
            has_deletes=any(file.deletes for file in files),
        )

    @cached_property
    def files(self) -> tuple[LiveFile, ...]:
        return self._load()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> LiveFile: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[LiveFile, ...]: ...

    def __getitem__(self, index: int | slice) -> LiveFile | tuple[LiveFile, ...]:
        return self.files[index]

    def __iter__(self) -> Iterator[LiveFile]:
        return iter(self.files)


def deletes_of(files: Sequence[LiveFile]) -> Collection[FileEntry]:
    """The delete files that may apply to any of `files`, each once."""
    return {delete.path: delete for delete in of_all(file.deletes for file in files)}.values()


def reads(files: Sequence[LiveFile]) -> list[tuple[int, int, int]]:
    """What is read to rewrite the first file, the first two, and so on: data files, delete files, bytes of both.

    A delete file that applies to several of them counts once; of a Puffin file, only the bytes of vectors that apply.
    """
    known: set[tuple[str, tuple[int, int] | None]] = set()
    paths, size, found = set[str](), 0, []
    unseen = Unseen[FileEntry]()
    for number, file in enumerate(files, 1):
        size += file.size
        for delete in unseen(file.deletes):
            if delete.identity not in known:
                known.add(delete.identity)
                paths.add(delete.path)
                size += delete.size if delete.blob is None else delete.blob[1]
        found.append((number, len(paths), size))
    return found


class DeleteIndex:
    """Finds the delete files that may apply to a data file (spec: scan planning).

    A position delete applies if data.seq <= delete.seq, in its partition or to the file that it names. An equality
    delete applies if data.seq < delete.seq, in its partition, or everywhere if its spec is unpartitioned. A deletion
    vector applies to the file that it names and replaces all position deletes of that file.
    """

    def __init__(
        self, deletes: Sequence[FileEntry], layouts: Mapping[int, PartitionLayout], *, own: int = OWN_DELETES
    ) -> None:
        self.deletes = tuple(deletes)
        self.by_path: dict[str, list[FileEntry]] = defaultdict(list)
        by_partition: dict[PartitionKey, list[FileEntry]] = defaultdict(list)
        everywhere: list[FileEntry] = []
        for delete in deletes:
            if delete.applies_to is not None:
                self.by_path[delete.applies_to].append(delete)
            elif delete.content is Content.EQUALITY_DELETES and layouts[delete.key.spec_id].is_unpartitioned:
                everywhere.append(delete)
            else:
                by_partition[delete.key].append(delete)
        self.by_partition = {key: _Scope.of(found) for key, found in by_partition.items()}
        self.everywhere = _Scope.of(everywhere)
        self._own = own

    def live_file(self, file: FileEntry) -> LiveFile:
        """The data file with the delete files that may apply to it."""
        number = file.data_sequence_number
        in_partition = self.by_partition.get(file.key, NO_DELETES)
        named = tuple(delete for delete in self.by_path.get(file.path, ()) if _applies(delete, file))
        by_value = (in_partition.equality_deletes(number), self.everywhere.equality_deletes(number))
        by_position = in_partition.position_deletes(number)
        if not any(delete.is_deletion_vector for delete in named):
            return LiveFile(file, self._joined((named, 0), by_position, *by_value))
        vectors = tuple(delete for delete in named if not _is_position_delete_file(delete))
        files = tuple(delete for delete in named if _is_position_delete_file(delete))
        return LiveFile(file, self._joined((vectors, 0), *by_value), self._joined((files, 0), by_position))

    def _joined(self, *parts: Part[FileEntry]) -> Sequence[FileEntry]:
        found = Tails(parts)
        return found if len(found) > self._own else tuple(found)


@dataclass(frozen=True)
class _Scope:
    """Delete files that name no data file, of one partition or of all, in the order of their sequence numbers.

    Each once: a file that is listed twice, as after a writer's repeated commit, has the highest number, which covers
    all data files that the lower one covers.
    """

    by_position: tuple[FileEntry, ...] = ()
    by_value: tuple[FileEntry, ...] = ()

    @classmethod
    def of(cls, deletes: Iterable[FileEntry]) -> _Scope:
        highest = {each.identity: each for each in sorted(deletes, key=_sequence_number)}
        ordered = sorted(highest.values(), key=_sequence_number)
        return cls(
            tuple(each for each in ordered if each.content is Content.POSITION_DELETES),
            tuple(each for each in ordered if each.content is Content.EQUALITY_DELETES),
        )

    def __bool__(self) -> bool:
        return bool(self.by_position or self.by_value)

    def position_deletes(self, of_data: int) -> Part[FileEntry]:
        """The deletes that apply to data files of this sequence number."""
        return self.by_position, bisect_left(self.by_position, of_data, key=_sequence_number)

    def equality_deletes(self, of_data: int) -> Part[FileEntry]:
        """The deletes that apply to data files of this sequence number."""
        return self.by_value, bisect_right(self.by_value, of_data, key=_sequence_number)


NO_DELETES: Final = _Scope()


def _applies(delete: FileEntry, file: FileEntry) -> bool:
    """Whether a delete file that names the data file may apply to it; `engine.impossible` handles a deletion vector
    that is older than its data file.
    """
    return delete.is_deletion_vector or file.data_sequence_number <= delete.data_sequence_number


def _is_position_delete_file(delete: FileEntry) -> bool:
    return delete.content is Content.POSITION_DELETES and not delete.is_deletion_vector


class LiveRows:
    """The live files of some manifests, in columns."""

    def __init__(self, manifests: Sequence[EntryColumns]) -> None:
        self._rows = ManifestRows(manifests)
        self._data = self._rows.live_data
        self._sizes = self._rows.numbers("size")
        self._small: dict[int, list[int]] = {}

    def deletes(self) -> list[FileEntry]:
        return self._rows.entries(self._rows.live_delete_rows())

    def by_partition(self, deletes: DeleteIndex) -> dict[PartitionKey, LiveFiles]:
        """The live data files by partition, ordered by key."""
        named = self._data.count_flagged(self._rows.named(deletes.by_path)).tolist() if deletes.by_path else None
        found: dict[PartitionKey, LiveFiles] = {}
        for number, (key, count) in enumerate(zip(self._data.keys, self._data.counts.tolist(), strict=True)):
            is_named = named is not None and named[number] > 0
            has_deletes = is_named or bool(deletes.everywhere) or key in deletes.by_partition
            load = partial(self._load, number, key, deletes)
            found[key] = LiveFiles(count, partial(self._small_files, number), load, has_deletes=has_deletes)
        return {key: found[key] for key in sorted(found)}

    def listed_twice(self, files: Collection[FileEntry]) -> frozenset[str]:
        """The paths of `files` that more than one entry lists: readers see their rows twice, a commit removes both.

        Only entries whose size equals the size of one of `files` are compared by path.
        """
        if not files:
            return frozenset()
        sizes = np.fromiter(map(attrgetter("size"), files), np.int64, len(files))
        near = np.flatnonzero((self._sizes >= sizes.min()) & (self._sizes <= sizes.max()))
        if len(near) > 2 * len(files):  # else comparing sizes costs more than comparing the paths of all
            near = near[np.isin(self._sizes[near], sizes)]
        same_size = near[self._data.holds(near)]
        _, place, entries = np.unique(self._sizes[same_size], return_inverse=True, return_counts=True)
        twice = _more_than_once(self._rows.paths(same_size[entries[place] > 1]))
        if len({file.path for file in files}) < len(files):  # possibly with different sizes
            twice |= _more_than_once(file.path for file in files)
        return frozenset(file.path for file in files if file.path in twice) if twice else frozenset()

    def live_among(self, paths: Collection[str]) -> frozenset[str]:
        """The paths that belong to live data files."""
        named = np.flatnonzero(self._rows.named(paths))
        return frozenset(self._rows.paths(named[self._data.holds(named)]))

    def _small_files(self, partition: int, small_below: int) -> int:
        """Computed for all partitions once per threshold, then cached."""
        found = self._small.get(small_below)
        if found is None:
            found = self._small[small_below] = self._data.count_flagged(self._sizes < small_below).tolist()
        return found[partition]

    def _load(self, partition: int, key: PartitionKey, deletes: DeleteIndex) -> tuple[LiveFile, ...]:
        """The files of one partition; rows of another partition with the same hash are left out."""
        found = self._rows.entries(self._data.rows(partition))
        entries = [entry for entry in found if entry.key == key]
        entries.sort(key=attrgetter("path"))
        entries.sort(key=_sequence_number)  # two sorts by one key are faster than one by two
        if deletes.deletes:
            return tuple(map(deletes.live_file, entries))
        return tuple(map(_live_file, zip(entries, repeat(()), repeat(()))))


def _more_than_once(paths: Iterable[str]) -> set[str]:
    return {path for path, count in Counter(paths).items() if count > 1}
