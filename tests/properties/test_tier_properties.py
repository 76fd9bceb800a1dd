"""What the tiered policy promises for any arrivals: bounded rewrites of a byte, few open files, healthy outputs."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactor.debt.board import PartitionCounts
from compactor.debt.tiers import longest_prefix, step_of
from compactor.iceberg.manifest_entries import Content
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.delete_rules import DeleteRules, saving
from compactor.planning.policy import ThresholdPolicy
from compactor.planning.tiered_policy import TieredPolicy, policy_of
from compactor.settings.policy import PolicyValues
from compactor.whatif.simulation import Arrival, Outcome, bursts, regular, replay
from tests.properties.examples import examples
from tests.properties.planning import counted, data_file, delete_file

TARGET = 1000
SIZES = FileSizes(TARGET, 750)
MEBIBYTE = 1024 * 1024
EQUALITY = Content.EQUALITY_DELETES
LARGE = FileSizes(512 * MEBIBYTE, 384 * MEBIBYTE)
GROWTHS = (1.5, 2.0, 3.0, 4.0, 8.0, 16.0)

arriving = st.lists(st.lists(st.integers(1, 749) | st.sampled_from([1, 1, 8, 64]), max_size=4), max_size=120)
sizes_of_files = st.lists(st.integers(1, 749), max_size=60)


def most_rewrites(arrival_size: int, target: int, growth: float) -> int:
    """The first bound: how often a byte that arrives in a file of this size can be rewritten by rules 1 and 2."""
    return math.ceil(math.log(target / arrival_size, growth) - 1e-9) if arrival_size < target else 0


def most_open_files(smallest: int, target: int, growth: float) -> float:
    """The second bound: how many small files can be left when neither rule applies."""
    return 1 + math.log(max(1.0, target / smallest), growth / (growth - 1))


def tiered(growth: float = 8.0, sizes: FileSizes = SIZES, **values: float) -> TieredPolicy:
    """Rules 1 and 2 as they are proved: user thresholds out of the way."""
    return TieredPolicy(PolicyValues(growth=growth, **{"min_input_files": 2, **values}), sizes)


def arrivals(commits: list[list[int]], interval: float = 60.0) -> list[Arrival]:
    return [Arrival(number * interval, {"": tuple(files)}) for number, files in enumerate(commits)]


# --- the bounds -------------------------------------------------------------------------------------------------------


@given(arriving, st.sampled_from(GROWTHS))
@example([[1]] * 120, 2.0)
@example([[374], [374], [374], [374], [2], [749], [749]], 8.0)
def test_no_byte_is_rewritten_more_often_than_the_bound(commits: list[list[int]], growth: float) -> None:
    """Every byte of the smallest arrival, and so of any: the bound grows as sizes shrink."""
    smallest = min((size for files in commits for size in files), default=1)
    outcome = replay(arrivals(commits), tiered(growth), SIZES.is_small)
    assert outcome.most_rewrites <= most_rewrites(smallest, TARGET, growth)


@given(arriving, st.sampled_from(GROWTHS))
@example([[1]] * 120, 8.0)
def test_few_small_files_are_open_whenever_the_policy_is_done(commits: list[list[int]], growth: float) -> None:
    smallest = min((size for files in commits for size in files), default=1)
    outcome = replay(arrivals(commits), tiered(growth), SIZES.is_small)
    assert outcome.most_small_files <= most_open_files(smallest, TARGET, growth) + 1e-9


@given(arriving, st.sampled_from(GROWTHS))
def test_a_replay_loses_no_byte(commits: list[list[int]], growth: float) -> None:
    outcome = replay(arrivals(commits), tiered(growth), SIZES.is_small)
    assert outcome.bytes_in == sum(size for files in commits for size in files)
    assert outcome.arrivals == len(commits)
    assert outcome.write_amplification <= outcome.most_rewrites


@given(sizes_of_files, st.sampled_from(GROWTHS))
def test_the_prefix_is_the_longest_that_pays(found: list[int], growth: float) -> None:
    ascending = sorted(found)
    paying = [n for n in range(2, len(found) + 1) if sum(ascending[:n]) >= growth * ascending[n - 1]]
    assert longest_prefix(ascending, growth) == max(paying, default=0)


@given(st.integers(1, 10**13))
def test_a_step_of_the_ladder_is_a_fifth_wide(size: int) -> None:
    step = step_of(size)
    assert 2 ** (step / 4) * (1 - 1e-9) <= size <= 2 ** ((step + 1) / 4) * (1 + 1e-9)


# --- settling ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 749), min_size=1, max_size=120))
def test_going_idle_after_every_commit_rewrites_a_byte_no_more_often_than_halving_says(found: list[int]) -> None:
    outcome = replay(arrivals([[size] for size in found], 7200), tiered(), SIZES.is_small, settle_after=3600)
    assert outcome.settling <= math.log2(TARGET / min(found)) + 1


@given(sizes_of_files)
def test_settling_leaves_out_a_file_larger_than_the_others_together(found: list[int]) -> None:
    files = tuple(data_file(number, size) for number, size in enumerate(found))
    rules = tiered(10**6, settle_after_seconds=10.0)
    busy, idle = rules.choose(files, 9.9).files, rules.choose(files, 10.0).files
    if sum(found) < TARGET:
        assert busy == ()
        assert not idle or 2 * max(file.size for file in idle) <= sum(file.size for file in idle)
        left = [file for file in files if file not in idle]
        assert len(left) < 2 or max(found) in [file.size for file in left] or not idle


def test_a_partition_at_rest_ends_with_few_files() -> None:
    outcome = replay(regular(7, [1], 0.1), tiered(settle_after_seconds=1), SIZES.is_small)
    assert outcome.small_files[-1] == 7
    late = [*regular(7, [1], 0.1), Arrival(100.0, {"other": (1,)})]
    assert replay(late, tiered(settle_after_seconds=1), SIZES.is_small, settle_after=1).small_files[-1] == 2


# --- outputs ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 749), min_size=2, max_size=80))
@example([600, 600, 600])
@example([370, 370, 740, 20])
@example([740] * 12)
def test_what_reaches_the_target_becomes_files_that_are_never_small_again(found: list[int]) -> None:
    runs = tiered().cut([data_file(number, size) for number, size in enumerate(found)])
    assert [start for start, _ in runs] == [0, *(end for _, end in runs)][: len(runs)]
    outputs = [sum(found[start:end]) for start, end in runs]
    rest = sum(found[runs[-1][1] :])
    if sum(found) >= TARGET:
        assert all(750 <= output <= 1800 for output in outputs)
        assert rest < 750
    else:
        assert len(outputs) == 1


# --- ledger and plan --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 1500), max_size=60),
    st.sampled_from(GROWTHS),
    st.sampled_from([0.0, 5000.0]),
    st.sampled_from([2, 5, 9]),
    st.sampled_from([None, 3, 20]),
)
@example([0, 0], 1.5, 0.0, 2, None)
def test_the_ledger_overlooks_nothing_that_the_plan_would_merge(
    found: list[int], growth: float, idle: float, least: int, most: int | None
) -> None:
    files = tuple(data_file(number, size) for number, size in enumerate(found))
    rules = TieredPolicy(PolicyValues(growth=growth, min_input_files=least, max_small_files=most), SIZES)
    if rules.choose(files, idle).files:
        assert rules.judge(counted(files, SIZES), idle).due
    assert rules.choose(files, idle).why
    assert rules.judge(counted(files, SIZES), idle).why


@given(
    st.lists(st.integers(0, 1500), max_size=40),
    st.lists(st.integers(0, 100), max_size=40),
    st.sampled_from(["tiered", "threshold"]),
    st.sampled_from([None, 3600.0]),
)
@example([72] * 7, [], "tiered", None)
@example([72] * 7, [], "tiered", 3600.0)
@example([2, 2], [1, 1, 1], "threshold", 3600.0)
def test_what_a_plan_declined_is_due_again_when_time_has_made_more_of_it(
    found: list[int], deleted: list[int], strategy: str, oldest: float | None
) -> None:
    """A plan's decision holds while the reason for being due is the same."""
    deletes = [deleted[number : number + 1] for number in range(len(found))]
    files = tuple(data_file(number, size, rows) for number, (size, rows) in enumerate(zip(found, deletes, strict=True)))
    values = PolicyValues(strategy=strategy, max_small_file_age_seconds=oldest)
    rules, counts = policy_of(values, SIZES), counted(files, SIZES)
    at_first, idle = rules.judge(counts), 10 * values.settle_after_seconds
    later = rules.judge(counts, idle)
    if not rules.choose(files).files and rules.choose(files, idle, lambda _: idle).files:
        assert later.due
        assert not at_first.due or at_first.why != later.why


