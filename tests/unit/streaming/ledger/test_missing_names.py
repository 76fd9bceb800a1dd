"""Names that no listing has: they are no tables, or other spellings of a table's name."""

from __future__ import annotations

import pytest

from compactor.errors import RetryError
from compactor.events import TableUnreadable
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger.looker import Outcome
from streaming.ledger.missing_names import MISSING_SECONDS, MissingNames
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene, named

UNREADABLE = RetryError("damage", reason=Reason.TABLE_UNREADABLE)


def test_a_name_that_was_never_loaded_and_is_not_listed_is_no_table_and_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Events of a catalog also name Hive's tables, and tables that this service may not see."""
    caplog.set_level("INFO")
    scene.catalogs.failure = UNREADABLE
    for _ in range(2):
        looked = scene.look(named("forbidden"))
    assert (looked.outcome, str(looked.error)) == (Outcome.MISSING, "damage")
    assert scene.board.known() == ()
    assert not any(isinstance(event, TableUnreadable) for event in scene.published)
    assert caplog.text.count("events of an unknown table are not used: damage") == 1


@pytest.mark.parametrize("known_by", ["a listing", "a look", "the saved counts", "nothing, as its catalog is silent"])
def test_a_table_that_is_unreadable_now_stays_on_the_board(scene: Scene, known_by: str) -> None:
    if known_by in ("a look", "the saved counts"):
        scene.look()
    if known_by == "the saved counts":
        scene.start()
    scene.looker.is_listed = lambda _table: known_by == "a listing"
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
    scene.looker.spelled = lambda table: NAME if table == named("T") else None
    assert scene.look(named("T")).outcome is Outcome.MISSING
    assert scene.catalogs.calls == []


def test_a_flood_of_events_of_a_missing_name_is_one_look_in_thirty_seconds() -> None:
    """Each look that misses the table would otherwise put off another one."""
    now = [1000.0]
    names, table = MissingNames(lambda: now[0]), named("gone")
    due: list[float] = []
    for second in range(300):
        now[0] = 1000.0 + second
        if second in (0, 1, 6, 36) or now[0] in due:
            names.lost(table)
        seconds = names.put_off(table)
        assert seconds != 0.0
        if seconds is not None:
            due.append(now[0] + seconds)
    assert len(due) <= 300 / MISSING_SECONDS + 1
