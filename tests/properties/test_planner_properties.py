"""What planner and policy promise for any files: nothing lost, nothing merged twice, healthy outputs, an end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactor.debt.board import PartitionCounts
from compactor.debt.tiers import near_target, output_count
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles, reads
from compactor.partitions import PartitionKey
from compactor.planning.delete_rules import DeleteRules, few_deletes
from compactor.planning.inventory import Inventory
from compactor.planning.planner import GroupLimits, Plan, make_plan, within_limits
from compactor.planning.policy import ThresholdPolicy
from compactor.planning.tiered_policy import policy_of
from compactor.settings.policy import PolicyValues
from tests.properties.planning import KEY, counted, data_file, delete_file, inventory_of, inventory_with

MEBIBYTE = 1024 * 1024
TARGET = 1000
NO_LIMIT = 10**12
SIZES = FileSizes(TARGET, 750)

small_sizes = st.integers(1, 749)
any_sizes = st.integers(0, 4000) | st.integers(200, 750)
deletes = st.lists(st.integers(1, 120), max_size=3)


@st.composite
def files(draw: st.DrawFn, sizes: st.SearchStrategy[int] = any_sizes, most: int = 40) -> tuple[LiveFile, ...]:
    made = []
    for number, size in enumerate(draw(st.lists(sizes, max_size=most))):
        with_deletes = draw(st.booleans()) and draw(st.booleans())
        made.append(data_file(number, size, draw(deletes) if with_deletes else []))
    return tuple(made)


@st.composite
def values(draw: st.DrawFn) -> PolicyValues:
    return PolicyValues(
        min_input_files=draw(st.integers(2, 8)),
        delete_file_threshold=draw(st.sampled_from([1, 2, 3, 2**31 - 1])),
        delete_ratio_threshold=draw(st.sampled_from([0.1, 0.3, 1.0])),
        max_file_group_size=draw(st.sampled_from([1, 700, 2500, 10_000, NO_LIMIT])),
    )


def policy(values: PolicyValues, target: int = TARGET, *, force: bool = False) -> ThresholdPolicy:
    return ThresholdPolicy(values, FileSizes(target, target * 3 // 4), force)


# --- output tasks ----------------------------------------------------------------------------------------------------


@given(files(), values(), st.sampled_from([1, 300, 1000, 5000]), st.booleans())
def test_the_files_of_a_task_are_in_arrival_order_and_no_file_is_in_two(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues, target: int, force: bool
) -> None:
    rules = policy(chosen_values, target, force=force)
    plan = make_plan(inventory_of(found), rules, GroupLimits(chosen_values.max_file_group_size))
    chosen = rules.choose(found).files
    position = {file.entry.path: number for number, file in enumerate(chosen)}
    tasks = [task for group in plan.groups for task in group.tasks]
    places = [position[file.entry.path] for task in tasks for file in task]
    assert len(places) == len(set(places))
    for task in tasks:
        assert list(task) == sorted(task, key=lambda file: position[file.entry.path])
        assert len(task) > 1 or task[0].deletes
    left_out = [file for file in chosen if position[file.entry.path] not in places]
    assert not DeleteRules(chosen_values, rules.sizes).heavy(left_out)
    assert bool(plan.groups) != (KEY in plan.unplanned) or not found


@given(files(), st.integers(1, 6), st.sampled_from([1, 700, 2500]), st.integers(0, 6))
def test_a_group_ends_only_where_the_next_file_does_not_fit(
    found: tuple[LiveFile, ...], most: int, limit: int, fitting: int
) -> None:
    """A group that the limit's last byte fills is full, and not before."""
    if found and fitting:
        limit = sum(file.size for file in found[:fitting])
    limits = GroupLimits(limit, files=most, single_files=True)
    plan = make_plan(inventory_of(found), ThresholdPolicy(PolicyValues(), FileSizes(1, 1), everything=True), limits)
    groups = [group.files for group in plan.groups]
    assert [file for group in groups for file in group] == list(found)
    assert all(len(group) <= most for group in groups)
    assert all(len(group) == 1 or sum(file.size for file in group) <= limit for group in groups)
    for group, following in pairwise(groups):
        assert len(group) == most or sum(file.size for file in (*group, following[0])) > limit


