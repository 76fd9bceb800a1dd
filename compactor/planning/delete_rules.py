"""When deletes make a rewrite worth its cost, under any policy. Pure.

Costs and savings are counted in file opens; one open costs a scan as much as reading `OPEN_BYTES`, as in Iceberg's own
split planning. A rewrite saves every later scan the data and delete files that leave and the rows that are dropped. It
costs a commit, the files that it reads and writes, and its bytes twice.

*Bound.* Files are rewritten because of deletes only if `net` is positive: such rewrites read at most
`PAYBACK_SCANS * OPEN_BYTES / 2` = 8 MiB for each file that leaves, and twice the dropped bytes. Each file that a writer
adds, data or delete file, leaves once; an output that holds deleted rows adds a delete file. These rewrites are in
addition to those that the tiers bound (tiers.py), and to two kinds that are due at any cost: files that are not small
and drop a ratio of their bytes (`delete_ratio_threshold`) or a number of delete files that grows with their size
(`equality_delete_threshold`); and small files with as many deletes in an idle partition, once after each time that a
writer committed.

*Position deletes that name no data file* (V2, written one for each partition) may apply to every older file of their
partition; their rows per file are unknown. In an idle partition these files are rewritten together, if such deletes
reach `delete_ratio_threshold` of their rows. This ends: a delete file that is older than a file does not apply to it,
and an output is as new as the snapshot that was planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.debt.board import PartitionCounts
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile
from compactor.manifests.tails import of_all, only
from compactor.settings.policy import PolicyValues

OPEN_BYTES = 4 * 1024 * 1024
"""Bytes that a scan reads in the time of one file open: Iceberg's default of `read.split.open-file-cost`."""
COMMIT_OPENS = 64
"""The cost of a commit in file opens: catalog calls, manifests to write, and the risk of a conflict with a writer."""
PAYBACK_SCANS = 4
"""The number of scans within which a rewrite because of deletes must pay off."""

WIDEST_ROWS = 16.0
"""How many times wider than the partition's average the rows of one file may be, if a plan shall find its deletes."""


@dataclass(frozen=True)
class Saving:
    """File opens that a rewrite of some files of a partition saves each scan, and that it costs once."""

    saved: float
    cost: float

    @property
    def net(self) -> float:
        """Savings minus cost after `PAYBACK_SCANS` scans."""
        return PAYBACK_SCANS * self.saved - self.cost


def saving(files: Sequence[LiveFile], chosen: AbstractSet[int], outputs: int, most_carried: float = 0.0) -> Saving:
    """The saving of rewriting `chosen` (indexes of a partition's `files`) into `outputs` files.

    `most_carried`: fraction of deleted rows up to which the outputs hold them: then each output has a delete file.

    A delete file leaves if it applies to no other file of the partition. A global delete file (of an unpartitioned
    spec, in a partitioned table) may apply to files of other partitions: it counts as staying.
    """
    others = (file.deletes for index, file in enumerate(files) if index not in chosen)
    needed = {delete.identity for delete in of_all(others)}
    rewritten = [files[index] for index in chosen]
    key = files[0].entry.key if files else None
    deletes = {delete.identity: delete.key == key for delete in of_all(file.deletes for file in rewritten)}
    leaving = sum(own and identity not in needed for identity, own in deletes.items())
    size = sum(file.size for file in rewritten)
    carried = few_deletes(rewritten, most_carried)
    dropped = 0.0 if carried else sum(file.deleted_ratio * file.size for file in rewritten)
    added = outputs if carried and deletes else 0
    saved = len(rewritten) - outputs + leaving - added + dropped / OPEN_BYTES
    return Saving(saved, len(rewritten) + len(deletes) + outputs + added + 2 * size / OPEN_BYTES)


