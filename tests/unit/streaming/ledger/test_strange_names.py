"""Names that no listing has: they are no tables, or other spellings of a table's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.errors import RetryError
from compactor.events import TableUnreadable
from compactor.iceberg.tables import TableView
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger.looker import Outcome
from streaming.ledger.strange_names import MISSING_SECONDS, NO_TABLE_SECONDS, StrangeNames
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene, named

UNREADABLE = RetryError("damage", reason=Reason.TABLE_UNREADABLE)


def test_a_name_that_was_never_loaded_and_is_not_listed_is_no_table(scene: Scene) -> None:
    """Events of a catalog also name Hive's tables, and tables that this service may not see."""
    scene.catalogs.failure = UNREADABLE
    looked = scene.look(named("forbidden"))
    assert (looked.outcome, str(looked.error)) == (Outcome.MISSING, "damage")
    assert scene.board.known() == ()
    assert not any(isinstance(event, TableUnreadable) for event in scene.published)


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
    other, table = TableName("lake", ("db.x",), "t"), TableName("lake", ("db", "x"), "t")
    scene.board.request(other, ["id = 1"])
    looked = scene.look(other)
    assert (looked.outcome, looked.called) == (Outcome.MISSING, table)
    assert (scene.board.requests(table), scene.board.requests(other)) == (("id = 1",), ())
    assert scene.looker.names.name_of(other) == table
    assert scene.look(table).outcome is Outcome.COUNTED
    assert scene.looker.names.name_of(other) == table
    scene.catalog.drop_table("db.x.t")
    scene.look(table)
    assert scene.looker.names.name_of(other) == other


def test_another_spelling_of_a_listed_name_is_that_table_if_it_has_its_uuid(scene: Scene) -> None:
    """REST catalogs do not tell their own spelling."""
    scene.catalog.create_table("db.T", scene.history.table.schema())
    scene.looker.spelled = lambda table: NAME if table == named("T") else None
    assert scene.look(named("T")).outcome is Outcome.COUNTED, "it is another table"
    real = scene.catalogs.load
    scene.catalogs.load = lambda name, ref="main": replace(real(NAME, ref), name=name)  # type: ignore[method-assign]
    scene.looker.forget(named("T"))
    looked = scene.look(named("T"))
    assert (looked.outcome, looked.called) == (Outcome.MISSING, NAME)


def test_an_excluded_table_is_not_counted_under_another_spelling(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tables={"include": ["*"], "exclude": ["db.t"]})
    real = scene.catalogs.load
    scene.catalogs.load = lambda name, ref="main": replace(real(NAME, ref), name=name)  # type: ignore[method-assign]
    scene.looker.spelled = lambda table: NAME if table == named("T") else None
    scene.board.request(named("T"), [""])
    looked = scene.look(named("T"))
    assert (looked.outcome, looked.called) == (Outcome.MISSING, NAME)
    assert (scene.board.tables(), scene.board.pending()) == ((), {})


def test_a_table_that_was_renamed_to_other_capitals_is_there_at_once(scene: Scene) -> None:
    """On a catalog that distinguishes them. The last listing still has the old name."""
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.catalog.rename_table("db.t", "db.T")
    scene.looker.spelled = lambda table: NAME if table == named("T") else None
    scene.board.request(named("T"), ["id = 1"])
    assert scene.look(named("T")).outcome is Outcome.COUNTED
    assert scene.look(named("T")).outcome is Outcome.UNCHANGED
    assert scene.board.requests(named("T")) == ("id = 1",)
    assert scene.look(NAME).outcome is Outcome.MISSING


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(Reason.TABLE_UNREADABLE, Outcome.COUNTED), (Reason.CATALOG_UNAVAILABLE, Outcome.UNREADABLE)],
)
def test_a_table_beside_an_unreadable_one_of_other_capitals_is_readable(
    scene: Scene, reason: Reason, outcome: Outcome
) -> None:
    """It was just loaded by its own name. Of a catalog that falls silent in between, nothing is known."""
    scene.catalog.create_table("db.T", scene.history.table.schema())
    scene.looker.spelled = lambda table: NAME if table == named("T") else None
    real = scene.catalogs.load

    def load(name: TableName, ref: str = "main") -> TableView:
        if name == NAME:
            raise RetryError("damage", reason=reason)
        return real(name, ref)

    scene.catalogs.load = load  # type: ignore[method-assign]
    assert scene.look(named("T")).outcome is outcome


def test_a_flood_of_events_of_a_missing_name_is_one_look_in_thirty_seconds() -> None:
    """Each look that misses the table would otherwise put off another one."""
    now = [1000.0]
    names, table = StrangeNames(lambda: now[0]), named("gone")
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


def test_a_name_is_no_table_as_long_as_looks_do_not_find_it() -> None:
    """Looks come every `MISSING_SECONDS` while events name it. A look alone may have come before the commit."""
    now = [1000.0]
    names, table = StrangeNames(lambda: now[0]), named("gone")
    names.lost(table)
    assert not names.is_no_table(table)
    names.no_table(table)
    assert names.is_missing(table)
    for _ in range(3):
        now[0] += MISSING_SECONDS
        assert names.is_no_table(table)
        names.lost(table)
    names.found(table)
    assert not names.is_no_table(table)
    names.no_table(table)
    now[0] += NO_TABLE_SECONDS
    assert not names.is_no_table(table)


def test_a_table_that_is_lost_takes_its_spellings_along_and_no_others() -> None:
    names = StrangeNames(lambda: 0.0)
    for spelling in ("T", "tT"):
        names.is_called(named(spelling), NAME)
    names.is_called(named("X"), named("x"))
    names.lost(NAME)
    assert [names.name_of(named(each)) for each in ("T", "tT", "X")] == [named("T"), named("tT"), named("x")]