def many_partitions(sizes: list[list[int]]) -> Inventory:
    serial = count()
    found = {
        PartitionKey(0, f"[{number}]"): LiveFiles.of([data_file(next(serial), size) for size in each])
        for number, each in enumerate(sizes)
    }
    return inventory_with(found)


@given(st.lists(st.lists(small_sizes, max_size=12), max_size=8), st.integers(2, 20), st.integers(1, 9000))
def test_a_run_has_no_more_than_it_may_and_what_it_leaves_stays_due(
    sizes: list[list[int]], most_files: int, most_bytes: int
) -> None:
    inventory, rules = many_partitions(sizes), policy(PolicyValues(), force=True)
    whole = make_plan(inventory, rules, GroupLimits(NO_LIMIT))
    tasks = [task for group in whole.groups for task in group.tasks]
    for limits in (GroupLimits(NO_LIMIT, files_of_run=most_files), GroupLimits(NO_LIMIT, bytes_of_run=most_bytes)):
        plan = within_limits(make_plan(inventory, rules, limits), limits)
        taken = [task for group in plan.groups for task in group.tasks]
        for task in taken:
            (whole_task,) = [each for each in tasks if task[0] in each]
            assert task == whole_task[: len(task)]
            assert len(task) > 1 or task == whole_task
        assert bool(taken) == bool(tasks)
        if len(taken) > 1:
            assert sum(map(len, taken)) <= most_files or limits.files_of_run is None
            assert sum(group.bytes for group in plan.groups) <= most_bytes or limits.bytes_of_run is None
        assert plan.unplanned == whole.unplanned, "nothing that was cut off is called not due"


