"""Listings of a catalog, and the rounds in which tables are looked at without anybody asking."""

from __future__ import annotations

import pytest

from compactor.errors import RetryError
from compactor.events import CatalogAnswers, TableUnreadable
from compactor.reasons import Reason
from compactor.shards import Shard
from compactor.table_names import TableName
from streaming.ledger.catalog_calls import LISTING_SECONDS, MOST_SHOWN, SILENT_AFTER, Listing
from streaming.ledger.catalog_tables import ROUND_SECONDS
from streaming.ledger.rhythm import BEHIND_SECONDS, OFTEN_SECONDS, Rhythm
from tests.unit.streaming.ledger.catalog_scene import MISSING, SWEEP, CatalogScene, named

INTERVAL = 300.0
NO_ANSWER = RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE)


@pytest.fixture
def scene() -> CatalogScene:
    return CatalogScene()


def fail(scene: CatalogScene, *found: str, error: RetryError = NO_ANSWER) -> list[object]:
    assert scene.lake.starts_listing(scene.moment)
    for name in found:
        scene.lake.found(named(name), scene.moment)
    return [*scene.lake.listing_ended(Listing(error=error), scene.moment)]


def listed(scene: CatalogScene) -> set[str]:
    return {each.name for each in scene.lake.names if scene.lake.get(each).listed}


# --- listings ---------------------------------------------------------------------------------------------------------


def test_a_listing_asks_for_every_table_that_is_new_also_before_it_ends(scene: CatalogScene) -> None:
    assert scene.lake.starts_listing(scene.moment)
    assert scene.tables.counted is None
    scene.lake.found(named("a"), scene.moment)
    assert scene.waiting() == ["a"]
    scene.lake.listing_ended(Listing(frozenset({named("a")})), scene.moment)
    scene.list("a", "b")
    assert scene.take() == ("b", SWEEP)
    assert scene.tables.counted == (1, 2)


def test_tables_that_are_ignored_or_another_services_are_not_looked_at() -> None:
    rules = {"include": ["*"], "exclude": ["*.hidden"]}
    shard = Shard(0, 2)
    ours, theirs = (next(f"t{n}" for n in range(99) if shard.owns(named(f"t{n}")) is owned) for owned in (True, False))
    scene = CatalogScene(shard, tables=rules)
    scene.list(ours, theirs, "hidden")
    assert scene.waiting() == [ours]
    assert scene.tables.counted == (1, 1)


def test_listings_are_repeated_and_come_earlier_while_the_stream_is_behind(scene: CatalogScene) -> None:
    scene.list()
    scene.now += BEHIND_SECONDS
    assert not scene.lake.starts_listing(scene.moment)
    scene.behind = True
    assert scene.lake.starts_listing(scene.moment)
    scene.behind = False
    scene.lake.listing_ended(Listing(), scene.moment)
    scene.now += INTERVAL - 0.01
    assert not scene.lake.starts_listing(scene.moment)
    scene.now += 0.01
    assert scene.lake.starts_listing(scene.moment)
    assert not scene.lake.starts_listing(scene.moment), "it is under way"
    scene.lake.listings.soon()
    scene.lake.listing_ended(Listing(), scene.moment)
    assert scene.lake.starts_listing(scene.moment), "another one was asked for meanwhile"


def test_a_listing_that_takes_too_long_is_shown_until_it_ends(scene: CatalogScene) -> None:
    assert scene.lake.starts_listing(scene.moment)
    scene.now += LISTING_SECONDS + 1
    assert scene.tables.troubles(scene.moment) == {"listing of catalog lake": "takes 15 min"}
    assert scene.tables.listed(scene.moment) == {"lake": False}
    scene.lake.listing_ended(Listing(), scene.moment)
    assert (scene.tables.troubles(scene.moment), scene.tables.listed(scene.moment)) == ({}, {"lake": True})


def test_a_listing_that_fails_is_published_and_repeated_and_forgets_nothing(scene: CatalogScene) -> None:
    scene.list("a")
    scene.waiting()
    scene.lake.listings.soon()
    told = TableUnreadable(TableName("lake", (), "*"), Reason.CATALOG_UNAVAILABLE, "no answer")
    assert fail(scene, "b") == [told]
    assert scene.tables.troubles(scene.moment) == {"table watcher": "no answer"}
    scene.now += OFTEN_SECONDS
    assert scene.tables.listed(scene.moment) == {"lake": False}
    assert listed(scene) == {"a", "b"}
    assert scene.lake.starts_listing(scene.moment)
    scene.lake.listing_ended(Listing(frozenset({named("a")})), scene.moment)
    assert (scene.tables.troubles(scene.moment), listed(scene)) == ({}, {"a"})


