"""From a table's counts to its entry on the debt board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import IntegerType

from compactor.debt.board import DebtBoard, PartitionCounts, TableDebt
from compactor.debt.ledger import LedgerUpdate, pack, slot_of, unpack
from compactor.errors import RetryError
from compactor.events import Event, PartitionsSkipped, SkippedPartition
from compactor.iceberg.other_compactors import OtherCompactor
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.planning.delete_rules import DeleteRules
from compactor.planning.partition_judge import PartitionJudge
from compactor.planning.policy import AgeOf, Choice, Judgement, unknown_age
from compactor.settings.policy import PolicyValues
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.ledger.board_writer import BoardWriter, Counted, TableFacts
from tests.properties.ledger_counts import DictionaryStore
from tests.unit.streaming.ledger.scene import named

TABLE, OTHER = named("t"), named("o.ther")
LAYOUT = PartitionLayout(0, ("p",), (IntegerType(),), ())
CHANGED_AT = 900.0
SIZES = FileSizes(100, 75)
Files = Mapping[int, int]


@dataclass(frozen=True)
class DueFromFive:
    """Due from five small files, or from one once it is idle for `idle` seconds: then large files are read too."""

    idle: float = float("inf")

    def judge(self, counts: PartitionCounts, idle_seconds: float = 0.0) -> Judgement:
        if idle_seconds >= self.idle:
            return Judgement(True, "idle", large_bytes=70)
        return Judgement(counts.small_files >= 5, f"{counts.small_files} small files")

    def glance(self, files: LiveFiles) -> str | None:
        raise NotImplementedError

    def choose(self, files: Sequence[LiveFile], idle_seconds: float = 0.0, age_of: AgeOf = unknown_age) -> Choice:
        raise NotImplementedError

    def cut(self, files: Sequence[LiveFile]) -> list[tuple[int, int]]:
        raise NotImplementedError


def judging(idle: float) -> PartitionJudge:
    return PartitionJudge(DueFromFive(idle), DeleteRules(PolicyValues(), SIZES))


def small(files: int) -> PartitionCounts:
    return PartitionCounts(files, files, files, files, records=files, changed_ms=int(CHANGED_AT * 1000))


class Writing:
    """A board writer, and one table's counts in a store as the ledger leaves them there."""

    def __init__(self, *, idle: float = float("inf"), acted_on: bool = True, cached_from: int = 1_000) -> None:
        self.settings = Settings(catalogs={"lake": {}}, tables={"include": ["db.*"]})
        self.board = DebtBoard()
        self.published: list[Event] = []
        self.wakes = 0
        self.now = 1000.0
        self.writer = BoardWriter(self.settings, self.board, self.published.append, lambda: self.now)
        self.writer.wake, self.writer.cached_from = self._wake, cached_from
        self.facts = TableFacts(judging(idle), SIZES, {0: LAYOUT}, acted_on)
        self.stores: dict[TableName, DictionaryStore] = {}

    def _wake(self) -> None:
        self.wakes += 1

    def count(
        self, snapshot: int, files: Files, *, whole: bool = False, oldest: float | None = None, table: TableName = TABLE
    ) -> TableDebt:
        """A count that found these small files; 0: no live file any more. `whole`: these are all partitions."""
        store = self.stores.setdefault(table, DictionaryStore())
        if whole:
            store.clear()
        changed = {LAYOUT.key((value,)): small(number) for value, number in files.items()}
        for key, counts in changed.items():
            packed = store.slot(slot_of(key))
            there = dict(unpack(packed)) if packed else {}
            there = {**there, key: counts}
            there = {each: found for each, found in there.items() if not found.is_empty}
            store.put_slot(slot_of(key), pack(there.items()) if there else None)
        everything = [counts for _, packed in store.slots() for _, counts in unpack(packed)]
        update = LedgerUpdate(
            snapshot_id=snapshot,
            counted=True,
            whole=whole,
            more=False,
            recount_reason="first_sight" if whole else None,
            totals=sum(everything, PartitionCounts()),
            partitions={} if whole else changed,
        )
        self.writer.put(table, Counted(self.facts, update), store, oldest)
        return self.debt(table)

    def judge_again(self) -> TableDebt:
        self.writer.judge_again(TABLE, self.facts, self.stores[TABLE])
        return self.debt()

    def counting(self, oldest: float | None = None) -> TableDebt:
        update = LedgerUpdate(None, False, False, True, "first_sight", small(9))
        self.writer.counting(TABLE, self.facts, update, oldest)
        return self.debt()

    def unreadable(self, oldest: float | None = None) -> TableDebt:
        self.writer.unreadable(TABLE, RetryError("no answer"), oldest)
        return self.debt()

    def debt(self, table: TableName = TABLE) -> TableDebt:
        found = self.board.get(table)
        assert found is not None
        return found

    @property
    def skipped(self) -> list[PartitionsSkipped]:
        return [event for event in self.published if isinstance(event, PartitionsSkipped)]


