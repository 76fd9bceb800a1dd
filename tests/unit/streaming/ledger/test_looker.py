"""One look at one table: counted, unchanged, missing or unreadable, and what it costs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactor.debt import ledger
from compactor.errors import RetryError
from compactor.events import LedgerUpdated, ManifestsRead, TableLooked, TableUnreadable
from compactor.iceberg.tables import KnownVersion, TableMissingError
from compactor.locations import plain_path
from compactor.partitions import PartitionKey
from compactor.reasons import Reason
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import LimitSettings, Settings
from compactor.storage.ledger_database import TableState
from streaming.ledger.board_writer import MOST_BEGUN_ANEW
from streaming.ledger.look_queue import Asked, Lane
from streaming.ledger.looker import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    REMEMBERED_SNAPSHOTS,
    Outcome,
)
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene, named, reads_since_last_time

A = '["a"]'


def damaged(scene: Scene) -> tuple[Path, str]:
    """Replace the table's metadata file by rubbish; returns the file and what it held."""
    file = Path(plain_path(scene.history.table.metadata_location))
    content = file.read_text()
    file.write_text("{}")
    return file, content


# --- counted ----------------------------------------------------------------------------------------------------------


def test_a_first_look_counts_the_table_and_later_ones_what_is_new(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.files() == {A: 2}
    assert scene.debt().snapshot_id == scene.history.table.metadata.current_snapshot_id
    scene.history.append_unreal("a", [3])
    scene.history.append_unreal("b", [4])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.files() == {A: 3, '["b"]': 1}
    assert [update.recount_reason for update in scene.updates] == ["first_sight", None]
    assert scene.outcomes == ["counted", "counted"]


def test_a_table_without_data_is_counted(scene: Scene) -> None:
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().snapshot_id, scene.debt().total.data_files) == (None, 0)


def test_the_tables_switch_and_refused_properties_reach_the_board(scene: Scene) -> None:
    acted_on, refused = [], []
    for properties in ({}, {"firnline.enabled": "false"}, {"firnline.enabled": "true", "firnline.strategy": "odd"}):
        scene.history.set_properties(properties)
        scene.look()
        acted_on.append(scene.debt().acted_on)
        refused.append(len(scene.debt().refused))
    assert acted_on == [True, False, True]
    assert refused == [0, 0, 1]


def test_settings_that_change_reach_a_table_that_has_not_changed(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    assert scene.look().outcome is Outcome.UNCHANGED
    assert (scene.debt().acted_on, scene.debt().due_partitions) == (True, 0)
    before = scene.looker.settings
    changed = Settings.model_validate(
        {
            "catalogs": {NAME.catalog: {}},
            "tables": {"include": []},
            "policy": {"strategy": "threshold", "min_input_files": 2},
        }
    )
    current = CurrentSettings(changed)
    scene.looker.settings = current
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().acted_on, scene.debt().due_partitions) == (False, 1)
    assert scene.look().outcome is Outcome.UNCHANGED
    current.take(changed.model_copy(update={"limits": LimitSettings(bytes_per_hour=1)}))
    assert scene.look().outcome is Outcome.UNCHANGED, "limits do not decide what counts mean"
    scene.looker.settings = before
    scene.look()
    assert (scene.debt().acted_on, scene.debt().due_partitions) == (True, 0)


THRESHOLD = {"strategy": "threshold", "min_input_files": 2}


def changed_policy(scene: Scene) -> None:
    """A reload of the settings, without the filter."""
    scene.looker.settings = Settings.model_validate(
        {"catalogs": {NAME.catalog: {}}, "tables": {"include": ["*"]}, "policy": THRESHOLD}
    )


def recreated(scene: Scene) -> None:
    scene.history.recreate()
    scene.history.append_unreal("a", [1, 2])


@pytest.mark.parametrize(
    "change",
    [
        changed_policy,
        lambda scene: scene.history.set_properties({"schema.name-mapping.default": "[]"}),
        recreated,
    ],
    ids=["settings", "name mapping", "another table"],
)
def test_what_a_plan_declined_is_judged_again_when_the_reason_may_be_gone(
    tmp_path: Path, change: Callable[[Scene], None]
) -> None:
    """The counts stay the same: the files are as many and as large as before."""
    scene = Scene(tmp_path, policy={**THRESHOLD, "where": "category = 'b'"})
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    seen = scene.debt()
    (due,) = seen.due
    scene.board.decline(seen, {due.key: "outside policy.where"})
    scene.history.set_properties({"owner": "someone"})
    scene.look()
    assert scene.debt().due == (), "nothing that plans depend on has changed"
    change(scene)
    scene.look()
    found = scene.debt().partitions[due.key]
    assert found.counts == due.counts
    assert found.due, found.why


