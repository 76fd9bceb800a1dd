"""Which output tasks one Spark task writes one after the other: small ones together, large ones alone.

A Spark job costs about 0.1 s, so a bundle takes some seconds. Bundles get smaller towards the end of a run, so that all
slots end at about the same time. How long a task takes is estimated from the tasks before it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from compactor.planning.engine import Engine
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.runs.usage import MINUTE

MEBIBYTE = 1024 * 1024
WORK_OF_A_FILE = MEBIBYTE // 2
"""Opening a file and reading its footer takes about as long as copying half a mebibyte."""
LEAST_SECONDS = 1.5
"""Of a bundle: ten times the overhead of a Spark job."""
MOST_SECONDS = 20.0
"""Of a bundle: what is lost with an executor, and what passes without progress that can be seen."""
MOST_TASKS = 64
BUNDLES_PER_SLOT = 2
"""Bundles of a slot in what is left, so that slots end together although estimates are rough."""
FIRST_GUESS = {Engine.SPLICE: 200.0 * MEBIBYTE, Engine.ENCODE: 40.0 * MEBIBYTE, Engine.SPARK: 20.0 * MEBIBYTE}
"""Bytes per second of one core on local disk (`make bench-rewrite`); counts until the first tasks have ended."""


class Pace:
    """How fast output tasks are, by engine: learned from the last minute of task time, since stores get faster and
    slower during a day. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._learned: dict[Engine, tuple[float, float]] = {}

    def seconds(self, engine: Engine, work: int) -> float:
        """Estimated seconds of a task with this work in bytes."""
        seconds, done = self._learned.get(engine, (1.0, FIRST_GUESS[engine]))
        return work * seconds / done

    def learn(self, engine: Engine, work: int, seconds: float) -> None:
        """A task with this work took so many seconds."""
        if work <= 0 or seconds <= 0:
            return
        with self._lock:
            known, done = self._learned.get(engine, (0.0, 0.0))
            kept = min(1.0, MINUTE / (known + seconds))
            self._learned[engine] = ((known + seconds) * kept, (done + work) * kept)


class TaskQueue:
    """Output tasks that wait for a slot, the longest first.

    Args:
        seconds: Estimated duration of each task.
        alone: Tasks that share no bundle.
    """

    def __init__(
        self,
        seconds: Mapping[TaskId, float],
        alone: frozenset[TaskId] = frozenset(),
    ) -> None:
        self._seconds = dict(seconds)
        self._alone = set(alone)
        self._waiting = sorted(seconds, key=lambda task: -seconds[task])

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tasks(self) -> Sequence[TaskId]:
        """The waiting tasks in order."""
        return tuple(self._waiting)

    def bundle(self, slots: int) -> list[TaskId]:
        """Take the tasks that one Spark task writes next. `slots`: slots that the run can hold."""
        left = sum(self._seconds[task] for task in self._waiting)
        enough = min(MOST_SECONDS, max(LEAST_SECONDS, left / (slots * BUNDLES_PER_SLOT)))
        taken: list[TaskId] = []
        total = 0.0
        for task in self._waiting:
            more = self._seconds[task]
            if taken and (task in self._alone or len(taken) == MOST_TASKS or total + more > enough):
                break
            taken.append(task)
            total += more
            if task in self._alone:
                break
        del self._waiting[: len(taken)]
        return taken

    def put_back(self, tasks: Sequence[TaskId]) -> None:
        """These tasks come next, each alone."""
        self._alone.update(tasks)
        self.put_first(tasks)

    def put_first(self, tasks: Sequence[TaskId]) -> None:
        """These tasks come next. They were not begun: they may share a bundle as before."""
        self._waiting[:0] = tasks

    def put_last(self, task: TaskId) -> None:
        """This task comes after all others, alone."""
        self._alone.add(task)
        self._waiting.append(task)
