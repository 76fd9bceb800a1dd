"""A delete file leaves in the commit that removes the last data file it applies to; the metadata oracle judges it."""

from __future__ import annotations

from typing import Any

import pytest

from compactor.commit import updates as updates_module
from compactor.errors import ReplanError
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import AS_THE_SERVICE, plan_table
from compactor.runs.results import RunResult
from compactor.settings.tree import CommitSettings
from tests.conftest import Lake
from tests.correctness.delete_rules import DeleteIndex, dangling
from tests.correctness.metadata_oracle import check_run
from tests.correctness.metadata_reader import Entry, SnapshotState
from tests.integration.table_kit import (
    MERGE_ON_READ,
    append_rows,
    before_first,
    create,
    delete_equal,
    insert,
    java_table,
    planned,
    run,
)
from tests.slow import slow

pytestmark = pytest.mark.spark

FILES, ROWS_PER_FILE = 12, 20
LINEAGE = "id, a, k, _row_id, _last_updated_sequence_number"
BUCKETED = "PARTITIONED BY (bucket(4, k))"
PROPERTIES = f"{MERGE_ON_READ}, 'commit.manifest-merge.enabled'='false', 'write.delete.granularity'='file'"


def state_of(lake: Lake, table: str) -> SnapshotState:
    metadata = lake.metadata(table)
    head = metadata.head()
    assert head is not None
    return metadata.state(head)


def left(lake: Lake, table: str) -> list[Entry]:
    """Delete files that apply to no data file."""
    return dangling(DeleteIndex(state_of(lake, table), lake.metadata(table).unpartitioned_specs))


def written(lake: Lake, table: str, by: str = "") -> None:
    """Files of one bucket each; each loses a row to a vector of its own commit."""
    create(lake, table, 3, PROPERTIES, by)
    firsts = range(0, FILES * ROWS_PER_FILE, ROWS_PER_FILE)
    for number, first in enumerate(firsts):
        append_rows(lake, table, [(each, f"a{each}", number % 4) for each in range(first, first + ROWS_PER_FILE)])
    lake.sql(f"REFRESH TABLE lake.{table}")
    for first in firsts:
        lake.sql(f"DELETE FROM lake.{table} WHERE id = {first}")
    assert sum(manifest.content for manifest in state_of(lake, table).manifests) == FILES
    assert not left(lake, table)


def compacted(lake: Lake, table: str, engine: str) -> RunResult:
    plan = planned(lake, table, engine=engine)
    return run(lake, plan)


def assert_clean(lake: Lake, table: str, result: RunResult, before: list[Any], columns: str) -> None:
    assert result.snapshot_after is not None
    assert not result.dropped
    assert check_run(lake, table, result).findings == ()
    assert not left(lake, table)
    assert lake.rows(table, columns) == before


@pytest.mark.parametrize("engine", ["auto", *slow("encode", "spark")])
@pytest.mark.parametrize("by", [BUCKETED, *slow("")])
def test_vectors_leave_with_their_data_files(lake: Lake, table_name: str, engine: str, by: str) -> None:
    written(lake, table_name, by)
    before = lake.rows(table_name, LINEAGE)
    result = compacted(lake, table_name, engine)
    assert_clean(lake, table_name, result, before, LINEAGE)
    assert state_of(lake, table_name).deletes == ()
    assert state_of(lake, table_name).summary.get("total-delete-files") == "0"


def leave_dangling(lake: Lake, table: str) -> list[Entry]:
    """Replace all data files by one as earlier versions did: the commit names no vector."""
    loaded = java_table(lake, table)
    jvm, planned_at = lake.session._jvm, loaded.currentSnapshot()
    removed, added, nothing = jvm.java.util.HashSet(), jvm.java.util.HashSet(), jvm.java.util.HashSet()
    tasks = loaded.newScan().planFiles().iterator()
    while tasks.hasNext():
        removed.add(tasks.next().file())
    lake.sql(f"ALTER TABLE lake.{table} CREATE BRANCH other")
    lake.sql(f"INSERT INTO lake.{table}.branch_other SELECT /*+ COALESCE(1) */ 1, 'kept', 0")
    loaded.refresh()
    new = loaded.snapshot("other").addedDataFiles(loaded.io()).iterator()
    while new.hasNext():
        added.add(new.next())
    rewrite = loaded.newRewrite().validateFromSnapshot(planned_at.snapshotId())
    rewrite.rewriteFiles(removed, nothing, added, nothing).commit()
    lake.sql(f"REFRESH TABLE lake.{table}")
    return left(lake, table)


def test_vectors_that_an_earlier_version_left_behind_go_in_a_commit_of_their_own(lake: Lake, table_name: str) -> None:
    written(lake, table_name)
    assert leave_dangling(lake, table_name)
    before, data = lake.rows(table_name, LINEAGE), [entry.path for entry in state_of(lake, table_name).data]
    view = lake.view(table_name)
    assert plan_table(view, lake.settings.policy.for_table(view.name), ManifestCache(1 << 24), AS_THE_SERVICE).has_work
    assert_clean(lake, table_name, compacted(lake, table_name, "auto"), before, LINEAGE)
    assert [entry.path for entry in state_of(lake, table_name).data] == data


def test_vectors_whose_files_come_back_while_the_commit_is_made_stay(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody rolls the table back: Iceberg makes the snapshot for the newest head, and validates no delete file."""
    written(lake, table_name)
    assert leave_dangling(lake, table_name)
    first = lake.view(table_name).snapshot.parent_snapshot_id
    then = sorted(map(tuple, lake.sql(f"SELECT * FROM lake.{table_name} VERSION AS OF {first}")), key=repr)

    def roll_back() -> None:
        java_table(lake, table_name).manageSnapshots().rollbackTo(first).commit()

    before_first(monkeypatch, updates_module, "_rewrite_files", roll_back)
    with pytest.raises(ReplanError):
        compacted(lake, table_name, "auto")
    assert lake.rows(table_name) == then


def test_a_delete_whose_files_leave_in_two_commits_of_a_run_leaves_with_the_next(lake: Lake, table_name: str) -> None:
    """The first commit may be rolled back after the second: its files would need the delete again."""
    create(lake, table_name)
    lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD a")
    insert(lake, table_name, commits=2)
    delete_equal(lake, table_name, "id", [4, 5])  # of the unpartitioned spec: it applies to both partitions
    before = lake.rows(table_name)
    result = run(lake, planned(lake, table_name), commit=CommitSettings(groups=1))
    assert (result.commits, len(left(lake, table_name))) == (2, 1)
    insert(lake, table_name)
    run(lake, planned(lake, table_name))
    assert state_of(lake, table_name).deletes == ()
    assert lake.rows(table_name) == sorted([*before, *[(n, f"p{n % 2}", n) for n in range(10)]])
