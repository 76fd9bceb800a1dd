"""One contract for every ByteStore."""

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.errors import GiveUpError, RetryError
from compactor.rewrite import byte_ranges
from compactor.rewrite.byte_ranges import (
    ByteRange,
    ByteStore,
    FileIOByteStore,
    LocalByteStore,
    byte_store_for,
    local_path,
    read_ranges,
)

CONTENT = bytes(range(256)) * 40
ODD_NAMES = ["with space.parquet", "a%20b.parquet", "day=2024-01-01/ärger ☃.parquet", "plus+eq=.parquet"]


@pytest.fixture(params=["local", "local without copy_file_range", "file io"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ByteStore:
    monkeypatch.setattr(byte_ranges, "BUFFER_BYTES", 1000)  # smaller than the content: loops must turn
    if request.param == "file io":
        return FileIOByteStore({})
    if "without" in request.param:
        monkeypatch.setattr(os, "copy_file_range", refuses(errno.EXDEV))
    return LocalByteStore()


def refuses(number: int) -> Callable[..., int]:
    def call(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "source.bin"
    path.write_bytes(CONTENT)
    return f"file:{path}"


def write(store: ByteStore, location: str, data: bytes) -> int:
    file = store.create(location)
    file.write(data)
    return file.finish()


def reason_of(action: Callable[[], object], kind: type[Exception] = GiveUpError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return caught.value.reason


def test_what_is_written_can_be_read(store: ByteStore, tmp_path: Path) -> None:
    location = f"file://{tmp_path}/new/folders/file.bin"
    assert not store.exists(location)
    assert write(store, location, CONTENT) == len(CONTENT) == store.size(location)
    assert store.exists(location)
    assert store.read(location, 0, len(CONTENT)) == CONTENT
    assert store.read(location, 300, 2500) == CONTENT[300:2800]
    assert store.read(location, 5, 0) == b""
    assert (tmp_path / "new/folders/file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("prefix", ["file:", "file://"])
def test_names_are_literal(store: ByteStore, tmp_path: Path, prefix: str, name: str) -> None:
    location = f"{prefix}{tmp_path}/{name}"
    write(store, location, b"text")
    assert (tmp_path / name).read_bytes() == b"text"
    assert store.size(location) == 4
    assert store.read(location, 1, 2) == b"ex"
    store.delete(location)
    assert not (tmp_path / name).exists()


def test_ranges_are_copied_between_writes(store: ByteStore, tmp_path: Path, source: str) -> None:
    second = tmp_path / "second.bin"
    second.write_bytes(b"0123456789")
    file = store.create(f"file:{tmp_path}/out.bin")
    assert file.position == 0
    file.write(b"head")
    assert file.position == 4
    file.copy_range(source, 100, 5000)
    assert file.position == 5004
    file.copy_range(str(second) if isinstance(store, LocalByteStore) else f"file:{second}", 2, 3)
    file.copy_range(source, 0, len(CONTENT))
    file.copy_range(source, 7, 0)
    file.write(b"tail")
    expected = b"head" + CONTENT[100:5100] + b"234" + CONTENT + b"tail"
    assert file.position == len(expected) == file.finish()
    assert (tmp_path / "out.bin").read_bytes() == expected


def test_existing_files_are_never_overwritten(store: ByteStore, source: str, tmp_path: Path) -> None:
    assert reason_of(lambda: store.create(source)) == "output_exists"
    assert (tmp_path / "source.bin").read_bytes() == CONTENT


def test_missing_files_are_named(store: ByteStore, tmp_path: Path) -> None:
    missing = f"file:{tmp_path}/missing.bin"
    assert reason_of(lambda: store.read(missing, 0, 1)) == "input_missing"
    assert reason_of(lambda: store.size(missing)) == "input_missing"
    file = store.create(f"file:{tmp_path}/out.bin")
    assert reason_of(lambda: file.copy_range(missing, 0, 1)) == "input_missing"
    file.abort()
    store.delete(missing)


@pytest.mark.parametrize(("offset", "length"), [(0, len(CONTENT) + 1), (len(CONTENT), 1), (10**9, 5), (-1, 5), (5, -1)])
def test_ranges_beyond_the_file_are_refused(
    store: ByteStore, source: str, tmp_path: Path, offset: int, length: int
) -> None:
    assert reason_of(lambda: store.read(source, offset, length)) == "input_truncated"
    file = store.create(f"file:{tmp_path}/out.bin")
    assert reason_of(lambda: file.copy_range(source, offset, length)) == "input_truncated"
    file.abort()


def test_an_absurd_length_costs_no_memory(store: ByteStore, source: str) -> None:
    assert reason_of(lambda: store.read(source, 0, 2**50)) == "input_truncated"


def test_abort_leaves_nothing_and_may_come_twice(store: ByteStore, tmp_path: Path, source: str) -> None:
    file = store.create(f"file:{tmp_path}/out.bin")
    file.write(b"some")
    file.copy_range(source, 0, 10)
    file.abort()
    file.abort()
    assert not (tmp_path / "out.bin").exists()
    assert reason_of(lambda: file.write(b"more")) == "output_closed"
    write(store, f"file:{tmp_path}/out.bin", b"again")


def test_stores_pickle(store: ByteStore, source: str) -> None:
    unused = pickle.dumps(store)
    assert store.read(source, 0, 4) == CONTENT[:4]
    assert pickle.dumps(store) == unused  # open connections stay with their process
    copied = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own bytes
    assert copied.read(source, 2, 4) == CONTENT[2:6]


def test_neighbouring_ranges_are_read_together(store: ByteStore, source: str) -> None:
    wanted = [ByteRange(offset, 7) for offset in (900, 0, 100, 9000, 50)] + [ByteRange(0, 3)]
    assert read_ranges(store, source, wanted) == {
        part: CONTENT[part.offset : part.offset + part.length] for part in wanted
    }
    assert read_ranges(store, source, []) == {}


# --- what only one of them can show ---


def test_neighbours_cost_one_read() -> None:
    class Counting(LocalByteStore):
        def __init__(self) -> None:
            self.reads: list[tuple[int, int]] = []

        def read(self, location: str, offset: int, length: int) -> bytes:  # noqa: ARG002
            self.reads.append((offset, length))
            return bytes(length)

    store = Counting()
    far = 10**7
    read_ranges(store, "x", [ByteRange(0, 10), ByteRange(2, 3), ByteRange(50, 10), ByteRange(far, 5)])
    assert store.reads == [(0, 60), (far, 5)]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV])
def test_kernels_that_refuse_to_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, number: int) -> None:
    monkeypatch.setattr(os, "copy_file_range", refuses(number))
    file = LocalByteStore().create(str(tmp_path / "out.bin"))
    file.copy_range(source, 5, 5000)
    assert file.finish() == 5000
    assert (tmp_path / "out.bin").read_bytes() == CONTENT[5:5005]


def test_short_copies_and_copies_of_nothing_are_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    real, calls = os.copy_file_range, iter([7, 1, 0])
    monkeypatch.setattr(
        os, "copy_file_range", lambda a, b, n, i, o: real(a, b, wanted, i, o) if (wanted := min(n, next(calls))) else 0
    )
    file = LocalByteStore().create(str(tmp_path / "out.bin"))
    file.copy_range(source, 0, 3000)
    file.finish()
    assert (tmp_path / "out.bin").read_bytes() == CONTENT[:3000]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["copy_file_range", "pwrite", "fsync"])
def test_a_full_disk_is_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, call: str, number: int
) -> None:
    file = LocalByteStore().create(str(tmp_path / "out.bin"))
    monkeypatch.setattr(os, call, refuses(number))

    def fill() -> None:
        file.copy_range(source, 0, 10)
        file.write(b"x")
        file.finish()

    assert reason_of(fill, RetryError) == "no_space"
    file.abort()
    assert not (tmp_path / "out.bin").exists()


