"""`compact` on every kind of table that Spark, PyIceberg and Iceberg's Java writers leave behind.

Rows are compared in Spark and PyIceberg (and DuckDB where the live files alone are the table) before and after; every
run must be one `replace`, leave nothing to do, no in-flight record and no data file that no snapshot knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, LongType, NestedField, TimeType, UUIDType

from compactor.errors import GiveUpError, InputError, ReplanError
from compactor.locations import plain_path
from compactor.rewrite.tasks import runner, spark_scan
from compactor.rewrite.tasks.output_task import run_task
from compactor.runs.results import RunResult
from tests.conftest import Lake
from tests.correctness.stage import any_size_splices
from tests.integration.table_kit import (
    MERGE_ON_READ,
    append,
    create,
    data_files,
    delete_by_equality,
    delete_by_position,
    delete_equal,
    engines,
    expire,
    expire_history,
    insert,
    java_table,
    overwrite,
    planned,
    records_of,
    roll_back,
    run,
    unquoted,
    unreferenced,
    upgrade,
)
from tests.slow import slow

pytestmark = pytest.mark.spark

COPIED = {("splice", "row_groups_copied")}
REQUESTED = {("spark", "requested")}
WITH_SPARK_SLOW = pytest.mark.parametrize("engine", ["auto", *slow("spark")])
"""Spark's engine leaves these to Iceberg's own writer."""
COMPARED = {("encode", "equality_deletes")}
NO_EQUALITY_DELETES = "PyIceberg does not yet support equality deletes"
NO_AVRO = "Unsupported file format: FileFormat.AVRO"


@pytest.fixture(autouse=True)
def _splice_tiny_files() -> Iterator[None]:
    with any_size_splices():
        yield


# --- looking at tables ------------------------------------------------------------------------------------------------


def py_rows(lake: Lake, table: str) -> list[str]:
    """All rows as PyIceberg reads them, in a stable order; NaN equals NaN in text."""
    read = lake.catalog.load_table(lake.name(unquoted(table)).identifier).scan().to_arrow()
    return sorted(repr(tuple(row.values())) for row in read.to_pylist())


def duckdb_ids(lake: Lake, table: str) -> list[int]:
    paths = [plain_path(path) for path in lake.live_files(table)]
    read = duckdb.read_parquet(paths, hive_partitioning=False, union_by_name=True)
    return sorted(row[0] for row in read.select("id").fetchall())


def compact_and_check(
    lake: Lake,
    table: str,
    files: int,
    expected: set[tuple[str, str]],
    *,
    columns: str = "*",
    engine: str = "auto",
    unreadable: str | None = None,
    in_duckdb: bool = False,
    deleted: int = 0,
) -> RunResult:
    """Compact everything there is; the table must be the same for every reader. `unreadable`: PyIceberg's excuse."""
    name = unquoted(table)
    before, snapshots = repr(lake.rows(table, columns)), len(lake.view(name).metadata.snapshots)
    if unreadable:
        with pytest.raises(ValueError, match=unreadable):
            py_rows(lake, table)
    py_before = None if unreadable else py_rows(lake, table)
    result = lake.compact(name, force=True, engine=engine)
    assert engines(result) == expected
    assert repr(lake.rows(table, columns)) == before
    if py_before is not None:
        assert py_rows(lake, table) == py_before
    assert data_files(lake, table) == files
    after = lake.view(name)
    assert after.snapshot.snapshot_id == result.snapshot_after
    assert after.snapshot.summary.operation.value == "replace"
    assert len(after.metadata.snapshots) == snapshots + 1
    assert sum(group.rewritten.rows_deleted for group in result.groups) == deleted
    if in_duckdb:
        assert duckdb_ids(lake, table) == sorted(row[0] for row in lake.rows(table, "id"))
    assert lake.compact(name, force=True).snapshot_after is None
    assert records_of(lake, table) == []
    assert unreferenced(lake, table) == set()
    return result


# --- partitioning -----------------------------------------------------------------------------------------------------

STRINGS = ("a/b", "with space", "ünï日本", "50%", "a%2Fb", "a=b", "q?x", "h#y", "", "..", 'quo"te', "c&d+e")
IDENTITIES = (
    (
        "-2147483648, -9223372036854775808, -1234567890123456789012345678.0123456789, -0.01, date'1969-12-31', "
        "timestamp'1969-12-31 23:59:59.999999', timestamp_ntz'1969-12-31 23:59:59.999999', X'', true"
    ),
    "7, 7, 0.5, 100, date'9999-12-31', timestamp'2024-01-01 10:00:00.5', timestamp_ntz'2024-01-01', X'00ff2f', false",
    "null, null, null, null, null, null, null, null, null",
)
FLOATS = ("float('NaN'), 1D", "1, double('NaN')", "float('-Infinity'), 0.1D", "0.1, double('Infinity')", "null, null",
          "float('-0.0'), -0.0D", "0.0, 0D", "1, 0.1D", "1, 0.10000000000000002D", "3e38, 1e300D")  # fmt: skip


@dataclass(frozen=True)
class Partitioning:
    columns: str
    by: str
    rows: tuple[str, ...]
    engines: set[tuple[str, str]] = field(default_factory=lambda: COPIED)


