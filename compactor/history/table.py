"""The history table: an Iceberg table of decisions, created, appended to and read by PyIceberg."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DoubleType, IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from compactor.errors import InputError, RetryError, retried
from compactor.history.decisions import Decision
from compactor.iceberg.tables import Catalogs
from compactor.reasons import Reason
from compactor.table_names import TableName

BATCH_ID = "firnline.history-batch"
"""Summary property of each append, by which a retry finds a batch whose commit landed in spite of an error."""
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",  # PyIceberg's default keeps one manifest per append
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

_REQUIRED = ("decided_at", "table_name", "decision", "reason")
COLUMNS: tuple[tuple[str, IcebergType, str], ...] = (
    ("decided_at", TimestamptzType(), "When it was decided; for `done`, when it was committed."),
    ("table_name", StringType(), "catalog.namespace.table"),
    ("spec_id", IntegerType(), "The partition spec; null: the whole table."),
    ("partition", StringType(), "`day=2024-01-15, k=null`, `(unpartitioned)`; null: the whole table."),
    ("partition_json", StringType(), 'The same as JSON: `{"day": "2024-01-15", "k": null}`; NaN is a text.'),
    ("branch", StringType(), "The branch of the files; null for the whole table or a skipped partition."),
    (
        "decision",
        StringType(),
        "`done`, `dropped` (planned or started, not committed), `skipped` (not rewritten) or `deleted` (one file).",
    ),
    ("reason", StringType(), "One word; the table of rows above lists them."),
    ("why", StringType(), "One sentence: why it was due, or why it was not rewritten. `deleted`: the file."),
    ("run_id", StringType(), "Id of the run, as in logs, snapshot summaries, exemplars and Spark's job group."),
    ("strategy", StringType(), "`tiered` or `threshold`."),
    ("engine", StringType(), "`splice`, `encode` or `spark`."),
    ("engine_reason", StringType(), "Why this engine was chosen, in one word."),
    ("files_in", LongType(), "Data files read (`done`), planned (`dropped`), or small (`skipped`)."),
    ("files_out", LongType(), "Data files written."),
    ("bytes_in", LongType(), "Bytes of the files of `files_in`."),
    ("bytes_out", LongType(), "Bytes written."),
    ("bytes_decoded", LongType(), "Bytes of `bytes_in` that were decoded rather than copied."),
    ("rows_in", LongType(), "Rows in the files read."),
    ("rows_deleted", LongType(), "Rows of `rows_in` that delete files had deleted."),
    ("rows_out", LongType(), "Rows written: `rows_in` less `rows_deleted`."),
    ("delete_files_removed", LongType(), "Delete files removed by the commit, the same in all its rows."),
    ("seconds", DoubleType(), "Time of the output tasks, without plan and commit."),
    ("planned_snapshot_id", LongType(), "The snapshot of the plan."),
    ("committed_snapshot_id", LongType(), "The snapshot that added the new files."),
    ("firnline_version", StringType(), "Version of firnline that decided."),
)
SCHEMA = Schema(
    *(
        NestedField(number, name, kind, required=name in _REQUIRED, doc=doc)
        for number, (name, kind, doc) in enumerate(COLUMNS, 1)
    )
)
BY_DAY = PartitionSpec(PartitionField(1, 1000, DayTransform(), "decided_at_day"))


@dataclass(frozen=True)
class HistoryQuery:
    """A query of the history. Times in seconds since the epoch; `partition`: a part of the partition's text."""

    table: TableName
    since: float
    until: float | None = None
    partition: str | None = None
    decision: str | None = None
    limit: int = 50

    @property
    def row_filter(self) -> BooleanExpression:
        """The filter that is pushed down to partitions, files and row groups."""
        found: BooleanExpression = And(
            EqualTo(term="table_name", value=str(self.table)),
            GreaterThanOrEqual(term="decided_at", value=_moment(self.since).isoformat()),
        )
        if self.until is not None:
            found = And(found, LessThan(term="decided_at", value=_moment(self.until).isoformat()))
        return And(found, EqualTo(term="decision", value=self.decision)) if self.decision is not None else found


