"""From the ledger's rows to the board, the metrics' events, and the dead-letter topic."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyiceberg.types import IntegerType

from compactor.debt.board import DebtBoard, PartitionCounts, TableDebt
from compactor.debt.ledger import LedgerUpdate
from compactor.events import (
    DeadLettered,
    Event,
    LedgerUpdated,
    PartitionsSkipped,
    SkippedPartition,
    TableUnreadable,
)
from compactor.iceberg.tables import Catalogs
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.planning.policy import Judgement
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.commit_events.decoder import TableChanged
from streaming.ledger.batch_handler import RETRY_SECONDS, BatchHandler
from streaming.ledger.dead_letters import MAX_VALUE_BYTES, DeadLetter
from streaming.ledger.operator import _received, ledger_settings
from streaming.ledger.rows import partition_row, table_row, unknown_event_row
from streaming.ledger.table_watcher import TableWatcher
from streaming.service.observe import DirectLedger
from tests.properties.table_history import TableHistory

TABLE = TableName("lake", ("db",), "t")
OTHER = TableName("lake", ("db",), "o.ther")
LAYOUT = PartitionLayout(0, ("p",), (IntegerType(),), ())
Row = dict[str, Any]


class Scene:
    """A handler with everything around it written down."""

    def __init__(self, **sections: Any) -> None:
        self.settings = Settings(catalogs={"lake": {"type": "rest"}}, **{"tables": {"include": ["db.*"]}, **sections})
        self.board = DebtBoard()
        self.asked: list[tuple[TableName, bool, float]] = []
        self.buried: list[DeadLetter] = []
        self.topic_is_well = True
        self.told: list[Event] = []
        self.wakes = 0
        self.now = 1000.0
        self.handler = BatchHandler(
            self.settings, self.board, self, self._send_dead_letter, self._wake, self.told.append, lambda: self.now
        )

    def request_recount(self, table: TableName, *, continues: bool, after_seconds: float = 0.0) -> None:
        self.asked.append((table, continues, after_seconds))

    def _send_dead_letter(self, letter: DeadLetter) -> bool:
        self.buried.append(letter)
        return self.topic_is_well

    def _wake(self) -> None:
        self.wakes += 1

    def apply(self, *rows: Row) -> TableDebt | None:
        self.handler.apply(rows)
        return self.board.get(TABLE)


def heard(oldest: int | None = None) -> Row:
    return {"sources": {"canonical": 1}, "oldest_event_ms": oldest, "counted_ms": 0, "requests": []}


def counted(
    snapshot: int, totals: PartitionCounts, *, whole: bool = False, more: bool = False, oldest: int | None = None,
    enabled: str = "", complete: bool = True,
) -> Row:  # fmt: skip
    reason = "first_sight" if whole or not complete else None
    update = LedgerUpdate(snapshot if complete else None, complete, whole, more, reason, totals)
    return table_row(TABLE, "counted" if complete else "counting", heard(oldest), update=update, enabled=enabled)


def partition(value: int, counts: PartitionCounts, *, due: bool = False) -> Row:
    key = LAYOUT.key((value,))
    return partition_row(TABLE, key, LAYOUT.readable(key), LAYOUT.bucket(key), counts, Judgement(due, "so it is"))


def small(files: int) -> PartitionCounts:
    return PartitionCounts(data_files=files, small_files=files, data_bytes=files, small_bytes=files, records=files)


def unreadable(oldest: int | None = None) -> Row:
    return table_row(TABLE, "unreadable", heard(oldest), reason="catalog_unavailable", message="no answer")


def known(debt: TableDebt | None) -> dict[str, int]:
    assert debt is not None
    return {one.key.values: one.counts.small_files for one in debt.partitions.values()}  # noqa: PD011 - no pandas here


# --- counts -----------------------------------------------------------------------------------------------------------


def test_a_whole_report_replaces_what_was_known_and_a_partial_one_adds_to_it() -> None:
    scene = Scene()
    scene.apply(counted(1, small(3), whole=True), partition(1, small(1)), partition(2, small(2)))
    debt = scene.apply(counted(2, small(9)), partition(2, small(4)), partition(3, small(5)))
    assert known(debt) == {"[1]": 1, "[2]": 4, "[3]": 5}
    assert debt is not None
    assert (debt.snapshot_id, debt.total, debt.stale) == (2, small(9), None)
    assert known(scene.apply(counted(3, small(1), whole=True), partition(9, small(1)))) == {"[9]": 1}


def test_a_partition_without_debt_leaves_the_board() -> None:
    scene = Scene()
    scene.apply(counted(1, small(3), whole=True), partition(1, small(1)), partition(2, small(2)))
    debt = scene.apply(
        counted(2, PartitionCounts(data_files=1)), partition(1, PartitionCounts()), partition(2, PartitionCounts(1))
    )
    assert known(debt) == {}


def test_a_partition_is_shown_with_its_words() -> None:
    debt = Scene().apply(counted(1, small(1), whole=True), partition(7, small(1), due=True))
    assert debt is not None
    (one,) = debt.due
    assert (one.key, dict(one.partition), one.why) == (PartitionKey(0, "[7]"), {"p": 7}, "so it is")


def test_rows_of_several_tables_come_in_any_order() -> None:
    scene = Scene()
    scene.apply(
        partition(1, small(1)),
        table_row(OTHER, "counted", heard(), update=LedgerUpdate(5, True, True, False, None, PartitionCounts())),
        counted(1, small(1), whole=True),
    )
    assert known(scene.board.get(TABLE)) == {"[1]": 1}
    assert known(scene.board.get(OTHER)) == {}
    assert scene.wakes == 1


def test_an_empty_batch_is_fine() -> None:
    scene = Scene()
    scene.apply()
    assert (scene.board.tables(), scene.asked, scene.buried) == ((), [], [])


@pytest.mark.parametrize(
    ("enabled", "include", "acted_on"),
    [("", ["db.*"], True), ("", [], False), ("true", [], True), ("false", ["db.*"], False)],
)
def test_the_tables_switch_reaches_the_board(enabled: str, include: list[str], acted_on: bool) -> None:
    debt = Scene(tables={"include": include}).apply(counted(1, small(1), whole=True, enabled=enabled))
    assert debt is not None
    assert debt.acted_on is acted_on


def test_a_batch_applied_twice_is_applied_once() -> None:
    scene = Scene()
    scene.apply(counted(1, small(2), whole=True, oldest=1_000), partition(1, small(2), due=True))
    batch = [counted(2, small(6), oldest=500), partition(1, small(6), due=True), partition(2, PartitionCounts())]
    first = scene.apply(*batch)
    scene.now += 60
    assert scene.apply(*copy.deepcopy(batch)) == first


# --- times ------------------------------------------------------------------------------------------------------------


def test_a_table_waits_since_its_oldest_event_until_it_is_settled() -> None:
    scene = Scene()
    rows = (counted(1, small(1), oldest=5_000), counted(2, small(1), oldest=7_000), counted(3, small(1)))
    assert [scene.apply(row).waiting_since for row in rows] == [5.0, 5.0, 5.0]  # type: ignore[union-attr]
    scene.board.settled(TABLE)
    assert scene.apply(counted(4, small(1))).waiting_since is None  # type: ignore[union-attr]
    assert scene.apply(counted(5, small(1), oldest=9_000)).waiting_since == 9.0  # type: ignore[union-attr]


@pytest.mark.parametrize("before", [unreadable(5_000), counted(0, small(1), complete=False, more=True, oldest=5_000)])
def test_an_event_that_could_not_be_answered_at_once_is_not_forgotten(before: Row) -> None:
    scene = Scene()
    scene.apply(before)
    assert scene.apply(counted(1, small(1), whole=True)).waiting_since == 5.0  # type: ignore[union-attr]


def test_a_table_is_due_since_it_was_first_seen_due() -> None:
    scene = Scene()
    times = []
    for now, due in [(10.0, True), (20.0, True), (30.0, False), (40.0, True)]:
        scene.now = now
        debt = scene.apply(counted(1, small(1), whole=True), partition(1, small(1), due=due))
        assert debt is not None
        times.append(debt.due_since)
    assert times == [10.0, 10.0, None, 40.0]


def test_listeners_hear_how_old_the_news_is() -> None:
    scene = Scene()
    scene.apply(counted(1, small(1), whole=True, oldest=998_500))
    scene.apply(counted(1, small(1)))
    scene.apply(counted(1, small(1), oldest=2_000_000))
    assert [event.event_to_ledger_seconds for event in scene.told if isinstance(event, LedgerUpdated)] == [1.5, None, 0]
    assert scene.told[0] == LedgerUpdated(
        table=TABLE,
        snapshot_id=1,
        events_by_source={"canonical": 1},
        recount_reason="first_sight",
        event_to_ledger_seconds=1.5,
    )


def test_listeners_hear_which_partitions_of_the_batch_are_left_and_why() -> None:
    scene = Scene()
    rows = partition(1, small(1)), partition(2, small(2), due=True), partition(3, PartitionCounts(data_files=1))
    scene.apply(counted(1, small(3), whole=True), *rows)
    scene.apply(counted(2, small(9)), partition(4, small(4)))
    told = [event for event in scene.told if isinstance(event, PartitionsSkipped)]
    assert told == [
        PartitionsSkipped(
            table=TABLE,
            snapshot_id=1,
            reason="not_due",
            partitions=(SkippedPartition(key=LAYOUT.key((1,)), partition={"p": 1}, why="so it is", files=1, bytes=1),),
        ),
        PartitionsSkipped(
            table=TABLE,
            snapshot_id=2,
            reason="not_due",
            partitions=(SkippedPartition(key=LAYOUT.key((4,)), partition={"p": 4}, why="so it is", files=4, bytes=4),),
        ),
    ]


def test_of_a_table_that_is_only_watched_they_hear_that_alone() -> None:
    scene = Scene(tables={})
    scene.apply(counted(1, small(3), whole=True), partition(1, small(1)))
    assert not any(isinstance(event, PartitionsSkipped) for event in scene.told)
    scene.apply(counted(2, small(3)), partition(2, small(5), due=True))
    assert [event for event in scene.told if isinstance(event, PartitionsSkipped)] == [
        PartitionsSkipped(TABLE, 2, "not_acted_on")
    ]


# --- tables that cannot be counted ------------------------------------------------------------------------------------


def test_a_long_recount_is_asked_to_go_on_and_the_old_counts_stay() -> None:
    scene = Scene()
    scene.apply(counted(1, small(1), whole=True), partition(1, small(1)))
    debt = scene.apply(counted(0, small(9), complete=False, more=True))
    assert known(debt) == {"[1]": 1}
    assert debt is not None
    assert "recount is under way (first_sight)" in str(debt.stale)
    assert scene.asked == [(TABLE, True, 0.0)]
    assert scene.apply(counted(2, small(9), whole=True)).stale is None  # type: ignore[union-attr]


def test_a_walk_cut_short_is_on_the_board_and_goes_on() -> None:
    scene = Scene()
    debt = scene.apply(counted(2, small(1), more=True), partition(1, small(1)))
    assert debt is not None
    assert (debt.snapshot_id, debt.stale) == (2, None)
    assert scene.asked == [(TABLE, True, 0.0)]


def test_an_unreadable_table_is_stale_and_asked_for_again() -> None:
    scene = Scene()
    scene.apply(counted(1, small(1), whole=True), partition(1, small(1)))
    debt = scene.apply(unreadable())
    assert known(debt) == {"[1]": 1}
    assert debt is not None
    assert (debt.stale, debt.snapshot_id) == ("no answer", 1)
    assert scene.asked == [(TABLE, False, RETRY_SECONDS)]
    assert scene.told[-1] == TableUnreadable(TABLE, "catalog_unavailable", "no answer")


def test_an_ignored_table_is_not_mentioned() -> None:
    scene = Scene()
    assert scene.apply(table_row(TABLE, "ignored", heard())) is None
    assert (scene.asked, scene.told) == ([], [])


# --- dead letters -----------------------------------------------------------------------------------------------------


def dead(value: bytes | None, key: bytes | None = b"\xff\x00k", headers: str = '[["trace", "00ff"]]') -> Row:
    event = {"topic": "control-iceberg", "partition": 3, "offset": 41, "timestamp_ms": 5}
    event |= {"headers": headers, "key": key, "value": value}
    return unknown_event_row(TABLE, event, "table lake.db.t does not exist")


def test_an_unknown_table_is_forgotten_and_its_event_is_a_dead_letter_with_its_bytes() -> None:
    scene = Scene()
    scene.apply(counted(1, small(1), whole=True))
    assert scene.apply(table_row(TABLE, "unknown", heard(), message="gone"), dead(b"\x00\xfe event")) is None
    (letter,) = scene.buried
    assert (letter.key, letter.value) == (b"\xff\x00k", b"\x00\xfe event")
    assert dict(letter.headers) == {
        "trace": b"\x00\xff",
        "firnline.reason": b"unknown_table",
        "firnline.detail": b"table lake.db.t does not exist",
        "firnline.topic": b"control-iceberg",
        "firnline.partition": b"3",
        "firnline.offset": b"41",
    }
    assert scene.told[-1] == DeadLettered("unknown_table", 1)


def test_dead_letters_are_counted_by_reason_and_never_too_large_to_send() -> None:
    scene = Scene()
    scene.apply(dead(b"x" * (MAX_VALUE_BYTES + 1)), dead(None, key=None, headers=""))
    assert scene.told == [DeadLettered("unknown_table", 2)]
    first, second = scene.buried
    assert first.value is not None
    assert len(first.value) == MAX_VALUE_BYTES
    assert ("firnline.truncated", b"true") in first.headers
    assert (second.key, second.value) == (None, None)


def test_a_dead_letter_topic_that_refuses_is_tried_once_a_batch() -> None:
    """Each try may take seconds, and the batch must end."""
    scene = Scene()
    scene.topic_is_well = False
    scene.apply(*(dead(b"x") for _ in range(500)))
    assert len(scene.buried) == 1
    assert scene.told == [DeadLettered("unknown_table", 500)]


def test_an_unreadable_table_of_which_nothing_was_known_counts_as_one_to_be_rewritten() -> None:
    """Else no alert would tell of a table that is unreadable since the start."""
    scene = Scene()
    debt = scene.apply(table_row(TABLE, "unreadable", heard(), reason="table_unreadable", message="no metadata"))
    assert debt is not None
    assert (debt.stale, debt.acted_on) == ("no metadata", True)


def test_rows_survive_the_way_through_spark() -> None:
    """Spark hands binary over as bytearray."""
    scene = Scene()
    row = dead(b"bytes")
    scene.handler.apply([{**row, "value": bytearray(row["value"])}])
    assert scene.buried[0].value == b"bytes"
    assert json.loads(row["body"])["reason"] == "unknown_table"


class OneAction:
    """A frame that counts what is asked of it."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows, self.actions = rows, 0

    def collect(self) -> list[Row]:
        self.actions += 1
        return self.rows