PARTITIONINGS = {
    "none": Partitioning("a int", "", ("1", "2")),
    "strings": Partitioning("a string", "a", (*(f"'{text}'" for text in STRINGS), "null")),
    "identities": Partitioning(
        "i int, l bigint, d decimal(38,10), e decimal(9,2), dt date, ts timestamp, tn timestamp_ntz, b binary, "
        "t boolean",
        "i, l, d, e, dt, ts, tn, b, t",
        IDENTITIES,
    ),
    "floats": Partitioning("f float, d double", "f, d", FLOATS, COPIED | {("spark", "partition_value")}),
    "times": Partitioning(
        "y timestamp, m date, d timestamp_ntz, h timestamp",
        "years(y), months(m), days(d), hours(h)",
        (
            "timestamp'1969-06-01', date'1969-12-31', timestamp_ntz'1969-12-31 23:00', timestamp'1969-12-31 23:59'",
            "timestamp'2024-06-01', date'0001-01-01', timestamp_ntz'9999-12-31 23:00', timestamp'2024-02-29 01:00'",
            "null, null, null, null",
        ),
    ),
    "truncated": Partitioning(
        "s string, l bigint, d decimal(9,2), b binary",
        "truncate(2, s), truncate(10, l), truncate(50, d), truncate(1, b)",
        ("'日本語', -1, -0.01, X'ffff'", "'a', 19, 12.34, X''", "null, null, null, null"),
    ),
    "buckets": Partitioning(
        "s string, l bigint, d decimal(9,2), dt date, ts timestamp, b binary",
        "bucket(4, s), bucket(4, l), bucket(4, d), bucket(4, dt), bucket(4, b)",
        ("'x', 1, 1.5, date'2024-01-01', timestamp'2024-01-01', X'01'", "null, null, null, null, null, null"),
    ),
    "days and bucket": Partitioning(
        "ts timestamp, l bigint", "days(ts), bucket(2, l)", ("timestamp'2024-01-01', 1", "timestamp'2024-01-02', 2")
    ),
}


def each_kind() -> Iterator[Any]:
    """Kinds with unusual values, a mixed kind, and one kind with Spark's engine; the others are slow."""
    quick = {("identities", "spark"), *product(("strings", "identities", "floats", "days and bucket"), ("auto",))}
    for kind, engine in product(PARTITIONINGS, ("auto", "spark")):
        marks = () if (kind, engine) in quick else pytest.mark.slow
        yield pytest.param(kind, engine, id=f"{kind}-{engine}", marks=marks)


@pytest.mark.parametrize(("kind", "engine"), each_kind())
def test_partitions_become_one_file_each(lake: Lake, table_name: str, kind: str, engine: str) -> None:
    chosen = PARTITIONINGS[kind]
    by = f"PARTITIONED BY ({chosen.by})" if chosen.by else ""
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, {chosen.columns}) USING iceberg {by}")
    for commit in range(2):
        values = ", ".join(f"({commit * 100 + number}, {row})" for number, row in enumerate(chosen.rows))
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    expected = chosen.engines if engine == "auto" else REQUESTED
    files = len(chosen.rows) if by else 1
    assert data_files(lake, table_name) == 2 * files
    compact_and_check(lake, table_name, files, expected, engine=engine, in_duckdb=True)
    if by:
        found = lake.sql(f"SELECT record_count, file_count FROM lake.{table_name}.partitions")
        assert [tuple(row) for row in found] == [(2, 1)] * files


@pytest.mark.parametrize(("version", "engine"), [(1, "auto"), *slow((2, "auto")), (2, "spark")])
def test_each_spec_is_compacted_within_itself(lake: Lake, table_name: str, version: int, engine: str) -> None:
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, a string) USING iceberg PARTITIONED BY (a) "
        f"TBLPROPERTIES ('format-version'='{version}')"
    )
    changes = (
        "ADD PARTITION FIELD bucket(2, id)",
        "DROP PARTITION FIELD a",
        "DROP PARTITION FIELD bucket(2, id)",
        None,
    )
    for change in changes:
        for commit in range(2):
            lake.sql(f"INSERT INTO lake.{table_name} VALUES ({commit * 2}, 'x'), ({commit * 2 + 2}, 'x')")
        if change:
            lake.sql(f"ALTER TABLE lake.{table_name} {change}")
    buckets = len(lake.sql(f"SELECT DISTINCT spec_id, partition FROM lake.{table_name}.files"))
    expected = COPIED if engine == "auto" else REQUESTED
    compact_and_check(lake, table_name, buckets, expected, engine=engine, in_duckdb=True)
    specs = lake.sql(f"SELECT spec_id, sum(record_count) rows FROM lake.{table_name}.files GROUP BY spec_id")
    assert {row.spec_id: row.rows for row in specs} == {0: 4, 1: 4, 2: 4, 3: 4}


def test_files_of_a_spec_whose_column_was_dropped_are_left_alone(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, a string) USING iceberg PARTITIONED BY (a)")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 'x')")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN a")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (2)")
    compact_and_check(lake, table_name, 3, COPIED)
    (why,) = [why for key, why in planned(lake, table_name).unplanned.items() if key.spec_id == 0]
    assert "partition field a lost its column" in why


