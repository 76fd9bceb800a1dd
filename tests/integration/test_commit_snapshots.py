"""How a rewrite is committed: attempts and their cost, several parts, branches, and what others keep in summaries."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactor.commit.statistics import carry_statistics
from compactor.commit.updates import ReplaceUpdate
from compactor.errors import RetryError, StoppedError
from compactor.lease.right import CommitRight
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.runs.results import RunResult
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import JavaTable
from tests.conftest import Lake
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append,
    before_commit,
    create,
    insert,
    java_table,
    planned,
    run,
    snapshots,
    unreferenced,
)
from tests.slow import slow

pytestmark = pytest.mark.spark


# --- attempts, what they cost and what stops them ---------------------------------------------------------------------


def test_a_commit_lands_only_on_the_head_it_was_made_for(lake: Lake, table_name: str) -> None:
    """Another commit between the making and the sending: ours is made again, and whether it may land is asked again."""
    create(lake, table_name)
    insert(lake, table_name, 3)
    plan, asked = planned(lake, table_name), list[None]()

    def confirm() -> None:
        asked.append(None)
        if len(asked) == 1:
            append(lake, table_name)

    result = run(lake, plan, right=CommitRight(confirm=confirm))
    assert len(asked) == 2
    assert lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    assert len(lake.rows(table_name)) == 31
    known = {row.path for row in lake.sql(f"SELECT path FROM lake.{table_name}.all_manifests")}
    lists = {row.manifest_list for row in snapshots(lake, table_name)}
    left = {path for path in files_below(lake, table_name, "metadata") if path.endswith(".avro")}
    assert left == {plain_path(path) for path in known | lists}


def test_a_snapshot_that_is_refused_for_its_time_is_certainly_not_committed(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a host whose clock is ten minutes slow. PySpark turns Java's IllegalArgumentException into one of its own."""
    create(lake, table_name)
    insert(lake, table_name, 3)
    real = ReplaceUpdate.make

    def older(update: ReplaceUpdate) -> Any:
        parser = lake.session._jvm.org.apache.iceberg.SnapshotParser
        tree = json.loads(parser.toJson(real(update)))
        return parser.fromJson(json.dumps({**tree, "timestamp-ms": tree["timestamp-ms"] - 600_000}))

    monkeypatch.setattr(ReplaceUpdate, "make", older)
    with pytest.raises(RetryError, match="clocks of this host") as raised:
        run(lake, planned(lake, table_name))
    assert raised.value.reason == "commit_failed"
    assert unreferenced(lake, table_name) == set()


