"""One run reaches the state that no further run changes, for any sizes, counts and options, under both strategies."""

from __future__ import annotations

from itertools import count

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile
from compactor.planning.planner import GroupLimits, Plan, make_plan
from compactor.planning.policy import Policy
from compactor.planning.tiered_policy import policy_of
from compactor.settings.policy import PolicyValues
from tests.properties.examples import examples
from tests.properties.planning import KEY, after, data_file, inventory_of

TARGET = 1000
NO_LIMIT = 10**12
IDLE = 10.0**6

Found = tuple[LiveFile, ...]


def found_of(*sizes: int) -> Found:
    return tuple(data_file(number, size) for number, size in enumerate(sizes))


def planned(found: Found, rules: Policy, limit: int = NO_LIMIT, *, idle: bool = False) -> Plan:
    """`idle`: the files have lain for long, else they were written just now. Commits of the table are unknown."""
    return make_plan(inventory_of(found), rules, GroupLimits(limit), IDLE if idle else 0.0)


def sizes_after_one_run(found: Found, rules: Policy) -> list[int]:
    return sorted(file.size for file in after(found, planned(found, rules), count(1000)))


alike = st.builds(lambda size, files: [size] * files, st.integers(1, 999), st.integers(2, 40))
mixed = st.lists(
    st.integers(600, 749) | st.integers(1, 2500) | st.sampled_from([0, 10, 333, 500, 749, 750]), max_size=40
)


@settings(max_examples=examples(2400))
@given(
    alike | mixed,
    st.sampled_from(["tiered", "threshold"]),
    st.sampled_from([1, 300, 750, 900]),
    st.integers(2, 8),
    st.sampled_from([1.5, 3.0, 8.0]),
    st.sampled_from([700, 1000, 2500, 10_000, NO_LIMIT]),
    st.booleans(),
    st.booleans(),
)
@example([740] * 12, "threshold", 750, 5, 8.0, NO_LIMIT, False, False)
@example([740] * 12, "tiered", 750, 5, 8.0, NO_LIMIT, False, False)
@example([740] * 7 + [10] * 30, "tiered", 750, 5, 8.0, NO_LIMIT, True, False)
@example([1] * 8 + [3, 20], "tiered", 750, 5, 8.0, NO_LIMIT, False, True)
@example([300] * 5, "threshold", 750, 5, 8.0, 700, False, False)
def test_a_second_run_finds_nothing_to_do(
    sizes: list[int], strategy: str, least: int, fewest: int, growth: float, limit: int, force: bool, idle: bool
) -> None:
    values = PolicyValues(strategy=strategy, min_input_files=fewest, growth=growth)
    rules = policy_of(values, FileSizes(TARGET, least), force=force)
    found, serial = found_of(*sizes), count(1000)
    plan = planned(found, rules, limit, idle=idle)
    outcome = after(found, plan, serial)
    assert planned(outcome, rules, limit, idle=idle).groups == ()
    assert sum(file.size for file in outcome) == sum(sizes)
    for group in plan.groups:
        assert group.bytes <= limit
        for task in group.tasks:
            assert len(task) > 1
            assert sum(file.size for file in task) <= 1800


@settings(max_examples=examples(800))
@given(st.lists(st.integers(600, 749), min_size=2, max_size=60), st.sampled_from(["tiered", "threshold"]))
def test_files_of_60_to_75_percent_become_pairs_in_one_run(sizes: list[int], strategy: str) -> None:
    """Two of them are within 180 % of the target, three are not."""
    rules = policy_of(PolicyValues(strategy=strategy), FileSizes(TARGET, 750))
    outcome = sizes_after_one_run(found_of(*sizes), rules)
    assert len(outcome) <= (len(sizes) + 1) // 2
    assert sum(size < 750 for size in outcome) <= len(sizes) % 2


def test_thresholds_count_in_each_file_group_and_not_in_the_partition() -> None:
    """As in Spark: six files of a partition, of which a file group holds three or five, are due from three or five."""
    found = found_of(*[50] * 6)
    for fewest, limit, groups in [(3, 150, [3, 3]), (4, 150, []), (5, 250, [5]), (6, 250, []), (6, 300, [6])]:
        rules = policy_of(PolicyValues(strategy="threshold", min_input_files=fewest), FileSizes(TARGET, 750))
        plan = planned(found, rules, limit)
        assert [len(group.files) for group in plan.groups] == groups
        if not groups:
            assert "is due by itself" in plan.unplanned[KEY]


def test_a_group_with_too_many_deletes_is_due_and_one_beside_it_is_not() -> None:
    found = (data_file(0, 400, [40]), data_file(1, 400), data_file(2, 400), data_file(3, 400))
    rules = policy_of(PolicyValues(strategy="threshold"), FileSizes(TARGET, 750))
    assert [group.files for group in planned(found, rules, 800).groups] == [found[:2]]
