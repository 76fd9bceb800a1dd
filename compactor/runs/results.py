"""What a run did, by file group, and the row check that every file group must pass before it is committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from compactor.errors import FirnlineError, GiveUpError, ReplanError
from compactor.events import GroupPlan, GroupRewritten
from compactor.planning.engine import costliest
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.reasons import Reason
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.table_names import TableName


@dataclass(frozen=True)
class GroupResult:
    """One rewritten file group; `rows_in - rows_deleted == rows_out` was checked.

    `parts`: the outputs to commit; empty once they are committed, because they hold Java objects.
    `rows_carried`: deleted rows that the outputs hold, and that the commit deleted there. `rows_rebased`: rows that
    other commits deleted while the group was rewritten. Both are known after the commit.
    """

    planned: PlannedGroup
    rewritten: GroupRewritten
    parts: Sequence[WrittenOutput]
    rows_carried: int = 0
    rows_rebased: int = 0


@dataclass(frozen=True)
class DroppedGroup:
    """A file group that was not committed. The run went on without it; its files are unchanged."""

    planned: PlannedGroup
    error: FirnlineError

    @property
    def paths(self) -> Iterator[str]:
        """Its data files."""
        return paths_of(self.planned)


def paths_of(planned: PlannedGroup) -> Iterator[str]:
    """The data files of a file group."""
    return (file.entry.path for file in planned.file_group.files)


def left_out(
    planned: PlannedGroup, table: TableName, why: str, error: type[FirnlineError], reason: Reason
) -> DroppedGroup:
    """A file group that is not rewritten; the class of `error` names the reaction."""
    return DroppedGroup(
        planned, error(f"group {planned.file_group.partition} of {table} was left out: {why}", reason=reason)
    )


def overtaken(planned: PlannedGroup, table: TableName, what: str) -> DroppedGroup:
    """A file group that another commit touched; `what` says how."""
    why = f"{what} while it was rewritten; the next run plans it again"
    return left_out(planned, table, why, ReplanError, Reason.CONFLICT)


def taken_away(planned: PlannedGroup, table: TableName, location: str) -> DroppedGroup:
    """A file group of which an output is not there any more right before the commit."""
    why = (
        f"its output {location} was deleted or changed before it was committed. Let remove_orphan_files and the "
        "store's lifecycle rules spare files of the last days; the next run writes it again"
    )
    return left_out(planned, table, why, ReplanError, Reason.OUTPUT_MISSING)


NO_ANSWER: Final = "it was not tried, because the store did not answer any more"


class NotTriedError(ReplanError):
    """Reaction: **re-plan**: the file group was not tried; the next run tries it."""

    reason = Reason.UNAVAILABLE


class NoGroupLeftError(GiveUpError):
    """Reaction: **give up**, as for each file group that was `tried`: none of them can be rewritten.

    `dropped`: all file groups of the run, also those that were not tried.
    """

    def __init__(self, tried: Sequence[DroppedGroup], dropped: Sequence[DroppedGroup] = ()) -> None:
        first = tried[0].error
        super().__init__(str(first), reason=first.reason)
        self.dropped = tuple(dropped or tried)


@dataclass(frozen=True)
class RunResult:
    """What one run did. `snapshot_after` is None when nothing was committed; long runs have several `commits`."""

    run_id: str
    table: TableName
    snapshot_before: int | None
    snapshot_after: int | None
    groups: tuple[GroupResult, ...]
    plan_seconds: float
    rewrite_seconds: float
    commit_seconds: float
    dropped: tuple[DroppedGroup, ...] = ()
    commits: int = 0
    delete_files_removed: int = 0

    @property
    def total_seconds(self) -> float:
        """Plan, rewrite and commit together."""
        return self.plan_seconds + self.rewrite_seconds + self.commit_seconds


def checked_result(run_id: str, plan: TablePlan, planned: PlannedGroup, parts: Sequence[WrittenOutput]) -> GroupResult:
    """The row check of invariant 1: rows in, rows deleted and rows out come from three different counts.

    Raises:
        GiveUpError: they do not add up.
    """
    table, group = plan.table.name, planned.file_group
    rows_in, rows_out = group.rows, sum(part.rows_out for part in parts)
    rows_deleted = sum(part.rows_deleted for part in parts)
    if rows_in - rows_deleted != rows_out:
        raise GiveUpError(
            f"group {group.partition} of {table}: {rows_in} rows in, {rows_deleted} deleted, but "
            f"{rows_out} written; nothing is committed. Check the record counts in the table's manifests",
            reason=Reason.ROW_COUNT_MISMATCH,
        )
    engine = costliest([part.engine for part in parts])
    rewritten = GroupRewritten(
        run_id=run_id,
        table=table,
        key=group.key,
        engine=engine.kind.value,
        reason=engine.reason,
        files_in=len(group.files),
        files_out=sum(len(part.outputs) for part in parts),
        bytes_in=group.bytes,
        bytes_out=sum(part.bytes_out for part in parts),
        rows_in=rows_in,
        rows_deleted=rows_deleted,
        rows_out=rows_out,
        seconds=sum(part.seconds for part in parts),
        bytes_decoded=sum(part.bytes_decoded for part in parts),
        plan=as_planned(plan, planned),
    )
    return GroupResult(planned=planned, rewritten=rewritten, parts=parts)


def as_planned(plan: TablePlan, planned: PlannedGroup) -> GroupPlan:
    """The planned file group, as events carry it."""
    group = planned.file_group
    return GroupPlan(
        partition=group.partition,
        why=group.why,
        strategy=plan.policy.strategy,
        snapshot_id=plan.snapshot_id,
        engine=planned.engine.kind.value,
        engine_reason=planned.engine.reason,
        files=len(group.files),
        bytes=group.bytes,
        branch=plan.table.ref,
    )
