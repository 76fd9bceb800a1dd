"""`compact` on every partitioning, format version and kind of delete that Spark and Java writers leave behind."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.conftest import Lake
from tests.integration.compact_check import (
    COMPARED,
    COPIED,
    NO_EQUALITY_DELETES,
    REQUESTED,
    WITH_SPARK_SLOW,
    compact_and_check,
)
from tests.integration.table_kit import (
    MERGE_ON_READ,
    create,
    data_files,
    delete_equal,
    insert,
    planned,
)
from tests.slow import slow

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("tiny_files_spliced")]


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
    "strings": Partitioning("a string", "a", (*(f"'{text}'" for text in STRINGS), "null")),
    "identities": Partitioning(
        "i int, l bigint, d decimal(38,10), e decimal(9,2), dt date, ts timestamp, tn timestamp_ntz, b binary, "
        "t boolean",
        "i, l, d, e, dt, ts, tn, b, t",
        IDENTITIES,
    ),
    "floats": Partitioning("f float, d double", "f, d", FLOATS, COPIED | {("spark", "partition_value")}),
    "days and bucket": Partitioning(
        "ts timestamp, l bigint", "days(ts), bucket(2, l)", ("timestamp'2024-01-01', 1", "timestamp'2024-01-02', 2")
    ),
}


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("identities", "spark"),
        *((kind, "auto") for kind in PARTITIONINGS),
        *slow(*((kind, "spark") for kind in PARTITIONINGS if kind != "identities")),
    ],
)
def test_partitions_become_one_file_each(lake: Lake, table_name: str, kind: str, engine: str) -> None:
    chosen = PARTITIONINGS[kind]
    by = f"PARTITIONED BY ({chosen.by})"
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, {chosen.columns}) USING iceberg {by}")
    for commit in range(2):
        values = ", ".join(f"({commit * 100 + number}, {row})" for number, row in enumerate(chosen.rows))
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    expected = chosen.engines if engine == "auto" else REQUESTED
    files = len(chosen.rows)
    assert data_files(lake, table_name) == 2 * files
    compact_and_check(lake, table_name, files, expected, engine=engine, in_duckdb=True)
    found = lake.sql(f"SELECT record_count, file_count FROM lake.{table_name}.partitions")
    assert [tuple(row) for row in found] == [(2, 1)] * files


@pytest.mark.parametrize(("version", "engine"), [(1, "auto"), *slow((2, "auto"), (2, "spark"))])
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


@pytest.mark.parametrize("by_value", [True, *slow(False)])
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
