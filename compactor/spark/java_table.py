"""Iceberg's Java table through Py4J: pinned to the planned snapshot; files are passed as JSON to save calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from compactor.errors import GiveUpError, ReplanError, RetryError
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionKey
from compactor.reasons import Reason

COMMIT_STATE_UNKNOWN = "org.apache.iceberg.exceptions.CommitStateUnknownException"
COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
NO_SUCH_TABLE = "org.apache.iceberg.exceptions.NoSuchTableException"
VALIDATION = "org.apache.iceberg.exceptions.ValidationException"
TABLE_DATA_LOCATIONS = ("write.data.path", "write.folder-storage.path")


@dataclass(frozen=True)
class JavaTable:
    """A loaded `org.apache.iceberg.Table`; `load` has checked that it is the table of the PyIceberg view."""

    session: SparkSession
    handle: Any
    view: TableView
    snapshot_id: int

    @classmethod
    def load(cls, session: SparkSession, view: TableView, snapshot_id: int) -> JavaTable:
        """Load the table through Spark's catalog.

        Raises:
            RetryError: Spark's catalog cannot load it.
            ReplanError: the table was replaced, its format version changed, or the planned snapshot expired.
        """
        spark3_util = session._jvm.org.apache.iceberg.spark.Spark3Util  # noqa: SLF001 - PySpark's documented gateway
        try:
            activate(session)
            # Spark3Util treats a catalog that fails to load as a namespace. Load it first, for an error with the cause.
            session._jsparkSession.sessionState().catalogManager().catalog(view.name.catalog)  # noqa: SLF001
            handle = spark3_util.loadIcebergTable(session._jsparkSession, view.name.spark)  # noqa: SLF001
        except Py4JJavaError as error:
            raise RetryError(
                f"Spark cannot load {view.name}: {first_line(error)}; check the catalog's properties",
                reason=Reason.TABLE_UNREADABLE,
            ) from error
        table = cls(session, handle, view, snapshot_id)
        table.check_unchanged()
        if handle.snapshot(snapshot_id) is None:
            raise ReplanError(
                f"snapshot {snapshot_id} of {view.name} expired since planning", reason=Reason.SNAPSHOT_EXPIRED
            )
        return table

    @property
    def sequence_number(self) -> int:
        """The planned snapshot's sequence number, which the outputs get; 0 in format version 1."""
        snapshot = self.view.metadata.snapshot_by_id(self.snapshot_id)
        return (snapshot.sequence_number or 0) if snapshot else 0

    def check_unchanged(self) -> None:
        """Check that this is still the planned table. The planned snapshot may have expired: Iceberg validates a commit
        against the snapshots after it.

        Raises:
            ReplanError: UUID or format version differ, or the branch was dropped.
        """
        name = self.view.name
        if self.handle.uuid().toString() != self.view.uuid:
            raise ReplanError(f"{name} was replaced by another table since planning", reason=Reason.TABLE_REPLACED)
        metadata = self.handle.operations().current()
        version = metadata.formatVersion()
        if metadata.ref(self.view.ref) is None:  # a commit would create the branch again
            raise ReplanError(
                f"branch {self.view.ref} of {name} was dropped since planning", reason=Reason.BRANCH_DROPPED
            )
        if version != self.view.metadata.format_version:
            raise ReplanError(
                f"{name} changed to format version {version} since planning", reason=Reason.FORMAT_CHANGED
            )

    def refresh(self) -> None:
        """Read the table's newest metadata.

        Raises:
            ReplanError: the table was dropped, or replaced by another table of the same name.
            RetryError: the catalog or the store does not answer.
        """
        try:
            self.handle.refresh()
        except Py4JJavaError as error:
            message = f"{self.view.name} cannot be read again: {first_line(error)}"
            if exception_class(error) == NO_SUCH_TABLE or "UUID does not match" in message:
                raise ReplanError(message, reason=Reason.TABLE_REPLACED) from error
            raise RetryError(message, reason=Reason.TABLE_UNREADABLE) from error

    @property
    def jvm(self) -> Any:
        """The gateway's view of Java packages."""
        return self.session._jvm  # noqa: SLF001

    def new_data_locations(self, names: Sequence[tuple[PartitionKey, str]]) -> list[str]:
        """Locations for new files with these names, from the table's location provider, as its own writers use it."""
        if not names:
            return []
        provider = self.handle.locationProvider()
        specs = {spec_id: self.handle.specs()[spec_id] for spec_id in {key.spec_id for key, _ in names}}
        partitioned = {spec_id for spec_id, spec in specs.items() if spec.isPartitioned()}
        files = self.files([content_file(key, name, "parquet", 0, {"record-count": 0}) for key, name in names])
        return [
            str(
                provider.newDataLocation(specs[key.spec_id], file.partition(), name)
                if key.spec_id in partitioned
                else provider.newDataLocation(name)
            )
            for (key, name), file in zip(names, files, strict=True)
        ]

    def scan_tasks(self, data_files: Sequence[Mapping[str, Any]]) -> Any:
        """A Java list of file scan tasks from content-file JSON (REST spec: FetchScanTasksResult)."""
        iceberg = self.jvm.org.apache.iceberg
        document = {
            "delete-files": [],
            "file-scan-tasks": [{"data-file": file, "residual-filter": True} for file in data_files],
        }
        node = iceberg.util.JsonUtil.mapper().readTree(json.dumps(document))
        parsed = iceberg.rest.responses.FetchScanTasksResponseParser.fromJson(node, self.handle.specs(), True)
        return parsed.fileScanTasks()

    def files(self, data_files: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Java `DataFile`s from content-file JSON."""
        return [task.file() for task in self.scan_tasks(data_files)]

    def delete_files(self, delete_files: Sequence[Mapping[str, Any]]) -> Any:
        """A Java list of `DeleteFile`s from content-file JSON, in one call: there may be thousands."""
        if not delete_files:
            return self.jvm.java.util.ArrayList()
        iceberg = self.jvm.org.apache.iceberg
        node = iceberg.util.JsonUtil.mapper().readTree(json.dumps({"delete-files": list(delete_files)}))
        return iceberg.rest.TableScanResponseParser.parseDeleteFiles(node, self.handle.specs())

    def planned_scan_tasks(self, paths: Iterable[str]) -> dict[str, Any]:
        """Java's own scan tasks of the given data files at the planned snapshot, deletes and row lineage included.

        Raises:
            GiveUpError: Java's plan lacks a file of the inventory.
            ReplanError: the planned snapshot has expired.
        """
        wanted = set(paths)
        if self.handle.snapshot(self.snapshot_id) is None:
            raise ReplanError(
                f"snapshot {self.snapshot_id} of {self.view.name} expired during the run",
                reason=Reason.SNAPSHOT_EXPIRED,
            )
        scan = self.handle.newScan().useSnapshot(self.snapshot_id).ignoreResiduals()
        found: dict[str, Any] = {}
        planned = scan.planFiles()
        try:
            iterator = planned.iterator()
            while len(found) < len(wanted) and iterator.hasNext():
                task = iterator.next()
                path = str(task.file().location())
                if path in wanted:
                    found[path] = task
        finally:
            planned.close()
        if len(found) < len(wanted):
            missing = next(iter(wanted - set(found)))
            raise GiveUpError(f"Iceberg's scan of {self.view.name} does not list {missing}", reason=Reason.PLANS_DIFFER)
        return found


def data_folder(view: TableView) -> str:
    """The folder where Iceberg's writers put a table's data files, without a trailing slash."""
    for key in TABLE_DATA_LOCATIONS:
        if view.properties.get(key):
            return view.properties[key].rstrip("/")
    return view.metadata.location.rstrip("/") + "/data"


def activate(session: SparkSession) -> None:
    """Make `session` the calling thread's active session: Spark finds catalogs in its configuration."""
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001


def content_file(
    key: PartitionKey, path: str, file_format: str, size: int, metrics: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """One data file as content-file JSON (REST spec). `metrics` must contain `record-count`."""
    return {
        "spec-id": key.spec_id,
        "content": "data",
        "file-path": path,
        "file-format": file_format,
        "partition": key.tuple_json,
        "file-size-in-bytes": size,
        **metrics,
        **more,
    }


def delete_file(entry: FileEntry) -> dict[str, Any]:
    """A delete file or deletion vector as content-file JSON (REST spec), enough to identify it in a commit."""
    more: dict[str, Any] = {"content": entry.content.value}
    if entry.content is Content.EQUALITY_DELETES:
        more["equality-ids"] = list(entry.equality_ids)
    if entry.blob is not None:
        more |= {"content-offset": entry.blob[0], "content-size-in-bytes": entry.blob[1]}
    if entry.applies_to is not None:
        more["referenced-data-file"] = entry.applies_to
    return content_file(entry.key, entry.path, entry.file_format, entry.size, {"record-count": entry.records}, **more)


def exception_class(error: Py4JJavaError) -> str:
    """The Java exception's class name."""
    return str(error.java_exception.getClass().getName())


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or exception_class(error))
    else:
        message = str(error)
    return message.strip().splitlines()[0] if message.strip() else type(error).__name__
