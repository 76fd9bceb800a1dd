"""The ledger's counts equal a full recount at the snapshot they claim, whatever happened to the table (invariant 6)."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.types import IntegerType

from compactor.debt import ledger
from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import (
    DictionaryStore,
    Head,
    LedgerStore,
    LedgerUpdate,
    advance,
    partitions_in,
    unpack,
)
from compactor.debt.table_changes import CommitTimes, Deltas, counts_of, live_counts
from compactor.debt.tiers import step_edges, step_of
from compactor.errors import RetryError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import FileSizes, TableView, file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.manifests.columns import EntryColumns
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.settings.policy import PolicyValues
from compactor.storage.ledger_database import LedgerDatabase, TableState
from tests.properties.examples import examples
from tests.properties.table_history import TableHistory, true_counts

CATEGORIES = st.lists(st.sampled_from(["a", "b", "c", "ü·"]), min_size=1, max_size=4)
SIZES = st.lists(st.sampled_from([1, 10, 749, 750, 751, 1500, 1501, 10_000]), min_size=1, max_size=3)
TARGET = "write.target-file-size-bytes"
TARGETS = ("1000", "2000")


class FailingCache(ManifestCache):
    """Reads `good` times, then the store is out of reach."""

    def __init__(self, good: int) -> None:
        super().__init__(2**24)
        self._good = good

    def read(self, table: TableView, manifests: Any, **options: Any) -> list[EntryColumns]:
        self._good -= 1
        if self._good < 0:
            raise RetryError("the store does not answer")
        return super().read(table, manifests, **options)


class Board:
    """Partitions with debt as a reader of the updates knows them; None until a whole report has come."""

    def __init__(self) -> None:
        self.known: Deltas | None = None

    def hear(self, update: LedgerUpdate, store: LedgerStore) -> None:
        if not update.counted:
            return
        if update.whole:
            assert update.partitions == {}, "a whole update says: read the store"
            self.known = dict(partitions_in(store))
        if self.known is not None:
            self.known = {**self.known, **update.partitions}
            self.known = {key: counts for key, counts in self.known.items() if counts.has_debt}


@contextmanager
def opening_no_unreal_file() -> Iterator[None]:
    """Some changes must open data files, and those that live in metadata alone cannot be: then nothing is committed."""
    try:
        yield
    except FileNotFoundError as missing:
        assert "/nowhere/" in str(missing)  # noqa: PT017 - any other missing file is a failure


class LedgerMachine(RuleBasedStateMachine):
    """Commits of every kind, with looks of the ledger at random moments in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.dictionary = DictionaryStore()
        self.database = LedgerDatabase(self.folder / "ledger.sqlite")
        self.boards = (Board(), Board())

    @property
    def stores(self) -> tuple[LedgerStore, ...]:
        """The second one as each look gets it: what the last look saved, from the disk."""
        return self.dictionary, self.database.state("t")

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(format_version=st.sampled_from([1, 2]))
    def create(self, format_version: int) -> None:
        self.history = TableHistory(self.folder, format_version)
        self.history.set_properties({TARGET: TARGETS[0]})
        self.history.table.append(self.history.rows(["a", "a", "b", "c"]))

    # --- what happens to the table ------------------------------------------------------------------------------------

    @precondition(lambda self: self.history.takes_rows)
    @rule(categories=CATEGORIES)
    def append(self, categories: list[str]) -> None:
        self.history.table.append(self.history.rows(categories))

    @rule(category=st.sampled_from("abx"), sizes=SIZES)
    def append_unreal(self, category: str, sizes: list[int]) -> None:
        self.history.append_unreal(category, sizes)

    @precondition(lambda self: self.history.table.format_version > 1)
    @rule(sizes=SIZES)
    def append_delete_files(self, sizes: list[int]) -> None:
        self.history.append_unreal("nothing else", sizes, deletes=True)

    @precondition(lambda self: self.history.takes_rows)
    @rule(categories=CATEGORIES, where=st.sampled_from([None, "category = 'a'", "category = 'b'", "id < 1000000"]))
    def overwrite(self, categories: list[str], where: str | None) -> None:
        rows = self.history.rows(categories)
        with opening_no_unreal_file():
            if where:
                self.history.table.overwrite(rows, overwrite_filter=where)
            else:
                self.history.table.overwrite(rows)

    @precondition(lambda self: self.history.takes_rows and self.history.table.spec().fields)
    @rule(categories=CATEGORIES)
    def overwrite_partitions(self, categories: list[str]) -> None:
        with opening_no_unreal_file():
            self.history.table.dynamic_partition_overwrite(self.history.rows(categories))

    @rule(where=st.sampled_from(["category = 'a'", "category = 'x'", "id >= 1000000", "true"]))
    def delete_files(self, where: str) -> None:
        with opening_no_unreal_file():
            self.history.table.delete(where)

    @precondition(lambda self: self.history.takes_rows)
    @rule(remainder=st.integers(0, 20))
    def delete_rows(self, remainder: int) -> None:
        with opening_no_unreal_file():
            self.history.table.delete(f"id = {remainder}")

    @rule(name=st.sampled_from(["category", "shard", "day", "shard_bucket", "day_day"]))
    def change_spec(self, name: str) -> None:
        self.history.change_spec(name)

    @rule(number=st.integers(0, 10**9))
    def change_schema(self, number: int) -> None:
        with self.history.table.update_schema() as update:
            if "note" in self.history.table.schema().column_names:
                update.delete_column("note")
            else:
                update.add_column("note", self.history.table.schema().find_type("category"), doc=str(number))

    @precondition(lambda self: self.history.table.snapshots())
    @rule(data=st.data())
    def move_main(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from([snapshot.snapshot_id for snapshot in self.history.table.snapshots()]))
        self.history.table.manage_snapshots().set_current_snapshot(chosen).commit()

    @precondition(lambda self: self.history.table.snapshots())
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        table = self.history.table
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in kept]
        if old:
            chosen = data.draw(st.lists(st.sampled_from(old), unique=True, min_size=1))
            table.maintenance.expire_snapshots().by_ids(chosen).commit()

    @precondition(lambda self: self.history.table.current_snapshot())
    @rule(sizes=SIZES)
    def commit_to_branch(self, sizes: list[int]) -> None:
        table = self.history.table
        if "side" not in table.metadata.refs:
            table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
        self.history.append_unreal("b", sizes, branch="side")

    @precondition(lambda self: "side" in self.history.table.metadata.refs)
    @rule()
    def publish_branch(self) -> None:
        side = self.history.table.metadata.refs["side"].snapshot_id
        self.history.table.manage_snapshots().set_current_snapshot(side).commit()

    @precondition(lambda self: self.history.table.current_snapshot())
    @rule(all_over=st.integers(0, 3))
    def start_anew(self, all_over: int) -> None:
        """Seldom, as it ends the history so far: the table is replaced or recreated under its name."""
        if all_over == 0:
            self.history.remove_main()
        elif all_over == 1:
            self.history.recreate()
            self.history.set_properties({TARGET: TARGETS[0]})

    @rule(size=st.sampled_from(TARGETS))
    def change_target(self, size: str) -> None:
        self.history.set_properties({TARGET: size})

    @rule(merge=st.booleans())
    def merge_manifests(self, merge: bool) -> None:
        self.history.set_properties(
            {"commit.manifest-merge.enabled": str(merge).lower(), "commit.manifest.min-count-to-merge": "2"}
        )

    # --- looks of the ledger ------------------------------------------------------------------------------------------

    @rule(budget=st.integers(1, 5), looks=st.integers(1, 3))
    def look(self, budget: int, looks: int) -> None:
        for _ in range(looks):
            self._advance(budget)

    @rule()
    def restart(self) -> None:
        """The state comes from the disk; what the board knew is gone, until somebody reads the whole store."""
        self.database.close()
        self.database = LedgerDatabase(self.folder / "ledger.sqlite")

    @rule(budget=st.integers(1, 5))
    def look_until_done(self, budget: int) -> None:
        for _ in range(200):
            if not self._advance(budget).more:
                return
        raise AssertionError("the ledger never ends")

    @rule(budget=st.integers(1, 5), good=st.integers(0, 2))
    def look_while_the_store_fails(self, budget: int, good: int) -> None:
        """A look that fails half way leaves the saved state as it was; the dictionary may have been cleared."""
        view, sizes = self._now()
        saved = _saved(self.database)
        for store, board in zip(self.stores, self.boards, strict=True):
            try:
                update = advance(view, sizes, store, FailingCache(good), manifest_budget=budget)
            except RetryError:
                assert _saved(self.database) == saved
                continue
            if isinstance(store, TableState):
                store.save()
            board.hear(update, store)
        self.dictionary = _copied(self.database.state("t"))  # as if it had been saved too

    def _now(self) -> tuple[TableView, FileSizes]:
        view = self.history.view()
        return view, file_sizes(PolicyValues(), view.properties)

    def _advance(self, budget: int) -> LedgerUpdate:
        view, sizes = self._now()
        stores = self.stores
        first, second = (advance(view, sizes, store, ManifestCache(2**24), manifest_budget=budget) for store in stores)
        assert first == second
        for store, board, update in zip(stores, self.boards, (first, second), strict=True):
            if isinstance(store, TableState):
                store.save()
            board.hear(update, store)
            if update.counted:
                self._check(view, sizes, store, board, update)
            else:
                assert update.more
        current = view.snapshot.snapshot_id if view.snapshot else None
        assert first.more or first.snapshot_id == current
        return first

    def _check(self, view: TableView, sizes: FileSizes, store: LedgerStore, board: Board, update: LedgerUpdate) -> None:
        truth = true_counts(view, update.snapshot_id, sizes.small_below)
        counted = _counted(store)
        assert {key: _plain(counts) for key, counts in counted.items()} == truth
        assert update.totals == sum(counted.values(), PartitionCounts())
        head = Head.from_json(store.head() or "")
        assert head.snapshot_id == update.snapshot_id
        assert head.recount is None
        assert head.totals == update.totals
        if board.known is not None:
            assert board.known == {key: counts for key, counts in counted.items() if counts.has_debt}

    @invariant()
    def stores_agree(self) -> None:
        first, second = self.stores
        assert first.head() == second.head()
        assert _by_slot(first) == _by_slot(second)


