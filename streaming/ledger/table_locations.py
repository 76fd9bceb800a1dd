"""Find the table of a metadata file by the folder that holds it: storage notifications name no table.

A look tells where a table keeps its metadata. For an unknown folder, first the names that its path suggests are looked
at, then the catalogs are listed: a table that was created a second ago is found either way. Then known tables are
looked at: one may have another name, or another folder. A folder that belongs to no table after that is left alone,
each time for longer; other things lie in a bucket too, and tables of other services.
"""

from __future__ import annotations

import heapq
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compactor.locations import plain_path
from compactor.patience.backoff import Backoff
from compactor.table_names import TableName

GUESS_SECONDS = 1.5
"""For looks at the names that a path suggests, before the catalogs are listed."""
KNOWN_SECONDS = 10.0
"""For listings to find a new table, before known tables are looked at."""
LIST_AFTER_SECONDS = (GUESS_SECONDS, KNOWN_SECONDS, 30.0)
"""Times of a search at which the catalogs are listed: a catalog can have a table seconds after its metadata file."""
LISTING_PAUSE_SECONDS = 10.0
"""Least time between two listings that unknown folders ask for."""
SEARCH_SECONDS = 60.0
FOREIGN_BACKOFF = Backoff(first_seconds=600.0, longest_seconds=86_400.0)
"""How long a folder that belongs to no table is not searched again: a search lists all catalogs. Sweeps list them too,
so they find a table that is created there later."""
WHOLE_SEARCHES = 2
"""Searches of one folder that list the catalogs. In a bucket with thousands of tables of others, later ones would list
them all the time, although each folder is searched once a day."""
MOST_SHARING = 16
"""Tables with one common folder that an event asks for. Of more, it tells too little: they count as without events."""
MOST_FOLDERS = 10_000
"""That are searched, and again that are known to be foreign: a flood of wrong places must not fill the memory. Further
ones are searched by guesses only."""
QUIET_SECONDS = 172_800.0
"""A foreign folder without an event for so long since it may be searched again makes room for others. Two
days: a table with one commit a day stays, also if a commit is late."""

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
    """A folder whose table is searched. `since`: of the ticks. `event_at`: of the event, seconds since the epoch.

    `version`: the number in the name of the metadata file; None: the name has none. `by_guesses`: earlier searches were
    in vain, or too many others; only tables that the path suggests are looked at, and the next sweep does the rest.
    """

    since: float
    event_at: float
    source: str
    version: int | None
    by_guesses: bool = False


class _Foreign(NamedTuple):
    """A folder that belongs to no table. `searches`: in vain. `until`: of the ticks: it is not searched before."""

    searches: int
    until: float


class _Place(NamedTuple):
    """Where the newest known metadata file of a table lies, and the number in its name."""

    folder: str
    version: int | None


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
    _places: dict[TableName, _Place] = field(default_factory=dict, init=False)
    _searched: dict[str, Search] = field(default_factory=dict, init=False)
    _foreign: dict[str, _Foreign] = field(default_factory=dict, init=False)
    _listed: float = field(default=float("-inf"), init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def put(self, table: TableName, metadata_location: str) -> Search | None:
        """A look found the table's metadata here. Returns the search that this ends."""
        folder = folder_of(metadata_location)
        with self._lock:
            if table not in self._places or self._places[table].folder != folder:
                self._remove(table)
                self._tables[folder] = (*self._tables.get(folder, ()), table)
            self._places[table] = _Place(folder, metadata_version(metadata_location))
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
        place = self._places.pop(table, None)
        if place is None:
            return
        others = tuple(each for each in self._tables.pop(place.folder) if each != table)
        if others:
            self._tables[place.folder] = others

    def search(self, metadata_location: str, source: str, event_at: float) -> str | None:
        """Begin to search the table of a file that `find` does not know; returns the folder if that is news."""
        folder, now = folder_of(metadata_location), self.ticks()
        with self._lock:
            foreign = self._foreign.get(folder)
            if (foreign is not None and foreign.until > now) or folder in self._searched:
                return None
            if len(self._searched) >= MOST_FOLDERS:
                return None
            # While the memory is full, how often others were searched is forgotten.
            is_full = foreign is None and len(self._foreign) >= MOST_FOLDERS
            by_guesses = is_full or (foreign is not None and foreign.searches >= WHOLE_SEARCHES)
            self._searched[folder] = Search(now, event_at, source, metadata_version(metadata_location), by_guesses)
        return folder

    def likely(self) -> list[TableName]:
        """The known tables, likely owners of searched folders first; none if no search lasts for `KNOWN_SECONDS`."""
        now = self.ticks()
        with self._lock:
            searched = {
                folder: each.version
                for folder, each in self._searched.items()
                if not each.by_guesses and now - each.since > KNOWN_SECONDS
            }
            versions = {table: place.version for table, place in self._places.items()} if searched else {}
        return by_likelihood(versions, searched)

    def check(self) -> None:
        """List the catalogs where guesses did not help; give up searches that take too long. Called every second."""
        now = self.ticks()
        with self._lock:
            late = [folder for folder, each in self._searched.items() if now - each.since > SEARCH_SECONDS]
            given_up = [(self._searched.pop(folder).source, folder) for folder in late]
            for folder in late:
                searches = self._foreign[folder].searches + 1 if folder in self._foreign else 1
                self._foreign[folder] = _Foreign(searches, now + FOREIGN_BACKOFF.seconds(searches))
            self._foreign = _remembered(self._foreign, now)
            must_list = now - self._listed > LISTING_PAUSE_SECONDS and any(
                self._listed < each.since + seconds < now
                for each in self._searched.values()
                if not each.by_guesses
                for seconds in LIST_AFTER_SECONDS
            )
            if must_list:
                self._listed = now
        for source, folder in given_up:
            self.unresolved(source, folder)
        if must_list:
            self.list_catalogs()


def _remembered(foreign: dict[str, _Foreign], now: float) -> dict[str, _Foreign]:
    """The foreign folders that fit into the memory: not the quiet ones; those with the most searches first. Pure.

    `now`: of the ticks.
    """
    if len(foreign) < MOST_FOLDERS:
        return foreign
    heard = {folder: each for folder, each in foreign.items() if now - each.until < QUIET_SECONDS}
    if len(heard) <= MOST_FOLDERS:
        return heard
    return dict(heapq.nlargest(MOST_FOLDERS, heard.items(), key=lambda each: each[1]))


def by_likelihood(tables: Mapping[TableName, int | None], searched: Mapping[str, int | None]) -> list[TableName]:
    """Known tables, likely owners of the searched folders first. Pure.

    First those in a namespace that the path of a folder suggests, then by number: the first metadata file in another
    folder has the number after the table's last one. `tables`, `searched`: with the number of a file; None: no number.
    """
    namespaces = {namespace for folder in searched for namespace, _ in suggested(folder)}
    written = sorted(version for version in searched.values() if version is not None)

    def rank(table: TableName) -> tuple[bool, float]:
        version = tables[table]
        after = len(written) if version is None else bisect_right(written, version)
        distance = float("inf") if version is None or after == len(written) else written[after] - version
        return table.namespace not in namespaces, distance

    return sorted(tables, key=rank)


def guesses(folder: str, catalogs: Sequence[str]) -> Iterable[TableName]:
    """Tables that a folder's path suggests, in every catalog."""
    for namespace, name in suggested(folder):
        for catalog in catalogs:
            yield TableName(catalog, namespace, name)
