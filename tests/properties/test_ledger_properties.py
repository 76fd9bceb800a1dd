"""The ledger's counts equal a full recount at the snapshot they claim, whatever happened to the table (invariant 6)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactor.debt.board import PartitionCounts
from compactor.debt.ledger import (
    Head,
    LedgerStore,
    LedgerUpdate,
    advance,
    partitions_in,
    unpack,
)
from compactor.debt.table_changes import Deltas
from compactor.errors import RetryError
from compactor.iceberg.tables import FileSizes, TableView, file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.manifests.columns import EntryColumns
from compactor.partitions import PartitionKey
from compactor.settings.policy import PolicyValues
from compactor.storage.ledger_database import LedgerDatabase, TableState
from tests.properties.examples import examples
from tests.properties.ledger_counts import SIZES, TARGET, DictionaryStore, counted_in, plain
from tests.properties.table_history import TableHistory, true_counts

CATEGORIES = st.lists(st.sampled_from(["a", "b", "c", "ü·"]), min_size=1, max_size=4)
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
        counted = counted_in(store)
        assert {key: plain(counts) for key, counts in counted.items()} == truth
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


def _by_slot(store: LedgerStore) -> dict[int, dict[PartitionKey, PartitionCounts]]:
    """While a table is recounted in pieces, a partition is in the slot of each piece that has files of it."""
    return {number: dict(unpack(packed)) for number, packed in store.slots()}


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
