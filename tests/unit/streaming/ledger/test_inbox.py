"""What the driver does with the events of a micro-batch: it asks for looks, and notes requested rewrites."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.debt.board import PartitionCounts, TableDebt
from compactor.errors import RetryError
from compactor.events import EventsHeard
from compactor.reasons import Reason
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.intake.heard import AnyHeard, Heard, HeardLocation
from streaming.ledger.inbox import Inbox
from streaming.ledger.kept_requests import (
    MOST_CHARACTERS,
    MOST_REQUESTS,
    MOST_UNKNOWN_CHARACTERS,
    MOST_UNKNOWN_REQUESTS,
)
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.looker import Outcome
from streaming.ledger.missing_names import MISSING_SECONDS
from streaming.ledger.table_locations import MOST_SHARING
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene, named

COMMIT = Heard(NAME, "canonical", 5_000, writes=True)


def told_of(event: Heard, oldest: float) -> Asked:
    """The look that this event asks for."""
    assert event.snapshot_id is not None
    return Asked(Lane.EVENT, oldest, announced=frozenset({event.snapshot_id}))


class Receiving:
    """An inbox over the scene; `found` are the tables that a sweep has listed."""

    def __init__(self, scene: Scene, queue: type[LookQueue] = LookQueue) -> None:
        self.scene = scene
        self.queue = queue
        self.shard = EVERYTHING
        self.found: set[TableName] = set()

    def asked(self, *events: AnyHeard) -> list[tuple[TableName, Asked]]:
        """What a batch of these events asks of an empty queue, in the queue's order."""
        scene, queue, found = self.scene, self.queue(lambda: 0.0), list[tuple[TableName, Asked]]()
        Inbox(
            settings=scene.settings,
            board=scene.board,
            queue=queue,
            looker=scene.looker,
            catalogs=("lake",),
            shard=self.shard,
            is_found=lambda table: table in self.found,
            listener=scene.published.append,
        )(events)
        while (taken := queue.take("lake", 0.0)) is not None:
            found.append(taken)
        return found


@pytest.fixture
def receiving(scene: Scene) -> Receiving:
    return Receiving(scene)


def test_many_events_of_one_table_are_one_look_that_answers_the_oldest_commit(receiving: Receiving) -> None:
    receiving.found = {NAME}
    events = [replace(COMMIT, timestamp_ms=9_000 - number) for number in range(1000)]
    assert receiving.asked(*events) == [(NAME, Asked(Lane.EVENT, 8.001))]


def test_only_commits_of_others_make_a_table_wait(receiving: Receiving) -> None:
    receiving.found = {NAME}
    ours = replace(COMMIT, timestamp_ms=1_000, writes=False)
    request = replace(COMMIT, timestamp_ms=2_000, writes=False, request="id = 1")
    assert receiving.asked(ours, replace(COMMIT, timestamp_ms=7_000), COMMIT, request) == [
        (NAME, Asked(Lane.EVENT, 5.0))
    ]
    assert receiving.asked(ours) == [(NAME, Asked(Lane.EVENT, None))]
    assert receiving.scene.board.requests(NAME) == ("id = 1",)


def test_an_empty_batch_asks_for_nothing_and_publishes_nothing(receiving: Receiving) -> None:
    assert receiving.asked() == []
    assert receiving.scene.published == []


def test_listeners_hear_how_many_events_each_decoder_read(receiving: Receiving) -> None:
    receiving.asked(COMMIT, replace(COMMIT, timestamp_ms=4_000), replace(COMMIT, source="glue", table=named("ignored")))
    expected = EventsHeard({"canonical": 2, "glue": 1}, {"canonical": 4_000, "glue": 5_000})
    assert receiving.scene.published == [expected]


def test_an_event_about_a_snapshot_that_was_counted_asks_for_no_look(receiving: Receiving) -> None:
    scene = receiving.scene
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    scene.look()
    ids = [each.snapshot_id for each in scene.history.table.snapshots()]
    assert receiving.asked(*(replace(COMMIT, snapshot_id=each) for each in ids)) == []
    assert receiving.asked(replace(COMMIT, snapshot_id=None)) == [(NAME, Asked(Lane.EVENT, 5.0))]
    scene.history.append_unreal("a", [1])
    news = replace(COMMIT, snapshot_id=scene.history.table.snapshots()[-1].snapshot_id)
    assert receiving.asked(news, replace(news, snapshot_id=ids[0], timestamp_ms=1)) == [(NAME, told_of(news, 5.0))]
    scene.look()
    assert receiving.asked(news) == []


