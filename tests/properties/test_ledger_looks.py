"""Looks of the ledger after one change of a table: walks and recounts agree, also in pieces and after expiry."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.types import IntegerType

from compactor.debt import ledger
from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import (
    LedgerStore,
    LedgerUpdate,
    advance,
)
from compactor.debt.table_changes import CommitTimes, Deltas, counts_of, live_counts
from compactor.debt.tiers import step_edges, step_of
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import FileSizes, file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.manifests.columns import EntryColumns
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.settings.policy import PolicyValues
from tests.ledger.recount import read
from tests.properties.examples import examples
from tests.properties.ledger_counts import DictionaryStore, counted_in, plain
from tests.properties.table_history import TableHistory

SIZES = st.lists(st.sampled_from([1, 10, 749, 750, 751, 1500, 1501, 10_000]), min_size=1, max_size=3)
TARGET = "write.target-file-size-bytes"
CHANGES: dict[str, Callable[[TableHistory], object]] = {
    "append": lambda history: history.table.append(history.rows(["a", "c"])),
    "overwrite": lambda history: history.table.overwrite(history.rows(["b"])),
    "overwrite one partition": lambda history: history.table.dynamic_partition_overwrite(history.rows(["a"])),
    "delete a partition": lambda history: history.table.delete("category = 'a'"),
    "delete rows": lambda history: history.table.delete("id = 0"),
    "delete all": lambda history: history.table.delete("true"),
    "delete files": lambda history: history.append_unreal("a", [1, 2], deletes=True),
    "another spec": lambda history: (history.change_spec(), history.append_unreal("a", [1])),
    "another target": lambda history: history.set_properties({TARGET: "2"}),
    "back": lambda history: history.table.manage_snapshots().rollback_to_snapshot(first_snapshot(history)).commit(),
    "back and on": lambda history: (CHANGES["back"](history), history.append_unreal("x", [9])),
    "table replaced": lambda history: history.remove_main(),
    "table recreated": lambda history: (history.recreate(), history.append_unreal("x", [9])),
}
REASONS = {
    "another target": "thresholds_changed",
    "back": "history_gap",
    "back and on": "history_gap",
    "table replaced": "history_gap",
    "table recreated": "table_replaced",
}


def first_snapshot(history: TableHistory) -> int:
    return history.table.snapshots()[0].snapshot_id


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_walk_and_a_recount_agree_after_every_kind_of_change(tmp_path: Path, change: str, merged: bool) -> None:
    history = TableHistory(tmp_path, 2)
    history.set_properties(
        {"commit.manifest-merge.enabled": str(merged).lower(), "commit.manifest.min-count-to-merge": "2"}
    )
    for _ in range(2):
        history.table.append(history.rows(["a", "a", "b"]))
    walked, recounted = DictionaryStore(), DictionaryStore()
    _look(history, walked)
    CHANGES[change](history)
    update = _look(history, walked, budget=50)
    _look(history, recounted, budget=50)
    view = history.view()
    sizes = file_sizes(PolicyValues(), view.properties)
    truth = read(view.metadata, view.io, view.snapshot).counts(sizes.target) if view.snapshot else {}
    for store in (walked, recounted):
        counted = {key: plain(counts) for key, counts in counted_in(store).items()}
        assert counted == truth
    assert update.snapshot_id == (view.snapshot.snapshot_id if view.snapshot else None)
    assert update.recount_reason == REASONS.get(change)


def test_main_removed_while_a_recount_is_under_way_is_not_the_end_of_counting(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2])
    history.append_unreal("b", [3])
    store = DictionaryStore()
    assert not _look(history, store, budget=1).counted
    history.remove_main()
    update = _look(history, store, budget=1)
    assert update.more
    update = _look(history, store, budget=1)
    assert (update.snapshot_id, update.more, update.totals) == (None, False, PartitionCounts())
    assert counted_in(store) == {}


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(st.tuples(st.sampled_from(["a", "b", "x"]), SIZES), min_size=1, max_size=6),
    files_per_look=st.integers(1, 6),
    budget=st.integers(1, 50),
)
def test_a_recount_in_pieces_equals_one_in_a_single_piece(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, list[int]]], files_per_look: int, budget: int
) -> None:
    history = TableHistory(tmp_path_factory.mktemp("pieces"), 2)
    for category, sizes in commits:
        history.append_unreal(category, sizes)
    whole, pieces = DictionaryStore(), DictionaryStore()
    expected = _look(history, whole, budget=50)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ledger, "FILES_PER_LOOK", files_per_look)
        looks = [_look(history, pieces, budget=budget)]
        while looks[-1].more:
            assert len(looks) <= len(commits), "every piece holds at least one manifest"
            looks.append(_look(history, pieces, budget=budget))
    assert [each.counted for each in looks] == [False] * (len(looks) - 1) + [True]
    most = max(files_per_look, *(len(sizes) for _, sizes in commits))
    counted = [each.totals.data_files for each in looks]
    assert all(after - before <= most for before, after in zip([0, *counted], counted, strict=False))
    assert (looks[-1].totals, looks[-1].snapshot_id) == (expected.totals, expected.snapshot_id)
    assert counted_in(pieces) == counted_in(whole)
    assert pieces.head() == whole.head()


def test_a_recount_whose_snapshot_expires_half_way_begins_anew(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2])
    history.append_unreal("b", [3])
    store = DictionaryStore()
    assert not _look(history, store, budget=1).counted
    halfway = history.table.current_snapshot()
    assert halfway is not None
    history.append_unreal("b", [4])
    history.table.maintenance.expire_snapshots().by_id(halfway.snapshot_id).commit()
    assert _look(history, store, budget=1).recount_reason == "history_gap"
    update = _look(history, store)
    assert (update.counted, update.more, update.totals.data_files) == (True, False, 4)


@pytest.mark.parametrize("names_its_parent", [True, False])
def test_expiry_of_the_counted_snapshot_needs_no_recount_while_its_child_names_it(
    tmp_path: Path, names_its_parent: bool
) -> None:
    """Iceberg's Java keeps the parent id of an expired parent, PyIceberg takes it out."""
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2])
    store = DictionaryStore()
    _look(history, store)
    history.append_unreal("b", [3])
    view = history.view()
    child = view.metadata.snapshots[-1]
    child = child if names_its_parent else child.model_copy(update={"parent_snapshot_id": None})
    expired = replace(view, metadata=view.metadata.model_copy(update={"snapshots": [child]}))
    sizes = file_sizes(PolicyValues(), view.properties)
    update = advance(expired, sizes, store, ManifestCache(2**24), manifest_budget=5)
    assert update.recount_reason == (None if names_its_parent else "history_gap")
    assert update.totals.data_files == 3


