"""Outputs of runs whose table is not under its name any more: the renamed table judges them, or they stay."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from compactor.commit import table_search
from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import SEARCH_SECONDS, delete_unreferenced, sweep
from compactor.errors import RetryError
from compactor.iceberg.tables import TableView
from compactor.manifests.cache import ManifestCache
from compactor.reasons import Reason
from compactor.table_names import TableName
from tests.unit.commit.test_in_flight import GRACE, Scene

RENAMED = TableName("lake", ("other",), "renamed")


class LostTable(Scene):
    """The table of the run can be renamed; commits go to it under its new name."""

    def rename(self) -> None:
        self.more = self.history.rows(["a"])
        self.history.catalog.create_namespace_if_not_exists("other")
        self.history.catalog.rename_table("db.t", "other.renamed")

    def move_head(self) -> None:
        self.history.catalog.load_table("other.renamed").append(self.more)

    def wait(self) -> None:
        self.now += GRACE + 1


@pytest.fixture
def scene(tmp_path: Path) -> LostTable:
    return LostTable(tmp_path)


def names_of(kept: InFlightRecords) -> list[TableName]:
    return [record.table for record in kept.all()]


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_a_renamed_table_judges_the_outputs_under_its_new_name(
    scene: LostTable, made_again: bool, committed: bool
) -> None:
    """Also where another table has the old name now, and where an output was committed before."""
    kept = scene.run()
    if committed:
        scene.commit(scene.outputs[0])
    scene.rename()
    if made_again:
        scene.history._create()
    assert scene.sweep(kept) == 0
    assert names_of(kept) == [TableName("lake", ("db",), "t")]
    scene.wait()
    assert scene.sweep(kept) == 0
    assert names_of(kept) == [RENAMED]
    if not committed:
        assert scene.sweep(kept) == 0
        scene.move_head()
    assert scene.sweep(kept) == (1 if committed else 2)
    assert scene.left() == (["one.parquet"] if committed else [])
    assert scene.sweep(kept) == 0
    assert names_of(kept) == []


def test_outputs_of_a_table_that_two_names_have_stay(scene: LostTable, caplog: pytest.LogCaptureFixture) -> None:
    """A metadata file that is registered twice: neither table knows the other's commits."""
    kept = scene.run()
    before = scene.history.view().metadata_location
    scene.commit(scene.outputs[0])
    scene.rename()
    scene.history.catalog.register_table("db.copy", before)
    scene.wait()
    with caplog.at_level(logging.WARNING, "firnline"):
        scene.sweep(kept)
    assert "have its UUID" in caplog.text
    assert scene.left() == ["one.parquet", "two.parquet"]
    assert names_of(kept) == []


@pytest.mark.parametrize("made_again", [False, True])
def test_outputs_of_a_dropped_table_stay_and_are_named(
    scene: LostTable, caplog: pytest.LogCaptureFixture, made_again: bool
) -> None:
    kept = scene.run()
    scene.history.catalog.drop_table("db.t")
    if made_again:
        scene.history._create()
    with caplog.at_level(logging.WARNING, "firnline"):
        scene.sweep(kept)
        assert len(kept.all()) == 1
        assert caplog.text == ""
        scene.wait()
        scene.sweep(kept)
    assert names_of(kept) == []
    assert all(str(output) in caplog.text for output in scene.outputs)
    assert "remove_orphan_files" in caplog.text
    assert scene.left() == ["one.parquet", "two.parquet"]


def test_a_catalog_with_many_tables_is_not_searched(
    scene: LostTable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_search, "MOST_TABLES", 1)
    kept = scene.run()
    scene.rename()
    scene.history._create()
    scene.wait()
    with caplog.at_level(logging.WARNING, "firnline"):
        scene.sweep(kept)
    assert "more than 1 tables" in caplog.text
    assert names_of(kept) == []


@pytest.mark.parametrize(("reason", "left"), [(Reason.CATALOG_UNAVAILABLE, 1), (Reason.TABLE_UNREADABLE, 0)])
def test_a_table_that_cannot_be_loaded_may_be_the_one(
    scene: LostTable, monkeypatch: pytest.MonkeyPatch, reason: Reason, left: int
) -> None:
    """While the catalog does not answer the record waits; a damaged table ends the search after a day."""
    kept, real = scene.run(), scene.catalogs.load
    scene.rename()
    scene.history._create()

    def load(name: TableName) -> TableView:
        if name == RENAMED:
            raise RetryError("no answer", reason=reason)
        return real(name)

    monkeypatch.setattr(scene.catalogs, "load", load)
    scene.wait()
    assert scene.sweep(kept) == 0
    assert len(kept.all()) == 1
    scene.now += SEARCH_SECONDS
    assert scene.sweep(kept) == 0
    assert len(kept.all()) == left
    assert scene.left() == ["one.parquet", "two.parquet"]


def test_each_catalog_is_searched_once_in_a_sweep(scene: LostTable, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = scene.run()
    for number in range(3):
        kept.open(f"more-{number}", scene.history.view(), [f"file:{scene.folder}/more"])
    scene.rename()
    scene.wait()
    real, listed = scene.catalogs.list_tables, list[str]()
    monkeypatch.setattr(scene.catalogs, "list_tables", lambda *given: (listed.append(given[0]), real(*given))[1])
    scene.sweep(kept)
    assert listed == ["lake"]
    assert names_of(kept) == [RENAMED] * 4


def test_a_catalog_that_could_not_be_searched_is_searched_again_after_a_while(
    scene: LostTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One damaged table of it must not have all others loaded every 15 seconds."""
    kept, real, loads = scene.run(), scene.catalogs.load, list[TableName]()
    scene.rename()
    readable = False

    def load(name: TableName) -> TableView:
        loads.append(name)
        if name == RENAMED and not readable:
            raise RetryError("a damaged file", reason=Reason.TABLE_UNREADABLE)
        return real(name)

    monkeypatch.setattr(scene.catalogs, "load", load)
    scene.wait()
    ticks = [0.0]
    search = table_search.TableSearch(scene.catalogs, lambda: ticks[0])
    searched = []
    for _ in range(4 * 60):  # an hour of sweeps
        loads.clear()
        sweep(kept, scene.catalogs, ManifestCache(1), now=scene.now, grace_seconds=GRACE, search=search)
        if RENAMED in loads:
            searched.append(ticks[0])
        ticks[0] += 15
    assert searched == [600 * number for number in range(6)]
    assert caplog.text.count("tried again later") == len(searched)
    readable = True
    ticks[0] += table_search.VALID_SECONDS
    sweep(kept, scene.catalogs, ManifestCache(1), now=scene.now, grace_seconds=GRACE, search=search)
    assert names_of(kept) == [RENAMED]


def test_a_run_does_not_end_the_record_of_a_table_that_was_made_again(scene: LostTable) -> None:
    kept = scene.run()
    scene.history.catalog.drop_table("db.t")
    scene.history._create()
    with pytest.raises(RetryError, match="another table now"):
        delete_unreferenced(kept.all()[0], scene.history.view(), ManifestCache(2**20))
