"""Find the table of a metadata file by the folder that holds it: storage notifications name no table. Pure.

A look tells where a table keeps its metadata. For an unknown folder the catalogs are listed twice, and tables that are
new there are looked at. After that the folder is left alone for a day; other things lie in a bucket too, and tables of
other services.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from compactor.locations import plain_path
from compactor.table_names import TableName
from streaming.logs.events import LOG

LIST_AFTER_SECONDS = (1.0, 30.0)
"""Times of a search at which the catalogs are listed: a catalog can have a table seconds after its metadata file."""
LISTING_PAUSE_SECONDS = 10.0
"""Least time between two listings that unknown folders ask for."""
SEARCH_AGAIN_SECONDS = 86_400.0
"""Between two searches of a folder that belongs to no table: a search lists all catalogs. Sweeps list them too, so they
find a table that is created there later."""
MOST_SHARING = 16
"""Tables with one common folder that an event asks for. Of more, it tells too little: they count as without events."""
MOST_FOLDERS = 10_000
"""That were searched within a day: a flood of wrong places must fill neither the memory nor the catalogs' time. Further
ones are not searched."""

_S3_ALIASES = ("s3a://", "s3n://")
_VERSION = re.compile(r"v(\d{1,18})\.|(\d{1,18})-", re.ASCII)
"""`00017-<uuid>` in most catalogs, `v17` in Hadoop's."""


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


@dataclass
class MetadataFolders:
    """Folders of tables' metadata. `now` is of the ticks. `_searched`: folders of no known table, each since when."""

    _tables: dict[str, tuple[TableName, ...]] = field(default_factory=dict)
    _places: dict[TableName, str] = field(default_factory=dict)
    _searched: dict[str, float] = field(default_factory=dict)
    _listed: float = float("-inf")

    def put(self, table: TableName, metadata_location: str) -> None:
        """A look found the table's metadata here."""
        folder = folder_of(metadata_location)
        if self._places.get(table) != folder:
            self.forget(table)
            self._tables[folder] = (*self._tables.get(folder, ()), table)
            self._places[table] = folder
        self._searched.pop(folder, None)

    def forget(self, table: TableName) -> None:
        """The table does not exist any more, or is not watched."""
        folder = self._places.pop(table, None)
        if folder is not None:
            others = tuple(each for each in self._tables.pop(folder) if each != table)
            if others:
                self._tables[folder] = others

    def find(self, metadata_location: str) -> tuple[TableName, ...]:
        """The tables whose metadata lie in this file's folder. Several tables can have one `write.metadata.path`."""
        return self._tables.get(folder_of(metadata_location), ())

    def search(self, metadata_location: str, now: float) -> None:
        """Begin to search the table of a file that `find` does not know."""
        folder = folder_of(metadata_location)
        since = self._searched.get(folder, float("-inf"))
        if now - since >= SEARCH_AGAIN_SECONDS and len(self._searched) < MOST_FOLDERS:
            self._searched[folder] = now
            LOG.info("no known table has its metadata in %s: the catalogs are listed", folder)

    def must_list(self, now: float) -> bool:
        """Whether searches need a listing of the catalogs now, which then counts as made. Called every second."""
        if len(self._searched) >= MOST_FOLDERS:
            self._searched = {key: since for key, since in self._searched.items() if now - since < SEARCH_AGAIN_SECONDS}
        needed = now - self._listed > LISTING_PAUSE_SECONDS and any(
            self._listed < since + seconds < now for since in self._searched.values() for seconds in LIST_AFTER_SECONDS
        )
        if needed:
            self._listed = now
        return needed
