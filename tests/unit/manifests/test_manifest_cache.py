"""The manifest cache on real tables: what is read how often, what survives a restart, what damage does."""

from __future__ import annotations

import copy
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile

from compactor.errors import RetryError
from compactor.events import ManifestsRead
from compactor.iceberg.manifest_entries import file_entry, read_entries
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests import write_behind
from compactor.manifests.cache import ManifestCache
from compactor.manifests.columns import WEIGHT_OF_A_MANIFEST, EntryColumns
from compactor.manifests.disk import ManifestDisk
from compactor.manifests.live_files import DeleteIndex, LiveRows
from compactor.manifests.reads import wanted_of
from compactor.partitions import PartitionLayout
from compactor.table_names import TableName

NAME = TableName("lake", ("db",), "t")
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
PATIENCE_SECONDS = 60.0


@pytest.fixture
def catalogs(tmp_path: Path) -> Catalogs:
    made = Catalogs({"lake": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}})
    made.catalog("lake").create_namespace("db")
    made.catalog("lake").create_table(NAME.identifier, ROWS.schema)
    return made


def append(catalogs: Catalogs, commits: int = 1) -> TableView:
    table = catalogs.catalog("lake").load_table(NAME.identifier)
    for _ in range(commits):
        table.append(ROWS)
    return catalogs.load(NAME)


class Reads(list[ManifestsRead]):
    """Listens to a cache."""

    def __call__(self, event: Any) -> None:
        self.append(event)

    @property
    def last(self) -> tuple[int, int, int]:
        """Manifests from memory, from disk, from the store."""
        return self[-1].hits, self[-1].disk_hits, self[-1].misses


def read(cache: ManifestCache, view: TableView, manifests: Sequence[ManifestFile]) -> list[EntryColumns]:
    """Read, and wait for what is written behind."""
    found = cache.read(view, manifests)
    cache.flush()
    return found


def found(view: TableView, disk: ManifestDisk, manifests: Sequence[ManifestFile] = ()) -> tuple[int, int, int]:
    """Where a cache that has read nothing yet finds the manifests; default: all."""
    reads = Reads()
    read(ManifestCache(0, reads, disk=disk), view, manifests or view.manifests())
    return reads.last


def paths(columns: list[EntryColumns]) -> list[str]:
    return [entry.path for one in columns for entry in one]


def test_each_manifest_is_read_once(catalogs: Catalogs) -> None:
    reads = Reads()
    cache = ManifestCache(2**24, reads)
    view = append(catalogs, 3)
    first = read(cache, view, view.manifests())
    assert (reads.last, reads[-1].bytes_read) == ((0, 0, 3), sum(each.manifest_length for each in view.manifests()))
    view = append(catalogs, 2)
    second = read(cache, view, view.manifests())
    assert (reads.last, reads[-1].bytes_read) == ((3, 0, 2), sum(each.manifest_length for each in view.manifests()[:2]))
    assert set(paths(first)) < set(paths(second))
    twice = [*view.manifests(), *view.manifests()]
    assert paths(read(ManifestCache(0, reads), view, twice)) == paths(second) * 2
    assert reads.last == (0, 0, 5)


def test_what_is_read_is_what_the_reference_reads(catalogs: Catalogs) -> None:
    view = append(catalogs, 4)
    manifests = view.manifests()
    layout = view.layout(0)
    for manifest, columns in zip(manifests, read(ManifestCache(2**24), view, manifests), strict=True):
        entries = read_entries(view.io, manifest)
        assert list(columns) == [file_entry(entry, manifest.manifest_path, layout) for entry in entries]


