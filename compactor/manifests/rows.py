"""The rows of several manifests as one table of numbers: group them by partition, make objects of chosen rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from compactor.iceberg.manifest_entries import FileEntry
from compactor.manifests.columns import EntryColumns
from compactor.partitions import PartitionKey

Numbers = npt.NDArray[Any]


class Grouped:
    """Rows by partition, as runs of consecutive rows: most files are listed next to files of the same partition.

    Partitions are numbered; `keys` and `counts` (numbers of rows) are in the order of these numbers.
    """

    def __init__(self, starts: Numbers, ends: Numbers, codes: Numbers, key_of: Callable[[int], PartitionKey]) -> None:
        """Runs in ascending order without overlap; `codes`: the partition of each run; `key_of`: the key of a run."""
        self._starts, self._ends = starts, ends
        self._order = np.argsort(codes, kind="stable")
        runs = np.bincount(codes)
        self._bounds = np.concatenate([[0], np.cumsum(runs[runs > 0])])
        self.keys = [key_of(run) for run in self._order[self._bounds[:-1]].tolist()]
        self.counts = self._by_partition(ends - starts)

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, partition: int) -> Numbers:
        """The rows of one partition, ascending."""
        runs = self._order[self._bounds[partition] : self._bounds[partition + 1]]
        return _expanded(self._starts[runs], self._ends[runs])

    def items(self) -> Iterator[tuple[PartitionKey, Numbers]]:
        """Every partition and its rows, ascending."""
        rows = _expanded(self._starts[self._order], self._ends[self._order])
        return zip(self.keys, np.split(rows, np.cumsum(self.counts)[:-1]) if len(self) else (), strict=True)

    def count_flagged(self, flags: npt.NDArray[np.bool_]) -> Numbers:
        """For each partition, the number of rows whose flag is set; `flags`: one per row."""
        if not len(self):
            return self.counts
        edges = np.stack([self._starts, self._ends], axis=1).ravel()  # every second sum is of rows between runs
        in_runs = np.add.reduceat(np.append(flags, False), edges, dtype=np.int64)[::2]
        return self._by_partition(in_runs)

    def holds(self, rows: Numbers) -> npt.NDArray[np.bool_]:
        """For each of `rows`, whether it lies in any partition."""
        if not len(self):
            return np.zeros(len(rows), np.bool_)
        run = np.searchsorted(self._starts, rows, side="right") - 1
        return (run >= 0) & (rows < self._ends[run])

    def _by_partition(self, of_runs: Numbers) -> Numbers:
        return np.add.reduceat(of_runs[self._order], self._bounds[:-1]) if len(of_runs) else of_runs


def _expanded(starts: Numbers, ends: Numbers) -> Numbers:
    """The row numbers of all runs, run after run."""
    if len(starts) == 1:
        return np.arange(starts[0], ends[0])
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


class ManifestRows:
    """Rows of several manifests, numbered over all manifests in the given order; empty manifests are left out."""

    def __init__(self, manifests: Sequence[EntryColumns]) -> None:
        self._manifests = [each for each in manifests if len(each)]
        counts = [len(each) for each in self._manifests]
        self._count = sum(counts)
        self._starts = np.cumsum([0, *counts])[:-1]

    def numbers(self, name: str) -> Numbers:
        """One column without nulls, for all rows."""
        return _joined([each.numbers(name) for each in self._manifests])

    def snapshot_ids(self) -> Numbers:
        """For each row, the snapshot that added or removed the file; 0 if unknown."""
        filled = [pc.fill_null(each.rows.column("snapshot_id"), 0).to_numpy() for each in self._manifests]
        return _joined(filled)

    @cached_property
    def live_data(self) -> Grouped:
        """The live data files by partition."""
        return self._grouped(data=True)

    @cached_property
    def live_deletes(self) -> Grouped:
        """The live delete files by partition."""
        return self._grouped(data=False)

    def live_delete_rows(self) -> Numbers:
        """The rows of live delete files, ascending."""
        _, _, starts, ends = self._runs(data=False)
        return _expanded(starts, ends)

    def _runs(self, *, data: bool) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """For each run: its manifest, the index of its partition there, its first row, and one past its last row."""
        runs = [each.runs.data if data else each.runs.deletes for each in self._manifests]
        if not any(each.size for each in runs):
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing, nothing
        manifests = np.repeat(np.arange(len(runs)), [each.shape[1] for each in runs])
        partitions, starts, ends = np.concatenate(runs, axis=1, dtype=np.int64)
        row = self._starts[manifests]
        return manifests, partitions, starts + row, ends + row

    def _grouped(self, *, data: bool) -> Grouped:
        """Hashes distinct partitions and sorts runs, not rows, to be fast."""
        manifests, partitions, starts, ends = self._runs(data=data)
        codes, first = self._partition_codes

        def key_of(run: int) -> PartitionKey:
            key: PartitionKey = self._manifests[manifests[run]].partitions.key(int(partitions[run]))[0]
            return key

        return Grouped(starts, ends, codes[first[manifests] + partitions], key_of)

    @cached_property
    def _partition_codes(self) -> tuple[Numbers, Numbers]:
        """A number for each partition of each manifest, and the position of each manifest's first partition."""
        distinct = {id(each.partitions): each.partitions.hashes for each in self._manifests}
        codes, found = pd.factorize(_joined([*distinct.values()]))
        if len(found) <= np.iinfo(np.uint16).max:  # NumPy sorts 16-bit numbers in linear time
            codes = codes.astype(np.uint16)
        own = dict(zip(distinct, np.cumsum([0, *map(len, distinct.values())]).tolist(), strict=False))
        return codes, np.array([own[id(each.partitions)] for each in self._manifests], np.int64)

    def entries(self, rows: Numbers) -> list[FileEntry]:
        """Rows as objects, ordered by number."""
        return [entry for columns, within in self._by_manifest(rows) for entry in columns.entries(within)]

    def paths(self, rows: Numbers) -> Iterator[str]:
        """Paths of rows, ordered by number."""
        for columns, within in self._by_manifest(rows):
            yield from columns.paths(within)

    def named(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """For each row, whether `paths` holds its path."""
        if not paths:
            return np.zeros(self._count, dtype=np.bool_)
        return _joined([each.named(paths) for each in self._manifests]).astype(np.bool_)

    def _manifest_of(self, rows: Any) -> Any:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _by_manifest(self, rows: Numbers) -> Iterator[tuple[EntryColumns, Numbers]]:
        rows = np.sort(rows)
        manifests = self._manifest_of(rows)
        for part in np.split(rows, np.flatnonzero(np.diff(manifests)) + 1):
            if len(part):
                manifest = int(self._manifest_of(part[0]))
                yield self._manifests[manifest], part - self._starts[manifest]


def _joined(arrays: Sequence[Numbers]) -> Numbers:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
