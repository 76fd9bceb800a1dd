"""Sweeps: events may be lost, so that every table is looked at once per interval."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError

from compactor.errors import FirnlineError, RetryError
from compactor.events import CatalogAnswers, TableUnreadable
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger import table_watcher
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.lookers import Breakers
from streaming.ledger.sweep_schedule import BEHIND_SECONDS, RARELY, Rhythm
from streaming.ledger.table_watcher import (
    LISTING_SECONDS,
    MOST_SHOWN,
    ROUND_SECONDS,
    SWEEP_AGAIN_SECONDS,
    Surroundings,
    TableWatcher,
)
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene, named, until

NO_LIST = RetryError("catalog lake cannot be listed: no answer", reason=Reason.CATALOG_UNAVAILABLE)


class Watching:
    """A watcher over a scene; `known` are the tables on the board."""

    def __init__(self, scene: Scene, **surroundings: Any) -> None:
        self.scene = scene
        self.now = 100.0
        self.step = 0.0
        self.queue = LookQueue(lambda: 0.0)
        self.known: list[TableName] = []
        self.breakers = Breakers(scene.catalogs.names, scene.published.append, lambda: self.now)
        self.watcher = TableWatcher(
            scene.settings,
            scene.catalogs,
            self.queue,
            self.breakers,
            Surroundings(**{"known": lambda: self.known, **surroundings}),
            scene.published.append,
            self._ticks,
            clock=lambda: scene.now,
        )

    def _ticks(self) -> float:
        self.now += self.step
        return self.now

    def asked(self, catalog: str = "lake") -> list[tuple[str, Asked]]:
        """What was put into the queue since the last call."""
        found = []
        while (taken := self.queue.take(catalog, 0.0)) is not None:
            found.append(taken)
        for table, _ in found:
            self.queue.done(table)
        self.queue._rest.clear()  # no pause between two looks: the clock of the queue stands still
        return sorted((table.name, asked) for table, asked in found)

    @property
    def sweeps(self) -> int:
        return sum(table.name == "*" for table in self.scene.catalogs.calls)


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_watcher, "WAIT_SECONDS", 0.01)


@pytest.fixture
def watching(scene: Scene) -> Iterator[Watching]:
    made = Watching(scene)
    yield made
    made.watcher.stop()


def test_a_sweep_asks_for_every_table_that_is_not_ignored(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tables={"include": ["*"], "exclude": ["db.ignored"]})
    watching = Watching(scene)
    for name in ("db.ignored", "db.other"):
        scene.catalog.create_table(name, scene.history.table.schema())
    assert watching.watcher.sweep("lake") == 2
    assert watching.asked() == [("other", Asked(Lane.SWEEP)), ("t", Asked(Lane.SWEEP))]


def test_sweeps_are_repeated_and_begin_when_the_stream_has_fixed_its_first_offsets(scene: Scene) -> None:
    may_start, questions = [False], list[bool]()

    def asks() -> bool:
        questions.append(may_start[0])
        return may_start[0]

    watching = Watching(scene, may_start=asks)
    watching.step = scene.settings.service.sweep_seconds  # an interval passes between any two looks at the clock
    watching.watcher.start()
    asked: list[str] = []
    until(lambda: len(questions) >= 3 or watching.sweeps)
    assert (watching.sweeps, watching.watcher.found) == (0, None)
    may_start[0] = True

    def asked_three_times() -> bool:
        asked.extend(name for name, _ in watching.asked())
        return len(asked) >= 3

    until(asked_three_times)
    until(lambda: watching.sweeps >= 3)
    watching.watcher.stop()
    assert set(asked) == {"t"}


def test_a_sweep_that_is_due_earlier_while_the_stream_is_behind(scene: Scene) -> None:
    behind = [False]
    watching = Watching(scene, behind=lambda: behind[0])
    watching.watcher.start()
    until(lambda: watching.sweeps == 1)
    watching.now += BEHIND_SECONDS + 1
    until(lambda: watching.watcher.found is not None)
    assert watching.sweeps == 1, "the interval is much longer"
    behind[0] = True
    until(lambda: watching.sweeps == 2)
    watching.watcher.stop()


def test_a_listing_that_takes_too_long_is_shown_until_it_ends(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = threading.Event(), threading.Event()

    def hangs(*_: Any) -> Iterator[TableName]:
        begun.set()
        answered.wait(60)
        yield NAME

    monkeypatch.setattr(watching.scene.catalogs, "list_tables", hangs)
    watching.watcher.start()
    try:
        assert begun.wait(60)
        watching.now += LISTING_SECONDS
        assert (watching.watcher.hanging, watching.watcher.listed) == ({}, {})
        watching.now += 1
        assert watching.watcher.hanging == {"lake": LISTING_SECONDS + 1}
        assert watching.watcher.listed == {"lake": False}
    finally:
        answered.set()
    until(lambda: watching.watcher.listed == {"lake": True})
    assert not watching.watcher.hanging


def test_sweep_soon_sweeps_at_once(watching: Watching) -> None:
    watching.watcher.start()
    until(lambda: watching.sweeps == 1)
    watching.watcher.sweep_soon()
    until(lambda: watching.sweeps == 2)


def test_our_own_commit_is_counted_before_any_sweep(watching: Watching) -> None:
    watching.watcher.look_soon(NAME)
    assert watching.asked() == [("t", Asked(Lane.EVENT))]


def test_a_table_that_was_dropped_unannounced_is_asked_for(watching: Watching) -> None:
    watching.known = [NAME, named("dropped"), named("t", "elsewhere"), named("requested")]
    watching.watcher.sweep("lake")
    assert [name for name, _ in watching.asked()] == ["dropped", "requested", "t"]
    assert watching.asked("elsewhere") == []
    for name in ("dropped", "requested"):
        assert watching.scene.look(named(name)).outcome == "missing"


def test_a_table_that_was_dropped_while_no_service_ran_is_asked_for_by_each_sweep_alone(scene: Scene) -> None:
    saved = [NAME, named("dropped"), named("not_ours"), named("t", "elsewhere")]
    watching = Watching(scene, owns=lambda table: table.name != "not_ours", saved=lambda: saved)
    watching.watcher.sweep("lake")
    assert [name for name, _ in watching.asked()] == ["dropped", "t"]
    watching.now += 10 * scene.settings.service.sweep_seconds
    watching.watcher.ask_due("lake")
    assert "dropped" not in [name for name, _ in watching.asked()]


def test_tables_of_another_shard_are_ignored(scene: Scene) -> None:
    scene.catalog.create_table("db.other", scene.history.table.schema())
    watching = Watching(scene, owns=lambda table: table.name in {"other", "on_board"})
    watching.known = [named("on_board"), named("not_ours")]
    assert watching.watcher.sweep("lake") == 1
    assert [name for name, _ in watching.asked()] == ["on_board", "other"]
    assert watching.watcher.found == frozenset({named("other")})


def test_found_is_what_the_last_sweep_listed(watching: Watching) -> None:
    scene, watcher = watching.scene, watching.watcher
    scene.catalog.create_table("db.other", scene.history.table.schema())
    assert (watcher.found, watcher.is_found(NAME)) == (None, False)
    watcher.sweep("lake")
    assert watcher.found == frozenset({NAME, named("other")})
    assert (watcher.is_found(NAME), watcher.is_found(named("t", "elsewhere"))) == (True, False)
    scene.catalog.drop_table("db.other")
    watcher.sweep("lake")
    assert watcher.found == frozenset({NAME})


# --- how often --------------------------------------------------------------------------------------------------------


def test_between_listings_tables_are_asked_for_as_often_as_they_need(scene: Scene) -> None:
    scene.catalog.create_table("db.announced", scene.history.table.schema())
    sweep = scene.settings.service.sweep_seconds

    def rhythm(table: TableName) -> Rhythm:
        return Rhythm(announced=table.name == "announced", commit_seconds=sweep, committed_at=scene.now)

    watching = Watching(scene, rhythm=rhythm)
    watching.watcher.sweep("lake")
    assert [name for name, _ in watching.asked()] == ["announced", "t"]
    watching.now += sweep / 2 - 1
    assert watching.watcher.ask_due("lake") == 0
    watching.now += 2
    assert watching.watcher.ask_due("lake") == 1
    assert watching.asked() == [("t", Asked(Lane.SWEEP))]
    watching.now += RARELY * sweep
    assert watching.watcher.ask_due("lake") == 2


def test_once_per_interval_all_are_judged_without_a_call(watching: Watching) -> None:
    watching.watcher.sweep("lake")
    watching.asked()
    watching.scene.look()
    calls = len(watching.scene.catalogs.calls)
    watching.watcher.surroundings = Surroundings(lambda: watching.known, rhythm=lambda _table: Rhythm(announced=True))
    watching.now += watching.scene.settings.service.sweep_seconds
    assert watching.watcher.ask_due("lake") == 0
    assert watching.asked() == [("t", Asked(Lane.SWEEP, calls=False))]
    assert watching.scene.looker.judge(NAME)
    assert len(watching.scene.catalogs.calls) == calls


def test_a_listing_that_somebody_wants_looks_at_new_tables_alone(watching: Watching) -> None:
    watching.watcher.start()
    until(lambda: watching.watcher.found is not None)
    watching.asked()
    watching.scene.catalog.create_table("db.new", watching.scene.history.table.schema())
    watching.watcher.list_soon()
    until(lambda: watching.watcher.is_found(named("new")))
    assert watching.asked() == [("new", Asked(Lane.SWEEP))]


# --- while a catalog is listed ----------------------------------------------------------------------------------------


class SlowListing:
    """The listing of each namespace lasts `seconds`. The namespaces e, db, d, cc and c are listed in this order.

    `asked`: the namespace before which a look at a table was requested, and the table.
    """

    def __init__(self, watching: Watching, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        catalog = watching.scene.catalogs.catalog("lake")
        for name in ("e", "d", "cc", "c"):
            watching.scene.catalog.create_namespace(name)
        self.asked: list[tuple[str, str]] = []
        list_namespaces, list_tables = catalog.list_namespaces, catalog.list_tables

        def slowly(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
            self.asked += [(*namespace, name) for name, asked in watching.asked() if asked.calls]
            watching.now += seconds
            return list_tables(namespace)

        monkeypatch.setattr(catalog, "list_namespaces", lambda *parent: sorted(list_namespaces(*parent)))
        monkeypatch.setattr(catalog, "list_tables", slowly)


def test_tables_are_looked_at_as_often_while_their_catalog_is_listed(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog of thousands of namespaces is listed for minutes."""
    watching.watcher.sweep("lake")
    watching.asked()
    listing = SlowListing(watching, monkeypatch, watching.scene.settings.service.sweep_seconds / 2)
    watching.watcher.sweep("lake")
    assert listing.asked == [("d", "t"), ("c", "t")], "once per interval"