@pytest.mark.parametrize(("most_bytes", "taken"), [(219, 2), (220, 3), (279, 4), (280, 5), (290, 6)])
def test_delete_files_that_a_task_reads_count_in_its_bytes(most_bytes: int, taken: int) -> None:
    """Six files of 10 bytes; a delete file of 150 applies to all, one of 40 from the third on, one from the fifth."""
    shared = delete_file(1, 900, applies_to=None)._replace(size=150)
    own = [delete_file(1, 901 + number, applies_to=None)._replace(size=40) for number in range(2)]
    found = tuple(data_file(number, 10)._replace(deletes=(shared, *own[: number // 2])) for number in range(6))
    limits = GroupLimits(NO_LIMIT, bytes_of_run=most_bytes)
    plan = within_limits(make_plan(inventory_of(found), policy(PolicyValues(), force=True), limits), limits)
    assert [len(group.files) for group in plan.groups] == [taken]


@pytest.mark.parametrize(("most_requests", "taken"), [(9, 2), (10, 2), (11, 3), (12, 3), (13, 4)])
def test_delete_files_that_a_task_reads_count_in_its_requests(most_requests: int, taken: int) -> None:
    """Four files and a delete file of all: two requests for each of these and the output, and one for the bytes."""
    shared = delete_file(1, 900, applies_to=None)
    found = tuple(data_file(number, 10)._replace(deletes=(shared,)) for number in range(4))
    limits = GroupLimits(NO_LIMIT, requests_of_run=most_requests)
    plan = within_limits(make_plan(inventory_of(found), policy(PolicyValues(), force=True), limits), limits)
    assert [len(group.files) for group in plan.groups] == [taken]


def with_shared_deletes(files: int, deletes: int, bytes_of_each: int = 10) -> tuple[LiveFile, ...]:
    """Data files of 10 bytes, and delete files that apply to all of them."""
    shared = tuple(
        delete_file(1, 900 + number, applies_to=None)._replace(size=bytes_of_each) for number in range(deletes)
    )
    return tuple(data_file(number, 10)._replace(deletes=shared) for number in range(files))


def groups_of_one_run(found: Sequence[LiveFile], limits: GroupLimits) -> list[tuple[LiveFile, ...]]:
    """The files of each group that a run takes, of these and of a second partition with three."""
    other = tuple(data_file(number, 1) for number in range(10_000, 10_003))
    inventory = inventory_with(
        {PartitionKey(0, f"[{number}]"): LiveFiles.of(each) for number, each in enumerate((tuple(found), other))}
    )
    plan = within_limits(make_plan(inventory, policy(PolicyValues(), NO_LIMIT, force=True), limits), limits)
    return [group.files for group in plan.groups]


@pytest.mark.parametrize(
    ("deletes", "limits", "taken"),
    [
        (4, GroupLimits(NO_LIMIT, bytes_of_run=45), 4),
        (4, GroupLimits(NO_LIMIT, requests_of_run=11), 4),
        (4, GroupLimits(NO_LIMIT, requests_of_run=11, files_of_run=3), 3),
        (5, GroupLimits(NO_LIMIT, bytes_of_run=35), 5),
        (5, GroupLimits(NO_LIMIT, requests_of_run=10), 4),
        (5, GroupLimits(NO_LIMIT, bytes_of_run=35, files_of_run=3), 3),
        (1, GroupLimits(NO_LIMIT, bytes_of_run=15), 8),
        (1, GroupLimits(NO_LIMIT, bytes_of_run=15, files_of_run=3), 3),
    ],
    ids=[
        "as many bytes as are left",
        "as many requests as are left",
        "no more files than a run may take",
        "as many bytes as the deletes have",
        "as many requests as the deletes need",
        "no more files than a run may take, although the deletes have more bytes",
        "not even two files",
        "not even two files, and no more files than a run may take",
    ],
)
def test_where_delete_files_leave_no_room_the_first_task_is_cut(deletes: int, limits: GroupLimits, taken: int) -> None:
    """Beside the deletes it may read as much as the limits leave, or as much as the deletes if that is more."""
    assert list(map(len, groups_of_one_run(with_shared_deletes(8, deletes), limits))) == [taken]


def test_deletes_above_the_limit_are_not_read_again_for_every_few_files() -> None:
    """A hundred data files with 1,000 bytes, and deletes with as many, of a table whose runs may read 20."""
    waiting, read = with_shared_deletes(100, 10, bytes_of_each=100), 0
    while waiting:
        (taken,) = groups_of_one_run(waiting, GroupLimits(NO_LIMIT, bytes_of_run=20))
        read += reads(taken)[-1][2]
        waiting = waiting[len(taken) :]
    assert read == 2000


@given(
    st.lists(small_sizes, min_size=2, max_size=12),
    st.lists(st.integers(1, 2000), max_size=4),
    st.lists(st.integers(0, 500), min_size=12, max_size=12),
    st.integers(1, 4000),
)
def test_a_first_task_reads_at_most_what_is_left_or_as_much_as_its_deletes_beside_them(
    sizes: list[int], shared: list[int], own: list[int], most_bytes: int
) -> None:
    """Delete files that apply to all data files, and one for each."""
    of_all = tuple(
        delete_file(1, 900 + number, applies_to=None)._replace(size=size) for number, size in enumerate(shared)
    )
    found = tuple(
        data_file(number, size)._replace(
            deletes=(*of_all, delete_file(1, 2000 + number, applies_to=f"file-{number:04d}")._replace(size=own[number]))
        )
        for number, size in enumerate(sizes)
    )
    taken, *_ = groups_of_one_run(found, GroupLimits(NO_LIMIT, bytes_of_run=most_bytes))
    read = reads(found)
    _, _, of_two = read[1]
    deletes_of_two = of_two - sizes[0] - sizes[1]
    most = most_bytes if of_two <= most_bytes else deletes_of_two + max(deletes_of_two, most_bytes)
    fitting = sum(size <= most for _, _, size in read)
    assert len(taken) == (fitting if fitting > 1 else len(found))


def test_a_task_that_does_not_fit_beside_others_is_cut_and_not_left_for_good() -> None:
    """One partition gets five files between any two runs, the other has ninety-seven and a run may have a hundred."""
    inventory, rules = many_partitions([[10] * 5, [10] * 97]), policy(PolicyValues(), force=True)
    limits = GroupLimits(NO_LIMIT, files_of_run=100)
    plan = within_limits(make_plan(inventory, rules, limits), limits)
    assert [len(group.files) for group in plan.groups] == [5, 95]


@given(st.lists(st.lists(small_sizes, min_size=2, max_size=12), max_size=8))
def test_groups_come_in_the_order_asked_for(sizes: list[list[int]]) -> None:
    inventory, rules = many_partitions(sizes), policy(PolicyValues(), force=True)
    orders = {
        order: make_plan(inventory, rules, GroupLimits(NO_LIMIT, order=order)).groups
        for order in ("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc")
    }
    assert len({frozenset(group.key for group in groups) for groups in orders.values()}) == 1
    assert [group.key for group in orders["none"]] == sorted(group.key for group in orders["none"])
    for way, of in (("asc", 1), ("desc", -1)):
        assert [of * group.bytes for group in orders[f"bytes-{way}"]] == sorted(
            of * group.bytes for group in orders["none"]
        )
        assert [of * len(group.files) for group in orders[f"files-{way}"]] == sorted(
            of * len(group.files) for group in orders["none"]
        )


@given(files(), st.booleans())
def test_everything_is_everything(found: tuple[LiveFile, ...], single_files: bool) -> None:
    rules = policy_of(PolicyValues(), SIZES, everything=True)
    plan = make_plan(inventory_of(found), rules, GroupLimits(NO_LIMIT, single_files=single_files))
    taken = [file for group in plan.groups for file in group.files]
    if single_files:
        assert taken == list(found)
    assert set(taken) <= set(found)


@given(st.lists(st.integers(0, 4000), max_size=60), st.integers(1, 4000), st.integers(0, 900), st.integers(1, 2000))
def test_a_cut_loses_nothing_and_keeps_the_order(sizes: list[int], target: int, least: int, above: int) -> None:
    most = target + above
    runs = near_target(sizes, target, min(least, target), most)
    assert [place for start, end in runs for place in range(start, end)] == list(range(len(sizes)))
    assert all(end - start == 1 or sum(sizes[start:end]) <= most for start, end in runs)
    assert len(runs) <= max(len(sizes), 1)


# --- outputs ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 1000), st.sampled_from([1, 10**6, 10**12]))
@example(1_749, 1000, 1)
@example(1_750, 1000, 1)
def test_the_number_of_outputs_keeps_their_average_healthy(total: int, target: int, unit: int) -> None:
    total, target = total * unit, target * unit
    outputs = output_count(total, target)
    assert outputs >= 1
    assert total <= 1.75 * target * outputs
    assert outputs == 1 or total >= 0.875 * target * outputs


@given(st.lists(st.integers(1, 125), min_size=2, max_size=200))
@example([125] * 14)
@example([124] * 805)
def test_the_number_of_outputs_depends_on_bytes_and_target_alone(sizes: list[int]) -> None:
    """Where files are small enough to divide the bytes."""
    assert len(near_target(sizes, TARGET, 750, 1800)) == output_count(sum(sizes), TARGET)


@given(st.lists(small_sizes, min_size=2, max_size=80))
@example([740, 740, 80, 80, 80, 80, 80, 80, 80, 80, 80, 80, 740])
@example([740] * 12)
def test_outputs_are_healthy(sizes: list[int]) -> None:
    found = tuple(data_file(number, size) for number, size in enumerate(sizes))
    plan = make_plan(inventory_of(found), policy(PolicyValues(min_input_files=2)), GroupLimits(NO_LIMIT))
    outputs = [sum(file.size for file in task) for group in plan.groups for task in group.tasks]
    assert 1 <= len(outputs) <= output_count(sum(sizes), TARGET)
    assert max(outputs) <= 1.8 * TARGET
    assert sum(output < 0.75 * TARGET for output in outputs) <= 1


@given(files(most=30), values(), st.sampled_from(["tiered", "threshold"]), st.booleans(), st.booleans())
@example(
    tuple(data_file(number, 600, [5]) for number in range(5)), PolicyValues(max_file_group_size=700), "threshold",
    False, True,
)  # fmt: skip
def test_planning_again_ends_whether_outputs_hold_deleted_rows_or_not(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues, strategy: str, force: bool, carrying: bool
) -> None:
    rules = policy_of(chosen_values.model_copy(update={"strategy": strategy}), SIZES, force=force)
    limits, serial = GroupLimits(chosen_values.max_file_group_size), count(1000)

    def carries(_key: PartitionKey, some: Sequence[LiveFile]) -> bool:
        return carrying and few_deletes(some, chosen_values.most_carried)

    for _ in range(2 * len(found) + 4):
        plan = make_plan(inventory_of(found), rules, limits, carries=carries)
        if not plan.groups:
            return
        gone = {file.entry.path for group in plan.groups for file in group.files}
        outputs = [
            output_of(task, next(serial), carried=carries(group.key, group.files))
            for group in plan.groups
            for task in group.tasks
        ]
        assert len(outputs) < len(gone) or any(file.deletes for file in found)
        found = (*(file for file in found if file.entry.path not in gone), *outputs)
    raise AssertionError("planning never ends")


def output_of(task: Sequence[LiveFile], number: int, *, carried: bool) -> LiveFile:
    """The output of a task, which holds the deleted rows of its inputs or leaves them out."""
    rows = sum(file.entry.records for file in task)
    deleted = sum(delete.records for file in task for delete in file.deletes)
    if carried:
        return data_file(number, sum(file.size for file in task), [deleted] if deleted else [], rows)
    return data_file(number, sum(file.size for file in task), [], max(1, rows - deleted))


@pytest.mark.parametrize("strategy", ["tiered", "threshold"])
def test_files_that_no_group_joins_are_not_rewritten_for_deletes_that_their_outputs_would_hold(strategy: str) -> None:
    """Five files of 60 % of the target, 5 % of the rows of each deleted; a group holds one of them."""
    chosen_values = PolicyValues(strategy=strategy)
    rules = policy_of(chosen_values, SIZES)

    def carries(_key: PartitionKey, some: Sequence[LiveFile]) -> bool:
        return few_deletes(some, chosen_values.most_carried)

    def planned(*deleted: int) -> Plan:
        found = tuple(data_file(number, TARGET * 6 // 10, deleted) for number in range(5))
        return make_plan(inventory_of(found), rules, GroupLimits(TARGET), carries=carries)

    for deleted in ((5,), (2, 3)):
        assert planned(*deleted).groups == ()
    assert "no two in a row fit" in planned(5).unplanned[KEY]
    assert [len(group.files) for group in planned(30).groups] == [1] * 5, "the rows are left out"


# --- the policy, against Spark's filters ------------------------------------------------------------------------------


def spark_picks(found: tuple[LiveFile, ...], values: PolicyValues) -> tuple[LiveFile, ...]:
    """SizeBasedFileRewritePlanner and BinPackRewriteFilePlanner, without their splitting of files above 180 %."""

    def too_many_deletes(file: LiveFile) -> bool:
        return len(file.deletes) >= values.delete_file_threshold

    def too_high_delete_ratio(file: LiveFile) -> bool:
        known = sum(delete.records for delete in file.deletes if delete.applies_to is not None)
        ratio = min(known, file.entry.records) / file.entry.records
        return bool(file.deletes) and ratio >= values.delete_ratio_threshold

    def suboptimal(file: LiveFile) -> bool:
        return file.size < 0.75 * TARGET or too_many_deletes(file) or too_high_delete_ratio(file)

    group = tuple(file for file in found if suboptimal(file))
    total = sum(file.size for file in group)
    enough_input_files = len(group) > 1 and len(group) >= values.min_input_files
    enough_content = len(group) > 1 and total > TARGET
    deleted = any(too_many_deletes(file) or too_high_delete_ratio(file) for file in group)
    return group if enough_input_files or enough_content or deleted else ()


@given(files(), values())
def test_the_policy_picks_what_spark_picks(found: tuple[LiveFile, ...], chosen_values: PolicyValues) -> None:
    assert policy(chosen_values).choose(found).files == spark_picks(found, chosen_values)


@pytest.mark.parametrize(
    ("sizes", "due"), [([500, 500], False), ([500, 501], True), ([749], False), ([1, 1, 1, 1], False)]
)
def test_few_small_files_are_due_when_they_exceed_the_target_together(sizes: list[int], due: bool) -> None:
    found = tuple(data_file(number, size) for number, size in enumerate(sizes))
    rules = policy(PolicyValues(min_input_files=5))
    assert (bool(rules.choose(found).files), rules.judge(counted(found, SIZES)).due) == (due, due)


@given(files(), values())
def test_force_merges_any_two_small_files_and_nothing_else_more(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues
) -> None:
    plain = policy(chosen_values).choose(found).files
    forced = policy(chosen_values, force=True).choose(found).files
    assert not plain or forced == plain
    small = [file for file in found if file.size < 750]
    assert bool(forced) >= (len(small) >= 2)
    assert len(forced) != 1 or forced[0].deletes


@given(files(), values(), st.booleans())
def test_without_deletes_the_ledgers_judgement_is_the_plans(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues, force: bool
) -> None:
    plain = tuple(LiveFile(file.entry) for file in found)
    rules = policy(chosen_values, force=force)
    assert rules.judge(counted(plain, SIZES)).due == bool(rules.choose(plain).files)


@given(files(), values())
def test_the_ledger_overlooks_nothing_that_would_be_merged_for_its_size(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues
) -> None:
    rules = policy(chosen_values)
    small = tuple(file for file in found if file.size < 750)
    if policy(chosen_values).choose(tuple(LiveFile(file.entry) for file in small)).files:
        assert rules.judge(counted(found, SIZES)).due
        assert rules.choose(found).files


@given(files(), values())
def test_the_ledger_overlooks_no_file_with_too_many_delete_files_of_its_partition(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues
) -> None:
    if any(len(file.deletes) >= chosen_values.delete_file_threshold for file in found):
        assert policy(chosen_values).judge(counted(found, SIZES)).due


@given(files(), values())
def test_the_ledger_sees_a_high_delete_ratio_of_the_whole_partition(
    found: tuple[LiveFile, ...], chosen_values: PolicyValues
) -> None:
    """The ratio of one file is diluted by the partition's others: judge looks at the partition, choose at each file."""
    counts = counted(found, SIZES)
    if counts.records and counts.deleted_records / counts.records >= chosen_values.delete_ratio_threshold:
        assert policy(chosen_values).judge(counts).due
        if all(delete.applies_to for file in found for delete in file.deletes):
            per_file = [min(sum(d.records for d in file.deletes), file.entry.records) for file in found]
            counted_twice = sum(per_file) < counts.deleted_records
            assert counted_twice or policy(chosen_values).choose(found).files


@given(st.integers(750, 1800), st.integers(0, 300), st.integers(0, 100))
def test_one_file_of_many_deletes_in_a_large_partition_is_not_overlooked(size: int, others: int, deleted: int) -> None:
    """Rows of one size, as `data_file` has them only for files of one size."""
    heavy = data_file(0, size, [deleted] if deleted else [])
    found = (heavy, *(data_file(number, size) for number in range(1, others + 1)))
    rules = policy(PolicyValues())
    assert rules.choose(found).files == ((heavy,) if deleted >= 30 else ())
    if rules.choose(found).files:
        assert rules.judge(counted(found, SIZES)).due


def test_a_few_deletes_in_a_large_partition_are_not_due() -> None:
    found = tuple(data_file(number, 900, [1] if number < 20 else []) for number in range(100))
    assert not policy(PolicyValues()).judge(counted(found, SIZES)).due


@pytest.mark.parametrize("records", [0, 1])
def test_a_judgement_of_an_empty_partition_is_not_due(records: int) -> None:
    assert not policy(PolicyValues()).judge(PartitionCounts(records=records)).due


def test_position_deletes_without_a_named_file_are_not_in_a_files_ratio() -> None:
    everywhere = delete_file(100, 1, applies_to=None)
    assert data_file(0, 10).deleted_ratio == 0
    assert math.isclose(data_file(0, 10, [25]).deleted_ratio, 0.25)
    assert LiveFile(data_file(0, 10).entry, (everywhere,)).deleted_ratio == 0
