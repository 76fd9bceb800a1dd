"""What a batch of events asks for: looks, and requested rewrites that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from compactor.shards import Shard
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard, Heard, HeardLocation
from streaming.ledger.catalog_calls import Listing
from streaming.ledger.metadata_folders import MOST_SHARING
from streaming.ledger.table_record import Asked, Lane
from streaming.ledger.tables import EACH, MOST_OF_A_TABLE, MOST_OF_UNKNOWN
from tests.unit.streaming.ledger.catalog_scene import PLACE, START, CatalogScene, counted, named

T = named("t")
COMMIT = Heard(T, "canonical", 5_000, writes=True)
WRITTEN = HeardLocation(PLACE, "s3", 5_000)


class Told(NamedTuple):
    requests: Mapping[TableName, Sequence[str]]
    looks: Mapping[TableName, Asked]


def hear(scene: CatalogScene, *events: AnyHeard, waiting: Mapping[TableName, tuple[str, ...]] | None = None) -> Told:
    return Told(*scene.tables.hear(events, waiting or {}, scene.moment))


@pytest.fixture
def scene() -> CatalogScene:
    """The table `t` is listed, and was looked at: snapshot 7 was counted."""
    made = CatalogScene()
    made.list("t")
    made.look(counted(7))
    return made


def test_many_events_of_one_table_are_one_look_that_answers_the_oldest_commit(scene: CatalogScene) -> None:
    events = [replace(COMMIT, timestamp_ms=1_000 * number, snapshot_id=number % 2) for number in range(9, 1, -1)]
    assert hear(scene, *events).looks == {T: Asked(Lane.EVENT, 2.0, announced=frozenset({0, 1}))}


@pytest.mark.parametrize(
    ("event", "asked"),
    [
        (COMMIT, Asked(Lane.EVENT, 5.0)),
        (replace(COMMIT, writes=False), Asked(Lane.EVENT)),
        (replace(COMMIT, writes=False, request=""), Asked(Lane.EVENT)),
        (replace(COMMIT, table=named("new")), Asked(Lane.UNKNOWN, 5.0)),
        (replace(COMMIT, table=named("new"), writes=False, request=""), Asked(Lane.UNKNOWN, requested=True)),
        (replace(COMMIT, snapshot_id=7), None),  # a duplicate or late event
        (replace(COMMIT, snapshot_id=7, request=""), Asked(Lane.EVENT, 5.0, announced=frozenset({7}))),
        (replace(COMMIT, snapshot_id=8), Asked(Lane.EVENT, 5.0, announced=frozenset({8}))),
        # A rollback or a change of properties makes no snapshot: its event names one that was counted before.
        (replace(COMMIT, snapshot_id=7, timestamp_ms=int(START * 1000)), None),
        (replace(COMMIT, snapshot_id=7, timestamp_ms=int(START * 1000) + 1),
         Asked(Lane.EVENT, START + 0.001, announced=frozenset({7}))),
        (replace(COMMIT, table=named("T")), Asked(Lane.EVENT, 5.0)),  # in other capitals than the listing
    ],
)  # fmt: skip
def test_the_look_that_an_event_asks_for(scene: CatalogScene, event: Heard, asked: Asked | None) -> None:
    table = T if event.table == named("T") else event.table
    assert hear(scene, event).looks == ({} if asked is None else {table: asked})


@pytest.mark.parametrize("tables", [{"exclude": ["db.t"]}, {"observe": [], "include": ["db.other"]}])
def test_an_ignored_table_is_not_mentioned_under_any_spelling(tables: dict[str, object]) -> None:
    scene = CatalogScene(tables={"include": ["*"], **tables})
    scene.list("t")
    events = (COMMIT, replace(COMMIT, request="id = 1"), replace(COMMIT, table=named("T")))
    assert hear(scene, *events[: 2 + ("exclude" in tables)]) == Told({}, {})


def test_tables_of_another_service_are_left_alone() -> None:
    shard = Shard(0, 2)
    tables = [named(f"t{number}") for number in range(100)]
    told = hear(CatalogScene(shard), *(replace(COMMIT, table=table, request="id = 1") for table in tables))
    assert [*told.looks] == [*told.requests] == [table for table in tables if shard.owns(table)]
    assert 20 < len(told.looks) < 80


# --- requests ---------------------------------------------------------------------------------------------------------


def requests_of(*names: str, request: str = "id = 1") -> list[Heard]:
    return [replace(COMMIT, table=named(name), writes=False, request=request) for name in names]


def test_a_request_beyond_the_most_is_dropped_and_a_known_one_is_not_counted_twice(scene: CatalogScene) -> None:
    filters = [f"id = {number}" for number in range(200)]
    kept = tuple(hear(scene, *(replace(COMMIT, request=text) for text in (*filters, *filters))).requests[T])
    assert 100 <= len(kept) < 200
    assert hear(scene, replace(COMMIT, request="more"), waiting={T: kept}).requests == {}
    assert hear(scene, replace(COMMIT, request="more"), waiting={T: kept[1:]}).requests == {T: ["more"]}
    assert hear(scene, *requests_of("t", request="x" * (MOST_OF_A_TABLE + 1))).looks == {}


@pytest.mark.parametrize(("length", "kept"), [(1, 400), (4_000, 50)])
def test_requests_of_unknown_tables_are_bounded(
    scene: CatalogScene, caplog: pytest.LogCaptureFixture, length: int, kept: int
) -> None:
    """Anyone who may write to the topic can name tables that do not exist."""
    flood = requests_of(*(f"{number}{'x' * length}" for number in range(1_000)))
    told = hear(scene, *flood, replace(COMMIT, writes=False, request=""))
    assert told.requests[T] == [""], "a table that is known has its own bound"
    assert len(told.looks) == len(told.requests)
    assert kept < len(told.requests) <= 1 + MOST_OF_UNKNOWN // (EACH + length)
    assert caplog.text.count("requested rewrites are dropped") == 1


# --- events that name a metadata file ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [1, 2, MOST_SHARING, MOST_SHARING + 1])
def test_a_metadata_file_means_the_tables_that_keep_their_metadata_there_unless_they_are_many(
    scene: CatalogScene, sharing: int
) -> None:
    """Of many tables, an event says too little: none counts as announced, and sweeps look at them often."""
    tables = [named(f"t{number}") for number in range(sharing)]
    for table in tables:
        scene.lake.folders.put(table, PLACE)
        scene.lake.put(table, listed=True)
    told = tables if sharing <= MOST_SHARING else []
    assert hear(scene, WRITTEN).looks == {table: Asked(Lane.EVENT, 5.0, announced=frozenset({PLACE})) for table in told}
    assert [scene.lake.get(table).rhythm.announced for table in tables] == [bool(told)] * sharing


def test_a_folder_of_no_table_is_logged_once_and_lists_the_catalogs_twice(
    scene: CatalogScene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    listings = 0
    for _ in range(100):
        hear(scene, WRITTEN)
        scene.tables.search_folders(scene.moment)
        if scene.lake.starts_listing(scene.moment):
            listings += 1
            scene.lake.listing_ended(Listing(), scene.moment)
        scene.now += 1
    assert listings == 2
    assert caplog.text.count("no known table has its metadata in s3://lake/t/metadata") == 1