@pytest.mark.parametrize("by_value", [False, True])
def test_a_table_whose_partition_field_and_column_were_both_dropped_is_compacted(
    lake: Lake, table_name: str, by_value: bool
) -> None:
    """V1 keeps the field as void, also in all newer files; its values are null."""
    create(lake, table_name, 1, by="PARTITIONED BY (a)")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN a")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (20, 2), (21, 3)")
    if not by_value:
        compact_and_check(lake, table_name, 1, COPIED, in_duckdb=True)
        return
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('format-version'='2')")
    delete_equal(lake, table_name, "id", [20], spec_id=1, partition=[None])
    compact_and_check(lake, table_name, 1, COMPARED, unreadable=NO_EQUALITY_DELETES, deleted=2)
    assert lake.sql(f"SELECT file_path FROM lake.{table_name}.delete_files") == []


@pytest.mark.parametrize("content", ["equality", "position"])
def test_dangling_deletes_of_a_spec_whose_column_was_dropped_do_not_stop_a_commit(
    lake: Lake, table_name: str, content: str
) -> None:
    """A commit cannot name them: Iceberg reads no value of a partition field that lost its column."""
    create(lake, table_name, properties=MERGE_ON_READ, by="PARTITIONED BY (a)")
    insert(lake, table_name)
    if content == "equality":
        delete_equal(lake, table_name, "id", [77], partition=["p9"])
    else:
        lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 3")
        lake.sql(f"CALL lake.system.rewrite_data_files(table => '{table_name}', options => map('rewrite-all', 'true'))")
        delete_is_left = "SELECT count(*) AS files FROM lake.{}.delete_files"
        assert lake.sql(delete_is_left.format(table_name))[0].files == 1
    lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN a")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES (20, 2)")
    unreadable = NO_EQUALITY_DELETES if content == "equality" else None
    compact_and_check(lake, table_name, 3, COPIED, unreadable=unreadable)
    assert lake.sql(f"SELECT count(*) AS files FROM lake.{table_name}.delete_files")[0].files == 1


# --- format versions, deletes -----------------------------------------------------------------------------------------

LINEAGE = "*, _row_id, _last_updated_sequence_number"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_format_version(lake: Lake, table_name: str, version: int) -> None:
    create(lake, table_name, version)
    insert(lake, table_name, 3)
    columns = LINEAGE if version == 3 else "*"
    compact_and_check(lake, table_name, 1, COPIED, columns=columns, in_duckdb=True)
    rows = lake.rows(table_name, columns)
    if version == 3:
        assert len({row[-2] for row in rows}) == len(rows)
        assert {row[-1] for row in rows} == {1, 2, 3}


