"""The `spark` engine: Iceberg's own reader and writer over staged scan tasks; the commit stays with us.

The tasks are Java's own, planned at the pinned snapshot, so deletes are applied and row lineage is carried. The table
handed to Spark is a frozen copy whose data location is specific to the run: file names hold Spark's query id, which
nobody knows beforehand, so the folder is what the in-flight record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.spark.java_table import JavaTable

STAGED_TASKS = "scan-task-set-id"
REWRITTEN_TASKS = "rewritten-file-scan-task-set-id"
ONE_SPLIT = str(1 << 50)
ROW_BY_ROW = {"vectorization-enabled": "false"}
"""Iceberg 1.11's vectorized reader takes milliseconds in a dictionary for microseconds, so that 2020 becomes 1970
(apache/iceberg 17135), reads some INT96 wrongly (13485), and never frees a vector of row ids (17296), which is a
gigabyte of direct memory for every 45 million rows.
"""
DELETED_ROWS_METRIC = "numDeletes"  # Iceberg's Spark reader: rows that deletes took away


@dataclass(frozen=True)
class SparkRewritten:
    """What Spark wrote for one share. `rows_deleted` is counted by Iceberg's reader, not from the output."""

    outputs: tuple[Any, ...]
    rows_out: int
    bytes_out: int
    rows_deleted: int


def run_folder(table: JavaTable, run_id: str) -> str:
    """The folder that holds everything the `spark` engine writes in one run."""
    return f"{table.data_folder()}/firnline-{run_id}"


def frozen_copy(table: JavaTable, folder: str) -> Any:
    """The Java table at its present metadata, never refreshed, writing its data below `folder`."""
    iceberg = table.jvm.org.apache.iceberg
    current = table.handle.operations().current()
    moved = table.jvm.java.util.HashMap()
    moved.put("write.data.path", folder)
    location = current.metadataFileLocation()
    metadata = (
        iceberg.TableMetadata.buildFrom(current)
        .setProperties(moved)
        .discardChanges()
        .withMetadataLocation(location)
        .build()
    )
    locations = iceberg.LocationProviders.locationsFor(metadata.location(), metadata.properties())
    operations = iceberg.StaticTableOperations(metadata, table.handle.io(), locations)
    return iceberg.BaseTable(operations, table.handle.name())


def rewrite_share(table: JavaTable, copy: Any, tasks: Sequence[Any], share_id: str, *, ordered: bool) -> SparkRewritten:
    """Rewrite one share's tasks into one file. `ordered`: sort its rows by the table's sort order.

    Raises:
        GiveUpError: an output is in another partition than its inputs, or nothing could be checked.
    """
    jvm, session = table.jvm, table.session
    manager = jvm.org.apache.iceberg.spark.ScanTaskSetManager.get()
    coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
    cache = _table_cache(table)
    staged = jvm.java.util.ArrayList()
    for task in tasks:
        staged.add(task)
    has_deletes = any(not task.deletes().isEmpty() for task in tasks)
    cache.add(share_id, copy)
    try:
        manager.stageTasks(copy, share_id, staged)
        rows = (
            session.read.format("iceberg")
            .option(STAGED_TASKS, share_id)
            .option("split-size", ONE_SPLIT)
            .option("file-open-cost", "0")
            .options(**ROW_BY_ROW)
            .load(share_id)
        )
        spec_id = tasks[0].file().specId()
        target = (
            session.read.format("iceberg")
            .option(REWRITTEN_TASKS, share_id)
            .option("target-file-size-bytes", ONE_SPLIT)
            .option("use-table-distribution-and-ordering", "true" if ordered else "false")
            .option("distribution-mode", "none")
            .option("output-spec-id", str(spec_id))
            .options(**_unsorted_label(table))
            .load(share_id)
        )
        written = _append(table, rows, target)
        deleted = _deleted_rows(written) if has_deletes else 0
        outputs = tuple(coordinator.fetchNewFiles(copy, share_id))
    finally:
        cache.remove(share_id)
        manager.removeTasks(copy, share_id)
        coordinator.clearRewrite(copy, share_id)
    _check_partitions(table, tasks, outputs)
    rows_out = sum(int(file.recordCount()) for file in outputs)
    return SparkRewritten(
        outputs=outputs,
        rows_out=rows_out,
        bytes_out=sum(int(file.fileSizeInBytes()) for file in outputs),
        rows_deleted=deleted,
    )


def _unsorted_label(table: JavaTable) -> dict[str, str]:
    """Spark sorts by the table's *present* partition fields first, so a file of another spec is not in the sort order.

    A file that is sorted and does not say so costs a reader nothing; the other way round it costs rows.
    """
    return {"output-sort-order-id": "0"} if table.handle.sortOrders().containsKey(0) else {}


def _check_partitions(table: JavaTable, tasks: Sequence[Any], outputs: Sequence[Any]) -> None:
    """The writer computes partitions anew from the rows it has read.

    Raises:
        GiveUpError: a row was read as another one than was written: Iceberg's ORC reader, for one, reads fractions of a
            second before 1970 a second late.
    """
    source = tasks[0].file()
    wrapper = table.jvm.org.apache.iceberg.util.StructLikeWrapper
    partition_type = table.handle.specs()[source.specId()].partitionType()
    expected = wrapper.forType(partition_type).set(source.partition())
    for output in outputs:
        found = wrapper.forType(partition_type).set(output.partition())
        if output.specId() != source.specId() or not found.equals(expected):
            raise GiveUpError(
                f"Spark reads a row of {source.location()} as one of partition {output.partition().toString()}, the "
                f"file is in {source.partition().toString()}; such files are left alone",
                reason=Reason.PARTITION_CHANGED,
            )


def _append(table: JavaTable, rows: DataFrame, target: DataFrame) -> Any:
    """Write `rows` to the table and with the options of `target`, and return the executed plan.

    What `DataFrameWriter.save` does, which keeps the plan, and with it the reader's metrics, to itself.
    """
    jvm, session = table.jvm, table.session._jsparkSession  # noqa: SLF001 - no public way to the plan of a write
    relation, query = (frame._jdf.queryExecution().analyzed() for frame in (target, rows))  # noqa: SLF001
    options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
    command = jvm.org.apache.spark.sql.catalyst.plans.logical.AppendData.byName(relation, query, options)
    executed = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, command).queryExecution()
    return executed.executedPlan().commandPhysicalPlan()


def _deleted_rows(written: Any) -> int:
    """Rows that the deletes took away, by the reader's own metric.

    Raises:
        GiveUpError: the plan shows no such metric, so nothing could be checked.
    """
    leaves = written.collectLeaves()
    total, scans = 0, 0
    for index in range(leaves.size()):
        metric = leaves.apply(index).metrics().get(DELETED_ROWS_METRIC)
        if metric.isDefined():
            total, scans = total + int(metric.get().value()), scans + 1
    if scans == 0:
        raise GiveUpError("Iceberg's reader reported no count of deleted rows; the rewrite cannot be checked")
    return total


def _table_cache(table: JavaTable) -> Any:
    """`SparkTableCache.get()`, which Py4J cannot call: the class also has an instance method of that name."""
    loader = table.handle.getClass().getClassLoader()
    field = loader.loadClass("org.apache.iceberg.spark.SparkTableCache").getDeclaredField("INSTANCE")
    field.setAccessible(True)
    return field.get(None)
