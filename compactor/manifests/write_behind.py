"""Write decoded manifests to disk behind the reads: no read waits for the disk, and few wait for it in memory."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from compactor.manifests.columns import EntryColumns
from compactor.manifests.disk import ManifestDisk

LOG = logging.getLogger(__name__)

WRITE_AFTER_SECONDS: Final = 0.2
"""Delay before entries are written to disk, so that the plan that reads them is done: writing ten manifests beside a
plan slows it down by 10 ms. One delay for all that wait, so that reads do not come faster than they are written."""

MOST_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Memory for entries that wait: ten times what a busy service reads during the delay."""


class WriteBehind:
    """Entries that wait for the disk. A thread writes them, the oldest first, and ends when none waits. Thread-safe.

    `MOST_WAITING_BYTES` wait at most, or the newest read as a whole: its entries were in memory at once anyway. If the
    disk is slower than the reads, the oldest are dropped and read from the store again.
    """

    def __init__(self, disk: ManifestDisk) -> None:
        self._disk = disk
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, EntryColumns] = OrderedDict()
        self._bytes = 0
        self._working = False
        self._flushes = 0
        self._told = False

    def put(self, read: Mapping[str, EntryColumns]) -> None:
        """Write the entries of a read, soon. Does not wait."""
        with self._changed:
            for key in read.keys() & self._waiting.keys():
                self._take(key)
            self._waiting.update(read)
            self._bytes += sum(entries.weight for entries in read.values())
            while self._bytes > MOST_WAITING_BYTES and len(self._waiting) > len(read):
                self._take(next(iter(self._waiting)))
                self._tell("is too slow for the manifests that are read")
            if not self._working:
                threading.Thread(target=self._work, name="manifest-disk", daemon=True).start()
                self._working = True

    def flush(self, seconds: float) -> None:
        """Write all entries without a delay. Returns after at most `seconds`; the thread goes on with what is left."""
        with self._changed:
            self._flushes += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._working, seconds):
                self._tell("did not take all manifests in time")
            self._flushes -= 1

    def _take(self, key: str) -> EntryColumns | None:
        entries = self._waiting.pop(key, None)
        self._bytes -= 0 if entries is None else entries.weight
        return entries

    def _tell(self, what: str) -> None:
        """Once until the disk has caught up."""
        if not self._told:
            self._told = True
            LOG.warning("%s %s: some of them are read from the store again", self._disk.folder, what)

    def _work(self) -> None:
        while batch := self._next_batch():
            for key in batch:
                self._write(key)

    def _next_batch(self) -> tuple[str, ...]:
        """The keys of all entries that wait, when it is time to write them; none: the thread ends."""
        with self._changed:
            self._working = bool(self._waiting)
            if self._working:
                self._changed.wait_for(lambda: self._flushes, WRITE_AFTER_SECONDS)
            else:
                self._told = False
                self._changed.notify_all()
            return tuple(self._waiting)

    def _write(self, key: str) -> None:
        with self._changed:
            entries = self._take(key)
        if entries is None:
            return
        try:
            self._disk.put(key, entries)
        except Exception as error:  # noqa: BLE001 - it is only a cache, and the next one may be written
            LOG.warning("a manifest cannot be cached in %s: %s", self._disk.folder, error)
