"""Rewriting manifests: fewer of them, and every row, lineage and delete as before."""

from __future__ import annotations

import uuid
from contextlib import nullcontext

import pytest

from compactor.debt.board import DebtBoard, TableDebt
from compactor.debt.manifest_debt import count_manifests, manifests_of
from compactor.errors import FirnlineError, LaterError, StoppedError
from compactor.iceberg.other_compactors import RUN_ID, other_compactors
from compactor.iceberg.tables import TableView
from compactor.lease.right import CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.planning.budget import COMMIT_CALLS, Grant, Spent
from compactor.reasons import Reason
from compactor.runs.committable import CommitTools
from compactor.runs.manifests import rewrite_manifests
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import RewriteWorker
from compactor.settings.tree import ManifestSettings, Settings
from compactor.table_names import TableName
from tests.conftest import Lake
from tests.integration.table_kit import append, create, unused_metadata, upgrade
from tests.services.faulty_catalog import FaultyCatalog
from tests.services.rest_lake import RestLake
from tests.slow import slow

COMMITS = 6
SETTINGS = ManifestSettings(min_count=COMMITS, min_reduction=2)


BY_PART = "PARTITIONED BY (part)"


def make(lake: Lake, table: str, version: int, partitioned: str = BY_PART) -> TableName:
    properties = f"'format-version' = '{version}', 'write.delete.mode' = 'merge-on-read'"
    lake.sql(
        f"CREATE TABLE lake.{table} (id BIGINT, part INT) USING iceberg {partitioned} "
        f"TBLPROPERTIES ({properties}, 'commit.manifest-merge.enabled' = 'false')"
    )
    for commit in range(COMMITS):
        lake.sql(f"INSERT INTO lake.{table} SELECT id, id % 3 FROM range({commit * 10}, {commit * 10 + 10})")
    if version > 1:
        lake.sql(f"DELETE FROM lake.{table} WHERE id IN (3, 17, 44)")
    return TableName.parse(f"lake.{table}", lake.catalogs.names)


def rows(lake: Lake, table: str, version: int) -> list[object]:
    lineage = ", _row_id, _last_updated_sequence_number" if version > 2 else ""
    return list(lake.sql(f"SELECT id, part{lineage} FROM lake.{table} ORDER BY id"))


def files(lake: Lake, table: str) -> list[object]:
    return list(lake.sql(f"SELECT * FROM lake.{table}.files ORDER BY file_path"))


def due(view: TableView) -> tuple[int, ...]:
    layouts = {spec.spec_id: view.layout(spec.spec_id) for spec in view.metadata.partition_specs}
    version = view.metadata.format_version
    return count_manifests(view.manifests(), layouts, SETTINGS, view.properties, version).due_specs


@pytest.mark.parametrize(
    ("partitioned", "version"),
    [(BY_PART, 3), ("", 1), *slow((BY_PART, 1), (BY_PART, 2), ("", 2), ("", 3))],
)
def test_rows_lineage_and_files_stay(lake: Lake, table_name: str, version: int, partitioned: str) -> None:
    name = make(lake, table_name, version, partitioned)
    before, listed = rows(lake, table_name, version), files(lake, table_name)
    view = lake.catalogs.load(name)
    assert due(view) == (0,)
    run_id = str(uuid.uuid4())
    done = rewrite_manifests(lake.session, view, due(view), run_id, CommitTools(lake.catalogs))
    assert done.before == len(view.manifests())
    assert done.after <= 2
    after = lake.catalogs.load(name)
    assert len(after.manifests()) == done.after
    assert due(after) == ()
    assert rows(lake, table_name, version) == before
    assert files(lake, table_name) == listed
    snapshot = after.snapshot
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary.additional_properties[RUN_ID] == run_id
    assert other_compactors(after.metadata, snapshot.timestamp_ms / 1000) == ()
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (1000, 1)")
    assert rows(lake, table_name, version)[:-1] == before


@pytest.mark.parametrize("version", [3, *slow(2)])
def test_statistics_are_found_after_a_merge_of_manifests(lake: Lake, table_name: str, version: int) -> None:
    name = make(lake, table_name, version)
    if version == 2:  # a commit for each spec: each one hands them on
        lake.sql(f"ALTER TABLE lake.{table_name} ADD PARTITION FIELD bucket(2, id)")
        for commit in range(COMMITS):
            lake.sql(f"INSERT INTO lake.{table_name} SELECT id, 1 FROM range({100 + commit}, {103 + commit})")
    lake.sql(f"CALL lake.system.compute_table_stats(table => '{table_name}')")
    before = lake.catalogs.load(name)
    (known,) = before.metadata.statistics
    rewrite_manifests(lake.session, before, due(before), str(uuid.uuid4()), CommitTools(lake.catalogs))
    after = lake.catalogs.load(name)
    assert len(after.metadata.snapshots) == len(before.metadata.snapshots) + (2 if version == 2 else 1)
    assert after.snapshot is not None
    found = {file.snapshot_id: file for file in after.metadata.statistics}
    assert found[after.snapshot.snapshot_id].statistics_path == known.statistics_path


