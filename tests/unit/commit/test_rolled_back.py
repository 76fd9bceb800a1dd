"""Outputs of commits that a catalog may roll back: they stay while a snapshot has them, and go with the last one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.commit.in_flight import InFlightRecords
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.runs.output_record import SETTLE_SECONDS, OutputRecords
from tests.unit.commit.test_in_flight import DEAD, Scene

BOTH = ["one.parquet", "two.parquet"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def committed(scene: Scene) -> InFlightRecords:
    """A run that has committed the first output, and closes its record later."""
    kept = scene.run(Owner.this_process())
    scene.commit(scene.outputs[0])
    (record,) = kept.all()
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).close_later(record)
    return kept


def test_no_catalog_is_asked_before_it_is_certain(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = committed(scene)
    monkeypatch.setattr(scene.catalogs, "load", None)
    scene.now += SETTLE_SECONDS - 1
    assert scene.sweep(kept) == 0
    assert (scene.left(), len(kept.all())) == (BOTH, 1)


def test_what_a_snapshot_has_stays_and_the_record_goes(scene: Scene) -> None:
    kept = committed(scene)
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert (scene.left(), kept.all()) == (["one.parquet"], [])


def test_the_outputs_of_a_commit_that_was_rolled_back_go(scene: Scene) -> None:
    kept = scene.run(Owner.this_process())
    (record,) = kept.all()
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).close_later(record)
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 2
    assert (scene.left(), kept.all()) == ([], [])


def test_another_process_waits_too(scene: Scene) -> None:
    committed(scene)
    kept = InFlightRecords(f"file://{scene.folder}/in-flight", DEAD, 60, lambda: scene.now)
    kept.save(replace(kept.all()[0], owner=DEAD))
    assert scene.sweep(kept) == 0
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 1
    assert scene.left() == ["one.parquet"]


def test_nothing_goes_where_the_planned_snapshot_is_not_listed(scene: Scene) -> None:
    """Nessie lists the newest snapshot of one branch: others may have the outputs."""
    kept = scene.run(Owner.this_process())
    (record,) = kept.all()
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).close_later(replace(record, parent_snapshot_id=7))
    scene.now += SETTLE_SECONDS
    assert scene.sweep(kept) == 0
    assert (scene.left(), kept.all()) == (BOTH, [])