@pytest.mark.parametrize(
    ("by_nessie", "listed", "reason"),
    [(True, 1, "not_listed"), (False, 1, "history_gap"), (True, 2, "history_gap")],
)
def test_a_catalog_that_lists_the_newest_snapshot_alone_is_not_taken_for_one_whose_snapshots_expire(
    tmp_path: Path, by_nessie: bool, listed: int, reason: str
) -> None:
    """Nessie marks the metadata that it serves. `retain_last` 1 leaves one snapshot too, and is worth an alert."""
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2])
    history.append_unreal("a", [3])
    counting, counted = DictionaryStore(), DictionaryStore()
    assert not _look(history, counting, budget=1).counted
    _look(history, counted)
    for size in (4, 5, 6):
        history.append_unreal("b", [size])
    view = history.view()
    properties = {**view.metadata.properties, **({"nessie.catalog.content-id": "6f2a"} if by_nessie else {})}
    shown = {"snapshots": view.metadata.snapshots[-listed:], "properties": properties}
    alone = replace(view, metadata=view.metadata.model_copy(update=shown))
    sizes = file_sizes(PolicyValues(), view.properties)
    updates = [advance(alone, sizes, store, ManifestCache(2**24), manifest_budget=50) for store in (counted, counting)]
    assert [update.recount_reason for update in updates] == [reason, reason]
    assert [update.totals.data_files for update in updates] == [6, 6]
    assert [update.begun_anew for update in updates] == [0, 1]


def test_a_walk_over_many_commits_takes_as_many_looks_as_the_budget_says(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1])
    store = DictionaryStore()
    _look(history, store)
    for _ in range(5):
        history.append_unreal("a", [1])
    looks = [_look(history, store, budget=2) for _ in range(3)]
    assert [update.totals.data_files for update in looks] == [3, 5, 6]
    assert [update.more for update in looks] == [True, True, False]
    assert {update.recount_reason for update in looks} == {None}


def test_a_commit_to_a_branch_changes_nothing(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1])
    store = DictionaryStore()
    before = _look(history, store)
    history.table.manage_snapshots().create_branch(before.snapshot_id, "side").commit()
    history.append_unreal("a", [1], branch="side")
    after = _look(history, store)
    assert (after.snapshot_id, after.totals, after.partitions) == (before.snapshot_id, before.totals, {})
    assert (after.whole, after.recount_reason) == (False, None)


def _look(history: TableHistory, store: LedgerStore, budget: int = 5) -> LedgerUpdate:
    view = history.view()
    sizes = file_sizes(PolicyValues(), view.properties)
    return advance(view, sizes, store, ManifestCache(2**24), manifest_budget=budget)


@given(
    st.lists(
        st.tuples(st.sampled_from(Status), st.sampled_from(Content), st.integers(0, 2), st.integers(0, 2**40)),
        max_size=30,
    ),
    st.integers(0, 30),
    st.integers(1, 2**41),
)
def test_a_recount_is_the_sum_of_its_entries(
    rows: list[tuple[Status, Content, int, int]], cut: int, small_below: int
) -> None:
    """Counted in columns, over any manifests, as if entry by entry."""
    sizes, layout = FileSizes(2**41, small_below), PartitionLayout(0, ("bucket",), (IntegerType(),), (0,))
    entries = [
        FileEntry("m", status, 7 + bucket, number % 2, content, f"f{number}", "parquet", PartitionKey(0, f"[{bucket}]"),
                  (bucket,), number, size, None, False, (), None)
        for number, (status, content, bucket, size) in enumerate(rows)
    ]  # fmt: skip
    commits = CommitTimes({7: 1_000, 9: 3_000}, ((1, 2_000),))
    manifests = [EntryColumns.of("m", layout, part) for part in (entries[:cut], entries[cut:])]
    expected: Deltas = {}
    for entry in entries:
        if entry.is_live:
            counts = counts_of(entry, sizes, commits.written_ms(entry.snapshot_id, entry.data_sequence_number))
            expected[entry.key] = expected.get(entry.key, PartitionCounts()) + counts
    counted = live_counts(manifests, sizes, commits)
    assert counted == expected
    assert {key: each.changed_ms for key, each in counted.items()} == {
        key: each.changed_ms for key, each in expected.items()
    }


@given(st.integers(0, 2**45), st.integers(0, 2**45))
def test_the_edges_of_steps_are_where_steps_change(size: int, largest: int) -> None:
    edges = step_edges(largest)
    near = [each + by for each in edges for by in (-1, 0) if each + by >= 0]
    for each in [*near, min(size, largest)]:
        assert bisect_right(edges, each) - 1 == step_of(each)
