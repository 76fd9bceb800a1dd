"""One contract for every ByteStore."""

import errno
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import TaskContext

from compactor.errors import GiveUpError, RetryError
from compactor.locations import attempt_location
from compactor.storage import byte_store, file_io_store, local_store
from compactor.storage.byte_store import ByteRange, ByteStore, read_ranges
from compactor.storage.file_io_store import FileIOByteStore
from compactor.storage.local_store import LocalByteStore, local_path
from compactor.storage.opening import abort_uploads, byte_store_for
from compactor.storage.s3_client import S3Connections
from compactor.storage.s3_store import S3ByteStore
from tests.contracts.refusals import refuse
from tests.services.s3_server import S3Server

CONTENT = bytes(range(256)) * 40
ODD_NAMES = ["with space.parquet", "a%20b.parquet", "day=2024-01-01/ärger ☃.parquet", "plus+eq=.parquet"]
S3_SCALE = 1100  # makes CONTENT 11 MiB: large enough for parts that S3 copies


class Place(ABC):
    """A store with an own folder, and access to the folder without the store.

    `content`: the content of source files, `scale` times CONTENT.
    """

    def __init__(self, store: ByteStore, root: str, scale: int = 1) -> None:
        self.store = store
        self.root = root
        self.scale = scale
        self.content = CONTENT * scale

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    @abstractmethod
    def put(self, name: str, data: bytes) -> str:
        """Create a file; returns its location."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Content of a file; None if it does not exist."""

    def write(self, name: str, data: bytes) -> int:
        return write(self.store, self.at(name), data)


