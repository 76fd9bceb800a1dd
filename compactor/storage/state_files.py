"""Small files beside the checkpoint: records, requests, pauses, usage. Each appears as a whole or not at all."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pyarrow import fs

from compactor.errors import RetryError
from compactor.locations import plain_path
from compactor.reasons import Reason

LOG = logging.getLogger("firnline")
Held = TypeVar("Held")


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


class StateFile:
    """One JSON file with one writer, the active service.

    `confirm`: called before each save; raises if another process writes the file now. `lost`: what follows for the
    reader of the log if the file is lost.
    """

    def __init__(self, folder_uri: str, name: str, confirm: Callable[[], None], lost: str) -> None:
        self._folder = StateFolder(folder_uri)
        self._name = name
        self._confirm = confirm
        self._lost = lost

    def load(self, decode: Callable[[Any], Held]) -> Held | None:
        """What the last process left; None without a file. A damaged file is moved aside and logged.

        `decode` raises ValueError, TypeError, KeyError or AttributeError for what is damaged.

        Raises:
            RetryError: the store does not answer.
        """
        path = self._folder.file(self._name)
        try:
            content = self._folder.read(self._name)
            try:
                return decode(json.loads(content))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                LOG.warning("%s is damaged: %s: %s", path, self._lost, error)
                self._folder.rename(self._name, f"{self._name}.damaged")
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RetryError(
                f"{path} cannot be read: {error}; check state.checkpoint", reason=Reason.STATE_UNREADABLE
            ) from error

    def save(self, tree: Any) -> bool:
        """Write the file; False (and logged) if it cannot be written."""
        try:
            self._confirm()
            self._folder.write(self._name, json.dumps(tree).encode())
        except Exception as error:  # noqa: BLE001 - stores raise errors of their own
            LOG.warning(
                "%s cannot be written; after a restart, %s: %s", self._folder.file(self._name), self._lost, error
            )
            return False
        return True


def _file_system(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri or uri.startswith("file:"):
        return fs.LocalFileSystem(), plain_path(uri)
    found, path = fs.FileSystem.from_uri(uri)
    return found, path
