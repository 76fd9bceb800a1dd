"""From rewritten groups to a commit: leave out what others have touched, commit the rest, once more after a lost race.

Groups are checked against the snapshots committed since the plan *before* the commit is sent; when Iceberg's own
validation still finds a conflict, a commit came in between: the culprits are found the same way and the rest is sent
again. Outputs are never written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from compactor.commit import Replacement, Stamp, commit_replacements
from compactor.conflicts import changes_since, touched_groups
from compactor.dangling_deletes import dangling_deletes
from compactor.errors import FirnlineError, GiveUpError, ReplanError
from compactor.java_table import JavaTable
from compactor.manifest_cache import ManifestCache
from compactor.manifests import Status
from compactor.plan_table import PlannedGroup, TablePlan
from compactor.rewrite.share_job import DAMAGE
from compactor.run_result import DroppedGroup, FinishedGroup
from compactor.tables import Catalogs

RACES = 5  # lost races in a row after which the run gives way: the table is too busy just now


@dataclass(frozen=True)
class Committed:
    """A commit that landed. `snapshot_id` is None when every group was dropped and nothing was sent."""

    snapshot_id: int | None
    kept: tuple[FinishedGroup, ...]
    dropped: tuple[DroppedGroup, ...]
    delete_files_removed: int


def commit_groups(
    table: JavaTable,
    plan: TablePlan,
    groups: Sequence[FinishedGroup],
    stamp: Stamp,
    catalogs: Catalogs,
    cache: ManifestCache,
    about_to_send: Callable[[], None],
) -> Committed:
    """Commit `groups` as one snapshot, without those that another commit has touched.

    `about_to_send` is called right before each attempt; what it raises ends the commit.

    Raises:
        FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
    """
    kept, dropped = list(groups), list[DroppedGroup]()
    for race in range(1, RACES + 1):
        table.refresh()
        table.check_unchanged()
        changes = changes_since(catalogs.load(plan.table.name, plan.table.ref), table.snapshot_id, cache)
        touched = touched_groups([group.planned.group for group in kept], changes)
        dropped += [_dropped(plan, kept[index].planned, what) for index, what in touched.items()]
        kept = [group for index, group in enumerate(kept) if index not in touched]
        if not kept:
            return Committed(None, (), tuple(dropped), 0)
        rewritten = {file.entry.path for group in kept for file in group.planned.group.files}
        gone = {entry.path for entry in changes if entry.status is Status.DELETED}
        # Files that an earlier commit of the run replaced do not count: it may have been rolled back since.
        dangling = dangling_deletes(plan.coverable_deletes, rewritten, gone)
        parts = [part for group in kept for part in group.parts]
        replacements = [Replacement(part.tasks, part.outputs, part.files_in) for part in parts]
        try:
            snapshot_id = commit_replacements(table, replacements, dangling, stamp, about_to_send)
        except ReplanError as error:
            if error.reason != "conflict" or race == RACES:
                raise
            continue
        return Committed(snapshot_id, tuple(kept), tuple(dropped), len(dangling))
    raise AssertionError("unreachable: the last race returns or raises")


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
    error = GiveUpError(
        f"group {planned.group.partition} of {plan.table.name} was left out: {what}, by a delete file of another "
        "partition, which the table format forbids. Rewrite without a filter, which sees all deletes; mend the writer",
        reason="stray_delete",
    )
    return DroppedGroup(planned, error)


def truly_failed(
    plan: TablePlan, failed: Sequence[DroppedGroup], catalogs: Catalogs, cache: ManifestCache
) -> tuple[DroppedGroup, ...]:
    """The same groups, those whose files others have taken away meanwhile with that for a reason.

    A file that is gone from the store is damage if the table still has it. If it went with a rollback, or with another
    compactor and an expiry, there is nothing to give up: the table is planned anew. Rows that do not add up and damaged
    pages are never others' doing.
    """
    mine = [drop for drop in failed if drop.error.reason in DAMAGE]
    others = [drop for drop in failed if drop.error.reason not in DAMAGE]
    snapshot_id = plan.plan.snapshot_id or 0
    try:
        now = catalogs.load(plan.table.name, plan.table.ref)
        changes = changes_since(now, snapshot_id, cache)
    except ReplanError as error:
        return (*mine, *(_planned_anew(drop, str(error), error.reason) for drop in others))
    except FirnlineError:  # nobody knows what others have done
        return tuple(failed)
    if now.metadata.snapshot_by_id(snapshot_id) is None:
        what = f"the planned snapshot {snapshot_id} of {plan.table.name} expired, and its metadata with it"
        return (*mine, *(_planned_anew(drop, what, "snapshot_expired") for drop in others))
    taken_away = [entry for entry in changes if entry.status is Status.DELETED]
    touched = touched_groups([drop.planned.group for drop in others], taken_away)
    told = [
        _planned_anew(drop, _left_out(plan, drop.planned, touched[index]), "conflict") if index in touched else drop
        for index, drop in enumerate(others)
    ]
    return (*mine, *told)


def _planned_anew(drop: DroppedGroup, what: str, reason: str) -> DroppedGroup:
    error = ReplanError(f"{what}; the run itself saw: {drop.error}", reason=reason)
    error.__cause__ = drop.error
    return DroppedGroup(drop.planned, error)


def _dropped(plan: TablePlan, planned: PlannedGroup, what: str) -> DroppedGroup:
    return DroppedGroup(planned, ReplanError(_left_out(plan, planned, what), reason="conflict"))


def _left_out(plan: TablePlan, planned: PlannedGroup, what: str) -> str:
    return (
        f"group {planned.group.partition} of {plan.table.name} was left out: {what} while it was being rewritten; it "
        "is planned anew by the next run"
    )
