"""The searches of a conversion: a Spark job of one task for each, as many at once as there are slots."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from compactor.errors import FirnlineError, GiveUpError, StoppedError
from compactor.manifests.live_files import LiveFile
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.runs.job_errors import reason_of
from compactor.runs.slots import SlotPool
from compactor.spark.java_table import first_line, spark_has_ended, unforeseen

LOG = logging.getLogger("firnline")
Files = Sequence[LiveFile]
Outcome = FoundRows | Refusal | GiveUpError
"""Of one search. A GiveUpError: it failed, and another attempt would fail too."""


@dataclass
class KeySearches:
    """Searches data files for deleted rows. A search that fails by itself costs no other.

    Attributes:
        search: Runs the Spark job of one search; returns its outcome. Raises what ended the job.
        table: The table's name among the slots.
        slots: Shared with all runs.
        stopped: Set from outside to stop.
        moved: Called while a search waits for a slot: waiting is no hang.
    """

    search: Callable[[Files], FoundRows | Refusal | FirnlineError]
    table: str
    slots: SlotPool
    stopped: threading.Event
    moved: Callable[[], object]
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _error: BaseException | None = None

    def outcomes(self, searches: Sequence[Files]) -> Iterator[Outcome]:
        """The outcome of each search, in order.

        Raises:
            StoppedError: `stopped` was set.
            FirnlineError: catalog, store or Spark failed: by class the reaction.
        """
        with ThreadPoolExecutor(max(1, min(len(searches), self.slots.book.capacity)), "convert") as pool:
            try:
                yield from pool.map(self._outcome, searches)
            except BaseException as error:
                raise self._error or error  # noqa: B904 - the first one: others only saw that all is over
            finally:
                self._over.set()

    def _outcome(self, files: Files) -> Outcome:
        tried = self._tried(files)
        if _may_help_again(tried):
            LOG.info("%s: a search for deleted rows is tried again: %s", self.table, tried)
            tried = self._tried(files)
        return self._given_up(tried) if isinstance(tried, Exception) else tried

    def _tried(self, files: Files) -> FoundRows | Refusal | Exception:
        """One attempt, as soon as a slot is free; returns errors that concern this search alone."""
        slot = self.slots.acquire(self.table, self._waits)
        try:
            if not slot or self._waits():
                raise self._stopped_error
            return self._searched(files)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._over.set()
            raise
        finally:
            if slot:
                self.slots.release(self.table)

    def _searched(self, files: Files) -> FoundRows | Refusal | Exception:
        try:
            outcome = self.search(files)
        except Exception as error:
            if self.stopped.is_set():
                raise self._stopped_error from error
            if spark_has_ended(error):
                raise unforeseen(f"searching deleted rows of {self.table}", error) from error
            return error
        if isinstance(outcome, FirnlineError) and not _is_its_own(outcome):
            raise outcome
        return outcome

    @property
    def _stopped_error(self) -> StoppedError:
        return StoppedError(f"the conversion of {self.table} was stopped before its commit")

    def _waits(self) -> bool:
        self.moved()
        return self.stopped.is_set() or self._over.is_set()

    def _given_up(self, error: Exception) -> GiveUpError:
        if isinstance(error, GiveUpError):
            return error
        reason, remedy = reason_of(error)
        cause = first_line(error).rstrip(".")
        failure = GiveUpError(f"searching deleted rows of {self.table} failed: {cause}{remedy}", reason=reason)
        failure.__cause__ = error
        return failure


def _is_its_own(error: FirnlineError) -> bool:
    return isinstance(error, GiveUpError) or error.reason is Reason.OUT_OF_MEMORY


def _may_help_again(tried: object) -> bool:
    """Whether another attempt may succeed: its worker was killed, or its memory was short."""
    return isinstance(tried, Exception) and not isinstance(tried, GiveUpError)
