"""Running and recent rewrites, collected from events for the status page."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compactor.events import (
    CommitHeld,
    CommitWaits,
    Event,
    GroupRewritten,
    RunCommitted,
    RunFailed,
    RunMoved,
    RunPlanned,
    RunSkipped,
)
from compactor.table_names import TableName

MOST_KEPT = 50


@dataclass(frozen=True)
class Running:
    """A running run. Times in seconds since the epoch.

    Attributes:
        since: When it began.
        moved: What is done; None before the first output.
        moved_at: When the last output was done.
        engines: File groups that are written, by engine and reason.
        waits_until: The latest moment to which its finished outputs wait for a writer's commit; None if they do not.
    """

    plan: RunPlanned
    since: float
    moved: RunMoved | None = None
    moved_at: float = 0.0
    engines: Mapping[str, int] = field(default_factory=dict)
    waits_until: float | None = None

    @property
    def bytes(self) -> int:
        """Of its input files."""
        return self.plan.bytes if self.moved is None else self.moved.bytes

    def seconds_left(self, now: float) -> float | None:
        """Estimated time to its end, at the pace so far; None before its first output. 0 if it is overdue."""
        if self.moved is None or self.moved.bytes_done <= 0:
            return None
        takes = (self.moved_at - self.since) * self.bytes / self.moved.bytes_done
        return max(0.0, self.since + takes - now)


@dataclass(frozen=True)
class Finished:
    """A run that ended `at` (seconds since the epoch). `engines`: file groups by engine and reason."""

    end: RunCommitted | RunFailed
    at: float
    engines: Mapping[str, int] = field(default_factory=dict)


class RecentWork:
    """Listener. Keeps the newest `MOST_KEPT` finished runs and one running run per table."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[TableName, Running] = {}
        self._finished: deque[Finished] = deque(maxlen=MOST_KEPT)

    @property
    def running(self) -> tuple[Running, ...]:
        """Running runs, oldest first."""
        with self._lock:
            return tuple(self._running.values())

    @property
    def finished(self) -> tuple[Finished, ...]:
        """Finished runs, newest first."""
        with self._lock:
            return tuple(reversed(self._finished))

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case RunPlanned():
                    self._running[event.table] = Running(event, self._clock())
                case RunMoved():
                    self._change(event, moved=event, moved_at=self._clock())
                case CommitWaits():
                    self._change(event, waits_until=self._clock() + event.seconds)
                case CommitHeld():
                    self._change(event, waits_until=None)
                case GroupRewritten():
                    known = self._running.get(event.table)
                    engines = Counter(known.engines if known is not None else ())
                    self._change(event, engines=engines + Counter([f"{event.engine}: {event.reason}"]))
                case RunSkipped():
                    self._running.pop(event.table, None)
                case RunCommitted() | RunFailed():
                    run = self._running.pop(event.table, None)
                    engines = Counter(run.engines if run is not None else ())
                    self._finished.append(Finished(event, self._clock(), engines))
                case _:
                    pass

    def _change(self, event: RunMoved | CommitWaits | CommitHeld | GroupRewritten, **values: Any) -> None:
        known = self._running.get(event.table)
        if known is not None and known.plan.run_id == event.run_id:
            self._running[event.table] = replace(known, **values)
