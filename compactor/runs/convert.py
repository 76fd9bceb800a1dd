"""Convert equality deletes to positions: no data file is rewritten, only key columns are read.

One `replace` commit removes the equality deletes and adds deletion vectors (V3) or position delete files (V2) for the
rows that they delete. The next conversion finds the equality deletes that are there then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from pyroaring import BitMap64

from compactor.commit.history import CommitSummary
from compactor.commit.in_flight import new_run_id
from compactor.commit.output_check import missing_files
from compactor.commit.updates import Changes, ReplaceUpdate
from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.events import EqualityDeletesConverted, Listener, RunSkipped
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile
from compactor.patience.holds import What
from compactor.planning.budget import Charge, Spent, requests_of, uncharged
from compactor.planning.conversion import Conversion, converted, overtaken_by, searched_bytes
from compactor.reasons import Reason, Refusal
from compactor.rebase.delete_files import DeletedRows, read_positions, write_deletes
from compactor.rebase.input_changes import OthersChanges
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.rewrite.deletes.row_maps import bitmap
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.output_task import attempt_search
from compactor.rewrite.tasks.spark_scan import run_folder
from compactor.rewrite.tasks.task_input import input_files
from compactor.runs.committable import Head, Landed
from compactor.runs.failures import failure_of, is_no_answer
from compactor.runs.frame import Job, Part, carry_out
from compactor.runs.kinds import Desk, Step, Turn
from compactor.runs.output_record import Outputs
from compactor.runs.pool import Ran, Room
from compactor.runs.results import NotTriedError
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import ALWAYS_ON, Switches
from compactor.spark.java_table import JavaTable
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
ENGINE = "convert"


@dataclass(frozen=True)
class ConversionResult:
    """What a conversion did. `snapshot_after` is None if there was nothing to convert, or nothing that can be.

    Attributes:
        deletes_removed: Equality delete files that were converted.
        deletes_left: Equality delete files that could not be converted, and `why`.
        rows: Rows that are now deleted by position.
        files_hit: Data files with such rows.
        files_searched: Data files to which equality deletes applied.
        bytes_read: Of data files.
        bytes_searched: Sizes of the data files that were searched.
    """

    table: TableName
    run_id: str
    snapshot_before: int | None
    snapshot_after: int | None = None
    deletes_removed: int = 0
    deletes_left: int = 0
    why: str = ""
    rows: int = 0
    files_hit: int = 0
    files_searched: int = 0
    bytes_read: int = 0
    bytes_searched: int = 0
    seconds: float = 0.0

    def as_event(self) -> EqualityDeletesConverted:
        """The event of a conversion that was committed."""
        return EqualityDeletesConverted(
            run_id=self.run_id,
            table=self.table,
            snapshot_id=self.snapshot_after or 0,
            delete_files=self.deletes_removed,
            rows=self.rows,
            files=self.files_searched,
            bytes_read=self.bytes_read,
            seconds=self.seconds,
        )


def nothing_converted(table: TableView, conversion: Conversion, run_id: str) -> ConversionResult:
    """The result of a conversion that has nothing to convert, or nothing that can be."""
    before = table.snapshot.snapshot_id if table.snapshot else None
    return ConversionResult(table.name, run_id, before, deletes_left=conversion.refused, why=conversion.why)


class _RefusedError(GiveUpError):
    """A search that was refused, for the reason that the message says."""


@dataclass(frozen=True)
class _Found:
    """Rows of all searches, by data file, and the searches without a result: deletes that apply to their files stay."""

    by_value: Mapping[str, bytes]
    by_position: Mapping[str, bytes]
    bytes_read: int
    refused: Sequence[Sequence[LiveFile]]
    why: str = ""


class Converting(Job[FoundRows | Refusal]):
    """One conversion of one table: a piece is the search of some data files by one Spark task."""

    verb, kind, holds = "converting deletes of", "convert", What.SEARCH
    _java: JavaTable
    _found: _Found

    def __init__(
        self,
        tools: RunTools,
        table: TableView,
        conversion: Conversion,
        run_id: str,
        switches: Switches = ALWAYS_ON,
        charge: Charge = uncharged,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        super().__init__(tools, table, run_id, switches, charge)
        self.conversion = conversion
        self._progress = progress
        self._searched = count(1)
        self._landed: Landed[_Prepared] | None = None
        self._started = tools.ticks()
        self.result = nothing_converted(table, conversion, run_id)
        self.refused = False
        """Whether searches have failed: their files are held, also if the conversion was given up."""

    def convert(self) -> ConversionResult:
        """Search the rows that the equality deletes delete, and commit their positions. A failure is published.

        Raises:
            ReplanError: another commit touched the files; nothing was committed, the next attempt may succeed.
            StoppedError: the switches said so; nothing was committed.
            FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
        """
        if self.table.snapshot is not None and self.conversion.deletes:
            carry_out(self)
        return self.result

    def begin(self) -> Outputs:
        snapshot_id = self.table.snapshot.snapshot_id if self.table.snapshot else 0
        self._java = JavaTable.load(self.tools.session, self.table, snapshot_id)
        return Outputs((), (run_folder(self._java, self.run_id),))

    def parts(self) -> Sequence[Part]:
        return [Part("1/1", [TaskId(number, 0) for number in range(len(self.conversion.searches))])]

    def run(self, bundle: Sequence[TaskId], _room: Room) -> Mapping[TaskId, FoundRows | Refusal | Exception]:
        """Run the Spark job of one search, and charge what it has read."""
        (piece,) = bundle
        files, context = self.conversion.searches[piece.group], self.tools.session.sparkContext
        try:
            context.setJobGroup(self.run_id, f"firnline {self.table.name} conversion", True)
            outcome: FoundRows | Refusal | FirnlineError
            (outcome,) = context.parallelize([input_files(self.table, files)], 1).map(attempt_search).collect()
        except Exception:
            size = searched_bytes(files, len(self.table.metadata.schema().column_names))
            self.charge(Spent(size, requests_of(len(files), 0, size)))  # what it has read is not known
            raise
        if isinstance(outcome, FoundRows):
            self.charge(Spent(outcome.bytes_read, outcome.reads))
        else:
            self.charge(Spent(requests=requests_of(len(files), 0, 0)))  # what it has read until then is not known
        if not isinstance(outcome, Exception):
            self._progress(next(self._searched), len(self.conversion.searches))
        return {piece: outcome}

    def failure(self, piece: TaskId, error: Exception) -> FirnlineError:
        paths = [file.entry.path for file in self.conversion.searches[piece.group]]
        return failure_of(f"searching deleted rows of {self.table.name}", error, paths)

    def paths(self, group: int) -> Collection[str]:
        return frozenset(file.entry.path for file in self.conversion.searches[group])

    def checked(self, _part: Part, ran: Ran[FoundRows | Refusal]) -> Mapping[int, FirnlineError]:
        outcomes = {piece.group: done for piece, done in sorted(ran.done.items())}
        found = [done for done in outcomes.values() if isinstance(done, FoundRows)]
        self._found = _Found(
            by_value={path: rows for each in found for path, rows in each.by_value.items()},
            by_position={path: rows for each in found for path, rows in each.by_position.items()},
            bytes_read=sum(each.bytes_read for each in found),
            refused=[
                files
                for number, files in enumerate(self.conversion.searches)
                if not isinstance(outcomes.get(number), FoundRows)
            ],
        )
        refused = {
            number: _RefusedError(done.sentence) for number, done in outcomes.items() if isinstance(done, Refusal)
        }
        return dict(sorted((ran.failed | refused).items()))

    def leave(self, failed: Mapping[int, FirnlineError]) -> None:
        """Raise the error of the first search that failed, if none has succeeded.

        Raises:
            GiveUpError, RetryError: see above.
        """
        self._found = replace(self._found, why=str(next(iter(failed.values()), "")))
        tried = [error for error in failed.values() if not isinstance(error, NotTriedError)]
        self.refused = bool(tried)
        errors = [error for error in tried if not isinstance(error, _RefusedError)]
        if errors and len(self._found.refused) == len(self.conversion.searches):
            raise errors[0]

    def end(self) -> None:
        conversion, found, landed = self.conversion, self._found, self._landed
        removed = len(converted(conversion, found.refused, frozenset()))
        self.result = replace(
            self.result,
            snapshot_after=landed.snapshot_id if landed else None,
            deletes_removed=removed if landed else 0,
            deletes_left=len(conversion.deletes) - removed + conversion.refused,
            why=found.why or conversion.why,
            rows=sum(len(BitMap64.deserialize(positions)) for positions in found.by_value.values()) if landed else 0,
            files_hit=len(found.by_value),
            files_searched=len(conversion.files),
            bytes_read=found.bytes_read,
            bytes_searched=conversion.bytes,
            seconds=self.tools.ticks() - self._started,
        )

    def commit(self, _part: Part) -> bool:
        tools = self.tools.committing
        summary = tools.summary(self.table, self.run_id, [ENGINE])
        job = _ConversionCommit(self._java, self.conversion, self._found, summary, self.charge, tools.listener)
        self._landed = self.send(job, self._java)
        return self._landed is not None


@dataclass(frozen=True)
class _Prepared:
    """One attempt to commit a conversion. `sizes`: of its delete files, by location."""

    table: TableView
    update: ReplaceUpdate
    sizes: Mapping[str, int | None]
    charge: Charge

    @property
    def files(self) -> Collection[str]:
        """As of `Prepared`."""
        return self.sizes

    def check_outputs(self) -> None:
        """As of `Prepared`: the next attempt writes them again."""
        self.charge(Spent(requests=len(self.sizes)))
        missing = missing_files(self.table, self.sizes)
        if missing:
            raise ReplanError(
                f"{self.table.name}: {min(missing)} was deleted before it was committed; let remove_orphan_files spare "
                "files of the last days",
                reason=Reason.CONFLICT,
            )


@dataclass
class _ConversionCommit:
    """Commits the positions of the rows that were found."""

    java: JavaTable
    conversion: Conversion
    found: _Found
    summary: CommitSummary
    charge: Charge
    listener: Listener
    stage: str = "hold"
    waits_for_writers: ClassVar[bool] = True

    def prepare(self, head: Head) -> _Prepared | None:
        """As of `Committable`: write the positions. None: no equality delete can be removed."""
        conversion, now = self.conversion, head.table
        gone = {entry.identity for entry in head.changes if entry.status is Status.DELETED}
        removed = converted(conversion, self.found.refused, gone)
        if not removed:
            return None
        conflict = overtaken_by(removed, conversion.files, head.changes)
        if conflict is not None:
            raise ReplanError(f"{now.name}: {conflict}; the next conversion finds it", reason=Reason.CONFLICT)
        rows, replaced = _new_rows(now, conversion, self.found, head.changes)
        location = f"{run_folder(self.java, self.summary.run_id)}/converted-{head.attempt}"
        self.charge(Spent(requests=requests_of(0, len(rows), 0)))
        compared = now.snapshot.snapshot_id if now.snapshot else None
        changes = Changes(
            dangling=[*removed, *replaced],
            deletes=write_deletes(now, location, rows),
            rows=sum(len(each.positions) for each in rows),
            validated_at=compared,
            compared=compared,
        )
        update = ReplaceUpdate(self.java, changes, self.summary, self.listener)
        sizes = {str(file["file-path"]): int(file["file-size-in-bytes"]) for file in changes.deletes}
        return _Prepared(now, update, sizes, self.charge)


def _new_rows(
    now: TableView, conversion: Conversion, found: _Found, changes: Sequence[FileEntry]
) -> tuple[list[DeletedRows], list[FileEntry]]:
    """Positions to delete in each data file, and the vectors that they replace (V3: one vector for each file).

    Raises:
        GiveUpError: a vector of another commit is damaged.
        RetryError: the store does not answer.
    """
    taken_away = {entry.path for entry in changes if entry.content is Content.DATA and entry.status is Status.DELETED}
    files = [file for file in conversion.files if file.entry.path in found.by_value.keys() - taken_away]
    rows = {file.entry.path: BitMap64.deserialize(found.by_value[file.entry.path]) for file in files}
    replaced: list[FileEntry] = []
    if now.keeps_row_lineage:
        seen = OthersChanges(changes)
        newer = {path: tuple(each for each in seen.new_ones_of({path}) if each.is_deletion_vector) for path in rows}
        newer = {path: vectors for path, vectors in newer.items() if vectors}
        for path, positions in read_positions(now, newer).items():
            rows[path] |= bitmap(positions)
        for file in files:
            path = file.entry.path
            if path not in newer and found.by_position.get(path):
                rows[path] |= BitMap64.deserialize(found.by_position[path])
            replaced += newer.get(path) or [delete for delete in file.deletes if delete.is_deletion_vector]
    return [DeletedRows(file.entry.key, file.entry.path, rows[file.entry.path]) for file in files], replaced


@dataclass(frozen=True)
class Conversions:
    """Converts equality deletes where that pays, before anything is rewritten."""

    desk: Desk
    name: str = "conversions"

    def is_due(self, turn: Turn) -> bool:
        return bool(turn.debt.due) and not turn.debt.requested

    def work(self, turn: Turn) -> Step | None:
        """The table's other work goes on after a failure that was given up, or without an answer."""
        planner, tools, table = self.desk.planner, self.desk.tools, turn.table
        conversion = planner.conversion(turn.debt, table, turn.left)
        if not conversion.deletes:
            return None
        converting = Converting(tools, table, conversion, new_run_id(table), turn.switches, turn.charge)
        try:
            self.desk.carry_out(converting)
        except GiveUpError as error:
            if not converting.refused:
                tools.files.note(table, [([file.entry.path for file in conversion.files], error)], What.SEARCH)
            return Step()
        except RetryError as error:
            if not is_no_answer(error):  # to these searches, or only to the commit
                raise
            return Step(failed=error)
        done = converting.result
        if converting.refused:
            LOG.warning("%s: %s equality deletes are not converted: %s", table.name, done.deletes_left, done.why)
            tools.listener(RunSkipped(table=table.name, reason=Reason.CONVERSION_REFUSED))
        if done.snapshot_after is None:
            return Step()
        planner.board.settled(table.name)
        tools.listener(done.as_event())
        self.desk.announce(table.name)
        return Step(commits=1, ends=True)
