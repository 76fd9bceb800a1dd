"""Small files beside the checkpoint: in-flight records, open requests. Each appears whole or not at all."""

from __future__ import annotations

import uuid
from contextlib import suppress

from pyarrow import fs

from compactor.locations import plain_path


class StateFolder:
    """A folder of a checkpoint's file system. Files are written aside and moved; every method raises OSError."""

    def __init__(self, uri: str) -> None:
        self._fs, self.path = _file_system(uri)

    def file(self, name: str) -> str:
        """The path of one of its files."""
        return f"{self.path}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """One file whole; the folder is made if need be."""
        self._fs.create_dir(self.path, recursive=True)
        aside = self.file(f"{name}-{uuid.uuid4().hex}.tmp")
        try:
            with self._fs.open_output_stream(aside) as stream:
                stream.write(content)
            self._fs.move(aside, self.file(name))
        except OSError:
            with suppress(OSError):
                self._fs.delete_file(aside)
            raise

    def read(self, name: str) -> bytes:
        """One file whole."""
        with self._fs.open_input_stream(self.file(name)) as stream:
            content: bytes = stream.readall()
        return content

    def rename(self, name: str, to: str) -> None:
        """One file; another of the new name is replaced."""
        self._fs.move(self.file(name), self.file(to))

    def remove(self, name: str) -> None:
        """One file."""
        self._fs.delete_file(self.file(name))

    def names(self) -> list[str]:
        """Those there are, in no order; none where the folder is not there."""
        found = self._fs.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.File]


def _file_system(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri and not uri.startswith("file:"):
        return fs.LocalFileSystem(), uri
    if uri.startswith("file:"):
        return fs.LocalFileSystem(), plain_path(uri)
    found, path = fs.FileSystem.from_uri(uri)
    return found, path
