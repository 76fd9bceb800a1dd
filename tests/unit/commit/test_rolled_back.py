"""Outputs of commits that a catalog may roll back: they stay while a snapshot has them, and go with the last one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.commit import sweep
from compactor.commit.history import PART
from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import MOST_SETTLE_SECONDS, SETTLE_SECONDS
from compactor.iceberg.other_compactors import POLARIS_ROLLBACK, RUN_ID
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.runs.output_record import OutputRecords
from tests.unit.commit.test_in_flight import DEAD, GRACE, Scene

BOTH = ["one.parquet", "two.parquet"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def ended(scene: Scene, *, rolled_back: bool = False) -> InFlightRecords:
    """A run that has committed the first output, and whose catalog may roll that back."""
    kept = scene.run(Owner.this_process(), sent=False)
    if not rolled_back:
        scene.commit(scene.outputs[0])
    kept.note_committed(scene.run_id, [f"file:{scene.outputs[0]}"])
    (record,) = kept.all()
    outputs = OutputRecords(kept, scene.catalogs, ManifestCache(2**20))
    outputs.close(record, clean=False, rolls_back=True)
    return kept


def test_no_catalog_is_asked_before_it_is_certain(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ended(scene)
    monkeypatch.setattr(scene.catalogs, "load", None)
    scene.now += SETTLE_SECONDS - 1
    assert scene.sweep(kept) == 0
    assert (scene.left(), len(kept.all())) == (BOTH, 1)


def test_what_a_snapshot_has_stays_and_the_record_goes(scene: Scene) -> None:
    kept = ended(scene)
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert (scene.left(), kept.all()) == (["one.parquet"], [])


def test_the_outputs_of_a_commit_that_was_rolled_back_go(scene: Scene) -> None:
    kept = ended(scene, rolled_back=True)
    scene.history.append_unreal("a", [1])
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 2
    assert (scene.left(), kept.all()) == ([], [])


def committed_by_the_run(scene: Scene, part: str) -> None:
    """A snapshot that says it is this part of the run, and asks its catalog to roll it back for a writer."""
    summary = {RUN_ID: scene.run_id, PART: part, POLARIS_ROLLBACK: "rollback"}
    scene.history.table.append(scene.history.rows(["a"]), snapshot_properties=summary)


def test_the_outputs_of_a_part_that_was_rolled_back_go(scene: Scene) -> None:
    """The last part is there: that does not tell of the others."""
    kept = ended(scene)
    committed_by_the_run(scene, "2/2")
    scene.history.append_unreal("a", [1])
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert (scene.left(), kept.all()) == (["one.parquet"], [])


def test_a_run_that_dropped_a_file_group_waits_too_for_a_rollback(scene: Scene) -> None:
    kept = scene.run(Owner.this_process(), sent=False)
    scene.commit(scene.outputs[0])
    kept.note_committed(scene.run_id, [f"file:{scene.outputs[0]}"])
    before = scene.history.table.metadata.snapshots[0].snapshot_id
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).abandon(kept.all()[0], rolls_back=True)
    assert scene.left() == ["one.parquet"]
    scene.history.table.manage_snapshots().rollback_to_snapshot(before).commit()
    scene.history.append_unreal("a", [1])
    rolled_back = [each.snapshot_id for each in scene.history.table.metadata.snapshots][1]
    scene.history.table.maintenance.expire_snapshots().by_id(rolled_back).commit()
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert (scene.left(), kept.all()) == ([], [])


def test_a_run_that_died_after_its_commit_waits_too_for_a_rollback(scene: Scene) -> None:
    kept = scene.run()
    scene.commit(scene.outputs[0])
    committed_by_the_run(scene, "1/1")
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 0
    scene.now += SETTLE_SECONDS - 1
    assert scene.sweep(kept) == 0
    assert scene.left() == BOTH
    scene.now += 1
    assert scene.sweep(kept) == 1
    assert (scene.left(), kept.all()) == (["one.parquet"], [])


def test_of_a_run_whose_snapshot_is_there_no_reference_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ended(scene)
    committed_by_the_run(scene, "1/1")
    scene.history.append_unreal("a", [1])
    monkeypatch.setattr(sweep, "delete_unreferenced", None)
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 0
    assert (scene.left(), kept.all()) == (BOTH, [])


def rolled_back_for_a_writer(scene: Scene) -> None:
    """As Polaris does it: the newest snapshot goes, and the writer's takes its place."""
    *_, before, ours = (each.snapshot_id for each in scene.history.table.metadata.snapshots)
    scene.history.table.manage_snapshots().rollback_to_snapshot(before).commit()
    scene.history.append_unreal("a", [1])
    scene.history.table.maintenance.expire_snapshots().by_id(ours).commit()


