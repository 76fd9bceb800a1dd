"""Policy: is a partition due, and which of its files are merged. Pure: counts or files in, a judgement out.

`ThresholdPolicy` decides as Spark's `rewrite_data_files` does by default (SizeBasedFileRewritePlanner and
BinPackRewriteFilePlanner): files below 75 % of the target are small; a partition is due from `min_input_files` of
them, or from two that together exceed the target, or when deletes outgrow their thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compactor.debt import PartitionCounts
from compactor.inventory import LiveFile
from compactor.settings import PolicyValues
from compactor.tables import FileSizes

FEWEST_TO_MERGE = 2  # merging one file with nothing changes nothing


@dataclass(frozen=True)
class Judgement:
    """Whether a partition is due, and why or why not, in words for people."""

    due: bool
    why: str


@dataclass(frozen=True)
class Choice:
    """The files of one partition to merge, in the order given; empty when the partition is not due."""

    files: tuple[LiveFile, ...]
    why: str


class Policy(Protocol):
    """What the debt board and the planner ask. Implementations are pure and frozen."""

    def judge(self, counts: PartitionCounts) -> Judgement:
        """From the ledger's counts alone: is planning this partition worth the look?"""
        ...

    def choose(self, files: Sequence[LiveFile]) -> Choice:
        """From the files themselves: which are merged."""
        ...


@dataclass(frozen=True)
class ThresholdPolicy:
    """Spark's thresholds. `force` merges every small file whatever the thresholds (two are enough)."""

    values: PolicyValues
    sizes: FileSizes
    force: bool = False

    def judge(self, counts: PartitionCounts) -> Judgement:
        """Due by the count or bytes of small files, by the share of rows deleted, or by deletes that may hit one file.

        The last is a guess: the ledger does not know which file a delete names. `choose` settles it.
        """
        small = counts.small_files
        if small >= FEWEST_TO_MERGE and self._enough(small, counts.small_bytes):
            return Judgement(True, self._why_merge(small, counts.small_bytes))
        ratio = counts.deleted_records / counts.records if counts.records else 0.0
        if ratio >= self.values.delete_ratio_threshold:
            return Judgement(True, f"{ratio:.0%} of rows deleted, threshold {self.values.delete_ratio_threshold:.0%}")
        if counts.delete_files >= self.values.delete_file_threshold:
            return Judgement(True, f"{counts.delete_files} delete files, threshold {self.values.delete_file_threshold}")
        if self._may_hold_a_delete_heavy_file(counts):
            return Judgement(True, f"{counts.deleted_records} rows deleted: enough to make one of its files due")
        return Judgement(False, f"{small} small files, due from {self.values.min_input_files}")

    def choose(self, files: Sequence[LiveFile]) -> Choice:
        """Small and delete-heavy files, when together they pass a threshold."""
        heavy = [file for file in files if self._delete_heavy(file)]
        chosen = tuple(file for file in files if self.sizes.is_small(file.size) or self._delete_heavy(file))
        total = sum(file.size for file in chosen)
        if heavy:
            return Choice(chosen, f"{len(heavy)} files with too many deletes, {len(chosen)} files in all")
        if len(chosen) >= FEWEST_TO_MERGE and self._enough(len(chosen), total):
            return Choice(chosen, self._why_merge(len(chosen), total))
        return Choice((), f"{len(chosen)} small files, due from {self.values.min_input_files}")

    def _may_hold_a_delete_heavy_file(self, counts: PartitionCounts) -> bool:
        """Whether all deletes together would reach the threshold in the smallest file there can be, by average rows."""
        if not counts.deleted_records or not counts.data_bytes:
            return False
        smallest = self.sizes.small_below
        if counts.small_files:
            smallest = min(smallest, counts.small_bytes // counts.small_files)
        smallest = min(smallest, counts.data_bytes // max(1, counts.data_files))
        rows = counts.records * smallest / counts.data_bytes
        return counts.deleted_records >= self.values.delete_ratio_threshold * rows

    def _enough(self, files: int, total: int) -> bool:
        return self.force or files >= self.values.min_input_files or total > self.sizes.target

    def _why_merge(self, files: int, total: int) -> str:
        if files >= self.values.min_input_files:
            return f"{files} small files, due from {self.values.min_input_files}"
        if total > self.sizes.target:
            return f"{files} small files exceed the target together"
        return f"{files} small files, forced"

    def _delete_heavy(self, file: LiveFile) -> bool:
        return (
            len(file.deletes) >= self.values.delete_file_threshold
            or file.deleted_ratio >= self.values.delete_ratio_threshold
        )
