"""From a table's counts to its entry on the debt board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import IntegerType

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.debt.ledger import LedgerUpdate, pack, slot_of, unpack
from compactor.debt.shortlist import Shortlist
from compactor.errors import RetryError
from compactor.events import Event, PartitionsSkipped, SkippedPartition
from compactor.iceberg.other_compactors import OtherCompactor
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.patience.holds import What
from compactor.planning.delete_rules import DeleteRules
from compactor.planning.partition_judge import PartitionJudge
from compactor.planning.policy import AgeOf, Choice, Judgement, unknown_age
from compactor.settings.policy import PolicyValues
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.ledger import board_writer
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

    def __init__(self, *, idle: float = float("inf"), acted_on: bool = True, **sections: Any) -> None:
        self.settings = Settings(catalogs={"lake": {}}, **{"tables": {"include": ["db.*"]}, **sections})
        self.board = DebtBoard()
        self.published: list[Event] = []
        self.wakes = 0
        self.now = 1000.0
        self.writer = BoardWriter(self.settings, self.board, self._wake, self.published.append, lambda: self.now)
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


def test_a_partition_without_debt_leaves_the_board() -> None:
    writing = Writing()
    writing.count(1, {1: 1, 2: 2}, whole=True)
    assert known(writing.count(2, {1: 0, 2: 0})) == {}


def test_a_partition_is_shown_with_its_values_and_why_it_is_due() -> None:
    (one,) = Writing().count(1, {7: 5}, whole=True).due
    assert (one.key, dict(one.partition), one.why) == (PartitionKey(0, "[7]"), {"p": 7}, "5 small files")


def test_tables_do_not_mix_and_the_dispatcher_is_woken_for_each() -> None:
    writing = Writing()
    writing.count(5, {}, whole=True, table=OTHER)
    writing.count(1, {1: 1}, whole=True)
    assert known(writing.debt()) == {"[1]": 1}
    assert known(writing.debt(OTHER)) == {}
    assert writing.wakes == 2


def test_the_table_says_its_target_size_and_whether_it_is_acted_on() -> None:
    for acted_on in (True, False):
        debt = Writing(acted_on=acted_on).count(1, {1: 1}, whole=True)
        assert (debt.acted_on, debt.target_bytes) == (acted_on, 100)


def test_a_count_that_is_put_twice_is_put_once() -> None:
    writing = Writing()
    writing.count(1, {1: 5}, whole=True, oldest=1.0)
    first = writing.count(2, {1: 6, 2: 0}, oldest=0.5)
    writing.now += 60
    assert writing.count(2, {1: 6, 2: 0}, oldest=0.5) == first


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


def test_a_late_event_of_a_counted_snapshot_does_not_make_the_table_wait() -> None:
    writing = Writing()
    writing.count(1, {1: 1}, whole=True)
    assert writing.count(1, {}, oldest=5.0).waiting_since is None


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


def test_the_commit_rate_counts_new_snapshots_only() -> None:
    writing = Writing()
    rates = []
    for snapshot in (1, 1, 2, 2):
        rates.append(writing.count(snapshot, {1: 1}, whole=True).commits_per_hour)
        writing.now += 1
    assert rates[0] == rates[1] == 1.0
    assert rates[2] == rates[3] > 1.9


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


def test_an_unchanged_table_that_was_unreadable_is_no_longer_stale() -> None:
    writing = Writing()
    before = writing.count(1, {1: 1}, whole=True)
    assert writing.unreadable().stale == "no answer"
    assert writing.judge_again() == before


def test_what_a_plan_declined_is_not_due_when_it_is_judged_again() -> None:
    writing = Writing(idle=200.0)
    writing.board.decline(writing.count(1, {1: 5, 2: 1}, whole=True), {LAYOUT.key((1,)): "not worth it"})
    wakes = writing.wakes
    debt = writing.judge_again()
    assert (debt.due, debt.partitions[LAYOUT.key((1,))].why) == ((), "not worth it")
    assert writing.wakes == wakes, "nothing has changed"
    writing.now = CHANGED_AT + 200
    assert {each.why for each in writing.judge_again().due} == {"idle"}, "another reason"


def test_a_declined_partition_without_debt_is_forgotten_although_others_have_no_object_on_the_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a partition that retention has dropped: the board cannot know that it is none of the others."""
    writing, keys = Writing(), [LAYOUT.key((value,)) for value in range(1, 4)]
    real = Shortlist.joined
    monkeypatch.setattr(Shortlist, "joined", lambda lists: real(lists, 1))
    all_seen = replace(writing.count(1, {1: 5, 2: 5, 3: 5}, whole=True), partitions=due_of(writing, keys))
    writing.board.decline(all_seen, dict.fromkeys(keys, "not worth it"))
    assert writing.board.holds.of(What.PARTITION, TABLE).keys() == set(keys)
    assert writing.count(2, {2: 5, 3: 5}, whole=True).others.partitions == 1
    assert writing.board.holds.of(What.PARTITION, TABLE).keys() == set(keys[1:])


def due_of(writing: Writing, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, PartitionDebt]:
    """All partitions as they were when each had an object."""
    (one,) = writing.debt().partitions.values()
    return {key: replace(one, key=key) for key in keys}


