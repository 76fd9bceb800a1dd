"""Iceberg's Java table through Py4J: pinned to the planned snapshot; files are passed as JSON to save calls."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from compactor.credentials.credential import Credential, means_expired
from compactor.credentials.renewing_file_io import vended_of
from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import TableMissingError, TableView
from compactor.locations import is_too_long
from compactor.partitions import PartitionKey
from compactor.reasons import Reason
from compactor.storage.byte_store import PERMIT
from compactor.table_names import TableName

JAVA_ERRORS = (Py4JJavaError, CapturedException)
"""Exceptions of Java. PySpark turns some of them into its own, e.g. IllegalArgumentException, whoever raised them."""
COMMIT_STATE_UNKNOWN = "org.apache.iceberg.exceptions.CommitStateUnknownException"
COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
NOT_AUTHORIZED = "org.apache.iceberg.exceptions.NotAuthorizedException"
NO_SUCH_TABLE = "org.apache.iceberg.exceptions.NoSuchTableException"
VALIDATION = "org.apache.iceberg.exceptions.ValidationException"
SILENCE = (
    "software.amazon.awssdk.core.exception.SdkClientException",
    "java.net.ConnectException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "Status Code: 500",
    "Status Code: 503",
)
_DENIED = re.compile(
    r"Access ?Denied|AccessControlException|Permission denied|Operation not permitted|Read-only file system|"
    r"Mkdirs failed|[Ss]tatus [Cc]ode:? 403|403 Forbidden|ForbiddenException|AuthorizationPermissionMismatch"
)
"""In the errors of file systems and stores that deny access. Hadoop does not say why it could not make a folder."""
SHUT_DOWN = ("SparkContext was shut down", "stopped SparkContext")
"""In the errors of calls that Spark's end has cut."""
_JOB_ABORTED = re.compile(r"Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): ")
REFRESH_ENDPOINT = "client.refresh-credentials-endpoint"
EXPIRES_AT = "s3.session-token-expires-at-ms"
RENEWING_IN_JAVA = ("org.apache.iceberg.aws.s3.S3FileIO", "org.apache.iceberg.io.ResolvingFileIO")
TABLE_DATA_LOCATIONS = ("write.data.path", "write.folder-storage.path")