@pytest.mark.parametrize(("version", "granularity"), [(2, "file"), (2, "partition"), (3, "file")])
@WITH_SPARK_SLOW
def test_position_deletes_leave_with_their_rows(
    lake: Lake, table_name: str, version: int, granularity: str, engine: str
) -> None:
    create(lake, table_name, version, f"'write.delete.granularity'='{granularity}', {MERGE_ON_READ}")
    insert(lake, table_name, 3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (1, 4)")
    lake.sql(f"UPDATE lake.{table_name} SET a = 'changed' WHERE id = 3")
    columns = LINEAGE if version == 3 else "*"
    expected = {("encode", "position_deletes")} if version == 2 else {("encode", "deletion_vectors")}
    if engine == "spark":
        expected = REQUESTED
    compact_and_check(lake, table_name, 1, expected, columns=columns, engine=engine, in_duckdb=True, deleted=9)
    assert lake.sql(f"SELECT content FROM lake.{table_name}.files WHERE content > 0") == []
    assert lake.sql(f"SELECT count(*) AS rows FROM lake.{table_name}")[0].rows == 24


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_equality_deletes_of_an_unpartitioned_table(lake: Lake, table_name: str, engine: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ)
    insert(lake, table_name, 2)
    delete_equal(lake, table_name, "id", [3, 4])
    delete_equal(lake, table_name, "a", ["p0"])  # 4 goes once, not twice
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    insert(lake, table_name)  # newer than the deletes: keeps 3 and 4
    expected = REQUESTED if engine == "spark" else COMPARED
    compact_and_check(lake, table_name, 1, expected, engine=engine, unreadable=NO_EQUALITY_DELETES, deleted=14)
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted(
        [*range(10), 1, 1, 7, 7, 9, 9]
    )


def test_equality_deletes_stay_within_their_partition(lake: Lake, table_name: str) -> None:
    create(lake, table_name, by="PARTITIONED BY (a)")
    insert(lake, table_name, 2)
    delete_equal(lake, table_name, "id", [3, 4], partition=["p1"])
    expected = COPIED | COMPARED
    compact_and_check(lake, table_name, 2, expected, unreadable=NO_EQUALITY_DELETES, deleted=2)


@pytest.mark.parametrize("spec", ["without fields", "with void fields only"])
def test_equality_deletes_of_an_unpartitioned_spec_are_global(lake: Lake, table_name: str, spec: str) -> None:
    if spec == "without fields":
        create(lake, table_name)
        lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD a")
        insert(lake, table_name, 2)
        delete_equal(lake, table_name, "id", [3, 4])
    else:
        create(lake, table_name, 1, by="PARTITIONED BY (a)")
        insert(lake, table_name, 2)
        lake.sql(f"ALTER TABLE lake.{table_name} DROP PARTITION FIELD a")
        lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('format-version'='2')")
        delete_equal(lake, table_name, "id", [3, 4], spec_id=1, partition=[None])
    compact_and_check(lake, table_name, 2, COMPARED, unreadable=NO_EQUALITY_DELETES, deleted=4)


def test_a_file_may_lose_all_its_rows(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name, 2)
    delete_equal(lake, table_name, "id", list(range(10)))
    compact_and_check(lake, table_name, 0, COMPARED, unreadable=NO_EQUALITY_DELETES, deleted=20)


def test_an_equality_delete_over_a_dropped_column_is_left_alone(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name, 2)
    delete_equal(lake, table_name, "k", [3])
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN k")
    assert lake.compact(table_name, force=True).snapshot_after is None
    assert "dropped" in next(iter(planned(lake, table_name).unplanned.values()))


# --- schemas ----------------------------------------------------------------------------------------------------------

NESTED = "id int, a string, s struct<x: int, y: string>, l array<int>, m map<string, int>, f float, d decimal(9,2)"
ROW = "{id}, 'a{id}', named_struct('x', {id}, 'y', 'q'), array({id}, null), map('k', {id}), 1.5, 2.25"
CHANGES = {
    "added": ("ADD COLUMN n string FIRST", "'n', " + ROW),
    "dropped": ("DROP COLUMN a", ROW.replace(" 'a{id}',", "")),
    "renamed": ("RENAME COLUMN a TO z", ROW),
    "reordered": ("ALTER COLUMN a FIRST", "'a{id}', " + ROW.replace(" 'a{id}',", "")),
    "int to bigint": ("ALTER COLUMN id TYPE bigint", ROW.replace("{id}, 'a", "{id} + 5000000000, 'a")),
    "float to double": ("ALTER COLUMN f TYPE double", ROW.replace("1.5", "1e300D")),
    "wider decimal": ("ALTER COLUMN d TYPE decimal(20,2)", ROW.replace("2.25", "123456789012345678.25")),
    "added in struct": ("ADD COLUMN s.z int", ROW.replace("'y', 'q'", "'y', 'q', 'z', 3")),
    "renamed in struct": ("RENAME COLUMN s.y TO yy", ROW),
    "wider element": ("ALTER COLUMN l.element TYPE bigint", ROW.replace("array({id}", "array({id} + 5000000000")),
}


QUICK_CHANGES = ("added", "renamed", "int to bigint", "renamed in struct")


@pytest.mark.parametrize("change", [*QUICK_CHANGES, *slow(*(each for each in CHANGES if each not in QUICK_CHANGES))])
def test_schema_drift(lake: Lake, table_name: str, change: str) -> None:
    """Files that all predate the change are copied as they are; those of both schemas are not."""
    statement, later = CHANGES[change]
    lake.sql(f"CREATE TABLE lake.{table_name} ({NESTED}) USING iceberg")
    for number in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES ({ROW.format(id=number)})")
    lake.sql(f"ALTER TABLE lake.{table_name} {statement}")
    compact_and_check(lake, table_name, 1, COPIED, in_duckdb=True)
    lake.sql(f"INSERT INTO lake.{table_name} VALUES ({later.format(id=7)})")
    compact_and_check(lake, table_name, 1, {("encode", "schema_differs")}, in_duckdb=True)


def test_a_column_of_the_same_name_is_another_column(lake: Lake, table_name: str) -> None:
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, a string) USING iceberg")
    for number in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES ({number}, 'old')")
    lake.sql(f"ALTER TABLE lake.{table_name} DROP COLUMN a")
    lake.sql(f"ALTER TABLE lake.{table_name} ADD COLUMN a string")
    compact_and_check(lake, table_name, 1, COPIED)
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (2, 'new')")
    compact_and_check(lake, table_name, 1, {("encode", "schema_differs")})
    assert lake.rows(table_name) == [(0, None), (1, None), (2, "new")]


def test_files_without_field_ids_are_never_spliced(lake: Lake, table_name: str, tmp_path: Path) -> None:
    """PyIceberg's and Spark's `add_files`: the name mapping tells the columns, the folder the partition."""
    name = lake.name(table_name)
    schema = pa.schema([("id", pa.int64()), ("a", pa.string())])
    lake.catalog.create_table(name.identifier, schema)
    for number in range(3):
        pq.write_table(pa.table({"id": [number], "a": ["x"]}, schema=schema), tmp_path / f"{number}.parquet")
    paths = [f"file://{tmp_path}/{number}.parquet" for number in range(3)]
    lake.catalog.load_table(name.identifier).add_files(paths)
    compact_and_check(lake, table_name, 1, {("encode", "no_field_ids")}, in_duckdb=True)

    hive, folder = f"{table_name}h", tmp_path / "hive"
    lake.sql(f"CREATE TABLE lake.{hive} (id bigint, a string) USING iceberg PARTITIONED BY (a)")
    for _ in range(2):
        rows = lake.session.sql("SELECT /*+ COALESCE(1) */ id, concat('p', id % 2) a FROM range(10)")
        rows.write.partitionBy("a").mode("append").parquet(str(folder))
    lake.sql(f"CALL lake.system.add_files(table => '{hive}', source_table => '`parquet`.`{folder}`')")
    assert {row.a for row in lake.sql(f"SELECT a FROM lake.{hive}")} == {"p0", "p1"}
    result = lake.compact(hive, force=True)
    assert engines(result) == {("encode", "no_field_ids")}
    assert sorted(lake.rows(hive)) == sorted([(number, f"p{number % 2}") for number in range(10)] * 2)


