"""Before a filtered rewrite: drop file groups that have delete files in partitions the filter excluded."""

from __future__ import annotations

from dataclasses import replace

from compactor.errors import GiveUpError
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import touched_groups
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.reasons import Reason
from compactor.runs.results import DroppedGroup, left_out


def without_strays(plan: TablePlan, cache: ManifestCache) -> tuple[TablePlan, tuple[DroppedGroup, ...]]:
    """The plan without file groups that excluded delete files apply to, and these file groups.

    A delete that names a data file must be in that file's partition (spec, "Scan Planning"). Some writers put it in
    another one, and readers without a filter apply it. A rewrite that ignored it would bring the deleted rows back.
    Therefore the delete manifests that planning skipped are read here, for the names of the data files.

    Raises:
        RetryError: a manifest cannot be read.
    """
    if not plan.skipped_deletes:
        return plan, ()
    read = cache.read(plan.table, plan.skipped_deletes)
    entries = [entry for columns in read for entry in columns if entry.is_live]
    strays = touched_groups([planned.file_group for planned in plan.groups], entries)
    dropped = tuple(_dropped(plan, plan.groups[index], what) for index, what in strays.items())
    kept = tuple(planned for index, planned in enumerate(plan.groups) if index not in strays)
    return replace(plan, groups=kept), dropped


def _dropped(plan: TablePlan, planned: PlannedGroup, what: str) -> DroppedGroup:
    why = (
        f"{what}, by a delete file of another partition, which the table format forbids. Rewrite without a filter, "
        "which sees all deletes; correct the writer"
    )
    return left_out(planned, plan.table.name, why, GiveUpError, Reason.STRAY_DELETE)