def test_a_snapshot_of_another_branch_is_news_when_it_is_published(receiving: Receiving) -> None:
    """Write, audit, publish: main becomes a snapshot that the metadata has named for long."""
    scene = receiving.scene
    scene.history.append_unreal("a", [1])
    table = scene.history.table
    table.manage_snapshots().create_branch(table.snapshots()[-1].snapshot_id, "audit").commit()
    scene.history.append_unreal("b", [1], branch="audit")
    scene.look()
    staged = scene.history.table.metadata.refs["audit"].snapshot_id
    scene.history.table.manage_snapshots().set_current_snapshot(staged).commit()
    publishing = replace(COMMIT, snapshot_id=staged)
    assert receiving.asked(publishing) == [(NAME, told_of(publishing, 5.0))]
    scene.look()
    assert scene.files() == {'["a"]': 1, '["b"]': 1}
    assert receiving.asked(replace(COMMIT, snapshot_id=staged)) == []


def test_a_counted_snapshot_that_is_announced_after_the_last_look_is_news(receiving: Receiving) -> None:
    """A rollback or a change of properties makes no snapshot: its event names one that was counted before."""
    scene = receiving.scene
    for _ in range(2):
        scene.history.append_unreal("a", [1])
    scene.look()
    first = scene.history.table.snapshots()[0].snapshot_id
    scene.history.table.manage_snapshots().set_current_snapshot(first).commit()
    looked_at = int(scene.now * 1000)
    scene.now += 60
    told = replace(COMMIT, snapshot_id=first, timestamp_ms=looked_at + 1)
    assert receiving.asked(replace(told, timestamp_ms=looked_at)) == []
    assert receiving.asked(told) == [(NAME, told_of(told, (looked_at + 1) / 1000))]
    scene.look()
    assert scene.files() == {'["a"]': 1}
    assert receiving.asked(told) == []
    scene.now += 60
    scene.look()
    assert receiving.asked(replace(told, timestamp_ms=int(scene.now * 1000))) == [], "an unchanged table was looked at"


def test_an_event_during_a_recount_asks_for_a_look(receiving: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = receiving.scene
    for _ in range(2):
        scene.history.append_unreal("a", [1])
    monkeypatch.setattr("compactor.debt.ledger.FILES_PER_LOOK", 1)
    assert scene.look().outcome is Outcome.COUNTING
    head = scene.history.table.metadata.current_snapshot_id
    assert receiving.asked(replace(COMMIT, snapshot_id=head)) != []


def test_a_look_that_failed_makes_no_name_known(scene: Scene) -> None:
    """Anybody can name tables: while the catalog is silent, their events must not overtake those of tables."""
    receiving = Receiving(scene)
    scene.catalogs.failure = RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE)
    scene.look(named("gone"))
    assert [asked.lane for _, asked in receiving.asked(replace(COMMIT, table=named("gone")))] == [Lane.UNKNOWN]


def test_lanes_known_tables_go_first_and_unknown_names_last(receiving: Receiving) -> None:
    scene = receiving.scene
    scene.look()
    scene.board.put(TableDebt(named("on_board"), counted=PartitionCounts()))
    receiving.found = {named("listed")}
    tables = [named("unknown"), named("listed"), named("on_board"), NAME]
    asked = receiving.asked(*(replace(COMMIT, table=table) for table in tables))
    assert [(table.name, asked.lane) for table, asked in asked] == [
        ("listed", Lane.EVENT),
        ("on_board", Lane.EVENT),
        ("t", Lane.EVENT),
        ("unknown", Lane.UNKNOWN),
    ]


