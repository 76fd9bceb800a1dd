"""What may happen to a table between a plan and its commit, and is noticed before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactor.commit.updates import ReplaceUpdate
from compactor.errors import GiveUpError, ReplanError, StoppedError
from compactor.lease.right import CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.rewrite.tasks.runner import OutputTaskRunner
from compactor.runs.dropped_groups import reclassify_conflicts
from tests.conftest import Lake
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append,
    before_first,
    create,
    delete_equal,
    expire,
    java_table,
    planned,
    run,
    unreferenced,
    unused_metadata,
    upgrade,
)
from tests.slow import slow

pytestmark = pytest.mark.spark


def while_preparing(monkeypatch: pytest.MonkeyPatch, other: Callable[[], None]) -> None:
    """Let another writer in after the last refresh: Iceberg refreshes once more when it makes the snapshot."""
    before_first(monkeypatch, ReplaceUpdate, "make", other)


def append_again(lake: Lake, plan: TablePlan) -> None:
    """A writer repeats its append of a file of partition p1: readers see its rows twice from now on."""
    table = f"{plan.table.name.namespace[0]}.{plan.table.name.name}"
    group = next(each.file_group for each in plan.groups if each.file_group.partition == {"a": "p1"})
    path, loaded = group.files[0].entry.path, java_table(lake, table)
    tasks = loaded.newScan().planFiles().iterator()
    while (file := tasks.next().file()).location() != path:
        pass
    loaded.newAppend().appendFile(file).commit()


@pytest.mark.parametrize("moment", ["before the check", "while the commit is made"])
def test_a_file_that_is_appended_again_meanwhile_keeps_counting_twice(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    create(lake, table_name, by=BY_A, commits=3)
    plan, calls = planned(lake, table_name), list[None]()

    def enabled() -> bool:
        calls.append(None)
        if len(calls) == 1:
            append_again(lake, plan)
        return True

    if moment == "before the check":
        result = run(lake, plan, enabled=enabled)
    else:
        while_preparing(monkeypatch, lambda: append_again(lake, plan))
        result = run(lake, plan)
    assert [drop.planned.file_group.partition for drop in result.dropped] == [{"a": "p1"}]
    assert "was added once more" in str(result.dropped[0].error)
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert len(lake.rows(table_name)) == 35
    assert unreferenced(lake, table_name) == set()


def test_a_table_that_is_upgraded_while_the_commit_is_made_is_planned_anew(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed on V3, every row would get a new id with the next snapshot."""
    create(lake, table_name, commits=3)
    plan = planned(lake, table_name)

    def other() -> None:
        upgrade(lake, table_name)
        append(lake, table_name)

    while_preparing(monkeypatch, other)
    with pytest.raises(ReplanError) as error:
        run(lake, plan)
    assert error.value.reason == "format_changed"
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    before = lake.rows(table_name, "_row_id, *")
    assert len(before) == 31
    assert unreferenced(lake, table_name) == set()
    lake.compact(table_name, force=True)
    assert lake.rows(table_name, "_row_id, *") == before


