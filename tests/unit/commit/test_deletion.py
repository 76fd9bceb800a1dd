"""What a run may delete: its own files in its table's own folders, whatever a record says, however it spells them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.commit.deletion import ENDED_RUN, NOT_COMMITTED, OwnFiles
from compactor.commit.in_flight import InFlightRecords, new_run_id
from compactor.errors import StoppedError
from compactor.events import DeletionRefused, Event, FileDeleted
from compactor.lease.owner import Owner
from compactor.locations import normal_location, plain_path
from compactor.manifests.cache import ManifestCache
from compactor.runs.output_record import OutputRecords
from tests.unit.commit.test_in_flight import Scene

RUN = "5ecd26c4-66b0-4b1e-9d0e-f30e51a06f0f"
OURS = OwnFiles(RUN, ("s3a://lake/db/a b", "file:/data//a%20b"), genuine=True)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location",
    [
        f"s3://lake/db/a b/data/p=1/00000-00000-firnline-{RUN}.parquet",
        f"s3n://lake//db/a b/data/./00000-00000-firnline-{RUN}-attempt3.parquet",
        f"s3a://lake/db/a b/data/firnline-{RUN}/p=a%2Fb/x.parquet",
        f"s3a://lake/db/x/../a b/data/firnline-{RUN}/x.parquet",
        f"file:///data/a%20b/metadata/firnline-{RUN}/x.puffin",
        f"/data/a%20b/firnline-{RUN}/x.parquet",
        f"file:/data/a%20b/firnline-{RUN}",
    ],
)
def test_outputs_of_the_run_are_its_own(location: str) -> None:
    assert OURS.refusal(location) == ""


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (f"s3://lake/db/a b2/firnline-{RUN}/x", "outside"),
        (f"s3://other/db/a b/firnline-{RUN}/x", "outside"),
        (f"gs://lake/db/a b/firnline-{RUN}/x", "outside"),
        (f"/lake/db/a b/firnline-{RUN}/x", "outside"),
        (f"s3://lake/db/a b/../t/firnline-{RUN}/x", "outside"),
        (f"s3://lake/db/a b/%2e%2e/t/firnline-{RUN}/x", "outside"),
        (f"s3://lake/db/a b/%252e%252e%252ft/firnline-{RUN}/x", "outside"),
        (f"/data/a b/firnline-{RUN}/x", "outside"),
        (f"firnline-{RUN}", "outside"),
        ("", "outside"),
        ("s3://lake/db/a b/data/00000.parquet", "neither"),
        (f"s3://lake/db/a b/data/firnline-{RUN}/../00000.parquet", "neither"),
        (f"s3://lake/db/a b/data/firnline-{RUN}/%2e%2e/00000.parquet", "neither"),
        (f"s3://lake/db/a b/data/{RUN}.parquet", "neither"),
        (f"s3://lake/db/a b/data/firnline-{RUN.replace('-', '%2D')}.parquet", "neither"),
        ("s3://lake/db/a b", "outside"),
        ("s3://lake/db/a b/data", "neither"),
    ],
)
def test_nothing_else_is(location: str, why: str) -> None:
    assert why in OURS.refusal(location)
    assert "was not made for" in replace(OURS, genuine=False).refusal(location)


def test_the_id_in_the_name_of_the_tables_folder_does_not_count() -> None:
    own = OwnFiles(RUN, (f"s3://lake/firnline-{RUN}",), genuine=True)
    assert "neither" in own.refusal(f"s3://lake/firnline-{RUN}/data/x.parquet")


@given(st.text(max_size=30), st.sampled_from(["", "file:", "file://", "s3://", "s3a://", "gs://"]))
def test_every_spelling_has_one_normal_form(path: str, scheme: str) -> None:
    normal = normal_location(f"{scheme}/{path}")
    assert normal_location(normal) == normal
    assert "//" not in normal.removeprefix("s3://").removeprefix("gs://")
    assert not {".", ".."} & set(normal.split("/"))


def test_a_runs_id_tells_its_table_and_where_it_began(scene: Scene) -> None:
    kept = scene.run()
    (record,) = kept.all()
    assert record.is_genuine
    assert new_run_id(scene.history.view()) != new_run_id(scene.history.view())
    for forged in (
        replace(record, run_id=RUN),
        replace(record, run_id=""),
        replace(record, table_uuid=RUN),
        replace(record, parent_snapshot_id=record.parent_snapshot_id + 1),
        replace(record, parent_sequence_number=record.parent_sequence_number + 1),
    ):
        assert not forged.is_genuine


# --- the sweep --------------------------------------------------------------------------------------------------------


def swept(scene: Scene, kept: InFlightRecords) -> list[Event]:
    """Sweeps until the record is gone; returns what they told."""
    heard: list[Event] = []
    for _ in range(5):
        scene.sweep(kept, listener=heard.append)
        scene.history.append_unreal("a", [1])
    assert kept.all() == []
    return heard


def test_live_files_that_a_record_names_stay_and_are_reported(scene: Scene) -> None:
    """As a record that was damaged, or that somebody else has written, may: old files of its table, and of others."""
    live = [scene.data / "old.parquet", scene.folder / "other" / f"firnline-{scene.run_id}" / "x.parquet"]
    for path in live:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("rows")
    scene.history.append_unreal("a", [1], path=f"file://{live[0]}")
    kept = scene.run()
    (record,) = kept.all()
    kept.save(replace(record, files=(*record.files, *map(str, live))))
    heard = swept(scene, kept)
    assert [path.read_text() for path in live] == ["rows", "rows"]
    assert scene.left() == [], "the run's own went"
    refused = [event for event in heard if isinstance(event, DeletionRefused)]
    assert sorted(path for event in refused for path in event.paths) == sorted(map(str, live)), "told once"
    assert {event.run_id for event in refused} == {record.run_id}


def test_a_record_with_the_id_of_a_run_that_has_committed_deletes_nothing(scene: Scene) -> None:
    """It names the newest snapshot as its parent, as if nothing before it could list the files."""
    kept = scene.run()
    (record,) = kept.all()
    for output in scene.outputs:
        scene.commit(output)
    kept.close(record)
    head = scene.history.view().snapshot
    assert head is not None
    forged = replace(record, parent_snapshot_id=head.snapshot_id, parent_sequence_number=head.sequence_number or 0)
    kept.save(forged)
    (refused,) = swept(scene, kept)
    assert isinstance(refused, DeletionRefused)
    assert scene.left() == ["one.parquet", "two.parquet"]


@pytest.mark.parametrize("folder", ["{0.parent}", "{0.parent.parent}", "{0}/..", "{0}/../../metadata", "/"])
def test_a_folder_that_is_not_the_runs_is_not_even_listed(scene: Scene, folder: str) -> None:
    kept = scene.run(folder=f"file://{folder}")
    heard = swept(scene, kept)
    assert [type(event) for event in heard] == [DeletionRefused]
    assert scene.left() == ["one.parquet", "two.parquet"]


def test_a_location_in_which_a_client_reads_another_one_deletes_nothing_else(scene: Scene) -> None:
    """PyIceberg's FileIO cuts `?` and what follows: the folder listed would be that of the table's data."""
    old = scene.data / "old.parquet"
    old.write_text("rows")
    scene.history.append_unreal("a", [1], path=f"file://{old}")
    kept = scene.run()
    (record,) = kept.all()
    folder = f"file://{scene.data}?firnline-{scene.run_id}"
    kept.save(replace(record, prefixes=(folder,), files=(f"{folder}/../old.parquet", f"file://{old}?/{scene.run_id}")))
    swept(scene, kept)
    assert old.exists()


@pytest.mark.parametrize("written", ["{}", "file:{}", "file://{}", "s3a:/{}"])
def test_an_output_that_a_snapshot_spells_otherwise_stays(scene: Scene, written: str) -> None:
    kept = scene.run(folder="file://{}")
    live = scene.out / "p=a%20b" / "live.parquet"
    live.parent.mkdir()
    scene.outputs[1].rename(live)
    scene.commit(live, path=lambda path: written.format(str(path).replace("p=a%20b", "p=a b").replace("/p=", "//p=")))
    swept(scene, kept)
    assert live.exists()


def test_a_name_that_cannot_exist_is_absent_and_the_record_closes(scene: Scene) -> None:
    kept = scene.run()
    (record,) = kept.all()
    names = ["a" * 300 + f"/firnline-{scene.run_id}.parquet", f"firnline-{scene.run_id}/{'b' * 300}"]
    files = [f"file://{scene.data}/{name}" for name in names]
    kept.save(replace(record, files=(*record.files, *files, f"file://{scene.out}")))
    swept(scene, kept)
    assert scene.left() == []


# --- damaged records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"files": [1, 2]},
        {"prefixes": [None]},
        {"attempts": 10**12},
        {"run_id": 7},
        {"committed": [[]]},
        {"created": None},
        {"catalog": []},
        {"namespace": [["db"]]},
    ],
)
def test_a_damaged_record_is_passed_over(scene: Scene, damage: dict[str, object]) -> None:
    kept = scene.run()
    (file,) = Path(kept.location).iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    assert (kept.all(), scene.sweep(kept), scene.left()) == ([], 0, ["one.parquet", "two.parquet"])


# --- the trail --------------------------------------------------------------------------------------------------------


def test_each_file_that_a_sweep_deletes_is_told(scene: Scene) -> None:
    kept = scene.run()
    outputs = [f"file:{output}" for output in scene.outputs]
    table = scene.history.view().name
    heard = swept(scene, kept)
    assert sorted(heard, key=str) == [FileDeleted(table, scene.run_id, path, ENDED_RUN) for path in outputs]


def test_each_file_that_a_run_deletes_at_its_end_is_told(scene: Scene) -> None:
    kept = scene.run(Owner.this_process())
    heard: list[Event] = []
    records = OutputRecords(kept, scene.catalogs, ManifestCache(2**20), listener=heard.append)
    view, outputs = scene.history.view(), [f"file:{output}" for output in scene.outputs]
    with pytest.raises(StoppedError), records.around(scene.run_id, view, outputs, ()):
        raise StoppedError("paused")
    assert sorted(heard, key=str) == [FileDeleted(view.name, scene.run_id, path, NOT_COMMITTED) for path in outputs]


def test_a_location_of_this_machine_has_no_scheme() -> None:
    assert {normal_location(each) for each in ("file:/a//b", "file:///a/b", "/a/./b", "//a/c/../b")} == {"/a/b"}
    assert plain_path("file:///a") == "/a"