# --- formats, layouts, names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", [*slow("orc"), "avro"])
def test_other_formats_with_deletes(lake: Lake, table_name: str, file_format: str) -> None:
    create(lake, table_name, properties=f"'write.format.default'='{file_format}', {MERGE_ON_READ}")
    insert(lake, table_name, 2)
    excuse = NO_AVRO if file_format == "avro" else None
    compact_and_check(lake, table_name, 1, {("spark", "file_format")}, unreadable=excuse)
    insert(lake, table_name)
    delete_equal(lake, table_name, "id", [3])
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    excuse = NO_AVRO if file_format == "avro" else NO_EQUALITY_DELETES
    compact_and_check(
        lake, table_name, 1, {("spark", "file_format")}, unreadable=f"{excuse}|{NO_EQUALITY_DELETES}", deleted=6
    )
    assert {row.file_format for row in lake.sql(f"SELECT file_format FROM lake.{table_name}.data_files")} == {
        file_format.upper()
    }


def test_rows_that_spark_reads_into_another_partition_are_left_alone(lake: Lake, table_name: str) -> None:
    """Iceberg's ORC reader is a second late for fractions of a second before 1970: the row would change its year."""
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, ts timestamp) USING iceberg PARTITIONED BY (years(ts)) "
        "TBLPROPERTIES ('write.format.default'='orc')"
    )
    for number in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES ({number}, timestamp'1969-12-31 23:59:59.999999')")
    head = lake.view(table_name).snapshot.snapshot_id
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table_name, force=True)
    assert raised.value.reason == "partition_changed"
    assert lake.view(table_name).snapshot.snapshot_id == head
    assert unreferenced(lake, table_name) == set()


def test_codecs_may_differ_between_row_groups(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    for codec in ("zstd", "snappy", "gzip", "uncompressed"):
        lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('write.parquet.compression-codec'='{codec}')")
        insert(lake, table_name)
    compact_and_check(lake, table_name, 1, COPIED, in_duckdb=True)
    footer = pq.ParquetFile(plain_path(lake.live_files(table_name)[0])).metadata
    codecs = {footer.row_group(group).column(0).compression for group in range(footer.num_row_groups)}
    assert codecs == {"ZSTD", "SNAPPY", "GZIP", "UNCOMPRESSED"}


def test_a_sorted_table_stays_sorted(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY a DESC, id")
    insert(lake, table_name, 2)
    compact_and_check(lake, table_name, 1, {("spark", "sorted")})
    (file,) = lake.sql(f"SELECT file_path, sort_order_id FROM lake.{table_name}.files")
    assert file.sort_order_id == 0  # in the order, and not labelled so: see spark_scan
    rows = [(row["a"], row["id"]) for row in pq.ParquetFile(plain_path(file.file_path)).read().to_pylist()]
    assert rows == sorted(sorted(rows, key=lambda row: row[1]), key=lambda row: row[0], reverse=True)


def test_copied_row_groups_are_not_labelled_sorted(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    insert(lake, table_name, 2)
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE UNORDERED")
    compact_and_check(lake, table_name, 1, COPIED)
    assert [row.sort_order_id for row in lake.sql(f"SELECT sort_order_id FROM lake.{table_name}.files")] == [0]


@WITH_SPARK_SLOW
@pytest.mark.parametrize("layout", ["write.data.path", "write.object-storage.enabled"])
def test_outputs_go_where_the_table_wants_them(lake: Lake, table_name: str, layout: str, engine: str) -> None:
    elsewhere = f"file://{lake.folder}/else where/{table_name}"
    value = elsewhere if layout == "write.data.path" else "true"
    create(lake, table_name, properties=f"'{layout}'='{value}'", by="PARTITIONED BY (a)")
    insert(lake, table_name, 2)
    expected = COPIED if engine == "auto" else REQUESTED
    compact_and_check(lake, table_name, 2, expected, engine=engine, in_duckdb=True)
    root = elsewhere if layout == "write.data.path" else f"{lake.view(table_name).metadata.location}/data"
    assert all(plain_path(path).startswith(plain_path(root) + "/") for path in lake.live_files(table_name))


@WITH_SPARK_SLOW
@pytest.mark.parametrize("name", ["`my-ns`.`Table One %20`", "n1.n2.`tä-ble`"])
def test_names_that_need_quoting(lake: Lake, name: str, engine: str) -> None:
    for namespace in ("`my-ns`", "n1", "n1.n2"):
        lake.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
    table = name.replace("One", uuid.uuid4().hex[:6]).replace("ble", uuid.uuid4().hex[:6])
    lake.sql(
        f"CREATE TABLE lake.{table} (id int, `Sp ace` string, `ünï-x` string, `a.b` int, `select` int) USING iceberg "
        "PARTITIONED BY (`Sp ace`, `a.b`)"
    )
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table} VALUES (1, 'x y', 'x', 1, 2), (2, null, 'x', null, 2)")
    expected = COPIED if engine == "auto" else REQUESTED
    compact_and_check(lake, table, 2, expected, engine=engine)


@pytest.mark.parametrize(
    ("kind", "value", "arrow"),
    [
        (TimeType(), 3_723_000_004, pa.time64("us")),
        (UUIDType(), b"\xff" * 16, None),
        (FixedType(4), b"abcd", pa.binary(4)),
    ],
    ids=["time", "uuid", "fixed"],
)
def test_types_that_spark_sql_cannot_create(lake: Lake, table_name: str, kind: Any, value: Any, arrow: Any) -> None:
    """Written by PyIceberg. Spark cannot read a `time` column, so splicing must not need it to."""
    by = (
        PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
        if isinstance(kind, TimeType)
        else PartitionSpec()
    )
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "v", kind, required=False))
    table = lake.catalog.create_table(lake.name(table_name).identifier, schema, partition_spec=by)
    values = (
        pa.array([value], arrow)
        if arrow
        else pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value], pa.binary(16)))
    )
    for number in range(2):
        table.append(pa.table([pa.array([number], pa.int64()), values], names=["id", "v"]))
    before = py_rows(lake, table_name)
    assert engines(lake.compact(table_name, force=True)) == COPIED
    assert py_rows(lake, table_name) == before
    (task,) = table.refresh().scan().plan_files()
    assert sorted(duckdb.read_parquet(plain_path(task.file.file_path)).select("id").fetchall()) == [(0,), (1,)]


