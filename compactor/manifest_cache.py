"""The manifest cache: each manifest is read and decoded once, kept in memory, then on local disk.

A manifest file never changes, so nothing here needs invalidating: what is not wanted any more is evicted. What its
entries inherit from the manifest list may change once, in an upgrade to V3, so that is part of the key.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from compactor.errors import RetryError
from compactor.events import Listener, ManifestsRead, ignore
from compactor.manifest_avro import RawManifest, UnusualManifestError, decode_manifests
from compactor.manifest_columns import EntryColumns
from compactor.manifest_disk import ManifestDisk
from compactor.manifest_lists import first_row_id
from compactor.manifests import file_entry, read_entries
from compactor.partitions import PartitionLayout
from compactor.tables import TableView

FETCH_THREADS: Final = 32
"""Reads that wait for the store at once: at 50 ms an object, 640 manifests a second."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Manifests decoded by one call: enough to make its fixed cost small, few enough to hold inflated (about 5 times)."""
BATCH_MANIFESTS: Final = 256
WEIGHT_OF_A_MANIFEST: Final = 4096
"""Bytes that the objects around the columns of one manifest take, about."""


@dataclass(frozen=True)
class _Wanted:
    manifest: ManifestFile
    layout: PartitionLayout
    key: str


@dataclass(frozen=True)
class _Decoded:
    """Entries of some manifests; `unusual` of them were left to PyIceberg."""

    wanted: Sequence[_Wanted]
    entries: Sequence[EntryColumns]
    unusual: int = 0


class ManifestCache:
    """Entries of manifests in columns, least recently used ones evicted beyond `limit_bytes`. Thread-safe.

    `disk` outlives the process and is shared with others; without it, memory is all there is.
    """

    def __init__(
        self,
        limit_bytes: int,
        listener: Listener = ignore,
        clock: Callable[[], float] = time.monotonic,
        disk: ManifestDisk | None = None,
        decoding_threads: int | None = None,
    ) -> None:
        self._limit = limit_bytes
        self._listener = listener
        self._clock = clock
        self._disk = disk
        self._threads = decoding_threads or _cores() + 1  # one may wait for the store
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, EntryColumns] = OrderedDict()
        self._bytes = 0
        self._prefetched: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def read(
        self,
        table: TableView,
        manifests: Sequence[ManifestFile],
        *,
        prefetch: bool = False,
        tell: Listener = ignore,
    ) -> list[EntryColumns]:
        """Entries of each manifest, in order; what is neither in memory nor on disk is read from the store.

        `prefetch`: nobody waits for them yet; counted apart, to see whether prefetching was of use. `tell`: hears of
        this read too.

        Raises:
            RetryError: a manifest cannot be read.
        """
        started = self._clock()
        wanted = _wanted(table, manifests)
        used = self._in_memory(wanted)
        new = self._on_disk([each for each in wanted if each.key not in used])
        missing = list({each.key: each for each in wanted if each.key not in used and each.key not in new}.values())
        unusual = 0
        for decoded in self._from_store(table.io, missing):
            unusual += decoded.unusual
            new.update((each.key, entries) for each, entries in zip(decoded.wanted, decoded.entries, strict=True))
        foreseen = self._remember(used, new, prefetch=prefetch)
        event = ManifestsRead(
            table.name,
            hits=len(used),
            disk_hits=len(new) - len(missing),
            misses=len(missing),
            bytes_read=sum(each.manifest.manifest_length for each in missing),
            seconds=self._clock() - started,
            prefetched=len(new) if prefetch else 0,
            foreseen=foreseen,
            unusual=unusual,
        )
        for listener in (self._listener, tell):
            listener(event)
        found = {**used, **new}
        return [found[each.key] for each in wanted]

    def _in_memory(self, wanted: Sequence[_Wanted]) -> dict[str, EntryColumns]:
        found = {}
        with self._lock:
            for each in wanted:
                entries = self._entries.get(each.key)
                if entries is not None:
                    self._entries.move_to_end(each.key)
                    found[each.key] = entries
        return found

    def _on_disk(self, wanted: Sequence[_Wanted]) -> dict[str, EntryColumns]:
        if self._disk is None:
            return {}
        found = {each.key: self._disk.get(each.key, each.layout, each.manifest.manifest_path) for each in wanted}
        return {key: entries for key, entries in found.items() if entries is not None}

    def _remember(self, used: Mapping[str, EntryColumns], new: Mapping[str, EntryColumns], *, prefetch: bool) -> int:
        """Keep new entries; returns how many of the used ones had been prefetched, each counted once."""
        with self._lock:
            foreseen = 0 if prefetch else len(self._prefetched & used.keys())
            self._prefetched.difference_update(() if prefetch else used)
            self._prefetched.update(new if prefetch else ())
            for key, entries in new.items():
                if key not in self._entries:
                    self._entries[key] = entries
                    self._bytes += _weight(entries)
            while self._bytes > self._limit and self._entries:
                key, evicted = self._entries.popitem(last=False)
                self._prefetched.discard(key)
                self._bytes -= _weight(evicted)
        return foreseen

    def _from_store(self, io: FileIO, missing: Sequence[_Wanted]) -> Iterator[_Decoded]:
        """Batches in order; while one is decoded, others are fetched."""
        batches = list(_batches(missing))
        if not batches:
            return
        with (
            ThreadPoolExecutor(min(FETCH_THREADS, len(missing)), "manifest-fetch") as fetchers,
            ThreadPoolExecutor(min(self._threads, len(batches)), "manifest-decode") as decoders,
        ):

            def one(batch: Sequence[_Wanted]) -> _Decoded:
                decoded = _decode(io, batch, list(fetchers.map(lambda each: _fetch(io, each.manifest), batch)))
                if self._disk is not None:
                    for each, entries in zip(batch, decoded.entries, strict=True):
                        self._disk.put(each.key, entries)
                return decoded

            under_way: deque[Future[_Decoded]] = deque()
            for batch in batches:
                under_way.append(decoders.submit(one, batch))
                if len(under_way) > self._threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()


