"""The ledger's parts together: events and sweeps in, the board out; restarts, shards, and names that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.debt.ledger import STATE_VERSION
from compactor.errors import RetryError
from compactor.events import LedgerUpdated
from compactor.reasons import Reason
from compactor.shards import EVERYTHING, NOBODY, Shard
from compactor.storage.ledger_database import opened_by
from compactor.table_names import TableName
from streaming.ledger import driver_ledger
from streaming.ledger.driver_ledger import JUDGE_AFTER_SECONDS, Around, DriverLedger, state_file
from streaming.ledger.heard import Heard, HeardLocation
from streaming.ledger.look_queue import Asked, Lane
from streaming.ledger.strange_names import NO_TABLE_SECONDS
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import NOW, PATIENCE_SECONDS, A, Scene, named, until


class Driving:
    """Driver ledgers, one after the other, over one scene and one checkpoint."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.scene = Scene(folder, service={"manifest_disk_bytes": 0}, **sections)
        self.shard = EVERYTHING
        self.may_sweep = True
        self.checkpoint, self.token = f"file://{folder}/checkpoint", 0
        self.pauses: list[float] = []
        self.in_pause: Callable[[], object] = lambda: None
        self.ledger = self._ledger()

    def _ledger(self) -> DriverLedger:
        scene = self.scene
        around = Around(scene._wake, lambda: self.shard, lambda: self.may_sweep, lambda: False)
        return DriverLedger(
            settings=scene.settings,
            catalogs=scene.catalogs,
            board=scene.board,
            plans=scene.plans,
            checkpoint=self.checkpoint,
            around=around,
            listener=scene.published.append,
            clock=lambda: self.scene.now,
            token=self.token,
            pause=self._pause,
        )

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.in_pause()

    def restart(self) -> None:
        self.ledger.stop(PATIENCE_SECONDS)
        self.scene.restart()
        self.ledger = self._ledger()
        self.ledger.start()

    def files(self) -> dict[str, int]:
        return self.scene.files() if self.scene.board.get(NAME) is not None else {}


@pytest.fixture
def driving(tmp_path: Path) -> Iterator[Driving]:
    made = Driving(tmp_path)
    yield made
    made.scene.catalogs.released.set()
    made.ledger.stop(PATIENCE_SECONDS)
    made.scene.database.close()


def test_commits_are_counted_by_their_events_and_without_them_by_sweeps(driving: Driving) -> None:
    driving.scene.history.append_unreal("a", [1, 2])
    driving.ledger.start()
    until(lambda: driving.files() == {A: 2})
    driving.scene.history.append_unreal("b", [3])
    snapshot = driving.scene.history.table.metadata.current_snapshot_id
    driving.ledger.inbox([Heard(NAME, "canonical", int(NOW * 1000) - 250, writes=True, snapshot_id=snapshot)])
    until(lambda: len(driving.scene.updates) == 2)
    assert driving.files() == {A: 2, '["b"]': 1}
    assert [update.event_to_ledger_seconds for update in driving.scene.updates] == [None, 0.25]


def test_an_event_is_counted_before_the_first_sweep(driving: Driving) -> None:
    driving.may_sweep = False
    driving.scene.history.append_unreal("a", [1])
    driving.ledger.start()
    driving.ledger.inbox([Heard(NAME, "canonical", 5, writes=True)])
    until(lambda: driving.files() == {A: 1})
    assert driving.ledger.counted is None


def test_the_first_count_is_measured_against_what_the_sweep_has_found(driving: Driving) -> None:
    """Answered: counted, unreadable or gone, but not while a recount goes on."""
    scene, ledger = driving.scene, driving.ledger
    scene.catalog.create_table("db.other", scene.history.table.schema())
    assert ledger.counted is None
    ledger.watcher.sweep("lake")
    assert ledger.counted == (0, 2)
    ledger.looker.look(NAME, Asked())
    assert ledger.counted == (1, 2)
    scene.catalogs.failure = RetryError("damage")
    ledger.looker.look(named("other"), Asked())
    assert ledger.counted == (2, 2)


def test_names_that_are_no_tables_are_forgotten(driving: Driving) -> None:
    scene, ledger = driving.scene, driving.ledger
    listed = named("listed")
    scene.catalog.create_table("db.listed", scene.history.table.schema())
    ledger.watcher.sweep("lake")
    scene.catalog.drop_table("db.listed")
    for table in (NAME, listed, *(named(f"unknown{number}") for number in range(9))):
        ledger.looker.look(table, Asked())
    ledger.check()
    assert ledger.writer._answered == {NAME, listed}
    assert ledger.counted == (2, 2)


