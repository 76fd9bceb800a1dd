"""Run output tasks: a Spark task splices or encodes some; Iceberg's own code in Spark rewrites what they refuse."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from compactor.errors import FirnlineError, GiveUpError
from compactor.locations import attempt_location
from compactor.manifests.executor_job import SCHEDULER_POOL
from compactor.manifests.live_files import LiveFile
from compactor.planning.engine import DELETES_CARRIED, Engine, EngineChoice, refused_request
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.row_maps import InputRows
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge, to_json, with_column_sizes
from compactor.rewrite.splice.splice import SplicedFile
from compactor.rewrite.tasks.input_metrics import InputMetrics, TaskId
from compactor.rewrite.tasks.output_task import (
    MixedFile,
    TaskAttempt,
    TaskInput,
    TaskResult,
    attempt_tasks,
    run_task,
)
from compactor.rewrite.tasks.spark_tasks import SparkTasks
from compactor.rewrite.tasks.task_input import aside, build_task_input
from compactor.spark.java_table import JavaTable, activate, content_file

UNSORTED = 0
JOBS_OF_A_TASK = 2  # a bundle whose job failed, and a task with a reason of `TRIED_AGAIN`, are tried once more, alone
TRIED_AGAIN: Final = frozenset({Reason.CREDENTIALS_EXPIRED, Reason.OUT_OF_MEMORY, Reason.UNAVAILABLE, Reason.TASK_LOST})
"""Reasons of output tasks that may succeed at a second attempt: with a new credential, alone, later, or elsewhere."""


@dataclass(frozen=True)
class WrittenOutput:
    """One output task's result, ready to commit, with independent counts. Sizes in bytes.

    `scan_tasks`: Java scan tasks of the inputs. `outputs`: Java data files, none if all rows were deleted. `inputs`:
    where the one output holds the rows of each input; None: Spark wrote it, and its order is unknown.
    """

    engine: EngineChoice
    scan_tasks: Any
    outputs: tuple[Any, ...]
    files_in: int
    bytes_in: int
    bytes_out: int
    rows_deleted: int
    rows_out: int
    seconds: float
    bytes_decoded: int
    inputs: tuple[InputRows, ...] | None = None


@dataclass(frozen=True)
class _PreparedJob:
    """A Spark job of one task that writes the outputs of `tasks`; not yet started."""

    tasks: list[TaskId]
    rdd: Any


class OutputTaskRunner:
    """Runs the output tasks of one run. The output names are fixed before the first byte is written."""

    def __init__(self, table: JavaTable, plan: TablePlan, run_id: str) -> None:
        self._table = table
        self._plan = plan
        self._spark = SparkTasks(table, plan, run_id)
        self._attempts: dict[TaskId, TaskAttempt] = {}
        tasks = [
            TaskId(number, index)
            for number, planned in enumerate(plan.groups)
            if planned.engine.kind is not Engine.SPARK
            for index in range(len(planned.file_group.tasks))
        ]
        names = [
            (plan.groups[task.group].file_group.key, f"{task.group:05d}-{task.position:05d}-firnline-{run_id}.parquet")
            for task in tasks
        ]
        self._outputs = dict(zip(tasks, table.new_data_locations(names), strict=True))
        self._metrics = InputMetrics(plan)
        self.expect(tasks)
        self._jobs: Counter[TaskId] = Counter()
        self._prepared: dict[TaskId, _PreparedJob] = {}
        context = table.session.sparkContext
        local = context.master.startswith("local")
        self._attempts_of_job = 1 if local else int(context.getConf().get("spark.task.maxFailures", "4"))
        self.repeated = context.getConf().get("spark.speculation", "false") == "true"
        """Whether some output may have been written more than once."""

    @property
    def most_attempts(self) -> int:
        """Files that the attempts of one output task may write at most: Spark's own attempts of each of its jobs."""
        return self._attempts_of_job * JOBS_OF_A_TASK

    def expect(self, order: Sequence[TaskId]) -> None:
        """Output tasks will be written in about this order: the manifests of their inputs are read accordingly."""
        self._metrics.order = [task for task in order if task in self._outputs]

    @property
    def output_files(self) -> tuple[str, ...]:
        """Locations of all files that `splice` and `encode` write, temporary files included."""
        return tuple(location for output in self._outputs.values() for location in (output, aside(output)))

    @property
    def output_folders(self) -> tuple[str, ...]:
        """The folder of this run that `spark` writes to."""
        return (self._spark.folder,)

    def rewrite(self, task: TaskId) -> WrittenOutput:
        """Write one task's output, unless `write_ahead` has. Several threads call it.

        Called once per task, and once more after an error with a reason of `TRIED_AGAIN`.

        Raises:
            FirnlineError: by class the reaction.
        """
        planned = self._plan.groups[task.group]
        engine = planned.engine
        if engine.kind is not Engine.SPARK:
            if task not in self._attempts:
                self.write_ahead([task])
            attempt = self._attempts.pop(task)
            if isinstance(attempt.outcome, FirnlineError) and attempt.outcome.reason in TRIED_AGAIN:
                raise attempt.outcome  # the next attempt needs the metrics
            try:
                if isinstance(attempt.outcome, FirnlineError):
                    raise attempt.outcome
                if isinstance(attempt.outcome, TaskResult):
                    return self._written(planned, task, attempt.outcome, attempt)
            finally:
                self._metrics.forget(task)
            engine = self._refused(attempt.outcome)
        self._label_thread(str(planned.file_group.partition))
        return self._by_spark(task, engine)

    def write_ahead(self, bundle: Sequence[TaskId]) -> Sequence[TaskId]:
        """Write the outputs of a bundle one after the other, in one Spark job of one task.

        A job for each would add 0.1 s per output. `rewrite` returns or raises each task's outcome: a file, a refusal or
        an error. Tasks that are written already, or that only Spark can write, are left out. Returns the tasks
        that were not begun, because the store answered no more: they may be written by another job.
        """
        tasks = self._to_write(bundle)
        if not tasks:
            return ()
        prepared = self._prepared.pop(tasks[0], None)
        if prepared is None or prepared.tasks != tasks:
            prepared = self._job_of(tasks)
        self._jobs.update(tasks)
        self._label_thread(f"{len(tasks)} outputs")
        (attempts,) = prepared.rdd.collect()
        self.repeated = self.repeated or any(attempt.number for attempt in attempts)
        self._attempts.update(zip(tasks, attempts, strict=False))
        not_begun = tasks[len(attempts) :]
        self._jobs.subtract(not_begun)
        return not_begun

    def prepare(self, bundle: Sequence[TaskId]) -> None:
        """Prepare the Spark job of a bundle, so that it starts at once when `write_ahead` is called."""
        tasks = self._to_write(bundle)
        if tasks:
            self._prepared[tasks[0]] = self._job_of(tasks)

    def _to_write(self, bundle: Sequence[TaskId]) -> list[TaskId]:
        return [task for task in bundle if task in self._outputs and task not in self._attempts]

    def _job_of(self, tasks: list[TaskId]) -> _PreparedJob:
        works = {task: self._input_of(task) for task in tasks}
        self._metrics.start(works, self._input_of)
        first = max(self._jobs[task] for task in tasks) * self._attempts_of_job
        rdd = self._table.session.sparkContext.parallelize([list(works.values())], 1)
        written = rdd.map(partial(attempt_tasks, run_task, first, self._attempts_of_job))
        _ = written._jrdd  # noqa: SLF001 - sends the function to the JVM now
        return _PreparedJob(tasks, written)

    def needs_spark(self, task: TaskId) -> bool:
        """Whether `rewrite` will start Spark jobs for the task, because it was planned so or was refused."""
        if self._plan.groups[task.group].engine.kind is Engine.SPARK:
            return True
        attempt = self._attempts.get(task)
        return attempt is None or isinstance(attempt.outcome, Refusal)

    def _input_of(self, task: TaskId) -> TaskInput:
        return build_task_input(self._plan, self._plan.groups[task.group], task.position, self._outputs[task])

    def _label_thread(self, what: str) -> None:
        """Set Spark's properties of this thread: session, FAIR pool, and the job group that cancels the run."""
        activate(self._table.session)
        context = self._table.session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
        context.setJobGroup(self._spark.run_id, f"firnline {self._plan.table.name} {what}", True)

    def _refused(self, refusal: Refusal) -> EngineChoice:
        requested = self._plan.requested_engine
        if requested != "auto":
            raise refused_request(requested, self._plan.table.name, refusal)
        return EngineChoice(Engine.SPARK, refusal.reason, refusal.sentence)

    def _written(self, planned: PlannedGroup, task: TaskId, written: TaskResult, attempt: TaskAttempt) -> WrittenOutput:
        files = planned.file_group.tasks[task.position]
        file = written.file.spliced if isinstance(written.file, MixedFile) else written.file
        encoded = written.file.encoded if isinstance(written.file, MixedFile) else written.file
        inputs = [
            content_file(each.entry.key, each.entry.path, "parquet", each.size, {"record-count": each.entry.records})
            for each in files
        ]
        outputs = []
        if file.rows:
            output = content_file(
                planned.file_group.key,
                attempt_location(self._outputs[task], attempt.number),
                "parquet",
                file.size,
                to_json(self._metrics_of(task, files, written.file)),
                **{"split-offsets": list(file.split_offsets), "sort-order-id": UNSORTED},
            )
            outputs = self._table.files([output])
        return WrittenOutput(
            engine=_engine_of(planned, written),
            scan_tasks=self._table.scan_tasks(inputs),
            outputs=tuple(outputs),
            files_in=len(files),
            bytes_in=sum(each.size for each in files),
            bytes_out=file.size if file.rows else 0,
            rows_deleted=encoded.rows_deleted if isinstance(encoded, EncodedFile) else 0,
            rows_out=file.rows,
            seconds=attempt.seconds,
            bytes_decoded=written.decoded_bytes,
            inputs=written.inputs,
        )

    def _metrics_of(
        self, task: TaskId, files: Sequence[LiveFile], file: SplicedFile | EncodedFile | MixedFile
    ) -> ColumnMetrics:
        if isinstance(file, EncodedFile):
            return file.metrics
        if isinstance(file, MixedFile):
            kept = self._metrics.take(task, [files[index].entry.path for index in file.kept])
            merged = merge([kept, file.encoded.metrics], self._plan.table.metadata.schema())
            spliced = file.spliced
        else:
            merged, spliced = self._metrics.take(task, [each.entry.path for each in files]), file
        metrics = with_column_sizes(merged, spliced.column_sizes)
        if metrics.record_count != spliced.rows:
            raise GiveUpError(
                f"{self._outputs[task]} holds {spliced.rows} rows, but the manifests list {metrics.record_count}",
                reason=Reason.ROW_COUNT_MISMATCH,
            )
        return metrics

    def _by_spark(self, task: TaskId, engine: EngineChoice) -> WrittenOutput:
        started = time.monotonic()
        files = self._plan.groups[task.group].file_group.tasks[task.position]
        scan_tasks, written = self._spark.write(task)
        return WrittenOutput(
            engine=engine,
            scan_tasks=scan_tasks,
            outputs=written.outputs,
            files_in=len(files),
            bytes_in=sum(file.size for file in files),
            bytes_out=written.bytes_out,
            rows_deleted=written.rows_deleted,
            rows_out=written.rows_out,
            seconds=time.monotonic() - started,
            bytes_decoded=sum(file.size for file in files),
        )


def _engine_of(planned: PlannedGroup, written: TaskResult) -> EngineChoice:
    """The engine that wrote an output, and why: the files may rule out the planned one, or allow a cheaper one."""
    if written.not_spliced is not None and planned.engine.kind is Engine.SPLICE:
        return EngineChoice(Engine.ENCODE, written.not_spliced.reason, written.not_spliced.sentence)
    if isinstance(written.file, SplicedFile) and any(each.carried or each.carried_by_value for each in written.inputs):
        return EngineChoice(Engine.SPLICE, Reason.DELETES_CARRIED, DELETES_CARRIED)
    return planned.engine