def _wanted(table: TableView, manifests: Sequence[ManifestFile]) -> list[_Wanted]:
    """Manifests with the keys of their entries: path and length, what is inherited, how partitions are written."""
    layouts = {spec_id: table.layout(spec_id) for spec_id in {each.partition_spec_id for each in manifests}}
    kinds = {spec_id: f"{spec_id}:{','.join(map(str, layout.types))}" for spec_id, layout in layouts.items()}
    return [
        _Wanted(
            manifest,
            layouts[manifest.partition_spec_id],
            f"{manifest.manifest_path}:{manifest.manifest_length}:{first_row_id(manifest)}:{manifest.sequence_number}:"
            f"{manifest.added_snapshot_id}:{kinds[manifest.partition_spec_id]}",
        )
        for manifest in manifests
    ]


def _weight(entries: EntryColumns) -> int:
    return WEIGHT_OF_A_MANIFEST + entries.nbytes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    batch: list[_Wanted] = []
    size = 0
    for each in wanted:
        length = each.manifest.manifest_length
        if batch and (size + length > BATCH_BYTES or len(batch) >= BATCH_MANIFESTS):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += length
    if batch:
        yield batch


def _fetch(io: FileIO, manifest: ManifestFile) -> RawManifest:
    try:
        with io.new_input(manifest.manifest_path).open() as stream:
            return RawManifest(manifest, stream.read())
    except Exception as error:  # any store's error: the table is marked and read again later
        raise RetryError(
            f"manifest {manifest.manifest_path} cannot be read: {error}", reason="manifest_unreadable"
        ) from error


def _decode(io: FileIO, wanted: Sequence[_Wanted], raws: Sequence[RawManifest]) -> _Decoded:
    """All at once; if that cannot be, one by one, and what is unusual by PyIceberg."""
    layouts = {each.layout.spec_id: each.layout for each in wanted}
    try:
        return _Decoded(wanted, decode_manifests(raws, layouts))
    except UnusualManifestError:
        if len(wanted) == 1:
            return _Decoded(wanted, [_by_reference(io, wanted[0])], unusual=1)
    single = [_decode(io, [each], [raw]) for each, raw in zip(wanted, raws, strict=True)]
    return _Decoded(wanted, [one.entries[0] for one in single], sum(one.unusual for one in single))


def _by_reference(io: FileIO, wanted: _Wanted) -> EntryColumns:
    path = wanted.manifest.manifest_path
    entries = (file_entry(entry, path, wanted.layout) for entry in read_entries(io, wanted.manifest))
    return EntryColumns.of(path, wanted.layout, entries)
