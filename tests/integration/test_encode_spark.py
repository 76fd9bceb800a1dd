"""`encode` between Spark and Spark: files that Spark wrote go in, what comes out is read by Iceberg's Java readers."""

from __future__ import annotations

import math
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    NestedField,
    UUIDType,
)

from compactor.rewrite.parquet.column_metrics import ColumnMetrics
from compactor.runs.results import GroupResult
from tests.conftest import Lake

pytestmark = pytest.mark.spark


def metrics_of(lake: Lake, name: str) -> ColumnMetrics:
    """Of the table's only file."""
    (task,) = lake.catalog.load_table(name).scan().plan_files()
    return ColumnMetrics.from_data_file(task.file)


def encode_all(lake: Lake, name: str) -> GroupResult:
    """Everything in the table becomes one file."""
    (group,) = lake.compact(name, force=True, rewrite_all=True, engine="encode").groups
    assert (group.rewritten.engine, len(lake.live_files(name))) == ("encode", 1)
    lake.sql(f"REFRESH TABLE lake.{name}")
    return group


ROWS = """
    (1, true, 1.5F, double('NaN'), 1.25, 12345678901.50, 1.0000000001, DATE'1969-12-31', TIMESTAMP'1960-01-01 00:00:00.000001',
     TIMESTAMP_NTZ'2262-04-12 00:00:00', 'text', X'00FF', array('a', NULL), map('k', 1L), named_struct('x', 1, 'y', 'z')),
    (2, false, float('NaN'), -0.0D, -1.25, -1.00, -123456789012345678.5, DATE'0001-01-01', TIMESTAMP'9999-12-31 23:59:59.999999',
     TIMESTAMP_NTZ'0001-01-01 00:00:00', 'a much longer text than sixteen letters ü€😀', X'', array(), map(), NULL),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, named_struct('x', NULL, 'y', NULL))
"""  # noqa: E501
COLUMNS = (
    "id INT, b BOOLEAN, f FLOAT, d DOUBLE, d9 DECIMAL(9, 2), d18 DECIMAL(18, 2), d38 DECIMAL(38, 10), day DATE, "
    "at TIMESTAMP, ntz TIMESTAMP_NTZ, text STRING, raw BINARY, l ARRAY<STRING>, m MAP<STRING, BIGINT>, "
    "s STRUCT<x: INT, y: STRING>"
)


def test_every_type_of_spark_and_its_metrics(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} ({COLUMNS}) USING iceberg")
    lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ * FROM VALUES {ROWS}")
    before = lake.rows(table_name)
    matched = {predicate: matching(lake, table_name, predicate) for predicate in PREDICATES}
    spark_metrics = metrics_of(lake, table_name)
    encode_all(lake, table_name)
    assert repr(lake.rows(table_name)) == repr(before), "as text, since NaN equals nothing"
    metrics = metrics_of(lake, table_name)
    schema = lake.catalog.load_table(table_name).schema()
    floats = {schema.find_field(name).field_id for name in ("f", "d")}
    assert set(metrics.column_sizes) == set(spark_metrics.column_sizes)
    assert metrics.value_counts == spark_metrics.value_counts
    assert metrics.null_value_counts == spark_metrics.null_value_counts
    assert metrics.nan_value_counts == spark_metrics.nan_value_counts
    assert metrics.lower_bounds == spark_metrics.lower_bounds
    # Both columns of floats hold a NaN, which Spark takes for greater than every number.
    assert metrics.upper_bounds == {
        field_id: bound for field_id, bound in spark_metrics.upper_bounds.items() if field_id not in floats
    }
    # In its own file Spark finds no NaN above the upper bound.
    found = {predicate: matching(lake, table_name, predicate) for predicate in PREDICATES}
    assert (matched["f > 1e30F"], found) == ([], matched | {"f > 1e30F": [2]})
    # Spark finds -0.0 as 0.0 here, though not in its own file: Iceberg's filters tell the two apart.
    assert matching(lake, table_name, "d = 0.0D") == [2]
    assert matched["text LIKE 'a much%'"] == matched["d38 < 0"] == [2]


PREDICATES = (
    "text LIKE 'a much%'",
    "text >= 'a much longer te'",
    "at > TIMESTAMP'9000-01-01'",
    "at < TIMESTAMP'1960-01-02'",
    "ntz = TIMESTAMP_NTZ'2262-04-12 00:00:00'",
    "day < DATE'0002-01-01'",
    "d9 = -1.25",
    "d38 < 0",
    "raw = X'00FF'",
    "raw = X''",
    "b = false",
    "f > 1e30F",
    "isnan(d)",
    "d IS NULL",
    "s.x = 1",
)


