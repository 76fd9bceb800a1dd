"""Convert equality deletes to positions: no data file is rewritten, only key columns are read.

One `replace` commit removes the equality deletes and adds deletion vectors (V3) or position delete files (V2) for the
rows that they delete. The next conversion finds the equality deletes that are there then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from pyroaring import BitMap64

from compactor.commit.history import CommitSummary
from compactor.commit.output_check import missing_files
from compactor.commit.updates import Changes, ReplaceUpdate
from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.events import EqualityDeletesConverted, Listener
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
from compactor.rewrite.tasks.output_task import attempt_search
from compactor.rewrite.tasks.spark_scan import run_folder
from compactor.rewrite.tasks.task_input import input_files
from compactor.runs.committable import Head, Pending
from compactor.runs.committing import commit
from compactor.runs.key_searches import KeySearches, Outcome
from compactor.runs.output_record import OutputRecords
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import ALWAYS_ON, RunSupervisor, RunWatch, Switches, stall_explained
from compactor.spark.java_table import JavaTable
from compactor.table_names import TableName

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


@dataclass(frozen=True)
class _Found:
    """Rows of all searches, by data file, and the searches that were refused."""

    by_value: Mapping[str, bytes]
    by_position: Mapping[str, bytes]
    bytes_read: int
    refused: Sequence[Sequence[LiveFile]]
    why: str


class Converting:
    """One conversion of one table. It can be stopped at any time except while it commits."""

    def __init__(
        self,
        tools: RunTools,
        table: TableView,
        conversion: Conversion,
        run_id: str,
        switches: Switches = ALWAYS_ON,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
        charge: Charge = uncharged,
    ) -> None:
        self._tools = tools
        self._table = table
        self._conversion = conversion
        self._run_id = run_id
        self._switches = switches
        self._progress = progress
        self._charge = charge
        self.refused = False
        """Whether searches have failed: their files are held, also if the conversion was given up."""

    def convert(self) -> ConversionResult:
        """Search the rows that the equality deletes delete, and commit their positions.

        Raises:
            ReplanError: another commit touched the files; nothing was committed, the next attempt may succeed.
            StoppedError: the switches said so; nothing was committed.
            FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
        """
        tools, table, run_id, conversion = self._tools, self._table, self._run_id, self._conversion
        started, snapshot = tools.ticks(), table.snapshot
        nothing = nothing_converted(table, conversion, run_id)
        if snapshot is None or not conversion.deletes:
            return nothing
        tools.lifelines.moved(table.name)
        java = JavaTable.load(tools.session, table, snapshot.snapshot_id)
        records = OutputRecords(tools.records, tools.catalogs, tools.cache, tools.right, tools.listener)
        supervisor = RunSupervisor(
            tools.records,
            self._cancel,
            tools.lease_seconds,
            tools.check_seconds,
            lambda: tools.lifelines.stalled(table.name),
        )
        around = records.around(run_id, table, (), (run_folder(java, run_id),))
        with (
            around as record,
            supervisor.watch(record, self._switches) as watch,
            stall_explained(watch, f"the conversion of {table.name}"),
        ):
            found = self._searched(watch)
            job = _ConversionCommit(
                java, conversion, found, tools.committing.summary(table, run_id, [ENGINE]), self._charge, tools.listener
            )
            pending = Pending(java, run_id, record, watch, self._switches, self._charge)
            landed = commit(job, pending, tools.committing)
        # A lost race may have left files.
        records.close(record, clean=True, rolls_back=landed is not None and tools.committing.rolls_back(table))
        files, removed = conversion.files, len(converted(conversion, found.refused, frozenset()))
        return replace(
            nothing,
            snapshot_after=landed.snapshot_id if landed else None,
            deletes_removed=removed if landed else 0,
            deletes_left=len(conversion.deletes) - removed + conversion.refused,
            why=found.why or conversion.why,
            rows=sum(len(BitMap64.deserialize(positions)) for positions in found.by_value.values()) if landed else 0,
            files_hit=len(found.by_value),
            files_searched=len(files),
            bytes_read=found.bytes_read,
            bytes_searched=conversion.bytes,
            seconds=tools.ticks() - started,
        )

    def _cancel(self) -> None:
        self._tools.session.sparkContext.cancelJobGroup(self._run_id)

    def _searched(self, watch: RunWatch) -> _Found:
        """Search all data files. Those of searches that failed are left out of the next conversions for a while.

        Raises:
            GiveUpError, RetryError: no search succeeded; the error of the first that failed.
            FirnlineError: by class the reaction.
        """
        tools, name, searches = self._tools, self._table.name, self._conversion.searches
        moved = partial(tools.lifelines.moved, name)
        jobs = KeySearches(self._search, str(name), tools.slots, watch.stopped, moved)
        outcomes: list[Outcome] = []
        for number, outcome in enumerate(jobs.outcomes(searches), 1):
            outcomes.append(outcome)
            moved()
            self._progress(number, len(searches))
        pairs = list(zip(searches, outcomes, strict=True))
        found = [outcome for _, outcome in pairs if isinstance(outcome, FoundRows)]
        refused = [(files, _why(outcome)) for files, outcome in pairs if not isinstance(outcome, FoundRows)]
        failed = [(files, each) for files, each in pairs if isinstance(each, FirnlineError)]
        held = [(files, GiveUpError(each.sentence)) for files, each in pairs if isinstance(each, Refusal)]
        self.refused = bool(failed or held)
        tools.files.note(self._table, [(_paths(files), error) for files, error in (*failed, *held)], What.SEARCH)
        if failed and not found:
            raise failed[0][1]
        return _Found(
            by_value={path: rows for each in found for path, rows in each.by_value.items()},
            by_position={path: rows for each in found for path, rows in each.by_position.items()},
            bytes_read=sum(each.bytes_read for each in found),
            refused=[files for files, _ in refused],
            why=refused[0][1] if refused else "",
        )

    def _search(self, files: Sequence[LiveFile]) -> FoundRows | Refusal | FirnlineError:
        """Run the Spark job of one search, and charge what it has read."""
        context = self._tools.session.sparkContext
        try:
            context.setJobGroup(self._run_id, f"firnline {self._table.name} conversion", True)
            outcome: FoundRows | Refusal | FirnlineError
            (outcome,) = context.parallelize([input_files(self._table, files)], 1).map(attempt_search).collect()
        except Exception:
            size = searched_bytes(files, len(self._table.metadata.schema().column_names))
            self._charge(Spent(size, requests_of(len(files), 0, size)))  # what it has read is not known
            raise
        if isinstance(outcome, FoundRows):
            self._charge(Spent(outcome.bytes_read, outcome.reads))
        else:
            self._charge(Spent(requests=requests_of(len(files), 0, 0)))  # what it has read until then is not known
        return outcome


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


def _paths(files: Sequence[LiveFile]) -> frozenset[str]:
    return frozenset(file.entry.path for file in files)


def _why(outcome: Refusal | GiveUpError | RetryError | None) -> str:
    if outcome is None:
        return "not searched: the store answered no search any more"
    return outcome.sentence if isinstance(outcome, Refusal) else str(outcome)


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