def test_memory_is_bounded(catalogs: Catalogs) -> None:
    reads = Reads()
    view = append(catalogs, 5)
    cache = ManifestCache(WEIGHT_OF_A_MANIFEST * 5 // 2, reads)  # room for two
    read(cache, view, view.manifests())
    assert len(cache) == 2
    read(cache, view, view.manifests()[-2:])
    assert reads.last == (2, 0, 0)  # the newest wanted are kept
    read(cache, view, view.manifests()[:1])
    read(cache, view, view.manifests()[-1:])
    assert reads.last == (1, 0, 0)


def test_disk_survives_a_restart_and_is_shared(catalogs: Catalogs, tmp_path: Path) -> None:
    disk = ManifestDisk(tmp_path / "kept", 2**24)
    view = append(catalogs, 3)
    before = read(ManifestCache(2**24, disk=disk), view, view.manifests())
    for kept in (disk, ManifestDisk(tmp_path / "kept", 2**24), copy.copy(disk)):
        reads = Reads()
        after = read(ManifestCache(2**24, reads, disk=kept), view, view.manifests())
        assert (reads.last, reads[-1].bytes_read) == ((0, 3, 0), 0)
        assert [list(one) for one in after] == [list(one) for one in before]
        hashes = [[list(one.partitions.hashes[one.numbers("partition")]) for one in many] for many in (after, before)]
        assert hashes[0] == hashes[1]


def test_small_reads_are_not_written_to_disk(catalogs: Catalogs, tmp_path: Path) -> None:
    disk = ManifestDisk(tmp_path / "kept", 2**24)
    view = append(catalogs, 3)
    manifests = view.manifests()
    size = sum(each.manifest_length for each in manifests)
    for least, kept in ((size + 1, False), (size, True)):
        read(ManifestCache(2**24, disk=disk, least_kept_bytes=least), view, manifests)
        assert on_disk(view, disk) == [kept] * 3


def test_disk_is_written_behind_the_plan_and_at_once_when_the_with_block_ends(
    catalogs: Catalogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads next may be another process: a command that has ended has written."""
    monkeypatch.setattr(write_behind, "WRITE_AFTER_SECONDS", 3600.0)
    disk = ManifestDisk(tmp_path / "kept", 2**24)
    view = append(catalogs, 3)
    with ManifestCache(2**24, disk=disk) as cache:
        cache.read(view, view.manifests()[:1])
        cache.read(view, view.manifests())
        assert not list((tmp_path / "kept").glob("*"))
    assert found(view, disk) == (0, 3, 0)


class HangingDisk(ManifestDisk):
    """Hangs at its first write until `answers` is set, as a network file system does whose server is away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2**24)
        self.hangs, self.answers = threading.Event(), threading.Event()

    def put(self, key: str, entries: EntryColumns) -> None:
        self.hangs.set()
        self.answers.wait(PATIENCE_SECONDS)
        super().put(key, entries)


def on_disk(view: TableView, disk: ManifestDisk) -> list[bool]:
    """For each manifest, the newest first, whether the disk has it."""
    return [
        disk.get(each.key, each.layout, each.manifest.manifest_path) is not None
        for each in wanted_of(view, view.manifests())
    ]


@pytest.fixture
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of manifests that wait for the disk."""
    monkeypatch.setattr(write_behind, "MOST_WAITING_BYTES", WEIGHT_OF_A_MANIFEST * 5 // 2)


@pytest.mark.usefixtures("room_for_two")
def test_a_disk_that_hangs_holds_a_bounded_number_of_manifests_in_memory(catalogs: Catalogs, tmp_path: Path) -> None:
    """The oldest are dropped: they are read from the store again."""
    disk, view = HangingDisk(tmp_path / "kept"), append(catalogs, 6)
    cache = ManifestCache(0, disk=disk)
    for number, manifest in enumerate(reversed(view.manifests())):
        cache.read(view, [manifest])
        if number == 0:
            assert disk.hangs.wait(PATIENCE_SECONDS)
    disk.answers.set()
    cache.flush(PATIENCE_SECONDS)
    assert on_disk(view, disk) == [True, True, False, False, False, True]  # the last one was being written


@pytest.mark.usefixtures("room_for_two")
def test_all_manifests_of_one_read_are_written(catalogs: Catalogs, tmp_path: Path) -> None:
    """They were in memory at once anyway, and the next start must not read a large table from the store again."""
    disk, view = HangingDisk(tmp_path / "kept"), append(catalogs, 6)
    cache = ManifestCache(0, disk=disk)
    cache.read(view, view.manifests()[-1:])
    assert disk.hangs.wait(PATIENCE_SECONDS)
    cache.read(view, view.manifests()[:5])
    disk.answers.set()
    cache.flush(PATIENCE_SECONDS)
    assert on_disk(view, disk) == [True] * 6


def test_a_disk_that_hangs_does_not_hold_up_the_end(catalogs: Catalogs, tmp_path: Path) -> None:
    disk, view = HangingDisk(tmp_path / "kept"), append(catalogs, 2)
    cache = ManifestCache(2**24, disk=disk)
    cache.read(view, view.manifests())
    ending = threading.Thread(target=cache.flush, args=(0.01,), daemon=True)
    ending.start()
    ending.join(PATIENCE_SECONDS)
    assert not ending.is_alive()
    assert on_disk(view, disk) == [False, False]
    disk.answers.set()
    cache.flush(PATIENCE_SECONDS)
    assert on_disk(view, disk) == [True, True]


class NoFurtherDelay(HangingDisk):
    """From its second write on, whoever delays once more writes nothing."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.monkeypatch = monkeypatch
        self.written = threading.Semaphore(0)

    def put(self, key: str, entries: EntryColumns) -> None:
        if self.answers.is_set():
            self.monkeypatch.setattr(write_behind, "WRITE_AFTER_SECONDS", 3600.0)
        super().put(key, entries)
        self.written.release()


def test_manifests_that_wait_are_written_after_one_delay(
    catalogs: Catalogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a delay for each read, a busy service would read faster than it writes."""
    monkeypatch.setattr(write_behind, "WRITE_AFTER_SECONDS", 0.0)
    disk, view = NoFurtherDelay(tmp_path / "kept", monkeypatch), append(catalogs, 6)
    cache = ManifestCache(2**24, disk=disk)
    for manifest in view.manifests():
        cache.read(view, [manifest])
        assert disk.hangs.wait(PATIENCE_SECONDS)
    disk.answers.set()
    assert all(disk.written.acquire(timeout=PATIENCE_SECONDS) for _ in range(6))


@pytest.mark.parametrize(
    "damage",
    [
        lambda _content: b"",
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content + b"x",
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content[:300] + bytes([content[300] ^ 4]) + content[301:],
        lambda content: content[:-1] + bytes([content[-1] ^ 128]),
    ],
)  # fmt: skip
def test_damage_on_disk_is_noticed_and_read_again(
    catalogs: Catalogs, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / "kept"
    view = append(catalogs, 2)
    before = read(ManifestCache(2**24, disk=ManifestDisk(folder, 2**24)), view, view.manifests())
    for file in folder.iterdir():
        content = file.read_bytes()
        file.unlink()  # a new file: the old one is mapped
        file.write_bytes(damage(content))
    reads = Reads()
    after = read(ManifestCache(2**24, reads, disk=ManifestDisk(folder, 2**24)), view, view.manifests())
    assert reads.last == (0, 0, 2)
    assert [list(one) for one in after] == [list(one) for one in before]
    assert found(view, ManifestDisk(folder, 2**24)) == (0, 2, 0)


def test_disk_is_bounded_and_forgets_what_was_not_wanted_for_longest(catalogs: Catalogs, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    view = append(catalogs, 6)
    oldest, *others = reversed(view.manifests())
    disk = ManifestDisk(folder, 2**24)
    read(ManifestCache(0, disk=disk), view, [oldest])
    (size,) = (file.stat().st_size for file in folder.iterdir())
    others_own = folder / "of somebody else.parquet"
    others_own.write_bytes(bytes(10 * size))
    os.utime(others_own, (0, 0))
    small = ManifestDisk(folder, 4 * size)
    cache = ManifestCache(0, disk=small)
    for number, manifest in enumerate(others):
        for age, file in enumerate(sorted(folder.glob("*.arrow"), key=lambda file: file.stat().st_mtime)):
            os.utime(file, (age, number + age))
        assert found(view, small, [oldest]) == (0, 1, 0)  # wanted again and again
        read(cache, view, [manifest])
    assert sum(file.stat().st_size for file in folder.glob("*.arrow")) <= 4 * size
    assert others_own.stat().st_size == 10 * size


def test_entries_under_the_name_of_another_manifest_are_not_taken_for_its_own(
    catalogs: Catalogs, tmp_path: Path
) -> None:
    view, disk = append(catalogs, 2), ManifestDisk(tmp_path / "kept", 2**24)
    before = read(ManifestCache(2**24, disk=disk), view, view.manifests())
    one, other = (tmp_path / "kept").iterdir()
    swapped = tmp_path / "swapped"
    one.rename(swapped), other.rename(one), swapped.rename(other)
    reads = Reads()
    after = read(ManifestCache(2**24, reads, disk=disk), view, view.manifests())
    assert reads.last == (0, 0, 2)
    assert [list(each) for each in after] == [list(each) for each in before]


def test_a_folder_is_bounded_whoever_writes_and_what_others_are_writing_stays(
    catalogs: Catalogs, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    view = append(catalogs, 12)
    first, *more = view.manifests()
    read(ManifestCache(0, disk=ManifestDisk(folder, 2**24)), view, [first])
    (size,) = (file.stat().st_size for file in folder.iterdir())
    unfinished = folder / f"{'0' * 64}.1-1"
    unfinished.write_bytes(b"")
    now = unfinished.stat().st_mtime
    disks = [ManifestDisk(folder, 4 * size, lambda: now) for _ in range(4)]
    for number, manifest in enumerate(more):
        read(ManifestCache(0, disk=disks[number % 4]), view, [manifest])
        assert sum(file.stat().st_size for file in folder.glob("*.arrow")) <= 4 * size
    assert unfinished.exists()
    late = ManifestDisk(folder, size, lambda: now + 3601)
    read(ManifestCache(0, disk=late), view, [first])
    assert not unfinished.exists()


def test_a_folder_that_was_removed_is_used_again_after_a_while(catalogs: Catalogs, tmp_path: Path) -> None:
    now = [1000.0]
    folder, view = tmp_path / "kept", append(catalogs, 4)
    disk = ManifestDisk(folder, 2**24, lambda: now[0])
    for manifest, gone, waited, kept in zip(
        view.manifests(), (False, True, False, False), (0, 1, 1, 60), (1, 0, 0, 1), strict=True
    ):
        if gone:
            shutil.rmtree(folder)
        now[0] += waited
        read(ManifestCache(0, disk=disk), view, [manifest])
        assert len(list(folder.glob("*"))) == kept


def test_a_folder_that_cannot_be_written_is_no_obstacle(catalogs: Catalogs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    view, disk = append(catalogs), ManifestDisk(tmp_path / "file" / "kept", 2**24)
    for _ in range(2):
        assert len(paths(read(ManifestCache(0, disk=disk), view, view.manifests()))) == 1
        assert found(view, disk) == (0, 0, 1)


def test_a_manifest_list_that_is_gone_is_named(catalogs: Catalogs) -> None:
    view = append(catalogs, 2)
    assert view.snapshot is not None
    lost = view.snapshot.manifest_list
    Path(lost.removeprefix("file://")).unlink()
    with pytest.raises(RetryError, match=lost, check=lambda error: error.reason == "manifest_unreadable"):
        view.manifests()


def test_a_manifest_that_is_gone_is_named(catalogs: Catalogs) -> None:
    view = append(catalogs, 2)
    lost = view.manifests()[1].manifest_path
    Path(lost.removeprefix("file://")).unlink()
    with pytest.raises(RetryError, match=lost, check=lambda error: error.reason == "manifest_unreadable"):
        read(ManifestCache(2**24), view, view.manifests())


def test_two_partitions_of_one_hash_are_not_mixed(catalogs: Catalogs) -> None:
    """A collision of 64 bits is unlikely, merging two partitions would be fatal: one of them is left alone instead."""
    view = append(catalogs)
    layout = PartitionLayout(0, ("part",), (view.metadata.schema().fields[0].field_type,), (), field_ids=(1000,))  # type: ignore[arg-type]
    (entry,) = next(iter(read(ManifestCache(2**24), view, view.manifests())))
    first, second = (
        entry._replace(path=path, key=layout.key((value,)), partition=(value,)) for path, value in (("a", 1), ("b", 2))
    )
    columns = EntryColumns.of("m", layout, [first, second])
    columns.partitions.hashes = columns.partitions.hashes[[0, 0]]
    rows = LiveRows([columns])
    partitions = rows.by_partition(DeleteIndex((), {0: layout}))
    assert {key.values: [file.entry.path for file in files] for key, files in partitions.items()} == {"[1]": ["a"]}
