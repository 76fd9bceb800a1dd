"""Outputs of ended runs are deleted when no commit can reference them any more, never before (invariant 5)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.commit.in_flight import InFlightRecords, Record, new_run_id, own_name
from compactor.commit.sends import Sent, TableState, can_still_land
from compactor.commit.sweep import Verdict, committed_parts, judge, referenced_paths, sweep
from compactor.errors import InputError, RetryError, StoppedError
from compactor.events import Listener, ignore
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.owner import Owner
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.reasons import Reason
from compactor.table_names import TableName
from tests.properties.table_history import TableHistory

GRACE = 100.0
DEAD = replace(Owner.this_process(), started="1")
ELSEWHERE = replace(Owner.this_process(), host="another.host")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
times = st.floats(0, 1e10)
numbers = st.integers(0, 3)
sends = st.lists(st.builds(Sent, numbers, numbers, numbers, texts), max_size=3).map(tuple)
records = st.builds(
    Record,
    run_id=st.uuids().map(str),
    catalog=texts,
    namespace=st.lists(texts).map(tuple),
    name=texts,
    table_uuid=texts,
    parent_snapshot_id=st.integers(),
    parent_sequence_number=st.integers(0),
    owner=st.builds(Owner, texts, texts, texts, st.integers(0), texts),
    lease_until=times,
    created=times,
    files=st.lists(texts).map(tuple),
    prefixes=st.lists(texts).map(tuple),
    abandoned=st.booleans(),
    seen_at=st.none() | times,
    swept=st.booleans(),
    committed=st.lists(texts).map(tuple),
    late_until=times,
    sends=st.none() | sends,
    late_seconds=times,
)


# --- the judgement ----------------------------------------------------------------------------------------------------


@given(records, st.none() | st.booleans(), st.integers(1, 3), numbers, st.dictionaries(numbers, texts), times)
def test_outputs_are_cleaned_only_when_the_owner_is_gone_and_its_commit_cannot_land(
    record: Record, owner_dead: bool | None, version: int, floor: int, listed: dict[int, str], now: float
) -> None:
    table = TableState(version, floor, listed.get, len(listed) > 1)
    verdict = judge(record, owner_dead=owner_dead, table=table, now=now)
    leased = record.lease_until > now
    gone = record.abandoned or owner_dead is True or (owner_dead is None and not leased)
    known = record.sends is not None and (record.abandoned or owner_dead is True or record.seen_at is not None)
    too_late = not any(can_still_land(sent, table) for sent in record.sends or ())
    assert (verdict is Verdict.CLEAN) == (gone and known and too_late)
    assert (verdict is Verdict.MARK) == (gone and not known)


# --- records ----------------------------------------------------------------------------------------------------------


@given(record=records)
def test_a_record_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, record: Record) -> None:
    folder = InFlightRecords(f"file://{tmp_path_factory.mktemp('records')}/deep/er", DEAD, 60, lambda: 0)
    assert folder.all() == []
    folder.save(record)
    folder.save(replace(record, swept=not record.swept))
    assert folder.all() == [replace(record, swept=not record.swept)]
    folder.close(record)
    folder.close(record)
    assert folder.all() == []


def test_records_that_cannot_be_read_are_set_aside_once_and_kept(
    tmp_path: Path, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    folder = InFlightRecords(f"file://{tmp_path}", DEAD, 60, lambda: 0)
    good = folder.open("run", scene.history.view(), ["one"])
    newer = json.dumps({**json.loads((tmp_path / "run.json").read_text()), "of_a_later_version": 1})
    texts = {
        "a.json": b'{"run_id": ', "b.json": b"[]", "d.json": b'{"files": []}', "e.json": b"", "f.json": b"\xff\x00",
        "g.json": newer.encode(), "h.json": b"null", "i.json": b'{"files": 1, "namespace": 2, "prefixes": 3}',
        "j.json": b"[" * 100_000,
    }  # fmt: skip
    for name, text in {**texts, "c.json.tmp": b"{}"}.items():
        (tmp_path / name).write_bytes(text)
    for _ in range(3):
        assert folder.all() == [good]
        assert folder.unreadable == len(texts)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.unreadable")} == {
        f"{name}.unreadable": text for name, text in texts.items()
    }
    assert [line.getMessage().count("not a valid in-flight record") for line in caplog.records] == [1] * len(texts)
    (tmp_path / "g.json.unreadable").unlink()
    assert folder.all() == [good]
    assert folder.unreadable == len(texts) - 1


def test_a_record_that_cannot_be_read_nor_renamed_stays(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "a.json.unreadable").mkdir()  # in the way
    (tmp_path / "a.json.unreadable" / "file").touch()
    folder = InFlightRecords(f"file://{tmp_path}", DEAD, 60, lambda: 0)
    assert folder.all() == folder.all() == []
    assert (tmp_path / "a.json").read_text() == "[]"


def test_a_lease_is_renewed_by_two_threads_at_once(tmp_path: Path, scene: Scene) -> None:
    """The run's watch and its commit renew the lease: neither write nor the record may be lost."""
    folder = InFlightRecords(str(tmp_path / "records"), DEAD, 60, lambda: 0)
    record = folder.open("run", scene.history.view(), ["one"])
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: folder.renew(record).run_id, range(200))) == ["run"] * 200
    assert folder.all() == [folder.renew(record)]
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["run.json"]


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path, scene: Scene) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = InFlightRecords(f"{tmp_path}/file/in-flight", DEAD, 60, lambda: 0)
    with pytest.raises(RetryError, match=r"state\.checkpoint"):
        folder.open("run", scene.history.view(), [])


