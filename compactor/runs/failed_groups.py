"""File groups that failed because a concurrent commit removed their inputs: conflicts, to be planned again."""

from __future__ import annotations

from collections.abc import Sequence

from compactor.errors import FirnlineError, ReplanError
from compactor.iceberg.manifest_entries import Status
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import changes_since, touched_groups
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.rewrite.tasks.output_task import DAMAGE
from compactor.runs.results import DroppedGroup, overtaken


def reclassify_conflicts(
    plan: TablePlan, failed: Sequence[DroppedGroup], catalogs: Catalogs, cache: ManifestCache
) -> tuple[DroppedGroup, ...]:
    """Reclassify groups whose inputs a concurrent commit removed as conflicts; return all of `failed`.

    A file that is missing from the store is damage if the table still lists it. If a rollback removed it, or another
    compactor and an expiry, the group is planned again. Wrong row counts and damaged pages stay as they are: no
    concurrent commit causes them.
    """
    mine = [drop for drop in failed if drop.error.reason in DAMAGE]
    others = [drop for drop in failed if drop.error.reason not in DAMAGE]
    snapshot_id = plan.snapshot_id or 0
    try:
        now = catalogs.load(plan.table.name, plan.table.ref)
        changes = changes_since(now, snapshot_id, cache)
    except ReplanError as error:
        return (*mine, *(_planned_anew(drop, str(error), error.reason) for drop in others))
    except FirnlineError:  # the other commits cannot be read
        return tuple(failed)
    if now.metadata.snapshot_by_id(snapshot_id) is None:
        what = f"the planned snapshot {snapshot_id} of {plan.table.name} expired, and its metadata with it"
        return (*mine, *(_planned_anew(drop, what, Reason.SNAPSHOT_EXPIRED) for drop in others))
    taken_away = [entry for entry in changes if entry.status is Status.DELETED]
    touched = touched_groups([drop.planned.file_group for drop in others], taken_away)
    reclassified = [
        _planned_anew(drop, str(overtaken(drop.planned, plan.table.name, touched[index]).error), Reason.CONFLICT)
        if index in touched
        else drop
        for index, drop in enumerate(others)
    ]
    return (*mine, *reclassified)


def _planned_anew(drop: DroppedGroup, what: str, reason: Reason) -> DroppedGroup:
    error = ReplanError(f"{what}; the run itself saw: {drop.error}", reason=reason)
    error.__cause__ = drop.error
    return DroppedGroup(drop.planned, error)
