"""Policy: is a partition due, and which of its files are merged. Pure: counts or files in, a judgement out.

`TieredPolicy` (tiered_policy.py) is what the service follows by default. `ThresholdPolicy` decides as Spark's
`rewrite_data_files` does by default (SizeBasedFileRewritePlanner and BinPackRewriteFilePlanner): files below 75 % of
the target are small; a partition is due from `min_input_files` of them, or from two that together exceed the target,
or when deletes outgrow their thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from compactor.debt.board import PartitionCounts
from compactor.debt.tiers import evenly
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles
from compactor.planning.delete_rules import DeleteRules
from compactor.settings.policy import PolicyValues

FEWEST_TO_MERGE = 2  # merging one file with nothing changes nothing
ROUND_UP_FROM = 0.75
"""A last output is split off when it would reach 75 % of the target: outputs then average 87.5 to 175 % of the target
(a single output less, when there is no more), inside the 75 to 180 % that count as healthy."""


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


AgeOf = Callable[[LiveFile], float]


def new(_file: LiveFile) -> float:
    """The age of files whose age nobody knows: too young for anything to be due by it."""
    return 0.0


class Policy(Protocol):
    """What the debt board and the planner ask. Implementations are pure and frozen."""

    def judge(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> Judgement:
        """From the ledger's counts alone: is planning this partition worth the look?

        `idle_seconds`: how long ago a writer last committed to it.
        """
        ...

    def glance(self, files: LiveFiles) -> str | None:
        """From sizes alone: why none of the files would be chosen, None if only a closer look can tell."""
        ...

    def choose(self, files: Sequence[LiveFile], idle_seconds: float = 0.0, age_of: AgeOf = new) -> Choice:
        """From the files themselves: which are merged. `age_of`: seconds since a file was written."""
        ...

    def cut(self, files: Sequence[LiveFile]) -> list[tuple[int, int]]:
        """(start, end) of each run of the files that becomes one output."""
        ...


def output_count(total_bytes: int, target: int) -> int:
    """How many outputs `total_bytes` become by thresholds, at least one."""
    whole, rest = divmod(total_bytes, target)
    return max(1, whole + (1 if rest >= ROUND_UP_FROM * target else 0))


LOOKS_PER_AGE = 4


@dataclass(frozen=True)
class AgeRule:
    """When a partition's small files are due by the age of the oldest of them, under any policy."""

    values: PolicyValues

    def judge(self, counts: PartitionCounts, idle_seconds: float) -> str | None:
        """Why the files are to be looked at, None if the rule is off.

        The ledger knows no ages. The reason changes four times an age, and with it a look that found nothing is over.
        """
        oldest = self.values.max_small_file_age_seconds
        if oldest is None or counts.small_files < FEWEST_TO_MERGE:
            return None
        look = int((counts.changed_ms / 1000 + idle_seconds) / (oldest / LOOKS_PER_AGE))
        return f"{counts.small_files} small files, to be looked at for one older than {oldest:g} s (look {look})"

    def why(self, small: Sequence[LiveFile], age_of: AgeOf) -> str | None:
        """Why these small files are merged, None if none of them is too old."""
        oldest = self.values.max_small_file_age_seconds
        if oldest is None or len(small) < FEWEST_TO_MERGE or max(map(age_of, small)) < oldest:
            return None
        return f"{len(small)} small files, the oldest older than {oldest:g} s"


@dataclass(frozen=True)
class ThresholdPolicy:
    """Spark's thresholds. `force` merges every small file whatever the thresholds (two are enough).

    `everything` takes every file, healthy ones too, as Spark's `rewrite-all`.
    """

    values: PolicyValues
    sizes: FileSizes
    force: bool = False
    everything: bool = False

    def judge(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> Judgement:
        """Due by the count, bytes or age of small files, or by deletes."""
        small = counts.small_files
        if small >= FEWEST_TO_MERGE and self._enough(small, counts.small_bytes):
            return Judgement(True, self._why_merge(small, counts.small_bytes))
        other = DeleteRules(self.values, self.sizes).judge(counts) or AgeRule(self.values).judge(counts, idle_seconds)
        if other is not None:
            return Judgement(True, other)
        return Judgement(False, self._why_not(small))

    def glance(self, files: LiveFiles) -> str | None:
        """Without deletes, one small file cannot become fewer."""
        small = files.small(self.sizes.small_below)
        enough = self.everything or files.has_deletes or small >= FEWEST_TO_MERGE
        return None if enough else self._why_not(small)

    def choose(
        self,
        files: Sequence[LiveFile],
        idle_seconds: float = 0.0,  # noqa: ARG002 - idleness is no rule of Spark's
        age_of: AgeOf = new,
    ) -> Choice:
        """Small and delete-heavy files, when together they pass a threshold."""
        if self.everything:
            return Choice(tuple(files), f"all {len(files)} files, as asked for")
        rules = DeleteRules(self.values, self.sizes)
        heavy = rules.heavy(files) | rules.slow_to_read(files)
        chosen = tuple(file for index, file in enumerate(files) if self.sizes.is_small(file.size) or index in heavy)
        total = sum(file.size for file in chosen)
        if heavy:
            return Choice(chosen, f"{len(heavy)} files with too many deletes, {len(chosen)} files in all")
        if len(chosen) >= FEWEST_TO_MERGE and self._enough(len(chosen), total):
            return Choice(chosen, self._why_merge(len(chosen), total))
        too_old = AgeRule(self.values).why(chosen, age_of)
        return Choice((), self._why_not(len(chosen))) if too_old is None else Choice(chosen, too_old)

    def cut(self, files: Sequence[LiveFile]) -> list[tuple[int, int]]:
        """Runs of about equal bytes, as many as bytes and target say."""
        sizes = [file.size for file in files]
        return evenly(sizes, output_count(sum(sizes), self.sizes.target))

    def _why_not(self, small: int) -> str:
        return f"{small} small files, due from {self.values.min_input_files}"

    def _enough(self, files: int, total: int) -> bool:
        return self.force or files >= self.values.min_input_files or total > self.sizes.target

    def _why_merge(self, files: int, total: int) -> str:
        if files >= self.values.min_input_files:
            return f"{files} small files, due from {self.values.min_input_files}"
        if total > self.sizes.target:
            return f"{files} small files exceed the target together"
        return f"{files} small files, forced"
