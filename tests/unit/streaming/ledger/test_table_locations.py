"""Tables found by the folder of their metadata: known, suggested by the path, or by listing the catalogs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.table_names import TableName
from streaming.ledger import table_locations
from streaming.ledger.look_queue import Asked, Lane
from streaming.ledger.table_locations import (
    FOREIGN_BACKOFF,
    GUESS_SECONDS,
    KNOWN_SECONDS,
    LIST_AFTER_SECONDS,
    LISTING_PAUSE_SECONDS,
    SEARCH_SECONDS,
    TableLocations,
    by_likelihood,
    folder_of,
    guesses,
    metadata_version,
    suggested,
)
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene, named

FILE = "s3://lake/db/t/metadata/00003-x.metadata.json"
T = named("t")
DAY_SECONDS = 86_400.0


class Searching:
    """Locations with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.listings = 0
        self.unresolved: list[tuple[str, str]] = []
        self.locations = TableLocations(self._list, lambda *found: self.unresolved.append(found), lambda: self.now)

    def _list(self) -> None:
        self.listings += 1

    def pass_seconds(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            self.locations.check()


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("s3a://lake/t/metadata/1.metadata.json", "s3://lake/t/metadata"),
        ("s3n://lake/t/metadata/1.metadata.json", "s3://lake/t/metadata"),
        ("file:///lake/t/metadata/1.metadata.json", "/lake/t/metadata"),
        ("file:/lake/t/metadata/1.metadata.json", "/lake/t/metadata"),
        ("gs://lake/t/metadata/1.metadata.json", "gs://lake/t/metadata"),
        ("1.metadata.json", ""),
        ("", ""),
    ],
)
def test_a_folder_is_spelled_in_one_way(location: str, folder: str) -> None:
    assert folder_of(location) == folder


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("s3://lake/db/orders/metadata", ((("db",), "orders"),)),
        ("s3://lake/db.db/orders/metadata", ((("db",), "orders"),)),
        ("s3://b/wh/a/b/orders/metadata", ((("b",), "orders"), (("a", "b"), "orders"))),
        ("/wh/db/orders-0123456789abcdef0123456789abcdef/metadata", ((("db",), "orders"), (("wh", "db"), "orders"))),
        ("s3://lake/db/t-12345678-1234-1234-1234-123456789abc/metadata", ((("db",), "t"),)),
        ("s3://lake/orders/metadata", ()),
        ("s3://lake", ()),
        ("", ()),
    ],
)
def test_a_path_suggests_names(folder: str, found: object) -> None:
    assert suggested(folder) == found


@given(st.text())
def test_any_location_can_be_searched(location: str) -> None:
    locations = TableLocations()
    assert locations.find(location) == ()
    folder = locations.search(location, "s3", 1.0)
    assert folder == folder_of(location)
    assert all(isinstance(each, TableName) for each in guesses(folder, ("lake",)))


def test_a_look_tells_where_a_table_is() -> None:
    locations = Searching().locations
    locations.put(T, FILE)
    assert locations.find("s3a://lake/db/t/metadata/00004-y.metadata.json") == (T,)
    assert locations.find("s3://lake/db/t/data/metadata/00004-y.metadata.json") == ()
    locations.put(T, "s3://lake/moved/metadata/00005-z.metadata.json")
    assert locations.find(FILE) == ()
    locations.forget(T)
    assert locations.find("s3://lake/moved/metadata/00005-z.metadata.json") == ()


def test_a_table_that_is_dropped_and_made_again_under_another_name_is_the_new_one() -> None:
    locations = Searching().locations
    locations.put(T, FILE)
    locations.put(named("renamed"), FILE)
    locations.forget(T)
    assert locations.find(FILE) == (named("renamed"),)


def test_tables_can_share_a_folder() -> None:
    locations = Searching().locations
    for table in (T, named("u"), T):
        locations.put(table, FILE)
    assert locations.find(FILE) == (T, named("u"))
    locations.put(T, "s3://lake/moved/metadata/00005-z.metadata.json")
    assert locations.find(FILE) == (named("u"),)
    locations.forget(named("u"))
    assert locations._tables == {"s3://lake/moved/metadata": (T,)}


def test_an_unknown_folder_is_searched_once_by_guesses_then_by_listing() -> None:
    searching = Searching()
    assert searching.locations.search(FILE, "s3", 7.0) == "s3://lake/db/t/metadata"
    assert searching.locations.search(FILE, "s3", 8.0) is None
    searching.pass_seconds(GUESS_SECONDS)
    assert searching.listings == 0
    searching.pass_seconds(2)
    assert searching.listings == 1
    ended = searching.locations.put(T, FILE)
    assert ended is not None
    assert (ended.source, ended.event_at) == ("s3", 7.0)
    searching.pass_seconds(2 * SEARCH_SECONDS)
    assert searching.listings == 1
    assert searching.unresolved == []


