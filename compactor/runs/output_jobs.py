"""File groups rewritten by Spark jobs of one task each: a job starts as soon as a slot is free, and none waits.

Small output tasks are bundled (bundles.py): one Spark task writes them one after the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

from compactor.errors import FirnlineError, GiveUpError, StoppedError
from compactor.manifests.live_files import reads
from compactor.planning.engine import Engine
from compactor.planning.plan_table import TablePlan
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.runner import TRIED_AGAIN, OutputTaskRunner, WrittenOutput
from compactor.runs.bundles import WORK_OF_A_FILE, Pace, TaskQueue
from compactor.runs.job_errors import costs_its_group, failure_of_group, is_no_answer
from compactor.runs.results import NO_ANSWER, DroppedGroup, GroupResult, NotTriedError, checked_result
from compactor.runs.slots import SlotPool
from compactor.runs.unavailable import Unavailable

LOG = logging.getLogger("firnline")
LOOK_SECONDS = 1.0
MOST_THREADS = 1024  # one waits for each Spark job


Alone = Callable[[Mapping[int, Collection[str]], Callable[[], bool]], AbstractContextManager[None]]
"""What Spark works on suspects in, given these, and what to call during a wait."""


def _at_once(_suspects: Mapping[int, Collection[str]], _waits: Callable[[], bool]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass
class OutputJobs:
    """Runs the output tasks of a plan, as many at once as `slots` grants.

    Attributes:
        runner: Writes the outputs.
        slots: Shared with all other runs.
        pace: How fast output tasks were so far, shared with all other runs.
        stopped: Set from outside to stop; set here after a failure, so that other tasks end.
        cancel: Cancels the Spark jobs of the run.
        done: Called after each output task, from its thread.
        moved: Called while the run waits for a slot: waiting is no hang.
        read: Called with the input files (data and delete files), outputs and input bytes of tasks that a Spark job has
            read, or may have read before it failed.
        store: Whether the store answers, as far as the run has seen it.
        suspects: File groups that may have killed the last process, by number, with their data files: they share no
            Spark job.
        alone: See `Alone`.
    """

    runner: OutputTaskRunner
    plan: TablePlan
    run_id: str
    slots: SlotPool
    pace: Pace
    stopped: threading.Event
    cancel: Callable[[], object]
    done: Callable[[WrittenOutput], None]
    moved: Callable[[], object]
    read: Callable[[int, int, int], object]
    store: Unavailable = field(default_factory=Unavailable)
    suspects: Mapping[int, Collection[str]] = field(default_factory=dict)
    alone: Alone = _at_once
    _queue: TaskQueue = field(default_factory=lambda: TaskQueue({}))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _written: dict[TaskId, WrittenOutput] = field(default_factory=dict)
    _failed: dict[int, FirnlineError] = field(default_factory=dict)
    _tried: set[TaskId] = field(default_factory=set)
    _unanswered: dict[int, Exception] = field(default_factory=dict)
    _error: BaseException | None = None

    def rewrite(self, numbers: Sequence[int]) -> tuple[list[GroupResult], list[DroppedGroup]]:
        """Rewrite the file groups with these numbers of the plan; returns those whose rows add up, and the others.

        An output task that fails by itself costs its file group. One whose credential ended, whose memory was short,
        whose executors were lost or that got no answer of the store is tried once more, alone. A failure of the
        catalog, the store or the machine ends the run. Groups without an answer or an executor are left with a
        RetryError. Once the store answers no task any more (`store`), no other is begun; what was not tried is left
        with a NotTriedError.

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
        alone = frozenset(
            task
            for task in tasks
            if task.group in self.suspects or self.plan.groups[task.group].engine.kind is Engine.SPARK
        )
        self._queue = TaskQueue({task: self.pace.seconds(*self._work_of(task)) for task in tasks}, alone)
        self.runner.expect(self._queue.tasks)
        jobs: set[Future[None]] = set()
        with ThreadPoolExecutor(min(len(tasks), MOST_THREADS), thread_name_prefix="rewrite") as threads:
            try:
                self._start_jobs(threads, jobs)
            finally:
                by_request = self.stopped.is_set()
                if any(not job.done() for job in jobs):
                    self.stopped.set()
                while any(not job.done() for job in jobs):  # a job may start just after the others were cancelled
                    self.cancel()
                    wait(jobs, LOOK_SECONDS)
        if self._error is not None:
            raise self._error
        if by_request:
            raise StoppedError(f"run {self.run_id} was stopped before its commit")
        self._leave(tasks)

    def _start_jobs(self, threads: ThreadPoolExecutor, jobs: set[Future[None]]) -> None:
        """Start a job as soon as a slot is free, until all is written, or the store answers no job any more."""
        bundle: Sequence[TaskId] = ()
        while (self._queue or jobs or bundle) and not self._is_over():
            if self.store.is_certain:  # a job that is under way and succeeds ends it
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
        if not self._queue:
            return ()
        with self._lock:
            bundle = self._queue.bundle(self.slots.share)
        self.runner.prepare(bundle)  # while the slots are busy
        return bundle

    def _has_slot(self) -> bool:
        """Wait for a slot; whether a job is to be started in it.

        Raises:
            StoppedError: the run was given up.
        """
        if not self.slots.acquire(self._name, self._waits):
            if not self._is_over():
                raise StoppedError(f"run {self.run_id} was given up, because it made no progress for too long")
            return False
        if self.store.is_certain:  # since the wait began
            self.slots.release(self._name)
            return False
        return True

    def _leave(self, tasks: Sequence[TaskId]) -> None:
        """Drop the file groups that were not written before the store answered no more."""
        for task in tasks:
            if task not in self._written and task.group not in self._failed:
                error = self._unanswered.get(task.group)
                self._failed[task.group] = (
                    failure_of_group(self.plan, task, error) if error else NotTriedError(NO_ANSWER)
                )

    def _run_job(self, bundle: Sequence[TaskId]) -> None:
        """Write a bundle and give its slot back as soon as Spark is done with it."""
        suspects = {task.group: self.suspects[task.group] for task in bundle if task.group in self.suspects}
        with ExitStack() as slot:
            slot.callback(self.slots.release, self._name)
            try:
                with self.alone(suspects, self._waits):
                    tasks, not_begun = self._written_by_spark(bundle, slot)
                    errors = [(task, error) for task in tasks if (error := self._finish(task)) is not None]
                if len(errors) == len(tasks):  # what it has written shows that the store answers
                    for _ in filter(is_no_answer, (error for _, error in errors)):
                        self.store.note()
                self._put_first(not_begun)  # no job begins with them if the store answers none any more
                for task, error in errors:
                    self._judge(task, error)
            except BaseException as error:  # noqa: BLE001 - raised by the run's own thread
                if not self.stopped.is_set():
                    self._error = self._error or error

    def _written_by_spark(self, bundle: Sequence[TaskId], slot: ExitStack) -> tuple[Sequence[TaskId], Sequence[TaskId]]:
        """Run the bundle's Spark job; returns the tasks to finish, and the tasks that it has not begun.

        Gives the slot back unless Spark is needed again.
        """
        tasks = [task for task in bundle if task.group not in self._failed]
        if self._is_over() or not tasks:
            return (), ()
        try:
            not_begun = self.runner.write_ahead(tasks)
        except Exception as error:
            self._count_read(tasks)
            if self.stopped.is_set() or not costs_its_group(error):
                raise
            self._died(tasks, error)
            return (), ()
        tasks = [task for task in tasks if task not in not_begun]
        refused = [task for task in tasks if self.runner.needs_spark(task)]
        if refused and len(tasks) > 1:
            self._put_back(refused)
            tasks = [task for task in tasks if task not in refused]
        self._count_read(tasks)
        if not refused or len(bundle) > 1:
            slot.close()
        return tasks, not_begun

    def _count_read(self, tasks: Sequence[TaskId]) -> None:
        costs = [reads(self.plan.groups[task.group].file_group.tasks[task.position])[-1] for task in tasks]
        self.read(sum(files + deletes for files, deletes, _ in costs), len(tasks), sum(size for *_, size in costs))

    def _died(self, tasks: Sequence[TaskId], error: Exception) -> None:
        """The Spark job of these tasks failed as a whole, e.g. because its worker was killed.

        One of them may be too large for an executor, or another process of the host was: each is tried once more,
        alone. The one whose job dies again costs its file group.
        """
        if len(tasks) == 1 and tasks[0] in self._tried:
            self._fail(tasks[0], error)
            return
        self._tried.update(tasks)
        self._put_back(tasks)

    def _finish(self, task: TaskId) -> Exception | None:
        """Keep what the task has written, or let Spark write it. Returns the error of one that failed."""
        if self._is_over() or task.group in self._failed:
            return None
        try:
            written = self.runner.rewrite(task)
        except Exception as error:  # noqa: BLE001 - `_judge` raises it if it ends the run
            return error
        self.store.end()
        self._written[task] = written
        self.pace.learn(*self._work_of(task), written.seconds)
        self.done(written)
        return None

    def _judge(self, task: TaskId, error: Exception) -> None:
        """Put a task that failed back, or drop its file group.

        Raises:
            Exception: `error`, if it ends the run.
        """
        if task.group in self._failed:
            return
        if self.stopped.is_set():
            raise error
        if self._is_worth_another_attempt(task, error):
            return
        if not costs_its_group(error):
            raise error
        self._fail(task, error)

    def _is_worth_another_attempt(self, task: TaskId, error: Exception) -> bool:
        """Whether the task waits for a slot again: it may succeed alone, or with a new credential.

        Once the store answers no task any more, none would: its group is tried again by a later run.
        """
        passing = isinstance(error, FirnlineError) and error.reason in TRIED_AGAIN
        if not passing or task in self._tried or (is_no_answer(error) and self.store.is_certain):
            return False
        LOG.info("%s: an output task is tried again: %s", self._name, error)
        self._tried.add(task)
        if is_no_answer(error):
            self._unanswered[task.group] = error
            with self._lock:
                self._queue.put_last(task)  # the others show whether the store answers
        else:
            self._put_back([task])
        return True

    def _put_first(self, tasks: Sequence[TaskId]) -> None:
        with self._lock:
            self._queue.put_first(tasks)

    def _put_back(self, tasks: Sequence[TaskId]) -> None:
        with self._lock:
            self._queue.put_back(tasks)

    def _fail(self, task: TaskId, error: Exception) -> None:
        self._failed.setdefault(task.group, failure_of_group(self.plan, task, error))

    def _waits(self) -> bool:
        self.moved()
        return self._is_over()

    def _is_over(self) -> bool:
        return self.stopped.is_set() or self._error is not None

    def _work_of(self, task: TaskId) -> tuple[Engine, int]:
        planned = self.plan.groups[task.group]
        files = planned.file_group.tasks[task.position]
        return planned.engine.kind, sum(file.size + WORK_OF_A_FILE for file in files)

    @property
    def _name(self) -> str:
        """The run's name among the slots: a table has one run at a time."""
        return str(self.plan.table.name)
