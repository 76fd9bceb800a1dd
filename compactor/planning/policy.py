"""Policy: whether a partition is due, and which of its files are merged. Pure: counts or files in, a judgement out.

The service uses `TieredPolicy` (tiered_policy.py) by default. `ThresholdPolicy` decides as Spark's `rewrite_data_files`
does by default (SizeBasedFileRewritePlanner and BinPackRewriteFilePlanner): files below 75 % of the target are small; a
partition is due from `min_input_files` small files, from two small files that exceed the target together, or when
deletes exceed their thresholds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.debt.board import PartitionCounts
from compactor.debt.tiers import near_target
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles
from compactor.planning.delete_rules import DeleteRules
from compactor.settings.policy import PolicyValues

FEWEST_TO_MERGE = 2  # rewriting a single file does not reduce the number of files


@dataclass(frozen=True)
class Judgement:
    """Whether a partition is due, and why or why not, for people. `large_bytes`: see `PartitionDebt`."""

    due: bool
    why: str
    large_bytes: int = 0


@dataclass(frozen=True)
class Choice:
    """The files of one partition to merge, in the given order; empty if the partition is not due.

    `by_group`: a file group of some of them is rewritten only if `choose` would choose files of it alone.
    """

    files: tuple[LiveFile, ...]
    why: str
    by_group: bool = False


NAMELESS_BY_NUMBER = "as in Spark, only their number counts (policy.delete_file_threshold)"
AgeOf = Callable[[LiveFile], float]


def unknown_age(_file: LiveFile) -> float:
    """Default age: zero, so that age rules never apply."""
    return 0.0


LOOKS_PER_AGE = 4


def look_for_age(values: PolicyValues, counts: PartitionCounts, idle_seconds: float) -> str | None:
    """Why a plan has to look at the ages of the small files, under any policy; None if age makes nothing due.

    The ledger does not know ages. The reason changes `LOOKS_PER_AGE` times per maximum age, so that a partition
    that a plan declined is looked at again.
    """
    oldest = values.max_small_file_age_seconds
    if oldest is None or counts.small_files < FEWEST_TO_MERGE:
        return None
    look = int((counts.changed_ms / 1000 + idle_seconds) / (max(1.0, oldest) / LOOKS_PER_AGE))
    return f"{counts.small_files} small files, check for one older than {oldest:g} s (check {look})"


def all_reasons(*reasons: str | None) -> str | None:
    """The reasons that are known, as one; None if none is.

    A plan may find that one of them does not hold, and its decision is valid while the text stays the same: the text
    must change when one more reason holds, e.g. when the partition becomes idle.
    """
    return "; ".join(filter(None, reasons)) or None


def due_by_age(values: PolicyValues, small: Sequence[LiveFile], age_of: AgeOf) -> str | None:
    """Why these small files are merged, under any policy; None if none is too old."""
    oldest = values.max_small_file_age_seconds
    if oldest is None or len(small) < FEWEST_TO_MERGE or max(map(age_of, small)) < oldest:
        return None
    return f"{len(small)} small files, the oldest older than {oldest:g} s"


@dataclass(frozen=True)
class Policy(ABC):
    """The decisions that the debt board and the planner need. Pure; subclasses say which sizes are merged.

    A partition with a commit within the last `skip_newer_than_seconds` is not due. `force`: merge all small files, at
    least two, whenever the last commit was.
    """

    values: PolicyValues
    sizes: FileSizes
    force: bool = False

    def judge(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> Judgement:
        """Whether the partition is due, by the ledger's counts alone; a plan then looks at its files.

        `idle_seconds`: time since a writer's last commit to the partition.
        """
        why_not = self._why_hot(idle_seconds)
        why = None if why_not else self._why_due(counts, idle_seconds)
        if why is None:
            return Judgement(False, why_not or self._why_not(counts.small_files))
        return Judgement(True, why, self._rules.large_bytes(counts, idle_seconds))

    def glance(self, files: LiveFiles) -> str | None:
        """Why no file would be chosen, by sizes alone; None if `choose` has to decide.

        A partition with one small file and no deletes needs no rewrite.
        """
        small = files.small(self.sizes.small_below)
        return None if files.has_deletes or small >= FEWEST_TO_MERGE else self._why_not(small)

    def choose(self, files: Sequence[LiveFile], idle_seconds: float = 0.0, age_of: AgeOf = unknown_age) -> Choice:
        """The files to merge, by the files themselves. `age_of`: seconds since a file was written."""
        why_not = self._why_hot(idle_seconds)
        return Choice((), why_not) if why_not else self._chosen(files, idle_seconds, age_of)

    def cut(self, files: Sequence[LiveFile]) -> list[tuple[int, int]]:
        """(start, end) of the consecutive files of each output, of one file group: equal bytes, near the target."""
        return near_target([file.size for file in files], self.sizes.target, self.sizes.small_below, self.sizes.largest)

    @property
    def _rules(self) -> DeleteRules:
        return DeleteRules(self.values, self.sizes)

    def _why_hot(self, idle_seconds: float) -> str:
        seconds = self.values.skip_newer_than_seconds
        if self.force or not seconds or idle_seconds >= seconds:
            return ""
        return f"a commit less than {seconds:.0f} s ago (skip_newer_than_seconds)"

    @abstractmethod
    def _why_due(self, counts: PartitionCounts, idle_seconds: float) -> str | None:
        """Why the partition may be due; None if it is not."""

    @abstractmethod
    def _chosen(self, files: Sequence[LiveFile], idle_seconds: float, age_of: AgeOf) -> Choice:
        """The files to merge of a partition that is not hot."""

    @abstractmethod
    def _why_not(self, small: int) -> str:
        """Why so many small files are not merged."""


@dataclass(frozen=True)
class ThresholdPolicy(Policy):
    """Spark's thresholds; `force` ignores them. `everything`: take every file, healthy files too, as Spark's
    `rewrite-all`.
    """

    everything: bool = False

    def _why_due(self, counts: PartitionCounts, idle_seconds: float) -> str | None:
        """By count, bytes or age of small files, or by deletes."""
        small = counts.small_files
        enough = small >= FEWEST_TO_MERGE and self._enough(small, counts.small_bytes)
        return all_reasons(
            self._why_merge(small, counts.small_bytes) if enough else None,
            self._rules.judge(counts, idle_seconds),
            None if enough else look_for_age(self.values, counts, idle_seconds),
        )

    def glance(self, files: LiveFiles) -> str | None:
        """As any policy, or every file."""
        return None if self.everything else super().glance(files)

    def _chosen(self, files: Sequence[LiveFile], _idle_seconds: float, age_of: AgeOf) -> Choice:
        """Small files and files with many deletes, if they pass a threshold together. Spark has no rule of idleness."""
        if self.everything:
            return Choice(tuple(files), f"all {len(files)} files, as requested")
        rules = self._rules
        heavy = rules.heavy(files) | rules.slow_to_read(files)
        chosen = tuple(file for index, file in enumerate(files) if self.sizes.is_small(file.size) or index in heavy)
        total = sum(file.size for file in chosen)
        why = due_by_age(self.values, chosen, age_of)
        if heavy:
            why = f"{len(heavy)} files with too many deletes, {len(chosen)} files in all"
        elif len(chosen) >= FEWEST_TO_MERGE and self._enough(len(chosen), total):
            why = self._why_merge(len(chosen), total)
        if why is not None:
            return Choice(chosen, why, by_group=True)
        return Choice((), rules.why_nameless_wait(files, NAMELESS_BY_NUMBER) or self._why_not(len(chosen)))

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