def test_a_search_that_lasts_lists_again() -> None:
    """A catalog can have a table seconds after its metadata file."""
    searching = Searching()
    searching.locations.search(FILE, "s3", 7.0)
    listed_at = []
    while searching.now < SEARCH_SECONDS + 2:
        before = searching.listings
        searching.pass_seconds(1)
        if searching.listings > before:
            listed_at.append(searching.now)
    assert len(listed_at) == 3
    for wanted, listed in zip(LIST_AFTER_SECONDS, listed_at, strict=True):
        assert wanted < listed <= wanted + LISTING_PAUSE_SECONDS


def test_listings_have_a_pause() -> None:
    searching = Searching()
    for number in range(100):
        searching.locations.search(f"s3://lake/db/t{number}/metadata/x", "s3", 1.0)
        searching.pass_seconds(1)
    assert 100 / LISTING_PAUSE_SECONDS - 2 <= searching.listings <= 100 / LISTING_PAUSE_SECONDS


def test_what_listings_do_not_explain_may_be_of_known_tables() -> None:
    searching = Searching()
    locations = searching.locations
    locations.put(named("far"), "s3://lake/x/far/metadata/00001-x.metadata.json")
    locations.put(named("near"), "s3://lake/x/near/metadata/00008-x.metadata.json")
    assert locations.likely() == []
    locations.search("s3://lake/moved/metadata/00009-x.metadata.json", "s3", 7.0)
    searching.pass_seconds(KNOWN_SECONDS)
    assert locations.likely() == []
    searching.pass_seconds(1)
    assert locations.likely() == [named("near"), named("far")]
    locations.put(named("near"), "s3://lake/moved/metadata/00010-x.metadata.json")
    assert locations.likely() == []


@pytest.mark.parametrize(
    ("searched", "first"),
    [
        ({"s3://x/metadata": 8}, "seven"),
        ({"s3://x/metadata": 9}, "seven"),
        ({"s3://x/metadata": 20}, "nine"),
        ({"s3://x/metadata": 10, "s3://y/metadata": 8, "s3://z/metadata": None}, "nine"),
        ({"s3://x/other/gone/metadata": 2}, "elsewhere"),
        ({"s3://x/gone/metadata": None}, "nine"),
    ],
)
def test_likely_owners_of_a_folder_come_first(searched: dict[str, int | None], first: str) -> None:
    """Those in a suggested namespace; then those whose next metadata file has this number."""
    elsewhere = TableName("lake", ("other",), "elsewhere")
    tables = {named("nine"): 9, named("unnumbered"): None, named("seven"): 7, elsewhere: 30}
    found = by_likelihood(tables, searched)
    assert found[0].name == first
    assert sorted(found) == sorted(tables)


def test_a_folder_without_a_table_is_reported_once_and_left_alone_for_a_while() -> None:
    searching = Searching()
    searching.locations.search(FILE, "s3", 7.0)
    searching.pass_seconds(SEARCH_SECONDS + 2)
    assert searching.unresolved == [("s3", "s3://lake/db/t/metadata")]
    listings = searching.listings
    assert searching.locations.search(FILE, "s3", 8.0) is None
    searching.pass_seconds(FOREIGN_BACKOFF.first_seconds + 2)
    assert searching.listings == listings
    assert searching.locations.search(FILE, "s3", 9.0) is not None


def test_a_folder_that_stays_without_a_table_is_searched_ever_more_rarely() -> None:
    searching = Searching()
    searched: list[float] = []
    while searching.now < 5 * FOREIGN_BACKOFF.longest_seconds:
        if searching.locations.search(FILE, "s3", 7.0) is not None:
            searched.append(searching.now)
        searching.now += SEARCH_SECONDS / 2
        searching.locations.check()
    pauses = [after - before for before, after in pairwise(searched)]
    assert pauses == sorted(pauses)
    assert len(pauses) < 15
    assert FOREIGN_BACKOFF.longest_seconds < pauses[-1] < 1.1 * FOREIGN_BACKOFF.longest_seconds
    searching.locations.put(T, FILE)
    assert searching.locations._foreign == {}


def test_thousands_of_foreign_folders_cause_no_listings_for_ever() -> None:
    """A bucket that announces every file, also those of 100 tables of another catalog."""
    searching, listings, busy = Searching(), list[int](), 0
    folders = [f"s3://bucket/theirs/t{number}/metadata/00001-a.metadata.json" for number in range(100)]
    for day in range(2):
        before, ticks = searching.listings, 0
        while ticks < FOREIGN_BACKOFF.longest_seconds:
            for folder in folders:
                searching.locations.search(folder, "s3", searching.now)
            ticks += 30
            searching.now += 30
            busy += bool(day and searching.locations.likely())
            searching.locations.check()
        listings.append(searching.listings - before)
    assert listings[0] > 0
    assert listings[1] == 0
    assert busy == 0