def test_a_missing_table_is_not_asked_for_again_for_a_while(receiving: Receiving) -> None:
    scene, gone = receiving.scene, named("gone")
    event = replace(COMMIT, table=gone)
    assert receiving.asked(event) == [(gone, Asked(Lane.UNKNOWN, 5.0))]
    assert scene.look(gone).outcome is Outcome.MISSING
    assert receiving.asked(event) == []
    scene.now += MISSING_SECONDS - 1
    assert receiving.asked(event) == []
    receiving.found = {gone}
    assert receiving.asked(event) == [(gone, Asked(Lane.EVENT, 5.0))], "a sweep has listed it: it exists"
    receiving.found = set()
    scene.now += 1
    assert receiving.asked(event) == [(gone, Asked(Lane.UNKNOWN, 5.0))]


def test_an_event_of_a_missing_table_asks_for_one_look_later(scene: Scene) -> None:
    """The table may have been created since its look."""
    put: list[tuple[TableName, Asked, float]] = []

    class Noting(LookQueue):
        def put_later(self, table: TableName, asked: Asked, seconds: float) -> None:
            put.append((table, asked, seconds))

    receiving, gone = Receiving(scene, Noting), named("gone")
    assert scene.look(gone).outcome is Outcome.MISSING
    scene.now += 10
    for _ in range(3):
        assert receiving.asked(replace(COMMIT, table=gone)) == []
    assert put == [(gone, Asked(Lane.UNKNOWN, 5.0, tries=3), MISSING_SECONDS - 10)]
    scene.look(gone)
    receiving.asked(replace(COMMIT, table=gone))
    assert put[1:] == [], "the look that was put off still waits"
    scene.now += MISSING_SECONDS - 10
    scene.look(gone)
    receiving.asked(replace(COMMIT, table=gone))
    assert put[1:] == [(gone, Asked(Lane.UNKNOWN, 5.0, tries=3), MISSING_SECONDS)]


@pytest.mark.parametrize("excluded", [False, True])
def test_events_count_for_the_listed_table_that_differs_by_capitals(
    tmp_path_factory: pytest.TempPathFactory, *, excluded: bool
) -> None:
    tables = {"exclude": ["lake.db.t"]} if excluded else {"include": ["lake.db.*"], "observe": []}
    receiving = Receiving(Scene(tmp_path_factory.mktemp("named"), tables=tables))
    other = TableName("lake", ("DB",), "T")
    receiving.scene.looker.spelled = lambda table: NAME if table == other else None
    receiving.found = {NAME}
    expected = [] if excluded else [(NAME, Asked(Lane.EVENT, 5.0))]
    assert receiving.asked(replace(COMMIT, table=other)) == expected


@pytest.mark.parametrize("tables", [{"exclude": ["db.t"]}, {"observe": [], "include": ["db.other"]}])
def test_an_ignored_table_is_not_mentioned(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, object]) -> None:
    receiving = Receiving(Scene(tmp_path_factory.mktemp("ignored"), tables=tables))
    assert receiving.asked(COMMIT, replace(COMMIT, request="id = 1")) == []
    assert receiving.scene.board.known() == ()


def test_tables_of_another_shard_are_left_alone(receiving: Receiving) -> None:
    receiving.shard = Shard(0, 2)
    tables = [named(f"t{number}") for number in range(100)]
    mine = [table for table in tables if receiving.shard.owns(table)]
    assert 20 < len(mine) < 80
    events = [replace(COMMIT, table=table) for table in tables]
    requests = [replace(event, request="id = 1", writes=False) for event in events]
    assert [table for table, _ in receiving.asked(*events, *requests)] == mine
    assert set(receiving.scene.board.known()) == set(mine)


def test_a_request_beyond_the_most_is_dropped_and_a_known_one_is_not_counted_twice(receiving: Receiving) -> None:
    requests = [replace(COMMIT, request=f"id = {number}") for number in range(MOST_REQUESTS)]
    receiving.asked(*requests, *requests)
    assert len(receiving.scene.board.requests(NAME)) == MOST_REQUESTS
    receiving.asked(replace(COMMIT, request="id = -1"), replace(COMMIT, request="id = 0"))
    assert receiving.scene.board.requests(NAME) == tuple(each.request or "" for each in requests)
    receiving.scene.board.finish_request(NAME, "id = 5")
    receiving.asked(replace(COMMIT, request="id = -1"))
    assert "id = -1" in receiving.scene.board.requests(NAME)


