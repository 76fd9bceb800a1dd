"""The `spark` engine: Iceberg's own reader and writer over staged scan tasks; the commit stays with us.

Java plans the scan tasks at the pinned snapshot, so deletes are applied and row lineage is kept. Spark gets a frozen
copy of the table whose data location is specific to the run: file names contain Spark's query id, which is not known
in advance, so the in-flight record names the folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from compactor.errors import GiveUpError
from compactor.locations import is_too_long
from compactor.partitions import PartitionKey
from compactor.reasons import Reason
from compactor.rewrite.tasks.exact_columns import checked, misfit, schema_of, with_optional_columns
from compactor.spark.java_table import JAVA_ERRORS, JavaTable, data_folder

STAGED_TASKS = "scan-task-set-id"
REWRITTEN_TASKS = "rewritten-file-scan-task-set-id"
LONG_NAME = "x" * 100  # Spark's names are shorter
ONE_SPLIT = str(1 << 50)
ROW_BY_ROW = {"vectorization-enabled": "false"}
"""Iceberg 1.11's vectorized reader reads milliseconds in a dictionary as microseconds, so 2020 becomes 1970
(apache/iceberg 17135). It also misreads some INT96 values (13485) and never frees vectors of row ids (17296): 1 GB of
direct memory for every 45 million rows.
"""
DELETED_ROWS_METRIC = "numDeletes"  # metric of Iceberg's Spark reader: rows that deletes removed


@dataclass(frozen=True)
class SparkRewritten:
    """Output of one output task. `rows_deleted` is counted by Iceberg's reader, not derived from the output."""

    outputs: tuple[Any, ...]
    rows_out: int
    bytes_out: int
    rows_deleted: int


def run_folder(table: JavaTable, run_id: str) -> str:
    """Folder of all files that the `spark` engine writes in one run."""
    return f"{data_folder(table.view)}/firnline-{run_id}"


def frozen_metadata(table: JavaTable, folder: str, keys: Iterable[PartitionKey]) -> Any:
    """The Java table's current metadata, with `folder` as the place of its data files.

    Where the folder of one of the partitions would have too long a name, there are none in it. Values that Iceberg does
    not read from JSON (NaN, infinite) are short.
    """
    iceberg = table.jvm.org.apache.iceberg
    current = table.handle.operations().current()
    moved = table.jvm.java.util.HashMap()
    moved.put("write.data.path", folder)
    properties = table.jvm.java.util.HashMap(current.properties())
    properties.putAll(moved)
    provider = iceberg.LocationProviders.locationsFor(current.location(), properties)
    names = [(key, LONG_NAME) for key in keys if table.view.layout(key.spec_id).not_as_json(key) is None]
    if any(map(is_too_long, table.data_locations(names, provider))):
        moved.put("write.object-storage.enabled", "true")
        moved.put("write.object-storage.partitioned-paths", "false")
    location = current.metadataFileLocation()
    return (
        iceberg.TableMetadata.buildFrom(current)
        .setProperties(moved)
        .discardChanges()
        .withMetadataLocation(location)
        .build()
    )


def frozen_copy(table: JavaTable, metadata: Any) -> Any:
    """A copy of the Java table with this metadata and the table's present credential. It never refreshes."""
    iceberg = table.jvm.org.apache.iceberg
    locations = iceberg.LocationProviders.locationsFor(metadata.location(), metadata.properties())
    operations = iceberg.StaticTableOperations(metadata, table.handle.io(), locations)
    return iceberg.BaseTable(operations, table.handle.name())


