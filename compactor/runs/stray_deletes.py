"""Before a filtered rewrite: groups with deletes that lie where the filter did not look are left out."""

from __future__ import annotations

from dataclasses import replace

from compactor.errors import GiveUpError
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import touched_groups
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.reasons import Reason
from compactor.runs.results import DroppedGroup, left_out


def without_strays(plan: TablePlan, cache: ManifestCache) -> tuple[TablePlan, tuple[DroppedGroup, ...]]:
    """The plan without groups whose rows are deleted from where its filter did not look, and these groups.

    A delete that names a file must have that file's partition (spec: scan planning). Some writers give it another, and
    readers without a filter apply it all the same: of a file that is copied without it the deleted rows would come
    back. So nothing is rewritten before the manifests that planning skipped have been read for the files' names.

    Raises:
        RetryError: a manifest cannot be read.
    """
    if not plan.skipped_deletes:
        return plan, ()
    read = cache.read(plan.table, plan.skipped_deletes)
    entries = [entry for columns in read for entry in columns if entry.is_live]
    strays = touched_groups([planned.group for planned in plan.groups], entries)
    dropped = tuple(_astray(plan, plan.groups[index], what) for index, what in strays.items())
    kept = tuple(planned for index, planned in enumerate(plan.groups) if index not in strays)
    return replace(plan, groups=kept), dropped


def _astray(plan: TablePlan, planned: PlannedGroup, what: str) -> DroppedGroup:
    why = (
        f"{what}, by a delete file of another partition, which the table format forbids. Rewrite without a filter, "
        "which sees all deletes; mend the writer"
    )
    return left_out(planned, plan.table.name, why, GiveUpError, Reason.STRAY_DELETE)
