"""Position deletes that name no data file, as V2 writers with granularity `partition` leave them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles
from compactor.partitions import PartitionKey
from compactor.planning.delete_rules import few_deletes
from compactor.planning.inventory import Inventory
from compactor.planning.planner import GroupLimits, Plan, make_plan
from compactor.planning.policy import Policy
from compactor.planning.tiered_policy import policy_of
from compactor.settings.policy import PolicyValues
from tests.properties.planning import KEY, RECORDS, counted, data_file, delete_file, inventory_with

TARGET = 512
SIZES = FileSizes(TARGET, TARGET * 3 // 4)
VALUES = PolicyValues()
TIERED = policy_of(VALUES, SIZES)
IDLE = VALUES.settle_after_seconds
LIMITS = GroupLimits(10**9)


def covered(sizes: Sequence[int], *deleted: int) -> tuple[LiveFile, ...]:
    """Files of `RECORDS` rows, and delete files of so many rows that name none of them and may apply to each."""
    deletes = tuple(delete_file(rows, number, applies_to=None) for number, rows in enumerate(deleted))
    return tuple(LiveFile(data_file(number, size).entry, deletes) for number, size in enumerate(sizes))


class Idle(Inventory):
    """An inventory of a partition that no writer has committed to for so long that it is idle."""

    def idle_seconds(self, key: PartitionKey, now: float) -> float:  # noqa: ARG002
        return IDLE


def planned(files: Sequence[LiveFile], policy: Policy = TIERED, limits: GroupLimits = LIMITS) -> Plan:
    made = inventory_with({KEY: LiveFiles.of(files)})
    idle = Idle(made.table, 1, made.partitions, made.selected, made.layouts)
    return make_plan(idle, policy, limits, carries=lambda _key, some: few_deletes(some, VALUES.most_carried))


@pytest.mark.parametrize("sizes", [[TARGET] * 4, [TARGET, 10, TARGET], [380, 380, 380]], ids=["large", "both", "small"])
def test_in_an_idle_partition_the_files_are_rewritten_together(sizes: list[int]) -> None:
    files = covered(sizes, RECORDS * len(sizes) * 9 // 10)
    assert TIERED.judge(counted(files, SIZES), IDLE).due
    plan = planned(files)
    assert {file.entry.path for group in plan.groups for file in group.files} == {file.entry.path for file in files}
    assert not any(few_deletes(group.files, VALUES.most_carried) for group in plan.groups), "the rows are left out"


def test_newer_files_stay_as_they_are() -> None:
    """No delete applies to them."""
    files = (*covered([TARGET, TARGET], RECORDS), data_file(10, TARGET), data_file(11, TARGET))
    assert [file.entry.path for group in planned(files).groups for file in group.files] == ["file-0000", "file-0001"]


@pytest.mark.parametrize("deleted", [[119], [60, 59]])
def test_few_of_them_are_not_due(deleted: list[int]) -> None:
    files = covered([TARGET] * 4, *deleted)
    assert planned(files).groups == ()
    more = covered([TARGET] * 4, *deleted, 1)
    assert planned(more).groups


def test_beside_a_writer_they_wait_and_the_reason_says_for_what() -> None:
    files = covered([TARGET] * 4, 360)
    choice = TIERED.choose(files, IDLE - 1)
    assert choice.files == ()
    assert choice.why == (
        "position deletes that name no data file delete up to 90% of the rows of 4 files; they wait for 600 s without "
        "a commit (policy.settle_after_seconds) or for policy.delete_file_threshold of such deletes"
    )
    assert TIERED.judge(counted(files, SIZES), IDLE - 1).why != TIERED.judge(counted(files, SIZES), IDLE).why, (
        "it is planned again"
    )


def test_thresholds_decide_as_spark_does_and_the_reason_says_what_helps() -> None:
    files = covered([TARGET] * 4, 360)
    choice = policy_of(PolicyValues(strategy="threshold"), SIZES).choose(files, IDLE)
    assert choice.files == ()
    assert "delete up to 90% of the rows of 4 files" in choice.why
    assert "policy.delete_file_threshold" in choice.why
    by_number = PolicyValues(strategy="threshold", delete_file_threshold=1)
    assert policy_of(by_number, SIZES).choose(files, IDLE).files == files


@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize("as_old", [False, True])
def test_it_ends_also_where_each_run_does_a_part(at_once: int, as_old: bool) -> None:
    """`as_old`: the first outputs are as old as the deletes: these may apply to them, and have no row in them."""
    files, serial = covered([TARGET] * 4, 360), count(100)
    deletes = files[0].deletes
    for run in range(10):
        plan = planned(files, limits=GroupLimits(TARGET * at_once))
        if not plan.groups:
            assert run >= 1
            assert not any(file.deletes for file in files)
            return
        group = plan.groups[0]
        gone = {file.entry.path for file in group.files}
        outputs = tuple(
            LiveFile(
                data_file(next(serial), TARGET, records=RECORDS // 10).entry, deletes if as_old and not run else ()
            )
            for _ in group.tasks
        )
        files = (*(file for file in files if file.entry.path not in gone), *outputs)
    raise AssertionError("planning never ends")