class Folder(Place):
    def __init__(self, store: ByteStore, folder: Path, prefix: str = "file:") -> None:
        super().__init__(store, f"{prefix}{folder}")
        self.folder = folder

    def put(self, name: str, data: bytes) -> str:
        (self.folder / name).write_bytes(data)
        return self.at(name)

    def get(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.exists() else None


class Bucket(Place):
    def __init__(self, store: ByteStore, server: S3Server) -> None:
        super().__init__(store, server.folder(), S3_SCALE)
        self.server = server

    def put(self, name: str, data: bytes) -> str:
        return self.server.put(self.at(name), data)

    def get(self, name: str) -> bytes | None:
        return self.server.get(self.at(name)) if self.at(name) in self.server.keys(self.root) else None


@pytest.fixture(
    params=["local", "local without copy_file_range", "file io", "s3", "s3 that cannot copy", "s3a by file io"]
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    # Smaller than the content: loops must turn. Eleven megabytes in small pieces cost PyIceberg ten seconds a test.
    buffer = 1_000_000 if request.param == "s3a by file io" else 1000
    for module in (byte_store, local_store, file_io_store):
        monkeypatch.setattr(module, "BUFFER_BYTES", buffer)
    if request.param.startswith("s3"):
        server: S3Server = request.getfixturevalue("s3_server")
        if "file io" in request.param:
            return Bucket(FileIOByteStore(server.properties), server)
        store = S3ByteStore(server.properties, S3Connections())
        if "cannot" in request.param:
            store.note_copying(possible=False)
        return Bucket(store, server)
    if request.param == "file io":
        return Folder(FileIOByteStore({}), tmp_path)
    if "without" in request.param:
        refuse(monkeypatch, "copy_file_range", errno.EXDEV)
    return Folder(LocalByteStore(), tmp_path)


@pytest.fixture
def store(place: Place) -> ByteStore:
    return place.store


@pytest.fixture
def source(place: Place) -> str:
    return place.put("source.bin", place.content)


@pytest.fixture
def local_source(tmp_path: Path) -> str:
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


def test_what_is_written_can_be_read(place: Place, store: ByteStore) -> None:
    location = place.at("new/folders/file.bin")
    assert not store.exists(location)
    assert place.write("new/folders/file.bin", place.content) == len(place.content) == store.size(location)
    assert store.exists(location)
    assert store.read(location, 0, len(place.content)) == place.content
    assert store.read(location, 300, 2500) == place.content[300:2800]
    assert store.read(location, 5, 0) == b""
    assert place.get("new/folders/file.bin") == place.content


def test_a_file_may_be_empty_or_written_in_drops(place: Place) -> None:
    assert place.write("empty.bin", b"") == 0
    assert place.get("empty.bin") == b""
    file = place.store.create(place.at("drops.bin"))
    for start in range(100):
        file.write(CONTENT[start : start + 1])
    assert file.finish() == 100
    assert place.get("drops.bin") == CONTENT[:100]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_are_literal(place: Place, store: ByteStore, name: str) -> None:
    place.write(name, b"text")
    assert place.get(name) == b"text"
    assert store.size(place.at(name)) == 4
    assert store.read(place.at(name), 1, 2) == b"ex"
    file = store.create(place.at(f"copy of {name}"))
    file.copy_range(place.at(name), 1, 3)
    file.finish()
    assert place.get(f"copy of {name}") == b"ext"
    store.delete(place.at(name))
    assert place.get(name) is None


def test_ranges_are_copied_between_writes(place: Place, store: ByteStore, source: str) -> None:
    second, scale, content = place.put("second.bin", b"0123456789"), place.scale, place.content
    file = store.create(place.at("out.bin"))
    assert file.position == 0
    file.write(b"head")
    assert file.position == 4
    file.copy_range(source, 100, 5000 * scale)
    assert file.position == 4 + 5000 * scale
    file.copy_range(second, 2, 3)
    file.copy_range(source, 0, len(content))
    file.copy_range(source, 7, 0)
    file.write(b"tail")
    expected = b"head" + content[100 : 100 + 5000 * scale] + b"234" + content + b"tail"
    assert file.position == len(expected) == file.finish()
    assert place.get("out.bin") == expected


def test_existing_files_are_never_overwritten(place: Place, store: ByteStore, source: str) -> None:
    assert reason_of(lambda: store.create(source)) == "output_exists"
    assert place.get("source.bin") == place.content


def test_missing_files_are_named(place: Place, store: ByteStore) -> None:
    missing = place.at("missing.bin")
    assert reason_of(lambda: store.read(missing, 0, 1)) == "input_missing"
    assert reason_of(lambda: store.size(missing)) == "input_missing"
    file = store.create(place.at("out.bin"))
    assert reason_of(lambda: file.copy_range(missing, 0, 1)) == "input_missing"
    file.abort()
    store.delete(missing)


def test_ranges_beyond_the_file_are_refused(place: Place, store: ByteStore, source: str) -> None:
    end = len(place.content)
    for offset, length in (
        (end - 1, 2),
        (end - 10, 11),
        (end, 1),
        (end + 10**9, 5),
        (-1, 5),
        (end - 5, -1),
        (0, end + 1),
    ):
        assert reason_of(lambda: store.read(source, offset, length)) == "input_truncated"  # noqa: B023
        file = store.create(place.at("out.bin"))
        assert reason_of(lambda: file.copy_range(source, offset, length)) == "input_truncated"  # noqa: B023
        file.abort()


def test_an_absurd_length_costs_no_memory(store: ByteStore, source: str) -> None:
    assert reason_of(lambda: store.read(source, 0, 2**50)) == "input_truncated"


def test_abort_leaves_nothing_and_may_come_twice(place: Place, store: ByteStore, source: str) -> None:
    file = store.create(place.at("out.bin"))
    file.write(b"some")
    file.copy_range(source, 0, len(place.content))
    file.copy_range(source, 10, len(place.content) - 10)
    file.abort()
    file.abort()
    assert place.get("out.bin") is None
    assert reason_of(lambda: file.write(b"more")) == "output_closed"
    place.write("out.bin", b"again")
    assert place.get("out.bin") == b"again"


def test_a_finished_file_can_still_be_removed(place: Place, store: ByteStore, source: str) -> None:
    file = store.create(place.at("out.bin"))
    file.copy_range(source, 0, len(place.content))
    file.write(b"some")
    file.finish()
    file.abort()
    assert place.get("out.bin") is None


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


def test_a_finish_that_fails_can_be_aborted(monkeypatch: pytest.MonkeyPatch, place: Place, source: str) -> None:
    for file_bytes in (4, len(place.content)):
        file = place.store.create(place.at("out.bin"))
        file.copy_range(source, 0, file_bytes)
        with monkeypatch.context() as broken:
            refuse(broken, "fsync", errno.EIO)
            for kind in (FileIOByteStore, S3ByteStore):
                broken.setattr(kind, "size", lambda _store, _location: 3)
            assert reason_of(file.finish, RetryError) == "unavailable"
        file.abort()
        assert place.get("out.bin") is None


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
def test_kernels_that_refuse_to_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_source: str, number: int
) -> None:
    refuse(monkeypatch, "copy_file_range", number)
    file = LocalByteStore().create(str(tmp_path / "out.bin"))
    file.copy_range(local_source, 5, 5000)
    assert file.finish() == 5000
    assert (tmp_path / "out.bin").read_bytes() == CONTENT[5:5005]


def test_short_copies_and_copies_of_nothing_are_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_source: str
) -> None:
    real, calls = os.copy_file_range, iter([7, 1, 0])
    monkeypatch.setattr(
        os, "copy_file_range", lambda a, b, n, i, o: real(a, b, wanted, i, o) if (wanted := min(n, next(calls))) else 0
    )
    file = LocalByteStore().create(str(tmp_path / "out.bin"))
    file.copy_range(local_source, 0, 3000)
    file.finish()
    assert (tmp_path / "out.bin").read_bytes() == CONTENT[:3000]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["copy_file_range", "pwrite", "fsync"])