def files_below(lake: Lake, table: str, folder: str) -> set[str]:
    root = Path(plain_path(lake.view(table).metadata.location)) / folder
    return {str(path) for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")}


def test_what_spark_wrote_stays_although_hadoop_spells_its_location_otherwise(lake: Lake, table_name: str) -> None:
    create(lake, table_name, 2, f"'write.data.path'='file://{lake.folder}//odd/./{table_name}'", commits=3)
    rows = lake.rows(table_name)
    assert lake.compact(table_name, force=True, engine="spark").commits == 1
    assert lake.rows(table_name) == rows
    lake.compact(table_name, force=True)
    assert lake.rows(table_name) == rows


def test_a_run_that_a_sweep_has_taken_for_dead_does_not_commit(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=3)
    head = lake.view(table_name).snapshot.snapshot_id
    records = lake.in_flight()

    def swept_meanwhile() -> bool:
        (record,) = [each for each in records.all() if each.name == lake.name(table_name).name]
        records.save(replace(record, seen_at=1.0))
        return True

    with pytest.raises(StoppedError, match="lost its lease"):
        run(lake, planned(lake, table_name), enabled=swept_meanwhile)
    assert lake.view(table_name).snapshot.snapshot_id == head
    assert unreferenced(lake, table_name) == set()


def test_a_run_whose_table_is_paused_stops_before_its_commit(lake: Lake, table_name: str) -> None:
    """Asked while the run works, when its first file is written: it rewrites no more and leaves nothing."""
    create(lake, table_name, commits=3)
    head, written, plan = lake.view(table_name).snapshot.snapshot_id, threading.Event(), planned(lake, table_name)

    def note(_done: int, _tasks: int, _bytes: int) -> None:
        written.set()

    with pytest.raises(StoppedError):
        run(lake, plan, slots=1, stopping=written.is_set, progress=note)
    assert written.is_set()
    assert lake.view(table_name).snapshot.snapshot_id == head
    assert unreferenced(lake, table_name) == set()


# --- several commits, summary properties ------------------------------------------------------------------------------


@pytest.mark.slow
def test_state_that_writers_keep_in_summaries_is_found_as_before(lake: Lake, table_name: str) -> None:
    """Flink's and Kafka Connect's committers walk back from the current snapshot until they find their own keys."""
    create(lake, table_name)
    states = []
    for number in range(3):
        append = java_table(lake, table_name).newAppend()
        append.set("flink.job-id", "job").set("flink.max-committed-checkpoint-id", str(number))
        append.set("kafka.connect.offsets.control.group", f'{{"0":{number}}}').commit()
        insert(lake, table_name)
        states.append(found_walking_back(lake, table_name))
        lake.compact(table_name, force=True)
        assert found_walking_back(lake, table_name) == states[-1]
    assert states == [("0", '{"0":0}'), ("1", '{"0":1}'), ("2", '{"0":2}')]


def found_walking_back(lake: Lake, table: str) -> tuple[str, str] | None:
    loaded = java_table(lake, table)
    snapshot = loaded.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get("flink.max-committed-checkpoint-id") is not None:
            return (
                summary.get("flink.max-committed-checkpoint-id"),
                summary.get("kafka.connect.offsets.control.group"),
            )
        parent = snapshot.parentId()
        snapshot = loaded.snapshot(parent) if parent is not None else None
    return None


# --- branches, tags, statistics ---------------------------------------------------------------------------------------


def compact_branch(lake: Lake, table: str, branch: str, **more: Any) -> RunResult:
    name = lake.name(table)
    view = lake.catalogs.load(name, branch)
    plan = plan_table(view, lake.settings.policy.for_table(name), ManifestCache(1 << 24), Request(force=True))
    return run(lake, plan, **more)


@pytest.mark.slow
@pytest.mark.parametrize("deletes", [*slow(False), True])
def test_a_branch_is_compacted_alone(lake: Lake, table_name: str, deletes: bool) -> None:
    create(lake, table_name, 2, MERGE_ON_READ, commits=2)
    lake.sql(f"ALTER TABLE lake.{table_name} CREATE TAG keep")
    lake.sql(f"ALTER TABLE lake.{table_name} CREATE BRANCH audit")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table_name}.branch_audit SELECT id + 100, 'p0', id FROM range(5)")
    if deletes:
        lake.sql(f"DELETE FROM lake.{table_name}.branch_audit WHERE id = 3")
    insert(lake, table_name)

    def rows(ref: str) -> list[Any]:
        return sorted(tuple(row) for row in lake.sql(f"SELECT * FROM lake.{table_name} VERSION AS OF '{ref}'"))

    before = {ref: rows(ref) for ref in ("main", "audit", "keep")}
    heads = lake.view(table_name).metadata.refs
    result = compact_branch(lake, table_name, "audit")
    refs = lake.view(table_name).metadata.refs
    assert refs["audit"].snapshot_id == result.snapshot_after
    assert {name: refs[name].snapshot_id for name in ("main", "keep")} == {
        name: heads[name].snapshot_id for name in ("main", "keep")
    }
    assert {ref: rows(ref) for ref in before} == before
    assert len(lake.sql(f"SELECT * FROM lake.{table_name}.files VERSION AS OF 'audit'")) == 1
    other = f"DELETE FROM lake.{table_name}.branch_audit WHERE id = 104"
    lake.sql(f"INSERT INTO lake.{table_name}.branch_audit SELECT id + 100, 'p0', id FROM range(5)")
    assert not compact_branch(lake, table_name, "audit", enabled=before_commit(lambda: lake.sql(other))).dropped
    assert 104 not in {row[0] for row in rows("audit")}
    assert {ref: rows(ref) for ref in ("main", "keep")} == {ref: before[ref] for ref in ("main", "keep")}
    assert unreferenced(lake, table_name) == set()


def test_statistics_are_found_after_a_rewrite(lake: Lake, table_name: str) -> None:
    create(lake, table_name, by=BY_A, commits=2)
    lake.sql(f"CALL lake.system.compute_table_stats(table => '{table_name}')")
    before = lake.view(table_name)
    (known,) = before.metadata.statistics
    result = run(lake, planned(lake, table_name), commit=CommitSettings(groups=1))
    assert result.commits == 2
    found = {file.snapshot_id: file for file in lake.view(table_name).metadata.statistics}
    carried = found[result.snapshot_after]
    assert carried.statistics_path == known.statistics_path
    assert [blob.properties for blob in carried.blob_metadata] == [blob.properties for blob in known.blob_metadata]
    assert carried.blob_metadata[0].snapshot_id == known.snapshot_id


def test_statistics_that_java_refuses_fail_no_run(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=1)
    lake.sql(f"CALL lake.system.compute_table_stats(table => '{table_name}')")
    append(lake, table_name)
    view = lake.view(table_name)
    head = view.metadata.current_snapshot_id
    java = JavaTable.load(lake.session, view, head)
    assert carry_statistics(java, head, lambda: java.jvm.java.util.UUID.fromString("no number")) is False
    assert carry_statistics(java, head, lambda: None) is True
