"""One rewrite run of one table: plan → note outputs → rewrite shares → check rows → one commit → refresh the cache.

The order is the safety: outputs are noted before the first byte, rows are checked before the commit, and a failure
after that point deletes nothing whose fate is unknown.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JNetworkError

from compactor.commit import Replacement, commit_replacements
from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, StoppedError
from compactor.events import GroupDropped, GroupRewritten, Listener, RunCommitted, RunFailed, RunPlanned, ignore
from compactor.in_flight import InFlightRecords, Record, delete_unreferenced
from compactor.java_table import JavaTable, first_line
from compactor.manifests import ManifestCache
from compactor.plan_table import PlannedGroup, TablePlan
from compactor.rewrite.engine import Engine, EngineChoice
from compactor.rewrite.share import Place, RewrittenShare, ShareRewriter
from compactor.table_names import TableName
from compactor.tables import Catalogs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


SPLICES_PER_SLOT = 4  # tasks a slot gets in one job: enough to level out, few enough to show progress
NO_HEAD = -1  # differs from every head: certainly uncommitted outputs need no waiting


@dataclass(frozen=True)
class GroupResult:
    """What became of one group; sizes in bytes. `rows_in - rows_deleted == rows_out` has been checked."""

    planned: PlannedGroup
    engine: EngineChoice
    files_in: int
    files_out: int
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_deleted: int
    rows_out: int


@dataclass(frozen=True)
class DroppedGroup:
    """A group that could not be rewritten; the run went on without it and its files are as they were."""

    planned: PlannedGroup
    error: FirnlineError


@dataclass(frozen=True)
class RunResult:
    """What one run did. `snapshot_after` is None when there was nothing to do."""

    run_id: str
    table: TableName
    snapshot_before: int | None
    snapshot_after: int | None
    groups: tuple[GroupResult, ...]
    plan_seconds: float
    rewrite_seconds: float
    commit_seconds: float
    dropped: tuple[DroppedGroup, ...] = ()

    @property
    def total_seconds(self) -> float:
        """Plan, rewrite and commit together."""
        return self.plan_seconds + self.rewrite_seconds + self.commit_seconds


Progress = Callable[[int, int, int], None]
"""Called with (shares done, shares in all, input bytes done)."""


@dataclass(frozen=True)
class RunWatch:
    """How the work and the thread that watches over it talk."""

    stopped: threading.Event
    committing: threading.Event
    finished: threading.Event

    def begin_commit(self, table: TableName, *, wanted: bool) -> None:
        """From here on the run can no longer be stopped.

        Raises:
            StoppedError: it has been stopped, or is not wanted any more.
        """
        if self.stopped.is_set() or not wanted:
            raise StoppedError(f"{table} was switched off before the commit; nothing was committed")
        self.committing.set()


@dataclass(frozen=True)
class _Finished:
    """One group after its tasks: its shares' outputs, or the error that costs it its place in the commit."""

    planned: PlannedGroup
    error: FirnlineError | None
    parts: Sequence[RewrittenShare]


def _costs_its_group(error: Exception) -> bool:
    """Whether the other groups can go on: nothing is wrong with the catalog, the store, the request or the machine."""
    return isinstance(error, GiveUpError) or not isinstance(error, FirnlineError | Py4JNetworkError)


def _as_firnline_error(plan: TablePlan, error: Exception) -> FirnlineError:
    if isinstance(error, FirnlineError):
        return error
    failure = GiveUpError(f"rewriting a group of {plan.table.name} failed: {first_line(error)}", reason="unexpected")
    failure.__cause__ = error
    return failure


