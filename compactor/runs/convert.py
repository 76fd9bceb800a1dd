"""Convert equality deletes to positions: no data file is rewritten, only key columns are read.

One `replace` commit removes the equality deletes and adds deletion vectors (V3) or position delete files (V2) for the
rows that they delete. Nothing is kept between two conversions: the next one finds the equality deletes committed since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from py4j.protocol import Py4JError
from pyroaring import BitMap64

from compactor.commit.replace import CommitSummary, NewDeletes, commit_replacements
from compactor.errors import FirnlineError, GiveUpError, ReplanError, StoppedError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile
from compactor.planning.conflicts import changes_since
from compactor.planning.conversion import Conversion, converted, overtaken_by, plan_conversion
from compactor.planning.inventory import take_inventory
from compactor.reasons import Reason, Refusal
from compactor.rebase.delete_files import DeletedRows, write_deletes
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.rewrite.deletes.row_maps import unpacked
from compactor.rewrite.tasks.output_task import attempt_search
from compactor.rewrite.tasks.spark_scan import run_folder
from compactor.rewrite.tasks.task_input import search_task
from compactor.runs.output_record import OutputRecords
from compactor.runs.run import RunTools
from compactor.spark.java_table import JavaTable, first_line
from compactor.table_names import TableName

ENGINE = "convert"
RACES = 5
"""Commits that may come between the check and the commit, in a row, before the conversion ends."""


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


@dataclass(frozen=True)
class _Found:
    """Rows of all searches, by data file, and the searches that were refused."""

    by_value: Mapping[str, bytes]
    by_position: Mapping[str, bytes]
    bytes_read: int
    refused: Sequence[Sequence[LiveFile]]
    why: str


class Converter:
    """Converts equality deletes with the tools that all runs of the process share."""

    def __init__(self, tools: RunTools, clock: Callable[[], float] = time.monotonic) -> None:
        self._tools = tools
        self._clock = clock

    def convert(
        self,
        table: TableView,
        run_id: str,
        *,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> ConversionResult:
        """Convert the equality deletes of a table at its current snapshot.

        Raises:
            ReplanError: another commit touched the files; nothing was committed, the next attempt may succeed.
            StoppedError: `stopping` said so; nothing was committed.
            FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
        """
        started, tools = self._clock(), self._tools
        snapshot = table.snapshot
        nothing = ConversionResult(table.name, run_id, snapshot.snapshot_id if snapshot else None)
        conversion = plan_conversion(take_inventory(table, tools.cache))
        if snapshot is None or not conversion.deletes:
            return nothing
        java = JavaTable.load(tools.session, table, snapshot.snapshot_id)
        records = OutputRecords(tools.records, tools.catalogs, tools.cache, tools.right)
        folder = run_folder(java, run_id)
        with records.around(run_id, table, (), (folder,)) as record:
            found = self._searched(table, conversion, run_id, stopping, progress)
            done = self._committed(java, conversion, found, run_id, partial(tools.records.renew, record))
        records.delete_unreferenced(record)  # a lost race may have left files
        tools.records.close(record)
        files = conversion.files
        return ConversionResult(
            table=table.name,
            run_id=run_id,
            snapshot_before=snapshot.snapshot_id,
            snapshot_after=done,
            deletes_removed=len(converted(conversion, found.refused, frozenset())) if done else 0,
            deletes_left=len(conversion.deletes) - len(converted(conversion, found.refused, frozenset())),
            why=found.why,
            rows=sum(len(unpacked(positions)) for positions in found.by_value.values()) if done else 0,
            files_hit=len(found.by_value),
            files_searched=len(files),
            bytes_read=found.bytes_read,
            bytes_searched=sum(file.size for file in files),
            seconds=self._clock() - started,
        )

    def _searched(
        self,
        table: TableView,
        conversion: Conversion,
        run_id: str,
        stopping: Callable[[], bool],
        progress: Callable[[int, int], None],
    ) -> _Found:
        """Search all data files: a Spark job of one task for each search, as many at once as there are slots."""
        tools, name = self._tools, str(table.name)
        outcomes: list[FoundRows | Refusal] = []

        def one(files: Sequence[LiveFile]) -> FoundRows | Refusal:
            if not tools.slots.acquire(name, stopping):
                raise StoppedError(f"the conversion of {name} was stopped before its commit")
            try:
                tools.lifelines.moved(table.name)
                tools.session.sparkContext.setJobGroup(run_id, f"firnline {name} conversion", True)
                task = search_task(table, files)
                (outcome,) = tools.session.sparkContext.parallelize([task], 1).map(attempt_search).collect()
            except Py4JError as error:
                raise GiveUpError(
                    f"searching deleted rows of {name} failed: {first_line(error)}", reason=Reason.UNEXPECTED
                ) from error
            finally:
                tools.slots.release(name)
            if isinstance(outcome, FirnlineError):
                raise outcome
            found: FoundRows | Refusal = outcome
            return found

        with ThreadPoolExecutor(max(1, min(len(conversion.searches), tools.slots.book.capacity)), "convert") as pool:
            for number, outcome in enumerate(pool.map(one, conversion.searches), 1):
                outcomes.append(outcome)
                progress(number, len(conversion.searches))
        pairs = list(zip(conversion.searches, outcomes, strict=True))
        found = [outcome for _, outcome in pairs if isinstance(outcome, FoundRows)]
        refused = [(files, outcome) for files, outcome in pairs if isinstance(outcome, Refusal)]
        return _Found(
            by_value={path: rows for each in found for path, rows in each.by_value.items()},
            by_position={path: rows for each in found for path, rows in each.by_position.items()},
            bytes_read=sum(each.bytes_read for each in found),
            refused=[files for files, _ in refused],
            why=refused[0][1].sentence if refused else "",
        )

    def _committed(
        self, java: JavaTable, conversion: Conversion, found: _Found, run_id: str, renew: Callable[[], object]
    ) -> int | None:
        """Commit; the new snapshot's id, or None if no equality delete can be removed."""
        tools, table = self._tools, java.view
        summary = CommitSummary(
            run_id=run_id,
            engines=(ENGINE,),
            rollback_on_conflict=tools.commit.rolls_back(is_polaris=tools.catalogs.is_polaris(table.name.catalog)),
            deployment=tools.right.deployment,
        )

        def about_to_send() -> None:
            renew()
            tools.right.confirm()

        for race in range(1, RACES + 1):
            java.refresh()
            java.check_unchanged()
            now = tools.catalogs.load(table.name, table.ref)
            changes = changes_since(now, java.snapshot_id, tools.cache)
            gone = {entry.identity for entry in changes if entry.status is Status.DELETED}
            removed = converted(conversion, found.refused, gone)
            if not removed:
                return None
            conflict = overtaken_by(removed, changes)
            if conflict is not None:
                raise ReplanError(f"{table.name}: {conflict}; the next conversion finds it", reason=Reason.CONFLICT)
            rows, replaced = _new_rows(now, conversion, found, changes)
            location = f"{run_folder(java, run_id)}/converted-{race}"
            new = NewDeletes(
                files=tuple(write_deletes(now, location, rows)),
                rows=sum(len(each.positions) for each in rows),
                validated_at=now.snapshot.snapshot_id if now.snapshot else None,
                only_on=now.snapshot.snapshot_id if now.snapshot else None,
            )
            try:
                return commit_replacements(java, (), [*removed, *replaced], summary, about_to_send, new=new)
            except ReplanError as error:
                if error.reason != Reason.CONFLICT or race == RACES:
                    raise
        raise AssertionError("unreachable: the last race returns or raises")


