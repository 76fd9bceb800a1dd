"""The tables that the rewrite benchmark measures: one case a function, written by Spark and as its users have them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from compactor.iceberg.tables import Catalogs
from compactor.spark.java_table import JavaTable
from compactor.table_names import TableName
from deploy.demo.events_table import BUCKETS, append_events, create_table, event_rows, rows_per_commit

TINY_FILES, TINY_BYTES = 2000, 104_000
TINY_BYTES_PER_ROW = 31  # in so small a file, pages and dictionaries of the same columns take more than in a large one
DELETED_OF = 10  # one row of ten


@dataclass(frozen=True)
class Case:
    """One table, what is asserted of the rewrite, and the goals: at most so many copies, so much faster than Spark.

    `carried`: the outputs hold deleted rows; scans are compared with scans of the same rows without deletes.
    `converted`: the equality deletes are converted, no data file is rewritten; `goal_read`: bytes read of all.
    """

    letter: str
    title: str
    make: Callable[[Any, Catalogs, TableName, float, int], None]
    engine: str
    goal_copies: float | None = None
    goal_spark: float | None = None
    goal_read: float | None = None
    arrow_rivals: bool = False
    scans: bool = False
    lineage: bool = False
    carried: bool = False
    converted: bool = False
    variant: str = ""

    @property
    def table(self) -> str:
        """The name of its table."""
        return f"events_{self.letter}{self.variant}"


def many_small(session: Any, _catalogs: Catalogs, name: TableName, file_bytes: float, commits: int) -> None:
    create_table(session, name)
    rows = rows_per_commit(file_bytes)
    for commit in range(commits):
        append_events(session, name, commit * rows, rows)


def tiny(session: Any, _catalogs: Catalogs, name: TableName, _file_bytes: float, _commits: int) -> None:
    create_table(session, name)
    session.sql(f"ALTER TABLE {name.spark} SET TBLPROPERTIES ('write.distribution-mode' = 'none')")
    tasks = TINY_FILES // BUCKETS
    rows = TINY_FILES * TINY_BYTES // TINY_BYTES_PER_ROW
    event_rows(session, 0, rows).repartition(tasks).writeTo(name.spark).append()


def with_position_deletes(session: Any, catalogs: Catalogs, name: TableName, file_bytes: float, commits: int) -> None:
    many_small(session, catalogs, name, file_bytes, commits)
    session.sql(f"ALTER TABLE {name.spark} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    session.sql(f"DELETE FROM {name.spark} WHERE id % {DELETED_OF} = 0")


def with_equality_deletes(session: Any, catalogs: Catalogs, name: TableName, file_bytes: float, commits: int) -> None:
    """One delete file a bucket, a thousandth of the ids: what an upserting Flink job leaves in a while."""
    many_small(session, catalogs, name, file_bytes, commits)
    _delete_ids(session, catalogs, name, range(0, rows_per_commit(file_bytes) * commits, 250))


def with_equality_deletes_of_new_rows(
    session: Any, catalogs: Catalogs, name: TableName, file_bytes: float, commits: int
) -> None:
    """As many ids, all of the last two commits: keys that grow with time, of which the newest are updated."""
    many_small(session, catalogs, name, file_bytes, commits)
    rows = rows_per_commit(file_bytes)
    deleted = rows * commits // 250
    _delete_ids(session, catalogs, name, range(rows * (commits - 2), rows * commits, max(1, 2 * rows // deleted)))


def _delete_ids(session: Any, catalogs: Catalogs, name: TableName, deleted: range) -> None:
    view = catalogs.load(name)
    assert view.snapshot is not None
    table = JavaTable.load(session, view, view.snapshot.snapshot_id)
    bucket_of = BucketTransform(BUCKETS).transform(LongType())
    schema = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    files = []
    for bucket in range(BUCKETS):
        ids = [number for number in deleted if bucket_of(number) == bucket]
        path = f"{view.metadata.location}/data/equality-{uuid.uuid4()}.parquet"
        pq.write_table(pa.table({"id": ids}, schema=schema), path.removeprefix("file:"))
        files.append(
            {
                "spec-id": 0,
                "content": "equality-deletes",
                "file-path": path,
                "file-format": "parquet",
                "partition": [bucket],
                "file-size-in-bytes": Path(path.removeprefix("file:")).stat().st_size,
                "record-count": len(ids),
                "equality-ids": [1],
            }
        )
    delta = table.handle.newRowDelta()
    for file in table.delete_files(files):
        delta.addDeletes(file)
    delta.commit()


def with_few_deletes(version: int, one_of: int) -> Callable[[Any, Catalogs, TableName, float, int], None]:
    """One row of `one_of` deleted by position (V2) or by deletion vectors (V3)."""

    def make(session: Any, catalogs: Catalogs, name: TableName, file_bytes: float, commits: int) -> None:
        create_table(session, name)
        session.sql(
            f"ALTER TABLE {name.spark} SET TBLPROPERTIES ('format-version' = '{version}', "
            "'write.delete.mode' = 'merge-on-read')"
        )
        many_small(session, catalogs, name, file_bytes, commits)
        session.sql(f"DELETE FROM {name.spark} WHERE id % {one_of} = 0")

    return make


CASES = (
    Case("a", "many small files", many_small, "splice", 1.3, 12.0, arrow_rivals=True, scans=True),
    Case("b", f"{TINY_FILES:,} files of 104 KB", tiny, "encode", None, 4.0, arrow_rivals=True, scans=True),
    Case("c", "a tenth of the rows deleted by position", with_position_deletes, "splice", 1.2, 2.0, carried=True),
    Case("d", "equality deletes", with_equality_deletes, "splice", 2.0, 1.0),
    *(
        Case(
            "f",
            f"{100 / one_of:g} % of the rows deleted, format version {version}",
            with_few_deletes(version, one_of),
            "splice",
            1.0,
            2.0,
            lineage=version == 3,
            carried=True,
            variant=f"_v{version}_{one_of}",
        )
        for version in (2, 3)
        for one_of in (1000, 100)
    ),
    Case(
        "g", "equality deletes of the newest rows, converted", with_equality_deletes_of_new_rows, "", goal_read=0.05,
        converted=True, variant="_newest",
    ),
    Case("g", "the equality deletes of (d), converted", with_equality_deletes, "", converted=True, variant="_all"),
)  # fmt: skip