def few_deletes(files: Sequence[LiveFile], most_carried: float) -> bool:
    """Whether so few rows are deleted that the outputs may hold them.

    An estimate: positions may repeat, and a delete file of a partition may name rows of other files. A deleted key
    counts as one row, as where keys are unique; how many it deletes is known once the key columns are read.
    """
    deletes = {delete.identity: delete for delete in of_all(file.deletes for file in files)}.values()
    return sum(delete.records for delete in deletes) <= most_carried * sum(file.entry.records for file in files)


def nameless_deletes(files: Sequence[LiveFile]) -> tuple[frozenset[int], float]:
    """Indexes of the files to which position deletes apply that name no data file, and the ratio of their rows that
    these delete: an upper bound, since positions may repeat, and rows may be of files that are gone.
    """
    nameless = only(_is_nameless)
    found = {index: kept for index, file in enumerate(files) if (kept := nameless(file.deletes))}
    rows = sum(files[index].entry.records for index in found)
    deleted = {delete.identity: delete.records for delete in of_all(found.values())}
    return frozenset(found), min(1.0, sum(deleted.values()) / rows) if rows else 0.0


def is_by_value(delete: FileEntry) -> bool:
    """Whether it is an equality delete."""
    return delete.content is Content.EQUALITY_DELETES


def _is_nameless(delete: FileEntry) -> bool:
    return delete.content is Content.POSITION_DELETES and delete.applies_to is None


