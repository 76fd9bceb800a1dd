"""Commit rewritten file groups without those that another commit touched; try again after a lost race.

Before the commit is sent, file groups are checked against the snapshots committed since the plan. If Iceberg's own
validation still finds a conflict, another commit came in between: check again and send the rest. Outputs are never
written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactor.commit.replace import CommitSummary, Replacement, commit_replacements
from compactor.errors import ReplanError
from compactor.iceberg.manifest_entries import Status
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import changes_since, touched_groups
from compactor.planning.dangling_deletes import dangling_deletes
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.runs.results import DroppedGroup, GroupResult, overtaken
from compactor.spark.java_table import JavaTable

RACES = 5  # lost races in a row after which the run ends: the table is too busy at present


@dataclass(frozen=True)
class Committed:
    """The result of a commit. `snapshot_id` is None when nothing was sent, e.g. because every group was dropped."""

    snapshot_id: int | None
    kept: tuple[GroupResult, ...]
    dropped: tuple[DroppedGroup, ...]
    delete_files_removed: int


def commit_groups(
    table: JavaTable,
    plan: TablePlan,
    groups: Sequence[GroupResult],
    summary: CommitSummary,
    catalogs: Catalogs,
    cache: ManifestCache,
    about_to_send: Callable[[], object],
) -> Committed:
    """Commit `groups` as one snapshot, without those that another commit touched.

    The same commit removes delete files that apply to no data file any more; without `groups` it removes only these.
    `about_to_send` is called right before each attempt; an exception from it ends the commit.

    Raises:
        FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
    """
    kept, dropped = list(groups), list[DroppedGroup]()
    for race in range(1, RACES + 1):
        table.refresh()
        table.check_unchanged()
        changes = changes_since(catalogs.load(plan.table.name, plan.table.ref), table.snapshot_id, cache)
        touched = touched_groups([group.planned.file_group for group in kept], changes)
        dropped += [overtaken(kept[index].planned, plan.table.name, what) for index, what in touched.items()]
        kept = [group for index, group in enumerate(kept) if index not in touched]
        if groups and not kept:
            return Committed(snapshot_id=None, kept=(), dropped=tuple(dropped), delete_files_removed=0)
        rewritten = {file.entry.path for group in kept for file in group.planned.file_group.files}
        gone = {entry.identity for entry in changes if entry.status is Status.DELETED}
        # Files that an earlier commit of the run replaced do not count: it may have been rolled back since.
        dangling = dangling_deletes(plan.coverable_deletes, rewritten, gone)
        if not kept and not dangling:
            return Committed(snapshot_id=None, kept=(), dropped=(), delete_files_removed=0)
        parts = [part for group in kept for part in group.parts]
        replacements = [Replacement(part.scan_tasks, part.outputs, part.files_in) for part in parts]
        try:
            snapshot_id = commit_replacements(table, replacements, dangling, summary, about_to_send)
        except ReplanError as error:
            if error.reason != Reason.CONFLICT or race == RACES:
                raise
            continue
        return Committed(
            snapshot_id=snapshot_id, kept=tuple(kept), dropped=tuple(dropped), delete_files_removed=len(dangling)
        )
    raise AssertionError("unreachable: the last race returns or raises")