def test_this_process_is_alive_an_ended_one_is_dead_and_elsewhere_nobody_knows() -> None:
    assert Owner.this_process().is_dead() is False
    assert DEAD.is_dead() is True
    assert ELSEWHERE.is_dead() is None
    assert replace(DEAD, boot="another boot").is_dead() is None
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert replace(Owner.this_process(), pid=ended.pid).is_dead() is True
    assert Owner.this_process().pid == os.getpid()


@pytest.mark.parametrize(
    ("location", "plain"),
    [("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("/a/b", "/a/b"), ("s3://a/b", "s3://a/b")],
)
def test_the_three_ways_to_write_a_local_path_are_one(location: str, plain: str) -> None:
    assert plain_path(location) == plain


# --- the sweep --------------------------------------------------------------------------------------------------------


class Scene:
    """A table with one commit, a run that wrote two outputs and was about to send its commit, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.history = TableHistory(folder, 2)
        self.history.append_unreal("a", [1])
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.catalogs = Catalogs({"lake": properties})
        self.run_id = new_run_id(self.history.view())
        self.data = Path(plain_path(self.history.table.location())) / "data"
        for output in self.outputs:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text("bytes")

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.data / f"firnline-{self.run_id}"

    @property
    def outputs(self) -> list[Path]:
        return [self.out / name for name in ("one.parquet", "two.parquet")]

    def run(self, owner: Owner = DEAD, lease: float = 60, folder: str = "", *, sent: bool = True) -> InFlightRecords:
        """The records as another process reads them."""
        kept = self.records(owner, lease)
        before, view = self.out, self.history.view()
        self.run_id = new_run_id(view)
        before.rename(self.out)
        files = [] if folder else [f"file:{output}" for output in self.outputs]
        record = kept.open(self.run_id, view, files, (folder.format(self.out),) if folder else ())
        if sent:
            kept.renew(record, sending=self.sent())
        return self.records(owner, lease)

    def records(self, owner: Owner, lease: float = 60) -> InFlightRecords:
        return InFlightRecords(f"file://{self.folder}/in-flight", owner, lease, lambda: self.now)

    def sent(self) -> Sent:
        """What the run sends: made for the table as it is."""
        metadata = self.history.table.metadata
        return Sent(77, metadata.current_snapshot_id or 0, metadata.last_sequence_number + 1, "snap-77.avro")

    def commit(self, output: Path, path: Callable[[Path], str] = lambda path: f"file://{path}") -> int:
        self.history.append_unreal("b", [1], path=path(output))
        return self.history.table.current_snapshot().snapshot_id  # type: ignore[union-attr]

    def sweep(
        self, kept: InFlightRecords, confirm: Callable[[], None] = lambda: None, listener: Listener = ignore
    ) -> int:
        removed = sweep(
            kept,
            self.catalogs,
            ManifestCache(2**20),
            now=self.now,
            grace_seconds=GRACE,
            confirm=confirm,
            listener=listener,
        )
        return sum(removed.values())

    def left(self) -> list[str]:
        return [output.name for output in self.outputs if output.exists()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_service_that_was_replaced_deletes_nothing_in_its_sweep(scene: Scene) -> None:
    def replaced() -> None:
        raise StoppedError("another service took over")

    kept = scene.run()
    assert scene.sweep(kept, replaced) == 0
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept, replaced) == 0
    assert scene.left() == ["one.parquet", "two.parquet"]
    assert scene.sweep(kept) == 2


def test_outputs_of_a_dead_run_go_once_its_commit_cannot_land(scene: Scene) -> None:
    kept = scene.run()
    for _ in range(3):
        scene.now += 100 * GRACE
        assert scene.sweep(kept) == 0, "no time proves that a commit does not land"
    assert scene.left() == ["one.parquet", "two.parquet"]
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 2
    assert scene.left() == []
    assert [record.swept for record in kept.all()] == [True]
    assert scene.sweep(kept) == 0
    assert kept.all() == []


def test_outputs_that_no_commit_was_sent_for_go_at_once(scene: Scene) -> None:
    assert scene.sweep(scene.run(sent=False)) == 2


def test_a_head_that_has_moved_proves_nothing(scene: Scene) -> None:
    """A rollback to the commit's parent lets it land; in version 2 a number that was given since does not."""
    kept, table = scene.run(), scene.history.table
    before = table.current_snapshot().snapshot_id
    scene.history.append_unreal("a", [1])
    scene.history.table.manage_snapshots().rollback_to_snapshot(before).commit()
    assert scene.history.table.current_snapshot().snapshot_id == before  # type: ignore[union-attr]
    assert scene.sweep(kept) == 2


def test_a_record_without_its_empty_fields_is_read(scene: Scene) -> None:
    kept = scene.run()
    (file,) = Path(kept.location).glob("*.json")
    (record,) = kept.all()
    tree = json.loads(file.read_text())
    for empty in ("committed", "late_until", "settles_at", "late_seconds"):
        del tree[empty]
    file.write_text(json.dumps(tree))
    assert kept.all() == [record]


def test_a_late_commit_keeps_its_outputs_however_they_are_spelled(scene: Scene) -> None:
    kept = scene.run()
    scene.commit(scene.outputs[0])
    scene.commit(scene.outputs[1], path=str)
    assert [scene.sweep(kept), scene.sweep(kept)] == [0, 0]
    assert scene.left() == ["one.parquet", "two.parquet"]
    assert kept.all() == []


def test_what_spark_wrote_is_kept_although_hadoop_spells_its_location_otherwise(scene: Scene) -> None:
    """It writes `file:///a//b/./c` as `file:/a/b/c` into manifests; the folder of the record is what the table says."""
    kept = scene.run(folder="file://{0.parent}//./{0.name}")
    live, left = scene.out / "p=1" / "live.parquet", scene.outputs[0]
    live.parent.mkdir()
    scene.outputs[1].rename(live)
    scene.commit(live, path=lambda path: f"file:{path}")
    assert scene.sweep(kept) == 1
    assert (live.exists(), left.exists()) == (True, False)


@given(st.uuids().map(str), st.sampled_from(["file:///w//t/./data", "file:/w/t/data", "/w/t/data", "s3://w/t/data"]))
def test_only_the_same_output_has_the_same_own_name(run_id: str, folder: str) -> None:
    names = [f"firnline-{run_id}/a/b", f"firnline-{run_id}/b", f"00001-00000-firnline-{run_id}.parquet",
             f"00000-00001-firnline-{run_id}.parquet", f"00000-00001-firnline-{run_id}-attempt1.parquet"]  # fmt: skip
    assert [own_name(f"{folder}/{name}", run_id) for name in names] == names
    assert own_name(f"{folder}/c=1/{names[2]}", run_id) == names[2]
    assert own_name("file:///w/t/data/other.parquet", run_id) == "/w/t/data/other.parquet"


def test_an_output_that_was_committed_is_the_tables_even_if_no_snapshot_shows_it(scene: Scene) -> None:
    """A branch of Nessie may hold it; the catalog shows the newest snapshot of one branch."""
    kept = scene.run(Owner.this_process(), sent=False)
    kept.note_committed(scene.run_id, [f"file:{scene.outputs[0]}"])
    kept.abandon(kept.all()[0])
    again = InFlightRecords(kept.location, DEAD, 60, lambda: scene.now)
    assert scene.sweep(again) == 1
    assert scene.left() == ["one.parquet"]


def test_the_table_is_read_after_the_mark_that_stops_the_owner(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer commits after the sweep has read the table, and a paused owner prepares its commit for that head."""
    kept = scene.run(ELSEWHERE, lease=60, sent=False)
    scene.now += 61
    real, marked = kept.save, list[Record]()

    def save(record: Record) -> None:
        real(record)
        if not marked:
            scene.history.append_unreal("a", [1])
        marked.append(record)

    monkeypatch.setattr(kept, "save", save)
    assert scene.sweep(kept) == 0
    assert scene.sweep(kept) == 0, "the head is the one that the owner may have seen: its commit can still land"
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 2


def test_a_table_that_could_not_be_read_after_the_mark_is_read_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = scene.run(ELSEWHERE, sent=False)
    scene.now += 61
    real, calls = scene.catalogs.load, list[TableName]()

    def load(name: TableName, *more: str) -> TableView:
        calls.append(name)
        if len(calls) == 2:
            raise RetryError("the catalog does not answer")
        return real(name, *more)

    monkeypatch.setattr(scene.catalogs, "load", load)
    assert [scene.sweep(kept) for _ in range(3)] == [0, 0, 0]
    assert scene.left() == ["one.parquet", "two.parquet"]
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 2


def test_a_live_output_is_kept_although_the_runs_snapshot_has_expired(scene: Scene) -> None:
    kept = scene.run()
    committed = scene.commit(scene.outputs[0])
    scene.history.append_unreal("a", [1])
    scene.history.table.maintenance.expire_snapshots().by_id(committed).commit()
    assert scene.sweep(kept) == 1
    assert scene.left() == ["one.parquet"]


def test_an_output_that_only_a_branch_or_an_old_snapshot_holds_is_kept(scene: Scene) -> None:
    kept = scene.run()
    table = scene.history.table
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
    scene.history.append_unreal("b", [1], branch="side", path=f"file://{scene.outputs[0]}")
    scene.commit(scene.outputs[1])
    scene.history.table.delete("category = 'b'")
    assert scene.sweep(kept) == 0
    assert scene.left() == ["one.parquet", "two.parquet"]


@pytest.mark.parametrize("owner", [Owner.this_process(), ELSEWHERE])
def test_what_a_living_owner_writes_is_left_alone(scene: Scene, owner: Owner) -> None:
    kept = scene.run(owner, lease=10 * GRACE)
    for _ in range(3):
        assert scene.sweep(kept) == 0
        scene.history.append_unreal("a", [1])
        scene.now += 2 * GRACE
    assert scene.left() == ["one.parquet", "two.parquet"]


def test_of_an_owner_elsewhere_the_lease_decides_and_is_renewed(scene: Scene) -> None:
    kept = scene.run(ELSEWHERE, lease=60)
    scene.now += 50
    kept.renew(kept.all()[0])
    scene.now += 50
    scene.sweep(kept)
    assert kept.all()[0].seen_at is None
    scene.now += 20
    scene.sweep(kept)
    assert kept.all()[0].seen_at == scene.now


@pytest.mark.parametrize("sent", [False, True])
def test_the_outputs_of_an_owner_that_is_only_silent_wait_for_the_table(scene: Scene, sent: bool) -> None:
    """It may be paused between its last check and its commit, which then lands after any time."""
    kept = scene.run(ELSEWHERE, lease=60, sent=sent)
    for _ in range(3):
        scene.now += 100 * GRACE
        assert scene.sweep(kept) == 0
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 2


def test_a_run_that_a_sweep_has_taken_for_dead_keeps_no_lease(scene: Scene) -> None:
    """It was suspended for longer than its lease: its outputs may be deleted, so it must not commit."""
    kept = scene.run(ELSEWHERE, lease=60)
    (record,) = kept.all()
    kept.renew(record)
    scene.now += 61
    scene.sweep(kept)
    with pytest.raises(StoppedError, match="lost its lease"):
        kept.renew(record)
    kept.close(record)
    with pytest.raises(StoppedError, match="lost its lease"):
        kept.renew(record)


def test_a_run_abandoned_by_its_living_owner_is_swept(scene: Scene) -> None:
    kept = scene.run(Owner.this_process(), sent=False)
    kept.save(replace(kept.all()[0], abandoned=True))
    assert scene.sweep(kept) == 2


@pytest.mark.parametrize("abandoned", [False, True], ids=["dead", "ended without an answer"])
def test_a_run_whose_last_commit_is_in_the_table_waits_for_nothing(scene: Scene, abandoned: bool) -> None:
    """The catalog's answer to the commit was lost: the owner has ended the run, or died."""
    kept = scene.run(Owner.this_process() if abandoned else DEAD)
    kept.save(replace(kept.all()[0], abandoned=abandoned))
    summary = {"firnline.run-id": scene.run_id, "firnline.part": "2/2"}
    scene.history.table.append(scene.history.rows(["a"]), snapshot_properties=summary)
    scene.commit(scene.outputs[0])
    assert scene.sweep(kept) == 1
    assert scene.left() == ["one.parquet"]
    assert scene.sweep(kept) == 0
    assert kept.all() == []


def test_what_a_lost_executor_writes_after_the_last_commit_goes_too(scene: Scene) -> None:
    kept = scene.run(Owner.this_process())
    kept.save(replace(kept.all()[0], abandoned=True, late_seconds=900.0))
    scene.history.table.append(scene.history.rows(["a"]), snapshot_properties={"firnline.run-id": scene.run_id})
    assert [scene.sweep(kept), scene.sweep(kept)] == [2, 0]
    scene.outputs[0].write_text("late")
    scene.now += 900.0
    assert [scene.sweep(kept), scene.sweep(kept)] == [1, 0]
    assert (scene.left(), kept.all()) == ([], [])


@pytest.mark.parametrize("committed", [False, True])
def test_the_end_of_a_run_that_could_not_be_written_is_written_by_a_later_sweep(scene: Scene, committed: bool) -> None:
    """As with a full volume: the owner lives on, so that nothing else would ever tell a sweep that this run is over."""
    kept = scene.run(Owner.this_process())
    record = kept.all()[0]
    if committed:
        for output in scene.outputs:
            scene.commit(output)
    folder, aside = Path(kept.location), Path(kept.location).with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    if committed:
        kept.close(record)
    else:
        kept.abandon(record)
    folder.unlink()
    aside.rename(folder)
    for _ in range(3):
        scene.sweep(kept)
        scene.history.append_unreal("a", [1])
    assert kept.all() == []
    assert len(scene.left()) == (2 if committed else 0)


def test_everything_below_a_runs_folder_goes_and_nothing_beside_it(scene: Scene) -> None:
    kept = scene.run(folder="file://{}")
    beside = scene.out.with_name(f"{scene.out.name}2.parquet")
    beside.write_text("bytes")
    scene.commit(scene.outputs[1])
    assert scene.sweep(kept) == 1
    assert scene.left() == ["two.parquet"]
    assert beside.exists()
    scene.outputs[0].write_text("a cancelled task wrote on")
    assert scene.sweep(kept) == 1
    assert scene.sweep(kept) == 0
    assert kept.all() == []


def test_a_record_of_a_catalog_that_is_not_configured_waits_until_it_is(scene: Scene) -> None:
    """Commands with other settings may share the folder; a catalog may be taken out of the settings for a while."""
    kept, own = scene.run(), scene.catalogs
    scene.catalogs = Catalogs({"other": own.properties("lake")})
    for _ in range(3):
        assert scene.sweep(kept) == 0
        scene.now += GRACE + 1
    scene.catalogs = own
    scene.sweep(kept)
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 2


def test_a_table_that_does_not_answer_stops_no_other(scene: Scene) -> None:
    kept = scene.run()
    broken = replace(kept.all()[0], run_id="run-0", created=0.0, catalog="sea")
    kept.save(broken)
    scene.catalogs = Catalogs({**scene.catalogs._properties, "sea": {"type": "no such type"}})
    scene.sweep(kept)
    scene.history.append_unreal("a", [1])
    assert scene.sweep(kept) == 2
    assert [record.run_id for record in kept.all()] == ["run-0", scene.run_id]


def test_only_a_branch_is_loaded_to_be_compacted_and_seen_from_its_own_head(scene: Scene) -> None:
    table, name = scene.history.table, scene.history.view().name
    first = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    table.manage_snapshots().create_branch(first, "side").create_tag(first, "keep").commit()
    scene.history.append_unreal("a", [1])
    head = scene.history.table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    seen = {ref: scene.catalogs.load(name, ref).snapshot for ref in ("main", "side")}
    assert {ref: each.snapshot_id for ref, each in seen.items() if each} == {"main": head, "side": first}
    for ref, said in (("keep", "is a tag"), ("nowhere", "its branches: main, side")):
        with pytest.raises(InputError, match=said):
            scene.catalogs.load(name, ref)


def test_snapshots_from_before_the_run_are_not_read_again(scene: Scene) -> None:
    """Snapshots from before the plan cannot reference its outputs; there may be thousands."""
    for _ in range(3):
        scene.history.append_unreal("a", [1])
    kept = scene.run()
    scene.commit(scene.outputs[0])
    (record,) = kept.all()
    view = scene.history.view()
    for snapshot in view.metadata.snapshots[:-1]:
        Path(plain_path(snapshot.manifest_list)).unlink()
    assert f"file://{scene.outputs[0]}" in referenced_paths(view, record, ManifestCache(2**20))


def test_nothing_is_deleted_while_references_cannot_be_read(scene: Scene) -> None:
    kept = scene.run()
    scene.sweep(kept)
    scene.commit(scene.outputs[0])
    manifest = scene.history.view().manifests()[0]
    Path(plain_path(manifest.manifest_path)).unlink()
    assert scene.sweep(kept) == 0
    assert scene.left() == ["one.parquet", "two.parquet"]


def test_a_run_id_in_a_summary_proves_the_commit(scene: Scene) -> None:
    assert not committed_parts(scene.history.view(), scene.run_id).has_last
    rows = scene.history.rows(["a"])
    scene.history.table.append(rows, snapshot_properties={"firnline.run-id": scene.run_id})
    assert committed_parts(scene.history.view(), scene.run_id).has_last
    assert scene.history.view().name == TableName("lake", ("db",), "t")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """As the folder of a service that runs as another user."""
    (tmp_path / "in-flight").write_text("no folder")
    with pytest.raises(RetryError, match=r"in-flight cannot be read: .*; check state\.checkpoint") as raised:
        InFlightRecords(f"file://{tmp_path}/in-flight", DEAD, 60, lambda: 0).all()
    assert raised.value.reason == Reason.STATE_UNREADABLE