def test_other_failures_are_retried_and_denials_are_not(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(os, "pread", refuses(errno.EIO))
    assert reason_of(lambda: LocalByteStore().read(source, 0, 1), RetryError) == "unavailable"
    monkeypatch.setattr(os, "pread", refuses(errno.EACCES))
    assert reason_of(lambda: LocalByteStore().read(source, 0, 1)) == "access_denied"


def test_finish_syncs_the_file_and_every_directory_that_gained_an_entry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(LocalByteStore(), str(tmp_path / "a/b/out.bin"), b"x")
    assert synced == [str(tmp_path / name) for name in ("a/b/out.bin", "a/b", "a", "")]


def test_no_descriptor_stays_open(tmp_path: Path, source: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        file = LocalByteStore().create(str(tmp_path / f"{number}.bin"))
        file.copy_range(source, 0, 10)
        if number % 2:
            file.abort()
        else:
            file.finish()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["a#b", "a?b", "a#", "50% off?.parquet"])
def test_local_files_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = LocalByteStore()
    write(store, f"file:{tmp_path}/{name}", b"x")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("location", ["s3://b/a#b", "s3://b/a?b", "s3://b/a?", "s3://b/a\nb", "file:/tmp/a#b"])
def test_names_that_pyiceberg_would_cut_off_are_refused(location: str) -> None:
    store = FileIOByteStore({})
    for action in (store.size, store.create, store.delete, store.exists):
        assert reason_of(lambda action=action: action(location)) == "unsupported_location"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b%20c"),
        ("file://localhost/a", "/a"),
        ("/file:/a", "/file:/a"),
    ],
)
def test_local_locations(location: str, path: str) -> None:
    assert str(local_path(location)) == path


@pytest.mark.parametrize("location", ["a/b", "file:a", "file://host/a", "file://host", "s3://b/a", "", "/a\0b"])
def test_locations_that_are_not_local(location: str) -> None:
    assert reason_of(lambda: local_path(location)) == "unsupported_location"


def test_the_store_follows_the_location() -> None:
    properties = {"s3.endpoint": "http://localhost:1"}
    for local in ("/a", "file:/a", "file:///a"):
        assert isinstance(byte_store_for(local, properties), LocalByteStore)
    remote = byte_store_for("s3://bucket/key", properties)
    assert isinstance(remote, FileIOByteStore)
    assert remote.properties == properties
    assert pickle.loads(pickle.dumps(remote)).properties == properties  # noqa: S301 - our own bytes


def test_a_finish_that_fails_can_be_aborted(monkeypatch: pytest.MonkeyPatch, store: ByteStore, tmp_path: Path) -> None:
    file = store.create(f"file:{tmp_path}/out.bin")
    file.write(b"some")
    monkeypatch.setattr(os, "fsync", refuses(errno.EIO))
    monkeypatch.setattr(FileIOByteStore, "size", lambda _store, _location: 3)
    assert reason_of(file.finish, RetryError) == "unavailable"
    file.abort()
    assert not (tmp_path / "out.bin").exists()
