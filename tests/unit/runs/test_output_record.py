"""The record of a run that has ended: how long it waits for outputs that are written late."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from compactor.errors import StoppedError
from compactor.lease.owner import Owner
from compactor.locations import attempt_location
from compactor.manifests.cache import ManifestCache
from compactor.rewrite.tasks.runner import JOBS_OF_A_TASK
from compactor.runs.output_record import LATE_SECONDS, OutputRecords
from tests.unit.commit.test_in_flight import Scene

ON_A_CLUSTER = 4 * JOBS_OF_A_TASK


def ended(scene: Scene, attempts: int) -> OutputRecords:
    """A run that was dropped; its outputs so far are deleted at once, by itself and by a first sweep."""
    outputs = OutputRecords(scene.run(Owner.this_process()), scene.catalogs, ManifestCache(2**20))
    files = [f"file:{output}" for output in scene.outputs]
    with suppress(StoppedError), outputs.around(scene.run_id, scene.history.view(), files, (), attempts):
        raise StoppedError("paused")
    assert scene.left() == []
    assert scene.sweep(outputs.records) == 0
    return outputs


def test_a_lost_executor_that_finishes_its_file_late_leaves_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    records = ended(scene, ON_A_CLUSTER).records
    scene.now += LATE_SECONDS - 1
    assert scene.sweep(records) == 0
    late = Path(attempt_location(str(scene.outputs[0]), 3))
    late.write_text("bytes")
    scene.now += 2
    assert scene.sweep(records) == 1
    assert not late.exists()
    assert scene.sweep(records) == 0
    assert records.all() == []


def test_until_then_no_store_and_no_catalog_is_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    records = ended(scene, ON_A_CLUSTER).records
    scene.outputs[0].write_text("bytes")
    scene.now += LATE_SECONDS - 1
    assert scene.sweep(records) == 0
    assert scene.left() == ["one.parquet"]


def test_a_run_without_executors_of_its_own_needs_no_waiting(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    records = ended(scene, JOBS_OF_A_TASK).records
    assert scene.sweep(records) == 0
    assert records.all() == []


def test_a_lost_executor_of_a_driver_that_died_leaves_no_file_either(tmp_path: Path) -> None:
    """On a busy table the first sweeps find nothing more, minutes before the file is there."""
    scene = Scene(tmp_path)
    kept = scene.run()
    (record,) = kept.all()
    kept.save(replace(record, attempts=ON_A_CLUSTER, late_seconds=LATE_SECONDS))
    for removed in (0, 2, 0):
        assert scene.sweep(kept) == removed
        scene.history.append_unreal("a", [1])
    late = Path(attempt_location(str(scene.outputs[0]), 3))
    late.write_text("bytes")
    scene.now += LATE_SECONDS
    assert scene.sweep(kept) == 1
    assert not late.exists()
    assert scene.sweep(kept) == 0
    assert kept.all() == []