def test_a_full_disk_is_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, local_source: str, call: str, number: int
) -> None:
    file = LocalByteStore().create(str(tmp_path / "out.bin"))
    refuse(monkeypatch, call, number)

    def fill() -> None:
        file.copy_range(local_source, 0, 10)
        file.write(b"x")
        file.finish()

    assert reason_of(fill, RetryError) == "no_space"
    file.abort()
    assert not (tmp_path / "out.bin").exists()


def test_other_failures_are_retried_and_denials_are_not(monkeypatch: pytest.MonkeyPatch, local_source: str) -> None:
    refuse(monkeypatch, "pread", errno.EIO)
    assert reason_of(lambda: LocalByteStore().read(local_source, 0, 1), RetryError) == "unavailable"
    refuse(monkeypatch, "pread", errno.EACCES)
    assert reason_of(lambda: LocalByteStore().read(local_source, 0, 1)) == "access_denied"


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


def test_no_descriptor_stays_open(tmp_path: Path, local_source: str) -> None:
    # Only descriptors of this folder: other tests' descriptors end whenever their objects are collected.
    for number in range(20):
        file = LocalByteStore().create(str(tmp_path / f"{number}.bin"))
        file.copy_range(local_source, 0, 10)
        if number % 2:
            file.abort()
        else:
            file.finish()
    opened = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    assert [path for path in opened if path.startswith(str(tmp_path))] == []


@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost"])
def test_local_locations_are_uris_or_paths(tmp_path: Path, prefix: str) -> None:
    for store in (LocalByteStore(), FileIOByteStore({})):
        if prefix != "file://localhost" or isinstance(store, LocalByteStore):
            write(store, f"{prefix}{tmp_path}/{type(store).__name__}.bin", b"text")
            assert (tmp_path / f"{type(store).__name__}.bin").read_bytes() == b"text"


@pytest.mark.parametrize("name", ["a#b", "a?b", "a#", "50% off?.parquet"])
def test_local_files_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = LocalByteStore()
    write(store, f"file:{tmp_path}/{name}", b"x")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("location", ["s3://b/a#b", "s3://b/a?b", "s3://b/a?", "s3://b/a\nb", "file:/tmp/a#b"])
def test_names_that_pyiceberg_would_cut_off_are_refused(location: str) -> None:
    stores: list[ByteStore] = [FileIOByteStore({})]
    if location.startswith("s3"):
        stores.append(S3ByteStore({}))
    for store in stores:
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
    for location in ("s3://bucket/key", "s3a://bucket/key", "s3n://bucket/key"):
        remote = byte_store_for(location, properties)
        assert isinstance(remote, S3ByteStore)
        assert remote.properties == properties
        assert pickle.loads(pickle.dumps(remote)).properties == properties  # noqa: S301 - our own bytes
    assert isinstance(byte_store_for("gs://bucket/key", properties), FileIOByteStore)


@pytest.mark.parametrize(
    "properties",
    [
        {"s3.remote-signing-enabled": "true"},
        {"s3.signer": "S3V4RestSigner"},
        {"py-io-impl": "somebody.elses.FileIO"},
    ],
)
def test_what_only_a_file_io_can_reach_is_left_to_it(properties: dict[str, str]) -> None:
    assert isinstance(byte_store_for("s3://bucket/key", properties), FileIOByteStore)


def test_only_s3_has_uploads_to_abort(tmp_path: Path) -> None:
    assert abort_uploads(f"file:{tmp_path}/", {}) == 0
    assert abort_uploads("gs://bucket/key", {}) == 0


def test_memory_that_is_short_is_no_silence_of_the_store() -> None:
    with pytest.raises(RetryError) as error, byte_store.errors_named("gs://bucket/key", "reading"):
        raise MemoryError
    assert error.value.reason == "out_of_memory"


def test_a_task_that_spark_has_started_again_writes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost executor costs no run: each attempt has a location of its own."""
    store, location = FileIOByteStore({}), f"file:{tmp_path}/x.parquet"
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    attempt = TaskContext()  # notes itself as this process's; it must be gone before Spark is started here
    for number in range(2):
        attempt._attemptNumber = number
        write(store, attempt_location(location, number), CONTENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-attempt1.parquet", "x.parquet"]
