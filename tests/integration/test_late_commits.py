"""A commit that was sent before a crash may land after it: outputs stay as long as it can."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.commit.in_flight import InFlightRecords, Record, new_run_id
from compactor.commit.sends import Sent
from compactor.commit.sweep import GRACE_SECONDS, sweep
from compactor.lease.owner import Owner
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.runner import OutputTaskRunner, WrittenOutput
from compactor.spark.java_table import JavaTable
from tests.conftest import Lake
from tests.integration.service_process import (
    files_of,
)

pytestmark = pytest.mark.spark


def append_files(lake: Lake, table: str, commits: int) -> None:
    for number in range(commits):
        lake.sql(
            f"INSERT INTO lake.{table} SELECT id + {number * 3000}, sha2(cast(id AS string), 512) FROM range(3000)"
        )


@pytest.fixture
def sent(lake: Lake, table_name: str, tmp_path: Path) -> LateCommit:
    """A run of a process that is dead by now: outputs written, record in place, commit sent but not landed."""
    lake.sql(f"CREATE TABLE lake.{table_name} (id bigint, s string) USING iceberg PARTITIONED BY (bucket(2, id))")
    append_files(lake, table_name, 5)
    return LateCommit(lake, table_name, tmp_path)


class LateCommit:
    def __init__(self, lake: Lake, table: str, folder: Path) -> None:
        self.lake, self.table = lake, table
        self.run_id = new_run_id(lake.view(table))
        self.now = time.time()
        self.rows = lake.rows(table)
        self.records = InFlightRecords(f"file://{folder}/in-flight", dead_owner(), 60, lambda: self.now)
        view = lake.view(table)
        policy = lake.settings.policy.for_table(view.name)
        self.plan: TablePlan = plan_table(view, policy, ManifestCache(1 << 20), Request())
        self.base = JavaTable.load(lake.session, view, self.plan.snapshot_id)
        runner = OutputTaskRunner(self.base, self.plan, self.run_id)
        self.record: Record = self.records.open(self.run_id, view, runner.output_files, runner.output_folders)
        self.records.renew(self.record, sending=self.sends())
        self.done: list[WrittenOutput] = [
            runner.rewrite(TaskId(number, index))
            for number, group in enumerate(self.plan.groups)
            for index in range(len(group.file_group.tasks))
        ]
        self.outputs = [Path(plain_path(path)) for path in self.record.files if not path.endswith("-part.parquet")]
        assert self.outputs
        assert all(path.exists() for path in self.outputs), [output.engine for output in self.done]

    def sends(self) -> Sent:
        """What the dead run has put on record before its commit: made for the table as it was planned."""
        snapshot = self.lake.view(self.table).snapshot
        return Sent(1, self.base.snapshot_id, (snapshot.sequence_number or 0) + 1, "snap-1.avro")

    def sweep(self, after_seconds: float = 15.0) -> int:
        self.now += after_seconds
        grace = GRACE_SECONDS
        removed = sweep(self.records, self.lake.catalogs, ManifestCache(1 << 20), now=self.now, grace_seconds=grace)
        return sum(removed.values())

    def lands(self) -> None:
        """What the catalog does with a request that was sent from `base`: no refresh, no retry."""
        operation = self.base.handle.newRewrite().validateFromSnapshot(self.base.snapshot_id)
        for written in self.done:
            for index in range(written.scan_tasks.size()):
                operation.deleteFile(written.scan_tasks.get(index).file())
            for output in written.outputs:
                operation.addFile(output)
        operation.commit()

    def references_exist(self) -> bool:
        return all(Path(path).exists() for path in files_of(self.lake.view(self.table)))


def dead_owner() -> Owner:
    """This machine's, of a process that is gone."""
    return replace(Owner.this_process(), pid=2**22 + 1)


def test_while_the_head_stands_still_a_late_commit_may_land(sent: LateCommit) -> None:
    for _ in range(5):
        assert sent.sweep() == 0
    sent.lands()
    assert sent.references_exist()
    for _ in range(4):
        assert sent.sweep() == 0
    assert sent.references_exist()
    assert sent.lake.rows(sent.table) == sent.rows
    assert sent.records.all() == []


def test_no_time_proves_that_a_late_commit_does_not_land(sent: LateCommit) -> None:
    assert sent.sweep(30 * 86_400) == 0
    sent.lands()
    assert sent.references_exist()
    assert sent.lake.rows(sent.table) == sent.rows


def test_a_moved_head_keeps_a_late_commit_out_and_its_outputs_go(sent: LateCommit) -> None:
    assert sent.sweep() == 0
    sent.lake.compact(sent.table)  # the next life does the same work again
    assert sent.sweep() == len(sent.outputs)
    assert not any(path.exists() for path in sent.outputs)
    with pytest.raises(Exception, match=r"(?i)cannot commit|missing required files|out of date|stale"):
        sent.lands()
    assert sent.references_exist()
    assert sent.lake.rows(sent.table) == sent.rows
    sent.sweep()
    assert sent.records.all() == []
