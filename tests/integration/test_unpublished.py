"""Write, audit, publish: a job moves main to its branch, or to what it has staged, although main is compacted."""

from __future__ import annotations

import threading
import time

import pytest

from compactor.errors import LaterError
from compactor.events import RunSkipped
from compactor.locks.flink_locks import Locks
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.ledger.table_record import Lane
from tests.conftest import Lake
from tests.integration.replayed_table import FollowedTable
from tests.integration.table_kit import MERGE_ON_READ, before_commit, create, planned, run, unreferenced
from tests.slow import slow

pytestmark = pytest.mark.spark


def write_audit(lake: Lake, table: str) -> None:
    lake.sql(f"ALTER TABLE lake.{table} CREATE OR REPLACE BRANCH audit")
    lake.sql(f"INSERT INTO lake.{table}.branch_audit VALUES (77, 'p0', 77)")
    lake.sql(f"DELETE FROM lake.{table}.branch_audit WHERE id = 5")


def publish(lake: Lake, table: str) -> None:
    lake.sql(f"CALL lake.system.fast_forward('{table}', 'main', 'audit')")
    lake.sql(f"REFRESH TABLE lake.{table}")


def service(lake: Lake, table: str) -> FollowedTable:
    settings = Settings.model_validate({"catalogs": {"lake": {}}, "tables": {"include": ["*"]}})
    return FollowedTable(lake, table, settings, time.time())


def test_a_branch_is_published_before_the_service_rewrites_main(lake: Lake, table_name: str) -> None:
    create(lake, table_name, 2, MERGE_ON_READ, commits=12)
    write_audit(lake, table_name)
    followed = service(lake, table_name)
    with pytest.raises(LaterError, match="branch audit is not published to main") as error:
        followed.look(Lane.EVENT)
    assert error.value.reason == "unpublished"
    assert [each.reason for each in followed.events if isinstance(each, RunSkipped)] == ["unpublished"]
    publish(lake, table_name)
    rows, files = lake.rows(table_name), len(lake.live_files(table_name))
    assert len(rows) == 12 * 9 + 1
    followed.look(Lane.EVENT)
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert len(lake.live_files(table_name)) < files
    assert lake.rows(table_name) == rows


def test_a_rewrite_is_committed_after_the_branch_that_was_made_meanwhile(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the publication; what the branch has deleted is deleted in the outputs too."""
    create(lake, table_name, 2, MERGE_ON_READ, commits=3)
    monkeypatch.setattr("compactor.commit.decisions.TURN_SECONDS", 0.1)
    made, asked = threading.Event(), list[None]()

    class Job(Locks):
        """Looked at before each attempt to commit."""

        def holder(self, _: TableName) -> str | None:
            asked.append(None)
            if made.is_set() and len(asked) == 4:
                publish(lake, table_name)
            return None

    def write() -> None:
        write_audit(lake, table_name)
        made.set()

    result = run(lake, planned(lake, table_name), enabled=before_commit(write), locks=Job())
    assert made.is_set()
    assert len(asked) >= 4
    assert sum(group.rows_rebased for group in result.groups) == 3
    head = lake.view(table_name).snapshot
    assert head is not None
    assert head.snapshot_id == result.snapshot_after
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert sorted(row[0] for row in lake.rows(table_name)) == sorted([*range(5), *range(6, 10)] * 3 + [77])
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("statement", ["DELETE FROM {} WHERE id = 5", *slow("INSERT INTO {} VALUES (77, 'p0', 77)")])
def test_a_staged_change_can_be_published(lake: Lake, table_name: str, statement: str) -> None:
    create(lake, table_name, 2, f"{MERGE_ON_READ}, 'write.wap.enabled'='true'", commits=12)
    lake.session.conf.set("spark.wap.id", "job-1")
    try:
        lake.sql(statement.format(f"lake.{table_name}"))
    finally:
        lake.session.conf.unset("spark.wap.id")
    staged = lake.view(table_name).metadata.snapshots[-1]
    assert staged.summary is not None
    assert staged.summary.additional_properties["wap.id"] == "job-1"
    followed, appends = service(lake, table_name), statement.startswith("INSERT")
    if appends:
        followed.look(Lane.EVENT)
    else:
        with pytest.raises(LaterError, match=f"staged snapshot {staged.snapshot_id}"):
            followed.look(Lane.EVENT)
    lake.sql(f"CALL lake.system.cherrypick_snapshot('{table_name}', {staged.snapshot_id})")
    followed.look(Lane.EVENT)
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    expected = [*range(10)] * 12 + [77] if appends else [*range(5), *range(6, 10)] * 12
    assert sorted(row[0] for row in lake.rows(table_name)) == sorted(expected)
    assert len(lake.live_files(table_name)) < 12
