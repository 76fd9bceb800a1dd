"""The lease document in a local folder, which may be on a mounted network file system.

Each version of the document is a file of its own, named by its number; the highest number counts. A new version is
written under another name and then linked to its number, which fails if that number exists. So a process that is
paused in the middle blocks nobody, as it would with a lock, and NFS is right too: a link is made by the server, while
locks may be local to a client, and the content of a folder may be seen a minute late. Old versions stay for a while:
who sees the folder late then finds the number taken.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path

from compactor.lease.store import Stored, Version

KEPT = 64
"""Versions: ten minutes of renewals, far longer than NFS caches a folder."""
_DIGITS = 20
_NUMBER = re.compile(rf"(\d{{{_DIGITS}}})\.json")
_ANY = re.compile(rf"(\d{{{_DIGITS}}})\.")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES}
_TRIES = 3  # a version may be removed between the listing and the read


class LocalLeaseStore:
    """See `LeaseStore`. Versions are numbers from 1."""

    conditional = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    def read(self) -> Stored | None:
        """See `LeaseStore`."""
        for _ in range(_TRIES):
            newest = self._newest()
            if not newest:
                return None
            with suppress(FileNotFoundError):
                return Stored(self._file(newest).read_bytes(), newest)
        raise FileNotFoundError(errno.ENOENT, "the lease changes faster than it can be read", self.location)

    def replace(self, content: bytes, expected: Version | None) -> Version | None:
        """See `LeaseStore`."""
        known = int(expected or 0)
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._newest() != known:
            return None
        number = known + 1
        if not self._create(number, content):
            return None
        if self._newest() != number:  # paused for so long that the number was free again
            self._file(number).unlink(missing_ok=True)
            return None
        self._remove_up_to(number - KEPT)
        return number

    def _create(self, number: int, content: bytes) -> bool:
        """Create the file of a version, whole and with its content on disk; False if it exists."""
        aside = self._folder / f"{number:0{_DIGITS}d}.{uuid.uuid4().hex}.tmp"
        try:
            _write(aside, content)
            os.link(aside, self._file(number))
        except FileExistsError:
            return aside.stat().st_nlink > 1  # NFS: the link was made, and the answer to the first request was lost
        except FileNotFoundError:
            return False  # paused for so long that others removed `aside` as a leftover
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create_in_place(number, content)
        finally:
            aside.unlink(missing_ok=True)
        return True

    def _create_in_place(self, number: int, content: bytes) -> bool:
        """For file systems without links. A crash can leave half a document: it counts as one that cannot be read."""
        try:
            _write(self._file(number), content)
        except FileExistsError:
            return False
        except OSError:  # a full disk: half a version would count as the newest one, and the lease as lost
            self._file(number).unlink(missing_ok=True)
            raise
        return True

    def _newest(self) -> int:
        return max((int(found[1]) for name in self._names() if (found := _NUMBER.fullmatch(name))), default=0)

    def _remove_up_to(self, number: int) -> None:
        for name in self._names():
            found = _ANY.match(name)
            if found and int(found[1]) <= number:
                with suppress(OSError):
                    (self._folder / name).unlink()

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:0{_DIGITS}d}.json"


def _write(path: Path, content: bytes) -> None:
    """Create the file; after a power failure it is whole.

    Raises:
        FileExistsError: it exists.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
