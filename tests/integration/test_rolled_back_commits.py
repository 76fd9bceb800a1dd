"""What the catalog rolls back for a writer, as Apache Polaris does, is committed again and not written again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from compactor.commit.decisions import Searched
from compactor.errors import ReplanError
from compactor.events import CommitRolledBack, Event, GroupRewritten
from compactor.iceberg.manifest_entries import Content
from compactor.manifests.cache import ManifestCache
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import TablePlan
from compactor.runs import committing as commit_module
from compactor.runs.convert import ConversionResult
from compactor.runs.results import RunResult
from compactor.settings.tree import CommitSettings
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append,
    conversion,
    create,
    delete_equal,
    planned,
    run,
    unreferenced,
)
from tests.services.faulty_catalog import FaultyCatalog, OnV3
from tests.services.rest_lake import RestLake
from tests.services.waiting import PATIENCE, wait_for
from tests.slow import slow

pytestmark = pytest.mark.spark
ASKED, COMMIT = CommitSettings(polaris_rollback="always"), CommitSettings(polaris_rollback="always", hold_seconds=60)
INSERT, DELETE = "INSERT INTO {table} VALUES (77, 'p0', 77)", "DELETE FROM {table} WHERE id = 5"
WATCHED, AT_ONCE, HALF_WAY = "while we watch", "before we look at ours", "half of it before we look at ours"
RACES = [(2, INSERT, WATCHED), (2, DELETE, AT_ONCE), *slow((3, DELETE, WATCHED), (3, INSERT, HALF_WAY))]
"""Format version, statement of the writer, and when its commit takes the place of ours."""


@dataclass(frozen=True)
class Race:
    """`work` commits while the commit of a writer is on its way."""

    lake: RestLake
    faulty: FaultyCatalog
    table: str
    monkeypatch: pytest.MonkeyPatch

    def run(self, work: Callable[[], Any], statement: str, when: str) -> Any:
        """What `work` returns, once it has committed for the second time and another append builds on that."""
        landed, answered, looked, results = threading.Event(), threading.Event(), threading.Event(), list[Any]()
        search, committed_id = commit_module.CommitLoop._search, commit_module.committed_id

        def look(*arguments: Any) -> int | None:
            found = committed_id(*arguments)
            looked.set()
            return found

        def half_way() -> None:
            if when == HALF_WAY:
                answered.set()
                assert looked.wait(PATIENCE)

        def verify(*arguments: Any) -> Searched:
            looked.clear()
            if when != WATCHED:
                landed.set()
                assert answered.wait(PATIENCE)
            try:
                return search(*arguments)
            finally:
                landed.set()

        def visit() -> None:
            thread.start()
            assert landed.wait(PATIENCE)

        self.monkeypatch.setattr(commit_module.CommitLoop, "_search", verify)
        self.monkeypatch.setattr(commit_module, "committed_id", look)
        self.faulty.half_way = half_way
        thread = threading.Thread(target=lambda: results.append(work()))
        self.faulty.on_v3, before = OnV3.ROLLS_BACK, self.faulty.rolled_back
        self.faulty.before_commit, self.faulty.honours_rollback = visit, True
        try:
            self.lake.sql(statement.format(table=f"lake.{self.table}"))
            answered.set()
            wait_for("the second commit", self._has_replaced)
            append(self.lake, self.table)
            thread.join(PATIENCE)
        finally:
            self.faulty.honours_rollback, self.faulty.on_v3 = False, OnV3.REFUSES_THE_WRITER
            self.faulty.half_way = lambda: None
        self.lake.sql(f"REFRESH TABLE lake.{self.table}")
        assert self.faulty.rolled_back - before == 1
        (result,) = results
        assert result.snapshot_after in {each.snapshot_id for each in self.lake.view(self.table).history}
        return result

    def _has_replaced(self) -> bool:  # not by Spark, which keeps what it has loaded while it is asked again
        snapshots = self.lake.view(self.table).metadata.snapshots
        return any(each.summary.operation is Operation.REPLACE for each in snapshots if each.summary)

    def ids(self) -> list[int]:
        return [row.id for row in self.lake.sql(f"SELECT id FROM lake.{self.table} WHERE id < 10 ORDER BY id")]


@pytest.fixture
def race(rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, monkeypatch: pytest.MonkeyPatch) -> Race:
    return Race(rest_lake, faulty, table_name, monkeypatch)


@pytest.mark.parametrize(("version", "statement", "when"), RACES)
def test_a_rewrite_is_committed_again(race: Race, version: int, statement: str, when: str) -> None:
    lake, table, events = race.lake, race.table, list[Event]()
    create(lake, table, version, MERGE_ON_READ, commits=3)
    plan = planned(lake, table)

    def work() -> RunResult:
        return run(lake, plan, commit=COMMIT, listener=events.append)

    result: RunResult = race.run(work, statement, when)
    assert race.ids() == sorted([each for each in range(10) if statement != DELETE or each != 5] * 3)
    assert sum(group.rows_rebased for group in result.groups) == (3 if statement == DELETE else 0)
    assert len(lake.live_files(table)) == (2 if statement == DELETE else 3), "ours, and one of each append"
    assert sum(isinstance(event, GroupRewritten) for event in events) == len(plan.groups), "no byte is written twice"
    assert sum(isinstance(event, CommitRolledBack) for event in events) == 1
    assert unreferenced(lake, table) == set()


@pytest.mark.parametrize(("version", "statement", "when"), slow(*RACES[:2]))
def test_a_conversion_is_committed_again(race: Race, version: int, statement: str, when: str) -> None:
    lake, table = race.lake, race.table
    create(lake, table, version, MERGE_ON_READ, commits=3)
    delete_equal(lake, table, "id", [3])
    work = conversion(lake, table, COMMIT).convert
    result: ConversionResult = race.run(work, statement, when)
    assert (result.deletes_removed, result.rows) == (1, 3)
    gone = {3, 5} if statement == DELETE else {3}
    assert race.ids() == sorted([each for each in range(10) if each not in gone] * 3)
    deletes = take_inventory(lake.view(table), ManifestCache(1 << 24)).deletes
    assert Content.EQUALITY_DELETES not in {each.content for each in deletes}
    assert unreferenced(lake, table) == set()


def test_rows_that_a_slow_upsert_deletes_stay_deleted(race: Race) -> None:
    """The upsert takes the place of our first rewrite, at which the second one is planned, and gets its number."""
    lake, table, plans = race.lake, race.table, list[TablePlan]()
    create(lake, table, by=BY_A, commits=3)

    def visit() -> None:
        plan = planned(lake, table)
        first = tuple(each for each in plan.groups if each.file_group.partition == {"a": "p0"})
        run(lake, replace(plan, groups=first), commit=ASKED)
        plans.append(planned(lake, table))

    race.faulty.before_commit, race.faulty.honours_rollback = visit, True
    before = race.faulty.rolled_back
    try:
        delete_equal(lake, table, "id", [5], partition=["p1"])
    finally:
        race.faulty.honours_rollback = False
    assert race.faulty.rolled_back - before == 1
    head = lake.view(table).snapshot
    assert head is not None
    (plan,) = plans
    assert plan.table.snapshot is not None
    assert head.sequence_number == plan.table.snapshot.sequence_number, "numbers went back"
    assert [each.file_group.partition for each in plan.groups] == [{"a": "p1"}]
    with pytest.raises(ReplanError) as error:
        run(lake, plan)
    assert error.value.reason == "history_gap"
    lake.sql(f"REFRESH TABLE lake.{table}")
    assert race.ids() == sorted([each for each in range(10) if each != 5] * 3)
    run(lake, planned(lake, table))
    lake.sql(f"REFRESH TABLE lake.{table}")
    assert race.ids() == sorted([each for each in range(10) if each != 5] * 3)
