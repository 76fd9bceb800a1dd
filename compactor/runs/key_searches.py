"""The searches of a conversion: a Spark job of one task for each, as many at once as there are slots at that time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from compactor.errors import FirnlineError, GiveUpError, RetryError, StoppedError
from compactor.manifests.live_files import LiveFile
from compactor.reasons import Refusal
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.rewrite.tasks.runner import TRIED_AGAIN
from compactor.runs.job_errors import costs_its_group, is_no_answer, reason_of
from compactor.runs.output_jobs import MOST_THREADS
from compactor.runs.slots import SlotPool
from compactor.runs.unavailable import Unavailable
from compactor.spark.java_table import first_line, spark_has_ended, unforeseen

LOG = logging.getLogger("firnline")
Files = Sequence[LiveFile]
Outcome = FoundRows | Refusal | GiveUpError | RetryError | None
"""Of one search. A GiveUpError: it failed, and another attempt would fail too. A RetryError: it got no answer of the
store; only what becomes of others shows whether the store is well. None: it was not tried, because the store answered
no search any more.
"""


@dataclass
class KeySearches:
    """Searches data files for deleted rows. A search that fails by itself costs no other.

    Attributes:
        search: Runs the Spark job of one search; returns its outcome. Raises what ended the job.
        table: The table's name among the slots.
        slots: Shared with all runs.
        stopped: Set from outside to stop.
        moved: Called while the conversion waits for its first slot: waiting is no hang.
        store: Whether the store answers, as far as the conversion has seen it.
    """

    search: Callable[[Files], FoundRows | Refusal | FirnlineError]
    table: str
    slots: SlotPool
    stopped: threading.Event
    moved: Callable[[], object]
    store: Unavailable = field(default_factory=Unavailable)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _error: BaseException | None = None

    def outcomes(self, searches: Sequence[Files]) -> Iterator[Outcome]:
        """The outcome of each search, in order. A search starts as soon as a slot is free: a cluster may grow.

        Raises:
            StoppedError: `stopped` was set.
            FirnlineError: catalog, store or Spark failed: by class the reaction.
        """
        jobs: deque[Future[Outcome]] = deque()
        with ThreadPoolExecutor(max(1, min(len(searches), MOST_THREADS)), "convert") as threads:
            try:
                for files in searches:
                    jobs.append(threads.submit(self._outcome, files) if self._has_slot(jobs) else _not_tried())
                    while jobs and jobs[0].done():
                        yield jobs.popleft().result()
                while jobs:
                    yield jobs.popleft().result()
            except BaseException as error:
                first = self._end(error)
                if first is not error:  # which only saw that all is over
                    raise first from first.__cause__
                raise
            finally:
                self._over.set()

    def _has_slot(self, jobs: Iterable[Future[Outcome]]) -> bool:
        """Wait for a slot. False: the store answers no search any more, none of those under way (`jobs`) either."""
        while True:
            if self.store.is_certain:
                wait(jobs)
                if self.store.is_certain:
                    return False
            if not self.slots.acquire(self.table, self._waits):
                raise self._stopped_error
            if not self.store.is_certain:
                return True
            self.slots.release(self.table)

    def _outcome(self, files: Files) -> Outcome:
        """Search, and give the slot back."""
        try:
            return self._tried_twice(files)
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self.slots.release(self.table)

    def _tried_twice(self, files: Files) -> Outcome:
        outcome = self._tried(files)
        if isinstance(outcome, Exception) and self._is_worth_another_attempt(outcome):
            LOG.info("%s: a search for deleted rows is tried again: %s", self.table, outcome)
            outcome = self._tried(files)
        if isinstance(outcome, Exception):
            return self._failure(outcome)
        self.store.end()
        return outcome

    def _tried(self, files: Files) -> FoundRows | Refusal | Exception:
        """One attempt; returns the error of a search or of its Spark job."""
        if self._is_over:
            raise self._stopped_error
        try:
            return self.search(files)
        except Exception as error:
            if self.stopped.is_set():
                raise self._stopped_error from error
            if spark_has_ended(error):
                raise unforeseen(f"searching deleted rows of {self.table}", error) from error
            return error

    def _is_worth_another_attempt(self, error: Exception) -> bool:
        """Whether another attempt may help: the worker was killed, memory was short, or the store did not answer. Once
        it answers no search any more, none would.
        """
        if is_no_answer(error):
            self.store.note()
            if self.store.is_certain:
                return False
        return error.reason in TRIED_AGAIN if isinstance(error, FirnlineError) else True

    def _end(self, error: BaseException) -> BaseException:
        """All searches end because of an error; returns the first one."""
        with self._lock:
            self._error = self._error or error
        self._over.set()
        return self._error

    def _waits(self) -> bool:
        if self.table not in self.slots.book.held:  # else searches are under way, and one that hangs must be noticed
            self.moved()
        return self._is_over

    @property
    def _is_over(self) -> bool:
        return self.stopped.is_set() or self._over.is_set()

    @property
    def _stopped_error(self) -> StoppedError:
        return StoppedError(f"the conversion of {self.table} was stopped before its commit")

    def _failure(self, error: Exception) -> GiveUpError | RetryError:
        """The outcome of a search that failed.

        Raises:
            FirnlineError: `error`, if it concerns all searches.
        """
        if isinstance(error, FirnlineError) and not costs_its_group(error):
            raise error
        if isinstance(error, GiveUpError) or (isinstance(error, RetryError) and is_no_answer(error)):
            return error
        reason, remedy = reason_of(error)
        cause = first_line(error).rstrip(".")
        failure = GiveUpError(f"searching deleted rows of {self.table} failed: {cause}{remedy}", reason=reason)
        failure.__cause__ = error
        return failure


def _not_tried() -> Future[Outcome]:
    job: Future[Outcome] = Future()
    job.set_result(None)
    return job