def matching(lake: Lake, name: str, predicate: str) -> list[int]:
    return sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{name} WHERE {predicate}"))


FOUND = (
    "isnan(d)", "d <> 1.0D", "d > 10D", "NOT d <= 10D", "n > 10D", "isnan(n)",
    "z = 0.0D", "z IN (0.0D, 77.0D)", "z >= 0.0D", "b = 0.0D", "z = 2.0D", "b = 2.0D",
)  # fmt: skip


@pytest.mark.slow
def test_filters_find_what_other_readers_compare_otherwise(lake: Lake, table_name: str) -> None:
    """NaN, -0.0 and UUIDs: by the file's metrics, its footer, dictionaries and bloom filters."""
    doubles = ("d", "n", "z", "b")
    schema = Schema(
        *(NestedField(number, name, DoubleType()) for number, name in enumerate(doubles, 1)),
        NestedField(5, "u", UUIDType()),
    )
    bloom = {
        "write.parquet.bloom-filter-enabled.column.b": "true",
        "write.parquet.dict-encoding-enabled.column.b": "false",
    }
    table = lake.catalog.create_table(table_name, schema, properties=bloom)
    uuids = [UUID(int=(first << 124) + 7) for first in (0, 1, 5, 7, 8, 9, 12, 15)]
    zeros = [-0.0] * 4 + [1.0, 2.0, 2.0, -5.0]
    columns = [[1.0] * 6 + [math.nan] * 2, [math.nan] * 8, zeros, zeros]
    arrow = pa.schema([*(pa.field(name, pa.float64()) for name in doubles), pa.field("u", pa.uuid())])
    stored = pa.array([value.bytes for value in uuids], pa.binary(16))
    table.append(pa.table([*columns, pa.ExtensionArray.from_storage(pa.uuid(), stored)], schema=arrow))
    encode_all(lake, table_name)
    conditions = (*FOUND, *(f"u = '{value}'" for value in uuids))
    (truth,) = lake.sql(f"SELECT {', '.join(f'count_if({each})' for each in conditions)} FROM lake.{table_name}")
    each_by_filter = " UNION ALL ".join(
        f"SELECT {index} AS i, count(*) AS c FROM lake.{table_name} WHERE {condition}"
        for index, condition in enumerate(conditions)
    )
    found = {conditions[row.i]: row.c for row in lake.sql(each_by_filter)}
    assert found == dict(zip(conditions, truth, strict=True))
    assert set(found.values()) == {1, 2, 4, 7, 8}


def test_schema_evolution_and_position_deletes_of_spark(lake: Lake, table_name: str) -> None:
    name = f"lake.{table_name}"
    lake.sql(
        f"CREATE TABLE {name} (id INT, f FLOAT, p DECIMAL(5, 2), gone STRING, s STRUCT<x: INT, y: STRING>) "
        "USING iceberg TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )

    def insert(first: int, values: str) -> None:
        lake.sql(f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ {values} FROM range({first}, {first + 100})")

    insert(0, "int(id), float(id), decimal(id), 'old', named_struct('x', int(id), 'y', string(id))")
    for change in (
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN f TYPE DOUBLE",
        "ALTER COLUMN p TYPE DECIMAL(20, 2)",
        "DROP COLUMN gone",
        "ADD COLUMN gone STRING FIRST",
        "RENAME COLUMN s.x TO renamed",
        "ADD COLUMN s.z INT FIRST",
        "ALTER COLUMN s.renamed TYPE BIGINT",
    ):
        lake.sql(f"ALTER TABLE {name} {change}")
    insert(100, "'new', id, double(id), decimal(id), named_struct('z', 1, 'renamed', id, 'y', string(id))")
    lake.sql(f"DELETE FROM {name} WHERE id % 7 = 3")
    lake.sql(f"DELETE FROM {name} WHERE id % 50 = 0")
    before = lake.rows(table_name)
    assert len(before) == 168
    rewritten = encode_all(lake, table_name).rewritten
    assert (rewritten.rows_in, rewritten.rows_deleted, rewritten.rows_out) == (200, 32, 168)
    assert lake.rows(table_name) == before


def test_workers_take_the_memory_pool_that_keeps_an_encode_small(lake: Lake) -> None:
    def pool(_: int) -> str:
        return pa.default_memory_pool().backend_name

    assert lake.session.sparkContext.parallelize([0], 1).map(pool).collect() == ["jemalloc"]
