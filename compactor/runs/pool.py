"""The pool: runs the pieces of a job as Spark jobs of one task each. One starts as soon as a slot is free.

Small pieces are bundled (bundles.py): one Spark task does them one after the other. What follows a failure is decided
in failures.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from compactor.errors import FirnlineError, StoppedError
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.runs.bundles import TaskQueue
from compactor.runs.failures import Next, Unavailable, is_no_answer, next_step
from compactor.runs.results import NO_ANSWER, NotTriedError
from compactor.runs.slots import LOOK_SECONDS, SlotPool

LOG = logging.getLogger("firnline")
MOST_THREADS = 1024  # one waits for each Spark job

Done = TypeVar("Done")
Given_co = TypeVar("Given_co", covariant=True)


class Room(NamedTuple):
    """The slot of a bundle. `free` gives it back as soon as Spark is done with the bundle. `waits` is called while
    something else is waited for, and tells whether the job is over.
    """

    free: Callable[[], object]
    waits: Callable[[], bool]


class Pieces(Protocol[Given_co]):
    """The work of a job, in pieces. A piece that fails costs its group: all pieces with the same `TaskId.group`."""

    @property
    def what(self) -> str:
        """The job, for messages: `rewriting lake.db.t`."""
        ...

    @property
    def lane(self) -> str:
        """The table's name among the slots: it has one job at a time."""
        ...

    def seconds(self, piece: TaskId) -> float:  # noqa: ARG002
        """How long the piece takes, estimated."""
        return 0.0

    def is_alone(self, piece: TaskId) -> bool:  # noqa: ARG002
        """Whether the piece shares no bundle."""
        return True

    def prepare(self, bundle: Sequence[TaskId]) -> None:  # noqa: ARG002
        """This bundle comes next: called while the slots are busy."""
        return

    def run(self, bundle: Sequence[TaskId], room: Room) -> Mapping[TaskId, Given_co | Exception | Next]:
        """Do a bundle. Returns what was done and each piece's own error, in the order in which they were done. Pieces
        that are left out were not begun. `Next.ALONE`: it must be done alone.

        Raises:
            Exception: of the Spark job as a whole.
        """
        ...

    def failure(self, piece: TaskId, error: Exception) -> FirnlineError:
        """The error of a piece's group, after the piece failed for good."""
        ...

    def cancel(self) -> None:
        """Cancel the Spark jobs."""
        ...

    def moved(self) -> None:
        """The job makes progress, or waits for its first slot: it does not hang."""
        ...


class _First(NamedTuple):
    """A first attempt that failed. `done`: how many pieces were done before."""

    error: Exception
    done: int


@dataclass(frozen=True)
class Ran(Generic[Done]):
    """What became of pieces: those that were done, the errors of the groups that failed, and groups that failed twice
    although other pieces were done after the first attempt: something is wrong with their files.
    """

    done: dict[TaskId, Done] = field(default_factory=dict)
    failed: dict[int, FirnlineError] = field(default_factory=dict)
    at_fault: set[int] = field(default_factory=set)
    seconds: float = 0.0