def requests_of(*names: str, request: str = "id = 1") -> list[Heard]:
    return [replace(COMMIT, table=named(name), writes=False, request=request) for name in names]


def test_the_requests_of_a_batch_are_saved_once_and_before_their_looks(scene: Scene) -> None:
    saved: list[int] = []

    class Noting(LookQueue):
        def put(self, table: TableName, asked: Asked, *, after_seconds: float = 0.0) -> None:
            assert saved == [100], "a look may drop the request"
            super().put(table, asked, after_seconds=after_seconds)

    scene.board.restore_requests({}, lambda requests: not saved.append(len(requests)))
    assert len(Receiving(scene, Noting).asked(*requests_of(*(f"t{number}" for number in range(100))))) == 100
    assert saved == [100]


def test_requests_of_unknown_tables_are_bounded(receiving: Receiving, caplog: pytest.LogCaptureFixture) -> None:
    """Anyone who may write to the topic can name tables that do not exist."""
    scene = receiving.scene
    scene.look()
    flood = requests_of(*(f"t{number}" for number in range(3 * MOST_UNKNOWN_REQUESTS)))
    asked = receiving.asked(*flood, *requests_of("t0", request=""), replace(COMMIT, writes=False, request=""))
    assert len(scene.board.pending()) == len(asked) == MOST_UNKNOWN_REQUESTS + 1
    assert asked[0] == (NAME, Asked(Lane.EVENT)), "a table that is known has its own bound"
    assert asked[1][1] == Asked(Lane.UNKNOWN, requested=True)
    assert caplog.text.count("requested rewrites are dropped") == 1
    assert "2001" in caplog.text
    receiving.asked(*flood)
    assert len(scene.board.pending()) == MOST_UNKNOWN_REQUESTS + 1
    for table, one in asked[1:3]:
        scene.look(table, one)
    assert [table.name for table, _ in receiving.asked(*requests_of("t2500", "t2600", "t2700"))] == ["t2500", "t2600"]


def test_long_names_and_filters_of_unknown_tables_fill_neither_memory_nor_disk(receiving: Receiving) -> None:
    names = [f"{number}{'x' * 4_000}" for number in range(200)]
    receiving.asked(*requests_of(*names))
    assert len(receiving.scene.board.pending()) == MOST_UNKNOWN_CHARACTERS // len(f"lake.db.{names[-1]}id = 1")
    assert receiving.asked(*requests_of("long", request="x" * (MOST_CHARACTERS + 1))) == []
    assert receiving.scene.board.requests(named("long")) == ()


def test_the_filters_of_one_table_are_bounded_in_all(receiving: Receiving) -> None:
    receiving.scene.look()
    filters = [f"id = {number}{' ' * 9_980}" for number in range(8)]
    receiving.asked(*(replace(COMMIT, writes=False, request=text) for text in filters))
    assert receiving.scene.board.requests(NAME) == tuple(filters[:6])