class Rewriter:
    """Runs rewrites through one Spark session. `slots` bounds the tasks at work at once; it never changes a result."""

    def __init__(
        self,
        session: SparkSession,
        catalogs: Catalogs,
        cache: ManifestCache,
        records: InFlightRecords,
        *,
        slots: int,
        lease_seconds: float,
        check_seconds: float,
        listener: Listener = ignore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._catalogs = catalogs
        self._cache = cache
        self._records = records
        self._slots = max(1, slots)
        # A wave is one Spark job of splices. Where the stream runs beside, it must leave a core free.
        cores = int(session.sparkContext.defaultParallelism)
        self._wave = self._slots if self._slots < cores else self._slots * SPLICES_PER_SLOT
        self._lease_seconds = lease_seconds
        self._check_seconds = check_seconds
        self._listener = listener
        self._clock = clock

    def run(
        self,
        plan: TablePlan,
        *,
        enabled: Callable[[], bool] = lambda: True,
        stopping: Callable[[], bool] = lambda: False,
        waiting_since: float | None = None,
        run_id: str | None = None,
        progress: Progress | None = None,
    ) -> RunResult:
        """Carry out `plan`. Until the commit begins the run can be stopped: `stopping` is asked every second,
        `enabled` (the table's switch, a look at the catalog) every `check_seconds` and once more before the commit.
        A group that cannot be rewritten is dropped, the others go on; the run fails when none is left.

        Raises:
            FirnlineError: by class the reaction; nothing was committed (unless it is a CommitUnknownError).
        """
        run_id = run_id or str(uuid.uuid4())
        table = plan.table.name
        if not plan.groups or plan.plan.snapshot_id is None:
            return RunResult(run_id, table, plan.plan.snapshot_id, None, (), plan.seconds, 0.0, 0.0)
        files = sum(len(group.group.files) for group in plan.groups)
        self._listener(RunPlanned(run_id, table, len(plan.groups), files, plan.bytes, plan.seconds))
        stage = "rewrite"
        dropped: list[DroppedGroup] = []
        try:
            java_table = JavaTable.load(self._session, plan.table, plan.plan.snapshot_id)
            shares = ShareRewriter(self._session, java_table, plan, run_id)
            started = self._clock()
            with (
                self._noted(plan, shares, run_id, dropped) as record,
                self._watched(record, enabled, stopping) as watch,
            ):
                done = self._rewrite(shares, plan, run_id, watch.stopped, progress)
                done, results = self._keep_sound(plan, done, run_id, dropped)
                rewritten = self._clock()
                self._records.renew(record)
                watch.begin_commit(table, wanted=not stopping() and enabled())
                stage = "commit"
                snapshot_after = self._commit(java_table, done, run_id)
            committed = self._clock()
        except FirnlineError as error:
            self._listener(RunFailed(run_id, table, stage, error.reason, error.reaction, str(error)))
            raise
        except Exception as error:
            failure = GiveUpError(f"rewriting {table} failed: {error}", reason="unexpected")
            self._listener(RunFailed(run_id, table, stage, failure.reason, failure.reaction, str(error)))
            raise failure from error
        result = RunResult(
            run_id,
            table,
            plan.plan.snapshot_id,
            snapshot_after,
            tuple(results),
            plan.seconds,
            rewritten - started,
            committed - rewritten,
            tuple(dropped),
        )
        self._tell(result, waiting_since)
        self._refresh_cache(table)
        return result

    def _rewrite(
        self,
        shares: ShareRewriter,
        plan: TablePlan,
        run_id: str,
        stopped: threading.Event,
        progress: Progress | None,
    ) -> list[_Finished]:
        """All shares, a bounded number at a time. A share nobody can rewrite costs its group; else failure ends all."""
        work = [(number, index) for number, group in enumerate(plan.groups) for index in range(len(group.group.shares))]
        done: dict[Place, RewrittenShare] = {}
        failed: dict[int, FirnlineError] = {}
        lock = threading.Lock()

        def one(item: Place) -> None:
            number, index = item
            if stopped.is_set() or number in failed:
                return
            try:
                rewritten = shares.rewrite(plan.groups[number], number, index)
            except Exception as error:
                if stopped.is_set() or not _costs_its_group(error):
                    raise
                failed.setdefault(number, _as_firnline_error(plan, error))
                return
            with lock:
                done[item] = rewritten
                if progress:
                    progress(len(done), len(work), sum(part.bytes_in for part in done.values()))

        def splice_ahead(wave: Sequence[Place]) -> None:
            shares.splice_ahead([place for place in wave if plan.groups[place[0]].engine.engine is Engine.SPLICE])

        self._run_all(splice_ahead, one, work, run_id, stopped)
        return [
            _Finished(group, failed.get(number), [part for (owner, _), part in sorted(done.items()) if owner == number])
            for number, group in enumerate(plan.groups)
        ]

    def _run_all(
        self,
        splice_ahead: Callable[[Sequence[Place]], None],
        one: Callable[[Place], None],
        work: Sequence[Place],
        run_id: str,
        stopped: threading.Event,
    ) -> None:
        by_request = False
        with ThreadPoolExecutor(min(self._slots, len(work)), thread_name_prefix="rewrite") as pool:
            try:
                for first in range(0, len(work), self._wave):
                    wave = work[first : first + self._wave]
                    if not stopped.is_set():
                        splice_ahead(wave)
                    for future in [pool.submit(one, item) for item in wave]:
                        future.result()
                by_request = stopped.is_set()
            except BaseException as error:
                by_request = stopped.is_set()
                stopped.set()
                self._session.sparkContext.cancelJobGroup(run_id)
                if not by_request:
                    raise
                raise StoppedError(f"run {run_id} was stopped before its commit") from error
        if by_request:
            raise StoppedError(f"run {run_id} was stopped before its commit")

    def _keep_sound(
        self, plan: TablePlan, finished: Sequence[_Finished], run_id: str, dropped: list[DroppedGroup]
    ) -> tuple[list[_Finished], list[GroupResult]]:
        """Groups whose rows add up, and their results; the others are added to `dropped` and told.

        Raises:
            FirnlineError: no group is left; the first one's error.
        """
        kept: list[_Finished] = []
        results: list[GroupResult] = []
        table = plan.table.name
        for group in finished:
            error = group.error
            if error is None:
                try:
                    results.append(self._checked(run_id, table, group.planned, group.parts))
                except GiveUpError as mismatch:
                    error = mismatch
            if error is None:
                kept.append(group)
            else:
                dropped.append(DroppedGroup(group.planned, error))
        if not kept:
            raise dropped[0].error
        for drop in dropped:
            self._listener(GroupDropped(run_id, table, drop.planned.group.key, drop.error.reason, str(drop.error)))
        return kept, results

    def _checked(
        self, run_id: str, table: TableName, planned: PlannedGroup, parts: Sequence[RewrittenShare]
    ) -> GroupResult:
        """The row check of invariant 1: rows in, rows deleted and rows out come from three different counts."""
        rows_in, rows_out = planned.group.rows, sum(part.rows_out for part in parts)
        rows_deleted = sum(part.rows_deleted for part in parts)
        if rows_in - rows_deleted != rows_out:
            raise GiveUpError(
                f"group {planned.group.partition} of {table}: {rows_in} rows in, {rows_deleted} deleted, but "
                f"{rows_out} written; nothing is committed. Check that the table's record counts are right",
                reason="row_count_mismatch",
            )
        result = GroupResult(
            planned=planned,
            engine=next((part.engine for part in parts if part.engine.engine is Engine.SPARK), parts[0].engine),
            files_in=len(planned.group.files),
            files_out=sum(len(part.outputs) for part in parts),
            bytes_in=planned.group.bytes,
            bytes_out=sum(part.bytes_out for part in parts),
            rows_in=rows_in,
            rows_deleted=rows_deleted,
            rows_out=rows_out,
        )
        self._listener(
            GroupRewritten(
                run_id,
                table,
                planned.group.key,
                result.engine.engine.value,
                result.engine.reason,
                result.files_in,
                result.files_out,
                result.bytes_in,
                result.bytes_out,
                result.rows_in,
                result.rows_deleted,
                result.rows_out,
                sum(part.seconds for part in parts),
            )
        )
        return result

    def _commit(self, table: JavaTable, done: Sequence[_Finished], run_id: str) -> int:
        parts = [part for group in done for part in group.parts]
        replacements = [Replacement(part.tasks, part.outputs, part.files_in) for part in parts]
        return commit_replacements(table, replacements, run_id, [part.engine.engine.value for part in parts])

    @contextmanager
    def _noted(
        self, plan: TablePlan, shares: ShareRewriter, run_id: str, dropped: Sequence[DroppedGroup]
    ) -> Iterator[Record]:
        """An in-flight record around the work: gone after the commit, settled by the sweep when its fate is unknown."""
        record = self._records.open(run_id, plan.table, shares.output_files, shares.output_folders)
        try:
            yield record
        except CommitUnknownError:
            self._records.save(replace(record, abandoned=True))  # the sweep watches the head before it deletes
            raise
        except BaseException:
            self._clean_up(record)
            raise
        if dropped:
            self._clean_up(record)  # what dropped groups wrote is in no snapshot
        else:
            self._records.close(run_id)

    def _clean_up(self, record: Record) -> None:
        """Nothing was committed for certain: remove the outputs, and leave to the sweep what that does not reach."""
        with suppress(FirnlineError, OSError):
            # A cancelled task may still write for a moment: the record stays until a sweep finds nothing left.
            self._records.save(replace(record, abandoned=True, seen_at=0.0, seen_head=NO_HEAD))
            delete_unreferenced(record, self._catalogs.load(record.table), self._cache)

    @contextmanager
    def _watched(self, record: Record, enabled: Callable[[], bool], stopping: Callable[[], bool]) -> Iterator[RunWatch]:
        """Beside the work: renew the lease to the very end, and stop the run while it has not begun to commit."""
        watch = RunWatch(threading.Event(), threading.Event(), threading.Event())

        def stop_if_asked(look_at_switch: bool) -> None:
            if not watch.committing.is_set() and (stopping() or (look_at_switch and not enabled())):
                watch.stopped.set()
                self._session.sparkContext.cancelJobGroup(record.run_id)

        def serve() -> None:
            renewed = checked = time.monotonic()
            while not watch.finished.wait(1.0):
                now = time.monotonic()
                try:
                    if now - renewed >= self._lease_seconds / 3:
                        self._records.renew(record)
                        renewed = now
                    look = now - checked >= self._check_seconds
                    checked = now if look else checked
                    stop_if_asked(look)
                except StoppedError:
                    watch.stopped.set()
                except FirnlineError:
                    continue  # the state folder or the catalog is unwell: the work goes on, the next second asks again

        watcher = threading.Thread(target=serve, name=f"watch-{record.run_id[:8]}", daemon=True)
        watcher.start()
        try:
            yield watch
        finally:
            watch.finished.set()
            watcher.join()

    def _tell(self, result: RunResult, waiting_since: float | None) -> None:
        self._listener(
            RunCommitted(
                result.run_id,
                result.table,
                result.snapshot_after or 0,
                len(result.groups),
                sum(group.files_in for group in result.groups),
                sum(group.files_out for group in result.groups),
                sum(group.bytes_in for group in result.groups),
                sum(group.bytes_out for group in result.groups),
                result.plan_seconds,
                result.rewrite_seconds,
                result.commit_seconds,
                None if waiting_since is None else max(0.0, self._clock() - waiting_since),
            )
        )

    def _refresh_cache(self, table: TableName) -> None:
        """Read our own new manifests now, before the next plan or count asks for them."""
        try:
            view = self._catalogs.load(table)
            self._cache.read(view, view.manifests())
        except FirnlineError:
            return  # the next plan reads them; the rewrite itself is done