@dataclass(frozen=True)
class DeleteRules:
    """When deletes make a file or a partition due, under any policy."""

    values: PolicyValues
    sizes: FileSizes

    def heavy(self, files: Sequence[LiveFile]) -> frozenset[int]:
        """Indexes of the files that are due by the ratio of their deleted rows, or by the number of their deletes."""
        return frozenset(index for index, file in enumerate(files) if file.deletes and self._heavy(file))

    def slow_to_read(self, files: Sequence[LiveFile]) -> frozenset[int]:
        """Indexes of the files that are due because of their equality deletes.

        A delete file leaves only with the last file that it applies to. So if one file is due, small files with at
        least half of the most deletes are rewritten too; and if a file that is not small is due, other files that are
        not small are due from half of their own threshold.
        """
        if all(len(file.deletes) < self.values.equality_delete_threshold for file in files):
            return frozenset()
        by_value = only(is_by_value)
        counts = [len(by_value(file.deletes)) for file in files]
        counted = list(zip(files, counts, strict=True))
        due = {index for index, (file, count) in enumerate(counted) if self._slow(file.size, count)}
        if not due:
            return frozenset()
        most, large = max(counts), any(not self.sizes.is_small(files[index].size) for index in due)
        for index, (file, count) in enumerate(counted):
            if 2 * count >= most if self.sizes.is_small(file.size) else large and self._slow(file.size, 2 * count):
                due.add(index)
        return frozenset(due)

    def nameless(self, files: Sequence[LiveFile]) -> frozenset[int]:
        """Indexes of the files that position deletes which name no data file may apply to, if these delete as great a
        ratio of their rows as makes a file due.
        """
        covered, ratio = nameless_deletes(files)
        return covered if ratio >= self.values.delete_ratio_threshold else frozenset()

    def why_nameless_wait(self, files: Sequence[LiveFile], until: str) -> str | None:
        """Why files with so many such deletes are left alone for now, and what can be done; None if there are none.

        `until`: what they wait for, as the end of a sentence.
        """
        covered, ratio = nameless_deletes(files)
        if ratio < self.values.delete_ratio_threshold:
            return None
        return (
            f"position deletes that name no data file delete up to {ratio:.0%} of the rows of {len(covered)} files; "
            f"{until}"
        )

    def large_bytes(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> int:
        """Bytes of files that are not small and that a plan reads because of their deletes, if the partition is due.

        An estimate: at most so many, if all rows and all large files are equally large. Without conversions, which read
        key columns only, and without `delete_file_threshold`: the ledger does not know how many delete files each file
        has. Too much would be worse than too little: the table would wait for budgets that it does not need.
        """
        files, size = counts.data_files - counts.small_files, counts.data_bytes - counts.small_bytes
        if files <= 0 or not counts.delete_files or self.judge(counts, idle_seconds) is None:
            return 0
        if self._slow(size // files, counts.equality_deletes):
            return size
        rows = counts.deleted_records / self.values.delete_ratio_threshold  # of files that just reach the threshold
        return min(size, math.ceil(counts.data_bytes * rows / counts.records)) if counts.records else 0

    def _heavy(self, file: LiveFile) -> bool:
        return (
            len(file.deletes) >= self.values.delete_file_threshold
            or file.deleted_ratio >= self.values.delete_ratio_threshold
        )

    def _slow(self, size: int, equality_deletes: int) -> bool:
        """Whether a file has enough equality deletes that applying them pays; 512 MiB are due from 64 delete files."""
        return equality_deletes >= max(self.values.equality_delete_threshold, 2 * size / (PAYBACK_SCANS * OPEN_BYTES))

    def judge(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> str | None:
        """Why a partition may hold a file that is due by its deletes, or deletes that apply to nothing; else None.

        An estimate, since the ledger does not know which file a delete names, nor how many rows a file has. The plan
        decides by the files. In an idle partition, one plan more costs little: there, a file may have far fewer rows
        than its size lets expect.
        """
        ratio = counts.deleted_records / counts.records if counts.records else 0.0
        if ratio >= self.values.delete_ratio_threshold:
            return f"{ratio:.0%} of rows deleted, threshold {self.values.delete_ratio_threshold:.0%}"
        if counts.delete_files >= self.values.delete_file_threshold:
            return f"{counts.delete_files} delete files, threshold {self.values.delete_file_threshold}"
        if self.slow(counts):
            return f"{counts.equality_deletes} equality delete files, threshold {self._most_equality_deletes}"
        wide = WIDEST_ROWS if idle_seconds >= self.values.settle_after_seconds else 1.0
        if self._may_hold_a_heavy_file(counts, wide):
            return f"{counts.deleted_records} rows deleted: enough to make one of its files due"
        if self.more_deletes_than_files(counts):
            return f"{counts.delete_files} delete files for {counts.data_files} data files: some may apply to none"
        return None

    def slow(self, counts: PartitionCounts) -> bool:
        """Whether a partition has so many equality deletes that they are converted or, in some file, applied."""
        return counts.equality_deletes >= self._most_equality_deletes

    @property
    def _most_equality_deletes(self) -> int:
        converted, applied = self.values.convert_equality_deletes, self.values.equality_delete_threshold
        return applied if converted is None else min(converted, applied)

    def conversion_due(self, counts: PartitionCounts) -> bool:
        """Whether the service converts the table's equality deletes because of this partition."""
        limit = self.values.convert_equality_deletes
        return limit is not None and counts.equality_deletes >= limit

    @staticmethod
    def more_deletes_than_files(counts: PartitionCounts) -> bool:
        """Whether some deletion vectors or position deletes have lost their data files, if each names one file."""
        return counts.delete_files - counts.equality_deletes > counts.data_files

    def may_pay(self, counts: PartitionCounts) -> bool:
        """Whether a rewrite of all small files could pay if they were full of deletes; False only if it cannot."""
        most = counts.small_files + counts.delete_files + counts.small_bytes / OPEN_BYTES
        return PAYBACK_SCANS * most >= COMMIT_OPENS

    def _may_hold_a_heavy_file(self, counts: PartitionCounts, row_width: float) -> bool:
        """Whether all deletes together would reach the threshold in the smallest possible file.

        `row_width`: bytes of a row in that file, as a multiple of the partition's average.
        """
        if not counts.deleted_records or not counts.data_bytes:
            return False
        smallest = self.sizes.small_below
        if counts.small_files:
            smallest = min(smallest, counts.small_bytes // counts.small_files)
        smallest = min(smallest, counts.data_bytes // max(1, counts.data_files))
        rows = counts.records * smallest / counts.data_bytes / row_width
        return counts.deleted_records >= self.values.delete_ratio_threshold * rows