def test_a_catalog_that_loads_tables_and_cannot_be_listed_has_its_known_ones_looked_at(scene: CatalogScene) -> None:
    """After a restart: those of the board, and whose counts are saved."""
    looks = 0
    for _ in range(int(2 * INTERVAL / OFTEN_SECONDS)):
        if scene.lake.starts_listing(scene.moment):
            scene.lake.listing_ended(Listing(others=[named("saved")], error=NO_ANSWER), scene.moment)
        scene.now += OFTEN_SECONDS
        looks += len(scene.waiting())
    assert looks >= 3


def test_tables_that_are_not_listed_any_more_are_looked_at(scene: CatalogScene) -> None:
    scene.list("dropped", "there")
    scene.waiting()
    scene.now += 1
    scene.list("there", others=("there", "dropped", "saved"))
    assert scene.waiting(MISSING) == ["dropped", "saved"]
    scene.now += 1
    scene.list("there", others=("there",))
    assert scene.waiting() == []


def test_a_namespace_that_cannot_be_listed_loses_no_table_and_is_told_of_once(scene: CatalogScene) -> None:
    inner = TableName("lake", ("db", "inner"), "t")
    assert scene.lake.starts_listing(scene.moment)
    for table in (named("t"), inner):
        scene.lake.found(table, scene.moment)
    scene.lake.listing_ended(Listing(frozenset({named("t"), inner})), scene.moment)
    (told,) = scene.list(unlisted=("db",))
    assert told == TableUnreadable(TableName("lake", ("db",), "*"), Reason.NAMESPACE_UNREADABLE, "db is forbidden")
    assert listed(scene) == {"t"}
    assert scene.lake.get(inner).listed
    assert scene.lake.may_have(named("any"))
    assert scene.tables.troubles(scene.moment) == {"table watcher": "db is forbidden"}
    assert scene.list(unlisted=("db",)) == []
    scene.list()
    assert (listed(scene), scene.tables.troubles(scene.moment)) == (set(), {})


def test_of_many_namespaces_that_cannot_be_listed_a_few_are_shown(scene: CatalogScene) -> None:
    assert len(scene.list(unlisted=tuple(f"n{number}" for number in range(100)))) == MOST_SHOWN
    assert scene.tables.troubles(scene.moment)["table watcher"].endswith("and 97 more namespaces")


def test_a_listing_knows_names_by_any_spelling_also_ignored_ones() -> None:
    scene = CatalogScene(tables={"include": ["*"], "exclude": ["*.hidden"]})
    scene.list("Orders", "hidden")
    for name, listed_as in (("ORDERS", "Orders"), ("Orders", "Orders"), ("HIDDEN", "hidden"), ("other", "other")):
        assert scene.lake.spelled(named(name)) == named(listed_as)
    scene.list()
    assert scene.lake.spelled(named("ORDERS")) == named("ORDERS")


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_before_the_first_listing_begins_nothing_is_looked_at_unasked(scene: CatalogScene) -> None:
    """Offsets are not fixed yet: a commit could fall between."""
    scene.ask("t")
    scene.look()
    scene.now += 10_000
    assert scene.take() is None


def test_tables_are_looked_at_as_often_as_they_need_and_all_are_judged_once_per_interval(scene: CatalogScene) -> None:
    scene.list("busy", "announced", "new")
    scene.waiting()
    scene.lake.put(named("busy"), rhythm=Rhythm(commit_seconds=60.0, committed_at=1e9))
    scene.lake.put(named("announced"), rhythm=Rhythm(announced=True))
    looks, judged = dict.fromkeys(("busy", "announced", "new"), 0), set()
    for _ in range(int(3600 / ROUND_SECONDS)):
        scene.now += ROUND_SECONDS
        while (taken := scene.take()) is not None:
            name, asked = taken
            looks[name] += asked.calls
            judged |= set() if asked.calls else {name}
            scene.lake.done(named(name), scene.moment)
    assert looks == {"busy": 120, "announced": 1, "new": 12}
    assert "announced" in judged


def test_no_round_takes_place_while_the_catalog_is_silent(scene: CatalogScene) -> None:
    scene.list("a")
    scene.waiting()
    for _ in range(SILENT_AFTER):
        scene.lake.calls.ended(NO_ANSWER)
        scene.now += INTERVAL
    assert scene.take() is None
    (answers,) = scene.list("a")
    assert answers == CatalogAnswers("lake", available=True)
    assert scene.take() == ("a", SWEEP)
