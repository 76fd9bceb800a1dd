"""Whether one partition of a table is due: by the policy, and by the filter `policy.where`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from compactor.debt.board import PartitionCounts
from compactor.errors import InputError
from compactor.filters.where import KeptPartitions, bind_where
from compactor.iceberg.tables import FileSizes, TableView
from compactor.partitions import PartitionKey
from compactor.planning.delete_rules import DeleteRules
from compactor.planning.policy import Judgement
from compactor.planning.tiered_policy import policy_of
from compactor.settings.policy import PolicyValues

OUTSIDE = Judgement(False, "outside policy.where")


class Judging(Protocol):
    """The part of a policy that is asked here."""

    def judge(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> Judgement: ...


@dataclass(frozen=True)
class PartitionJudge:
    """Judges the partitions of one table.

    `kept`: what `policy.where` selects; None without a filter. `rules`: equality deletes are converted in the whole
    table, so a partition that makes that due is due outside the filter too.
    """

    policy: Judging
    rules: DeleteRules
    kept: KeptPartitions | None = None

    def of(self, key: PartitionKey, counts: PartitionCounts, idle_seconds: float) -> Judgement:
        """Whether the partition is due. `idle_seconds`: time since a writer's last commit to it."""
        judgement = self.policy.judge(counts, idle_seconds)
        if not judgement.due or self.kept is None or self.kept.keeps(key) or self.rules.conversion_due(counts):
            return judgement
        return OUTSIDE


def judge_of(table: TableView, values: PolicyValues, sizes: FileSizes) -> PartitionJudge:
    """The judge that a table's settings name. A filter that the table refuses keeps everything: a plan reports it."""
    try:
        where = bind_where(table, values.where)
    except InputError:
        where = bind_where(table, None)
    kept = None if where.keeps_everything else where.kept_partitions()
    return PartitionJudge(policy_of(values, sizes), DeleteRules(values, sizes), kept)
