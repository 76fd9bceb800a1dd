"""Catalogs that show the newest snapshot only, and tables that went back: what the listed snapshots do not tell."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import delete_unreferenced
from compactor.manifests.cache import ManifestCache
from tests.unit.commit.test_in_flight import Scene

BOTH = ["one.parquet", "two.parquet"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def sent(scene: Scene) -> InFlightRecords:
    """A dead run that was about to send its commit."""
    return scene.run()


def newest_only(scene: Scene) -> None:
    """What Nessie shows of a table: the newest snapshot of a branch, whatever tags hold."""
    table = scene.history.table
    newest = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    older = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(older).commit()


def replaced_by_others(scene: Scene) -> None:
    """The run has committed its outputs, and a writer has replaced them."""
    for output in scene.outputs:
        scene.commit(output)
    scene.history.table.delete("category = 'b'")
    scene.history.append_unreal("a", [1])
    newest_only(scene)


def test_outputs_of_a_commit_that_may_be_in_a_hidden_snapshot_stay(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    kept = sent(scene)
    replaced_by_others(scene)
    scene.history.append_unreal("a", [1])
    newest_only(scene)
    assert scene.sweep(kept) == 0
    assert (scene.left(), kept.all()) == (BOTH, [])
    assert "a tag or a branch may hold them" in caplog.text
    assert str(scene.outputs[0]) in caplog.text


def test_outputs_that_no_commit_was_sent_for_go_there_too(scene: Scene) -> None:
    kept = scene.run(sent=False)
    scene.history.append_unreal("a", [1])
    newest_only(scene)
    assert scene.sweep(kept) == 2
    assert scene.left() == []


def test_what_was_sent_outlives_each_later_change_of_the_record(scene: Scene) -> None:
    kept = scene.run(sent=False)
    (record,) = kept.all()
    assert record.sends == ()
    sends = [scene.sent(), scene.sent()._replace(manifest_list="snap-77-2.avro")]
    for sent in sends:
        kept.renew(record, sending=sent)
    kept.renew(record, sending=scene.sent()._replace(manifest_list="snap-77-3.avro"))
    kept.note_unsent(scene.run_id, scene.sent()._replace(manifest_list="snap-77-3.avro"))
    kept.renew(record)
    kept.abandon(record)
    (after,) = kept.all()
    assert (after.sends, after.abandoned) == (tuple(sends), True)


def test_live_outputs_of_a_table_that_was_restored_during_the_run_stay(scene: Scene) -> None:
    """Its sequence numbers start again below that of the run's parent."""
    restored = scene.history.table.metadata_location
    for _ in range(3):
        scene.history.append_unreal("b", [1])
    kept = scene.run()
    with sqlite3.connect(scene.folder / "catalog.db") as database:
        database.execute("update iceberg_tables set metadata_location = ?", (restored,))
    for output in scene.outputs:
        scene.commit(output)
    view = scene.history.view()
    assert view.snapshot.sequence_number <= kept.all()[0].parent_sequence_number  # type: ignore[union-attr,operator]
    assert delete_unreferenced(kept.all()[0], view, ManifestCache(2**20)) == 0
    assert scene.left() == BOTH