def test_a_recount_under_way_is_no_answer(driving: Driving, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        driving.scene.history.append_unreal("a", [1])
    monkeypatch.setattr("compactor.debt.ledger.FILES_PER_LOOK", 1)
    driving.ledger.watcher.sweep("lake")
    driving.ledger.looker.look(NAME, Asked())
    assert driving.ledger.counted == (0, 1)
    driving.ledger.looker.look(NAME, Asked())
    assert driving.ledger.counted == (1, 1)


@pytest.mark.parametrize("change", ["moved", "swapped"])
def test_a_known_table_that_keeps_its_metadata_elsewhere_is_heard_again(
    driving: Driving, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Its folder suggests no name, or another one; listings show no new table."""
    monkeypatch.setattr("streaming.ledger.table_locations.KNOWN_SECONDS", 0.0)
    monkeypatch.setattr("streaming.ledger.table_watcher.ROUND_SECONDS", 0.0)
    monkeypatch.setattr("streaming.ledger.sweep_schedule.LIKELY_SECONDS", 0.0)
    scene, ledger = driving.scene, driving.ledger
    scene.catalog.create_table("db.new", scene.history.table.schema())
    ledger.start()
    until(lambda: ledger.counted == (2, 2))
    if change == "moved":
        scene.history.set_properties({"write.metadata.path": f"file://{scene.folder}/elsewhere"})
    else:
        scene.catalog.rename_table("db.t", "db.old")
        scene.catalog.rename_table("db.new", "db.t")
        until(lambda: ledger.watcher.sweep("lake") and ledger.looker.is_known(named("old")))
    written = scene.history.table.metadata_location
    ledger.inbox([HeardLocation(written, "s3", int(NOW * 1000))])
    until(lambda: ledger.looker.locations.find(written) == (NAME,))


# --- restart ----------------------------------------------------------------------------------------------------------


def test_a_restart_on_the_same_checkpoint_recounts_nothing(driving: Driving) -> None:
    driving.scene.history.append_unreal("a", [1, 2])
    driving.ledger.start()
    until(lambda: driving.files() == {A: 2})
    driving.restart()
    until(lambda: driving.files() == {A: 2})
    driving.scene.history.append_unreal("a", [3])
    driving.restart()
    until(lambda: driving.files() == {A: 3})
    assert [update.recount_reason for update in driving.scene.updates] == ["first_sight", None, None]


def test_a_table_that_was_dropped_while_no_service_ran_leaves_no_state(driving: Driving) -> None:
    driving.scene.history.append_unreal("a", [1])
    driving.ledger.start()
    until(lambda: driving.files() == {A: 1})
    until(lambda: driving.ledger.looker.database.names() == [NAME.key])
    driving.ledger.stop(PATIENCE_SECONDS)
    driving.scene.catalog.drop_table("db.t")
    driving.restart()
    until(lambda: not driving.ledger.looker.database.names())


def test_damaged_names_in_the_state_are_left_out_and_named_once(
    driving: Driving, caplog: pytest.LogCaptureFixture
) -> None:
    """Else no listing of any catalog would succeed again."""
    dropped, database = named("dropped"), driving.ledger.looker.database
    for name in ("lake.db.other", '["lake","db"', '"lake"', '["lake", 1, "t"]', "[]", dropped.key):
        database.save(name, head="{}", cleared=False, slots={})
    for _ in range(2):
        assert driving.ledger.watcher._swept("lake") == driving.ledger.settings.service.sweep_seconds
    assert (driving.ledger.watcher.trouble, driving.ledger.watcher.listed) == (None, {"lake": True})
    asked = {taken[0] for _ in range(2) if (taken := driving.ledger.queue.take("lake", 0.0)) is not None}
    assert asked == {NAME, dropped}
    (told,) = [record.getMessage() for record in caplog.records if "damaged names" in record.getMessage()]
    assert str(database.file) in told


def test_a_lost_checkpoint_costs_one_count_of_each_table(driving: Driving) -> None:
    driving.scene.history.append_unreal("a", [1, 2])
    driving.ledger.start()
    until(lambda: driving.files() == {A: 2})
    driving.ledger.stop(PATIENCE_SECONDS)
    state_file(driving.ledger.checkpoint).unlink()
    driving.restart()
    until(lambda: len(driving.scene.updates) == 2)
    assert driving.files() == {A: 2}
    assert [update.recount_reason for update in driving.scene.updates] == ["first_sight", "first_sight"]


@pytest.mark.parametrize("checkpoint", ["{folder}/c", "file://{folder}/c", "file:{folder}/c"])
def test_the_state_lies_in_a_local_checkpoint(tmp_path: Path, checkpoint: str) -> None:
    expected = tmp_path / "c" / f"ledger-v{STATE_VERSION}.sqlite"
    assert state_file(checkpoint.format(folder=tmp_path)) == expected


def test_the_state_of_a_remote_checkpoint_lies_on_local_disk_apart_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = state_file("s3://bucket/one"), state_file("s3://bucket/two")
    assert first != second
    assert first == state_file("s3://bucket/one")
    assert {first.parents[2], second.parents[2]} == {tmp_path}
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "state", "./state"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert state_file("s3://bucket/one").is_relative_to(tmp_path / "home" / ".local" / "state" / "firnline")


def test_a_table_that_the_settings_exclude_during_its_look_does_not_come_back(driving: Driving) -> None:
    """Nothing would look at it again: it would count as due, and late, until a restart."""
    scene, ledger = driving.scene, driving.ledger
    scene.history.append_unreal("a", [1, 2])
    scene.catalogs.silent = {"lake"}
    ledger.start()
    ledger.inbox([Heard(NAME, "canonical", 5, writes=True)])
    until(lambda: NAME in scene.catalogs.calls)
    tables = ledger.settings.tables.model_copy(update={"exclude": ("*",)})
    ledger.settings = ledger.settings.model_copy(update={"tables": tables})
    ledger.settings_changed()
    scene.catalogs.released.set()
    until(lambda: scene.updates and scene.board.get(NAME) is None)


# --- shards -----------------------------------------------------------------------------------------------------------


def test_tables_of_another_service_are_neither_swept_nor_counted_and_a_table_that_becomes_ours_is(
    driving: Driving,
) -> None:
    ours = Shard("a", ("a", "b"))
    owner = "a" if ours.owns(NAME) else "b"
    driving.shard = Shard({"a": "b", "b": "a"}[owner], ("a", "b"))
    driving.scene.history.append_unreal("a", [1])
    driving.ledger.start()
    driving.ledger.inbox([Heard(NAME, "canonical", 5, writes=True, request="id = 1")])
    until(lambda: driving.ledger.watcher.found == frozenset())
    assert driving.scene.board.known() == ()
    driving.shard = Shard(owner, ("a", "b"))
    driving.ledger.shard_changed(driving.shard)
    until(lambda: driving.files() == {A: 1})
    driving.shard = Shard({"a": "b", "b": "a"}[owner], ("a", "b"))
    driving.ledger.shard_changed(driving.shard)
    assert driving.scene.board.known() == ()


@pytest.mark.parametrize(
    ("joined", "reason"), [(("a", "b"), "moved"), (("{owner}",), "first_sight")], ids=["with both", "alone"]
)
def test_a_table_of_a_service_that_was_in_the_group_has_moved(
    driving: Driving, joined: tuple[str, ...], reason: str
) -> None:
    """Counting it is no sign of a lost checkpoint."""
    members = tuple(OTHER if name == "{owner}" else name for name in joined)
    driving.scene.history.append_unreal("a", [1])
    driving.shard = Shard(OTHER, members, (NOBODY,))
    driving.ledger.start()
    driving.ledger.shard_changed(driving.shard)
    for settling in ((members,), ()):
        driving.shard = Shard(OTHER, (OTHER,), settling)
        driving.ledger.shard_changed(driving.shard)
    until(lambda: driving.files() == {A: 1})
    assert [update.recount_reason for update in driving.scene.updates] == [reason]


@pytest.mark.parametrize(
    ("checkpoint", "token", "before", "reason"),
    [
        ("s3://bucket/checkpoint", 2, "", "taken_over"),
        ("hdfs://names/checkpoint", 7, "", "taken_over"),
        ("s3://bucket/checkpoint", 1, "", "first_sight"),  # the first start of the deployment
        ("file://{folder}/checkpoint", 2, "", "first_sight"),  # the state was there, and is lost
        ("s3://bucket/checkpoint", 2, "known", "first_sight"),  # a new table of a service that has counted others
        ("s3://bucket/checkpoint", 2, "damaged", "first_sight"),  # this host has counted, and its counts are lost
        ("s3://bucket/checkpoint", 2, "not copied", "first_sight"),
    ],
)
def test_tables_that_another_host_has_counted_are_taken_over(
    driving: Driving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: str,
    token: int,
    before: str,
    reason: str,
) -> None:
    """With a checkpoint on an object store the counts lie on the host's disk: nothing is lost with the checkpoint."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "host"))
    place = checkpoint.format(folder=tmp_path)
    if before:
        database = opened_by(state_file(place), 1)
        database.save("lake.db.other", head="{}", cleared=False, slots={})
        database.close()
    if before == "damaged":
        database.file.write_bytes(b"no database")
    if before == "not copied":
        monkeypatch.setattr("compactor.storage.ledger_database.shutil.copyfile", no_room)
    driving.checkpoint, driving.token = place, token
    driving.scene.history.append_unreal("a", [1])
    driving.restart()
    until(lambda: driving.files() == {A: 1})
    assert [update.recount_reason for update in driving.scene.updates] == [reason]
    until(lambda: driving.ledger.counted == (1, 1))
    assert driving.ledger.watcher.trouble is None


def no_room(_source: Path, _target: Path) -> None:
    raise OSError("No space left on device")


def lost_requests(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if "another service's" in record.getMessage()]
    caplog.clear()
    return said


REQUEST = Heard(NAME, "canonical", 5, writes=False, request="id = 'x'")
OWNER = "a" if Shard("a", ("a", "b")).owns(NAME) else "b"
OTHER = {"a": "b", "b": "a"}[OWNER]


def test_a_request_that_is_read_before_this_service_has_settled_is_carried_out(
    driving: Driving, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart: the stream reads the backlog at once, and the service owns nothing for 25 s."""
    driving.scene.history.append_unreal("a", [1])
    driving.shard = Shard(OWNER, (OWNER,), (NOBODY,))
    driving.ledger.start()
    driving.ledger.inbox([REQUEST])
    for settling in ((NOBODY,), ((OTHER,),)):  # joined; then the other one's table becomes ours
        driving.shard = Shard(OWNER, ("a", "b"), settling)
        driving.ledger.shard_changed(driving.shard)
        assert driving.scene.board.requests(NAME) == (REQUEST.request,)
    driving.shard = Shard(OWNER, ("a", "b"))
    driving.ledger.shard_changed(driving.shard)
    until(lambda: driving.files() == {A: 1})
    assert driving.scene.debt().requested == (REQUEST.request,)
    assert driving.scene.board.with_work() == (driving.scene.debt(),)
    assert lost_requests(caplog) == []


def test_a_request_for_a_table_that_turns_out_to_be_anothers_is_dropped_and_not_mentioned(
    driving: Driving, caplog: pytest.LogCaptureFixture
) -> None:
    driving.shard = Shard(OTHER, (OTHER,), (NOBODY,))
    driving.ledger.inbox([REQUEST])
    assert driving.scene.board.known() == (NAME,)
    driving.ledger.shard_changed(Shard(OTHER, ("a", "b")))
    assert (driving.scene.board.known(), driving.ledger.inbox.unsure) == ((), set())
    assert lost_requests(caplog) == []


def test_a_request_whose_table_moves_is_named_with_what_to_do(
    driving: Driving, caplog: pytest.LogCaptureFixture
) -> None:
    driving.ledger.inbox([REQUEST])
    driving.ledger.shard_changed(Shard(OTHER, ("a", "b")))
    (told,) = lost_requests(caplog)
    assert told.endswith("""send it again: firnline request lake.db.t --where 'id = '"'"'x'"'"''""")


# --- names that do not exist ------------------------------------------------------------------------------------------


def test_missing_are_tables_that_neither_the_board_nor_the_catalog_knows(driving: Driving) -> None:
    scene, ledger = driving.scene, driving.ledger
    scene.catalog.create_table("db.new", scene.history.table.schema())
    ledger.looker.look(NAME, Asked())
    scene.catalogs.calls = []
    gone = {named("gone"), TableName("lake", ("nowhere",), "t"), TableName("elsewhere", ("db",), "t")}
    assert ledger.missing([NAME, named("new"), *gone]) == gone
    assert set(scene.catalogs.calls) == {named("new"), *gone}
    assert ledger.queue.take("lake", 0.0) == (named("new"), Asked(Lane.EVENT)), "its event may have been dropped"
    assert ledger.queue.take("lake", 0.0) is None
    assert ledger.missing([]) == frozenset()


def test_ignored_tables_are_never_missing(tmp_path: Path) -> None:
    driving = Driving(tmp_path, tables={"exclude": ["db.secret*"]})
    assert driving.ledger.missing([named("secret1"), named("gone")]) == {named("gone")}
    assert driving.scene.catalogs.calls == [named("gone")]
    driving.ledger.stop(PATIENCE_SECONDS)


def test_a_table_that_is_committed_shortly_after_its_event_is_not_missing(driving: Driving) -> None:
    """Iceberg reports a commit inside a transaction before it is made. A first look has come too early."""
    scene, ledger, new = driving.scene, driving.ledger, named("new")
    ledger.looker.look(new, Asked())
    driving.in_pause = lambda: scene.catalog.create_table("db.new", scene.history.table.schema())
    assert ledger.missing([new]) == frozenset()
    assert ledger.queue.take("lake", 0.0) == (new, Asked(Lane.EVENT))


def test_a_table_that_a_look_finds_before_its_event_is_judged_costs_no_other_call(driving: Driving) -> None:
    scene, ledger, new = driving.scene, driving.ledger, named("new")

    def commit() -> None:
        scene.catalog.create_table("db.new", scene.history.table.schema())
        ledger.looker.look(new, Asked())

    driving.in_pause = commit
    assert ledger.missing([new]) == frozenset()
    assert scene.catalogs.calls == [new]


def test_a_name_that_is_no_table_is_judged_again_without_a_call_for_a_while(driving: Driving) -> None:
    """Else each batch would ask for each of the ten thousand tables of another lake."""
    scene, ledger, gone = driving.scene, driving.ledger, named("gone")
    for _ in range(4):
        assert ledger.missing([gone]) == {gone}
        scene.now += 10
    assert (scene.catalogs.calls, driving.pauses) == ([gone], [JUDGE_AFTER_SECONDS])
    scene.now += NO_TABLE_SECONDS
    assert ledger.missing([gone]) == {gone}
    assert (scene.catalogs.calls, len(driving.pauses)) == ([gone, gone], 2)


def test_listed_tables_of_another_service_are_never_asked_for(driving: Driving) -> None:
    """The owner of the first table of an event looks for all others of it."""
    driving.shard = Shard(OTHER, ("a", "b"))
    driving.ledger.watcher.sweep("lake")
    assert driving.ledger.watcher.found == frozenset()
    driving.scene.catalogs.calls = []
    assert driving.ledger.missing([NAME, named("gone")]) == {named("gone")}
    assert driving.scene.catalogs.calls == [named("gone")]


def test_one_batch_asks_for_a_limited_number_of_names(
    driving: Driving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is a call to a catalog, and the dead letters of the batch wait for all of them."""
    monkeypatch.setattr(driver_ledger, "MOST_ASKED", 3)
    lately = [named(f"lately{number}") for number in range(2)]
    driving.ledger.missing(lately)
    driving.scene.catalogs.calls = []
    unknown = [named(f"unknown{number}") for number in range(5)]
    assert driving.ledger.missing([*unknown, *lately]) == {*unknown[:3], *lately}
    assert {*driving.scene.catalogs.calls} == {*unknown[:3]}
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("2 tables that events name were not checked")
    assert "lake.db.unknown3" in told


def test_after_a_restart_tables_that_were_counted_before_leave_room_for_wrong_names(
    driving: Driving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps wait for the end of the first batch, which may name all tables: no listing tells which of them exist."""
    monkeypatch.setattr(driver_ledger, "MOST_ASKED", 3)
    tables, wrong = [named(f"table{number}") for number in range(9)], {named("wrong1"), named("wrong2")}
    for table in tables:
        driving.ledger.looker.database.save(table.key, head="{}", cleared=False, slots={})
    driving.may_sweep = False
    driving.restart()
    assert driving.ledger.missing([*tables, *wrong]) == wrong
    assert {*driving.scene.catalogs.calls} == wrong
    driving.pauses.clear()
    assert driving.ledger.missing(tables) == frozenset()
    assert driving.pauses == [], "nothing is to be judged"


def test_a_table_that_was_counted_before_and_is_not_listed_any_more_is_missing(driving: Driving) -> None:
    gone = named("gone")
    driving.ledger.looker.database.save(gone.key, head="{}", cleared=False, slots={})
    driving.ledger.watcher.sweep("lake")
    assert driving.ledger.missing([gone]) == {gone}


def test_what_no_listing_will_ever_have_holds_up_no_dead_letters(driving: Driving) -> None:
    """A namespace that may not be listed, and a table in it that may not be loaded: it may exist."""
    forbidden, ledger = TableName("lake", ("secret",), "t"), driving.ledger
    ledger.watcher.sweep("lake")
    ledger.watcher._unlisted = {"lake": {("secret",): RetryError("403", reason=Reason.TABLE_UNREADABLE)}}
    driving.scene.catalogs.failure = RetryError("403", reason=Reason.TABLE_UNREADABLE)
    assert ledger.missing([forbidden]) == frozenset()


def test_what_can_never_be_loaded_is_missing(driving: Driving) -> None:
    forbidden, ledger = named("forbidden"), driving.ledger
    unreadable = RetryError("403", reason=Reason.TABLE_UNREADABLE)
    driving.scene.catalogs.failure = unreadable
    with pytest.raises(RetryError, match="403"):  # no listing has ended: the next one may have it
        ledger.missing([forbidden])
    driving.scene.catalogs.failure = None
    ledger.looker.look(NAME, Asked())
    ledger.watcher.sweep("lake")
    driving.scene.catalogs.failure = unreadable
    assert ledger.missing([forbidden]) == {forbidden}


def test_a_table_that_was_counted_before_is_not_missing_while_it_cannot_be_read(driving: Driving) -> None:
    """After a restart: its counts are on disk."""
    catalog = driving.scene.catalog
    driving.ledger.looker.look(NAME, Asked())
    driving.ledger.looker.forget(NAME)
    catalog.rename_table("db.t", "db.other")
    driving.ledger.watcher.sweep("lake")
    driving.scene.catalogs.failure = RetryError("503", reason=Reason.TABLE_UNREADABLE)
    assert driving.ledger.missing([NAME]) == frozenset()


def test_a_table_is_not_missing_under_another_spelling_of_its_name(driving: Driving) -> None:
    catalog = driving.scene.catalog
    catalog.create_namespace_if_not_exists("db.x")
    catalog.create_table("db.x.t", driving.scene.history.table.schema())
    assert driving.ledger.missing([TableName("lake", ("db.x",), "t")]) == frozenset()
    assert driving.ledger.queue.take("lake", 0.0) == (TableName("lake", ("db", "x"), "t"), Asked(Lane.EVENT))


def test_whether_a_table_is_missing_is_not_guessed_while_its_catalog_does_not_answer(driving: Driving) -> None:
    driving.scene.catalogs.failure = RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE)
    with pytest.raises(RetryError, match="no answer"):
        driving.ledger.missing([named("gone")])
    assert driving.ledger.queue.take("lake", 0.0) is None


def test_a_look_that_failed_does_not_make_a_name_a_table(driving: Driving) -> None:
    """Else the event of a table that does not exist would get no dead letter if its catalog was silent for a moment."""
    ledger, catalogs = driving.ledger, driving.scene.catalogs
    ledger.watcher.sweep("lake")
    catalogs.failure = RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE)
    ledger.looker.look(named("gone"), Asked())
    with pytest.raises(RetryError, match="no answer"):
        ledger.missing([named("gone")])
    catalogs.failure = None
    assert ledger.missing([named("gone")]) == {named("gone")}


def test_a_table_whose_first_count_goes_on_is_known_without_a_call(
    driving: Driving, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        driving.scene.history.append_unreal("a", [1])
    monkeypatch.setattr("compactor.debt.ledger.FILES_PER_LOOK", 1)
    driving.ledger.looker.look(NAME, Asked())
    driving.scene.catalogs.calls = []
    assert driving.ledger.missing([NAME]) == frozenset()
    assert driving.scene.catalogs.calls == []


def test_updates_are_published_once(driving: Driving) -> None:
    """A sweep and an event at the same time are one look, or a count and a look that finds nothing."""
    driving.scene.history.append_unreal("a", [1])
    driving.ledger.start()
    driving.ledger.inbox([Heard(NAME, "canonical", 5, writes=True)] * 100)
    until(lambda: driving.files() == {A: 1} and driving.ledger.counted == (1, 1))
    assert sum(isinstance(event, LedgerUpdated) for event in driving.scene.published) == 1


def test_the_space_for_the_state_is_that_of_its_volume(driving: Driving) -> None:
    driving.ledger.start()
    space = driving.ledger.space
    assert space is not None
    assert 0 < space.free_bytes <= space.volume_bytes
    assert not space.unsaved
    driving.ledger.looker.unsaved = "the disk is full"
    assert driving.ledger.space is not None
    assert driving.ledger.space.unsaved
