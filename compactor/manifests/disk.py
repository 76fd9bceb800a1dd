"""Cache decoded manifests on local disk, as Arrow files that are memory-mapped and shared by all processes of a host.

A manifest never changes, so a cached file is either correct or damaged. Length and checksum detect damage; a damaged
file is deleted and the manifest is read again. A file is written under another name and renamed, so that no reader sees
half of it. When the folder exceeds its limit, the least recently used files are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from compactor.manifests.columns import SCHEMA, EntryColumns, LiveRuns, Partitions
from compactor.partitions import PartitionLayout

LOG = logging.getLogger(__name__)

FORMAT: Final = 6  # increase whenever the content of the files or its meaning changes
SUFFIX: Final = ".arrow"
FLAGS_OF_A_PRIVATE_FOLDER: Final = 0o700  # paths and partition values are private
_OURS: Final = re.compile(r"[0-9a-f]{64}\.(arrow|\d+-\d+)")  # never delete other files in the folder
_END: Final = struct.Struct("<8sQI")  # magic, then length and checksum of the bytes before
_MAGIC: Final = b"firnline"
_KEY: Final = b"key"
_PARTITIONS: Final = b"partitions"
_HASHES: Final = b"hashes"
_HASH: Final = np.dtype("<u8")
_PREFIX: Final = b"prefix"
_DATA: Final = b"data"
_DELETES: Final = b"deletes"
_ROW: Final = np.dtype("<i4")
ROOM_AFTER_TRIMMING: Final = 0.9
"""Ratio of the limit that trimming leaves, so that the folder is not listed again for the next file."""
MEASURED_EVERY: Final = 1 / 16
"""Ratio of the limit: after writing as many bytes, a process measures the folder again, with other processes' files."""
TRY_AGAIN_SECONDS: Final = 60.0
"""Wait after a failed write: the folder may be full, or removed."""
ABANDONED_SECONDS: Final = 3600.0
"""Age from which an unfinished file is deleted; a younger one may belong to a running process."""


class ManifestDisk:
    """A folder of decoded manifests of about `limit_bytes` at most. Thread-safe; several processes may share it.

    The cache is optional: if the folder cannot be written, a warning is logged once, writing is retried later, and
    manifests are read from the store. `clock`: seconds since the epoch, as in file times.
    """

    def __init__(self, folder: Path, limit_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._unmeasured = 0
        self._not_before = 0.0

    def __reduce__(self) -> tuple[type[ManifestDisk], tuple[Path, int]]:
        """Pickled for executors, which use the folder on their own host and their own clock."""
        return ManifestDisk, (self.folder, self._limit)

    def get(self, key: str, layout: PartitionLayout, manifest_path: str) -> EntryColumns | None:
        """The entries cached under `key`; None if there are none, or if the file is damaged."""
        path = self._path(key)
        try:
            with pa.memory_map(str(path)) as source:
                buffer = source.read_buffer()
        except OSError:  # not cached, or not readable for this user
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        try:
            return unpacked(buffer, layout, manifest_path, key)
        except (ValueError, pa.ArrowException) as error:
            LOG.warning("a cached manifest is damaged and will be read again: %s: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def put(self, key: str, entries: EntryColumns) -> None:
        """Cache `entries`; least recently used files make room for them."""
        if self._clock() < self._not_before:
            return
        content = packed(entries, key)
        path = self._path(key)
        unfinished = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            if self._bytes is None:
                self.folder.mkdir(parents=True, exist_ok=True, mode=FLAGS_OF_A_PRIVATE_FOLDER)
            unfinished.write_bytes(content)
            unfinished.replace(path)
            self._grown(len(content))
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            if not self._not_before:
                LOG.warning("cannot cache manifests in %s, reading them from the store: %s", self.folder, error)
            self._bytes, self._not_before = None, self._clock() + TRY_AGAIN_SECONDS

    def _path(self, key: str) -> Path:
        return self.folder / (hashlib.sha256(f"{FORMAT}:{key}".encode()).hexdigest() + SUFFIX)

    def _grown(self, size: int) -> None:
        with self._lock:
            self._unmeasured += size
            if self._bytes is None or self._unmeasured > MEASURED_EVERY * self._limit:
                self._bytes, self._unmeasured = sum(size for _, size, _ in self._files()), 0
            else:
                self._bytes += size
            if self._bytes > self._limit:
                self._trim()

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        with os.scandir(self.folder) as listing:
            for each in listing:
                if not _OURS.fullmatch(each.name):
                    continue
                try:
                    status = each.stat()
                except FileNotFoundError:
                    continue  # deleted by another process
                found.append((status.st_mtime, status.st_size, Path(each.path)))
        return found

    def _trim(self) -> None:
        files = sorted(self._files())  # oldest use first
        total = sum(size for _, size, _ in files)
        for used, size, path in files:
            if path.suffix != SUFFIX and self._clock() - used < ABANDONED_SECONDS:
                continue
            if total <= ROOM_AFTER_TRIMMING * self._limit:
                break
            path.unlink(missing_ok=True)
            total -= size
        self._bytes = total


def packed(entries: EntryColumns, key: str = "") -> bytes:
    """One manifest's entries as self-contained bytes, for `unpacked`. `key`: the key that they are cached under."""
    own = entries.compacted()
    metadata = {
        _KEY: key.encode(),
        _PARTITIONS: json.dumps(list(own.partitions.texts)).encode(),
        _HASHES: own.partitions.hashes.astype(_HASH).tobytes(),
        _DATA: own.runs.data.astype(_ROW).tobytes(),
        _DELETES: own.runs.deletes.astype(_ROW).tobytes(),
        _PREFIX: own.prefix.encode(),
    }
    rows = own.rows.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body + _END.pack(_MAGIC, len(body), zlib.crc32(body))


def unpacked(content: pa.Buffer | bytes, layout: PartitionLayout, manifest_path: str, key: str = "") -> EntryColumns:
    """The inverse of `packed`, without a copy.

    Raises:
        ValueError: the bytes are damaged or have another key.
        pa.ArrowException: the bytes are damaged.
    """
    buffer = content if isinstance(content, pa.Buffer) else pa.py_buffer(content)
    if buffer.size < _END.size:
        raise ValueError("too short")
    length = buffer.size - _END.size
    body = buffer.slice(0, length)
    if _END.unpack(buffer.slice(length).to_pybytes()) != (_MAGIC, length, zlib.crc32(body)):
        raise ValueError("checksum or length differ")
    with pa.ipc.open_stream(body) as reader:
        schema = reader.schema
        rows = reader.read_next_batch().replace_schema_metadata(None)
    if rows.schema != SCHEMA:
        raise ValueError("other columns")
    kept = schema.metadata or {}
    if not {_PARTITIONS, _HASHES, _PREFIX, _DATA, _DELETES} <= kept.keys():
        raise ValueError("partitions or runs are missing")
    if kept.get(_KEY) != key.encode():
        raise ValueError("kept under another key")
    texts: Sequence[str] = json.loads(kept[_PARTITIONS])
    known = Partitions(layout, texts, np.frombuffer(kept[_HASHES], _HASH).astype(np.uint64))
    runs = LiveRuns(*(np.frombuffer(kept[name], _ROW).reshape(3, -1) for name in (_DATA, _DELETES)))
    return EntryColumns(manifest_path, rows, known, runs, prefix=kept[_PREFIX].decode(), nbytes=length)
