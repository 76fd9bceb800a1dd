"""Output tasks that Iceberg's own code in Spark writes: what it would misread is refused, and its rows are counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JJavaError

from compactor.credentials.renewing_file_io import vended_of
from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.iceberg.manifest_entries import Content
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.partitions import PartitionKey
from compactor.planning.engine import is_sorted
from compactor.planning.plan_table import TablePlan
from compactor.planning.spark_misreads import PARQUET, misread
from compactor.reasons import Reason, Refusal
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.output_task import attempt_count
from compactor.rewrite.tasks.spark_checks import misread_files
from compactor.rewrite.tasks.spark_scan import (
    SparkRewritten,
    frozen_copy,
    frozen_metadata,
    rewrite_with_spark,
    run_folder,
)
from compactor.rewrite.tasks.task_input import NAME_MAPPING, input_files, storage_of
from compactor.spark.java_table import JavaTable, expired_in_java, first_line, store_is_silent
from compactor.spark.planned_tasks import overlooked_delete, planned_scan_tasks
from compactor.storage.byte_store import RENEWING
from compactor.storage.opening import byte_store_for


class SparkTasks:
    """Output tasks of one run. Java plans once for all of them, and they share a frozen copy of the table."""

    def __init__(self, table: JavaTable, plan: TablePlan, run_id: str) -> None:
        self._table = table
        self._plan = plan
        self.run_id = run_id
        self.folder = run_folder(table, run_id)
        self._lock = threading.Lock()

    def write(self, task: TaskId) -> tuple[Any, SparkRewritten]:
        """Write the output of a task: Java's list of the scan tasks of its inputs, and what was written.

        Raises:
            FirnlineError: by class the reaction.
        """
        group = self._plan.groups[task.group].file_group
        files = group.tasks[task.position]
        self._check_for_spark(group.key, files)
        deleted = self._count_deleted(files)
        scan_tasks = self._table.jvm.java.util.ArrayList()
        scan_id, ordered = f"{self.run_id}-{task.group}-{task.position}", is_sorted(self._plan.table)
        try:
            with self._lock:
                planned = self._scan_tasks
            for file in files:
                scan_tasks.add(self._with_all_deletes(planned[file.entry.path], file))
            self._table.renew()
            with self._lock:
                copy = frozen_copy(self._table, self._metadata)
            written = rewrite_with_spark(self._table, copy, scan_tasks, scan_id, ordered=ordered)
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
        return scan_tasks, written if deleted is None else replace(written, rows_deleted=deleted)

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
        (counted,) = self._table.session.sparkContext.parallelize([work], 1).map(attempt_count).collect()
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
    def _metadata(self) -> Any:
        """Of the table as it was when the first task needed it."""
        return frozen_metadata(self._table, self.folder, {planned.file_group.key for planned in self._plan.groups})

    @cached_property
    def _scan_tasks(self) -> dict[str, Any]:
        """Java's scan tasks of all input files of the run, planned once, when the first task needs them."""
        self._table.renew()
        files = [file for planned in self._plan.groups for file in planned.file_group.files]
        return planned_scan_tasks(self._table, files)