def test_more_foreign_folders_than_are_remembered_cause_no_listings_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_locations, "MOST_FOLDERS", 100)
    searching, listings = Searching(), list[int]()
    folders = [f"s3://bucket/theirs/t{number}/metadata/00001-a.metadata.json" for number in range(130)]
    for _hour in range(12):
        before = searching.listings
        for second in range(0, 3600, 5):
            if second % 300 == 0:
                for folder in folders:
                    searching.locations.search(folder, "s3", searching.now)
            searching.now += 5
            searching.locations.check()
        listings.append(searching.listings - before)
    assert listings[0] > 0
    assert listings[-1] == 0


def test_of_too_many_foreign_folders_those_that_come_back_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_locations, "MOST_FOLDERS", 50)
    searching = Searching()
    for _ in range(2):
        searching.locations.search(FILE, "s3", 7.0)
        searching.pass_seconds(SEARCH_SECONDS + 2 + FOREIGN_BACKOFF.first_seconds)
    for number in range(50):
        searching.locations.search(f"s3://x/{number}/metadata/y", "s3", 1.0)
    searching.pass_seconds(SEARCH_SECONDS + 2)
    assert len(searching.locations._foreign) == 50
    assert searching.locations.search(FILE, "s3", 8.0) is None


def test_foreign_folders_that_are_gone_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else catalogs were listed for no new folder after a flood of them. One that is heard each day stays."""
    monkeypatch.setattr(table_locations, "MOST_FOLDERS", 50)
    searching = Searching()
    for place in (FILE, *(f"s3://x/{number}/metadata/y" for number in range(49))):
        searching.locations.search(place, "s3", 1.0)
    searching.pass_seconds(SEARCH_SECONDS + 2)
    listings = searching.listings
    searching.locations.search("s3://x/early/metadata/y", "s3", 1.0)
    searching.pass_seconds(SEARCH_SECONDS + 2)
    assert searching.listings == listings, "all 50 are remembered"
    for _day in range(3):
        searching.now += DAY_SECONDS
        searching.locations.search(FILE, "s3", 1.0)
        searching.pass_seconds(SEARCH_SECONDS + 2)
    assert searching.locations._foreign.keys() == {folder_of(FILE)}
    listings = searching.listings
    searching.locations.search("s3://x/late/metadata/y", "s3", 1.0)
    searching.pass_seconds(GUESS_SECONDS + 1)
    assert searching.listings == listings + 1


def test_a_flood_of_places_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_locations, "MOST_FOLDERS", 50)
    searching = Searching()
    taken = [searching.locations.search(f"s3://x/{number}/metadata/y", "s3", 1.0) for number in range(200)]
    assert sum(each is not None for each in taken) == 50
    searching.pass_seconds(SEARCH_SECONDS + 2)
    for number in range(200, 400):
        searching.locations.search(f"s3://x/{number}/metadata/y", "s3", 1.0)
    searching.pass_seconds(SEARCH_SECONDS + 2)
    assert len(searching.locations._foreign) <= 50
    assert len(searching.locations._searched) == 0


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("00017-0b6c.metadata.json", 17), ("v3.metadata.json", 3), ("v3.gz.metadata.json", 3), ("", None),
        ("x.metadata.json", None), ("17.metadata.json", None), ("v-1.metadata.json", None), ("9" * 40 + "-x", None),
    ],
)  # fmt: skip
def test_the_number_of_a_metadata_file(name: str, version: int | None) -> None:
    assert metadata_version(f"s3://lake/t/metadata/{name}") == version


# --- looks ------------------------------------------------------------------------------------------------------------


def announced(*files: str) -> Asked:
    return Asked(Lane.EVENT, 5.0, announced=frozenset(files))


@pytest.mark.parametrize("change", ["renamed", "moved"])
def test_a_file_whose_folder_is_no_more_the_tables_is_searched_anew(scene: Scene, change: str) -> None:
    """It may be of the table that has taken its place."""
    locations = scene.looker.locations
    scene.look()
    scene.looker.rhythms.heard(NAME, "s3", scene.now)
    file = scene.history.table.metadata_location
    if change == "renamed":
        scene.catalog.rename_table("db.t", "db.renamed")
    else:
        scene.history.set_properties({"write.metadata.path": f"file://{scene.folder}/elsewhere"})
    scene.look(asked=announced(file))
    assert [(folder, each.source, each.event_at) for folder, each in locations._searched.items()] == [
        (folder_of(file), "s3", 5.0)
    ]
    scene.look(named("renamed"))
    assert (locations._searched == {}) is (change == "renamed")


def test_a_file_whose_folder_is_another_tables_too_is_not_searched(scene: Scene) -> None:
    """A look at that table waits too."""
    scene.look()
    file = scene.history.table.metadata_location
    scene.looker.locations.put(named("other"), file)
    scene.catalog.drop_table("db.t")
    scene.look(asked=announced(file))
    assert scene.looker.locations.find(file) == (named("other"),)
    assert scene.looker.locations._searched == {}
