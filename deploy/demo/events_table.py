"""The demo's table: ten columns of an event stream, in four buckets. The rewrite benchmark uses it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactor.table_names import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 4
BYTES_PER_ROW = 24  # in Parquet with zstd, as Spark writes the columns below

COLUMNS = {
    "id": ("BIGINT", "id"),
    "at": ("TIMESTAMP", "timestamp_micros(1767225600000000 + id * 1000 + CAST(rand() * 1000 AS BIGINT))"),
    "kind": ("STRING", "element_at(array('view', 'click', 'order', 'refund'), CAST(rand() * 4 AS INT) + 1)"),
    "region": ("STRING", "concat('region-', CAST(rand() * 40 AS INT))"),
    "device": ("INT", "CAST(rand() * 1000000 AS INT)"),
    "session": ("BIGINT", "xxhash64(id, rand())"),
    "amount": ("DOUBLE", "round(rand() * 1000, 2)"),
    "latitude": ("DOUBLE", "round(rand() * 180 - 90, 2)"),
    "longitude": ("DOUBLE", "round(rand() * 360 - 180, 2)"),
    "mobile": ("BOOLEAN", "rand() < 0.6"),
}
"""Name → Spark type and the expression that makes a value from `id`."""


def create_table(session: SparkSession, table: TableName) -> None:
    namespace = ".".join(f"`{part}`" for part in (table.catalog, *table.namespace))
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    session.sql(
        f"CREATE TABLE IF NOT EXISTS {table.spark} ({columns}) USING iceberg PARTITIONED BY (bucket({BUCKETS}, id)) "
        # Rows are shuffled by bucket, so a commit adds one file to each bucket; fanout avoids a sort.
        "TBLPROPERTIES ('format-version' = '2', 'write.distribution-mode' = 'hash', "
        # Row groups of the demo's size are copied: the default minimum of 4 MiB is for larger tables.
        "'write.spark.fanout.enabled' = 'true', 'firnline.policy.min_row_group_size' = '0')"
    )


def rows_per_commit(file_size: float) -> int:
    """Rows that make one file of about `file_size` bytes in every bucket; enough to fill every bucket."""
    return BUCKETS * max(32, round(file_size / BYTES_PER_ROW))


def event_rows(session: SparkSession, first_id: int, rows: int) -> DataFrame:
    values = [f"{expression} AS {name}" for name, (_, expression) in COLUMNS.items()]
    return session.range(first_id, first_id + rows, 1, 2).selectExpr(*values)


def append_events(session: SparkSession, table: TableName, first_id: int, rows: int) -> None:
    event_rows(session, first_id, rows).writeTo(table.spark).append()