@pytest.mark.parametrize(("behind", "asked"), [(False, ["d"]), (True, ["d", "cc", "c"])])
def test_the_first_listing_asks_again_for_tables_that_it_has_found(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, behind: bool, asked: list[str]
) -> None:
    watching = Watching(scene, behind=lambda: behind)
    listing = SlowListing(watching, monkeypatch, BEHIND_SECONDS)
    watching.watcher.sweep("lake")
    assert listing.asked == [(namespace, "t") for namespace in asked]
    assert watching.watcher.found == frozenset({NAME})


def test_a_round_during_the_first_listing_forgets_no_table_of_it(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds forget tables that no listing has; those of the present one are kept."""
    sweep = watching.scene.settings.service.sweep_seconds
    listing = SlowListing(watching, monkeypatch, sweep)
    watching.watcher.surroundings = Surroundings(lambda: (), rhythm=lambda _table: Rhythm(announced=True))
    watching.watcher.sweep("lake")
    assert listing.asked == [("d", "t")]
    assert [name for name, asked in watching.asked() if asked.calls] == []


def test_no_round_takes_place_while_the_listing_is_the_trial_of_a_silent_catalog(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching.watcher.sweep("lake")
    watching.asked()
    watching.breakers.listed("lake", NO_LIST)
    listing = SlowListing(watching, monkeypatch, watching.scene.settings.service.sweep_seconds)
    watching.now += SWEEP_AGAIN_SECONDS
    watching.watcher._swept("lake")
    assert listing.asked == []
    assert watching.breakers.available("lake")


def test_a_round_that_fails_during_a_listing_is_no_failure_of_the_catalog(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Answering()
    watching = Watching(scene, behind=stream.behind)
    SlowListing(watching, monkeypatch, ROUND_SECONDS)
    stream.error = RuntimeError("an error occurred while calling o42.isActive")
    with pytest.raises(RuntimeError):
        watching.watcher.sweep("lake")  # the round after the listing, whose failure the thread outlives
    assert watching.watcher.found == frozenset({NAME})
    assert (watching.watcher.trouble, watching.watcher.listed) == (str(stream.error), {"lake": True})
    assert caplog.text.count("an unexpected error in its sweeps") == 1
    stream.error = None
    watching.now += ROUND_SECONDS
    watching.watcher.sweep("lake")
    assert watching.watcher.trouble is None


# --- catalogs that cannot be listed -----------------------------------------------------------------------------------


def test_a_sweep_that_fails_is_published_and_repeated_soon(watching: Watching) -> None:
    scene, watcher = watching.scene, watching.watcher
    scene.catalogs.failure = NO_LIST
    assert watcher._swept("lake") == SWEEP_AGAIN_SECONDS
    assert watcher.trouble == str(NO_LIST)
    assert scene.published == [
        TableUnreadable(TableName("lake", (), "*"), NO_LIST.reason, str(NO_LIST)),
        CatalogAnswers("lake", available=False, message=str(NO_LIST)),
    ]
    assert 0 < watcher._swept("lake") < SWEEP_AGAIN_SECONDS, "nobody waits for a catalog that does not answer"
    scene.catalogs.failure = None
    watching.now += SWEEP_AGAIN_SECONDS
    assert watcher._swept("lake") == scene.settings.service.sweep_seconds
    assert scene.published[2:] == [CatalogAnswers("lake", available=True)]
    assert watcher.trouble is None
    assert watcher.found == frozenset({NAME})


def test_a_catalog_whose_listing_fails_while_its_tables_load_is_not_listed(watching: Watching) -> None:
    """Each good look closes the breaker that the failed listing has opened: the breaker alone tells nobody."""
    scene, watcher = watching.scene, watching.watcher
    watcher._swept("lake")
    assert watcher.listed == {"lake": True}
    for _ in range(5):
        scene.catalogs.failure = NO_LIST
        watcher._swept("lake")
        scene.catalogs.failure = None
        watching.now += SWEEP_AGAIN_SECONDS
        watching.breakers.ended("lake", "lake.db.t", None)
        assert watching.breakers.available("lake")
        assert watcher.listed == {"lake": False}
    watcher._swept("lake")
    assert watcher.listed == {"lake": True}


def test_a_sweep_that_fails_half_way_asks_for_what_it_listed_and_forgets_nothing(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, watcher = watching.scene, watching.watcher
    watcher.sweep("lake")
    watching.asked()

    def half(*_: object) -> Iterator[TableName]:
        yield named("new")
        raise NO_LIST

    monkeypatch.setattr(scene.catalogs, "list_tables", half)
    with pytest.raises(RetryError):
        watcher.sweep("lake")
    assert [name for name, _ in watching.asked()] == ["new"]
    assert watcher.found == frozenset({NAME, named("new")})


def forbid(watching: Watching, monkeypatch: pytest.MonkeyPatch, *forbidden: str) -> None:
    """Make the catalog refuse to list these namespaces."""
    catalog = watching.scene.catalogs.catalog("lake")
    list_tables = type(catalog).list_tables

    def refuses(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        if ".".join(namespace) in forbidden:
            raise ForbiddenError("not for you")
        return list_tables(catalog, namespace)

    monkeypatch.setattr(catalog, "list_tables", refuses)


def test_a_namespace_that_cannot_be_listed_hides_no_other_and_loses_no_table(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, watcher = watching.scene, watching.watcher
    secret = TableName("lake", ("secret",), "s")
    scene.catalog.create_namespace("secret")
    scene.catalog.create_table("secret.s", scene.history.table.schema())
    watcher._swept("lake")
    scene.catalog.create_table("db.new", scene.history.table.schema())
    watching.asked()
    scene.published.clear()
    forbid(watching, monkeypatch, "secret")
    sweep = scene.settings.service.sweep_seconds
    assert [watcher._swept("lake") for _ in range(2)] == [sweep, sweep]
    assert watcher.found == frozenset({NAME, secret, named("new")})
    assert [name for name, _ in watching.asked()] == ["new"], (
        "the known table of the namespace is not taken for dropped"
    )
    assert watching.breakers.available("lake")
    assert watcher.trouble is not None
    assert "namespace lake.secret cannot be listed: not for you" in watcher.trouble
    assert watcher.unlisted == 1
    (told,) = scene.published
    assert told == TableUnreadable(TableName("lake", ("secret",), "*"), Reason.NAMESPACE_UNREADABLE, watcher.trouble)
    forbid(watching, monkeypatch)
    watcher._swept("lake")
    assert watcher.trouble is None


def test_an_excluded_namespace_that_cannot_be_listed_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(Scene(tmp_path, tables={"include": ["*"], "exclude": ["lake.secret.*"]}))
    watching.scene.catalog.create_namespace("secret")
    forbid(watching, monkeypatch, "secret")
    watching.watcher._swept("lake")
    assert (watching.watcher.found, watching.watcher.trouble) == (frozenset({NAME}), None)
    assert watching.scene.published == []


def test_of_many_namespaces_that_cannot_be_listed_a_few_are_shown(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number}" for number in range(MOST_SHOWN + 2)]
    for name in names:
        watching.scene.catalog.create_namespace(name)
    forbid(watching, monkeypatch, *names)
    watching.watcher._swept("lake")
    assert watching.watcher.found == frozenset({NAME})
    assert watching.watcher.trouble is not None
    assert watching.watcher.trouble.endswith("; and 2 more namespaces")


def test_an_unexpected_error_ends_no_sweeping_thread(watching: Watching) -> None:
    scene = watching.scene
    scene.catalogs.failure = ValueError("a bug of a client")
    watching.step = SWEEP_AGAIN_SECONDS
    watching.watcher.start()
    until(lambda: watching.sweeps >= 2)
    assert watching.watcher.trouble == "a bug of a client"
    scene.catalogs.failure = None
    until(lambda: watching.watcher.found == frozenset({NAME}))
    assert watching.watcher.trouble is None


class Answering:
    """What the stream says; `error`: it does not answer."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.refusals = 0

    def behind(self) -> bool:
        if self.error is not None:
            self.refusals += 1
            raise self.error
        return False

    def may_start(self) -> bool:
        return not self.behind()


@pytest.mark.parametrize("while_it", ["starts", "asks for looks", "asks whether to list"])
def test_a_stream_that_does_not_answer_for_a_moment_ends_no_sweeping_thread(
    scene: Scene, while_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Answering()
    watching = Watching(scene, behind=stream.behind, may_start=stream.may_start)
    lost = RuntimeError("an error occurred while calling o42.isActive")
    if while_it == "starts":
        stream.error = lost
    watching.watcher.start()
    if while_it != "starts":
        until(lambda: watching.watcher.found is not None and watching.asked())
        stream.error = lost
        watching.now += ROUND_SECONDS + 1 if while_it == "asks for looks" else BEHIND_SECONDS + 1
    until(lambda: stream.refusals >= 3)
    until(lambda: watching.watcher.trouble == str(lost))
    stream.error = None
    until(lambda: watching.watcher.trouble is None)
    watching.now += scene.settings.service.sweep_seconds
    until(watching.asked)
    assert caplog.text.count("an unexpected error in its sweeps") == 1


def test_a_listing_that_ends_with_an_unexpected_error_is_repeated(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = watching.breakers.listed

    def fails_once(catalog: str, error: FirnlineError | None) -> None:
        monkeypatch.setattr(watching.breakers, "listed", listed)
        raise RuntimeError("a listener of the breaker fails")

    monkeypatch.setattr(watching.breakers, "listed", fails_once)
    watching.watcher.start()
    until(lambda: watching.sweeps == 1)
    until(lambda: watching.breakers.listed == listed)
    watching.now += SWEEP_AGAIN_SECONDS + 1
    until(lambda: watching.sweeps == 2)


def test_a_catalog_behind_an_open_breaker_is_not_listed(watching: Watching) -> None:
    for name in "abc":
        watching.breakers.start("lake")
        watching.breakers.ended("lake", name, NO_LIST)
    wait = watching.watcher._swept("lake")
    assert 0 < wait < watching.scene.settings.service.sweep_seconds
    assert watching.sweeps == 0
    watching.now += wait
    watching.watcher._swept("lake")
    assert (watching.sweeps, watching.breakers.silent) == (1, ()), "the sweep is the trial that closes it"


def test_a_catalog_that_blocks_delays_no_sweep_of_another(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{silent}/c.db", "warehouse": f"file://{silent}"}
    scene = Scene(tmp_path, more_catalogs={"silent": properties})
    scene.catalogs.silent = {"silent"}
    watching = Watching(scene)
    watching.step = scene.settings.service.sweep_seconds
    watching.watcher.start()
    until(lambda: watching.sweeps >= 4)
    assert [table.catalog for table in scene.catalogs.calls].count("silent") == 1
    scene.catalogs.released.set()
    watching.watcher.stop()


def test_a_listing_knows_names_by_any_spelling(scene: Scene) -> None:
    watcher = Watching(scene).watcher
    assert watcher.may_have(named("x")), "no listing has ended"
    watcher.sweep("lake")
    assert (watcher.may_have(NAME), watcher.may_have(named("x"))) == (True, False)
    assert [watcher.spelled(each) for each in (named("T"), NAME, named("x"))] == [NAME, None, None]


def test_a_listing_knows_the_names_of_excluded_tables_too(tmp_path: Path) -> None:
    """A catalog that ignores capitals gives them under any spelling."""
    watcher = Watching(Scene(tmp_path, tables={"exclude": ["db.t"]})).watcher
    assert watcher.sweep("lake") == 0
    assert (watcher.spelled(named("T")), watcher.spelled(NAME)) == (NAME, None)
    assert [watcher.is_listed(each) for each in (NAME, named("T"), named("x"))] == [True, False, False]


def test_a_namespace_that_cannot_be_listed_may_have_any_table(scene: Scene) -> None:
    watcher = Watching(scene).watcher
    watcher.sweep("lake")
    watcher._unlisted = {"lake": {("secret",): NO_LIST}}
    inner = TableName("lake", ("secret", "inner"), "t")
    assert (watcher.may_have(inner), watcher.may_have(named("x"))) == (True, False)