def _plain(counts: PartitionCounts) -> tuple[Any, ...]:
    """Everything but the time of the last change, which is no count."""
    *numbers, _changed_ms, equality_deletes = counts.to_list()
    return (*numbers, equality_deletes)


def _by_slot(store: LedgerStore) -> dict[int, dict[PartitionKey, PartitionCounts]]:
    """While a table is recounted in pieces, a partition is in the slot of each piece that has files of it."""
    return {number: dict(unpack(packed)) for number, packed in store.slots()}


def _counted(store: LedgerStore) -> dict[PartitionKey, PartitionCounts]:
    pairs = [pair for _, packed in store.slots() for pair in unpack(packed)]
    assert len(pairs) == len({key for key, _ in pairs}), "a partition is kept in two slots"
    return dict(pairs)


def _saved(database: LedgerDatabase) -> tuple[str | None, dict[int, bytes]]:
    return database.head("t"), database.slots("t")


def _copied(store: LedgerStore) -> DictionaryStore:
    copy = DictionaryStore()
    head = store.head()
    if head is not None:
        copy.put_head(head)
    for number, packed in store.slots():
        copy.put_slot(number, packed)
    return copy


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=examples(30),
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


CHANGES: dict[str, Callable[[TableHistory], object]] = {
    "append": lambda history: history.table.append(history.rows(["a", "c"])),
    "overwrite": lambda history: history.table.overwrite(history.rows(["b"])),
    "overwrite one partition": lambda history: history.table.dynamic_partition_overwrite(history.rows(["a"])),
    "delete a partition": lambda history: history.table.delete("category = 'a'"),
    "delete rows": lambda history: history.table.delete("id = 0"),
    "delete all": lambda history: history.table.delete("true"),
    "delete files": lambda history: history.append_unreal("a", [1, 2], deletes=True),
    "another spec": lambda history: (history.change_spec("shard_bucket"), history.append_unreal("a", [1])),
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
    for store in (walked, recounted):
        counted = {key: _plain(counts) for key, counts in _counted(store).items()}
        assert counted == true_counts(view, update.snapshot_id, sizes.small_below)
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
    assert _counted(store) == {}


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
    assert _counted(pieces) == _counted(whole)
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