# --- other writers ----------------------------------------------------------------------------------------------------


def recreate(lake: Lake, table: str) -> None:
    lake.sql(f"DROP TABLE lake.{table}")
    create(lake, table)
    insert(lake, table, 2)


WHEN = ("before the run", "before the commit")


def interfere(lake: Lake, table: str, other: Callable[[Lake, str], None], when: str, engine: str = "auto") -> RunResult:
    """Plan, let the other writer in, run. `enabled` is asked once more between the row check and the commit."""
    plan = planned(lake, table, engine=engine)
    if when == WHEN[0]:
        other(lake, table)
        return run(lake, plan)
    waiting: Iterator[None] = iter([None])

    def meanwhile() -> bool:
        for _ in waiting:
            other(lake, table)
        return True

    return run(lake, plan, enabled=meanwhile)


@pytest.mark.parametrize(
    ("version", "when", "engine"),
    [(2, WHEN[0], "spark"), (2, WHEN[1], "auto"), *slow((3, WHEN[1], "auto"), (2, WHEN[1], "spark"))],
)
@pytest.mark.parametrize("other", [append, delete_by_equality])
def test_writers_that_do_not_conflict(
    lake: Lake, table_name: str, other: Callable[[Lake, str], None], version: int, when: str, engine: str
) -> None:
    """Appended rows stay, and an equality delete committed meanwhile applies to the outputs: they carry S's number."""
    create(lake, table_name, version)
    insert(lake, table_name, 3)
    view = lake.view(table_name)
    result = interfere(lake, table_name, other, when, engine)
    expected = sorted([*range(10)] * 3)
    expected = [*expected, 77] if other is append else [number for number in expected if number != 5]
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == expected
    assert lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    entries = lake.sql(
        f"SELECT sequence_number FROM lake.{table_name}.entries "
        f"WHERE status = 1 AND snapshot_id = {result.snapshot_after}"
    )
    assert [entry.sequence_number for entry in entries] == [view.snapshot.sequence_number]
    assert unreferenced(lake, table_name) == set()


CONFLICTS = {
    "overwrite": (overwrite, "conflict"),
    "format version": (upgrade, "format_changed"),
    "rollback": (roll_back, "history_gap"),
    "another table": (recreate, "table_replaced"),
}


@pytest.mark.parametrize("when", [*slow(WHEN[0]), WHEN[1]])
@pytest.mark.parametrize("conflict", CONFLICTS)
def test_writers_that_conflict_win(lake: Lake, table_name: str, conflict: str, when: str) -> None:
    other, reason = CONFLICTS[conflict]
    create(lake, table_name)
    insert(lake, table_name, 3)
    with pytest.raises(ReplanError) as raised:
        interfere(lake, table_name, other, when)
    assert raised.value.reason == reason
    operations = [row.operation for row in lake.sql(f"SELECT operation FROM lake.{table_name}.snapshots")]
    assert "replace" not in operations
    if conflict != "another table":  # the files of a dropped table are the catalog's business
        assert unreferenced(lake, table_name) == set()


def test_a_planned_snapshot_that_expires_before_the_run_is_planned_anew_if_spark_is_to_read_it(
    lake: Lake, table_name: str
) -> None:
    create(lake, table_name)
    insert(lake, table_name, 3)
    with pytest.raises(ReplanError) as raised:
        interfere(lake, table_name, expire, WHEN[0], "spark")
    assert raised.value.reason == "snapshot_expired"


@pytest.mark.parametrize("when", [*slow(WHEN[0]), WHEN[1]])
def test_rows_that_are_given_their_ids_meanwhile_keep_them(lake: Lake, table_name: str, when: str) -> None:
    """The first commit after an upgrade gives them: outputs that were planned before have none."""
    create(lake, table_name)
    insert(lake, table_name, 3)
    upgrade(lake, table_name)
    with pytest.raises(ReplanError, match="were given their ids since planning"):
        interfere(lake, table_name, append, when)
    lineage = f"SELECT id, _row_id, _last_updated_sequence_number FROM lake.{table_name}"
    before = sorted(map(tuple, lake.sql(lineage)))
    assert run(lake, planned(lake, table_name)).commits == 1
    assert sorted(map(tuple, lake.sql(lineage))) == before


