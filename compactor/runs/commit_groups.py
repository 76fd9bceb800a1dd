"""Commit rewritten file groups; deletes of other commits follow the rows.

Before the commit is sent, file groups are compared with the commits made since the plan. Rows that these deleted are
deleted in the outputs too. A group is left out if one of its files was removed, or if it is unknown where its rows are.
If Iceberg's own validation then finds a conflict, another commit came in between (`races.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

from compactor.commit.output_check import missing_files
from compactor.commit.replace import Landed, commit_replacements
from compactor.commit.search import listed_snapshot
from compactor.commit.sends import Sent
from compactor.commit.snapshots import CommitSummary, NewDeletes, Replacement
from compactor.errors import GiveUpError, ReplanError, RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.other_compactors import flink_converts
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests.cache import ManifestCache
from compactor.patience.deadline import NEVER, Deadline
from compactor.planning.budget import Charge, Spent, requests_of, uncharged
from compactor.planning.conflicts import touched_groups
from compactor.planning.dangling_deletes import dangling_deletes
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.rebase.delete_files import DeletedRows, can_read, copy_files, read_positions, write_deletes
from compactor.rebase.input_changes import Changes, InputChange
from compactor.rebase.settle import Settled, settle
from compactor.rewrite.deletes.row_maps import InputRows
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.runs.races import Head, Send, commit_beside_others
from compactor.runs.results import DroppedGroup, GroupResult, overtaken, taken_away
from compactor.spark.java_table import JavaTable

Pair = tuple[GroupResult, Settled]
FIRST_VERSION_WITH_DELETES = 2


@dataclass(frozen=True)
class Committed:
    """The result of a commit. `landed` is None when nothing was sent, e.g. because every group was dropped.

    `files`: locations of the files that it added.
    """

    landed: Landed | None
    kept: tuple[GroupResult, ...]
    dropped: tuple[DroppedGroup, ...]
    delete_files_removed: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommitTools:
    """What a commit works with.

    Attributes:
        deletes_at: Location without a suffix for the delete files of one attempt, which has this number.
        about_to_send: Called right before each attempt with what is sent; an exception from it ends the commit.
        check_turn: Called with the table before each attempt is prepared; an exception from it ends the commit.
        charge: Called with the cost of delete files that are written or copied.
        listener: Is told which metadata files of attempts were deleted.
        deadline: Of the commit.
    """

    catalogs: Catalogs
    cache: ManifestCache
    deletes_at: Callable[[int], str]
    about_to_send: Callable[[Sent], object]
    check_turn: Callable[[TableView], object]
    charge: Charge = uncharged
    listener: Listener = ignore
    deadline: Deadline = NEVER


def commit_groups(
    table: JavaTable, plan: TablePlan, groups: Sequence[GroupResult], summary: CommitSummary, tools: CommitTools
) -> Committed:
    """Commit `groups` as one snapshot, without those that other commits touched in another way than by deletes.

    The same commit removes delete files that apply to no data file any more; without `groups` it removes only these.

    Raises:
        FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
    """
    commit = _GroupCommit(table, plan, tuple(groups), summary, tools)
    return commit_beside_others(table, tools.catalogs, tools.cache, tools.deadline, commit.prepare)


class _GroupCommit:
    """Groups that are left out of one attempt are left out of the next ones too."""

    def __init__(
        self,
        table: JavaTable,
        plan: TablePlan,
        groups: tuple[GroupResult, ...],
        summary: CommitSummary,
        tools: CommitTools,
    ) -> None:
        self._table = table
        self._plan = plan
        self._summary = summary
        self._tools = tools
        self._only_deletes = not groups
        self._kept = groups
        self._dropped: tuple[DroppedGroup, ...] = ()
        self._missing: set[str] = set()
        self._copies: dict[str, str] = {}
        """Copies of delete files, by the location of the file, of all attempts. `_used`: of this one."""
        self._used: set[str] = set()

    def prepare(self, head: Head) -> Send[Committed]:
        """Leave out what cannot be committed any more, and write the delete files of the rest."""
        self._tools.check_turn(head.table)
        self._leave_out_missing()
        changes = Changes(head.changes)
        settled = _settled(head.table, self._kept, head.changes, changes)
        found = list(zip(self._kept, settled, strict=True))
        pairs = [(group, each) for group, each in found if isinstance(each, Settled)]
        left_out = [(group, why) for group, why in found if isinstance(why, str)]
        self._kept = tuple(group for group, _ in pairs)
        self._dropped += tuple(overtaken(group.planned, self._plan.table.name, why) for group, why in left_out)
        dangling = _dangling(self._plan, pairs, head.changes, changes)
        if not self._kept and not (self._only_deletes and dangling):
            return lambda: Committed(landed=None, kept=(), dropped=self._dropped, delete_files_removed=0)
        if self._kept:
            _check_unlisted(head.table, self._summary)
            self._check_awaited(head.table, changes)
        location = self._tools.deletes_at(head.attempt)
        new = _new_deletes(head, pairs, location)
        self._tools.charge(Spent(requests=requests_of(0, len(new.files), 0)))
        self._used = set()
        new = replace(new, copied=partial(self._copied, head.table, location))
        return partial(self._send, head.table, pairs, dangling, new)

    def _leave_out_missing(self) -> None:
        """Leave out groups of which an output was missing when it was looked at."""
        kept: list[GroupResult] = []
        for group in self._kept:
            lost = [location for part in group.parts for location in _sizes(part) if location in self._missing]
            if lost:
                self._dropped += (taken_away(group.planned, self._plan.table.name, lost[0]),)
            else:
                kept.append(group)
        self._kept = tuple(kept)

    def _look(self, table: TableView, pairs: Sequence[Pair], new: NewDeletes) -> None:
        """Look at every file that the commit adds, right before it is sent.

        Raises:
            ReplanError: some are missing; the next attempt leaves their groups out, and writes delete files again.
            FirnlineError: the store does not answer.
        """
        sizes: dict[str, int | None] = {str(file["file-path"]): int(file["file-size-in-bytes"]) for file in new.files}
        sizes |= dict.fromkeys(self._used)
        for group, _ in pairs:
            for part in group.parts:
                sizes |= _sizes(part)
        self._tools.charge(Spent(requests=len(sizes)))
        self._missing = missing_files(table, sizes)
        self._copies = {file: copy for file, copy in self._copies.items() if copy not in self._missing}
        if self._missing:
            raise ReplanError(
                f"{table.name}: {len(self._missing)} files of run {self._summary.run_id} were deleted before they were "
                f"committed, e.g. {min(self._missing)}",
                reason=Reason.CONFLICT,
            )

    def _check_awaited(self, table: TableView, changes: Changes) -> None:
        """Check, before anything is written, that no equality delete is left for which an earlier attempt has to wait.

        Only Iceberg knows which ones its snapshot would lose. The files of a group that is left out since then may stay
        in the table, and with them the delete: Iceberg is asked again.

        Raises:
            RetryError: it is left.
        """
        left = [path for path in self._table.awaited if changes.times[path, None] > 0]
        if left and not self._dropped:
            self._check_converter(table, left)

    def _check_converter(self, table: TableView, files: Collection[str]) -> None:
        """Check that these equality deletes may be copied.

        Raises:
            RetryError: Flink's converter works on the table: it fails for ever at a snapshot that removes data files
                and adds an equality delete. Its next commit replaces the delete, and the rewrite follows that.
        """
        if flink_converts(table.history):
            self._table.awaited = frozenset(files)
            raise RetryError(
                f"{table.name}: Flink's converter has not converted the equality delete {min(files)} yet, which was "
                "committed during the rewrite; a copy of it would stop that converter. A finished rewrite waits for "
                "ten minutes: let the converter commit more often, or rewrite right after its commit",
                reason=Reason.FLINK_CONVERTER,
            )

    def _copied(self, table: TableView, location: str, files: Collection[str]) -> Mapping[str, str]:
        """Copies of these delete files by their locations. What an earlier attempt has copied is not copied again.

        Raises:
            RetryError: Flink's converter must convert them first.
        """
        self._check_converter(table, files)
        missing = sorted(set(files) - self._copies.keys())
        copies = {
            file: f"{location}-copy-{number}{PurePosixPath(file).suffix}"
            for number, file in enumerate(missing, len(self._copies))
        }
        size = copy_files(table, copies)
        self._tools.charge(Spent(size, requests_of(len(copies), len(copies), size)))
        self._copies |= copies
        self._used.update(self._copies[file] for file in files)
        return {file: self._copies[file] for file in files}

    def _send(
        self, table: TableView, pairs: Sequence[Pair], dangling: Sequence[FileEntry], new: NewDeletes
    ) -> Committed:
        parts = [part for group, _ in pairs for part in group.parts]

        def about_to_send(sending: Sent) -> None:
            self._look(table, pairs, new)
            self._tools.about_to_send(sending)  # last: nothing may come between it and the commit

        landed = commit_replacements(
            self._table,
            [Replacement(part.scan_tasks, part.outputs, part.files_in) for part in parts],
            dangling,
            self._summary,
            about_to_send,
            new=new,
            listener=self._tools.listener,
            deadline=self._tools.deadline,
        )
        self._table.awaited = frozenset()
        return Committed(
            landed=landed,
            kept=tuple(replace(group, rows_carried=each.carried, rows_rebased=each.rebased) for group, each in pairs),
            dropped=self._dropped,
            delete_files_removed=len(dangling),
            files=(
                *(str(output.location()) for part in parts for output in part.outputs),
                *(str(file["file-path"]) for file in new.files),
                *self._used,
            ),
        )


def _sizes(part: WrittenOutput) -> dict[str, int | None]:
    """The outputs' sizes by location; None where Iceberg may count the bytes before they were encrypted."""
    return {
        str(output.location()): int(output.fileSizeInBytes()) if output.keyMetadata() is None else None
        for output in part.outputs
    }


