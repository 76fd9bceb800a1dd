"""What commits rewritten file groups; deletes of other commits follow the rows.

Before the commit is sent, file groups are compared with the commits made since the plan. Rows that these deleted are
deleted in the outputs too. A group is left out if one of its files was removed, or if it is unknown where its rows are.
If Iceberg's own validation then finds a conflict, another commit came in between, and the groups are compared again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath

from compactor.commit.history import CommitSummary
from compactor.commit.output_check import missing_files
from compactor.commit.updates import Changes, Replacement, ReplaceUpdate
from compactor.errors import GiveUpError, ReplanError, RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.other_compactors import flink_converts
from compactor.iceberg.tables import TableView
from compactor.planning.budget import Charge, Spent, requests_of, uncharged
from compactor.planning.conflicts import touched_groups
from compactor.planning.dangling_deletes import dangling_deletes
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.rebase.delete_files import DeletedRows, can_read, copy_files, read_positions, write_deletes
from compactor.rebase.input_changes import InputChange, OthersChanges
from compactor.rebase.settle import Settled, settle
from compactor.rewrite.deletes.row_maps import InputRows
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.rewrite.tasks.spark_scan import run_folder
from compactor.runs.committable import Head
from compactor.runs.results import DroppedGroup, GroupResult, overtaken, taken_away
from compactor.spark.java_table import JavaTable

Pair = tuple[GroupResult, Settled]
FIRST_VERSION_WITH_DELETES = 2


@dataclass(eq=False)
class PreparedGroups:
    """One attempt to commit file groups.

    Attributes:
        kept: The groups that it commits; `dropped`: those that were left out so far.
        dangling: Delete files that leave.
        deletes: Locations and sizes of the new delete files.
        copies: Locations of copies of delete files.
    """

    commit: GroupCommit
    table: TableView
    kept: tuple[GroupResult, ...]
    dropped: tuple[DroppedGroup, ...]
    dangling: Sequence[FileEntry]
    deletes: Mapping[str, int]
    location: str
    update: ReplaceUpdate = field(init=False)
    copies: set[str] = field(default_factory=set)

    @property
    def sizes(self) -> dict[str, int | None]:
        """All files that it adds, with their sizes; None: any."""
        outputs = (_sizes(part) for group in self.kept for part in group.parts)
        return {
            location: size
            for each in (self.deletes, dict.fromkeys(self.copies), *outputs)
            for location, size in each.items()
        }

    @property
    def files(self) -> Collection[str]:
        """As of `Prepared`."""
        return self.sizes

    def check_outputs(self) -> None:
        """As of `Prepared`: the next attempt leaves groups out whose outputs are missing, and writes delete files."""
        self.commit.check_outputs(self)

    def copied(self, files: Collection[str]) -> Mapping[str, str]:
        """Copies of these delete files by their locations. Raises as `GroupCommit.copied`."""
        copies = self.commit.copied(self.table, self.location, files)
        self.copies.update(copies.values())
        return copies


class GroupCommit:
    """Commits `groups` as one snapshot, without those that other commits touched in another way than by deletes.

    The same commit removes delete files that apply to no data file any more; without `groups` it removes only these.
    Groups that are left out of one attempt are left out of the next ones too.
    """

    waits_for_writers = True

    def __init__(
        self,
        java: JavaTable,
        plan: TablePlan,
        groups: Sequence[GroupResult],
        summary: CommitSummary,
        charge: Charge = uncharged,
        listener: Listener = ignore,
    ) -> None:
        self.summary = summary
        self.stage = "hold"
        self.attempts = 0
        self.dropped: tuple[DroppedGroup, ...] = ()
        self._java = java
        self._plan = plan
        self._charge = charge
        self._listener = listener
        self._only_deletes = not groups
        self._kept = tuple(groups)
        self._missing: set[str] = set()
        self._copies: dict[str, str] = {}
        """Copies of delete files, by the location of the file, of all attempts."""
        self._awaited: frozenset[str] = frozenset()
        """Equality deletes that Flink's converter must convert first, as an attempt has found."""

    def prepare(self, head: Head) -> PreparedGroups | None:
        """As of `Committable`: leave out what cannot be committed any more, and write the delete files of the rest."""
        self.attempts = head.attempt
        self._leave_out_missing()
        changes = OthersChanges(head.changes)
        settled = _settled(head.table, self._kept, head.changes, changes)
        found = list(zip(self._kept, settled, strict=True))
        pairs = [(group, each) for group, each in found if isinstance(each, Settled)]
        left_out = [(group, why) for group, why in found if isinstance(why, str)]
        self._kept = tuple(group for group, _ in pairs)
        self.dropped += tuple(overtaken(group.planned, self._plan.table.name, why) for group, why in left_out)
        dangling = _dangling(self._plan, pairs, head.changes, changes)
        if not self._kept and not (self._only_deletes and dangling):
            return None
        if self._kept:
            self._check_awaited(head.table, changes)
        part = self.summary.part.replace("/", "-")
        # in the run's own folder, which the record lists: what no snapshot references is deleted with it
        location = f"{run_folder(self._java, self.summary.run_id)}/deletes-{part}-{head.attempt}"
        return self._prepared(head, pairs, dangling, location)

    def _prepared(
        self, head: Head, pairs: Sequence[Pair], dangling: Sequence[FileEntry], location: str
    ) -> PreparedGroups:
        deleted = [
            DeletedRows(group.planned.file_group.key, str(part.outputs[0].location()), positions)
            for group, settled in pairs
            for part, positions in zip(group.parts, settled.deleted, strict=True)
            if positions
        ]
        written = write_deletes(head.table, location, deleted)
        self._charge(Spent(requests=requests_of(0, len(written), 0)))
        kept = tuple(replace(group, rows_carried=each.carried, rows_rebased=each.rebased) for group, each in pairs)
        sizes = {str(file["file-path"]): int(file["file-size-in-bytes"]) for file in written}
        prepared = PreparedGroups(self, head.table, kept, self.dropped, dangling, sizes, location)
        compared, from_head = head.table.snapshot, not head.traced or any(settled.touched for _, settled in pairs)
        changes = Changes(
            replacements=[
                Replacement(part.scan_tasks, part.outputs, part.files_in) for group in kept for part in group.parts
            ],
            dangling=dangling,
            deletes=written,
            rows=sum(len(each.positions) for each in deleted),
            validated_at=compared.snapshot_id if compared and from_head else None,
            compared=compared.snapshot_id if compared else None,
            compared_number=compared.sequence_number if compared else None,
            copied=prepared.copied,
        )
        prepared.update = ReplaceUpdate(self._java, changes, self.summary, self._listener)
        return prepared

    def _leave_out_missing(self) -> None:
        """Leave out groups of which an output was missing when it was looked at."""
        kept: list[GroupResult] = []
        for group in self._kept:
            lost = [location for part in group.parts for location in _sizes(part) if location in self._missing]
            if lost:
                self.dropped += (taken_away(group.planned, self._plan.table.name, lost[0]),)
            else:
                kept.append(group)
        self._kept = tuple(kept)

    def check_outputs(self, prepared: PreparedGroups) -> None:
        """Look at every file that an attempt adds.

        Raises:
            ReplanError: some are missing.
            FirnlineError: the store does not answer.
        """
        sizes = prepared.sizes
        self._charge(Spent(requests=len(sizes)))
        self._missing = missing_files(prepared.table, sizes)
        self._copies = {file: copy for file, copy in self._copies.items() if copy not in self._missing}
        if self._missing:
            raise ReplanError(
                f"{prepared.table.name}: {len(self._missing)} files of run {self.summary.run_id} were deleted before "
                f"they were committed, e.g. {min(self._missing)}",
                reason=Reason.CONFLICT,
            )

    def _check_awaited(self, table: TableView, changes: OthersChanges) -> None:
        """Check, before anything is written, that no equality delete is left for which an earlier attempt has to wait.

        Only Iceberg knows which ones its snapshot would lose. The files of a group that is left out since then may stay
        in the table, and with them the delete: Iceberg is asked again.

        Raises:
            RetryError: it is left.
        """
        left = [path for path in self._awaited if changes.times[path, None] > 0]
        if left and not self.dropped:
            self._check_converter(table, left)

    def _check_converter(self, table: TableView, files: Collection[str]) -> None:
        """Check that these equality deletes may be copied.

        Raises:
            RetryError: Flink's converter works on the table: it fails for ever at a snapshot that removes data files
                and adds an equality delete. Its next commit replaces the delete, and the rewrite follows that.
        """
        if flink_converts(table.history):
            self._awaited = frozenset(files)
            raise RetryError(
                f"{table.name}: Flink's converter has not converted the equality delete {min(files)} yet, which was "
                "committed during the rewrite; a copy of it would stop that converter. A finished rewrite waits for "
                "ten minutes: let the converter commit more often, or rewrite right after its commit",
                reason=Reason.FLINK_CONVERTER,
            )

    def copied(self, table: TableView, location: str, files: Collection[str]) -> Mapping[str, str]:
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
        self._charge(Spent(size, requests_of(len(copies), len(copies), size)))
        self._copies |= copies
        return {file: self._copies[file] for file in files}


def _sizes(part: WrittenOutput) -> dict[str, int | None]:
    """The outputs' sizes by location; None where Iceberg may count the bytes before they were encrypted."""
    return {
        str(output.location()): int(output.fileSizeInBytes()) if output.keyMetadata() is None else None
        for output in part.outputs
    }


def _settled(
    now: TableView, groups: Sequence[GroupResult], entries: Sequence[FileEntry], changes: OthersChanges
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
    plan: TablePlan, pairs: Sequence[Pair], entries: Sequence[FileEntry], changes: OthersChanges
) -> tuple[FileEntry, ...]:
    """Delete files that apply to no data file after the commit.

    Files that an earlier commit of the run replaced do not count: it may have been rolled back since. Nor do delete
    files that a writer has committed once more since the plan: the newer entry may apply to data files to which the
    planned one does not, and a commit would remove both.
    """
    rewritten = {file.entry.path for group, _ in pairs for file in group.planned.file_group.files}
    changed = {entry.identity for entry in entries if entry.content is not Content.DATA}
    return (*dangling_deletes(plan.coverable_deletes, rewritten, changed), *changes.new_ones_of(rewritten))