@dataclass(eq=False)
class JavaTable:
    """A loaded `org.apache.iceberg.Table`; `load` has checked that it is the table of the PyIceberg view.

    Java keeps the credential of the store that the catalog vended with the table, and a login that it could not renew.
    Then the table is loaded again: `handle` changes. `credential`: the vended one, as old as the handle's or older.
    """

    session: SparkSession
    handle: Any
    view: TableView
    snapshot_id: int
    credential: Credential | None = None

    @classmethod
    def load(cls, session: SparkSession, view: TableView, snapshot_id: int) -> JavaTable:
        """Load the table through Spark's catalog.

        Raises:
            TableMissingError: the table was dropped.
            RetryError: Spark's catalog cannot load it.
            ReplanError: the table was replaced, or its format version changed.
            GiveUpError: the table has no UUID.
        """
        table = cls(session, None, view, snapshot_id)
        table.load_anew()
        table.check_unchanged()
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
            ReplanError: UUID or format version differ, the branch was dropped, or rows were given their ids since.
            GiveUpError: the table has no UUID.
        """
        name = self.view.name
        if not self.view.has_uuid:
            raise GiveUpError(
                f"{name} has no table-uuid, so a commit could meet another table of its name; append to it once with "
                "Spark, Flink or another writer of Iceberg's Java library, which then assigns one",
                reason=Reason.BAD_METADATA,
            )
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
        if self.plans_without_row_ids and self.handle.snapshot(self.view.ref).firstRowId() is not None:
            raise ReplanError(f"the rows of {name} were given their ids since planning", reason=Reason.FORMAT_CHANGED)

    @property
    def plans_without_row_ids(self) -> bool:
        """Whether the planned rows have no ids on V3. The first commit after an upgrade to V3 gives ids to all rows.
        Outputs planned before have none of them.
        """
        planned = self.view.metadata.snapshot_by_id(self.snapshot_id)
        return self.view.keeps_row_lineage and planned is not None and planned.first_row_id is None

    def send(self, snapshot: Any) -> None:
        """Commit a snapshot that was made for the newest metadata, once: it is not made again if another commit comes
        first, as Iceberg's own `commit()` does.

        Raises:
            JAVA_ERRORS: it was not committed, or that is unknown.
        """
        operations = self.handle.operations()
        operations.commit(operations.current(), self.with_snapshot(snapshot))

    def with_snapshot(self, snapshot: Any) -> Any:
        """The newest metadata with this snapshot.

        Raises:
            JAVA_ERRORS: it does not fit them, e.g. it is older than the last one.
        """
        builder = self.jvm.org.apache.iceberg.TableMetadata.buildFrom(self.handle.operations().current())
        return builder.setBranchSnapshot(snapshot, self.view.ref).build()

    def renew(self) -> None:
        """Load the table again if its credential is due; a long piece of work begins. Raises as `load_anew`."""
        if self.credential is not None and self.credential.is_due(time.time()):
            self.load_anew()

    def load_anew(self) -> None:
        """Load the table with a new credential and, if the catalog refuses Java's login, with a new login.

        Raises:
            TableMissingError: the table was dropped.
            RetryError: Spark's catalog cannot load it.
        """
        vended = vended_of(self.view.io)
        credential = vended.current() if vended is not None else None
        try:
            self.handle = _loaded(self.session, self.view)
            if vended is not None and vended.endpoint is not None:
                _let_java_renew(self.handle.io(), vended.endpoint, self.jvm)
        except CapturedException as error:
            if "TABLE_OR_VIEW_NOT_FOUND" not in str(error):
                raise
            raise TableMissingError(missing_for_spark(self.view.name)) from error
        except Py4JJavaError as error:
            raise RetryError(
                f"Spark cannot load {self.view.name}: {first_line(error)}; check the catalog's properties",
                reason=Reason.CREDENTIALS_EXPIRED if _refuses_login(error) else Reason.TABLE_UNREADABLE,
            ) from error
        self.credential = credential

    def refresh(self) -> None:
        """Read the table's newest metadata.

        Raises:
            ReplanError: the table was dropped, or replaced by another table of the same name.
            RetryError: the catalog or the store does not answer.
        """
        if self.credential is not None and self.credential.is_due(time.time()):
            self.load_anew()
            return
        try:
            self.handle.refresh()
        except Py4JJavaError as error:
            if means_expired(str(error), vended=False):
                self.load_anew()
                return
            message = f"{self.view.name} cannot be read again: {first_line(error)}"
            if exception_class(error) == NO_SUCH_TABLE or "UUID does not match" in message:
                raise ReplanError(message, reason=Reason.TABLE_REPLACED) from error
            raise RetryError(message, reason=Reason.TABLE_UNREADABLE) from error

    @property
    def jvm(self) -> Any:
        """The gateway's view of Java packages."""
        return self.session._jvm  # noqa: SLF001

    def new_data_locations(self, names: Sequence[tuple[PartitionKey, str]]) -> list[str]:
        """Locations for new files with these names, from the table's location provider, as its own writers use it.

        Where the folder of a partition would have too long a name, the file is not put into one: the names are unique.
        """
        provider = self.handle.locationProvider()
        locations = self.data_locations(names, provider)
        return [
            str(provider.newDataLocation(name)) if is_too_long(location) else location
            for (_, name), location in zip(names, locations, strict=True)
        ]

    def data_locations(self, names: Sequence[tuple[PartitionKey, str]], provider: Any) -> list[str]:
        """Locations for files with these names from a location provider, in the folders of their partitions."""
        if not names:
            return []
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


def _loaded(session: SparkSession, view: TableView) -> Any:
    spark3_util = session._jvm.org.apache.iceberg.spark.Spark3Util  # noqa: SLF001 - PySpark's documented gateway
    activate(session)
    catalogs = session._jsparkSession.sessionState().catalogManager()  # noqa: SLF001
    for attempt in range(2):
        try:
            # Spark3Util treats a catalog that fails to load as a namespace. Load it first, for an error with the cause.
            catalogs.catalog(view.name.catalog)
            return spark3_util.loadIcebergTable(session._jsparkSession, view.name.spark)  # noqa: SLF001
        except Py4JJavaError as error:
            if attempt or not _refuses_login(error):
                raise
            # Iceberg's client gives up to renew its login once the login server has refused. Spark has no public way to
            # open a catalog again. Tables that other runs have loaded keep working.
            catalogs.reset()
    raise AssertionError("unreachable: the second attempt returns or raises")