def test_a_batch_is_exactly_one_action() -> None:
    scene = Scene()
    frame: Any = OneAction([])
    scene.handler(frame, 7)
    assert frame.actions == 1


def test_the_actions_failure_is_the_streams_to_see() -> None:
    class Failing:
        def collect(self) -> list[Row]:
            raise ConnectionError("executor lost")

    frame: Any = Failing()
    with pytest.raises(ConnectionError):
        Scene().handler(frame, 7)


# --- what the ledger heard --------------------------------------------------------------------------------------------


def test_only_commits_of_others_make_a_table_wait() -> None:
    events = pd.DataFrame(
        {
            "source": ["canonical", "canonical", "sweep"],
            "timestamp_ms": [7, 5, 1],
            "writes": [True, True, False],
            "request": ["id = 1", None, "id = 1"],
        }
    )
    told = _received(events)
    assert told["requests"] == ["id = 1"]
    assert (told["sources"], told["oldest_event_ms"]) == ({"canonical": 2, "sweep": 1}, 5)
    assert _received(events[~events["writes"]])["oldest_event_ms"] is None


# --- the watcher: events may be lost ----------------------------------------------------------------------------------


def test_every_sweep_asks_for_every_table_that_is_not_ignored(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.catalog.create_table("db.ignored", history.table.schema())
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    settings = Settings(catalogs={"lake": properties}, tables={"exclude": ["db.ignored"]})
    asked: list[tuple[str, bool]] = []

    def publish(_key: bytes, value: bytes) -> None:
        event = json.loads(value)
        asked.append((event["identifier"]["name"], "firnline.report" in event["summary"]))

    clock = iter(range(0, 10**9, 301))  # a sweep interval passes between any two looks
    watcher = TableWatcher(settings, Catalogs(settings.catalogs), publish, ticks=lambda: float(next(clock)))
    assert watcher.sweep() == 1
    assert asked == [("t", True)]
    watcher.start()
    deadline = time.monotonic() + 60
    while len(asked) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    watcher.stop()
    assert len(asked) >= 4
    assert set(asked) == {("t", True)}


def test_a_table_that_was_dropped_unannounced_is_asked_for_and_its_question_is_no_dead_letter(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    settings = Settings(catalogs={"lake": properties})
    catalogs = Catalogs(settings.catalogs)
    known, asked = [TABLE, TableName("lake", ("db",), "dropped"), TableName("elsewhere", ("db",), "t")], list[str]()

    def publish(_key: bytes, value: bytes) -> None:
        asked.append(json.loads(value)["identifier"]["name"])

    TableWatcher(settings, catalogs, publish, known=lambda: known).sweep()
    assert asked == ["t", "dropped"]
    direct = DirectLedger(ledger_settings(settings, catalogs), lambda: 5.0)
    changed = TableChanged("test", "1", "lake", ("db",), "dropped", 5)
    assert [row["kind"] for row in direct.rows(known[1], changed)] == ["table", "dead"]
    assert [row["kind"] for row in direct.rows(known[1], replace(changed, report=True))] == ["table"]
    assert history.view().name == TABLE


def test_the_first_count_is_measured_against_what_the_sweep_has_found(tmp_path: Path) -> None:
    """Found: what is listed and not ignored. Answered: counted, unreadable or gone, but not while a recount goes on."""
    history = TableHistory(tmp_path, 2)
    history.catalog.create_table("db.ignored", history.table.schema())
    history.catalog.create_table("db.other", history.table.schema())
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    settings = Settings(catalogs={"lake": properties}, tables={"exclude": ["db.ignored"]})
    found_while_sending = []
    watcher = TableWatcher(
        settings, Catalogs(settings.catalogs), lambda *_: found_while_sending.append(watcher.found), known=tuple
    )
    assert watcher.found is None
    assert watcher.sweep() == 2
    other = TableName("lake", ("db",), "other")
    assert found_while_sending == [{TABLE, other}] * 2  # the total is known before the first is counted
    history.catalog.drop_table("db.other")
    watcher.sweep()
    assert watcher.found == {TABLE}
    scene = Scene()
    scene.apply(counted(2, small(1), complete=False))
    assert scene.handler.answered == frozenset()
    scene.apply(counted(2, small(1), whole=True))
    scene.apply(table_row(OTHER, "unreadable", heard(), reason="table_unreadable", message="damage"))
    scene.apply(table_row(other, "unknown", heard(), message="gone"))
    assert scene.handler.answered == {TABLE, OTHER, other}


def test_table_properties_that_are_not_used_are_on_the_board() -> None:
    scene = Scene()
    row = table_row(
        TABLE, "counted", heard(), update=LedgerUpdate(1, True, True, False, None, small(1)), refused=("growth is odd",)
    )
    debt = scene.apply(row)
    assert debt is not None
    assert debt.refused == ("growth is odd",)
    assert scene.apply(counted(2, small(1), whole=True)).refused == ()  # type: ignore[union-attr]