def _check_unlisted(now: TableView, summary: CommitSummary) -> None:
    """Check that no snapshot has the outputs. One that was rolled back owns them: they may go when it expires.

    Raises:
        ReplanError: the table lists such a snapshot; it is not sent again.
    """
    listed = listed_snapshot(now, summary)
    if listed is not None:
        raise ReplanError(
            f"{now.name} was rolled back past snapshot {listed}, which has the outputs of run {summary.run_id}; the "
            "next run writes others",
            reason=Reason.HISTORY_GAP,
        )


def _settled(
    now: TableView, groups: Sequence[GroupResult], entries: Sequence[FileEntry], changes: Changes
) -> list[Settled | str]:
    """What the commit of each group deletes in its outputs, or why the group is left out."""
    touched = touched_groups([group.planned.file_group for group in groups], entries)
    found: list[Settled | str] = []
    for index, group in enumerate(groups):
        inputs = [part.inputs or () for part in group.parts]
        if index not in touched:
            found.append(settle(inputs))
        elif _can_follow(now, group):
            of_inputs = changes.of_inputs(group.planned.file_group)
            found.append(_rebased(now, inputs, of_inputs))
        else:
            found.append(touched[index])
    return found


def _can_follow(now: TableView, group: GroupResult) -> bool:
    """Whether deletes can follow the group's rows: their places are known, unless Spark wrote them."""
    known = all(part.inputs is not None for part in group.parts)
    return known and now.metadata.format_version >= FIRST_VERSION_WITH_DELETES