def rewrite_with_spark(table: JavaTable, copy: Any, scan_tasks: Any, scan_id: str, *, ordered: bool) -> SparkRewritten:
    """Rewrite the files of `scan_tasks` (a Java list) into one file. `ordered`: sort rows by the table's sort order.

    Raises:
        GiveUpError: an output is in another partition than its inputs, a value does not fit its column, or the reader
            did not count deleted rows.
    """
    jvm, session = table.jvm, table.session
    manager = jvm.org.apache.iceberg.spark.ScanTaskSetManager.get()
    coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
    cache = _table_cache(table)
    has_deletes = any(not task.deletes().isEmpty() for task in scan_tasks)
    schema = schema_of(table, copy)
    read_id, optional = f"{scan_id}-read", with_optional_columns(table, copy, schema)
    try:
        cache.add(scan_id, copy)
        cache.add(read_id, optional)
        manager.stageTasks(copy, scan_id, scan_tasks)
        rows = (
            session.read.format("iceberg")
            .option(STAGED_TASKS, scan_id)
            .option("split-size", ONE_SPLIT)
            .option("file-open-cost", "0")
            .options(**ROW_BY_ROW)
            .load(read_id)
        )
        spec_id = scan_tasks[0].file().specId()
        target = (
            session.read.format("iceberg")
            .option(REWRITTEN_TASKS, scan_id)
            .option("target-file-size-bytes", ONE_SPLIT)
            .option("use-table-distribution-and-ordering", "true" if ordered else "false")
            .option("distribution-mode", "none")
            .option("output-spec-id", str(spec_id))
            .options(**_unsorted_label(table))
            .load(scan_id)
        )
        written = _append(table, checked(table, rows, schema), target)
        deleted = _deleted_rows(written) if has_deletes else 0
        outputs = tuple(coordinator.fetchNewFiles(copy, scan_id))
    except JAVA_ERRORS as error:
        misfitting = misfit(error, table.view.name)
        if misfitting is None:
            raise
        raise misfitting from error
    finally:
        cache.remove(scan_id)
        cache.remove(read_id)
        manager.removeTasks(copy, scan_id)
        coordinator.clearRewrite(copy, scan_id)
    _check_partitions(table, scan_tasks, outputs)
    rows_out = sum(int(file.recordCount()) for file in outputs)
    return SparkRewritten(
        outputs=outputs,
        rows_out=rows_out,
        bytes_out=sum(int(file.fileSizeInBytes()) for file in outputs),
        rows_deleted=deleted,
    )


def _unsorted_label(table: JavaTable) -> dict[str, str]:
    """Label the output as unsorted: a wrong sort label makes readers lose rows, a missing one costs nothing.

    Spark sorts by the table's *current* partition fields first, so a file of another spec is not in the sort order.
    """
    return {"output-sort-order-id": "0"} if table.handle.sortOrders().containsKey(0) else {}


def _check_partitions(table: JavaTable, scan_tasks: Any, outputs: Sequence[Any]) -> None:
    """Check that each output is in its inputs' partition: Spark's writer computes it from the rows that it has read.

    Raises:
        GiveUpError: a row was misread. Example: Iceberg's ORC reader reads fractions of a second before 1970 one second
            late.
    """
    source = scan_tasks[0].file()
    wrapper = table.jvm.org.apache.iceberg.util.StructLikeWrapper
    partition_type = table.handle.specs()[source.specId()].partitionType()
    expected = wrapper.forType(partition_type).set(source.partition())
    for output in outputs:
        found = wrapper.forType(partition_type).set(output.partition())
        if output.specId() != source.specId() or not found.equals(expected):
            raise GiveUpError(
                f"Spark reads a row of {source.location()} as part of partition {output.partition().toString()}, but "
                f"the file is in {source.partition().toString()}; such files are not rewritten",
                reason=Reason.PARTITION_CHANGED,
            )


def _append(table: JavaTable, rows: DataFrame, target: DataFrame) -> Any:
    """Write `rows` to the table of `target`, with its options, and return the executed plan.

    `DataFrameWriter.save` does the same but does not return the plan, which holds the reader's metrics.
    """
    jvm, session = table.jvm, table.session._jsparkSession  # noqa: SLF001 - no public way to the plan of a write
    relation, query = (frame._jdf.queryExecution().analyzed() for frame in (target, rows))  # noqa: SLF001
    options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
    command = jvm.org.apache.spark.sql.catalyst.plans.logical.AppendData.byName(relation, query, options)
    executed = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, command).queryExecution()
    return executed.executedPlan().commandPhysicalPlan()


def _deleted_rows(written: Any) -> int:
    """Rows that deletes removed, from the reader's own metric.

    Raises:
        GiveUpError: the plan has no such metric, so the rewrite cannot be checked.
    """
    leaves = written.collectLeaves()
    total, scans = 0, 0
    for index in range(leaves.size()):
        metric = leaves.apply(index).metrics().get(DELETED_ROWS_METRIC)
        if metric.isDefined():
            total, scans = total + int(metric.get().value()), scans + 1
    if scans == 0:
        raise GiveUpError("Iceberg's reader did not report how many rows were deleted; the rewrite cannot be checked")
    return total


def _table_cache(table: JavaTable) -> Any:
    """`SparkTableCache.get()` by reflection: Py4J cannot call it, because an instance method has the same name."""
    loader = table.handle.getClass().getClassLoader()
    field = loader.loadClass("org.apache.iceberg.spark.SparkTableCache").getDeclaredField("INSTANCE")
    field.setAccessible(True)
    return field.get(None)