def test_listeners_hear_how_old_the_news_is(scene: Scene) -> None:
    for oldest in (scene.now - 1.5, None, scene.now + 1_000):
        scene.history.append_unreal("a", [1])
        scene.look(asked=Asked(Lane.EVENT, oldest))
    assert [event.event_to_ledger_seconds for event in scene.updates] == [1.5, None, 0]
    assert scene.published[-2:] == [
        LedgerUpdated(
            table=NAME,
            snapshot_id=scene.debt().snapshot_id,
            recount_reason=None,
            event_to_ledger_seconds=0,
        ),
        TableLooked(NAME, "counted"),
    ]


def test_a_restarted_process_goes_on_where_the_state_on_disk_ends(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    scene.history.append_unreal("b", [3])
    scene.restart()
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.files() == {A: 2, '["b"]': 1}
    scene.restart()
    scene.look()
    assert scene.files() == {A: 2, '["b"]': 1}
    assert [update.recount_reason for update in scene.updates] == ["first_sight", None, None]


def test_a_long_count_goes_on_look_by_look(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    monkeypatch.setattr(ledger, "FILES_PER_LOOK", 1)
    looks = [scene.look() for _ in range(4)]
    assert [each.outcome for each in looks] == ["counting", "counting", "counted", "unchanged"]
    assert [each.again_after for each in looks] == [0.0, 0.0, None, None]
    assert scene.files() == {A: 3}


def test_a_long_count_whose_snapshots_expire_again_and_again_is_called_unreadable_until_it_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit() -> None:
        before = scene.history.table.current_snapshot()
        scene.history.append_unreal("a", [1])
        if before is not None:
            scene.history.table.maintenance.expire_snapshots().by_id(before.snapshot_id).commit()

    for _ in range(3):
        commit()
    monkeypatch.setattr(ledger, "FILES_PER_LOOK", 1)
    for _ in range(MOST_BEGUN_ANEW):
        assert scene.look().outcome is Outcome.COUNTING
        assert scene.debt().recounting
        commit()
        scene.restart()
    assert scene.look().outcome is Outcome.COUNTING
    assert not scene.debt().recounting
    assert f"began anew {MOST_BEGUN_ANEW} times, because its snapshot expired" in str(scene.debt().stale)
    monkeypatch.undo()
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().stale, scene.debt().recounting) == (None, False)
    monkeypatch.setattr(ledger, "FILES_PER_LOOK", 1)
    scene.database.forget(NAME.key)
    commit()
    assert scene.look().outcome is Outcome.COUNTING
    assert scene.debt().recounting, "each recount has its own number"


def test_a_walk_cut_short_is_on_the_board_and_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, service={"manifests_per_batch": 1})
    scene.history.append_unreal("a", [1])
    scene.look()
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    looks, files = [], []
    for _ in range(4):
        looks.append(scene.look())
        files.append(scene.files()[A])
        assert scene.debt().stale is None
    assert files == [2, 3, 4, 4]
    assert [each.again_after for each in looks] == [0.0, 0.0, None, None]
    assert [each.outcome for each in looks] == ["counted", "counted", "counted", "unchanged"]


