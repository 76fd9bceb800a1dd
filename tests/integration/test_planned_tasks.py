"""Iceberg's own scan tasks of planned files: all are found, and few other files are listed."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from compactor.errors import GiveUpError
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.spark import planned_tasks
from compactor.spark.java_table import JavaTable
from compactor.spark.planned_tasks import partition_filter, planned_scan_tasks
from tests.conftest import Lake
from tests.integration.table_kit import planned

pytestmark = pytest.mark.spark
COLUMNS = {
    "truth": ("boolean", "id % 2 = 0"),
    "small": ("int", "id % 3 - 1"),
    "large": ("bigint", "id * 5000000000"),
    "real": ("double", "CASE id % 5 WHEN 1 THEN double('NaN') WHEN 2 THEN double('-Infinity') ELSE id % 3 END"),
    "exact": ("decimal(12, 3)", "CAST(id % 3 - 1.25 AS decimal(12, 3))"),
    "word": ("string", "concat('Größe \\\"', id % 4)"),
    "bytes": ("binary", "unhex(concat('ff0', id % 4))"),
    "day": ("date", "date'1969-12-30' + CAST(id % 5 AS int)"),
    "instant": ("timestamp", "timestamp'1969-12-31 22:30:00' + make_interval(0, 0, 0, 0, CAST(id AS int))"),
    "local": ("timestamp_ntz", "timestamp_ntz'2026-01-31 22:30:00' + make_interval(0, 0, 0, 0, CAST(id AS int))"),
}

SPECS = (
    "truth, small, word",
    "large, real, bytes",
    "exact, day, instant",
    "local, part.inner",
    "bucket(4, small), bucket(4, word), bucket(4, day)",
    "bucket(4, large), bucket(4, bytes), bucket(4, instant)",
    "bucket(4, exact), bucket(4, local)",
    "truncate(2, small), truncate(2, word), truncate(2, exact)",
    "truncate(2, large), truncate(2, bytes)",
    "years(day), months(instant), days(local)",
    "months(day), days(instant), hours(local)",
    "days(day), hours(instant), years(local)",
    "months(local), years(instant)",
)


def _create(lake: Lake, table: str, fields: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    lake.sql(
        f"CREATE TABLE lake.{table} (id bigint, {columns}, part struct<inner: int>) USING iceberg "
        f"PARTITIONED BY ({fields}) TBLPROPERTIES ('write.distribution-mode' = 'hash')"
    )


def _insert(lake: Lake, table: str, commits: int = 2) -> None:
    """Rows of up to five partitions, and one where each column is null."""
    values = ", ".join(f"CASE WHEN id < 8 THEN {value} END" for _, value in COLUMNS.values())
    for _ in range(commits):
        lake.sql(
            f"INSERT INTO lake.{table} SELECT id, {values}, "
            "CASE WHEN id < 8 THEN named_struct('inner', CAST(id % 3 AS int)) END FROM range(10)"
        )


def _files(plan: TablePlan) -> list[LiveFile]:
    return [file for each in plan.groups for file in each.file_group.files]


def _wanted(plan: TablePlan) -> dict[PartitionKey, set[str]]:
    found: dict[PartitionKey, set[str]] = defaultdict(set)
    for file in _files(plan):
        found[file.entry.key].add(file.entry.path)
    return found


def _java(lake: Lake, table: str, plan: TablePlan) -> JavaTable:
    return JavaTable.load(lake.session, plan.table, plan.snapshot_id)


def _listed(java: JavaTable, some: Any) -> set[str]:
    """Paths of the files that Java lists with a filter."""
    parser = java.jvm.org.apache.iceberg.expressions.ExpressionParser
    scan = java.handle.newScan().useSnapshot(java.snapshot_id)

    tasks = scan.filter(parser.fromJson(json.dumps(some), scan.schema())).planFiles()
    return {str(task.file().location()) for task in tasks.iterator()}


@pytest.mark.parametrize("fields", SPECS)
def test_a_filter_lists_the_files_of_its_partition_and_no_other(lake: Lake, table_name: str, fields: str) -> None:
    _create(lake, table_name, fields)
    _insert(lake, table_name)
    plan = planned(lake, table_name)
    java = _java(lake, table_name, plan)
    wanted = _wanted(plan)
    for key, paths in wanted.items():
        some = partition_filter(plan.table, plan.snapshot_id, [key])
        if key.commits_as_json:
            assert _listed(java, some) == paths, (key, some)
        else:  # the filter cannot name the value
            assert _listed(java, some) >= paths, (key, some)
    assert planned_scan_tasks(java, _files(plan)).keys() == set().union(*wanted.values())


def test_files_of_an_earlier_spec_and_of_a_renamed_column_are_found(lake: Lake, table_name: str) -> None:
    _create(lake, table_name, "word, bucket(4, large)")
    _insert(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} REPLACE PARTITION FIELD word WITH truncate(2, word)")
    _insert(lake, table_name)
    plan = planned(lake, table_name)
    key = next(key for key in _wanted(plan) if key.spec_id == 0)
    java = _java(lake, table_name, plan)
    listed = _listed(java, partition_filter(plan.table, plan.snapshot_id, [key]))
    assert _wanted(plan)[key] < listed < set().union(*_wanted(plan).values())
    lake.sql(f"ALTER TABLE lake.{table_name} RENAME COLUMN word TO words")
    renamed = JavaTable.load(lake.session, lake.view(table_name), plan.snapshot_id)
    assert "word" not in json.dumps(partition_filter(renamed.view, plan.snapshot_id, [key]))
    assert planned_scan_tasks(renamed, _files(plan)).keys() == set().union(*_wanted(plan).values())


def test_many_partitions_take_several_scans_and_a_file_that_java_does_not_list_ends_the_run(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_tasks, "PARTITIONS_PER_SCAN", 3)
    partitions = 7
    lake.sql(f"CREATE TABLE lake.{table_name} (id bigint) USING iceberg PARTITIONED BY (id)")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT id FROM range(0, {partitions}, 1, 1)")
    plan = planned(lake, table_name)
    java = _java(lake, table_name, plan)
    files = _files(plan)
    tasks = planned_scan_tasks(java, files)
    assert {path: str(task.file().location()) for path, task in tasks.items()} == {
        file.entry.path: file.entry.path for file in files
    }
    assert len(tasks) == 2 * partitions
    with pytest.raises(GiveUpError, match="does not list /no/such/file") as caught:
        planned_scan_tasks(java, [*files, LiveFile(files[0].entry._replace(path="/no/such/file"))])
    assert caught.value.reason is Reason.PLANS_DIFFER