def _new_rows(
    now: TableView, conversion: Conversion, found: _Found, changes: Sequence[FileEntry]
) -> tuple[list[DeletedRows], list[FileEntry]]:
    """Positions to delete in each data file, and the vectors that they replace.

    Raises:
        ReplanError: another commit deleted rows of such a file by a vector, which a new one would have to contain.
    """
    taken_away = {entry.path for entry in changes if entry.content is Content.DATA and entry.status is Status.DELETED}
    touched = {entry.applies_to for entry in changes if entry.is_deletion_vector}
    rows: list[DeletedRows] = []
    replaced: list[FileEntry] = []
    for file in conversion.files:
        path = file.entry.path
        if path not in found.by_value or path in taken_away:
            continue
        positions = BitMap64.deserialize(found.by_value[path])
        if now.keeps_row_lineage:  # V3: one vector for each file
            if path in touched:
                raise ReplanError(
                    f"rows of {path} were deleted while it was searched; the next conversion finds them",
                    reason=Reason.CONFLICT,
                )
            if found.by_position.get(path):
                positions |= BitMap64.deserialize(found.by_position[path])
            replaced += [delete for delete in file.deletes if delete.is_deletion_vector]
        rows.append(DeletedRows(file.entry.key, path, positions))
    return rows, replaced
