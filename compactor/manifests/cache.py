"""The manifest cache: reads and decodes each manifest once, and keeps it in memory and on local disk.

A manifest file never changes, so entries are evicted, never invalidated. The values that entries inherit from the
manifest list may change once, in an upgrade to V3, so they are part of the key.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, Self

from pyiceberg.manifest import ManifestFile

from compactor.events import Listener, ManifestsRead, ignore
from compactor.iceberg.tables import TableView
from compactor.manifests.columns import EntryColumns
from compactor.manifests.disk import ManifestDisk
from compactor.manifests.reads import Reader, Wanted, read_here, wanted_of
from compactor.manifests.write_behind import WriteBehind

FLUSH_SECONDS: Final = 10.0
"""Most time that a process waits at its end for the disk: the cache of a table with a million files takes a second."""


class ManifestCache:
    """Entries of manifests in columns, in memory up to `limit_bytes`, evicted least recently used first. Thread-safe.

    `disk` outlives the process and is shared with other processes; None means memory only. Reads of fewer than
    `least_kept_bytes` in the store are not written to it: reading them again costs less than a file for each. All
    others are on disk at the end of the `with` block, unless the disk hangs.
    """

    def __init__(
        self,
        limit_bytes: int,
        listener: Listener = ignore,
        disk: ManifestDisk | None = None,
        least_kept_bytes: int = 0,
    ) -> None:
        self._limit = limit_bytes
        self._least_kept_bytes = least_kept_bytes
        self._listener = listener
        self._disk = disk
        self._reader: Reader = read_here
        self._behind = None if disk is None else WriteBehind(disk)
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, EntryColumns] = OrderedDict()
        self._bytes = 0

    def use_reader(self, reader: Reader) -> None:
        """Read missing manifests with `reader` from now on, e.g. on the executors of a cluster."""
        self._reader = reader

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write all entries to disk. Returns after at most `seconds`."""
        if self._behind is not None:
            self._behind.flush(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def __len__(self) -> int:
        return len(self._entries)

    def read(
        self,
        table: TableView,
        manifests: Sequence[ManifestFile],
        *,
        listener: Listener = ignore,
    ) -> list[EntryColumns]:
        """Entries of each manifest, in order; manifests that are not cached are read from the store.

        `listener`: called with the event of this read, beside the cache's own listener.

        Raises:
            RetryError: a manifest cannot be read.
        """
        started = time.monotonic()
        wanted = wanted_of(table, manifests)
        used = self._in_memory(wanted)
        new = self._on_disk([each for each in wanted if each.key not in used])
        missing = list({each.key: each for each in wanted if each.key not in used and each.key not in new}.values())
        unusual = 0
        for decoded in self._reader(table.io, missing):
            unusual += decoded.unusual
            new.update(zip((each.key for each in decoded.wanted), decoded.entries, strict=True))
        bytes_read = sum(each.manifest.manifest_length for each in missing)
        if self._behind is not None and missing and bytes_read >= self._least_kept_bytes:
            self._behind.put({each.key: new[each.key] for each in missing})
        self._remember(new)
        event = ManifestsRead(
            table=table.name,
            hits=len(used),
            disk_hits=len(new) - len(missing),
            misses=len(missing),
            bytes_read=bytes_read,
            seconds=time.monotonic() - started,
            unusual=unusual,
        )
        self._listener(event)
        listener(event)
        found = {**used, **new}
        return [found[each.key] for each in wanted]

    def _in_memory(self, wanted: Sequence[Wanted]) -> dict[str, EntryColumns]:
        found = {}
        with self._lock:
            for each in wanted:
                entries = self._entries.get(each.key)
                if entries is not None:
                    self._entries.move_to_end(each.key)
                    found[each.key] = entries
        return found

    def _on_disk(self, wanted: Sequence[Wanted]) -> dict[str, EntryColumns]:
        if self._disk is None:
            return {}
        found = {each.key: self._disk.get(each.key, each.layout, each.manifest.manifest_path) for each in wanted}
        return {key: entries for key, entries in found.items() if entries is not None}

    def _remember(self, new: Mapping[str, EntryColumns]) -> None:
        """Keep new entries."""
        with self._lock:
            for key, entries in new.items():
                if key not in self._entries:
                    self._entries[key] = entries
                    self._bytes += entries.weight
            while self._bytes > self._limit and self._entries:
                _, evicted = self._entries.popitem(last=False)
                self._bytes -= evicted.weight
