"""Find the table of a metadata file by the folder that holds it: storage notifications name no table.

A look tells where a table keeps its metadata. For an unknown folder, first the names that its path suggests are looked
at, then the catalogs are listed: a table that was created a second ago is found either way. A folder that belongs to no
table after that is left alone, each time for longer; other things lie in a bucket too, and tables of other services.
"""

from __future__ import annotations

import heapq
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compactor.locations import plain_path
from compactor.patience.backoff import Backoff
from compactor.table_names import TableName

GUESS_SECONDS = 1.5
"""For looks at the names that a path suggests, before the catalogs are listed."""
LISTING_PAUSE_SECONDS = 10.0
"""Least time between two listings that unknown folders ask for."""
SEARCH_SECONDS = 60.0
FOREIGN_BACKOFF = Backoff(first_seconds=600.0, longest_seconds=86_400.0)
"""How long a folder that belongs to no table is not searched again: a search lists all catalogs. Sweeps list them too,
so they find a table that is created there later."""
MOST_SHARING = 16
"""Tables with one common folder that an event asks for. Of more, it tells too little: they count as without events."""
MOST_FOLDERS = 10_000
"""That are searched, and again that are known to be foreign: a flood of wrong places must not fill the memory."""

_S3_ALIASES = ("s3a://", "s3n://")
_UNIQUE_ENDING = re.compile(r"-[0-9a-f]{32}$|-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""Trino and REST catalogs make locations unique with an id."""
_VERSION = re.compile(r"v(\d{1,18})\.|(\d{1,18})-", re.ASCII)
"""`00017-<uuid>` in most catalogs, `v17` in Hadoop's."""
_DATABASE_ENDING = ".db"  # Hive, Glue


def folder_of(metadata_location: str) -> str:
    """The folder of a metadata file, spelled in one way: `s3://` for all of S3's schemes, plain paths for local files.

    >>> folder_of("s3a://lake/db/t/metadata/00001-x.metadata.json")
    's3://lake/db/t/metadata'
    """
    location = plain_path(metadata_location)
    for alias in _S3_ALIASES:
        if location.startswith(alias):
            location = "s3://" + location.removeprefix(alias)
    return location.rpartition("/")[0]


def metadata_version(metadata_location: str) -> int | None:
    """The number in the name of a metadata file, which grows with each commit; None: the name has none.

    >>> metadata_version("s3://lake/db/t/metadata/00017-0b6c.metadata.json")
    17
    >>> metadata_version("s3://lake/db/t/metadata/v3.gz.metadata.json")
    3
    """
    found = _VERSION.match(metadata_location.rpartition("/")[2])
    return int(found[1] or found[2]) if found else None


def suggested(folder: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Namespaces and names that the folder's path suggests, most usual layout first. Pure.

    >>> suggested("s3://lake/sales/db.db/orders/metadata")
    ((('db',), 'orders'), (('sales', 'db'), 'orders'))
    """
    _, scheme, path = folder.rpartition("://")
    parts = [part for part in path.split("/") if part]
    if parts and parts[-1] == "metadata":
        parts.pop()
    if scheme:
        parts = parts[1:]  # the bucket
    if len(parts) < 2:  # noqa: PLR2004 - a namespace and a name
        return ()
    *levels, name = parts
    levels[-1] = levels[-1].removesuffix(_DATABASE_ENDING) or levels[-1]
    name = _UNIQUE_ENDING.sub("", name)
    return tuple((tuple(levels[-depth:]), name) for depth in (1, 2) if depth <= len(levels))


@dataclass(frozen=True)
class Search:
    """A folder whose table is searched. `since`: of the ticks. `event_at`: of the event, seconds since the epoch."""

    since: float
    event_at: float
    source: str


class _Foreign(NamedTuple):
    """A folder that belongs to no table. `searches`: in vain. `until`: of the ticks: it is not searched before."""

    searches: int
    until: float


@dataclass(eq=False)
class TableLocations:
    """Folders of tables' metadata. Thread-safe.

    `list_catalogs`: lists all catalogs soon, and looks at the tables that are new. `unresolved`: called with the source
    and the folder of events whose table was not found.
    """

    list_catalogs: Callable[[], None] = lambda: None
    unresolved: Callable[[str, str], None] = lambda _source, _folder: None
    ticks: Callable[[], float] = time.monotonic
    _tables: dict[str, tuple[TableName, ...]] = field(default_factory=dict, init=False)
    _folders: dict[TableName, str] = field(default_factory=dict, init=False)
    _searched: dict[str, Search] = field(default_factory=dict, init=False)
    _foreign: dict[str, _Foreign] = field(default_factory=dict, init=False)
    _listed: float = field(default=float("-inf"), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def put(self, table: TableName, metadata_location: str) -> Search | None:
        """A look found the table's metadata here. Returns the search that this ends."""
        folder = folder_of(metadata_location)
        with self._lock:
            if self._folders.get(table) != folder:
                self._remove(table)
                self._folders[table] = folder
                self._tables[folder] = (*self._tables.get(folder, ()), table)
            self._foreign.pop(folder, None)
            return self._searched.pop(folder, None)

    def forget(self, table: TableName) -> None:
        """The table does not exist any more, or is another service's."""
        with self._lock:
            self._remove(table)

    def find(self, metadata_location: str) -> tuple[TableName, ...]:
        """The tables whose metadata lie in this file's folder. Several tables can have one `write.metadata.path`."""
        with self._lock:
            return self._tables.get(folder_of(metadata_location), ())

    def _remove(self, table: TableName) -> None:
        folder = self._folders.pop(table, None)
        if folder is None:
            return
        self._tables[folder] = tuple(each for each in self._tables[folder] if each != table)
        if not self._tables[folder]:
            del self._tables[folder]

    def search(self, metadata_location: str, source: str, event_at: float) -> str | None:
        """Begin to search the table of a file that `find` does not know; returns the folder if that is news."""
        folder, now = folder_of(metadata_location), self.ticks()
        with self._lock:
            foreign = self._foreign.get(folder)
            if (foreign is not None and foreign.until > now) or folder in self._searched:
                return None
            if len(self._searched) >= MOST_FOLDERS:
                return None
            self._searched[folder] = Search(now, event_at, source)
        return folder

    def check(self) -> None:
        """List the catalogs where guesses did not help; give up searches that take too long. Called every second."""
        now = self.ticks()
        with self._lock:
            late = [folder for folder, each in self._searched.items() if now - each.since > SEARCH_SECONDS]
            given_up = [(self._searched.pop(folder).source, folder) for folder in late]
            for folder in late:
                searches = self._foreign[folder].searches + 1 if folder in self._foreign else 1
                self._foreign[folder] = _Foreign(searches, now + FOREIGN_BACKOFF.seconds(searches))
            if len(self._foreign) > MOST_FOLDERS:  # those that came back often stay
                kept = heapq.nlargest(MOST_FOLDERS, self._foreign.items(), key=lambda each: each[1])
                self._foreign = dict(kept)
            unlisted = [each for each in self._searched.values() if each.since > self._listed]
            waiting = any(now - each.since > GUESS_SECONDS for each in unlisted)
            must_list = waiting and now - self._listed > LISTING_PAUSE_SECONDS
            if must_list:
                self._listed = now
        for source, folder in given_up:
            self.unresolved(source, folder)
        if must_list:
            self.list_catalogs()


def guesses(folder: str, catalogs: Sequence[str]) -> Iterable[TableName]:
    """Tables that a folder's path suggests, in every catalog."""
    for namespace, name in suggested(folder):
        for catalog in catalogs:
            yield TableName(catalog, namespace, name)