def test_a_planned_snapshot_whose_manifests_are_gone_is_planned_anew(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name, 3)

    def tidy_up(lake: Lake, table: str) -> None:
        lake.sql(f"CALL lake.system.rewrite_manifests('{table}')")
        expire_history(lake, table)

    with pytest.raises(ReplanError, match=r"expired during the run: manifest .* cannot be read") as raised:
        interfere(lake, table_name, tidy_up, WHEN[0])
    assert raised.value.reason == "snapshot_expired"
    assert unreferenced(lake, table_name) == set()


def delete_and_expire(lake: Lake, table: str) -> None:
    append(lake, table)
    delete_by_position(lake, table)
    expire_history(lake, table)


def compact_one_and_expire(lake: Lake, table: str) -> None:
    where = "where => 'a = \"p1\"', options => map('rewrite-all', 'true')"
    lake.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', {where})")
    append(lake, table)
    expire_history(lake, table, clean=False)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("other", "when", "committed", "left"),
    [
        (delete_and_expire, WHEN[1], ["p0", "p1"], [number for number in range(10) if number != 5]),
        (compact_one_and_expire, WHEN[1], ["p0"], range(10)),
        *slow(
            (delete_and_expire, WHEN[0], ["p0", "p1"], [number for number in range(10) if number != 5]),
            (compact_one_and_expire, WHEN[0], ["p0"], range(10)),
        ),
    ],
)
def test_a_history_that_expires_meanwhile_costs_nothing(
    lake: Lake,
    table_name: str,
    other: Callable[[Lake, str], None],
    when: str,
    committed: list[str],
    left: Sequence[int],
    version: int,
) -> None:
    """The files of both snapshots tell what others did; groups that lost no file are committed."""
    create(lake, table_name, version, MERGE_ON_READ, "PARTITIONED BY (a)")
    insert(lake, table_name, 3)
    result = interfere(lake, table_name, other, when)
    assert sorted(group.planned.file_group.partition["a"] for group in result.groups) == committed
    assert sum(group.rows_rebased for group in result.groups) == 3 * (10 - len(left))
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted([*left, *left, *left, 77])
    if len(committed) == 2:  # else the files that the other compactor replaced are still there
        assert unreferenced(lake, table_name) == set()


def test_a_planned_snapshot_that_expires_before_the_commit_costs_nothing(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name, 3)
    rows = lake.rows(table_name)
    interfere(lake, table_name, expire, WHEN[1])
    assert lake.rows(table_name) == sorted([*rows, (77, "p0", 77)], key=repr)
    assert data_files(lake, table_name) == 2
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("when", [*slow(WHEN[0]), WHEN[1]])
def test_rows_that_others_delete_meanwhile_are_deleted_in_the_outputs(
    lake: Lake, table_name: str, version: int, when: str
) -> None:
    create(lake, table_name, version)
    insert(lake, table_name, 3)
    result = interfere(lake, table_name, delete_by_position, when)
    assert lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    assert sum(group.rows_rebased for group in result.groups) == 3
    left = [number for number in range(10) if number != 5]
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted(left * 3)
    assert unreferenced(lake, table_name) == set()


def test_rows_that_others_delete_conflict_with_a_rewrite_by_spark(lake: Lake, table_name: str) -> None:
    """Nobody knows where Spark put them."""
    create(lake, table_name, 3)
    insert(lake, table_name, 3)
    with pytest.raises(ReplanError, match="was left out: rows of"):
        interfere(lake, table_name, delete_by_position, WHEN[1], "spark")
    assert 5 not in {row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")}
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_the_pinned_snapshot_is_read_not_the_newest(lake: Lake, table_name: str, engine: str) -> None:
    """Rows deleted after planning are still in the outputs, to which the newer equality delete applies."""
    create(lake, table_name, properties=MERGE_ON_READ)
    insert(lake, table_name, 3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (1, 2)")
    plan = planned(lake, table_name, engine=engine)
    delete_by_equality(lake, table_name)
    result = run(lake, plan)
    assert [
        (group.rewritten.rows_in, group.rewritten.rows_deleted, group.rewritten.rows_out) for group in result.groups
    ] == [(30, 6, 24)]
    assert len(lake.rows(table_name)) == 21


# --- column metrics, shares, errors -----------------------------------------------------------------------------------


def test_metrics_of_a_spliced_file_are_those_of_its_inputs(lake: Lake, table_name: str) -> None:
    columns = "i int, l bigint, d decimal(20,3), f double, s string, dt date, ts timestamp, b boolean, n string"
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, {columns}) USING iceberg")
    for number in range(4):
        lake.sql(
            f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id + {number * 10}, id - {number * 3}, "
            f"id * 9000000000, id - 2.5, id * 1.5 - {number}, concat('text that is longer than sixteen ', id), "
            f"date'1970-01-01' - cast(id AS int), "
            f"timestamp'1970-01-01' + make_interval(0, 0, 0, {number}), id % 2 = 0, if(id = 3, 'x', null) FROM range(5)"
        )
    before = metrics(lake, table_name)
    rows = lake.sql(f"SELECT * FROM lake.{table_name}")
    compact_and_check(lake, table_name, 1, COPIED, in_duckdb=True)
    (after,) = metrics(lake, table_name)
    for column in after:
        each = [file[column] for file in before]
        assert after[column].value_count == sum(file.value_count for file in each)
        assert after[column].null_value_count == sum(file.null_value_count for file in each)
        assert after[column].lower_bound == min(file.lower_bound for file in each)
        assert after[column].upper_bound == max(file.upper_bound for file in each)
    filters: Mapping[str, Callable[[Any], bool]] = {
        "id >= 33": lambda row: row.id >= 33,
        "i < -8": lambda row: row.i < -8,
        "l = 9000000000": lambda row: row.l == 9_000_000_000,
        "f < -2.5": lambda row: row.f < -2.5,
        "n = 'x'": lambda row: row.n == "x",
        "n is null": lambda row: row.n is None,
        "s > 'text that is longer than sixteen 3'": lambda row: row.s > "text that is longer than sixteen 3",
        "dt < '1969-12-29'": lambda row: row.dt.isoformat() < "1969-12-29",
    }
    for text, matches in filters.items():
        expected = sorted(row.id for row in rows if matches(row))
        assert expected, text
        assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name} WHERE {text}")) == expected
        found = lake.catalog.load_table(lake.name(table_name).identifier).scan(row_filter=text).to_arrow()
        assert sorted(found["id"].to_pylist()) == expected