def known(debt: TableDebt) -> dict[str, int]:
    return {one.key.values: one.counts.small_files for one in debt.partitions.values()}


# --- counts -----------------------------------------------------------------------------------------------------------


def test_a_whole_count_replaces_what_was_known_and_a_walk_adds_to_it() -> None:
    writing = Writing()
    writing.count(1, {1: 1, 2: 2}, whole=True)
    debt = writing.count(2, {2: 4, 3: 5})
    assert known(debt) == {"[1]": 1, "[2]": 4, "[3]": 5}
    assert (debt.snapshot_id, debt.total, debt.stale) == (2, small(10), None)
    assert known(writing.count(3, {9: 1}, whole=True)) == {"[9]": 1}


def test_a_partition_is_shown_with_its_values_and_why_it_is_due() -> None:
    (one,) = Writing().count(1, {7: 5}, whole=True).due
    assert (one.key, dict(one.partition), one.why) == (PartitionKey(0, "[7]"), {"p": 7}, "5 small files")


# --- times ------------------------------------------------------------------------------------------------------------


def test_a_table_waits_since_its_oldest_event_until_it_is_settled() -> None:
    writing = Writing()
    waits = [
        writing.count(snapshot, {1: 1}, whole=snapshot == 1, oldest=oldest).waiting_since
        for snapshot, oldest in [(1, 5.0), (2, 7.0), (3, None)]
    ]
    assert waits == [5.0, 5.0, 5.0]
    writing.board.settled(TABLE)
    assert writing.count(4, {1: 1}).waiting_since is None
    assert writing.count(5, {1: 1}, oldest=9.0).waiting_since == 9.0


@pytest.mark.parametrize("before", [Writing.unreadable, Writing.counting])
def test_an_event_that_could_not_be_answered_at_once_is_not_forgotten(before: Any) -> None:
    writing = Writing()
    before(writing, 5.0)
    assert writing.count(1, {1: 1}, whole=True).waiting_since == 5.0


def test_a_table_is_due_since_it_was_first_seen_due() -> None:
    writing = Writing()
    times = []
    for now, files in [(10.0, 5), (20.0, 6), (30.0, 1), (40.0, 5)]:
        writing.now = now
        times.append(writing.count(1, {1: files}, whole=True).due_since)
    assert times == [10.0, 10.0, None, 40.0]


# --- by time alone ----------------------------------------------------------------------------------------------------


def test_an_unchanged_table_is_judged_again_and_says_so_only_if_something_changed() -> None:
    writing = Writing(idle=200.0)
    debt = writing.count(1, {1: 1}, whole=True)
    assert (debt.due, debt.due_since) == ((), None)
    wakes = writing.wakes
    writing.now = CHANGED_AT + 199
    assert writing.judge_again() == debt
    assert writing.wakes == wakes
    writing.now = CHANGED_AT + 200
    debt = writing.judge_again()
    assert [(each.why, each.large_bytes) for each in debt.due] == [("idle", 70)]
    assert (debt.due_since, debt.snapshot_id, debt.counted_at) == (writing.now, 1, 1000.0)
    assert writing.wakes == wakes + 1
    assert writing.count(2, {2: 1}).due_large_bytes == 140


@pytest.mark.parametrize("cached_from", [1, 1_000])
def test_what_a_plan_declined_is_due_again_when_plans_depend_on_something_else(cached_from: int) -> None:
    """Counts and policy are the same; shortlists that are kept were judged with the old basis."""
    writing = Writing(cached_from=cached_from)
    writing.facts = replace(writing.facts, plans_by=("no name mapping",))
    writing.board.decline(writing.count(1, {1: 5, 2: 1}, whole=True), {LAYOUT.key((1,)): "no field ids"})
    assert writing.count(2, {2: 2}).due == ()
    writing.facts = replace(writing.facts, plans_by=("a name mapping",))
    assert [each.key for each in writing.count(2, {}).due] == [LAYOUT.key((1,))]
    assert [each.key for each in writing.judge_again().due] == [LAYOUT.key((1,))]