def test_a_writer_may_need_hours(scene: Scene) -> None:
    """While no writer has committed after the run, its commit may still be rolled back."""
    kept = ended(scene, rolled_back=True)
    committed_by_the_run(scene, "1/1")
    for _ in range(3):
        scene.now += 3 * SETTLE_SECONDS
        scene.sweep(kept)
        assert len(kept.all()) == 1
    rolled_back_for_a_writer(scene)
    scene.now += 4 * 3 * SETTLE_SECONDS
    assert scene.sweep(kept) == 2
    assert (scene.left(), kept.all()) == ([], [])


def test_no_writer_is_waited_for_longer_than_a_week(scene: Scene) -> None:
    kept = ended(scene)
    committed_by_the_run(scene, "1/1")
    looks, started = 0, scene.now
    while kept.all():
        scene.now = max(scene.now, kept.all()[0].settles_at)
        scene.sweep(kept)
        looks += 1
        assert looks < 20
    assert MOST_SETTLE_SECONDS <= scene.now - started <= 2 * MOST_SETTLE_SECONDS


def test_a_run_that_ended_after_a_part_waits_for_its_rollback_too(scene: Scene) -> None:
    kept = scene.run(Owner.this_process(), sent=False)
    committed_by_the_run(scene, "1/2")
    kept.note_committed(scene.run_id, [f"file:{scene.outputs[0]}"])
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).abandon(kept.all()[0])
    assert scene.left() == ["one.parquet"]
    for _ in range(3):  # two sweeps end what may still be written
        scene.sweep(kept)
    assert scene.left() == ["one.parquet"]
    rolled_back_for_a_writer(scene)
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert (scene.left(), kept.all()) == ([], [])


@pytest.mark.parametrize("made_again", [False, True])
def test_a_table_that_was_dropped_since_ends_the_record(
    scene: Scene, caplog: pytest.LogCaptureFixture, made_again: bool
) -> None:
    """No search, and no advice to remove files: they were committed."""
    kept = ended(scene)
    scene.history.catalog.drop_table("db.t")
    if made_again:
        scene.history._create()
    scene.now += SETTLE_SECONDS + GRACE
    assert scene.sweep(kept) == 0
    assert (scene.left(), kept.all(), caplog.text) == (BOTH, [], "")


def test_before_it_is_certain_committed_outputs_stay_whatever_the_catalog_shows(scene: Scene) -> None:
    """A catalog's answer may be older than the commit."""
    kept = scene.run(Owner.this_process(), sent=False)
    kept.note_committed(scene.run_id, [f"file:{scene.outputs[0]}"])
    (record,) = kept.all()
    outputs = OutputRecords(kept, scene.catalogs, ManifestCache(2**20))
    outputs.close(record, clean=True, rolls_back=True)
    assert scene.left() == ["one.parquet"]
    assert [each.settles_at for each in kept.all()] == [scene.now + SETTLE_SECONDS]


def test_another_process_waits_too(scene: Scene) -> None:
    ended(scene)
    kept = InFlightRecords(f"file://{scene.folder}/in-flight", DEAD, 60, lambda: scene.now)
    kept.save(replace(kept.all()[0], owner=DEAD))
    assert scene.sweep(kept) == 0
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert scene.left() == ["one.parquet"]


def test_nothing_goes_where_the_catalog_may_hide_snapshots(scene: Scene) -> None:
    """Nessie lists the newest snapshot of one branch: others may have the outputs."""
    kept = ended(scene, rolled_back=True)
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 0
    assert (scene.left(), kept.all()) == (BOTH, [])
