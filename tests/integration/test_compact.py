"""`compact` on real tables: rows equal, one replace commit, files as planned."""

from __future__ import annotations

import pytest

from tests.conftest import Lake

pytestmark = pytest.mark.spark


def fill(lake: Lake, table: str, commits: int = 6, rows: int = 2000) -> None:
    for number in range(commits):
        lake.sql(
            f"INSERT INTO lake.{table} SELECT id + {number * rows}, cast(id AS string), sha2(cast(id AS string), 512) "
            f"FROM range({rows})"
        )


def create(lake: Lake, table: str, extra: str = "") -> None:
    lake.sql(
        f"CREATE TABLE lake.{table} (id bigint, s string, p string) USING iceberg PARTITIONED BY (bucket(4, id)) "
        f"TBLPROPERTIES ('write.distribution-mode'='hash'{extra})"
    )


def test_buckets_become_one_file_each_in_one_replace_commit(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    fill(lake, table_name)
    before, snapshots = lake.rows(table_name), len(lake.view(table_name).metadata.snapshots)
    assert len(lake.live_files(table_name)) == 24
    result = lake.compact(table_name)
    assert len(lake.live_files(table_name)) == 4
    assert lake.rows(table_name) == before
    after = lake.view(table_name)
    assert len(after.metadata.snapshots) == snapshots + 1
    assert after.snapshot.summary.operation.value == "replace"
    assert after.snapshot.summary.additional_properties["firnline.run-id"] == result.run_id
    assert lake.in_flight().all() == []
