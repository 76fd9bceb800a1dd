"""`where` on real tables: what it reads, rewrites and leaves alone. Its precision: test_where_precision.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from compactor.filters.selection import count_selection
from compactor.filters.where import bind_where
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import Request, plan_table
from tests.conftest import Lake
from tests.integration.table_kit import delete_equal, planned, run

pytestmark = pytest.mark.spark


def test_a_user_on_a_day_reads_the_manifests_of_that_day(lake: Lake, table_name: str) -> None:
    days = 12
    lake.sql(
        f"CREATE TABLE lake.{table_name} (user bigint, ts timestamp) USING iceberg "
        "PARTITIONED BY (days(ts), bucket(4, user)) "
        "TBLPROPERTIES ('format-version'='2', 'commit.manifest-merge.enabled'='false')"
    )
    for day in range(1, days + 1):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT id, TIMESTAMP '2024-01-{day:02} 10:00:00' FROM range(20)")
    view = lake.view(table_name)
    bound = bind_where(view, "user = 7 AND ts >= '2024-01-05' AND ts < '2024-01-06'")
    read = [each for each in view.manifests() if bound.keeps_manifest(each)]
    assert len(read) == 1
    cache = ManifestCache(1 << 24)
    entries = [entry for manifest in cache.read(view, read) for entry in manifest]
    assert len({entry.key for entry in entries}) == 4
    everything = take_inventory(view, cache)
    partitions = {key: everything.partitions[key] for key in {entry.key for entry in entries}}
    skipped = [each for each in view.manifests() if each not in read]
    selected = {key for key in partitions if bound.keeps(key)}
    lines = count_selection(bound, read, skipped, partitions, selected).lines()
    assert lines[1] == "SelectedBucketsCount: 1 out of 4"
    assert lines[2].startswith(
        f"partitions 1 of {days} to {4 * days}, manifests read 1 of {days}, files 1 of {4 * days}, "
    )
    assert "ts_day >= 2024-01-05 AND ts_day <= 2024-01-05" in lines[2]


def test_a_filtered_run_leaves_deletes_that_may_apply_elsewhere(lake: Lake, table_name: str) -> None:
    """Manifests of other partitions are not read: whether a global delete still applies there nobody has looked."""
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, p string) USING iceberg "
        "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD p")
    for number in range(4):
        for part in ("a", "b"):
            lake.sql(f"INSERT INTO lake.{table_name} VALUES ({number}, '{part}'), ({number + 10}, '{part}')")
    delete_equal(lake, table_name, "id", [1], 0)  # by the unpartitioned spec: everywhere
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 2 AND p = 'b'")
    rows = lake.rows(table_name)
    result = lake.compact(table_name, where="p = 'a'", force=True)
    assert [group.rewritten.files_in for group in result.groups] == [4]
    assert lake.rows(table_name) == rows
    deletes = lake.sql(f"SELECT content FROM lake.{table_name}.delete_files ORDER BY content")
    assert [row.content for row in deletes] == [1, 2]
    lake.compact(table_name, force=True)
    assert lake.rows(table_name) == rows


def test_files_can_be_left_out_by_their_bounds_and_their_deletes_stay(lake: Lake, table_name: str) -> None:
    """Six files of one partition, ids 10 apart; a delete applies to one inside the filter and to one outside."""
    lake.sql(
        f"CREATE TABLE lake.{table_name} (id int, p string) USING iceberg PARTITIONED BY (p) TBLPROPERTIES "
        "('format-version' = '2', 'write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'partition')"
    )
    for number in range(6):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id + {number * 10}, 'a' FROM range(10)")
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5 OR id = 55")
    rows = lake.rows(table_name)
    view, cache = lake.view(table_name), ManifestCache(1 << 24)
    policy = lake.settings.policy.for_table(view.name)

    def files_in(prune: bool) -> list[list[str]]:
        values = policy.model_copy(update={"prune_files": prune})
        plan = plan_table(view, values, cache, Request(where="id < 25", force=True))
        return [[file.entry.path for file in group.file_group.files] for group in plan.groups]

    ((*whole,),), ((*pruned,),) = files_in(prune=False), files_in(prune=True)
    assert (len(whole), len(pruned)) == (6, 3)
    matching = {row[0] for row in lake.sql(f"SELECT DISTINCT _file FROM lake.{table_name} WHERE id < 25")}
    assert set(pruned) == matching
    values = policy.model_copy(update={"prune_files": True})
    run(lake, plan_table(view, values, cache, Request(where="id < 25", force=True)))
    assert lake.rows(table_name) == rows
    assert len(lake.live_files(table_name)) == 4
    lake.compact(table_name, force=True)
    assert lake.rows(table_name) == rows


def rewritten(path: Path, change: Callable[[dict[str, Any], list[Any]], None]) -> None:
    """An Avro file with another schema or other records."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        records, metadata = list(reader), dict(reader.metadata)
    schema = json.loads(metadata.pop("avro.schema"))
    del metadata["avro.codec"]
    change(schema, records)
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), records, metadata=metadata)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file as it was


def in_another_order(lake: Lake, table: str) -> None:
    """Turn the partition records of the table's manifests around, as their writer may list the fields in any order."""

    def turned(schema: dict[str, Any], _entries: list[Any]) -> None:
        (data_file,) = (each["type"] for each in schema["fields"] if each["name"] == "data_file")
        (partition,) = (each["type"] for each in data_file["fields"] if each["name"] == "partition")
        partition["fields"].reverse()

    def measured(_schema: dict[str, Any], manifests: list[Any]) -> None:
        for each in manifests:
            each["manifest_length"] = Path(plain_path(each["manifest_path"])).stat().st_size

    view = lake.view(table)
    assert view.snapshot is not None
    for manifest in view.manifests():
        rewritten(Path(plain_path(manifest.manifest_path)), turned)
    rewritten(Path(plain_path(view.snapshot.manifest_list)), measured)


def test_partition_fields_in_another_order(lake: Lake, table_name: str) -> None:
    """Field ids tell which is which (spec), not their place."""
    lake.sql(f"CREATE TABLE lake.{table_name} (id int, p int, q int) USING iceberg PARTITIONED BY (p, q)")
    for number in range(6):
        lake.sql(f"INSERT INTO lake.{table_name} VALUES ({number}, 1, 7), ({number}, 2, 8)")
    rows = lake.rows(table_name)
    in_another_order(lake, table_name)
    plan = planned(lake, table_name, where="p = 1")
    assert [group.file_group.partition for group in plan.groups] == [{"p": 1, "q": 7}]
    result = lake.compact(table_name, where="p = 1", force=True)
    assert sum(group.rewritten.files_in for group in result.groups) == 6
    assert lake.rows(table_name) == rows
    assert len(lake.live_files(table_name)) == 7
