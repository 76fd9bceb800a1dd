"""Decoded manifests on local disk: Arrow files, mapped into memory when wanted, shared by the processes of one host.

A manifest never changes, so a file here is either right or damaged. Damage (a truncated file, a flipped bit) is found
by length and checksum; such a file is thrown away and the manifest read again. Files appear by renaming, so nobody
sees half of one. What was not wanted for longest goes first when the folder outgrows its bound.
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

FORMAT: Final = 6  # raised whenever what is kept, or what it means, changes
SUFFIX: Final = ".arrow"
FLAGS_OF_A_PRIVATE_FOLDER: Final = 0o700  # paths and partition values are nobody else's business
_OURS: Final = re.compile(r"[0-9a-f]{64}\.(arrow|\d+-\d+)")  # what others keep in the folder is none of our business
_END: Final = struct.Struct("<8sQI")  # magic, length and checksum of what comes before
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
"""Trimming goes below the bound by a tenth, so that it is not for every file that the folder is listed."""
MEASURED_EVERY: Final = 1 / 16
"""Of the bound: when a process has written so much, it looks at what others have written meanwhile."""
TRY_AGAIN_SECONDS: Final = 60.0
"""After the folder could not be written: it may be full, or have been removed."""
ABANDONED_SECONDS: Final = 3600.0
"""After which an unfinished file is nobody's any more; before, it is another process'."""


class ManifestDisk:
    """A folder of decoded manifests, at most about `limit_bytes` large. Thread-safe; several processes may share it.

    It is only ever a help: a folder that cannot be written is reported once, tried again now and then, and everything
    is read from the store. `clock`: seconds since the epoch, as files are dated.
    """

    def __init__(self, folder: Path, limit_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._bytes: int | None = None
        self._unmeasured = 0
        self._not_before = 0.0

    def __reduce__(self) -> tuple[type[ManifestDisk], tuple[Path, int]]:
        """To executors: the folder of their own host."""
        return ManifestDisk, (self._folder, self._limit)  # the clock is the other process' own

    def get(self, key: str, layout: PartitionLayout, manifest_path: str) -> EntryColumns | None:
        """The entries kept under `key`, None if there are none or they are damaged."""
        path = self._path(key)
        try:
            with pa.memory_map(str(path)) as source:
                buffer = source.read_buffer()
        except OSError:  # nobody has kept it, or not for us
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
        """Keep `entries`, at the cost of what was not wanted for longest."""
        if self._clock() < self._not_before:
            return
        content = packed(entries, key)
        path = self._path(key)
        unfinished = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            if self._bytes is None:
                self._folder.mkdir(parents=True, exist_ok=True, mode=FLAGS_OF_A_PRIVATE_FOLDER)
            unfinished.write_bytes(content)
            unfinished.replace(path)
            self._grown(len(content))
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            if not self._not_before:
                LOG.warning("manifests cannot be kept in %s, they are read from the store: %s", self._folder, error)
            self._bytes, self._not_before = None, self._clock() + TRY_AGAIN_SECONDS

    def _path(self, key: str) -> Path:
        return self._folder / (hashlib.sha256(f"{FORMAT}:{key}".encode()).hexdigest() + SUFFIX)

    def _grown(self, size: int) -> None:
        with self._lock:
            self._unmeasured += size
            if self._bytes is None or self._unmeasured > MEASURED_EVERY * self._limit:
                self._bytes, self._unmeasured = self._measured(), 0
            else:
                self._bytes += size
            if self._bytes > self._limit:
                self._trim()

    def _measured(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        with os.scandir(self._folder) as listing:
            for each in listing:
                if not _OURS.fullmatch(each.name):
                    continue
                try:
                    status = each.stat()
                except FileNotFoundError:
                    continue  # another process trimmed it
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
    """One manifest's entries as bytes that stand for themselves, for `unpacked`. `key`: what they are kept under."""
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
        ValueError: the bytes are not what `packed` made, or under another key; an Arrow exception says the same.
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