def test_a_file_with_too_many_deletes_is_due_by_itself_and_small_ones_only_if_they_pay() -> None:
    heavy, light = data_file(0, 900, [40]), tuple(data_file(number, 20) for number in range(1, 4))
    assert tiered().choose((heavy, *light)).files == (heavy,)
    assert len(tiered(growth=3.0).choose((heavy, *light)).files) == 4


def upserts(commits: list[int]) -> list[Arrival]:
    return [Arrival(number * 5.0, {"": (size,)}, upserts=True) for number, size in enumerate(commits)]


@given(st.lists(st.integers(1, 6 * MEBIBYTE), min_size=1, max_size=60), st.sampled_from(GROWTHS))
@example([7168] * 60, 8.0)
@example([6 * MEBIBYTE] * 60, 8.0)
def test_deletes_cause_at_most_eight_mebibytes_of_rewriting_for_each_file_that_arrives(
    commits: list[int], growth: float
) -> None:
    outcome = replay(upserts(commits), tiered(growth, LARGE), LARGE.is_small)
    by_tiers = most_rewrites(min(commits), LARGE.target, growth) * sum(commits)
    assert outcome.bytes_rewritten <= by_tiers + 8 * MEBIBYTE * 2 * len(commits)


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 40 * MEBIBYTE), min_size=1, max_size=120), st.sampled_from(GROWTHS), st.booleans())
@example([40 * MEBIBYTE] * 120, 8.0, False)
@example([7168] * 120, 8.0, False)
def test_no_rewrite_beside_upserts_leaves_as_many_files_as_there_were(
    commits: list[int], growth: float, threshold: bool
) -> None:
    values = PolicyValues(growth=growth, min_input_files=2, strategy="threshold" if threshold else "tiered")
    assert replay(upserts(commits), policy_of(values, LARGE), LARGE.is_small).vain_rewrites == 0


