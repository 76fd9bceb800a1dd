"""The lease document in a file system without conditional writes (HDFS, GCS, ADLS, some S3 stores).

`replace` compares, writes and reads again. Of two processes that replace one version within the same second, both can
succeed here; the one whose document is overwritten finds out when it renews. See `LeaseHolder` for what follows.
"""

from __future__ import annotations

from compactor.lease.store import Stored, Version
from compactor.storage.state_files import StateFolder

NAME = "lease.json"


class PlainLeaseStore:
    """See `LeaseStore`. A version is the content."""

    conditional = False

    def __init__(self, folder_uri: str) -> None:
        self._folder = StateFolder(folder_uri)

    @property
    def location(self) -> str:
        """The file."""
        return self._folder.file(NAME)

    def read(self) -> Stored | None:
        """See `LeaseStore`."""
        try:
            content = self._folder.read(NAME)
        except FileNotFoundError:
            return None
        return Stored(content, content)

    def replace(self, content: bytes, expected: Version | None) -> Version | None:
        """See `LeaseStore`."""
        if not self._is(expected):
            return None
        self._folder.write(NAME, content)
        return content if self._is(content) else None

    def _is(self, version: Version | None) -> bool:
        stored = self.read()
        return (stored.version if stored else None) == version