class Pool(Generic[Done]):
    """Runs pieces of one job, as many bundles at once as `slots` grants.

    `stopped`: set from outside to stop; set here after a failure, so that other tasks end. `store`: whether it answers,
    as far as the job has seen.
    """

    def __init__(self, job: Pieces[Done], slots: SlotPool, stopped: threading.Event, store: Unavailable) -> None:
        self._job = job
        self._slots = slots
        self._stopped = stopped
        self._store = store
        self._queue = TaskQueue({})
        self._lock = threading.Lock()
        self._ran = Ran[Done]()
        self._tried: dict[TaskId, _First] = {}
        self._twice: set[TaskId] = set()
        self._error: BaseException | None = None

    def run(self, pieces: Sequence[TaskId]) -> Ran[Done]:
        """Do these pieces, once for each pool.

        A piece that fails by itself costs its group. One whose credential ended, whose memory was short, whose
        executors were lost or that got no answer of the store is tried once more, alone. A failure of the catalog, the
        store or the machine ends the job. Groups without an answer or an executor are left with a RetryError. Once the
        store answers no piece any more, no other is begun; what was not tried is left with a NotTriedError.

        Raises:
            StoppedError: `stopped` was set.
            Exception: what ended the job; of a FirnlineError the class names the reaction.
        """
        if not pieces:
            return self._ran
        seconds = {piece: self._job.seconds(piece) for piece in pieces}
        self._queue = TaskQueue(seconds, frozenset(filter(self._job.is_alone, pieces)))
        jobs: set[Future[None]] = set()
        with ThreadPoolExecutor(min(len(pieces), MOST_THREADS), thread_name_prefix="piece") as threads:
            try:
                self._start_jobs(threads, jobs)
            finally:
                by_request = self._stopped.is_set()
                if any(not job.done() for job in jobs):
                    self._stopped.set()
                while any(not job.done() for job in jobs):  # a job may start just after the others were cancelled
                    self._job.cancel()
                    wait(jobs, LOOK_SECONDS)
        if self._error is not None:
            raise self._error
        if by_request:
            raise StoppedError(f"{self._job.what} was stopped before its commit")
        for piece in pieces:
            if piece not in self._ran.done and piece.group not in self._ran.failed:
                self._ran.failed[piece.group] = self._left(piece.group)
        done = len(self._ran.done)
        self._ran.at_fault.update(piece.group for piece in self._twice if done > self._tried[piece].done)
        return self._ran

    def _left(self, group: int) -> FirnlineError:
        """The error of a group that was not finished before the store answered no more."""
        for piece, first in self._tried.items():
            if piece.group == group and is_no_answer(first.error):
                return self._job.failure(piece, first.error)
        return NotTriedError(NO_ANSWER)

    def _start_jobs(self, threads: ThreadPoolExecutor, jobs: set[Future[None]]) -> None:
        """Start a job as soon as a slot is free, until all is done, or the store answers no job any more."""
        bundle: Sequence[TaskId] = ()
        while (self._queue or jobs or bundle) and not self._is_over:
            if self._store.is_certain:  # a job that is under way and succeeds ends it
                if not jobs:
                    return
                wait(jobs, LOOK_SECONDS, FIRST_COMPLETED)
            else:
                bundle = bundle or self._next_bundle()
                if not bundle:
                    wait(jobs, LOOK_SECONDS, FIRST_COMPLETED)
                elif self._has_slot():
                    jobs.add(threads.submit(self._run_job, bundle))
                    bundle = ()
            jobs.difference_update([job for job in jobs if job.done()])

    def _next_bundle(self) -> Sequence[TaskId]:
        with self._lock:
            bundle = self._queue.bundle(self._slots.share) if self._queue else ()
        if bundle:
            self._job.prepare(bundle)  # while the slots are busy
        return bundle

    def _has_slot(self) -> bool:
        """Wait for a slot; whether a job is to be started in it.

        Raises:
            StoppedError: the job was given up.
        """
        lane = self._job.lane
        if not self._slots.acquire(lane, self._waits_for_slot):
            if not self._is_over:
                raise StoppedError(f"{self._job.what} was given up, because it made no progress for too long")
            return False
        if self._store.is_certain:  # since the wait began
            self._slots.release(lane)
            return False
        return True

    def _run_job(self, bundle: Sequence[TaskId]) -> None:
        """Do a bundle, and give its slot back as soon as Spark is done with it."""
        with ExitStack() as slot:
            slot.callback(self._slots.release, self._job.lane)
            pieces = [piece for piece in bundle if piece.group not in self._ran.failed]
            if self._is_over or not pieces:
                return
            try:
                try:
                    outcomes = self._job.run(pieces, Room(slot.close, self._waits))
                except Exception as error:  # noqa: BLE001 - decided upon piece by piece
                    self._decide(pieces, dict.fromkeys(pieces, error), of_job=True)
                else:
                    self._job.moved()
                    self._decide(pieces, outcomes, of_job=False)
            except BaseException as error:  # noqa: BLE001 - raised by the job's own thread
                if not self._stopped.is_set():
                    self._error = self._error or error

    def _decide(
        self, pieces: Sequence[TaskId], outcomes: Mapping[TaskId, Done | Exception | Next], *, of_job: bool
    ) -> None:
        """Keep what was done, and decide what becomes of the rest.

        Raises:
            Exception: it ends the job.
        """
        with self._lock:
            silent = [piece for piece, each in outcomes.items() if isinstance(each, Exception) and is_no_answer(each)]
            if any(not isinstance(each, Exception | Next) for each in outcomes.values()):
                self._store.end()  # also what the bundle has done before: the store answers others
            elif not of_job:
                for piece in silent:
                    self._store.note(piece)
            # None of these begins if the store answers none any more.
            self._queue.put_first([piece for piece in pieces if piece not in outcomes])
            for piece, outcome in outcomes.items():
                if outcome is Next.ALONE:
                    self._queue.put_back([piece])
                elif isinstance(outcome, Exception):
                    self._failed(piece, outcome, of_job=of_job)
                elif not isinstance(outcome, Next):
                    self._ran.done[piece] = outcome

    def _failed(self, piece: TaskId, error: Exception, *, of_job: bool) -> None:
        """A piece has failed.

        Raises:
            Exception: `error`, if it ends the job.
        """
        if piece.group in self._ran.failed:
            return
        if self._stopped.is_set():
            raise error
        first, done = self._tried.get(piece), len(self._ran.done)
        step = next_step(error, of_job=of_job, tried=first is not None, answers=not self._store.is_certain)
        if step is Next.STOP:
            raise error
        if step is Next.REFUSED:
            self._ran.failed[piece.group] = self._job.failure(piece, error)
            if first is not None:
                self._twice.add(piece)
            return
        LOG.info("%s: a piece of work is tried again: %s", self._job.lane, error)
        self._tried[piece] = _First(error, done)
        if step is Next.LAST:
            self._queue.put_last(piece)
        else:
            self._queue.put_back([piece])

    def _waits_for_slot(self) -> bool:
        if self._job.lane not in self._slots.book.held:  # else pieces are under way, and one that hangs must be noticed
            self._job.moved()
        return self._is_over

    def _waits(self) -> bool:
        self._job.moved()
        return self._is_over

    @property
    def _is_over(self) -> bool:
        return self._stopped.is_set() or self._error is not None