@pytest.mark.parametrize("version", [3, *slow(2)])
def test_a_merge_whose_turn_has_passed_is_not_committed_and_leaves_no_file(
    lake: Lake, table_name: str, version: int
) -> None:
    """A job makes a branch from main while manifests are merged: if main moves, it can never be published."""
    name = make(lake, table_name, version)
    planned, merged = lake.catalogs.load(name), list[set[str]]()
    before = unused_metadata(lake, table_name)

    def check_turn() -> None:
        merged.append(unused_metadata(lake, table_name) - before)
        raise LaterError("a branch is to be published", reason=Reason.UNPUBLISHED, seconds=60)

    with pytest.raises(LaterError):
        rewrite_manifests(
            lake.session, planned, (0,), str(uuid.uuid4()), CommitTools(lake.catalogs), check_turn=check_turn
        )
    assert lake.catalogs.load(name).metadata_location == planned.metadata_location
    assert len(merged) == 1
    assert len(merged[0]) > 1, "it is asked after the merge, which has written manifests and their list"
    assert unused_metadata(lake, table_name) == before
    done = rewrite_manifests(lake.session, planned, (0,), str(uuid.uuid4()), CommitTools(lake.catalogs))
    assert done.after < done.before


@pytest.mark.parametrize("version", [2, *slow(3)])
def test_what_others_add_meanwhile_stays(lake: Lake, table_name: str, version: int) -> None:
    name = make(lake, table_name, version)
    planned = lake.catalogs.load(name)
    lake.sql(f"INSERT INTO lake.{table_name} VALUES (1000, 1)")
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5")
    before = rows(lake, table_name, version)
    rewrite_manifests(lake.session, planned, (0,), str(uuid.uuid4()), CommitTools(lake.catalogs))
    assert rows(lake, table_name, version) == before


@pytest.mark.parametrize("lost", [*slow(False), True])
def test_a_merge_is_charged_whatever_becomes_of_it(lake: Lake, table_name: str, lost: bool) -> None:
    """Its commit is charged if there may be one."""
    name = make(lake, table_name, 2)
    view = lake.catalogs.load(name)
    counts = manifests_of(view, SETTINGS)
    settings = Settings.model_validate(
        {"catalogs": {"lake": {}}, "tables": {"include": ["*"]}, "manifests": dict(SETTINGS)}
    )

    def confirm() -> None:
        if lost:
            raise StoppedError("this service lost its lease")

    cache, board, costs = ManifestCache(1 << 24), DebtBoard(), list[Spent]()
    rewriter = Rewriter(
        lake.session, lake.catalogs, cache, lake.in_flight(), slots=SlotPool(1), lease_seconds=60, check_seconds=60,
        right=CommitRight(confirm=confirm),
    )  # fmt: skip
    planner = TablePlanner(rewriter, settings, board, planned=lambda _: None)
    debt = TableDebt(name, 1, {}, acted_on=True, manifests=counts)
    with pytest.raises(StoppedError) if lost else nullcontext():
        RewriteWorker(planner, rewriter, announce=lambda _: None).work(debt, lambda: False, Grant(), costs.append)
    cost = sum(costs, Spent())
    assert cost.bytes == counts.bytes
    assert cost.requests >= 2 * counts.manifests
    assert (cost.catalog_calls, cost.commits) == (COMMIT_CALLS, 0 if lost else 1)
    assert (len(lake.catalogs.load(name).manifests()) < counts.manifests) != lost


# --- a table that is upgraded to V3: every row keeps the id that it got ---

UNMERGED = "'commit.manifest-merge.enabled'='false'"


@pytest.mark.slow
@pytest.mark.parametrize("upgraded", ["meanwhile", "before"])
@pytest.mark.parametrize("by", ["", *slow("PARTITIONED BY (a)")])
def test_the_first_commit_after_an_upgrade_gives_the_row_ids(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, upgraded: str, by: str
) -> None:
    """Iceberg sends a merge again that another commit has beaten, with the manifests that it has written."""
    create(rest_lake, table_name, 2, UNMERGED, by, commits=6)
    if upgraded == "before":
        upgrade(rest_lake, table_name)
    view, before = rest_lake.view(table_name), list[object]()

    def visit() -> None:
        if upgraded != "before":
            upgrade(rest_lake, table_name)
        append(rest_lake, table_name)
        before.extend(rest_lake.rows(table_name, "_row_id, *"))

    faulty.before_commit = visit
    with pytest.raises(FirnlineError) as error:
        rewrite_manifests(rest_lake.session, view, (0,), "run-of-test", CommitTools(rest_lake.catalogs))
    assert error.value.reason == "format_changed"
    assert len(before) == 61
    assert rest_lake.rows(table_name, "_row_id, *") == before
    rewrite_manifests(
        rest_lake.session, rest_lake.view(table_name), (0,), "run-of-test", CommitTools(rest_lake.catalogs)
    )
    assert rest_lake.rows(table_name, "_row_id, *") == before
    assert len(rest_lake.view(table_name).manifests()) == 1


def test_manifests_are_merged_before_the_first_commit_after_an_upgrade(rest_lake: RestLake, table_name: str) -> None:
    create(rest_lake, table_name, 2, UNMERGED, commits=6)
    upgrade(rest_lake, table_name)
    done = rewrite_manifests(
        rest_lake.session, rest_lake.view(table_name), (0,), "run-of-test", CommitTools(rest_lake.catalogs)
    )
    assert (done.before, done.after) == (6, 1)
    before = rest_lake.rows(table_name, "_row_id, *")
    assert sorted(row[0] for row in before) == list(range(60))
    append(rest_lake, table_name)
    assert [row for row in rest_lake.rows(table_name, "_row_id, *") if row[0] < 60] == before