def test_a_delete_that_a_rollback_makes_necessary_again_stays(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt drops it, because it is older than all data then; it must not be remembered as dropped."""
    create(lake, table_name, by=BY_A, commits=3)
    delete_equal(lake, table_name, "id", [4], partition=["p0"])
    rows, plan, asked = lake.rows(table_name), planned(lake, table_name), list[None]()
    plan = replace(plan, groups=tuple(each for each in plan.groups if each.file_group.partition == {"a": "p1"}))

    def remove() -> None:
        loaded = java_table(lake, table_name)
        removal, tasks = loaded.newDelete(), loaded.newScan().planFiles().iterator()
        while tasks.hasNext():
            file = tasks.next().file()
            if "a=p0" in file.location():
                removal.deleteFile(file)
        removal.commit()

    def confirm() -> None:
        asked.append(None)
        if len(asked) == 1:
            java_table(lake, table_name).manageSnapshots().rollbackTo(plan.snapshot_id).commit()

    while_preparing(monkeypatch, remove)
    run(lake, plan, right=CommitRight(confirm=confirm))
    assert len(asked) == 2
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert lake.rows(table_name) == rows
    assert unused_metadata(lake, table_name) == set()


def test_a_branch_that_is_dropped_while_the_commit_is_made_stays_dropped(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write, audit, publish: main moves to the branch, and the branch goes."""
    create(lake, table_name, commits=1)
    lake.sql(f"ALTER TABLE lake.{table_name} CREATE BRANCH audit")
    for _ in range(3):
        lake.sql(f"INSERT INTO lake.{table_name}.branch_audit VALUES (100, 'p0', 1)")
    name = lake.name(table_name)
    view = lake.catalogs.load(name, "audit")
    plan = plan_table(view, lake.settings.policy.for_table(name), ManifestCache(1 << 24), Request(force=True))

    def publish() -> None:
        lake.sql(f"CALL lake.system.fast_forward('{table_name}', 'main', 'audit')")
        lake.sql(f"ALTER TABLE lake.{table_name} DROP BRANCH audit")

    while_preparing(monkeypatch, publish)
    with pytest.raises(ReplanError) as error:
        run(lake, plan)
    assert error.value.reason == "branch_dropped"
    assert list(lake.view(table_name).metadata.refs) == ["main"]
    assert len(lake.rows(table_name)) == 13


@pytest.mark.parametrize("version", [2, *slow(3)])
@pytest.mark.parametrize("end", [*slow("committed", "stopped"), "overtaken"])
def test_manifests_that_were_merged_or_not_committed_do_not_stay(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, version: int, end: str
) -> None:
    """Iceberg filters manifests, then merges what it has written: only the merged ones are in the snapshot."""
    create(lake, table_name, version, f"{MERGE_ON_READ}, 'commit.manifest.min-count-to-merge'='2'", BY_A, commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (4, 5)")
    plan, asked = planned(lake, table_name), list[None]()
    assert unused_metadata(lake, table_name) == set()

    def confirm() -> None:
        asked.append(None)
        if end == "stopped" and len(asked) == 3:
            raise StoppedError("the service ends")
        if len(asked) < 3:
            append(lake, table_name)
        elif end == "overtaken" and len(asked) == 3:
            lake.sql(f"DELETE FROM lake.{table_name} WHERE a = 'p1'")

    if end == "stopped":
        with pytest.raises(StoppedError):
            run(lake, plan, right=CommitRight(confirm=confirm))
    else:
        result = run(lake, plan, right=CommitRight(confirm=confirm))
        assert len(result.dropped) == (end == "overtaken")
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert len(lake.rows(table_name)) == {"committed": 26, "stopped": 26, "overtaken": 14}[end]
    assert unused_metadata(lake, table_name) == set()


def test_a_snapshot_that_expires_while_spark_is_to_read_it_is_no_damage(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(lake, table_name, commits=3)
    plan = planned(lake, table_name, engine="spark")
    before_first(monkeypatch, OutputTaskRunner, "write_ahead", lambda: expire(lake, table_name))
    with pytest.raises(ReplanError) as error:
        run(lake, plan)
    assert error.value.reason == "snapshot_expired"
    assert isinstance(error.value.__cause__, GiveUpError)
    assert "the run itself saw" in str(error.value)


@pytest.mark.parametrize("reason", ["row_count_mismatch", *slow("corrupt_page", "unreadable_data")])
def test_damage_stays_damage_however_busy_the_table_is(lake: Lake, table_name: str, reason: str) -> None:
    """Deletes and appends of others take no file away; rows that do not add up are not even a rollback's doing."""
    create(lake, table_name, 2, MERGE_ON_READ, BY_A, commits=3)
    plan = planned(lake, table_name)
    drops = {number: GiveUpError("as it was", reason=reason) for number, _ in enumerate(plan.groups)}
    cache = ManifestCache(1 << 24)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (4, 5)")
    append(lake, table_name)
    assert reclassify_conflicts(plan, drops, lake.catalogs, cache) == drops
    first = lake.view(table_name).metadata.snapshots[0].snapshot_id
    java_table(lake, table_name).manageSnapshots().rollbackTo(first).commit()
    told = reclassify_conflicts(plan, drops, lake.catalogs, cache)
    assert {each.reason for each in told.values()} == {"history_gap" if reason == "unreadable_data" else reason}
    unknown = replace(plan, table=replace(plan.table, name=lake.name("db.nothing")))
    assert reclassify_conflicts(unknown, drops, lake.catalogs, cache) == drops
