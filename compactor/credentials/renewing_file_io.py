"""PyIceberg's FileIO on Arrow with a credential that is renewed. Arrow's file systems cannot change theirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pyarrow.fs import FileSystem
from pyiceberg.io import FileIO, InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import Properties

from compactor.credentials.credential import means_expired
from compactor.credentials.shared_file_systems import shared_file_system
from compactor.credentials.vended import VendedCredential

Found = TypeVar("Found")


class RenewingFileIO(PyArrowFileIO):
    """Uses another file system when the credential has changed. `properties` has the present credential in it."""

    def __init__(self, properties: Properties, vended: VendedCredential) -> None:
        self.vended = vended
        self._fixed = dict(properties)
        super().__init__(properties)
        self.fs_by_scheme = self._file_system

    def __reduce__(self) -> tuple[Callable[..., RenewingFileIO], tuple[Properties, VendedCredential]]:
        return RenewingFileIO, (self._fixed, self.vended)

    @property
    def properties(self) -> Properties:
        return {**self._fixed, **dict(self.vended.current().properties)}

    @properties.setter
    def properties(self, _given: Properties) -> None:
        """The base class sets what `__init__` has kept."""

    def new_input(self, location: str) -> PyArrowFile:
        return _RenewingFile(super().new_input(location), self, location)

    def new_output(self, location: str) -> PyArrowFile:
        return _RenewingFile(super().new_output(location), self, location)

    def _file_system(self, scheme: str, netloc: str | None) -> FileSystem:
        return shared_file_system(self.properties, scheme, netloc)


class _RenewingFile(PyArrowFile):
    """A file whose first request is repeated once with another credential if the store refuses the present one."""

    def __init__(self, file: PyArrowFile, io: RenewingFileIO, location: str) -> None:
        super().__init__(location, file._path, file._filesystem, file._buffer_size)  # noqa: SLF001 - PyIceberg's own
        self._io = io

    def __len__(self) -> int:
        return self._repeated(super().__len__)

    def exists(self) -> bool:
        return self._repeated(super().exists)

    def open(self, seekable: bool = True) -> InputStream:
        return self._repeated(partial(super().open, seekable))

    def create(self, overwrite: bool = False) -> OutputStream:
        return self._repeated(partial(super().create, overwrite))

    def _repeated(self, request: Callable[[], Found]) -> Found:
        def with_present_credential() -> Found:
            scheme, netloc, _ = self._io.parse_location(self.location)
            self._filesystem = self._io.fs_by_scheme(scheme, netloc)
            return request()

        return repeated(self._io, with_present_credential)


def repeated(io: FileIO, request: Callable[[], Found]) -> Found:
    """What `request` returns; it is repeated once if the store refuses a vended credential that may have ended."""
    vended = vended_of(io)
    if vended is None:
        return request()
    used = vended.current()
    try:
        return request()
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if not means_expired(str(error)):
            raise
        vended.replaced(used)
        return request()


def vended_of(io: FileIO) -> VendedCredential | None:
    """The credential that a catalog vended with this FileIO; None if it has another one, or none."""
    return io.vended if isinstance(io, RenewingFileIO) else None


def renewing(io: FileIO, vended: VendedCredential | None) -> FileIO:
    """The same FileIO with a credential that is renewed. Only PyIceberg's own on Arrow can be."""
    if vended is None or type(io) is not PyArrowFileIO:
        return io
    properties: dict[str, Any] = dict(io.properties)
    return RenewingFileIO(properties, vended)
