"""Beside a run: renew its lease to the very end, and stop it while it may still be stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compactor.commit.in_flight import InFlightRecords, Record
from compactor.errors import FirnlineError, StoppedError
from compactor.table_names import TableName


@dataclass(frozen=True)
class RunWatch:
    """How the work and the thread that watches over it talk. While `committing` is set the run cannot be stopped."""

    stopped: threading.Event
    committing: threading.Event
    finished: threading.Event

    @contextmanager
    def commit(self, table: TableName, *, wanted: bool) -> Iterator[None]:
        """Around a commit, which is not interrupted.

        Raises:
            StoppedError: the run has been stopped, or is not wanted any more.
        """
        if self.stopped.is_set() or not wanted:
            raise StoppedError(f"{table} was switched off before the commit; it was not sent")
        self.committing.set()
        try:
            yield
        finally:
            self.committing.clear()


@dataclass(frozen=True)
class Watchman:
    """What the watching thread needs: the records, how to cancel, and how often (seconds) to renew and to look."""

    records: InFlightRecords
    cancel: Callable[[], None]
    lease_seconds: float
    check_seconds: float

    @contextmanager
    def over(self, record: Record, enabled: Callable[[], bool], stopping: Callable[[], bool]) -> Iterator[RunWatch]:
        """Watch over the run of `record`. `stopping` is asked every second, `enabled` every `check_seconds`."""
        watch = RunWatch(threading.Event(), threading.Event(), threading.Event())
        watcher = threading.Thread(
            target=self._serve,
            args=(watch, record, enabled, stopping),
            name=f"watch-{record.run_id[:8]}",
            daemon=True,
        )
        watcher.start()
        try:
            yield watch
        finally:
            watch.finished.set()
            watcher.join()

    def _serve(
        self, watch: RunWatch, record: Record, enabled: Callable[[], bool], stopping: Callable[[], bool]
    ) -> None:
        renewed = checked = time.monotonic()
        while not watch.finished.wait(1.0):
            now = time.monotonic()
            try:
                if now - renewed >= self.lease_seconds / 3:
                    self.records.renew(record)
                    renewed = now
                look = now - checked >= self.check_seconds
                checked = now if look else checked
                if not watch.committing.is_set() and (stopping() or (look and not enabled())):
                    watch.stopped.set()
                    self.cancel()
            except StoppedError:
                watch.stopped.set()
            except FirnlineError:
                continue  # the state folder or the catalog is unwell: the work goes on, the next second asks again
