"""File groups that a run drops: before it because of stray deletes, after it because of other commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.iceberg.manifest_entries import Status
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import changes_since, touched_groups
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.reasons import Reason
from compactor.rewrite.tasks.output_task import DAMAGE
from compactor.runs.results import DroppedGroup, left_out, overtaken

MAY_MISS_A_FILE = (Reason.INPUT_MISSING, Reason.UNEXPECTED)
"""Reasons of groups that may miss a file because of an expiry; what Spark misses, it tells in its own words."""


def without_strays(plan: TablePlan, cache: ManifestCache) -> tuple[TablePlan, tuple[DroppedGroup, ...]]:
    """Before a filtered rewrite: the plan without file groups that excluded delete files apply to, and these groups.

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


def reclassify_conflicts(
    plan: TablePlan, failed: Mapping[int, FirnlineError], catalogs: Catalogs, cache: ManifestCache
) -> dict[int, FirnlineError]:
    """The errors of file groups, by their numbers in the plan: of those whose inputs a concurrent commit removed, a
    conflict.

    A file that is missing from the store is damage if the table still lists it. If a rollback removed it, or another
    compactor and an expiry, the group is planned again. Wrong row counts and damaged pages stay as they are: no
    concurrent commit causes them.
    """
    others = {number: error for number, error in failed.items() if error.reason not in DAMAGE}
    snapshot_id = plan.snapshot_id or 0
    try:
        now = catalogs.load(plan.table.name, plan.table.ref)
        changes = changes_since(now, plan.table, snapshot_id, cache)
    except ReplanError as error:
        what, reason = str(error), error.reason
        return {**failed, **{number: _planned_anew(seen, what, reason) for number, seen in others.items()}}
    except FirnlineError:  # the other commits cannot be read
        return dict(failed)
    found = dict(failed)
    if now.metadata.snapshot_by_id(snapshot_id) is None:
        what = f"the planned snapshot {snapshot_id} of {plan.table.name} expired, and its metadata with it"
        for number in [number for number, error in others.items() if error.reason in MAY_MISS_A_FILE]:
            found[number] = _planned_anew(others.pop(number), what, Reason.SNAPSHOT_EXPIRED)
    taken_away = [entry for entry in changes if entry.status is Status.DELETED]
    numbers = list(others)
    touched = touched_groups([plan.groups[number].file_group for number in numbers], taken_away)
    for index, what in touched.items():
        number = numbers[index]
        why = str(overtaken(plan.groups[number], plan.table.name, what).error)
        found[number] = _planned_anew(others[number], why, Reason.CONFLICT)
    return found


@contextmanager
def expiry_explained(table: TableView, snapshot_id: int | None, catalogs: Catalogs) -> Iterator[None]:
    """An expiry of the planned snapshot deletes manifests that nothing else lists: plan again, do not only retry.

    Raises:
        ReplanError: instead of a RetryError, if a manifest cannot be read and the planned snapshot has expired.
    """
    try:
        yield
    except RetryError as error:
        if error.reason is not Reason.MANIFEST_UNREADABLE or not _has_expired(table, snapshot_id, catalogs):
            raise
        raise ReplanError(
            f"the planned snapshot {snapshot_id} of {table.name} expired during the run: {error}",
            reason=Reason.SNAPSHOT_EXPIRED,
        ) from error


def _has_expired(table: TableView, snapshot_id: int | None, catalogs: Catalogs) -> bool:
    """Whether the planned snapshot is gone; False if the catalog does not answer."""
    try:
        now = catalogs.load(table.name, table.ref)
    except FirnlineError:
        return False
    return now.metadata.snapshot_by_id(snapshot_id or 0) is None


def _planned_anew(seen: FirnlineError, what: str, reason: Reason) -> ReplanError:
    error = ReplanError(f"{what}; the run itself saw: {seen}", reason=reason)
    error.__cause__ = seen
    return error
