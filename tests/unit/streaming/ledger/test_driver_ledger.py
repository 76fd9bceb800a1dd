"""The ledger's parts together: events and sweeps in, the board out; restarts and shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.errors import RetryError
from compactor.settings.current import CurrentSettings
from compactor.shards import EVERYTHING, Shard
from compactor.storage.ledger_database import opened_by
from streaming.intake.heard import Heard
from streaming.ledger.driver_ledger import DriverLedger, Holder, state_file
from streaming.ledger.table_record import Asked
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import NOW, PATIENCE_SECONDS, A, Scene, named, until


class Driving:
    """Driver ledgers, one after the other, over one scene and one checkpoint."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.scene = Scene(folder, service={"manifest_disk_bytes": 0}, **sections)
        self.settings = CurrentSettings(self.scene.settings)
        self.shard = EVERYTHING
        self.checkpoint, self.token = f"file://{folder}/checkpoint", 0
        self.ledger = self._ledger()

    def _ledger(self) -> DriverLedger:
        scene = self.scene
        return DriverLedger(
            self.settings,
            scene.catalogs,
            scene.board,
            scene.plans,
            self.checkpoint,
            scene.published.append,
            self.shard,
            Holder(token=self.token),
        )

    def start(self) -> None:
        self.ledger.start()
        self.ledger.check(behind=False, may_list=True)

    def restart(self) -> None:
        self.ledger.stop(PATIENCE_SECONDS)
        self.scene.restart()
        self.ledger = self._ledger()
        self.start()

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
    driving.start()
    until(lambda: driving.files() == {A: 2})
    driving.scene.history.append_unreal("b", [3])
    snapshot = driving.scene.history.table.metadata.current_snapshot_id
    driving.ledger.driver.hear([Heard(NAME, "canonical", int(NOW * 1000) - 250, writes=True, snapshot_id=snapshot)])
    until(lambda: len(driving.scene.updates) == 2)
    assert driving.files() == {A: 2, '["b"]': 1}
    assert [update.event_to_ledger_seconds for update in driving.scene.updates] == [None, 0.25]


def test_the_first_count_is_measured_against_what_the_sweep_has_found(driving: Driving) -> None:
    """Answered: counted, unreadable or gone, but not while a recount goes on."""
    scene, ledger = driving.scene, driving.ledger
    scene.catalog.create_table("db.other", scene.history.table.schema())
    assert ledger.counted is None
    ledger.driver.list_if_due("lake")
    assert ledger.counted == (0, 2)
    ledger.driver.look(NAME, Asked())
    assert ledger.counted == (1, 2)
    scene.catalogs.failure = RetryError("damage")
    ledger.driver.look(named("other"), Asked())
    assert ledger.counted == (2, 2)


# --- restart ----------------------------------------------------------------------------------------------------------


def test_a_restart_on_the_same_checkpoint_recounts_nothing(driving: Driving) -> None:
    driving.scene.history.append_unreal("a", [1, 2])
    driving.start()
    until(lambda: driving.files() == {A: 2})
    driving.restart()
    until(lambda: driving.files() == {A: 2})
    driving.scene.history.append_unreal("a", [3])
    driving.restart()
    until(lambda: driving.files() == {A: 3})
    until(lambda: [update.recount_reason for update in driving.scene.updates] == ["first_sight", None, None])


def test_a_table_that_was_dropped_while_no_service_ran_leaves_no_state(driving: Driving) -> None:
    driving.scene.history.append_unreal("a", [1])
    driving.start()
    until(lambda: driving.files() == {A: 1})
    until(lambda: driving.ledger.looker.database.names() == [NAME.key])
    driving.ledger.stop(PATIENCE_SECONDS)
    driving.scene.catalog.drop_table("db.t")
    driving.restart()
    until(lambda: not driving.ledger.looker.database.names())


def test_damaged_names_in_the_state_are_left_out(driving: Driving) -> None:
    """Else no listing of any catalog would succeed again."""
    ledger, dropped = driving.ledger, named("dropped")
    for name in ("lake.db.other", '["lake","db"', '"lake"', '["lake", 1, "t"]', "[]", dropped.key):
        ledger.looker.database.save(name, head="{}", cleared=False, slots={})
    ledger.driver.list_if_due("lake")
    assert (ledger.troubles, ledger.listed) == ({}, {"lake": True})
    asked = {taken[0] for _ in range(3) if (taken := ledger.driver.take("lake", 0.0)) is not None}
    assert asked == {NAME, dropped}


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
    driving.start()
    ledger.driver.hear([Heard(NAME, "canonical", 5, writes=True)])
    until(lambda: NAME in scene.catalogs.calls)
    current = scene.settings.model_copy(update={"tables": scene.settings.tables.model_copy(update={"exclude": ("*",)})})
    driving.settings.take(current)
    ledger.driver.settings_changed()
    scene.catalogs.released.set()
    until(lambda: scene.updates and scene.board.get(NAME) is None)


# --- shards -----------------------------------------------------------------------------------------------------------


def test_tables_of_another_service_are_neither_swept_nor_counted_nor_are_their_requests_kept(
    driving: Driving, caplog: pytest.LogCaptureFixture
) -> None:
    driving.scene.history.append_unreal("a", [1])
    driving.ledger.stop(PATIENCE_SECONDS)
    driving.shard = OTHER
    driving.ledger = driving._ledger()
    driving.scene.board.request(NAME, ["id = 2"])  # of before `service.shard` was changed
    driving.start()
    driving.ledger.driver.hear([Heard(NAME, "canonical", 5, writes=True, request="id = 1")])
    until(lambda: driving.ledger.counted == (0, 0))
    assert driving.scene.board.known() == ()
    (told,) = [record.getMessage() for record in caplog.records if "another service's" in record.getMessage()]
    assert told.startswith(f"{NAME} is another service's now (service.shard): 1 requested rewrites are dropped")


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
    until(lambda: [update.recount_reason for update in driving.scene.updates] == [reason])
    until(lambda: driving.ledger.counted == (1, 1))
    assert driving.ledger.troubles == {}


def no_room(_source: Path, _target: Path) -> None:
    raise OSError("No space left on device")


OTHER = Shard(0, 2) if Shard(1, 2).owns(NAME) else Shard(1, 2)
