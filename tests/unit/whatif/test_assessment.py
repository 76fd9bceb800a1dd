"""What a history cost: as it was, by the files that came and went; otherwise, by replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from compactor.iceberg.tables import FileSizes
from compactor.iceberg.writers import UNKNOWN
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.planning.tiered_policy import TieredPolicy, policy_of
from compactor.settings.policy import PolicyValues
from compactor.whatif.assessment import Prices, as_it_was, assess
from compactor.whatif.table_history import Commit, commits_of
from tests.properties.table_history import TableHistory

if TYPE_CHECKING:
    from pathlib import Path

MEBIBYTE = 1024 * 1024
SIZES = FileSizes(512 * MEBIBYTE, 384 * MEBIBYTE)
KEY = PartitionKey(0, "[]")
VALUES = PolicyValues(min_input_files=5)


def append(at: float, *sizes: int) -> Commit:
    return Commit(at, rewrite=False, writer=UNKNOWN, added={KEY: sizes}, removed={})


def rewrite(at: float, removed: tuple[int, ...], *added: int) -> Commit:
    return Commit(at, rewrite=True, writer=UNKNOWN, added={KEY: added}, removed={KEY: removed})


def test_as_it_was_counts_what_rewrites_took_and_what_was_left_after_each_commit() -> None:
    history = [append(0, 10), append(60, 10), rewrite(61, (10, 10), 20), append(120, 10)]
    outcome = as_it_was(history, SIZES)
    assert outcome.small_files == (1, 1, 2)
    assert (outcome.bytes_in, outcome.bytes_rewritten, outcome.rewrites) == (30, 20, 1)
    assert (outcome.files_rewritten, outcome.files_written, outcome.files) == (2, 1, 2)


def test_files_from_before_the_history_are_in_nobodys_bill() -> None:
    outcome = as_it_was([append(0, 10), rewrite(1, (99, 98), 197), append(60, 10)], SIZES)
    assert (outcome.bytes_rewritten, outcome.rewrites, outcome.small_files) == (0, 0, (1, 2))


def test_deletes_by_writers_are_no_rewrites() -> None:
    removed = Commit(30, rewrite=False, writer=UNKNOWN, added={}, removed={KEY: (10,)})
    outcome = as_it_was([append(0, 10), removed, append(60, 10)], SIZES)
    assert (outcome.bytes_rewritten, outcome.small_files, outcome.bytes_in) == (0, (1, 1), 20)


def test_a_cron_and_firnline_are_replayed_beside_it() -> None:
    history = [append(60.0 * number, MEBIBYTE) for number in range(600)]
    was, cron, ours = assess(history, VALUES, SIZES, TieredPolicy(VALUES, SIZES), [10])
    assert was.outcome.mean_small_files == pytest.approx(300.5)
    assert was.rewritten == 0
    assert ours.rewritten < cron.rewritten / 4
    assert ours.outcome.mean_small_files < 12
    assert was.days == pytest.approx(599 * 60 / 86_400)


def test_what_has_gone_idle_is_found_by_the_next_sweep_or_commit() -> None:
    """Five equal files wait for three more; ten minutes later they are idle, and a sweep every 300 s sees it."""
    first = [append(60.0 * number, MEBIBYTE) for number in range(5)]
    policy, other = TieredPolicy(PolicyValues(), SIZES), PartitionKey(0, "[1]")

    def small_files(pause: float, sweep: float, key: PartitionKey = KEY) -> int:
        again = Commit(240 + pause, rewrite=False, writer=UNKNOWN, added={key: (1,)}, removed={})
        return assess([*first, again], PolicyValues(), SIZES, policy, [], sweep)[-1].last_small_files

    assert [small_files(pause, 0.0) for pause in (599, 600)] == [6, 2]
    assert [small_files(pause, 300.0) for pause in (600, 659, 660)] == [6, 6, 2]  # sweeps at 600 s and 900 s
    assert [small_files(pause, 300.0, other) for pause in (599, 600)] == [6, 2]


@pytest.mark.parametrize("seconds", [0, 300, 900])
def test_partitions_that_are_skipped_while_they_are_new_are_rewritten_later(seconds: float) -> None:
    """50 bursts of 20 commits with two idle hours in between, each to a partition of its own."""
    values = PolicyValues(skip_newer_than_seconds=seconds)
    history = [
        Commit(8400.0 * burst + 60.0 * number, rewrite=False, writer=UNKNOWN, removed={},
               added={PartitionKey(0, f"[{burst}]"): (MEBIBYTE,)})
        for burst in range(50) for number in range(20)
    ]  # fmt: skip
    ours = assess(history, values, SIZES, policy_of(values, SIZES), [], 300.0)[-1]
    assert ours.outcome.rewrites >= 49
    assert ours.outcome.files < 50 * 8
    assert ours.last_small_files == ours.outcome.files


def test_a_partition_that_is_never_idle_for_so_long_is_not_rewritten() -> None:
    values = PolicyValues(skip_newer_than_seconds=900)
    history = [append(60.0 * number, MEBIBYTE) for number in range(600)]
    ours = assess(history, values, SIZES, policy_of(values, SIZES), [])[-1]
    assert (ours.outcome.rewrites, ours.outcome.files) == (0, 600)


def test_between_new_and_idle_the_tiers_decide() -> None:
    """A commit each 400 s: never idle, but no longer new after 300 s."""
    values = PolicyValues(skip_newer_than_seconds=300)
    history = [append(400.0 * number, MEBIBYTE) for number in range(100)]
    ours = assess(history, values, SIZES, policy_of(values, SIZES), [])[-1].outcome
    assert ours.rewrites >= 10
    assert (ours.bytes_settled, ours.bytes_rewritten) == (0, ours.bytes_rewritten)
    assert ours.most_rewrites >= 1


def test_a_bill_adds_up_requests_bytes_and_scans() -> None:
    history = [append(0, MEBIBYTE), append(86_400, MEBIBYTE)]
    was, ours = assess(history, VALUES, SIZES, TieredPolicy(VALUES, SIZES, force=True), [])
    assert was.cost(Prices(get_per_1000=1.0)) == 0
    assert was.cost(Prices(get_per_1000=1.0, full_scans_per_day=100.0)) == pytest.approx(2 * 1.5 * 100 / 1000)
    assert (ours.gets, ours.puts) == (4, 3)
    assert ours.cost(Prices(get_per_1000=1.0)) == pytest.approx(0.004)
    assert ours.cost(Prices(put_per_1000=1.0)) == pytest.approx(0.003)
    assert ours.cost(Prices(rewrite_per_gb=1024.0)) == pytest.approx(2.0)


def test_an_empty_history_costs_nothing() -> None:
    was, ours = assess([], VALUES, SIZES, TieredPolicy(VALUES, SIZES), [])
    assert (was.rewritten, ours.rewritten, ours.outcome.mean_small_files) == (0, 0, 0.0)


def test_commits_are_read_from_the_tables_own_snapshots(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2])
    history.append_unreal("b", [3])
    view = history.view()
    found = commits_of(view, ManifestCache(1 << 20))
    assert [sorted(size for sizes in commit.added.values() for size in sizes) for commit in found] == [[1, 2], [3]]
    assert not any(commit.rewrite or commit.removed for commit in found)
    assert [commit.at for commit in found] == [each.timestamp_ms / 1000 for each in view.metadata.snapshots]
    assert len(commits_of(view, ManifestCache(1 << 20), most=1)) == 1
