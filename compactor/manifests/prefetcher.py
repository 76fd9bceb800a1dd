"""The prefetcher: new manifests of tables that have been planned before are read when a commit is heard of.

The next plan then finds them in memory. It is only ever a help: what fails here is read, and reported, by the plan.
"""

from __future__ import annotations

import logging
import threading

from compactor.iceberg.tables import MAIN, Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.table_names import TableName
from compactor.table_queue import TableQueue

LOG = logging.getLogger(__name__)


class Prefetcher:
    """One thread; however often a table is heard of while it is busy, it is read once more. Tables never planned are
    left alone: of thousands of tables, most are never due.
    """

    def __init__(self, catalogs: Catalogs, cache: ManifestCache) -> None:
        self._catalogs = catalogs
        self._cache = cache
        self._planned: set[TableName] = set()
        self._heard: TableQueue[None] = TableQueue()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the table that is being read; a daemon thread, so nobody waits for it."""
        self._heard.drained()
        self._heard.close()

    def planned(self, table: TableName) -> None:
        """From now on this table's commits are of interest."""
        self._planned.add(table)

    def heard_of(self, table: TableName) -> None:
        """A table has changed. Returns at once."""
        if table in self._planned:
            self._heard.put(table, None)

    def _work(self) -> None:
        while (heard := self._heard.take()) is not None:
            prefetch(self._catalogs, self._cache, heard[0])


def prefetch(catalogs: Catalogs, cache: ManifestCache, table: TableName, ref: str = MAIN) -> None:
    """Read what is new of one table."""
    try:
        view = catalogs.load(table, ref)
        cache.read(view, view.manifests(), prefetch=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the next plan meets it and says so
        LOG.debug("manifests of %s could not be prefetched: %s", table, error)
