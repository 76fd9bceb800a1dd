"""One look at one table: counted or unchanged, what it costs, what is remembered and read ahead."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.errors import RetryError
from compactor.events import ManifestsRead
from compactor.iceberg.tables import KnownVersion
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import LimitSettings, Settings
from streaming.ledger.board_writer import MOST_BEGUN_ANEW
from streaming.ledger.looker import (
    Outcome,
)
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import A, Scene, reads_since_last_time

# --- counted ----------------------------------------------------------------------------------------------------------


def has(scene: Scene, snapshot_id: int) -> bool:
    """Whether an announcement of this snapshot is no news."""
    count = scene.record().count
    assert count is not None
    return count.has(snapshot_id, 0.0)


def test_a_first_look_counts_the_table_and_later_ones_what_is_new(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.files() == {A: 2}
    assert scene.debt().snapshot_id == scene.history.table.metadata.current_snapshot_id
    scene.history.append_unreal("a", [3])
    scene.history.append_unreal("b", [4])
    assert scene.look().outcome is Outcome.COUNTED
    assert scene.files() == {A: 3, '["b"]': 1}
    assert [update.recount_reason for update in scene.updates] == ["first_sight", None]
    assert scene.outcomes == ["counted", "counted"]


def test_the_tables_switch_and_refused_properties_reach_the_board(scene: Scene) -> None:
    acted_on, refused = [], []
    for properties in ({}, {"firnline.enabled": "false"}, {"firnline.enabled": "true", "firnline.strategy": "odd"}):
        scene.history.set_properties(properties)
        scene.look()
        acted_on.append(scene.debt().acted_on)
        refused.append(len(scene.debt().refused))
    assert acted_on == [True, False, True]
    assert refused == [0, 0, 1]


def test_settings_that_change_reach_a_table_that_has_not_changed(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    assert scene.look().outcome is Outcome.UNCHANGED
    assert (scene.debt().acted_on, scene.debt().due_partitions) == (True, 0)
    before = scene.looker.settings
    changed = Settings.model_validate(
        {
            "catalogs": {NAME.catalog: {}},
            "tables": {"include": []},
            "policy": {"strategy": "threshold", "min_input_files": 2},
        }
    )
    current = CurrentSettings(changed)
    scene.looker.settings = current
    assert scene.look().outcome is Outcome.COUNTED
    assert (scene.debt().acted_on, scene.debt().due_partitions) == (False, 1)
    assert scene.look().outcome is Outcome.UNCHANGED
    current.take(changed.model_copy(update={"limits": LimitSettings(bytes_per_hour=1)}))
    assert scene.look().outcome is Outcome.UNCHANGED, "limits do not decide what counts mean"
    scene.looker.settings = before
    scene.look()
    assert (scene.debt().acted_on, scene.debt().due_partitions) == (True, 0)


THRESHOLD = {"strategy": "threshold", "min_input_files": 2}


def changed_policy(scene: Scene) -> None:
    """A reload of the settings, with another limit of a file group."""
    scene.looker.settings = Settings.model_validate(
        {"catalogs": {NAME.catalog: {}}, "tables": {"include": ["*"]}, "policy": THRESHOLD}
    )


def recreated(scene: Scene) -> None:
    scene.history.recreate()
    scene.history.append_unreal("a", [1, 2])


@pytest.mark.parametrize(
    "change",
    [
        changed_policy,
        lambda scene: scene.history.set_properties({"schema.name-mapping.default": "[]"}),
        lambda scene: scene.history.set_properties({"write.format.default": "orc"}),
        recreated,
    ],
    ids=["settings", "name mapping", "file format", "another table"],
)
def test_what_a_plan_declined_is_judged_again_when_the_reason_may_be_gone(
    tmp_path: Path, change: Callable[[Scene], None]
) -> None:
    """The counts stay the same: the files are as many and as large as before."""
    scene = Scene(tmp_path, policy={**THRESHOLD, "max_file_group_input_files": 9})
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    seen = scene.debt()
    (due,) = seen.due
    scene.board.decline(seen, {due.key: "fewer than 2 files"})
    scene.history.set_properties({"owner": "someone"})
    scene.look()
    assert scene.debt().due == (), "nothing that plans depend on has changed"
    change(scene)
    scene.look()
    found = scene.debt().partitions[due.key]
    assert found.counts == due.counts
    assert found.due, found.why


def test_partitions_outside_the_filter_of_the_policy_are_never_due(tmp_path: Path) -> None:
    """A table property changes the filter; the files stay the same."""
    scene = Scene(tmp_path, policy={**THRESHOLD, "where": "category = 'b'"})
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    (debt,) = scene.debt().partitions.values()
    assert (debt.due, debt.why, debt.counts.small_files) == (False, "outside policy.where", 2)
    scene.history.append_unreal("b", [1, 2])
    scene.look()
    assert [debt.partition for debt in scene.debt().due] == [{"category": "b"}]
    scene.history.set_properties({"firnline.policy.where": "category = 'a'"})
    scene.look()
    assert [debt.partition for debt in scene.debt().due] == [{"category": "a"}]
    scene.history.set_properties({"firnline.policy.where": "no_such_column = 1"})
    scene.look()
    assert scene.debt().due_partitions == 2, "a plan reports the filter that the table refuses"


@pytest.mark.usefixtures("one_file_per_look")
def test_a_long_count_goes_on_look_by_look(scene: Scene) -> None:
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    looks = [scene.look() for _ in range(4)]
    assert [each.outcome for each in looks] == ["counting", "counting", "counted", "unchanged"]
    assert [each.more for each in looks] == [True, True, False, False]
    assert scene.files() == {A: 3}
    told = [(each.recount_reason, each.counted) for each in scene.updates]
    assert told == [("first_sight", False), (None, False), (None, True)], "one recount, which one look ends"


@pytest.mark.usefixtures("one_file_per_look")
def test_a_long_count_whose_snapshots_expire_again_and_again_is_called_unreadable(scene: Scene) -> None:
    def commit() -> None:
        before = scene.history.table.current_snapshot()
        scene.history.append_unreal("a", [1])
        if before is not None:
            scene.history.table.maintenance.expire_snapshots().by_id(before.snapshot_id).commit()

    for _ in range(3):
        commit()
    for _ in range(MOST_BEGUN_ANEW):
        assert scene.look().outcome is Outcome.COUNTING
        assert scene.debt().recounting
        commit()
        scene.restart()
    assert scene.look().outcome is Outcome.COUNTING
    assert not scene.debt().recounting
    assert f"began anew {MOST_BEGUN_ANEW} times, because its snapshot expired" in str(scene.debt().stale)
    scene.database.forget(NAME.key)
    commit()
    assert scene.look().outcome is Outcome.COUNTING
    assert scene.debt().recounting, "each recount has its own number"


def test_a_walk_cut_short_is_on_the_board_and_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, service={"manifests_per_batch": 1})
    scene.history.append_unreal("a", [1])
    scene.look()
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    looks, files = [], []
    for _ in range(4):
        looks.append(scene.look())
        files.append(scene.files()[A])
        assert scene.debt().stale is None
    assert files == [2, 3, 4, 4]
    assert [each.more for each in looks] == [True, True, False, False]
    assert [each.outcome for each in looks] == ["counted", "counted", "counted", "unchanged"]


# --- unchanged --------------------------------------------------------------------------------------------------------


def test_an_unchanged_table_costs_one_catalog_call_and_no_read_of_the_store(scene: Scene) -> None:
    scene.history.append_unreal("a", [1, 2])
    scene.look()
    assert reads_since_last_time() > 0
    before, scene.catalogs.calls = scene.debt(), []
    for _ in range(3):
        assert scene.look().outcome is Outcome.UNCHANGED
    assert scene.catalogs.calls == [NAME] * 3
    assert reads_since_last_time() == 0
    assert scene.debt() == before
    assert len(scene.updates) == 1


def test_a_partition_that_becomes_due_by_idleness_is_due_at_the_next_sweep_without_a_read(scene: Scene) -> None:
    for _ in range(2):
        scene.history.append_unreal("a", [1])
    written = scene.history.table.current_snapshot()
    assert written is not None
    scene.now = written.timestamp_ms / 1000
    scene.look()
    assert (scene.files(), scene.debt().due) == ({A: 2}, ())
    reads_since_last_time()
    scene.now += 10 * 86_400
    assert scene.look().outcome is Outcome.UNCHANGED
    assert [each.key.values for each in scene.debt().due] == [A]
    assert scene.debt().due_since == scene.now
    assert reads_since_last_time() == 0


def test_a_table_that_was_unreadable_for_a_while_and_has_not_changed_is_no_longer_stale(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.catalogs.failure = RetryError("no answer")
    assert scene.look().outcome is Outcome.UNREADABLE
    assert scene.debt().stale == "no answer"
    scene.catalogs.failure = None
    assert scene.look().outcome is Outcome.UNCHANGED
    assert scene.debt().stale is None


def test_what_the_catalog_confirmed_is_kept_with_its_time(scene: Scene) -> None:
    """The tag of an answer is trusted for an hour after the catalog named the location itself, not after any answer."""
    start = scene.now
    for _ in range(3):
        scene.look()
        scene.now += 100
    location = scene.history.table.metadata_location
    assert scene.catalogs.known == [
        None,
        KnownVersion(location, None, start),
        KnownVersion(location, None, start + 100),
    ]


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_snapshots_of_main_are_remembered(scene: Scene) -> None:
    """One that was rolled back is news when main returns to it."""
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    ids = [each.snapshot_id for each in scene.history.table.snapshots()]
    scene.history.table.manage_snapshots().set_current_snapshot(ids[1]).commit()
    scene.look()
    assert [has(scene, each) for each in ids] == [True, True, False]


# --- reading ahead ----------------------------------------------------------------------------------------------------


def test_new_manifests_are_read_ahead_for_tables_that_were_planned(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    scene.look()
    scene.look()
    assert scene.plan_reads == []
    scene.driver.planned(NAME)
    scene.look()
    assert scene.plan_reads == [], "unchanged: there are no new manifests"
    scene.history.append_unreal("a", [1])
    scene.look()
    (read,) = scene.plan_reads
    assert isinstance(read, ManifestsRead)
    assert (read.hits, read.misses) == (0, 2)
    view = scene.catalogs.load(NAME)
    scene.plans.read(view, view.manifests())
    assert [event.hits for event in scene.plan_reads if isinstance(event, ManifestsRead)] == [0, 2]


def test_state_is_kept_by_the_tables_whole_name(scene: Scene) -> None:
    scene.look()
    with sqlite3.connect(scene.folder / "ledger.sqlite") as other:
        names = [json.loads(name) for (name,) in other.execute("SELECT name FROM heads")]
    other.close()
    assert names == [["lake", "db", "t"]]