def metrics(lake: Lake, table: str) -> list[dict[str, Any]]:
    read = lake.sql(f"SELECT readable_metrics FROM lake.{table}.files")
    return [row.readable_metrics.asDict() for row in read]


def test_a_share_without_deletes_is_copied_beside_one_that_has_some(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ)
    for number in range(9):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id + {number * 10}, 'a', id FROM range(10)")
    size = sum(row.size for row in lake.sql(f"SELECT file_size_in_bytes size FROM lake.{table_name}.files"))
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('write.target-file-size-bytes'='{size // 3}')")
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id < 30 AND id % 10 < 4")
    rows = lake.rows(table_name)
    result = run(lake, planned(lake, table_name))
    assert not result.dropped
    assert engines(result) == {("encode", "position_deletes")}
    (group,) = result.groups
    assert (group.rewritten.files_out, group.rewritten.rows_deleted) == (3, 12)
    assert group.rewritten.bytes_decoded < group.rewritten.bytes_in / 2
    assert lake.rows(table_name) == rows


def test_the_number_of_outputs_does_not_depend_on_slots(lake: Lake, table_name: str) -> None:
    counts = {}
    create(lake, table_name)
    insert(lake, table_name, 10)
    size = sum(row.size for row in lake.sql(f"SELECT file_size_in_bytes size FROM lake.{table_name}.files"))
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('write.target-file-size-bytes'='{size // 3}')")
    start = java_table(lake, table_name).currentSnapshot().snapshotId()
    before = lake.rows(table_name)
    for slots in (1, 2, 8):
        result = run(lake, planned(lake, table_name), slots)
        assert lake.rows(table_name) == before
        counts[slots] = sorted(row.record_count for row in lake.sql(f"SELECT * FROM lake.{table_name}.files"))
        assert engines(result) == COPIED
        java_table(lake, table_name).manageSnapshots().setCurrentSnapshot(start).commit()
    assert counts[1] == counts[2] == counts[8]
    assert len(counts[1]) == 3


def test_splice_asked_for_and_refused_writes_nothing(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties=MERGE_ON_READ)
    insert(lake, table_name, 2)
    lake.sql(f"ALTER TABLE lake.{table_name} ADD COLUMN n int")
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (1, 'a', 1, 1)")
    head = lake.view(table_name).snapshot.snapshot_id
    with pytest.raises(InputError, match="use --engine auto") as raised:
        lake.compact(table_name, force=True, engine="splice")
    assert raised.value.reason == "schema_differs"
    assert lake.view(table_name).snapshot.snapshot_id == head
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id < 3 AND n IS NULL")
    with pytest.raises(InputError, match="position deletes apply"):
        lake.compact(table_name, force=True, engine="splice")
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_failed_row_check_commits_nothing(
    lake: Lake, table_name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, table_name)
    insert(lake, table_name, 2)
    head = lake.view(table_name).snapshot.snapshot_id
    real = runner.rewrite_with_spark

    def one_row_less(work: Any) -> Any:
        written = run_task(work)
        return replace(written, file=replace(written.file, rows=written.file.rows - 1))

    def one_deleted_row_more(*arguments: Any, **more: Any) -> Any:
        written = real(*arguments, **more)
        return replace(written, rows_deleted=written.rows_deleted + 1)

    monkeypatch.setattr(runner, "run_task", one_row_less)
    monkeypatch.setattr(runner, "rewrite_with_spark", one_deleted_row_more)
    with pytest.raises(GiveUpError) as raised:
        lake.compact(table_name, force=True, engine=engine)
    assert raised.value.reason == "row_count_mismatch"
    assert lake.view(table_name).snapshot.snapshot_id == head
    assert data_files(lake, table_name) == 2
    assert unreferenced(lake, table_name) == set()
    assert [record.abandoned for record in records_of(lake, table_name)] == [True]  # a sweep looks once more


def test_rows_that_a_filter_takes_away_while_spark_reads_are_noticed(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter selects files. Rows lost to one must not be taken for deleted ones (StarRocks 77797)."""
    create(lake, table_name, properties=MERGE_ON_READ)
    insert(lake, table_name, 2)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    rows, append = lake.rows(table_name), spark_scan._append
    monkeypatch.setattr(spark_scan, "_append", lambda table, read, target: append(table, read.where("id <> 3"), target))
    with pytest.raises(GiveUpError) as raised:
        run(lake, planned(lake, table_name, engine="spark"))
    assert raised.value.reason == "row_count_mismatch"
    monkeypatch.undo()
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()
