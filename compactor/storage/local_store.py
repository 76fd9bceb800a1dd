"""Local files: the kernel copies ranges (`copy_file_range`) where the file system can."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.storage.byte_store import (
    BUFFER_BYTES,
    OutputFile,
    check_range,
    errors_named,
    read_exactly,
    translated,
    truncated,
)

# Errors of copy_file_range where the file systems, the kernel or a sandbox do not support it.
_COPY_REFUSED: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})


def local_path(location: str) -> Path:
    """The path behind `/a`, `file:/a`, `file:///a` or `file://localhost/a`, taken literally: `%20` is three characters.

    Raises:
        GiveUpError: reason `unsupported_location`; the location names another host, is relative or is not local.
    """
    path = location.removeprefix("file:")
    if path != location and path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in {"", "localhost"} else ""
    if not path.startswith("/") or "\0" in path:
        raise GiveUpError(f"{location!r} is not an absolute local path.", reason=Reason.UNSUPPORTED_LOCATION)
    return Path(path)


class LocalByteStore:
    """Files of this machine, or of a mount. The store has no state."""

    def size(self, location: str) -> int:
        with errors_named(location, "looking at"):
            return local_path(location).stat().st_size

    def read(self, location: str, offset: int, length: int) -> bytes:
        check_range(location, offset, length)
        with errors_named(location, "reading"):
            descriptor = os.open(local_path(location), os.O_RDONLY)
            try:
                return read_exactly(lambda at, most: os.pread(descriptor, most, at), location, offset, length)
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


def _make_parents(path: Path) -> list[Path]:
    """Create missing parent directories; returns the directories with a new entry, to be synced, deepest first."""
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
        """Copy at most `length` bytes, by the kernel if possible; 0 means that the source has ended."""
        if self._kernel_copies:
            try:
                copied = os.copy_file_range(source, self._open_descriptor(), length, offset, self._position)
            except OSError as error:
                if error.errno not in _COPY_REFUSED:
                    raise translated(error, self.location, f"copying from {source_location} into") from error
                copied = 0
            if copied:
                self._advance(copied)
                return copied
            self._kernel_copies = False  # some kernels return 0 if they cannot copy: a plain read finds out
        with errors_named(source_location, "reading"):
            data = os.pread(source, min(length, BUFFER_BYTES), offset)
        self.write(data)
        return len(data)

    def _advance(self, written: int) -> None:
        """Start writing back to disk before the end of the file: saves a quarter of the time."""
        self._position += written
        waiting = self._position - self._sent_to_disk
        if waiting >= BUFFER_BYTES and hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # only advice: the kernel starts writing dirty pages and keeps them cached
                os.posix_fadvise(self._open_descriptor(), self._sent_to_disk, waiting, os.POSIX_FADV_DONTNEED)
            self._sent_to_disk = self._position

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise GiveUpError(f"{self.location} is already closed.", reason=Reason.OUTPUT_CLOSED)
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