# --- tables with many partitions --------------------------------------------------------------------------------------


FILES = st.dictionaries(st.integers(0, 30), st.integers(0, 8), max_size=5)


@given(st.lists(st.tuples(FILES, st.booleans()), min_size=1, max_size=8))
def test_a_large_table_is_judged_slot_by_slot_with_the_result_of_judging_all(steps: list[tuple[Files, bool]]) -> None:
    """With lists of each slot or without; the sweep interval never passes."""
    entries = []
    for cached_from in (0, 10**9):
        writing = Writing(cached_from=cached_from)
        entries.append([writing.count(at, files, whole=whole or at == 0) for at, (files, whole) in enumerate(steps)])
    assert entries[0] == entries[1]


def test_a_commit_to_a_large_table_reads_the_changed_slots_alone() -> None:
    writing = Writing(cached_from=10)
    writing.count(1, dict.fromkeys(range(50), 2), whole=True)
    key, store = LAYOUT.key((7,)), DictionaryStore()
    store.put_slot(slot_of(key), pack([(key, small(9))]))
    update = LedgerUpdate(2, True, False, False, None, small(107), {key: small(9)})
    writing.writer.put(TABLE, Counted(writing.facts, update), store, None)
    assert known(writing.debt())["[7]"] == 9
    assert len(known(writing.debt())) > 40, "the others were not read again"


def test_partitions_of_a_large_table_that_always_changes_become_due_by_time() -> None:
    """Each sweep finds it changed, so that it is never judged as an unchanged one."""
    writing = Writing(idle=200.0, cached_from=1)
    writing.count(1, {1: 1, 2: 1}, whole=True)
    writing.now = CHANGED_AT + 250
    assert known(writing.count(2, {3: 1})).keys() == {"[1]", "[2]", "[3]"}
    writing.now = 1000.0 + writing.settings.service.sweep_seconds
    assert {each.key.values for each in writing.count(3, {3: 1}).due} == {"[1]", "[2]", "[3]"}


# --- what listeners hear ----------------------------------------------------------------------------------------------


def test_listeners_hear_which_changed_partitions_are_left_and_why() -> None:
    writing = Writing()
    writing.count(1, {1: 1, 2: 5}, whole=True)
    writing.count(2, {4: 4, 3: 0})
    assert writing.skipped == [
        PartitionsSkipped(
            table=TABLE,
            snapshot_id=snapshot,
            reason="not_due",
            partitions=(
                SkippedPartition(
                    key=LAYOUT.key((value,)),
                    partition={"p": value},
                    why=f"{value} small files",
                    files=value,
                    bytes=value,
                ),
            ),
        )
        for snapshot, value in [(1, 1), (2, 4)]
    ]


# --- tables that cannot be counted ------------------------------------------------------------------------------------


def test_another_firnline_is_on_the_board_and_in_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    writing = Writing()
    others = tuple(OtherCompactor(f"firnline.deployment-id={name}", 2, 9, 1.0) for name in "ab")
    for number, seen in enumerate([others[:1], others[:1], others, others], 1):
        writing.facts = replace(writing.facts, other_firnlines=seen)
        assert writing.count(number, {1: 1}, whole=True).other_firnlines == seen
        assert writing.judge_again().other_firnlines == seen
    said = [record for record in caplog.records if "another firnline" in record.getMessage()]
    assert [record.deployment for record in said] == [other.name for other in others]  # type: ignore[attr-defined]


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acted_on", [True, False])
def test_a_request_for_a_table_that_is_not_acted_on_is_dropped(acted_on: bool) -> None:
    """By the next count, and also if the table has not changed since the last one."""
    writing = Writing(acted_on=acted_on)
    for unchanged in (False, True):
        writing.board.request(TABLE, ["p = 1"])
        debt = writing.judge_again() if unchanged else writing.count(1, {1: 1}, whole=True)
        assert debt.requested == (("p = 1",) if acted_on else ())
        assert bool(writing.board.requests(TABLE)) is acted_on
        assert bool(writing.board.with_work()) is acted_on
