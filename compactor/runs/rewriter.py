"""One rewrite run of one table: plan → note outputs → rewrite shares → check rows → commit → refresh the cache.

The order is the safety: outputs are noted before the first byte, rows are checked before the commit, and a failure
after that point deletes nothing whose fate is unknown. A long run commits what it has every so often.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError

from compactor.commit.in_flight import InFlightRecords, Record, delete_unreferenced
from compactor.commit.replace import Stamp
from compactor.commit.statistics import carry_statistics
from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, StoppedError
from compactor.events import (
    GroupCommitted,
    GroupDropped,
    Listener,
    RunCommitted,
    RunFailed,
    RunPlanned,
    RunSkipped,
    ignore,
)
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.manifests.prefetcher import prefetch
from compactor.planning.engine import Engine
from compactor.planning.plan_table import TablePlan
from compactor.planning.planner import batches
from compactor.reasons import Reason
from compactor.rewrite.tasks.runner import Place, RewrittenShare, ShareRewriter
from compactor.runs.commit_groups import Committed, commit_groups
from compactor.runs.failed_groups import truly_failed
from compactor.runs.results import (
    DroppedGroup,
    FinishedGroup,
    GroupResult,
    NoGroupLeftError,
    RunResult,
    as_event,
    as_planned,
    checked_result,
)
from compactor.runs.stray_deletes import without_strays
from compactor.runs.watch import RunWatch, Watchman
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import JavaTable, exception_class, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOG = logging.getLogger("firnline")
TASKS_PER_SLOT = 4  # tasks a slot gets in one job: enough to level out, few enough to show progress
UNSUPPORTED = "java.lang.UnsupportedOperationException"
NO_HEAD = -1  # differs from every head: certainly uncommitted outputs need no waiting

Progress = Callable[[int, int, int], None]
"""Called with (shares done, shares in all, input bytes done)."""


@dataclass
class _Run:
    """One run while it is under way: what it was asked, and what has become of its groups so far."""

    run_id: str
    plan: TablePlan
    enabled: Callable[[], bool]
    stopping: Callable[[], bool]
    progress: Progress | None
    stage: str = "rewrite"
    snapshot_after: int | None = None
    commits: int = 0
    delete_files_removed: int = 0
    rewrite_seconds: float = 0.0
    commit_seconds: float = 0.0
    shares_done: int = 0
    bytes_done: int = 0
    results: list[GroupResult] = field(default_factory=list)
    dropped: list[DroppedGroup] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, share: RewrittenShare) -> None:
        """A share is done: tell the progress bar."""
        with self.lock:
            self.shares_done += 1
            self.bytes_done += share.bytes_in
            if self.progress:
                self.progress(self.shares_done, self.shares, self.bytes_done)

    @property
    def shares(self) -> int:
        return sum(len(group.group.shares) for group in self.plan.groups)

    def result(self) -> RunResult:
        return RunResult(
            run_id=self.run_id,
            table=self.plan.table.name,
            snapshot_before=self.plan.plan.snapshot_id,
            snapshot_after=self.snapshot_after,
            groups=tuple(self.results),
            plan_seconds=self.plan.seconds,
            rewrite_seconds=self.rewrite_seconds,
            commit_seconds=self.commit_seconds,
            dropped=tuple(self.dropped),
            commits=self.commits,
            delete_files_removed=self.delete_files_removed,
        )


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
        commit: CommitSettings | None = None,
        listener: Listener = ignore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._catalogs = catalogs
        self._cache = cache
        self._records = records
        self._slots = max(1, slots)
        # A wave is one Spark job. Where the stream runs beside, it must leave a core free.
        cores = int(session.sparkContext.defaultParallelism)
        self._wave = self._slots if self._slots < cores else self._slots * TASKS_PER_SLOT
        self._lease_seconds = lease_seconds
        self._check_seconds = check_seconds
        self._commit_settings = commit or CommitSettings()
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
        """Carry out `plan`. But while it commits the run can be stopped: `stopping` is asked every second,
        `enabled` (the table's switch, a look at the catalog) every `check_seconds` and once more before each commit.
        A group that cannot be rewritten, or that another commit touches, is dropped and the others go on; the run
        fails when none is left.

        Raises:
            FirnlineError: by class the reaction; nothing more was committed (unless it is a CommitUnknownError).
        """
        run = _Run(run_id=run_id or str(uuid.uuid4()), plan=plan, enabled=enabled, stopping=stopping, progress=progress)
        table = plan.table.name
        if not plan.has_work or plan.plan.snapshot_id is None:
            return run.result()
        files = sum(len(group.group.files) for group in plan.groups)
        self._listener(
            RunPlanned(
                run_id=run.run_id,
                table=table,
                groups=len(plan.groups),
                files=files,
                bytes=plan.bytes,
                seconds=plan.seconds,
            )
        )
        try:
            self._carry_out(run, plan.plan.snapshot_id)
        except FirnlineError as error:
            told = f"{error} (after {run.commits} commits of the run)" if run.commits else str(error)
            self._listener(
                RunFailed(
                    run_id=run.run_id,
                    table=table,
                    stage=run.stage,
                    reason=error.reason,
                    reaction=error.reaction,
                    message=told,
                )
            )
            raise
        except Exception as error:
            failure = GiveUpError(f"rewriting {table} failed: {first_line(error)}", reason=Reason.UNEXPECTED)
            self._listener(
                RunFailed(
                    run_id=run.run_id,
                    table=table,
                    stage=run.stage,
                    reason=failure.reason,
                    reaction=failure.reaction,
                    message=str(error),
                )
            )
            raise failure from error
        result = run.result()
        if result.snapshot_after is None:  # another commit came first and removed the same delete files
            self._listener(RunSkipped(table=table, reason=Reason.NOTHING_DUE))
            return result
        self._tell(result, waiting_since)
        prefetch(self._catalogs, self._cache, table, plan.table.ref)  # our own new manifests, before anybody asks
        return result

    def _carry_out(self, run: _Run, snapshot_id: int) -> None:
        run.plan, strays = without_strays(run.plan, self._cache)
        self._drop(run, strays)
        if strays and not run.plan.groups:
            raise NoGroupLeftError(strays)
        java_table = JavaTable.load(self._session, run.plan.table, snapshot_id)
        shares = ShareRewriter(self._session, java_table, run.plan, run.run_id)

        def cancel() -> None:
            self._session.sparkContext.cancelJobGroup(run.run_id)

        watchman = Watchman(
            records=self._records, cancel=cancel, lease_seconds=self._lease_seconds, check_seconds=self._check_seconds
        )
        settings = self._commit_settings
        groups = [planned.group for planned in run.plan.groups]
        only_deletes = [()]  # one commit, which removes delete files that apply to nothing
        parts = batches(groups, settings.groups, settings.bytes, settings.max_commits) or only_deletes
        with self._noted(run, shares) as record, watchman.over(record, run.enabled, run.stopping) as watch:
            for part, numbers in enumerate(parts, 1):
                self._one_commit(run, java_table, shares, record, watch, numbers, f"{part}/{len(parts)}")
            if run.dropped and run.commits == 0:
                raise _nothing_committed(run.dropped)

    def _one_commit(
        self,
        run: _Run,
        java_table: JavaTable,
        shares: ShareRewriter,
        record: Record,
        watch: RunWatch,
        numbers: Sequence[int],
        part: str,
    ) -> None:
        """Rewrite some of the plan's groups and commit them."""
        run.stage = "rewrite"
        started = self._clock()
        sound = self._keep_sound(run, self._rewrite(run, shares, numbers, watch.stopped)) if numbers else []
        rewritten = self._clock()
        run.rewrite_seconds += rewritten - started
        if numbers and not sound:
            return
        self._records.renew(record)
        run.stage = "commit"
        with watch.commit(run.plan.table.name, wanted=not run.stopping() and run.enabled()):
            results = {id(group): result for group, result in sound}
            committed = self._commit(run, java_table, [group for group, _ in sound], part, record)
        self._drop(run, committed.dropped)
        run.results += [results[id(group)] for group in committed.kept]
        run.commit_seconds += self._clock() - rewritten
        if committed.snapshot_id is not None:
            run.commits += 1
            run.snapshot_after = committed.snapshot_id
            run.delete_files_removed += committed.delete_files_removed
            for group in committed.kept:
                told = as_event(run.run_id, run.plan, results[id(group)])
                self._listener(
                    GroupCommitted(
                        rewritten=told,
                        snapshot_id=committed.snapshot_id,
                        delete_files_removed=committed.delete_files_removed,
                    )
                )

    def _rewrite(
        self, run: _Run, shares: ShareRewriter, numbers: Sequence[int], stopped: threading.Event
    ) -> list[FinishedGroup]:
        """All shares of some groups, a bounded number at a time.

        A share nobody can rewrite costs its group; a failure of the catalog, the store or the machine ends all.
        """
        groups = run.plan.groups
        work = [(number, index) for number in numbers for index in range(len(groups[number].group.shares))]
        done: dict[Place, RewrittenShare] = {}
        failed: dict[int, FirnlineError] = {}

        def one(place: Place) -> None:
            number, index = place
            if stopped.is_set() or number in failed:
                return
            try:
                rewritten = shares.rewrite(groups[number], number, index)
            except Exception as error:
                if stopped.is_set() or not _costs_its_group(error):
                    raise
                failed.setdefault(number, _as_firnline_error(run.plan, error))
                return
            with run.lock:
                done[place] = rewritten
            run.note(rewritten)

        self._run_all(shares, one, work, run.run_id, stopped)
        return [
            FinishedGroup(
                groups[number],
                failed.get(number),
                [part for (owner, _), part in sorted(done.items()) if owner == number],
            )
            for number in numbers
        ]

    def _run_all(
        self,
        shares: ShareRewriter,
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
                        shares.write_ahead(wave)
                    for future in [pool.submit(one, place) for place in wave]:
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

    def _keep_sound(self, run: _Run, finished: Sequence[FinishedGroup]) -> list[tuple[FinishedGroup, GroupResult]]:
        """Groups whose rows add up, with their results; the others are dropped and told."""
        kept: list[tuple[FinishedGroup, GroupResult]] = []
        failed: list[DroppedGroup] = []
        for group in finished:
            error = group.error
            if error is None:
                try:
                    result = checked_result(run.plan.table.name, group.planned, group.parts)
                except GiveUpError as mismatch:
                    error = mismatch
                else:
                    kept.append((group, result))
                    self._listener(as_event(run.run_id, run.plan, result))
            if error is not None:
                failed.append(DroppedGroup(group.planned, error))
        if failed:
            self._drop(run, truly_failed(run.plan, failed, self._catalogs, self._cache))
        return kept

    def _drop(self, run: _Run, dropped: Sequence[DroppedGroup]) -> None:
        run.dropped += dropped
        for drop in dropped:
            key, error, planned = drop.planned.group.key, drop.error, as_planned(run.plan, drop.planned)
            told = GroupDropped(
                run_id=run.run_id,
                table=run.plan.table.name,
                key=key,
                reason=error.reason,
                reaction=error.reaction,
                message=str(error),
                plan=planned,
            )
            self._listener(told)

    def _commit(
        self, run: _Run, java_table: JavaTable, groups: Sequence[FinishedGroup], part: str, record: Record
    ) -> Committed:
        table = run.plan.table.name
        stamp = Stamp(
            run_id=run.run_id,
            engines=tuple(share.engine.engine.value for group in groups for share in group.parts),
            part=part,
            rollback_on_conflict=self._commit_settings.rolls_back(is_polaris=self._catalogs.is_polaris(table.catalog)),
        )

        def about_to_send() -> None:
            self._records.renew(record)

        committed = commit_groups(java_table, run.plan, groups, stamp, self._catalogs, self._cache, about_to_send)
        if committed.snapshot_id is not None:
            carry_statistics(java_table, committed.snapshot_id)
        return committed

    @contextmanager
    def _noted(self, run: _Run, shares: ShareRewriter) -> Iterator[Record]:
        """An in-flight record around the work: gone after the commit, settled by the sweep when its fate is unknown."""
        record = self._records.open(run.run_id, run.plan.table, shares.output_files, shares.output_folders)
        try:
            yield record
        except CommitUnknownError:
            self._records.save(replace(record, abandoned=True))  # the sweep watches the head before it deletes
            raise
        except BaseException:
            self._clean_up(record)
            raise
        if run.dropped:
            self._clean_up(record)  # what dropped groups wrote is in no snapshot
            return
        if any(result.engine.engine is Engine.SPARK for result in run.results):
            self._remove_unreferenced(record)  # a task that Spark ran twice may have left a file in the run's folder
        self._records.close(run.run_id)

    def _clean_up(self, record: Record) -> None:
        """What is not committed never will be: remove it, and leave to the sweep what that does not reach."""
        with suppress(FirnlineError):
            # A cancelled task may still write for a moment: the record stays until a sweep finds nothing left.
            self._records.save(replace(record, abandoned=True, seen_at=0.0, seen_head=NO_HEAD))
        self._remove_unreferenced(record)

    def _remove_unreferenced(self, record: Record) -> None:
        try:
            delete_unreferenced(record, self._catalogs.load(record.table), self._cache)
        except Exception as error:  # noqa: BLE001 - any store's error: the run's own outcome is what counts
            LOG.warning("%s: outputs that nobody references could not be removed: %s", record.table, error)

    def _tell(self, result: RunResult, waiting_since: float | None) -> None:
        self._listener(
            RunCommitted(
                run_id=result.run_id,
                table=result.table,
                snapshot_id=result.snapshot_after or 0,
                groups=len(result.groups),
                files_in=sum(group.files_in for group in result.groups),
                files_out=sum(group.files_out for group in result.groups),
                bytes_in=sum(group.bytes_in for group in result.groups),
                bytes_out=sum(group.bytes_out for group in result.groups),
                plan_seconds=result.plan_seconds,
                rewrite_seconds=result.rewrite_seconds,
                commit_seconds=result.commit_seconds,
                event_to_compacted_seconds=None if waiting_since is None else max(0.0, self._clock() - waiting_since),
                delete_files_removed=result.delete_files_removed,
            )
        )


def _nothing_committed(dropped: Sequence[DroppedGroup]) -> FirnlineError:
    """Why a run has come to nothing: another try may help unless each of its groups was given up."""
    others = [drop.error for drop in dropped if not isinstance(drop.error, GiveUpError)]
    return others[0] if others else NoGroupLeftError(dropped)


def _costs_its_group(error: Exception) -> bool:
    """Whether the other groups can go on: nothing is wrong with the catalog, the store, the request or the machine."""
    lost_jvm = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return isinstance(error, GiveUpError) or not (isinstance(error, FirnlineError) or lost_jvm)


def _as_firnline_error(plan: TablePlan, error: Exception) -> FirnlineError:
    if isinstance(error, FirnlineError):
        return error
    unsupported = isinstance(error, Py4JJavaError) and exception_class(error) == UNSUPPORTED
    reason = (
        Reason.TYPE_NOT_SUPPORTED if unsupported else Reason.UNEXPECTED
    )  # Spark knows neither times nor nanoseconds
    failure = GiveUpError(f"rewriting a group of {plan.table.name} failed: {first_line(error)}", reason=reason)
    failure.__cause__ = error
    return failure