@given(st.lists(st.integers(1, 64 * 1024), min_size=1, max_size=150))
@example([7168] * 150)
def test_equality_deletes_of_small_files_stay_at_the_threshold(commits: list[int]) -> None:
    outcome = replay(upserts(commits), TieredPolicy(PolicyValues(), LARGE), LARGE.is_small)
    assert outcome.most_delete_files <= PolicyValues().equality_delete_threshold


def small_files(*deleted: int) -> tuple[LiveFile, ...]:
    """Files of 7 KB and 100 rows each, of which so many are deleted by a vector of their own."""
    return tuple(data_file(number, 7168, [rows] if rows else []) for number, rows in enumerate(deleted))


def test_a_small_file_with_many_deletes_waits_until_rewriting_it_with_its_neighbours_pays() -> None:
    rules = TieredPolicy(PolicyValues(), LARGE)
    waiting = rules.choose(small_files(90))
    assert waiting.files == ()
    assert "do not pay for a commit yet" in waiting.why
    assert rules.choose(small_files(90, 0, 0)).files == ()
    doubling = [
        file._replace(entry=file.entry._replace(size=7168 << n)) for n, file in enumerate(small_files(*[90] * 12))
    ]
    assert longest_prefix([file.size for file in doubling], 8.0) == 0  # the tiers would wait for more
    assert rules.choose(doubling[:8]).files == ()
    assert rules.choose(doubling).files == tuple(doubling)


def test_a_small_file_with_many_deletes_goes_alone_where_no_writer_commits_any_more() -> None:
    rules = TieredPolicy(PolicyValues(settle_after_seconds=600), LARGE)
    assert rules.choose(small_files(90), 599.0).files == ()
    assert rules.choose(small_files(90), 600.0).files == small_files(90)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.sampled_from([0.0, 600.0]))
def test_the_ledger_overlooks_no_small_files_that_are_due_for_their_deletes(deleted: list[int], idle: float) -> None:
    found = small_files(*deleted)
    rules = TieredPolicy(PolicyValues(), LARGE)
    if rules.choose(found, idle).files:
        assert rules.judge(counted(found, LARGE), idle).due


@pytest.mark.parametrize("strategy", ["tiered", "threshold"])
def test_a_file_of_wide_rows_with_many_deletes_is_found_in_an_idle_partition(strategy: str) -> None:
    """The ledger knows rows and bytes of the partition, not of the file; a partition with commits may wait for them."""
    values = PolicyValues(strategy=strategy)
    rules, idle = policy_of(values, SIZES), values.settle_after_seconds
    wide = data_file(0, 900, [20], records=40)
    files = (wide, *(data_file(number, 900, records=100) for number in range(1, 9)))
    assert wide in rules.choose(files, idle).files
    assert rules.judge(counted(files, SIZES), idle).due
    assert not rules.judge(counted(files, SIZES), idle - 1).due
    few = (data_file(0, 900, [1], records=40), *files[1:])
    assert not rules.judge(counted(few, SIZES), idle).due


