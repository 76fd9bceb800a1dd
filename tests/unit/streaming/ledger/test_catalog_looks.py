"""Who asks for looks at the tables of a catalog, when each takes place, and what follows from its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.events import CatalogAnswers, TableLooked
from streaming.ledger.catalog_calls import BACKOFF, SILENT_AFTER
from streaming.ledger.catalog_tables import MOST_UNKNOWN, PAUSE_SECONDS, TRY_AGAIN_SECONDS
from streaming.ledger.look_order import EVENTS_IN_A_ROW
from streaming.ledger.table_record import Asked, Forget, Lane, Looked, Lost, Outcome, Stale
from tests.unit.streaming.ledger.catalog_scene import (
    DAMAGED,
    EVENT,
    FORBIDDEN,
    MISSING,
    PLACE,
    SILENT,
    SWEEP,
    UNKNOWN,
    CatalogScene,
    counted,
    named,
)

T = named("t")


@pytest.fixture
def scene() -> CatalogScene:
    return CatalogScene()


# --- order ------------------------------------------------------------------------------------------------------------


def test_many_who_ask_are_one_look_that_answers_all(scene: CatalogScene) -> None:
    for number in range(100):
        scene.ask("t", asked=Asked(Lane.EVENT, 1000.0 - number, announced=frozenset({number % 3}), tries=number % 2))
    assert scene.take() == ("t", Asked(Lane.EVENT, 901.0, announced=frozenset({0, 1, 2})))
    assert scene.take() is None


def test_tables_without_events_are_looked_at_while_events_never_end(scene: CatalogScene) -> None:
    scene.ask(*(f"e{number}" for number in range(3 * EVENTS_IN_A_ROW)))
    scene.ask("s1", asked=SWEEP)
    scene.ask("u1", asked=UNKNOWN)
    looks = scene.waiting()
    assert (looks.index("s1"), looks.index("u1")) == (EVENTS_IN_A_ROW, 2 * EVENTS_IN_A_ROW + 1)


def test_a_flood_of_unknown_names_is_bounded_but_for_those_that_a_request_waits_for(scene: CatalogScene) -> None:
    scene.ask(*(f"u{number}" for number in range(3 * MOST_UNKNOWN)), asked=UNKNOWN)
    scene.ask("requested", asked=replace(UNKNOWN, requested=True))
    assert len(scene.lake.order) == len([*scene.lake.names]) == MOST_UNKNOWN + 1
    scene.ask("t")
    assert scene.waiting()[0] == "t"


# --- pauses and back-offs ---------------------------------------------------------------------------------------------


def test_a_table_that_is_asked_for_while_it_is_looked_at_is_looked_at_once_more_after_a_pause(
    scene: CatalogScene,
) -> None:
    scene.ask("t")
    assert scene.take() == ("t", EVENT)
    scene.ask("t", asked=Asked(Lane.EVENT, 5.0))
    scene.ask("t", asked=Asked(Lane.EVENT, 4.0))
    assert scene.take() is None
    scene.end("t", EVENT, counted())
    scene.now += PAUSE_SECONDS - 0.01
    assert scene.take() is None
    scene.now += 0.01
    assert scene.take() == ("t", Asked(Lane.EVENT, 4.0))
    scene.end("t", EVENT, counted())
    scene.now += 1_000
    assert scene.take() is None


def test_an_unreadable_table_backs_off_whoever_asks_until_it_is_readable(scene: CatalogScene) -> None:
    scene.ask("t", asked=Asked(Lane.EVENT, 7.0))
    for wait in (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0):
        actions = scene.look(DAMAGED)
        assert actions[0] == Stale(T, DAMAGED.error or AssertionError(), 7.0)  # type: ignore[arg-type]
        scene.ask("t")
        scene.now += wait - 0.01
        assert scene.take() is None
        scene.now += 0.01
    assert scene.look(counted()) == [TableLooked(T, Outcome.COUNTED)]
    scene.ask("t")
    scene.now += PAUSE_SECONDS
    scene.look(DAMAGED)
    assert scene.lake.get(T).not_before == scene.now + 10.0


# --- names that are no tables -----------------------------------------------------------------------------------------


def test_a_missing_table_is_lost_with_its_requests_and_state_unless_it_may_come_back(scene: CatalogScene) -> None:
    error = MISSING.error
    assert error is not None
    scene.ask("t")
    assert scene.look(MISSING)[0] == Lost(T, error, keep_requests=True, with_state=False), "no listing has ended"
    scene.list()
    for keeps, before in ((False, None), (True, counted()), (False, None)):
        scene.now += 1_000
        scene.ask("t")
        if before is not None:
            scene.look(before)
            scene.now += 1
            scene.ask("t")
        assert scene.look(MISSING)[0] == Lost(T, error, keep_requests=keeps, with_state=True)
        assert not scene.lake.get(T).known


@pytest.mark.parametrize("known_by", ["nothing", "a count", "a listing", "no listing", "its namespace"])
def test_a_name_that_cannot_be_loaded_is_none_unless_something_knows_it(scene: CatalogScene, known_by: str) -> None:
    if known_by != "no listing":
        scene.list(*["t"] * (known_by == "a listing"), unlisted=("db",) * (known_by == "its namespace"))
    scene.ask("t")
    if known_by == "a count":
        scene.look(counted())
        scene.ask("t")
        scene.now += 1
    actions = scene.look(FORBIDDEN)
    assert isinstance(actions[0], Lost if known_by == "nothing" else Stale)


def test_a_flood_of_events_of_a_missing_name_is_one_look_in_thirty_seconds(scene: CatalogScene) -> None:
    looks = 0
    for _ in range(300):
        scene.lake.hear(T, UNKNOWN, scene.moment)
        while (taken := scene.take()) is not None:
            looks += 1
            scene.end(*taken, MISSING)
        scene.now += 1
    assert looks <= 300 / TRY_AGAIN_SECONDS[-1] + 1


# --- events before their commit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [7, "s3://lake/t/metadata/00004-x.metadata.json"])
@pytest.mark.parametrize("found", [counted(5), MISSING])
def test_what_an_event_told_of_and_a_look_did_not_find_is_looked_for_three_times(
    scene: CatalogScene, announced: int | str, found: Looked
) -> None:
    scene.ask("t", asked=Asked(Lane.EVENT, 5.0, announced=frozenset({announced, 5, PLACE})))
    scene.look(found)
    for seconds in TRY_AGAIN_SECONDS:
        scene.now += seconds - 0.1
        assert scene.take() is None
        scene.now += 0.1
        taken = scene.take()
        assert taken is not None
        assert (announced in taken[1].announced, taken[1].oldest_event) == (True, 5.0)
        scene.end(*taken, found)
    scene.now += 1_000
    assert scene.take() is None


def test_a_look_that_waits_for_a_commit_delays_no_other(scene: CatalogScene) -> None:
    scene.ask("t", asked=Asked(Lane.EVENT, announced=frozenset({7})))
    scene.look(counted(5))
    scene.now += PAUSE_SECONDS
    scene.ask("t", asked=Asked(Lane.EVENT, announced=frozenset({8})))
    assert scene.look(counted(7, 8)) == [TableLooked(T, Outcome.COUNTED)]


# --- ignored tables ---------------------------------------------------------------------------------------------------


def test_a_table_that_becomes_ignored_is_forgotten_also_during_its_look() -> None:
    scene = CatalogScene()
    for name in ("counted", "asked", "looked-at"):
        scene.ask(name)
    assert scene.take() == ("counted", EVENT)
    scene.end("counted", EVENT, counted())
    scene.ask("looked-at")
    rules = scene.settings.tables.model_copy(update={"exclude": ("*",)})
    scene.settings.take(scene.settings.now.model_copy(update={"tables": rules}))
    gone = {named(name) for name in ("counted", "asked", "looked-at", "requested")}
    assert {*scene.tables.settings_changed([named("requested")])} == {*map(Forget, gone)}
    assert scene.end("looked-at", EVENT, counted()) == [Forget(named("looked-at"))]
    scene.now += 1_000
    assert scene.take() is None
    assert not any(scene.lake.get(each).known for each in gone)


# --- silent catalogs --------------------------------------------------------------------------------------------------


def test_a_silent_catalog_is_tried_by_one_call_at_a_time_until_it_answers(scene: CatalogScene) -> None:
    scene.list("t")
    scene.ask(*(f"t{number}" for number in range(50)))
    told = []
    for number in range(1, SILENT_AFTER + 1):
        told += scene.look(SILENT)
        assert scene.take() is None
        scene.now += BACKOFF.seconds(number)
    assert [each.available for each in told if isinstance(each, CatalogAnswers)] == [False]
    assert scene.tables.troubles(scene.moment) == {"catalog lake": "does not answer"}
    taken = scene.take()
    assert taken is not None
    assert scene.take() is None, "one tries"
    scene.lake.listings.soon()
    assert not scene.lake.starts_listing(scene.moment)
    told = scene.end(*taken, MISSING)
    assert [each.available for each in told if isinstance(each, CatalogAnswers)] == [True]
    assert len(scene.waiting()) > 40


# --- all together -----------------------------------------------------------------------------------------------------


class History:
    """`busy`: looks that are under way. `owed`: tables whose look somebody waits for."""

    def __init__(self) -> None:
        self.scene = CatalogScene()
        self.busy: dict[str, Asked] = {}
        self.owed: set[str] = set()

    def ask(self, name: str, _looked: Looked) -> None:
        self.scene.ask(name)
        self.owed.add(name)

    def hear(self, name: str, _looked: Looked) -> None:
        self.scene.lake.hear(named(name), UNKNOWN, self.scene.moment)

    def list(self, name: str, _looked: Looked) -> None:
        self.scene.lake.calls.ended(None)
        self.scene.list(name)

    def sweep(self, _name: str, _looked: Looked) -> None:
        self.scene.tables.sweep_soon()

    def wait(self, name: str, _looked: Looked) -> None:
        self.scene.now += int(name) ** 4

    def take(self, _name: str, _looked: Looked) -> None:
        taken = self.scene.take()
        if taken is not None:
            assert taken[0] not in self.busy
            self.busy[taken[0]] = taken[1]
            self.owed.discard(taken[0])

    def end(self, _name: str, looked: Looked) -> None:
        if self.busy:
            self.scene.end(*self.busy.popitem(), looked)


STEPS = st.tuples(
    st.sampled_from([*(name for name in vars(History) if not name.startswith("_")), "ask", "take", "take", "end"]),
    st.sampled_from(["0", "1", "2", "3", "5"]),
    st.sampled_from([counted(), MISSING, DAMAGED, SILENT, FORBIDDEN, Looked(Outcome.COUNTING, more=True)]),
)


@given(st.lists(STEPS, max_size=60))
def test_no_request_is_lost_and_no_table_is_looked_at_twice_at_once(steps: list[tuple[str, str, Looked]]) -> None:
    history = History()
    for what, name, looked in steps:
        getattr(history, what)(name, looked)
    scene = history.scene
    while history.busy:
        history.end("", counted())
    scene.lake.calls.ended(None)
    for _ in range(400):
        scene.now = max(scene.now + 1, scene.lake.order.next_at or 0.0)
        history.owed -= {*scene.waiting()}
    assert not history.owed
