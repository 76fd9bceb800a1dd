"""Running and recent rewrites, collected from events for the status page."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
        bytes: Of its input files.
        since: When it began.
        tasks: Output tasks in all; None before the first is done.
        bytes_done: Of the input files of the tasks that are done.
        moved_at: When the last of them was done.
        waits_until: The latest moment to which its finished outputs wait for a writer's commit; None if they do not.
    """

    run_id: str
    table: TableName
    groups: int
    files: int
    bytes: int
    since: float
    tasks_done: int = 0
    tasks: int | None = None
    bytes_done: int = 0
    moved_at: float | None = None
    waits_until: float | None = None

    def seconds_left(self, now: float) -> float | None:
        """Estimated time to its end, at the pace so far; None before its first output. 0 if it is overdue."""
        if self.moved_at is None or self.bytes_done <= 0:
            return None
        takes = (self.moved_at - self.since) * self.bytes / self.bytes_done
        return max(0.0, self.since + takes - now)


@dataclass(frozen=True)
class Finished:
    """A run that ended `at` (seconds since the epoch). `engines`: file groups by engine and reason; `message`: the
    error.
    """

    run_id: str
    table: TableName
    at: float
    snapshot_id: int | None = None
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    engines: Mapping[str, int] | None = None
    message: str = ""


class RecentWork:
    """Listener. Keeps the newest `MOST_KEPT` finished runs and one running run per table."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[TableName, Running] = {}
        self._engines: dict[str, Counter[str]] = {}
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
                    self._running[event.table] = Running(
                        run_id=event.run_id,
                        table=event.table,
                        groups=event.groups,
                        files=event.files,
                        bytes=event.bytes,
                        since=self._clock(),
                    )
                case RunMoved():
                    self._change(
                        event,
                        tasks_done=event.tasks_done,
                        tasks=event.tasks,
                        bytes_done=event.bytes_done,
                        bytes=event.bytes,
                        moved_at=self._clock(),
                    )
                case CommitWaits():
                    self._change(event, waits_until=self._clock() + event.seconds)
                case CommitHeld():
                    self._change(event, waits_until=None)
                case GroupRewritten():
                    self._engines.setdefault(event.run_id, Counter())[f"{event.engine}: {event.reason}"] += 1
                case RunSkipped():
                    self._running.pop(event.table, None)
                case RunCommitted():
                    self._end(_committed(event, self._clock(), self._engines.pop(event.run_id, Counter())))
                case RunFailed():
                    self._engines.pop(event.run_id, None)
                    message = f"{event.stage}: {event.message}"
                    self._end(Finished(run_id=event.run_id, table=event.table, at=self._clock(), message=message))
                case _:
                    pass

    def _change(self, event: RunMoved | CommitWaits | CommitHeld, **values: Any) -> None:
        known = self._running.get(event.table)
        if known is not None and known.run_id == event.run_id:
            self._running[event.table] = replace(known, **values)

    def _end(self, run: Finished) -> None:
        self._running.pop(run.table, None)
        self._finished.append(run)


def _committed(event: RunCommitted, now: float, engines: Mapping[str, int]) -> Finished:
    return Finished(
        run_id=event.run_id,
        table=event.table,
        at=now,
        snapshot_id=event.snapshot_id,
        files_in=event.files_in,
        files_out=event.files_out,
        bytes_in=event.bytes_in,
        bytes_out=event.bytes_out,
        seconds=event.plan_seconds + event.rewrite_seconds + event.commit_seconds,
        engines=dict(engines),
    )
