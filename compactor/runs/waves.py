"""File groups rewritten in waves: a wave is one Spark job of several output tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from py4j.protocol import Py4JError, Py4JJavaError

from compactor.errors import FirnlineError, GiveUpError, StoppedError
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.runner import OutputTaskRunner, WrittenOutput
from compactor.runs.results import DroppedGroup, GroupResult, checked_result
from compactor.spark.java_table import exception_class, first_line

UNSUPPORTED = "java.lang.UnsupportedOperationException"


@dataclass
class OutputWaves:
    """Runs the output tasks of a plan: `slots` at once, `wave` of them in one Spark job.

    Attributes:
        runner: Runs one output task.
        stopped: Set from outside to stop; set here after a failure, so that other tasks end.
        cancel: Cancels the Spark jobs of the run.
        done: Called after each output task, from its thread.
    """

    runner: OutputTaskRunner
    plan: TablePlan
    run_id: str
    slots: int
    wave: int
    stopped: threading.Event
    cancel: Callable[[], object]
    done: Callable[[WrittenOutput], None]
    _written: dict[TaskId, WrittenOutput] = field(default_factory=dict)
    _failed: dict[int, FirnlineError] = field(default_factory=dict)

    def rewrite(self, numbers: Sequence[int]) -> tuple[list[GroupResult], list[DroppedGroup]]:
        """Rewrite the file groups with these numbers of the plan; returns those whose rows add up, and the others.

        An output task that fails by itself costs its file group; a failure of the catalog, the store or the machine
        ends the run.

        Raises:
            StoppedError: `stopped` was set.
            FirnlineError: by class the reaction.
        """
        self._written.clear()
        groups = self.plan.groups
        self._run_all(
            [TaskId(number, index) for number in numbers for index in range(len(groups[number].file_group.tasks))]
        )
        outputs = sorted(self._written.items())
        finished: list[GroupResult] = []
        for number in numbers:
            parts = [output for task, output in outputs if task.group == number]
            try:
                if number not in self._failed:
                    finished.append(checked_result(self.run_id, self.plan, groups[number], parts))
            except GiveUpError as mismatch:
                self._failed[number] = mismatch
        return finished, [
            DroppedGroup(planned=groups[number], error=self._failed[number])
            for number in numbers
            if number in self._failed
        ]

    def _run_all(self, tasks: Sequence[TaskId]) -> None:
        by_request = False
        with ThreadPoolExecutor(min(self.slots, len(tasks)), thread_name_prefix="rewrite") as pool:
            try:
                for first in range(0, len(tasks), self.wave):
                    wave = tasks[first : first + self.wave]
                    if not self.stopped.is_set():
                        self.runner.write_ahead(wave)
                    for future in [pool.submit(self._run_one, task) for task in wave]:
                        future.result()
                by_request = self.stopped.is_set()
            except BaseException as error:
                by_request = self.stopped.is_set()
                self.stopped.set()
                self.cancel()
                if not by_request:
                    raise
                raise self._stopped() from error
        if by_request:
            raise self._stopped()

    def _run_one(self, task: TaskId) -> None:
        if self.stopped.is_set() or task.group in self._failed:
            return
        try:
            written = self.runner.rewrite(task)
        except Exception as error:
            if self.stopped.is_set() or not _costs_its_group(error):
                raise
            self._failed.setdefault(task.group, _as_firnline_error(self.plan, error))
            return
        self._written[task] = written
        self.done(written)

    def _stopped(self) -> StoppedError:
        return StoppedError(f"run {self.run_id} was stopped before its commit")


def _costs_its_group(error: Exception) -> bool:
    """Whether the other file groups can go on: catalog, store, request and machine are well."""
    lost_jvm = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return isinstance(error, GiveUpError) or not (isinstance(error, FirnlineError) or lost_jvm)


def _as_firnline_error(plan: TablePlan, error: Exception) -> FirnlineError:
    if isinstance(error, FirnlineError):
        return error
    unsupported = isinstance(error, Py4JJavaError) and exception_class(error) == UNSUPPORTED
    reason = Reason.TYPE_NOT_SUPPORTED if unsupported else Reason.UNEXPECTED  # Spark has neither time nor nanoseconds
    failure = GiveUpError(f"rewriting a file group of {plan.table.name} failed: {first_line(error)}", reason=reason)
    failure.__cause__ = error
    return failure
