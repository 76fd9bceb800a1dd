"""The service's policy: merge by tiers (tiers.py), merge idle partitions further, apply accumulated deletes. Pure.

Merging by tiers rewrites each byte a bounded number of times for any arrival of files; merging at a fixed count does
not. Additional rewrites, outside of these bounds: settling merges of partitions that no writer has committed to for a
while, rewrites that apply deletes, and the user's limits (`max_small_files`, `max_small_file_age_seconds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from compactor.debt.board import PartitionCounts
from compactor.debt.tiers import longest_prefix, may_have_prefix
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile
from compactor.planning.delete_rules import COMMIT_OPENS, saving
from compactor.planning.policy import (
    FEWEST_TO_MERGE,
    AgeOf,
    Choice,
    Policy,
    ThresholdPolicy,
    all_reasons,
    due_by_age,
    look_for_age,
)
from compactor.settings.policy import PolicyValues

SETTLE_GROWTH = 2.0
"""`growth` of the merge of an idle partition: it leaves out a file larger than all the others together."""


class TieredPolicy(Policy):
    """Merges by tiers, idleness, deletes and limits."""

    def _why_due(self, counts: PartitionCounts, idle_seconds: float) -> str | None:
        """Due whenever `choose` would merge because of sizes or idleness, and sometimes too early.

        The ledger knows the sizes of small files to a fifth; the plan decides by the files.
        """
        small = counts.small_files
        sizes = self._why_merge(small, counts.small_bytes) if small >= FEWEST_TO_MERGE else None
        if sizes is None:  # then a plan may find less than the counts promise
            sizes = all_reasons(self._tiers_say(counts, idle_seconds), look_for_age(self.values, counts, idle_seconds))
        return all_reasons(sizes, self._deletes_say(counts, idle_seconds))

    def _chosen(self, files: Sequence[LiveFile], idle_seconds: float, age_of: AgeOf) -> Choice:
        """In arrival order: small files that the rules pick, and files to rewrite for deletes."""
        small = [index for index, file in enumerate(files) if self.sizes.is_small(file.size)]
        too_old = due_by_age(self.values, [files[index] for index in small], age_of)
        picked, why = self._pick([files[index].size for index in small], idle_seconds, too_old)
        chosen = frozenset(small[position] for position in picked)
        if any(file.deletes for file in files):
            chosen, why = self._with_deletes(files, frozenset(small), chosen, idle_seconds, why)
        return Choice(tuple(files[index] for index in sorted(chosen)), why)

    def cut(self, files: Sequence[LiveFile]) -> list[tuple[int, int]]:
        """Outputs near the target, none of them small if there are several: tiers.py bounds rewrites by that.

        With deletes, single files with few deletes are left out instead: their rewrite would save nothing.
        """
        runs = super().cut(files)
        if any(file.deletes for file in files):
            rules = self._rules
            heavy = rules.heavy(files) | rules.slow_to_read(files) | rules.nameless(files)
            return [(start, end) for start, end in runs if end - start > 1 or start in heavy]
        is_last_small = len(runs) > 1 and self.sizes.is_small(sum(file.size for file in files[runs[-1][0] :]))
        return runs[:-1] if is_last_small else runs

    def _with_deletes(
        self, files: Sequence[LiveFile], small: frozenset[int], picked: frozenset[int], idle_seconds: float, why: str
    ) -> tuple[frozenset[int], str]:
        """Indexes of the files to rewrite in a partition with deletes, and why.

        A heavy file (due by its deletes) that is not small is always rewritten. A heavy small file waits for other
        small files, since alone it would become one file again at the cost of a commit. It is rewritten when that pays
        together with the other small files (without the cost of the commit, if it is due by its equality deletes), when
        other files are rewritten anyway and joining them pays, or when the partition is idle. Files with many deletes
        that name no data file wait until the partition is idle: these deletes leave only with all of them.
        """
        rules = self._rules
        idle = idle_seconds >= self.values.settle_after_seconds
        slow = rules.slow_to_read(files)
        together = rules.nameless(files) if idle else frozenset[int]()
        heavy = rules.heavy(files) | slow | together
        certain = picked | (heavy - small) | together
        waiting = heavy & small - certain
        if waiting and not certain and idle:
            certain = waiting
        with_deletes = certain | {index for index in small if files[index].deletes}
        if certain:
            certain = self._best(files, {certain, with_deletes})[1]
        elif waiting:
            net, best = self._best(files, {with_deletes, small})
            certain = best if net >= (0 if waiting & slow else COMMIT_OPENS) else certain
        if certain & heavy:
            return certain, f"{len(certain & heavy)} files with too many deletes, {len(certain)} files in all"
        if certain - picked:
            return certain, f"{why}, {len(certain - picked)} more for their deletes"
        if waiting and not certain:
            return certain, f"{len(waiting)} small files with many deletes, which do not pay for a commit yet"
        if not certain:
            return certain, rules.why_nameless_wait(files, self._until_idle) or why
        return certain, why

    @property
    def _until_idle(self) -> str:
        return (
            f"they wait for {self.values.settle_after_seconds:.0f} s without a commit (policy.settle_after_seconds) or "
            "for policy.delete_file_threshold of such deletes"
        )

    def _best(self, files: Sequence[LiveFile], choices: AbstractSet[frozenset[int]]) -> tuple[float, frozenset[int]]:
        """The net saving of the best choice, and the choice; of equal choices, the smaller one."""
        found = []
        for chosen in choices:
            outputs = len(self.cut([files[index] for index in sorted(chosen)]))
            found.append((saving(files, chosen, outputs, self.values.most_carried).net, chosen))
        return max(found, key=lambda each: (each[0], -len(each[1])))

    def _deletes_say(self, counts: PartitionCounts, idle_seconds: float) -> str | None:
        """Why deletes may make files due; None if they cannot. A rewrite of small files only must pay for a commit."""
        rules = self._rules
        why = rules.judge(counts, idle_seconds)
        if why is None:
            return None
        if idle_seconds >= self.values.settle_after_seconds:
            return f"{why}, no commit for {self.values.settle_after_seconds:.0f} s"
        if rules.more_deletes_than_files(counts):
            return why
        all_small = counts.small_files == counts.data_files
        slow = rules.slow(counts)
        return None if all_small and not (slow or rules.may_pay(counts)) else why

    def _pick(self, sizes: Sequence[int], idle_seconds: float, too_old: str | None) -> tuple[list[int], str]:
        """Positions of the small files to merge, and why; or why none."""
        everything = list(range(len(sizes)))
        if len(sizes) < FEWEST_TO_MERGE:
            return [], self._why_not(len(sizes))
        why = self._why_merge(len(sizes), sum(sizes)) or too_old
        if why is not None:
            return everything, why
        everything.sort(key=lambda position: (sizes[position], position))  # oldest first among equals
        ascending = [sizes[position] for position in everything]
        count = longest_prefix(ascending, self.values.growth)
        if count >= self.values.min_input_files:
            return everything[:count], f"{count} small files are {self.values.growth:g} times the largest of them"
        if idle_seconds >= self.values.settle_after_seconds:
            count = longest_prefix(ascending, SETTLE_GROWTH)
            if count:
                return everything[:count], f"{count} small files, no commit for {idle_seconds:.0f} s"
        return [], self._why_not(len(sizes))

    def _why_merge(self, files: int, total: int) -> str | None:
        """Why all small files are merged; None if the tiers decide."""
        values = self.values
        if total >= self.sizes.target:
            return f"{files} small files reach the target together"
        if values.max_small_files is not None and files >= values.max_small_files:
            return f"{files} small files, limit {values.max_small_files}"
        return f"{files} small files, forced" if self.force else None

    def _tiers_say(self, counts: PartitionCounts, idle_seconds: float) -> str | None:
        values, small = self.values, counts.small_files
        if small < FEWEST_TO_MERGE:
            return None
        grown = small >= values.min_input_files and may_have_prefix(counts.small_sizes, values.growth)
        idle = idle_seconds >= values.settle_after_seconds and may_have_prefix(counts.small_sizes, SETTLE_GROWTH)
        return all_reasons(
            f"{small} small files, some of them {values.growth:g} times the largest of these" if grown else None,
            f"{small} small files, no commit for {values.settle_after_seconds:.0f} s" if idle else None,
        )

    def _why_not(self, small: int) -> str:
        return f"{small} small files, too few for a merge that pays"


def policy_of(values: PolicyValues, sizes: FileSizes, *, force: bool = False, everything: bool = False) -> Policy:
    """The policy that a table's settings name. `everything`: one that takes every file and ignores the settings."""
    if everything:
        return ThresholdPolicy(values=values, sizes=sizes, force=True, everything=True)
    kind = ThresholdPolicy if values.strategy == "threshold" else TieredPolicy
    return kind(values, sizes, force)
