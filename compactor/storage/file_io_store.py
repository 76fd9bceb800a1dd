"""Files behind PyIceberg's FileIO: all bytes pass through this process. For all stores but local files and S3."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlparse

from pyiceberg.io import FileIO, InputStream, OutputStream, load_file_io

from compactor.credentials.renewing_file_io import renewing
from compactor.credentials.shared_file_systems import sharing
from compactor.credentials.vended import VendedCredential
from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.storage.byte_store import BUFFER_BYTES, OutputFile, check_range, errors_named, read_exactly, truncated


class FileIOByteStore:
    """Files behind PyIceberg's FileIO, configured by the table's or catalog's properties.

    Connections open on first use and stay in this process: pickling keeps the properties and the credential only.
    """

    def __init__(self, properties: dict[str, str], vended: VendedCredential | None = None) -> None:
        self.properties = properties
        self.vended = vended
        self._file_ios: dict[str, FileIO] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"properties": self.properties, "vended": self.vended}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FileIOByteStore.__init__(self, state["properties"], state["vended"])

    def file_io(self, location: str) -> FileIO:
        """The FileIO for this location's scheme."""
        _check_parsable(location)
        scheme = location.partition(":")[0] if ":" in location else ""
        if scheme not in self._file_ios:
            self._file_ios[scheme] = renewing(sharing(load_file_io(self.properties, location)), self.vended)
        return self._file_ios[scheme]

    def size(self, location: str) -> int:
        with errors_named(location, "looking at"):
            return len(self.file_io(location).new_input(location))

    def read(self, location: str, offset: int, length: int) -> bytes:
        check_range(location, offset, length)
        with errors_named(location, "reading"), self.file_io(location).new_input(location).open() as stream:
            self.seek(stream, location, offset, length)
            return read_exactly(lambda _at, most: stream.read(most), location, offset, length)

    def seek(self, stream: InputStream, location: str, offset: int, length: int) -> None:
        """Go to `offset`. Some streams refuse an offset beyond their end: raise `input_truncated` then."""
        try:
            stream.seek(offset)
        except OSError:
            if offset <= self.size(location):
                raise
            raise truncated(location, offset, length, 0) from None

    def create(self, location: str) -> OutputFile:
        """Create a new file, as the contract says.

        These stores cannot stop an earlier attempt of a task that Spark has taken for lost: it may still overwrite or
        remove its file. Hence each attempt has a location of its own (`attempt_location`).
        """
        with errors_named(location, "creating"):
            stream = self.file_io(location).new_output(location).create(overwrite=False)
        return _FileIOOutputFile(self, location, stream)

    def delete(self, location: str) -> None:
        with errors_named(location, "deleting"), suppress(FileNotFoundError):
            self.file_io(location).delete(location)

    def exists(self, location: str) -> bool:
        with errors_named(location, "looking at"):
            return self.file_io(location).new_input(location).exists()


def _check_parsable(location: str) -> None:
    """Refuse locations that PyIceberg would shorten silently: it finds the object key with urlparse."""
    parsed = urlparse(location)
    if location != f"{parsed.scheme}://{parsed.netloc}{parsed.path}" and location not in {
        f"{parsed.scheme}:{parsed.path}",
        parsed.path,
    }:
        raise GiveUpError(
            f"{location!r} contains a character (? # ; or a control character) that PyIceberg's FileIO cannot address.",
            reason=Reason.UNSUPPORTED_LOCATION,
        )


class _FileIOOutputFile:
    def __init__(self, store: FileIOByteStore, location: str, stream: OutputStream) -> None:
        self.location = location
        self._store = store
        self._stream: OutputStream | None = stream
        self._position = 0
        self._source: tuple[str, InputStream] | None = None

    @property
    def position(self) -> int:
        return self._position

    def write(self, data: bytes) -> None:
        with errors_named(self.location, "writing"):
            self._open_stream().write(data)
        self._position += len(data)

    def copy_range(self, source_location: str, offset: int, length: int) -> None:
        check_range(source_location, offset, length)
        source = self._open_source(source_location)
        with errors_named(source_location, "reading"):
            self._store.seek(source, source_location, offset, length)
        left = length
        while left:
            with errors_named(source_location, "reading"):
                data = source.read(min(left, BUFFER_BYTES))
            if not data:
                raise truncated(source_location, offset, length, length - left)
            self.write(data)
            left -= len(data)

    def finish(self) -> int:
        with errors_named(self.location, "finishing"):
            stream = self._open_stream()
            self._close_source()
            stream.close()
            self._stream = None
        stored = self._store.size(self.location)
        if stored != self._position:
            raise RetryError(f"{self.location} holds {stored} bytes after {self._position} were written.")
        return self._position

    def abort(self) -> None:
        with suppress(Exception):
            self._close_source()
        if self._stream is not None:
            # The FileIO interface has no "discard": close the stream to end the upload, then delete the file.
            stream, self._stream = self._stream, None
            with suppress(Exception):
                stream.close()
        self._store.delete(self.location)

    def _open_stream(self) -> OutputStream:
        if self._stream is None:
            raise GiveUpError(f"{self.location} is already closed.", reason=Reason.OUTPUT_CLOSED)
        return self._stream

    def _open_source(self, location: str) -> InputStream:
        if self._source is not None and self._source[0] == location:
            return self._source[1]
        self._close_source()
        with errors_named(location, "reading"):
            stream = self._store.file_io(location).new_input(location).open()
        self._source = (location, stream)
        return stream

    def _close_source(self) -> None:
        if self._source is not None:
            stream, self._source = self._source[1], None
            stream.close()
