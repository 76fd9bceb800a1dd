"""Bytes at rest, as a rewrite sees them: read a range, write a new file once, copy a range without decoding it.

A location is the URI or path that Iceberg metadata holds. Three stores speak the same contract: `LocalByteStore` lets
the kernel copy, `S3ByteStore` (s3_store.py) lets S3 copy, `FileIOByteStore` (file_io_store.py) streams through
whatever PyIceberg's FileIO reaches. They pickle, so Spark tasks can carry them.

Errors a caller sees: GiveUpError with reason `input_missing` (no such file), `input_truncated` (the file ends before
the range does), `output_exists`, `output_closed`, `access_denied`, `unsupported_location`; RetryError with reason
`no_space`, or `unavailable` for everything else the storage says. S3 adds GiveUpError `store_refuses` (a request it
will never take), `unsupported_encryption`, `too_many_parts`, and RetryError `input_changed` (a file was replaced).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.locations import is_local
from compactor.rewrite.s3_client import S3_SCHEMES, needs_file_io

BUFFER_BYTES: Final = 8 * 1024 * 1024

_READ_GAP: Final = 64 * 1024  # cheaper to read through than to ask twice
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# What copy_file_range answers where the file systems, the kernel or a sandbox cannot do it.
_COPY_REFUSED: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes from `offset` of one file."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


class OutputFile(Protocol):
    """A file being written, front to back, once. Nothing is promised to exist before `finish` returns."""

    @property
    def position(self) -> int:
        """Bytes written so far."""
        ...

    def write(self, data: bytes) -> None:
        """Append these bytes."""
        ...

    def copy_range(self, source_location: str, offset: int, length: int) -> None:
        """Append `length` bytes of another file; GiveUpError `input_truncated` when it has fewer."""
        ...

    def finish(self) -> int:
        """Make the file durable under its name and return its size in bytes."""
        ...

    def abort(self) -> None:
        """Remove what was written, also after a `finish` that failed. Calling it twice is fine."""
        ...


class ByteStore(Protocol):
    """Where files are. Every method may raise the errors named on top of this module."""

    def size(self, location: str) -> int:
        """Bytes in the file."""
        ...

    def read(self, location: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        ...

    def create(self, location: str) -> OutputFile:
        """A new file, its parent directories made where the store has any; it must not exist yet."""
        ...

    def delete(self, location: str) -> None:
        """Remove the file; a missing one is no error."""
        ...

    def exists(self, location: str) -> bool:
        """Whether the file is there."""
        ...


def byte_store_for(location: str, properties: Mapping[str, str]) -> ByteStore:
    """The store that reaches `location`: the kernel, S3, else PyIceberg's FileIO with these properties."""
    # Imported here: these modules import this one, and only tables on S3 need the AWS client.
    if is_local(location):
        return LocalByteStore()
    if location.startswith(S3_SCHEMES) and needs_file_io(properties) is None:
        from compactor.rewrite.s3_store import S3ByteStore  # noqa: PLC0415

        return S3ByteStore(dict(properties))
    from compactor.rewrite.file_io_store import FileIOByteStore  # noqa: PLC0415

    return FileIOByteStore(dict(properties))


def abort_uploads(location: str, properties: Mapping[str, str]) -> int:
    """End every unfinished upload to `location`, or below it when it ends in `/`; returns how many there were.

    For what a writer that died has left: its unfinished uploads are no objects, yet they are stored and billed. Only S3
    has them; for every other store the answer is 0.

    Raises:
        FirnlineError: the store does not answer or does not let us.
    """
    store = byte_store_for(location, properties)
    abort: Callable[[str], int] | None = getattr(store, "abort_uploads", None)
    return abort(location) if abort else 0


def read_ranges(store: ByteStore, location: str, wanted: Iterable[ByteRange]) -> dict[ByteRange, bytes]:
    """The bytes of many small ranges of one file; neighbours (up to 64 KiB apart, 8 MiB in all) come in one read."""
    data: dict[ByteRange, bytes] = {}
    batch: list[ByteRange] = []
    for part in [*sorted(wanted, key=lambda part: part.offset), None]:
        if part and (
            not batch or (part.offset <= batch[-1].end + _READ_GAP and part.end <= batch[0].offset + BUFFER_BYTES)
        ):
            batch.append(part)
            continue
        if batch:
            start = batch[0].offset
            read = store.read(location, start, max(done.end for done in batch) - start)
            data |= {done: read[done.offset - start : done.end - start] for done in batch}
        batch = [part] if part else []
    return data


def _translated(error: Exception, location: str, action: str) -> FirnlineError:
    """The error to raise when `action` ("reading", "writing", ...) failed at `location`."""
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError) or number == errno.ENOENT:
        return GiveUpError(f"{location} does not exist any more ({action} it).", reason="input_missing")
    if isinstance(error, FileExistsError):
        return GiveUpError(f"{location} exists already; a rewrite never overwrites a file.", reason="output_exists")
    if number in _NO_SPACE:
        return RetryError(f"No space left while {action} {location}: free some, it is tried again.", reason="no_space")
    if isinstance(error, PermissionError) or number in _DENIED:
        return GiveUpError(f"Access denied while {action} {location}: {error}", reason="access_denied")
    return RetryError(f"Storage failed while {action} {location}: {type(error).__name__}: {error}")


@contextmanager
def errors_named(location: str, action: str) -> Iterator[None]:
    """Raise what the operating system or a FileIO raises as an error of this project."""
    try:
        yield
    except FirnlineError:
        raise
    except Exception as error:  # object-store clients raise classes of their own, not only OSError
        raise _translated(error, location, action) from error


