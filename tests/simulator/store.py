"""The store: files in memory behind PyIceberg's FileIO, which fail, and are written, as the history wants."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

PROPERTIES: Final = {"py-io-impl": "tests.simulator.store.SimulatedIO"}
_CURRENT: list[Store] = []


@dataclass
class Store:
    """`before` is called with what is to be done (`read`, `create`, `delete`, `look`) and the path: it may raise."""

    files: dict[str, bytes] = field(default_factory=dict)
    before: Callable[[str, str], object] = lambda _what, _path: None
    deleted: Callable[[str], object] = lambda _path: None

    def use(self) -> None:
        """Let `SimulatedIO` find it."""
        _CURRENT[:] = [self]

    def read(self, path: str) -> bytes:
        self.before("read", path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def create(self, path: str) -> None:
        """Reserve the name. The content comes when the file is closed."""
        self.before("create", path)
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = b""

    def delete(self, path: str) -> None:
        self.before("delete", path)
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)
        self.deleted(path)

    def exists(self, path: str) -> bool:
        self.before("look", path)
        return path in self.files


@dataclass
class StateInMemory:
    """In place of a `StateFolder`: the service's own files."""

    files: dict[str, bytes] = field(default_factory=dict)
    path: str = "mem://state"

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def write(self, name: str, content: bytes) -> None:
        self.files[name] = content

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def rename(self, name: str, to: str) -> None:
        self.files[to] = self.files.pop(name)

    def remove(self, name: str) -> None:
        if self.files.pop(name, None) is None:
            raise FileNotFoundError(name)

    def names(self) -> list[str]:
        return list(self.files)


class _Output(io.BytesIO):
    def __init__(self, store: Store, path: str) -> None:
        super().__init__()
        self._store, self._path = store, path

    def close(self) -> None:
        if not self.closed:
            self._store.files[self._path] = self.getvalue()
        super().close()


class _File:
    """As PyIceberg's input and output files."""

    def __init__(self, location: str) -> None:
        self.location, self._store = location, _CURRENT[0]

    def __len__(self) -> int:
        return len(self._store.read(self.location))

    def exists(self) -> bool:
        return self._store.exists(self.location)

    def open(self, seekable: bool = True) -> io.BytesIO:  # noqa: ARG002 - as PyIceberg's
        return io.BytesIO(self._store.read(self.location))

    def create(self, overwrite: bool = False) -> _Output:  # noqa: ARG002 - as PyIceberg's
        self._store.create(self.location)
        return _Output(self._store, self.location)


class _Listing(fs.FileSystemHandler):  # type: ignore[misc]
    """Arrow's file system, as far as a sweep lists folders."""

    def get_file_info_selector(self, selector: Any) -> list[fs.FileInfo]:
        folder = f"mem://{selector.base_dir.rstrip('/')}/"
        found = [path for path in _CURRENT[0].files if path.startswith(folder)]
        return [fs.FileInfo(path.removeprefix("mem://"), fs.FileType.File) for path in sorted(found)]

    def get_type_name(self) -> str:
        return "simulated"

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


def _not_there(*_: Any) -> Any:
    raise NotImplementedError


for _name in _Listing.__abstractmethods__:
    setattr(_Listing, _name, _not_there)
_Listing.__abstractmethods__ = frozenset()


class SimulatedIO(PyArrowFileIO):
    """PyIceberg's FileIO over the store of the history."""

    def __init__(self, properties: Any = None) -> None:
        self.properties = dict(properties or PROPERTIES)
        self.fs_by_scheme = lambda _scheme, _authority: fs.PyFileSystem(_Listing())

    def new_input(self, location: str) -> Any:
        return _File(location)

    def new_output(self, location: str) -> Any:
        return _File(location)

    def delete(self, location: Any) -> None:
        _CURRENT[0].delete(getattr(location, "location", location))