@pytest.mark.parametrize("cached_from", [1, 1_000])
def test_what_a_plan_declined_is_due_again_when_plans_depend_on_something_else(
    monkeypatch: pytest.MonkeyPatch, cached_from: int
) -> None:
    """Counts and policy are the same; shortlists that are kept were judged with the old basis."""
    monkeypatch.setattr(board_writer, "CACHED_FROM", cached_from)
    writing = Writing()
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
    with pytest.MonkeyPatch.context() as patched:
        entries = []
        for cached_from in (0, 10**9):
            patched.setattr(board_writer, "CACHED_FROM", cached_from)
            writing = Writing()
            entries.append(
                [
                    writing.count(number, files, whole=whole or number == 0)
                    for number, (files, whole) in enumerate(steps)
                ]
            )
    assert entries[0] == entries[1]


def test_a_commit_to_a_large_table_reads_the_changed_slots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_writer, "CACHED_FROM", 10)
    writing = Writing()
    writing.count(1, dict.fromkeys(range(50), 2), whole=True)
    read: list[int] = []
    store = writing.stores[TABLE]
    slot = store.slot
    monkeypatch.setattr(store, "slots", lambda: pytest.fail("all slots are read"))

    def noted(number: int) -> bytes | None:
        read.append(number)
        return slot(number)

    monkeypatch.setattr(store, "slot", noted)
    key = LAYOUT.key((7,))
    packed = pack([(key, small(9))])
    store.put_slot(slot_of(key), packed)
    update = LedgerUpdate(2, True, False, False, None, small(107), {key: small(9)})
    writing.writer.put(TABLE, Counted(writing.facts, update), store, None)
    assert set(read) == {slot_of(key)}
    assert known(writing.debt())["[7]"] == 9


def test_after_a_state_that_could_not_be_read_all_slots_of_a_large_table_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_writer, "CACHED_FROM", 10)
    writing = Writing()
    writing.count(1, dict.fromkeys(range(50), 2), whole=True)
    store, key = writing.stores[TABLE], LAYOUT.key((7,))
    store.put_slot(slot_of(key), pack([(key, small(9))]))
    update = LedgerUpdate(2, True, False, False, None, small(107), {key: small(9)})
    with monkeypatch.context() as patched:

        def unreadable(_number: int) -> bytes | None:
            raise RetryError("the disk does not answer")

        patched.setattr(store, "slot", unreadable)
        with pytest.raises(RetryError):
            writing.writer.put(TABLE, Counted(writing.facts, update), store, None)
    unchanged = LedgerUpdate(2, True, False, False, None, small(107), {})
    writing.writer.put(TABLE, Counted(writing.facts, unchanged), store, None)
    assert known(writing.debt())["[7]"] == 9


def test_partitions_of_a_large_table_that_always_changes_become_due_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweep finds it changed, so that it is never judged as an unchanged one."""
    monkeypatch.setattr(board_writer, "CACHED_FROM", 1)
    writing = Writing(idle=200.0)
    writing.count(1, {1: 1, 2: 1}, whole=True)
    writing.now = CHANGED_AT + 250
    assert known(writing.count(2, {3: 1})).keys() == {"[1]", "[2]", "[3]"}
    writing.now = 1000.0 + writing.settings.service.sweep_seconds
    assert {each.key.values for each in writing.count(3, {3: 1}).due} == {"[1]", "[2]", "[3]"}


def test_another_policy_reaches_all_partitions_of_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_writer, "CACHED_FROM", 1)
    writing = Writing()
    assert writing.count(1, {1: 1, 2: 5}, whole=True).due_partitions == 1
    writing.facts = replace(writing.facts, judge=judging(idle=0.0))
    assert writing.count(2, {}).due_partitions == 2


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


def test_of_a_table_that_is_only_watched_they_hear_that_alone() -> None:
    writing = Writing(acted_on=False)
    writing.count(1, {1: 1}, whole=True)
    assert writing.skipped == []
    writing.count(2, {2: 5})
    assert writing.skipped == [PartitionsSkipped(TABLE, 2, "not_acted_on")]


# --- tables that cannot be counted ------------------------------------------------------------------------------------


def test_during_a_long_recount_the_old_counts_stay_and_say_so() -> None:
    writing = Writing()
    writing.count(1, {1: 1}, whole=True)
    debt = writing.counting()
    assert known(debt) == {"[1]": 1}
    assert "recount is under way (first_sight)" in str(debt.stale)
    assert not debt.unreadable, "no alert may call the catalog silent"
    counted = writing.count(2, {1: 1}, whole=True)
    assert (counted.stale, counted.recounting) == (None, False)


def test_an_unreadable_table_is_stale_with_its_last_counts() -> None:
    writing = Writing()
    writing.count(1, {1: 1}, whole=True)
    debt = writing.unreadable()
    assert known(debt) == {"[1]": 1}
    assert (debt.stale, debt.snapshot_id, debt.unreadable) == ("no answer", 1, True)
    writing.counting()
    assert writing.unreadable().unreadable


def test_an_unreadable_table_of_which_nothing_was_known_counts_as_one_to_be_rewritten() -> None:
    """Else no alert would tell of a table that is unreadable since the start."""
    debt = Writing().unreadable()
    assert (debt.stale, debt.acted_on) == ("no answer", True)


def test_table_properties_that_are_not_used_are_on_the_board() -> None:
    writing = Writing()
    facts = writing.facts
    writing.facts = replace(facts, refused=("growth is odd",))
    assert writing.count(1, {1: 1}, whole=True).refused == ("growth is odd",)
    writing.facts = facts
    assert writing.count(2, {1: 1}).refused == ()


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