def test_a_look_that_fails_half_way_leaves_the_saved_state_and_the_next_one_counts_right(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    saved = scene.database.head(NAME.key), scene.database.slots(NAME.key)
    scene.history.append_unreal("b", [3])
    put_head = TableState.put_head

    def fails(_state: TableState, _text: str) -> None:
        raise RetryError("the process dies before the head is written")

    monkeypatch.setattr(TableState, "put_head", fails)
    assert scene.look().outcome is Outcome.UNREADABLE
    assert (scene.database.head(NAME.key), scene.database.slots(NAME.key)) == saved
    assert scene.files() == {A: 2}
    monkeypatch.setattr(TableState, "put_head", put_head)
    scene.look()
    assert scene.files() == {A: 2, '["b"]': 1}
    assert scene.updates[-1].recount_reason is None


# --- unchanged --------------------------------------------------------------------------------------------------------


def test_an_unchanged_table_costs_one_catalog_call_and_no_read_of_the_store(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    assert reads_since_last_time() > 0
    before, scene.catalogs.calls = scene.debt(), []
    for _ in range(3):
        assert scene.look().outcome is Outcome.UNCHANGED
    assert scene.catalogs.calls == [NAME] * 3
    assert reads_since_last_time() == 0
    assert scene.debt() == before
    assert len(scene.updates) == 1


def test_a_partition_that_becomes_due_by_idleness_is_due_at_the_next_sweep_without_a_read(scene: Scene) -> None:
    for _ in range(2):
        scene.history.append_unreal("a", [1])
    written = scene.history.table.current_snapshot()
    assert written is not None
    scene.now = written.timestamp_ms / 1000
    scene.look()
    assert (scene.files(), scene.debt().due) == ({A: 2}, ())
    reads_since_last_time()
    scene.now += 10 * 86_400
    assert scene.look().outcome is Outcome.UNCHANGED
    assert [each.key.values for each in scene.debt().due] == [A]
    assert scene.debt().due_since == scene.now
    assert reads_since_last_time() == 0


def test_a_table_that_was_unreadable_for_a_while_and_has_not_changed_is_no_longer_stale(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.catalogs.failure = RetryError("no answer")
    assert scene.look().outcome is Outcome.UNREADABLE
    assert scene.debt().stale == "no answer"
    scene.catalogs.failure = None
    assert scene.look().outcome is Outcome.UNCHANGED
    assert scene.debt().stale is None


def test_what_the_catalog_confirmed_is_kept_with_its_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag of an answer is trusted for an hour after the catalog named the location itself, not after any answer."""
    asked: list[KnownVersion | None] = []
    load = scene.catalogs.load_if_changed

    def watched(name: Any, known: KnownVersion | None, now: float) -> Any:
        asked.append(known)
        return load(name, known, now)

    monkeypatch.setattr(scene.catalogs, "load_if_changed", watched)
    start = scene.now
    for _ in range(3):
        scene.look()
        scene.now += 100
    location = scene.history.table.metadata_location
    assert asked == [None, KnownVersion(location, None, start), KnownVersion(location, None, start + 100)]


# --- missing ----------------------------------------------------------------------------------------------------------


def test_a_dropped_table_leaves_the_board_and_its_state(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    assert scene.database.head(NAME.key) is not None
    scene.board.request(NAME, ["id = 1"])
    scene.catalog.drop_table("db.t")
    assert scene.look().outcome is Outcome.MISSING
    assert scene.board.tables() == ()
    assert scene.look().outcome is Outcome.MISSING
    assert scene.board.known() == ()
    assert (scene.database.head(NAME.key), scene.database.slots(NAME.key)) == (None, {})
    assert (scene.looker.is_known(NAME), scene.looker.names.is_missing(NAME)) == (False, True)


def test_a_table_that_is_missing_for_a_moment_keeps_its_requests(scene: Scene) -> None:
    """A proxy answers 404. The state is counted anew; nothing would bring a request back."""
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.board.request(NAME, ["id = 1"])
    listed, scene.looker.is_listed = [True], lambda _table: listed[0]
    scene.catalogs.failure = TableMissingError("404")
    for _ in range(3):
        assert scene.look().outcome is Outcome.MISSING
        assert scene.board.tables() == ()
    scene.catalogs.failure = None
    scene.look()
    assert scene.debt().requested == ("id = 1",)
    scene.catalogs.failure, listed[0] = TableMissingError("404"), False
    scene.look()
    assert scene.board.known() == (NAME,), "it was there at the last look; its listing may be old"
    scene.look()
    assert scene.board.known() == ()


def test_nothing_is_kept_of_dropped_tables_and_of_those_of_others(scene: Scene) -> None:
    for forget in (scene.look, lambda: scene.looker.forget(NAME)):
        scene.catalogs.failure = None
        scene.look()
        scene.looker.planned(NAME)
        scene.catalogs.failure = TableMissingError("dropped")
        forget()
        assert (scene.looker._planned, scene.looker._known, scene.looker._failures) == (set(), {}, {})


def test_a_table_that_is_created_anew_under_its_name_is_counted_anew(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    scene.history.recreate()
    scene.history.append_unreal("b", [3])
    scene.look()
    assert scene.files() == {'["b"]': 1}
    assert scene.updates[-1].recount_reason == "table_replaced"
    assert not scene.looker.names.is_missing(NAME)


def test_state_that_cannot_be_deleted_does_not_end_the_look(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.look()
    scene.catalog.drop_table("db.t")

    def full(_name: str) -> None:
        raise RetryError("the disk is full")

    monkeypatch.setattr(scene.database, "forget", full)
    assert scene.look().outcome is Outcome.MISSING
    assert scene.board.tables() == ()


# --- unreadable -------------------------------------------------------------------------------------------------------


def test_an_unreadable_table_backs_off_from_15_seconds_to_ten_minutes_until_it_is_readable(scene: Scene) -> None:
    scene.looker.is_listed = lambda _table: True
    scene.history.append_unreal("a", [1])
    file, content = damaged(scene)
    looks = [scene.look() for _ in range(8)]
    assert {each.outcome for each in looks} == {Outcome.UNREADABLE}
    waits = [each.again_after for each in looks]
    assert waits == [15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert (waits[0], waits[-1]) == (FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
    assert "cannot be loaded" in str(scene.debt().stale)
    (told, *_) = (event for event in scene.published if isinstance(event, TableUnreadable))
    assert (told.table, told.reason, told.message) == (NAME, Reason.TABLE_UNREADABLE, scene.debt().stale)
    file.write_text(content)
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().stale, scene.files()) == (None, {A: 1})
    damaged(scene)
    scene.looker._known.clear()
    assert scene.look().again_after == FIRST_RETRY_SECONDS


def test_a_manifest_list_that_cannot_be_read_makes_the_table_stale(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.history.append_unreal("a", [1])
    head = scene.history.table.current_snapshot()
    assert head is not None
    Path(plain_path(head.manifest_list)).unlink()
    looked = scene.look(asked=Asked(Lane.EVENT, scene.now - 5))
    assert (looked.outcome, looked.error is not None) == (Outcome.UNREADABLE, True)
    assert (scene.files(), scene.debt().waiting_since) == ({A: 1}, scene.now - 5)


def test_an_unexpected_error_is_published_and_ends_only_this_look(scene: Scene) -> None:
    scene.catalogs.failure = ValueError("a bug")
    looked = scene.look()
    assert looked.outcome is Outcome.UNREADABLE
    (told,) = (event for event in scene.published if isinstance(event, TableUnreadable))
    assert (told.reason, told.message) == (Reason.UNEXPECTED, "ValueError: a bug")


def test_a_full_disk_costs_no_count(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.history.append_unreal("a", [1])
    save = scene.database.save

    def full(*_: object, **__: object) -> None:
        raise RetryError("the disk is full", reason=Reason.NO_SPACE)

    monkeypatch.setattr(scene.database, "save", full)
    for _ in range(2):  # a look that found no state of its own counts again, although nothing has changed
        assert scene.look().outcome is Outcome.COUNTED
        assert (scene.files(), scene.debt().stale, scene.looker.unsaved) == ({A: 1}, None, "the disk is full")
    scene.history.append_unreal("b", [1, 1])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.debt().total.data_files == 3
    monkeypatch.setattr(scene.database, "save", save)
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().total.data_files, scene.looker.unsaved) == (3, "")
    assert scene.look().outcome is Outcome.UNCHANGED


def test_a_long_count_that_cannot_be_saved_backs_off(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start from zero with each look."""
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    monkeypatch.setattr("compactor.debt.ledger.FILES_PER_LOOK", 1)

    def full(*_: object, **__: object) -> None:
        raise RetryError("the disk is full", reason=Reason.NO_SPACE)

    monkeypatch.setattr(scene.database, "save", full)
    looked = scene.look()
    assert (looked.outcome, looked.again_after) == (Outcome.UNREADABLE, 15.0)


# --- what is remembered -----------------------------------------------------------------------------------------------


FLIPS = {
    "a byte of the counts": "UPDATE slots SET packed = CAST(substr(packed, 1, length(packed) - 1) || x'ff' AS BLOB)",
    "counts that are text": "UPDATE slots SET packed = CAST('text' AS TEXT)",
    "counts that are cut": "UPDATE slots SET packed = substr(packed, 1, 9)",
    "a bracket of the head": "UPDATE heads SET head = substr(head, 2)",
    "a byte of the head": "UPDATE heads SET head = CAST(x'ff' || substr(head, 2) AS TEXT)",
    "a key of the head": "UPDATE heads SET head = replace(head, 'drift', 'drifu')",
    "a head without keys": "UPDATE heads SET head = '[]'",
}


@pytest.mark.parametrize("damage", FLIPS)
@pytest.mark.parametrize("commits", [False, True])
def test_saved_counts_that_are_damaged_on_disk_are_counted_again(scene: Scene, damage: str, *, commits: bool) -> None:
    """SQLite checks no content, so it reads a changed byte as if that had been saved."""
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    with scene.database._connection as connection:
        connection.execute(FLIPS[damage])
    scene.restart()
    if commits:
        scene.history.append_unreal("a", [3])
    assert (scene.look().outcome, scene.look().outcome) == (Outcome.UNREADABLE, Outcome.COUNTED)
    (event,) = (event for event in scene.published if isinstance(event, TableUnreadable))
    assert event.reason is Reason.STATE_UNREADABLE
    assert scene.files() == {A: 3 if commits else 2}
    assert (scene.debt().stale, scene.updates[-1].recount_reason) == (None, "first_sight")
    scene.restart()
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.updates[-1].recount_reason is None


def test_a_judgement_of_damaged_counts_is_a_look_that_heals_them(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.ledger.board_writer.KEPT_OF_A_SLOT", 1)
    slot = ledger.slot_of(PartitionKey(0, A))
    b = next(name for name in map(str, range(9_999)) if ledger.slot_of(PartitionKey(0, f'["{name}"]')) == slot)
    for partition in ("a", b):
        scene.history.append_unreal(partition, [1, 2])
    scene.look()
    assert scene.debt().others.partitions
    with scene.database._connection as connection:
        connection.execute(FLIPS["a byte of the counts"])
    assert not scene.looker.judge(NAME)
    assert [scene.look().outcome for _ in range(2)] == [Outcome.UNREADABLE, Outcome.COUNTED]
    assert scene.looker.judge(NAME)


def test_only_the_newest_snapshots_are_remembered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMEMBERED_SNAPSHOTS >= 100
    monkeypatch.setattr("streaming.ledger.looker.REMEMBERED_SNAPSHOTS", 2)
    for _ in range(4):
        scene.history.append_unreal("a", [1])
    scene.look()
    ids = [each.snapshot_id for each in scene.history.table.snapshots()]
    assert [scene.looker.has_seen(NAME, each, 0.0) for each in ids] == [False, False, True, True]
    assert not scene.looker.has_seen(named("other"), ids[-1], 0.0)


def test_a_snapshot_that_was_rolled_back_is_news_when_main_returns_to_it(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.history.append_unreal("a", [1])
    first, second = (each.snapshot_id for each in scene.history.table.snapshots())
    scene.history.table.manage_snapshots().set_current_snapshot(first).commit()
    scene.look()
    assert [scene.looker.has_seen(NAME, each, 0.0) for each in (first, second)] == [True, False]


def test_a_table_of_another_service_is_forgotten_but_its_state_stays(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.looker.forget(NAME)
    assert (scene.board.tables(), scene.looker.is_known(NAME)) == ((), False)
    scene.history.append_unreal("a", [1])
    scene.look()
    assert scene.files() == {A: 2}
    assert scene.updates[-1].recount_reason is None


# --- reading ahead ----------------------------------------------------------------------------------------------------


def test_new_manifests_are_read_ahead_for_tables_that_were_planned(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.look()
    assert scene.plan_reads == []
    scene.looker.planned(NAME)
    scene.look()
    assert scene.plan_reads == [], "unchanged: there are no new manifests"
    scene.history.append_unreal("a", [1])
    scene.look()
    (read,) = scene.plan_reads
    assert isinstance(read, ManifestsRead)
    assert (read.prefetched, read.foreseen) == (2, 0)
    view = scene.catalogs.load(NAME)
    scene.plans.read(view, view.manifests())
    assert [event.foreseen for event in scene.plan_reads if isinstance(event, ManifestsRead)] == [0, 2]


def test_manifests_that_cannot_be_read_ahead_are_no_obstacle(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.history.append_unreal("a", [1])
    scene.looker.planned(NAME)

    def fails(*_: object, **__: object) -> None:
        raise RetryError("the store does not answer")

    monkeypatch.setattr(scene.plans, "read", fails)
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.files() == {A: 1}


def test_state_is_kept_by_the_tables_whole_name(scene: Scene) -> None:
    scene.look()
    with sqlite3.connect(scene.folder / "ledger.sqlite") as other:
        names = [json.loads(name) for (name,) in other.execute("SELECT name FROM heads")]
    other.close()
    assert names == [["lake", "db", "t"]]
