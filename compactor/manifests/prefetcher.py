"""The prefetcher reads new manifests of a table when a commit is announced, so that the next plan finds them in memory.

It is optional: if it fails, the plan reads the manifests and reports the error.
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
    """Prefetches in one thread; a table that changes several times while the thread is busy is read once.

    Tables that were never planned are ignored: of thousands of tables, most are never due.
    """

    def __init__(self, catalogs: Catalogs, cache: ManifestCache) -> None:
        self._catalogs = catalogs
        self._cache = cache
        self._planned: set[TableName] = set()
        self._changed: TableQueue[None] = TableQueue()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current table, without waiting for it."""
        self._changed.drained()
        self._changed.close()

    def planned(self, table: TableName) -> None:
        """Prefetch this table's new manifests from now on."""
        self._planned.add(table)

    def table_changed(self, table: TableName) -> None:
        """Request a prefetch of a table with a new commit. Returns at once."""
        if table in self._planned:
            self._changed.put(table, None)

    def _work(self) -> None:
        while (changed := self._changed.take()) is not None:
            prefetch(self._catalogs, self._cache, changed[0])


def prefetch(catalogs: Catalogs, cache: ManifestCache, table: TableName, ref: str = MAIN) -> None:
    """Read the manifests of one table that are not cached yet."""
    try:
        view = catalogs.load(table, ref)
        cache.read(view, view.manifests(), prefetch=True)
    except Exception as error:  # noqa: BLE001 - any error: the next plan gets the same error and reports it
        LOG.debug("manifests of %s could not be prefetched: %s", table, error)
