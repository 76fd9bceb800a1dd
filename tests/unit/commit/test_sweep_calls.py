"""Which tables a sweep of in-flight records loads, and when: its catalog may be slow or silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactor.commit.sweep import sweep
from compactor.iceberg.tables import TableView
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.table_names import TableName
from tests.unit.commit.test_in_flight import ELSEWHERE, GRACE, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def loaded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[TableName]:
    """The tables that were loaded. Each call takes two grace periods of the scene's clock."""
    real, names = scene.catalogs.load, list[TableName]()

    def load(name: TableName, *more: str) -> TableView:
        names.append(name)
        scene.now += 2 * GRACE
        return real(name, *more)

    monkeypatch.setattr(scene.catalogs, "load", load)
    return names


@pytest.mark.parametrize("owner", [Owner.this_process(), ELSEWHERE])
def test_the_table_of_a_run_that_is_under_way_is_not_loaded(
    scene: Scene, loaded: list[TableName], owner: Owner
) -> None:
    kept = scene.run(owner)
    assert scene.sweep(kept) == 0
    assert loaded == []
    kept.save(replace(kept.all()[0], abandoned=True))
    scene.sweep(kept)
    assert len(loaded) == 1


def test_a_catalog_that_does_not_answer_is_not_asked(scene: Scene, loaded: list[TableName]) -> None:
    kept = scene.run()
    asked = list[TableName]()

    def may_ask(table: TableName) -> bool:
        asked.append(table)
        return False

    assert sweep(kept, scene.catalogs, ManifestCache(1), now=scene.now, grace_seconds=GRACE, may_ask=may_ask) == {}
    assert loaded == []
    assert asked == [kept.all()[0].table]
