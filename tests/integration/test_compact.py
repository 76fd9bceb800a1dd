"""`compact` on real tables: rows equal, one replace commit, files as planned."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compactor.commit.sweep import sweep
from compactor.errors import GiveUpError
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
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
    assert [record for record in lake.in_flight().all() if record.name == lake.name(table_name).name] == []


def test_a_group_nobody_can_rewrite_costs_no_other_group(lake: Lake, table_name: str) -> None:
    """One file is cut off: its bucket stays as it is, the other three are merged, and nothing is left lying about."""
    create(lake, table_name)
    fill(lake, table_name)
    broken = next(path for path in lake.live_files(table_name) if "id_bucket=2" in path)
    with Path(broken.removeprefix("file:")).open("r+b") as file:
        file.truncate(100)
    result = lake.compact(table_name)
    assert [drop.planned.file_group.bucket for drop in result.dropped] == [2]
    assert sorted(group.planned.file_group.bucket or 0 for group in result.groups) == [0, 1, 3]
    live = lake.live_files(table_name)
    assert sum("id_bucket=2" in path for path in live) == 6
    assert len(live) == 3 + 6
    records = lake.in_flight()
    for _ in range(2):
        sweep(records, lake.catalogs, ManifestCache(1 << 20), now=time.time(), grace_seconds=3600)
    assert [each for each in records.all() if each.name == lake.name(table_name).name] == []
    folder = lake.folder / "warehouse" / table_name.replace(".", "/")
    on_disk = {str(path) for path in folder.rglob("data/**/*.parquet")}
    assert {path for path in on_disk if "firnline" in path} <= {plain_path(path) for path in live}


def test_when_no_group_can_be_rewritten_the_run_fails_and_the_table_is_as_before(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    fill(lake, table_name)
    before = lake.view(table_name).metadata_location
    for path in lake.live_files(table_name):
        Path(path.removeprefix("file:")).write_bytes(b"not parquet")
    with pytest.raises(GiveUpError):
        lake.compact(table_name)
    assert lake.view(table_name).metadata_location == before