def missing_for_spark(name: TableName) -> str:
    """What to say of a table that PyIceberg has loaded and Spark does not find."""
    if any(" " in part for part in (*name.namespace, name.name)):
        return (
            f"table {name} does not exist for Spark. Iceberg's Java client (1.11) writes a space of a name as + in "
            "requests to a REST catalog, and this one takes it for a plus (apache/iceberg 17759): no Java engine can "
            "load the table there. Rename the table or namespace, or exclude it (tables.exclude); without a REST "
            "catalog, it was dropped since the plan"
        )
    return (
        f"table {name} does not exist for Spark: it was dropped since the plan, or Spark's properties of catalog "
        f"{name.catalog} lead to another place"
    )


def _let_java_renew(io: Any, endpoint: str, jvm: Any) -> None:
    """Tell Iceberg's FileIO of S3, here and on executors, where to ask for new credentials, if the catalog has not."""
    if io.getClass().getName() not in RENEWING_IN_JAVA or io.properties().get(REFRESH_ENDPOINT) is not None:
        return
    known = [(each.prefix(), dict(each.config())) for each in io.credentials()] or [("s3://", {})]
    told = jvm.java.util.ArrayList()
    for prefix, config in known:
        properties = jvm.java.util.HashMap()
        for name, value in (config | {REFRESH_ENDPOINT: endpoint}).items():
            if name != EXPIRES_AT:  # else it schedules renewals by itself, without this endpoint
                properties.put(name, value)
        told.add(jvm.org.apache.iceberg.io.StorageCredential.create(prefix, properties))
    io.setCredentials(told)


def _refuses_login(error: Py4JJavaError) -> bool:
    return NOT_AUTHORIZED in str(error)


def expired_in_java(error: Exception, view: TableView) -> bool:
    """Whether an error of Java may come from a credential that has ended, in the driver or on an executor."""
    return isinstance(error, Py4JJavaError) and means_expired(str(error), vended=vended_of(view.io) is not None)


def store_is_silent(error: Py4JJavaError) -> bool:
    """Whether Iceberg's reader or writer did not get an answer of the store, in the driver or on an executor."""
    return any(sign in str(error) for sign in SILENCE)


def denial(error: BaseException) -> str | None:
    """The line of an error of Java in which a store or file system denies access, often the last cause; else None."""
    lines = str(error).splitlines() if isinstance(error, JAVA_ERRORS) else []
    denied = next((line for line in lines if _DENIED.search(line)), None)
    return denied and _JOB_ABORTED.sub("", denied.strip().removeprefix("Caused by: "))


def spark_has_ended(error: BaseException) -> bool:
    """Whether Spark or its JVM has ended: nothing is wrong with what it worked on."""
    if isinstance(error, JAVA_ERRORS):
        return any(sign in str(error) for sign in SHUT_DOWN)
    return isinstance(error, Py4JError)


def unforeseen(what: str, error: Exception) -> FirnlineError:
    """What an error that no code expects means: Spark has ended, which says nothing about the table; else give up."""
    if spark_has_ended(error):
        return RetryError(f"Spark ended, and {what} failed: {first_line(error)}", reason=Reason.SPARK_LOST)
    denied = denial(error)
    if denied is not None:
        return GiveUpError(f"{what} failed: {denied}; {PERMIT}", reason=Reason.ACCESS_DENIED)
    return GiveUpError(f"{what} failed: {first_line(error)}", reason=Reason.UNEXPECTED)


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


def exception_class(error: Exception) -> str:
    """The class name of a `JAVA_ERRORS` exception in Java."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else error._origin  # type: ignore[attr-defined]  # noqa: SLF001
    return str(java.getClass().getName())


def first_line(error: Exception) -> str:
    """The first line of an error's message, without what Spark says of the job and its tasks."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or exception_class(error))
    else:
        message = str(error)
    line = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    return _JOB_ABORTED.sub("", line)
