"""When deletes make a rewrite worth its cost, under any policy. Pure.

Cost and benefit are counted in file opens; what opening a file costs a scan is worth `OPEN_BYTES` of reading, as in
Iceberg's own split planning. A rewrite saves every later scan the files that leave, data and delete files, and the rows
that are dropped; it costs a commit, the files it reads and writes, and its bytes twice.

*Bound.* Files are rewritten for the sake of deletes only where that has a positive `net`: so it reads at most
`PAYBACK_SCANS * OPEN_BYTES / 2` = 8 MiB for each file that leaves, and twice the bytes that are dropped. Each file that
a writer adds, data or delete file, leaves once. This comes on top of the rewrites that the tiers bound (tiers.py), and
of two that are due whatever they cost: of files that are not small, which drop a share of their bytes
(`delete_ratio_threshold`) or a number of delete files that grows with their size (`equality_delete_threshold`), and of
small files with as many deletes in a partition at rest, once for each time that a writer comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compactor.debt.board import PartitionCounts
from compactor.iceberg.manifest_entries import Content
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile
from compactor.settings.policy import PolicyValues

OPEN_BYTES = 4 * 1024 * 1024
"""Bytes that a scan reads in the time that opening a file takes: Iceberg's default of `read.split.open-file-cost`."""
COMMIT_OPENS = 64
"""What one commit costs, in file opens: catalog calls, manifests to write, and the chance to meet a writer's commit."""
PAYBACK_SCANS = 4
"""A rewrite for the sake of deletes must pay for itself within so many scans."""


@dataclass(frozen=True)
class Saving:
    """What rewriting some files of a partition saves each scan, and what it costs once, in file opens."""

    saved: float
    cost: float

    @property
    def net(self) -> float:
        """What is left after `PAYBACK_SCANS` scans."""
        return PAYBACK_SCANS * self.saved - self.cost


def saving(files: Sequence[LiveFile], chosen: AbstractSet[int], outputs: int) -> Saving:
    """Of rewriting `chosen`, indexes of a partition's `files`, into `outputs` files.

    A delete file leaves where it applies to no other file of the partition. A global one (of an unpartitioned spec, in
    a partitioned table) may apply to files elsewhere: it counts as one that stays.
    """
    needed = {delete.identity for index, file in enumerate(files) if index not in chosen for delete in file.deletes}
    rewritten = [files[index] for index in chosen]
    deletes = {delete.identity: delete.key == file.entry.key for file in rewritten for delete in file.deletes}
    leaving = sum(own and identity not in needed for identity, own in deletes.items())
    size = sum(file.size for file in rewritten)
    dropped = sum(file.deleted_ratio * file.size for file in rewritten)
    saved = len(rewritten) - outputs + leaving + dropped / OPEN_BYTES
    return Saving(saved, len(rewritten) + len(deletes) + outputs + 2 * size / OPEN_BYTES)


@dataclass(frozen=True)
class DeleteRules:
    """When deletes make a file or a partition due, under any policy."""

    values: PolicyValues
    sizes: FileSizes

    def heavy(self, files: Sequence[LiveFile]) -> frozenset[int]:
        """Indexes of the files of which so much is deleted, or by so many files, that they are due by themselves."""
        return frozenset(index for index, file in enumerate(files) if file.deletes and self._heavy(file))

    def slow_to_read(self, files: Sequence[LiveFile]) -> frozenset[int]:
        """Indexes of the files that are due for their equality deletes.

        A delete file leaves only with the last file that it applies to. So where one file is due, small ones go with it
        that have at least half of the most, and where a file that is not small is due, others at half their own count.
        """
        if all(len(file.deletes) < self.values.equality_delete_threshold for file in files):
            return frozenset()
        counts = [sum(each.content is Content.EQUALITY_DELETES for each in file.deletes) for file in files]
        due = {index for index, (file, count) in enumerate(zip(files, counts, strict=True)) if self._slow(file, count)}
        if not due:
            return frozenset()
        most, large = max(counts), any(not self.sizes.is_small(files[index].size) for index in due)
        for index, (file, count) in enumerate(zip(files, counts, strict=True)):
            if 2 * count >= most if self.sizes.is_small(file.size) else large and self._slow(file, 2 * count):
                due.add(index)
        return frozenset(due)

    def _heavy(self, file: LiveFile) -> bool:
        return (
            len(file.deletes) >= self.values.delete_file_threshold
            or file.deleted_ratio >= self.values.delete_ratio_threshold
        )

    def _slow(self, file: LiveFile, equality_deletes: int) -> bool:
        """Whether its equality deletes are enough, and applying them pays: a file of 512 MiB is due from 64 of them."""
        return equality_deletes >= max(
            self.values.equality_delete_threshold, 2 * file.size / (PAYBACK_SCANS * OPEN_BYTES)
        )

    def judge(self, counts: PartitionCounts) -> str | None:
        """Why a partition may hold a heavy file, or deletes that apply to nothing; None if that is unlikely.

        A guess: the ledger does not know which file a delete names. The files themselves settle it.
        """
        ratio = counts.deleted_records / counts.records if counts.records else 0.0
        if ratio >= self.values.delete_ratio_threshold:
            return f"{ratio:.0%} of rows deleted, threshold {self.values.delete_ratio_threshold:.0%}"
        if counts.delete_files >= self.values.delete_file_threshold:
            return f"{counts.delete_files} delete files, threshold {self.values.delete_file_threshold}"
        if counts.equality_deletes >= self.values.equality_delete_threshold:
            return f"{counts.equality_deletes} equality delete files, threshold {self.values.equality_delete_threshold}"
        if self._may_hold_a_heavy_file(counts):
            return f"{counts.deleted_records} rows deleted: enough to make one of its files due"
        if self.more_deletes_than_files(counts):
            return f"{counts.delete_files} delete files for {counts.data_files} data files: some may apply to none"
        return None

    @staticmethod
    def more_deletes_than_files(counts: PartitionCounts) -> bool:
        """Whether vectors or position deletes must have lost their data files, as far as each names one."""
        return counts.delete_files - counts.equality_deletes > counts.data_files

    def may_pay(self, counts: PartitionCounts) -> bool:
        """Whether rewriting all of a partition's small files could pay, were they full of deletes: never False where
        it pays.
        """
        most = counts.small_files + counts.delete_files + counts.small_bytes / OPEN_BYTES
        return PAYBACK_SCANS * most >= COMMIT_OPENS

    def _may_hold_a_heavy_file(self, counts: PartitionCounts) -> bool:
        """Whether all deletes together would reach the threshold in the smallest file there can be, by average rows."""
        if not counts.deleted_records or not counts.data_bytes:
            return False
        smallest = self.sizes.small_below
        if counts.small_files:
            smallest = min(smallest, counts.small_bytes // counts.small_files)
        smallest = min(smallest, counts.data_bytes // max(1, counts.data_files))
        rows = counts.records * smallest / counts.data_bytes
        return counts.deleted_records >= self.values.delete_ratio_threshold * rows