class HistoryTable:
    """The history by its table name. Each call loads the table again."""

    def __init__(self, catalogs: Catalogs, name: TableName, version: str) -> None:
        self._catalogs = catalogs
        self.name = name
        self._version = version

    def ensure(self) -> None:
        """Create the table and its namespace, or check that an existing table is a history.

        Raises:
            InputError: a table of that name exists and is not a history.
            RetryError: the catalog does not answer, or refuses to create the table.
        """
        if not self.exists():
            try:
                self._create()
            except Exception as error:
                raise RetryError(
                    f"history table {self.name} cannot be created: {error}", reason=Reason.HISTORY
                ) from error

    def exists(self) -> bool:
        """Whether the history exists.

        Raises:
            InputError: a table of that name exists and is not a history.
            RetryError: the catalog does not answer.
        """
        with retried(f"history table {self.name} cannot be loaded", Reason.HISTORY):
            return self._checked() is not None

    def _checked(self) -> Table | None:
        """The table; None if it does not exist. Raises InputError if it is not a history."""
        table = self._load()
        if table is None:
            return None
        found = {field.name: field.field_type for field in table.schema().fields}
        wrong = [name for name, kind, _ in COLUMNS if found.get(name) != kind]
        if wrong:
            raise InputError(
                f"history.table: {self.name} is not a history table of firnline: column {wrong[0]} is missing or has "
                "another type; name a table that does not exist yet",
                reason=Reason.BAD_SETTING,
            )
        return table

    def append(self, decisions: Sequence[Decision], batch_id: str) -> None:
        """Append in one commit; create the table if it was dropped. Does nothing if `batch_id` was appended before.

        Raises:
            RetryError: the append failed, or its outcome is unknown.
        """
        try:
            table = self._load() or self._create()
            summaries = (snapshot.summary for snapshot in table.snapshots())
            if any(summary and summary.additional_properties.get(BATCH_ID) == batch_id for summary in summaries):
                return
            table.append(arrow_table(decisions, self._version), snapshot_properties={BATCH_ID: batch_id})
        except Exception as error:  # of any client; the caller retries
            raise RetryError(
                f"history table {self.name} does not accept rows: {error}", reason=Reason.HISTORY
            ) from error

    def read(self, query: HistoryQuery) -> list[dict[str, Any]]:
        """At most `query.limit` rows, newest first. Rows of a partition include rows about the whole table.

        Raises:
            InputError: the history does not exist yet, or the table is not a history.
            RetryError: the history cannot be read.
        """
        with retried(f"history table {self.name} cannot be read", Reason.HISTORY):
            table = self._checked()
            if table is None:
                raise InputError(f"history table {self.name} does not exist yet: no decision was recorded")
            scan = table.scan(query.row_filter, selected_fields=tuple(name for name, _, _ in COLUMNS))
            newest: pa.Table | None = None
            for batch in scan.to_arrow_batch_reader():
                found = _of_partition(pa.Table.from_batches([batch]), query.partition)
                both = found if newest is None else pa.concat_tables([newest, found])
                newest = both.sort_by([("decided_at", "descending")]).slice(0, query.limit)
        rows: list[dict[str, Any]] = [] if newest is None else newest.to_pylist()
        return rows

    def _load(self) -> Table | None:
        try:
            return self._catalogs.catalog(self.name.catalog).load_table(self.name.identifier)
        except NoSuchTableError:
            return None

    def _create(self) -> Table:
        catalog = self._catalogs.catalog(self.name.catalog)
        catalog.create_namespace_if_not_exists(self.name.namespace)
        return catalog.create_table_if_not_exists(
            self.name.identifier, SCHEMA, partition_spec=BY_DAY, properties=PROPERTIES
        )


def arrow_table(decisions: Sequence[Decision], version: str) -> pa.Table:
    rows = [
        {
            **{name: _written(value) for name, value in vars(decision).items()},
            "decided_at": _moment(decision.at),
            "table_name": str(decision.table),
            "firnline_version": version,
        }
        for decision in decisions
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA.as_arrow())


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def _written(value: Any) -> Any:
    """Escape text that is not valid UTF-8 (a lone surrogate in an error message): it would make the append fail."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _of_partition(rows: pa.Table, text: str | None) -> pa.Table:
    if text is None:
        return rows
    named = pc.fill_null(pc.match_substring(rows["partition"], text), True)
    return rows.filter(named)