def test_more_delete_files_than_data_files_are_worth_a_look() -> None:
    rules = TieredPolicy(PolicyValues(), LARGE)
    assert rules.judge(PartitionCounts(1, 0, 10**9, 0, delete_files=2, records=10**6, deleted_records=2)).due
    assert not rules.judge(PartitionCounts(2, 0, 10**9, 0, delete_files=2, records=10**6, deleted_records=2)).due


@pytest.mark.parametrize(("size", "due_from"), [(7168, 10), (80 * MEBIBYTE, 10), (512 * MEBIBYTE, 64)])
def test_equality_deletes_make_a_file_due_the_later_the_larger_it_is(size: int, due_from: int) -> None:
    def with_deletes(count: int) -> list[LiveFile]:
        each = [delete_file(250, number, applies_to=None)._replace(content=EQUALITY) for number in range(count)]
        return [data_file(0, size)._replace(deletes=tuple(each))]

    rules = DeleteRules(PolicyValues(), LARGE)
    assert rules.slow_to_read(with_deletes(due_from - 1)) == frozenset()
    assert rules.slow_to_read(with_deletes(due_from)) == {0}


def with_equality_deletes(*sizes_and_counts: tuple[int, int]) -> list[LiveFile]:
    each = [delete_file(250, number, applies_to=None)._replace(content=EQUALITY) for number in range(100)]
    return [
        data_file(number, size)._replace(deletes=tuple(each[:count]))
        for number, (size, count) in enumerate(sizes_and_counts)
    ]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 80)), min_size=1, max_size=30),
    st.sampled_from([400, 512, 5000]),
)
def test_the_ledger_knows_the_most_that_a_plan_reads_of_large_files(
    deletes: list[tuple[int, int]], mebibytes: int
) -> None:
    """Of files of one size, each with a vector of its own and some of the equality deletes of all."""
    size = mebibytes * MEBIBYTE
    (shared,) = with_equality_deletes((size, 100))
    own = [data_file(number, size, [rows] if rows else []) for number, (rows, _) in enumerate(deletes, 1)]
    files = [
        file._replace(deletes=(*file.deletes, *shared.deletes[:equality]))
        for file, (_, equality) in zip(own, deletes, strict=True)
    ]
    counts = counted(files, LARGE)
    rules = TieredPolicy(PolicyValues(), LARGE)
    chosen = sum(file.size for file in rules.choose(files).files)
    assert chosen <= rules.judge(counts).large_bytes <= counts.data_bytes


def test_few_deletes_in_much_data_are_no_reason_to_expect_a_run_of_all_of_it() -> None:
    """Else each run of a large table with a few new deletes would wait for an hour in which nothing was read."""
    counts = PartitionCounts(2000, 20, 10**12, 10**9, 30, 10**9, deleted_records=3 * 10**6)
    rules = DeleteRules(PolicyValues(convert_equality_deletes=5), LARGE)
    assert (rules.judge(counts) is None, rules.large_bytes(counts)) == (False, 10**10)
    assert rules.large_bytes(PartitionCounts(2000, 20, 10**12, 10**9, 30, 10**9, equality_deletes=30)) == 0
    assert rules.large_bytes(PartitionCounts(20, 20, 10**9, 10**9, 30, 10**9, deleted_records=10**9)) == 0


def test_small_files_with_many_equality_deletes_do_not_take_large_ones_along() -> None:
    rules, large = DeleteRules(PolicyValues(), LARGE), 512 * MEBIBYTE
    assert rules.slow_to_read(with_equality_deletes((large, 12), (7168, 10), (7168, 6), (7168, 5))) == {1, 2}
    assert rules.slow_to_read(with_equality_deletes((large, 64), (large, 40), (large, 20), (7168, 40))) == {0, 1, 3}


def test_vectors_of_one_puffin_file_are_as_many_files_that_leave() -> None:
    files = [
        file._replace(deletes=tuple(each._replace(path="vectors", blob=(50 * number, 46)) for each in file.deletes))
        for number, file in enumerate(small_files(*[10] * 20))
    ]
    assert round(saving(files, frozenset(range(20)), outputs=1).saved) == 39


def test_a_global_equality_delete_counts_as_one_that_stays() -> None:
    (file,) = with_equality_deletes((7168, 10))
    elsewhere = file._replace(deletes=tuple(each._replace(key=PartitionKey(1, "[]")) for each in file.deletes))
    assert saving([file], frozenset({0}), outputs=1).saved == 10
    assert saving([elsewhere], frozenset({0}), outputs=1).saved == 0