def test_a_request_for_a_table_that_is_not_acted_on_or_does_not_exist_is_dropped_by_its_look(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    scene = Scene(tmp_path_factory.mktemp("observed"), tables={})
    receiving = Receiving(scene)
    scene.look()
    for table in (NAME, named("gone")):
        for _ in range(2):  # counted and unchanged; missing and still missing
            (asked,) = receiving.asked(replace(COMMIT, table=table, request="id = 1")) or [(table, Asked())]
            assert scene.board.requests(table) == ("id = 1",)
            scene.look(*asked)
            assert scene.board.requests(table) == ()
    assert scene.board.with_work() == ()


def test_a_request_for_a_table_that_is_acted_on_waits(receiving: Receiving) -> None:
    receiving.scene.look()
    for asked in receiving.asked(replace(COMMIT, request="")):
        receiving.scene.look(*asked)
    assert receiving.scene.debt().requested == ("",)
    assert receiving.scene.board.with_work() == (receiving.scene.debt(),)


# --- events that name a metadata file ---------------------------------------------------------------------------------


def test_a_metadata_file_means_the_table_that_keeps_its_metadata_there(receiving: Receiving) -> None:
    scene = receiving.scene
    scene.look()
    written = scene.history.table.metadata_location
    (asked,) = receiving.asked(HeardLocation(written, "s3", 5_000))
    assert asked == (NAME, Asked(Lane.EVENT, 5.0, announced=frozenset({written})))
    assert scene.published[-1] == EventsHeard({"s3": 1}, {"s3": 5_000})


@pytest.mark.parametrize(("sharing", "asked"), [(2, 2), (MOST_SHARING, MOST_SHARING), (MOST_SHARING + 1, 0)])
def test_all_tables_that_share_a_folder_are_asked_for_unless_they_are_many(
    receiving: Receiving, sharing: int, asked: int
) -> None:
    """Of many tables, an event says too little: none counts as announced, and sweeps look at them often."""
    tables = [named(f"t{number}") for number in range(sharing)]
    for table in tables:
        receiving.scene.looker.locations.put(table, PLACE.metadata_location)
        receiving.found.add(table)
    assert sorted(table for table, _ in receiving.asked(PLACE)) == sorted(tables[:asked])
    assert [receiving.scene.looker.rhythms.of(table).announced for table in tables] == [asked > 0] * sharing
    assert receiving.scene.looker.locations._searched == {}


def test_an_unknown_folder_asks_for_the_tables_that_its_path_suggests_once(receiving: Receiving) -> None:
    place = HeardLocation("s3://lake/a/db.db/new/metadata/00000-x.metadata.json", "s3", 5_000)
    asked = receiving.asked(place, place)
    assert asked == [
        (TableName("lake", ("db",), "new"), Asked(Lane.UNKNOWN, 5.0, tries=3)),
        (TableName("lake", ("a", "db"), "new"), Asked(Lane.UNKNOWN, 5.0, tries=3)),
    ]
    assert receiving.asked(place) == []


def test_a_table_that_was_made_a_second_ago_is_found_by_its_path(receiving: Receiving) -> None:
    scene = receiving.scene
    made = scene.catalog.create_table("db.new", scene.history.table.schema())
    place = HeardLocation(made.metadata_location, "s3", 5_000)
    for table, asked in receiving.asked(place):
        scene.look(table, asked)
    assert scene.looker.locations.find(made.metadata_location) == (named("new"),)
    assert [table for table, _ in receiving.asked(place)] == [named("new")]


PLACE = HeardLocation("s3://lake/a/db.db/new/metadata/00000-x.metadata.json", "s3", 5_000)
GUESSES = (TableName("lake", ("db",), "new"), TableName("lake", ("a", "db"), "new"))


def owning(*tables: TableName) -> Shard:
    """A shard to which, of all that `PLACE` suggests, these tables belong."""
    shards = (Shard(0, count) for count in range(1, 1000))
    return next(shard for shard in shards if all(shard.owns(each) == (each in tables) for each in GUESSES))


def test_a_folder_of_anothers_table_is_not_searched(receiving: Receiving) -> None:
    receiving.shard = owning()
    assert receiving.asked(PLACE) == []
    assert receiving.scene.looker.locations._searched == {}


def test_of_the_names_that_a_path_suggests_ours_is_looked_at(receiving: Receiving) -> None:
    receiving.shard = owning(GUESSES[1])
    assert receiving.asked(PLACE) == [(GUESSES[1], Asked(Lane.UNKNOWN, 5.0, tries=3))]


def test_a_folder_of_an_ignored_table_is_not_searched(tmp_path_factory: pytest.TempPathFactory) -> None:
    rules = {"include": ["*"], "exclude": ["*.new"]}
    receiving = Receiving(Scene(tmp_path_factory.mktemp("ignored"), tables=rules))
    assert receiving.asked(PLACE) == []
    assert receiving.scene.looker.locations._searched == {}


def test_a_path_that_suggests_no_name_is_searched(receiving: Receiving) -> None:
    receiving.shard = owning()
    assert receiving.asked(replace(PLACE, metadata_location="s3://lake/new/metadata/1.metadata.json")) == []
    assert [*receiving.scene.looker.locations._searched] == ["s3://lake/new/metadata"]
