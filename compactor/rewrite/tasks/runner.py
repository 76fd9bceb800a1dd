"""Run output tasks: a Spark task splices or encodes some; Iceberg's own code in Spark rewrites what they refuse."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from compactor.credentials.renewing_file_io import vended_of
from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.iceberg.manifest_entries import Content
from compactor.locations import attempt_location
from compactor.manifests.executor_job import SCHEDULER_POOL
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.partitions import PartitionKey
from compactor.planning.engine import DELETES_CARRIED, Engine, EngineChoice, is_sorted, refused_request
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.planning.spark_misreads import PARQUET, misread
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
    attempt_count,
    attempt_tasks,
    run_task,
)
from compactor.rewrite.tasks.spark_checks import misread_files
from compactor.rewrite.tasks.spark_scan import frozen_copy, frozen_metadata, rewrite_with_spark, run_folder
from compactor.rewrite.tasks.task_input import NAME_MAPPING, aside, build_task_input, input_files, storage_of
from compactor.spark.java_table import JavaTable, activate, content_file, expired_in_java, first_line, store_is_silent
from compactor.spark.planned_tasks import overlooked_delete, planned_scan_tasks
from compactor.storage.byte_store import RENEWING
from compactor.storage.opening import byte_store_for

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

    def __init__(self, session: SparkSession, table: JavaTable, plan: TablePlan, run_id: str) -> None:
        self._session = session
        self._table = table
        self._plan = plan
        self._run_id = run_id
        self._lock = threading.Lock()
        self._spark_tasks: dict[str, Any] | None = None
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
        self._order: Sequence[TaskId] = tuple(self._outputs)
        self._jobs: Counter[TaskId] = Counter()
        self._prepared: dict[TaskId, _PreparedJob] = {}
        local = session.sparkContext.master.startswith("local")
        self._attempts_of_job = 1 if local else int(session.sparkContext.getConf().get("spark.task.maxFailures", "4"))
        self.repeated = session.sparkContext.getConf().get("spark.speculation", "false") == "true"
        """Whether some output may have been written more than once."""

    @property
    def most_attempts(self) -> int:
        """Files that the attempts of one output task may write at most: Spark's own attempts of each of its jobs."""
        return self._attempts_of_job * JOBS_OF_A_TASK

    def expect(self, order: Sequence[TaskId]) -> None:
        """Output tasks will be written in about this order: the manifests of their inputs are read accordingly."""
        self._order = [task for task in order if task in self._outputs]

    @property
    def output_files(self) -> tuple[str, ...]:
        """Locations of all files that `splice` and `encode` write, temporary files included."""
        return tuple(location for output in self._outputs.values() for location in (output, aside(output)))

    @property
    def output_folders(self) -> tuple[str, ...]:
        """The folder of this run that `spark` writes to."""
        return (run_folder(self._table, self._run_id),)

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
        self._metrics.start(works, self._order, self._input_of)
        first = max(self._jobs[task] for task in tasks) * self._attempts_of_job
        rdd = self._session.sparkContext.parallelize([list(works.values())], 1)
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
        activate(self._session)
        context = self._session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
        context.setJobGroup(self._run_id, f"firnline {self._plan.table.name} {what}", True)

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
        group = self._plan.groups[task.group].file_group
        files = group.tasks[task.position]
        self._check_for_spark(group.key, files)
        deleted = self._count_deleted(files)
        scan_tasks = self._table.jvm.java.util.ArrayList()
        scan_id, ordered = f"{self._run_id}-{task.group}-{task.position}", is_sorted(self._plan.table)
        try:
            planned_tasks = self._planned_tasks()
            for file in files:
                scan_tasks.add(self._with_all_deletes(planned_tasks[file.entry.path], file))
            written = rewrite_with_spark(self._table, self._frozen_copy(), scan_tasks, scan_id, ordered=ordered)
        except Py4JJavaError as error:
            if store_is_silent(error):
                raise RetryError(f"the store does not answer Spark: {first_line(error)}") from error
            if not expired_in_java(error, self._plan.table):
                raise
            self._table.load_anew()
            raise RetryError(
                f"the store refuses Spark's credential of {self._plan.table.name}: {first_line(error)}; {RENEWING}",
                reason=Reason.CREDENTIALS_EXPIRED,
            ) from error
        return WrittenOutput(
            engine=engine,
            scan_tasks=scan_tasks,
            outputs=written.outputs,
            files_in=len(files),
            bytes_in=sum(file.size for file in files),
            bytes_out=written.bytes_out,
            rows_deleted=written.rows_deleted if deleted is None else deleted,
            rows_out=written.rows_out,
            seconds=time.monotonic() - started,
            bytes_decoded=sum(file.size for file in files),
        )

    def _count_deleted(self, files: Sequence[LiveFile]) -> int | None:
        """The rows that deletes delete, by our own readers: Iceberg's own count would agree with what it misreads.

        None: they cannot count them. They read Parquet, vectors, and what `encode` compares.

        Raises:
            FirnlineError: by class the reaction.
        """
        deletes = deletes_of(files)
        if not deletes:
            return 0
        by_value = any(delete.content is Content.EQUALITY_DELETES for delete in deletes)
        if by_value and any(file.entry.file_format != PARQUET for file in files):
            return None
        work = input_files(self._plan.table, files)
        (counted,) = self._session.sparkContext.parallelize([work], 1).map(attempt_count).collect()
        if isinstance(counted, FirnlineError):
            raise counted
        return None if isinstance(counted, Refusal) else counted

    def _with_all_deletes(self, scan_task: Any, file: LiveFile) -> Any:
        """The scan task.

        Raises:
            GiveUpError: it lacks a planned delete.
        """
        delete = overlooked_delete(scan_task, file)
        if delete is not None:
            raise GiveUpError(
                f"Iceberg's scan of {self._plan.table.name} does not apply the delete file {delete} to "
                f"{file.entry.path}, although it applies: a rewrite would bring deleted rows back. The files stay as "
                "they are; report this error",
                reason=Reason.PLANS_DIFFER,
            )
        return scan_task

    def _check_for_spark(self, key: PartitionKey, files: Sequence[LiveFile]) -> None:
        """Check that Spark reads the files correctly: it writes the rows that it reads, right or wrong.

        Raises:
            GiveUpError: Spark misreads a file; the reason says how.
            RetryError: the store does not answer.
        """
        table = self._plan.table
        store = byte_store_for(files[0].entry.path, storage_of(table), vended_of(table.io))
        schemas = (table.metadata.schema(), *table.metadata.schemas)
        mapping = table.properties.get(NAME_MAPPING)
        found = misread(table, key, files) or misread_files(store, schemas, files, mapping)
        if found is not None:
            raise GiveUpError(
                f"a file group of {table.name} is not rewritten, because Spark would not keep rows: {found.sentence}",
                reason=found.reason,
            )

    @cached_property
    def _frozen_metadata(self) -> Any:
        keys = {planned.file_group.key for planned in self._plan.groups}
        return frozen_metadata(self._table, run_folder(self._table, self._run_id), keys)

    def _frozen_copy(self) -> Any:
        """The table for Spark as it was when the first task needed it, with a credential that is not due."""
        self._table.renew()
        with self._lock:
            return frozen_copy(self._table, self._frozen_metadata)

    def _planned_tasks(self) -> dict[str, Any]:
        """Java's scan tasks of all input files of the run, planned once, when the first task needs them."""
        with self._lock:
            if self._spark_tasks is None:
                self._table.renew()
                files = [file for planned in self._plan.groups for file in planned.file_group.files]
                self._spark_tasks = planned_scan_tasks(self._table, files)
            return self._spark_tasks


def _engine_of(planned: PlannedGroup, written: TaskResult) -> EngineChoice:
    """The engine that wrote an output, and why: the files may rule out the planned one, or allow a cheaper one."""
    if written.not_spliced is not None and planned.engine.kind is Engine.SPLICE:
        return EngineChoice(Engine.ENCODE, written.not_spliced.reason, written.not_spliced.sentence)
    if isinstance(written.file, SplicedFile) and any(each.carried or each.carried_by_value for each in written.inputs):
        return EngineChoice(Engine.SPLICE, Reason.DELETES_CARRIED, DELETES_CARRIED)
    return planned.engine
