"""The rows of several manifests as one table of numbers: grouped by partition, made into objects where wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from compactor.manifest_columns import CONTENT, EntryColumns
from compactor.manifests import Content, FileEntry, Status
from compactor.partitions import PartitionKey

Numbers = npt.NDArray[Any]
_DATA = CONTENT.index(Content.DATA)


class ManifestRows:
    """Rows are known by their number over all manifests, in the order given. Manifests without entries are left out."""

    def __init__(self, manifests: Sequence[EntryColumns]) -> None:
        self._manifests = [each for each in manifests if len(each)]
        counts = [len(each) for each in self._manifests]
        self._count = sum(counts)
        self._starts = np.cumsum([0, *counts])[:-1]
        live = self.numbers("status") != Status.DELETED.value
        is_data = self.numbers("content") == _DATA
        self.live_data: Numbers = _places(live & is_data)
        self.live_deletes: Numbers = _places(live & ~is_data)

    def numbers(self, name: str) -> Numbers:
        """A column without nulls, row by row."""
        return _joined([each.numbers(name) for each in self._manifests])

    def snapshot_ids(self) -> Numbers:
        """The snapshot that added or removed each row's file, 0 if unknown."""
        filled = [pc.fill_null(each.rows.column("snapshot_id"), 0).to_numpy() for each in self._manifests]
        return _joined(filled)

    def by_partition(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """The rows ordered by partition, and where each partition ends in that order."""
        everything = len(rows) == self._count  # then there is nothing to pick
        codes = self._partition_codes() if everything else self._partition_codes()[rows]
        counts = np.bincount(codes)
        ends: Numbers = np.cumsum(counts[counts > 0])
        order = np.argsort(codes, kind="stable")
        return order if everything else rows[order], ends

    def _partition_codes(self) -> Numbers:
        """A number for each partition, row by row. Only distinct partitions are hashed, not rows."""
        distinct = {id(each.partitions): each.partitions.hashes for each in self._manifests}
        codes, found = pd.factorize(_joined([*distinct.values()]))
        if len(found) <= np.iinfo(np.uint16).max:  # what NumPy sorts in linear time
            codes = codes.astype(np.uint16)
        starts = np.cumsum([0, *map(len, distinct.values())])
        own = {name: codes[start:] for name, start in zip(distinct, starts.tolist(), strict=False)}
        return _joined([own[id(each.partitions)][each.numbers("partition")] for each in self._manifests])

    def key(self, row: int) -> PartitionKey:
        """The partition of one row."""
        manifest = int(self._manifest_of(row))
        columns = self._manifests[manifest]
        index = int(columns.numbers("partition")[row - self._starts[manifest]])
        key: PartitionKey = columns.partitions.key(index)[0]
        return key

    def entries(self, rows: Numbers) -> list[FileEntry]:
        """Rows as objects, ordered by number."""
        return [entry for columns, within in self._by_manifest(rows) for entry in columns.entries(within)]

    def paths(self, rows: Numbers) -> Iterator[str]:
        """Paths of rows, ordered by number."""
        for columns, within in self._by_manifest(rows):
            yield from columns.paths(within)

    def named(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """Row by row, whether the path is one of these."""
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


def _places(flags: npt.NDArray[np.bool_]) -> Numbers:
    return np.arange(len(flags)) if flags.all() else np.flatnonzero(flags)


def _joined(arrays: Sequence[Numbers]) -> Numbers:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