def _rebased(
    now: TableView, inputs: Sequence[Sequence[InputRows]], changes: Mapping[str, InputChange]
) -> Settled | str:
    unread = [delete.path for change in changes.values() for delete in change.read if not can_read(delete)]
    if unread:
        return f"delete file {unread[0]}, which only Iceberg's own reader can read, was added"
    try:
        return settle(inputs, changes, partial(read_positions, now))
    except GiveUpError as error:
        return str(error)


def _dangling(
    plan: TablePlan, pairs: Sequence[Pair], entries: Sequence[FileEntry], changes: Changes
) -> tuple[FileEntry, ...]:
    """Delete files that apply to no data file after the commit.

    Files that an earlier commit of the run replaced do not count: it may have been rolled back since. Nor do delete
    files that a writer has committed once more since the plan: the newer entry may apply to data files to which the
    planned one does not, and a commit would remove both.
    """
    rewritten = {file.entry.path for group, _ in pairs for file in group.planned.file_group.files}
    changed = {entry.identity for entry in entries if entry.content is not Content.DATA}
    return (*dangling_deletes(plan.coverable_deletes, rewritten, changed), *changes.new_ones_of(rewritten))


def _new_deletes(head: Head, pairs: Sequence[Pair], location: str) -> NewDeletes:
    """Write the delete files of the outputs."""
    deleted = [
        DeletedRows(group.planned.file_group.key, str(part.outputs[0].location()), positions)
        for group, settled in pairs
        for part, positions in zip(group.parts, settled.deleted, strict=True)
        if positions
    ]
    from_head = not head.traced or any(settled.touched for _, settled in pairs)
    compared = head.table.snapshot.snapshot_id if head.table.snapshot else None
    return NewDeletes(
        files=tuple(write_deletes(head.table, location, deleted)),
        rows=sum(len(each.positions) for each in deleted),
        validated_at=compared if from_head else None,
        compared=compared,
        compared_number=head.table.snapshot.sequence_number if head.table.snapshot else None,
    )
