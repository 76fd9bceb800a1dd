"""Beside a run: renew its lease until it ends, and stop it while it may still be stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from compactor.commit.in_flight import InFlightRecords, Record
from compactor.errors import FirnlineError, RetryError, StoppedError
from compactor.reasons import Reason
from compactor.runs.lifelines import STALLED_SECONDS


@dataclass(frozen=True)
class Switches:
    """Whether a run may go on. `enabled`: the table's switch, one catalog call; `stopping`: it must stop now, because
    the process is stopping or the table is paused; costs nothing.
    """

    enabled: Callable[[], bool]
    stopping: Callable[[], bool]

    @property
    def on(self) -> bool:
        """Whether the run may go on now: looks at both."""
        return not self.stopping() and self.enabled()


ALWAYS_ON = Switches(lambda: True, lambda: False)


@dataclass(frozen=True)
class RunWatch:
    """Shared by a run and its supervisor's thread. While `committing` is set the run cannot be stopped.

    `stalled` is set beside `stopped` when the run is stopped because it makes no progress.
    """

    stopped: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    committing: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class RunSupervisor:
    """Renews leases in `records`, and calls `cancel` when a run must stop.

    A lease is renewed every third of `lease_seconds`. `Switches.stopping` and `stalled` (the run makes no
    progress) are asked every second, `Switches.enabled` every `check_seconds`.
    """

    records: InFlightRecords
    cancel: Callable[[], None]
    lease_seconds: float
    check_seconds: float
    stalled: Callable[[], bool] = lambda: False

    @contextmanager
    def watch(self, record: Record | None, switches: Switches, what: str = "the run") -> Iterator[RunWatch]:
        """Watch the job of `record`, if it has one, from a thread while the block runs. `what`: the job, for messages.

        Raises:
            RetryError: the job was stopped because it hung; it was not switched off.
        """
        watch = RunWatch()
        thread = threading.Thread(target=self._serve, args=(watch, record, switches), name="watch", daemon=True)
        thread.start()
        try:
            yield watch
        except StoppedError as error:
            if not watch.stalled.is_set():
                raise
            raise RetryError(
                f"{what} made no progress for {STALLED_SECONDS / 60:.0f} min and was stopped: check the "
                "executors and the store, then the next attempt goes on",
                reason=Reason.STALLED,
            ) from error
        finally:
            watch.finished.set()
            thread.join()

    def _serve(self, watch: RunWatch, record: Record | None, switches: Switches) -> None:
        renewed = checked = time.monotonic()
        while not watch.finished.wait(1.0):
            now = time.monotonic()
            try:
                if record is not None and now - renewed >= self.lease_seconds / 3:
                    self.records.renew(record)
                    renewed = now
                look = now - checked >= self.check_seconds
                checked = now if look else checked
                if not watch.committing.is_set() and self.stalled():
                    watch.stalled.set()
                    watch.stopped.set()
                    self.cancel()
                elif not watch.committing.is_set() and (switches.stopping() or (look and not switches.enabled())):
                    watch.stopped.set()
                    self.cancel()
            except StoppedError:  # a sweep has taken the run for dead
                renewed = now
                watch.stopped.set()
                self.cancel()
            except FirnlineError:
                continue  # the state folder or the catalog does not answer: the work goes on, ask again in a second
