"""Small files beside the checkpoint: records, requests, pauses, usage. Each appears as a whole or not at all."""

from __future__ import annotations

import uuid
from contextlib import suppress

from pyarrow import fs

from compactor.locations import plain_path


class StateFolder:
    """A folder in the checkpoint's file system. Every method raises OSError."""

    def __init__(self, uri: str) -> None:
        self._fs, self.path = _file_system(uri)

    def file(self, name: str) -> str:
        """The path of a file in the folder."""
        return f"{self.path}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """Write a file: under a temporary name, then moved. Creates the folder if it is missing."""
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
        """The content of a file."""
        with self._fs.open_input_stream(self.file(name)) as stream:
            content: bytes = stream.readall()
        return content

    def rename(self, name: str, to: str) -> None:
        """Rename a file; replaces a file that has the new name."""
        self._fs.move(self.file(name), self.file(to))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._fs.delete_file(self.file(name))

    def exists(self) -> bool:
        """Whether the folder exists; on an object store: whether it has any object."""
        return bool(self._fs.get_file_info(self.path).type == fs.FileType.Directory)

    def names(self) -> list[str]:
        """Names of all files, in no order; none if the folder does not exist."""
        found = self._fs.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.File]


def _file_system(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri or uri.startswith("file:"):
        return fs.LocalFileSystem(), plain_path(uri)
    found, path = fs.FileSystem.from_uri(uri)
    return found, path