@given(st.lists(st.integers(1, 1500), max_size=40), st.floats(0, 200), st.sampled_from(["tiered", "threshold"]))
def test_a_hot_partition_is_left_alone_until_it_has_cooled(found: list[int], idle: float, strategy: str) -> None:
    files = tuple(data_file(number, size) for number, size in enumerate(found))
    values = PolicyValues(strategy=strategy, skip_newer_than_seconds=100)
    rules, plain = policy_of(values, SIZES), policy_of(values.model_copy(update={"skip_newer_than_seconds": 0}), SIZES)
    if idle < 100:
        assert rules.choose(files, idle).files == ()
        assert not rules.judge(counted(files, SIZES), idle).due
    else:
        assert rules.choose(files, idle) == plain.choose(files, idle)
        assert rules.judge(counted(files, SIZES), idle) == plain.judge(counted(files, SIZES), idle)
    assert rules.cut(files) == plain.cut(files)
    assert (
        policy_of(values, SIZES, force=True).choose(files).files
        == policy_of(values.model_copy(update={"skip_newer_than_seconds": 0}), SIZES, force=True).choose(files).files
    )


# --- ten thousand commits ---------------------------------------------------------------------------------------------


def large(*, every: int = 0) -> Outcome:
    rules = ThresholdPolicy(PolicyValues(), LARGE) if every else tiered(8, LARGE, min_input_files=5)
    return replay(regular(10_000, [MEBIBYTE], 60.0), rules, LARGE.is_small, every=every or 1)


def test_ten_thousand_commits_of_a_megabyte_cost_less_than_3_bytes_a_byte() -> None:
    ours, often, seldom = large(), large(every=10), large(every=60)
    assert ours.write_amplification <= 2.73
    assert ours.mean_small_files <= 10.5
    assert ours.most_rewrites == 3
    assert often.write_amplification > 19
    assert 5 < often.mean_small_files < 6
    assert 29 < seldom.mean_small_files < 31


def test_bursts_are_settled_between_them() -> None:
    pattern = list(bursts(3000, [MEBIBYTE], 60, 30, 7200))
    outcome = replay(pattern, tiered(8, LARGE, min_input_files=5), LARGE.is_small, settle_after=3600)
    assert outcome.write_amplification + outcome.settling < 5
    assert outcome.bytes_settled


# --- the age of small files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["tiered", "threshold"])
def test_small_files_are_merged_once_the_oldest_is_too_old(strategy: str) -> None:
    """A commit of one file every ten minutes, each twice the last: nothing else makes them due."""
    sizes = [2**number for number in range(4)]
    values = PolicyValues(max_small_file_age_seconds=3600, strategy=strategy, growth=100, min_input_files=100)
    rules = policy_of(values, SIZES)
    files = [data_file(number, size) for number, size in enumerate(sizes)]
    for oldest, merged in ((3599.0, 0), (3600.0, 4)):
        ages = {file.entry.path: oldest - 600 * number for number, file in enumerate(files)}
        assert len(rules.choose(files, 0.0, lambda file, ages=ages: ages[file.entry.path]).files) == merged
    assert rules.choose(files[:1], 0.0, lambda _: 10**6).files == ()
    assert rules.choose(files).files == (), "of files of unknown age nothing is due"


def test_a_look_that_found_nothing_too_old_is_over_after_a_quarter_of_the_age() -> None:
    """The board lets a partition rest as long as its counts and the reason stand."""
    values = PolicyValues(max_small_file_age_seconds=3600)
    counts = PartitionCounts(2, 2, 2, 2, changed_ms=0)
    rules = policy_of(values, SIZES)
    found = [rules.judge(counts, idle) for idle in (0.0, 899.0, 900.0, 1800.0)]
    assert all(each.due for each in found)
    assert [each.why == found[0].why for each in found] == [True, True, False, False]
    assert not rules.judge(PartitionCounts(1, 1, 1, 1), 10**6).due


def test_the_replay_knows_the_age_of_files() -> None:
    arriving = [Arrival(600.0 * number, {"": (2**number,)}) for number in range(8)]
    outcome = replay(
        arriving, policy_of(PolicyValues(max_small_file_age_seconds=3600, growth=100), SIZES), SIZES.is_small
    )
    assert outcome.small_files == (1, 2, 3, 4, 5, 6, 1, 2)