def truncated(location: str, offset: int, length: int, got: int) -> GiveUpError:
    """What to raise when a file gave `got` of `length` bytes from `offset` and then ended."""
    return GiveUpError(
        f"{location} ends {length - got} bytes before offset {offset + length}: it is shorter than its metadata says.",
        reason="input_truncated",
    )


def check_range(location: str, offset: int, length: int) -> None:
    """GiveUpError `input_truncated` for a range that no file can have."""
    if offset < 0 or length < 0:
        raise GiveUpError(f"Impossible byte range {offset}+{length} of {location}.", reason="input_truncated")


# --- local files ---


def local_path(location: str) -> Path:
    """The path behind `/a`, `file:/a`, `file:///a` or `file://localhost/a`, taken literally: `%20` is three characters.

    Raises:
        GiveUpError: reason `unsupported_location`; it names another host, is relative or is not a local file.
    """
    path = location.removeprefix("file:")
    if path != location and path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in {"", "localhost"} else ""
    if not path.startswith("/") or "\0" in path:
        raise GiveUpError(f"{location!r} is not an absolute local path.", reason="unsupported_location")
    return Path(path)


class LocalByteStore:
    """Files of this machine (or a mount). It has no state."""

    def size(self, location: str) -> int:
        with errors_named(location, "looking at"):
            return local_path(location).stat().st_size

    def read(self, location: str, offset: int, length: int) -> bytes:
        check_range(location, offset, length)
        with errors_named(location, "reading"):
            descriptor = os.open(local_path(location), os.O_RDONLY)
            try:
                return _read_exactly(descriptor, location, offset, length)
            finally:
                os.close(descriptor)

    def create(self, location: str) -> OutputFile:
        path = local_path(location)
        with errors_named(location, "creating"):
            new_directories = _make_parents(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        return _LocalOutputFile(location, path, descriptor, new_directories)

    def delete(self, location: str) -> None:
        with errors_named(location, "deleting"):
            local_path(location).unlink(missing_ok=True)

    def exists(self, location: str) -> bool:
        with errors_named(location, "looking at"):
            return local_path(location).exists()


def _read_exactly(descriptor: int, location: str, offset: int, length: int) -> bytes:
    pieces: list[bytes] = []
    got = 0
    while got < length:
        piece = os.pread(descriptor, min(length - got, BUFFER_BYTES), offset + got)
        if not piece:
            raise truncated(location, offset, length, got)
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


def _make_parents(path: Path) -> list[Path]:
    """Create missing parent directories; return those that hold a new entry and so must be synced, deepest first."""
    missing = [path.parent]
    while not missing[-1].exists():
        missing.append(missing[-1].parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    return missing


class _LocalOutputFile:
    def __init__(self, location: str, path: Path, descriptor: int, directories: list[Path]) -> None:
        self.location = location
        self._path = path
        self._descriptor: int | None = descriptor
        self._directories = directories
        self._position = 0
        self._sent_to_disk = 0
        self._source: tuple[str, int] | None = None
        self._kernel_copies = True

    @property
    def position(self) -> int:
        return self._position

    def write(self, data: bytes) -> None:
        with errors_named(self.location, "writing"):
            view = memoryview(data)
            while view:
                written = os.pwrite(self._open_descriptor(), view, self._position)
                self._advance(written)
                view = view[written:]

    def copy_range(self, source_location: str, offset: int, length: int) -> None:
        check_range(source_location, offset, length)
        source = self._open_source(source_location)
        end = offset + length
        while offset < end:
            copied = self._copy_some(source, source_location, offset, end - offset)
            if not copied:
                raise truncated(source_location, offset, end - offset, 0)
            offset += copied

    def finish(self) -> int:
        with errors_named(self.location, "finishing"):
            descriptor = self._open_descriptor()
            os.fsync(descriptor)
            self._close_source()
            self._descriptor = None
            os.close(descriptor)
            for directory in self._directories:
                _sync_directory(directory)
            return self._position

    def abort(self) -> None:
        with suppress(OSError):
            self._close_source()
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.close(descriptor)
        with errors_named(self.location, "removing"):
            self._path.unlink(missing_ok=True)

    def _copy_some(self, source: int, source_location: str, offset: int, length: int) -> int:
        """Copy at most `length` bytes, by the kernel if it will; 0 means that the source has ended."""
        if self._kernel_copies:
            try:
                copied = os.copy_file_range(source, self._open_descriptor(), length, offset, self._position)
            except OSError as error:
                if error.errno not in _COPY_REFUSED:
                    raise _translated(error, self.location, f"copying from {source_location} into") from error
                copied = 0
            if copied:
                self._advance(copied)
                return copied
            self._kernel_copies = False  # some kernels answer 0 where they cannot copy: let a plain read decide
        with errors_named(source_location, "reading"):
            data = os.pread(source, min(length, BUFFER_BYTES), offset)
        self.write(data)
        return len(data)

    def _advance(self, written: int) -> None:
        """Have the disk begin with what was written, so that it is not idle until the end: a quarter of the time."""
        self._position += written
        waiting = self._position - self._sent_to_disk
        if waiting >= BUFFER_BYTES and hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # advice; dirty pages are written, and stay cached
                os.posix_fadvise(self._open_descriptor(), self._sent_to_disk, waiting, os.POSIX_FADV_DONTNEED)
            self._sent_to_disk = self._position

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise GiveUpError(f"{self.location} is closed already.", reason="output_closed")
        return self._descriptor

    def _open_source(self, location: str) -> int:
        if self._source is not None and self._source[0] == location:
            return self._source[1]
        self._close_source()
        with errors_named(location, "reading"):
            descriptor = os.open(local_path(location), os.O_RDONLY)
        self._source = (location, descriptor)
        self._kernel_copies = True
        return descriptor

    def _close_source(self) -> None:
        if self._source is not None:
            descriptor, self._source = self._source[1], None
            os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
