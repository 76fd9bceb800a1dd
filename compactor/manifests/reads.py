"""Fetch manifests from the store in batches and decode them; PyIceberg decodes what the fast decoder refuses."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from compactor.errors import retried
from compactor.iceberg.manifest_entries import file_entry, read_entries
from compactor.iceberg.manifest_lists import RESTORE, first_row_id
from compactor.iceberg.tables import TableView
from compactor.locations import is_local
from compactor.manifests.columns import EntryColumns
from compactor.manifests.decoder import RawManifest, UnusualManifestError, decode_manifests
from compactor.partitions import PartitionLayout
from compactor.reasons import Reason

FETCH_THREADS: Final = 32
"""Concurrent reads from the store: 640 manifests a second at 50 ms per object."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of manifests per decoder call: enough to make its fixed cost small, few enough to hold their columns twice."""
BATCH_MANIFESTS: Final = 256
BYTES_AHEAD: Final = 32 * 1024 * 1024
"""Bytes fetched ahead of decoding: enough to keep all fetch threads busy with a distant store."""


class Wanted(NamedTuple):
    """A manifest to read, the layout of its partitions, and the key of its entries in caches."""

    manifest: ManifestFile
    layout: PartitionLayout
    key: str


@dataclass(frozen=True)
class Decoded:
    """Entries of some manifests; `unusual`: how many of them PyIceberg decoded."""

    wanted: Sequence[Wanted]
    entries: Sequence[EntryColumns]
    unusual: int = 0


def wanted_of(table: TableView, manifests: Sequence[ManifestFile]) -> list[Wanted]:
    """Manifests with their cache keys: path, length, inherited values, ids and types of partition fields."""
    layouts = {spec_id: table.layout(spec_id) for spec_id in {each.partition_spec_id for each in manifests}}
    kinds = {
        spec_id: f"{spec_id}:{layout.field_ids}:{','.join(map(str, layout.types))}"
        for spec_id, layout in layouts.items()
    }
    return [
        Wanted(
            manifest,
            layouts[manifest.partition_spec_id],
            f"{manifest.manifest_path}:{manifest.manifest_length}:{first_row_id(manifest)}:{manifest.sequence_number}:"
            f"{manifest.added_snapshot_id}:{kinds[manifest.partition_spec_id]}",
        )
        for manifest in manifests
    ]


def batches(wanted: Sequence[Wanted], most_bytes: int = BATCH_BYTES) -> Iterator[list[Wanted]]:
    """Manifests to decode together, in order, about `most_bytes` each; manifests of equal size make equal batches."""
    batch: list[Wanted] = []
    size = 0
    for each in wanted:
        length = each.manifest.manifest_length
        if batch and (size + length / 2 > most_bytes or len(batch) >= BATCH_MANIFESTS):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += length
    if batch:
        yield batch


def fetch(io: FileIO, manifest: ManifestFile) -> RawManifest:
    """The bytes of one manifest.

    Raises:
        RetryError: the store cannot read them.
    """
    path = manifest.manifest_path
    what = f"manifest {path} cannot be read"
    with retried(what, Reason.MANIFEST_UNREADABLE, RESTORE), io.new_input(path).open() as stream:
        return RawManifest(manifest, stream.read())


def decode(io: FileIO, wanted: Sequence[Wanted], raws: Sequence[RawManifest]) -> Decoded:
    """Decode all manifests at once; if one is unusual, decode them one by one, the unusual ones with PyIceberg.

    Raises:
        RetryError: one of them is damaged.
    """
    layouts = {each.layout.spec_id: each.layout for each in wanted}
    try:
        return Decoded(wanted, decode_manifests(raws, layouts))
    except UnusualManifestError:
        if len(wanted) == 1:
            return Decoded(wanted, [_by_reference(io, wanted[0])], unusual=1)
    single = [decode(io, [each], [raw]) for each, raw in zip(wanted, raws, strict=True)]
    return Decoded(wanted, [one.entries[0] for one in single], sum(one.unusual for one in single))


def _by_reference(io: FileIO, wanted: Wanted) -> EntryColumns:
    path = wanted.manifest.manifest_path
    entries = read_entries(io, wanted.manifest, wanted.layout, careful=True)
    with retried(f"manifest {path} cannot be read", Reason.MANIFEST_UNREADABLE, RESTORE):  # a value that is not valid
        return EntryColumns.of(path, wanted.layout, (file_entry(entry, path, wanted.layout) for entry in entries))


Reader = Callable[[FileIO, Sequence[Wanted]], Iterator[Decoded]]
"""Reads manifests that are not cached: batches of entries, in any order. Raises RetryError if one cannot be read."""


def read_here(io: FileIO, wanted: Sequence[Wanted], *, decoders: int | None = None) -> Iterator[Decoded]:
    """Read in this process: `decoders` batches are decoded at once (default: one per core) while others are fetched.

    Raises:
        RetryError: one of them cannot be read.
    """
    if not wanted:
        return
    total = sum(each.manifest.manifest_length for each in wanted)
    at_once = decoders or cores()
    most_bytes = min(BATCH_BYTES, total // at_once + 1)  # work for each decoder
    local = all(is_local(each.manifest.manifest_path) for each in wanted)  # decoders read local files themselves
    with (
        ThreadPoolExecutor(FETCH_THREADS, "manifest-fetch") as fetchers,
        ThreadPoolExecutor(at_once, "manifest-decode") as decoding,
    ):
        under_way: deque[tuple[Future[Decoded], int]] = deque()
        ahead = 0
        try:
            for batch in batches(wanted, most_bytes):
                reads = [partial(fetch, io, each.manifest) for each in batch]
                raws = reads if local else [fetchers.submit(read).result for read in reads]
                size = sum(each.manifest.manifest_length for each in batch)
                under_way.append((decoding.submit(_decode_fetched, io, batch, raws), size))
                ahead += size
                while ahead > BYTES_AHEAD:
                    decoded, size = under_way.popleft()
                    yield decoded.result()
                    ahead -= size
            for decoded, _ in under_way:
                yield decoded.result()
        finally:
            under_way.clear()  # else the traceback of a failed read keeps the other results alive


def _decode_fetched(io: FileIO, wanted: Sequence[Wanted], raws: Sequence[Callable[[], RawManifest]]) -> Decoded:
    return decode(io, wanted, [raw() for raw in raws])


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
