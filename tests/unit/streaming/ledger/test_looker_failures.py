"""Looks at tables that are missing, given away or unreadable, or whose saved counts are damaged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from compactor.debt import ledger
from compactor.errors import RetryError
from compactor.events import TableUnreadable
from compactor.iceberg.tables import TableMissingError
from compactor.locations import plain_path
from compactor.partitions import PartitionKey
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger.table_record import Asked, Lane, Outcome
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import A, Scene, named


def damaged(scene: Scene) -> tuple[Path, str]:
    """Replace the table's metadata file by rubbish; returns the file and what it held."""
    file = Path(plain_path(scene.history.table.metadata_location))
    content = file.read_text()
    file.write_text("{}")
    return file, content


# --- missing ----------------------------------------------------------------------------------------------------------


def test_a_dropped_table_leaves_the_board_and_its_state(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    assert scene.database.head(NAME.key) is not None
    scene.board.request(NAME, ["id = 1"])
    scene.lake.listings.ended = True
    scene.catalog.drop_table("db.t")
    assert scene.look().outcome is Outcome.MISSING
    assert scene.board.tables() == ()
    assert scene.look().outcome is Outcome.MISSING
    assert scene.board.known() == ()
    assert (scene.database.head(NAME.key), scene.database.slots(NAME.key)) == (None, {})
    assert not scene.record().known


def test_a_table_that_was_dropped_while_the_service_was_down_leaves_no_state(scene: Scene) -> None:
    """Neither a listing nor the board has it; an event names it. Of a listed table, a proxy may say so for a moment."""
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.restart()
    scene.catalog.drop_table("db.t")
    assert scene.look().outcome is Outcome.MISSING, "no listing has ended"
    assert scene.database.head(NAME.key) is not None
    scene.lake.listings.ended = True
    assert scene.look().outcome is Outcome.MISSING
    assert (scene.database.head(NAME.key), scene.database.slots(NAME.key)) == (None, {})


def test_a_table_that_is_missing_for_a_moment_keeps_its_requests(scene: Scene) -> None:
    """A proxy answers 404. The state is counted anew; nothing would bring a request back."""
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.board.request(NAME, ["id = 1"])
    scene.catalogs.failure = TableMissingError("404")
    for _ in range(3):
        assert scene.look().outcome is Outcome.MISSING
        assert scene.board.tables() == ()
    scene.catalogs.failure = None
    scene.look()
    assert scene.debt().requested == ("id = 1",)
    scene.catalogs.failure, scene.lake.listings.ended = TableMissingError("404"), True
    scene.look()
    assert scene.board.known() == (NAME,), "it was there at the last look; its listing may be old"
    scene.look()
    assert scene.board.known() == ()


# --- unreadable -------------------------------------------------------------------------------------------------------


def test_an_unreadable_table_is_stale_until_it_is_readable(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    file, content = damaged(scene)
    assert scene.look().outcome is Outcome.UNREADABLE
    assert "cannot be loaded" in str(scene.debt().stale)
    (told,) = (event for event in scene.published if isinstance(event, TableUnreadable))
    assert (told.table, told.reason, told.message) == (NAME, Reason.TABLE_UNREADABLE, scene.debt().stale)
    file.write_text(content)
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().stale, scene.files()) == (None, {A: 1})


UNREADABLE = RetryError("damage", reason=Reason.TABLE_UNREADABLE)


def test_a_name_that_was_never_loaded_and_is_not_listed_is_no_table_and_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Events of a catalog also name Hive's tables, and tables that this service may not see."""
    caplog.set_level("INFO")
    scene.lake.listings.ended, scene.catalogs.failure = True, UNREADABLE
    for _ in range(2):
        assert scene.look(named("forbidden")).error is UNREADABLE
    assert scene.board.known() == ()
    assert scene.outcomes == [Outcome.MISSING] * 2
    assert not any(isinstance(event, TableUnreadable) for event in scene.published)
    assert caplog.text.count("events of an unknown table are not used: damage") == 1


@pytest.mark.parametrize("known_by", ["no listing", "a look", "the saved counts", "nothing, as its catalog is silent"])
def test_a_table_that_is_unreadable_now_stays_on_the_board(scene: Scene, known_by: str) -> None:
    if known_by in ("a look", "the saved counts"):
        scene.look()
    if known_by == "the saved counts":
        scene.restart()
    scene.lake.listings.ended = known_by != "no listing"
    silent = known_by.startswith("nothing")
    scene.catalogs.failure = RetryError("damage", reason=Reason.CATALOG_UNAVAILABLE) if silent else UNREADABLE
    assert scene.look().outcome is Outcome.UNREADABLE
    assert scene.debt().stale == "damage"


def test_a_table_has_the_one_name_that_its_catalog_gives_it(scene: Scene) -> None:
    """PyIceberg's SQL catalog finds ("db", "x", "t") and ("db.x", "t") alike, Hive's also DB.T."""
    scene.catalog.create_namespace_if_not_exists("db.x")
    scene.catalog.create_table("db.x.t", scene.history.table.schema())
    assert scene.look(TableName("lake", ("db.x",), "t")).outcome is Outcome.MISSING
    assert scene.look(TableName("lake", ("db", "x"), "t")).outcome is Outcome.COUNTED


def test_another_spelling_of_a_listed_name_is_no_table(scene: Scene) -> None:
    """REST catalogs do not tell their own spelling: `tables.exclude` and pauses are about the listed one."""
    scene.driver.list_if_due("lake")
    scene.catalogs.calls.clear()
    assert scene.look(named("T")).outcome is Outcome.MISSING
    assert scene.catalogs.calls == []


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


def test_a_full_disk_costs_no_count(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.database.full = True
    for _ in range(2):  # a look that found no state of its own counts again, although nothing has changed
        assert scene.look().outcome is Outcome.COUNTED
        assert (scene.files(), scene.debt().stale, scene.looker.unsaved) == ({A: 1}, None, "the disk is full")
    scene.history.append_unreal("b", [1, 1])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.debt().total.data_files == 3
    scene.database.full = False
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().total.data_files, scene.looker.unsaved) == (3, "")
    assert scene.look().outcome is Outcome.UNCHANGED


def test_a_look_that_has_nothing_to_save_is_no_sign_of_room_on_the_disk(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.looker.unsaved = "the disk is full"
    scene.history.set_properties({"a": "b"})
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.looker.unsaved == "the disk is full"
    scene.history.append_unreal("a", [1])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.looker.unsaved == ""


@pytest.mark.usefixtures("one_file_per_look")
def test_a_long_count_that_cannot_be_saved_backs_off(scene: Scene) -> None:
    """It would start from zero with each look."""
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    scene.database.full = True
    assert scene.look().outcome is Outcome.UNREADABLE
    assert scene.record().not_before == scene.now + 10.0


# --- saved counts -----------------------------------------------------------------------------------------------------


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


@pytest.fixture
def large(scene: Scene) -> Scene:
    """A counted table with more partitions with debt than the board has as objects: the rest is only in the state."""
    scene.writer.kept_of_a_slot = 1
    slot = ledger.slot_of(PartitionKey(0, A))
    b = next(name for name in map(str, range(9_999)) if ledger.slot_of(PartitionKey(0, f'["{name}"]')) == slot)
    for partition in ("a", b):
        scene.history.append_unreal(partition, [1, 2])
    scene.look()
    assert scene.debt().others.partitions
    return scene


@pytest.mark.parametrize("judged", [False, True])
def test_an_unchanged_table_is_counted_again_after_the_database_was_set_aside(large: Scene, *, judged: bool) -> None:
    before = large.debt()
    large.database._set_aside(sqlite3.DatabaseError("damage"), large.database.generation)
    if judged:
        assert not large.looker.judge(NAME, large.record().count)
        assert large.debt() == before
    assert large.look().outcome is Outcome.COUNTED
    assert large.updates[-1].recount_reason == "first_sight"
    assert (large.debt().partitions, large.debt().others) == (before.partitions, before.others)
    assert large.look().outcome is Outcome.UNCHANGED
    assert large.looker.judge(NAME, large.record().count)


def test_a_judgement_of_damaged_counts_is_a_look_that_heals_them(large: Scene) -> None:
    scene = large
    with scene.database._connection as connection:
        connection.execute(FLIPS["a byte of the counts"])
    assert not scene.looker.judge(NAME, scene.record().count)
    assert [scene.look().outcome for _ in range(2)] == [Outcome.UNREADABLE, Outcome.COUNTED]
    assert scene.looker.judge(NAME, scene.record().count)


def test_a_request_under_another_spelling_goes_to_the_table(scene: Scene) -> None:
    """It came before the first listing: the catalog had not told its own spelling yet."""
    scene.board.request(named("T"), ["id = 1"])
    scene.driver.list_if_due("lake")
    assert scene.look(named("T")).outcome is Outcome.MISSING
    assert scene.driver.take("lake", 0.0) is not None
    scene.look()
    assert (scene.debt().requested, scene.board.requests(named("T"))) == (("id = 1",), ())
