"""Read and copy delete files of other commits, and write those of a group's outputs, in the driver.

Each data file gets a delete file of its own: a Puffin file with one vector (V3), or a position delete file (V2). When
a vector has left the table, Iceberg's `expireSnapshots` deletes its Puffin file, also if it holds other vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyroaring import BitMap64

from compactor.credentials.renewing_file_io import vended_of
from compactor.iceberg.manifest_entries import DELETION_VECTORS, FileEntry
from compactor.iceberg.manifest_lists import ROW_LINEAGE_VERSION
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionKey
from compactor.rewrite.deletes.position_deletes import PARQUET, DeleteFile, Positions, delete_refusal, deleted_positions
from compactor.rewrite.deletes.written_deletes import position_file, vector_file
from compactor.rewrite.parquet.column_metrics import to_json
from compactor.rewrite.tasks.task_input import storage_of
from compactor.spark.java_table import content_file
from compactor.storage.byte_store import BUFFER_BYTES, ByteStore
from compactor.storage.opening import byte_store_for

AT_ONCE: Final = 16
"""Files that are written at once: the commit waits for them, and other writers may commit before it."""


@dataclass(frozen=True)
class DeletedRows:
    """Positions to delete in one output."""

    key: PartitionKey
    output: str
    positions: BitMap64


def can_read(file: FileEntry) -> bool:
    """Whether `read_positions` reads a delete file: neither ORC, Avro nor encrypted ones."""
    return not file.encrypted and delete_refusal([_as_read(file)]) is None


def read_positions(table: TableView, wanted: Mapping[str, tuple[FileEntry, ...]]) -> dict[str, Positions]:
    """The positions that delete files delete, by data file.

    Raises:
        GiveUpError: a delete file is damaged.
        RetryError: the store does not answer.
    """
    if not wanted:
        return {}
    store = _store(table, next(iter(wanted)))
    return deleted_positions(store, {path: [_as_read(file) for file in files] for path, files in wanted.items()})


def write_deletes(table: TableView, name: str, deleted: Sequence[DeletedRows]) -> list[dict[str, Any]]:
    """Write delete files for outputs; returns their content-file JSON. `name`: the beginning of their locations.

    Raises:
        RetryError: the store does not answer.
    """
    if not deleted:
        return []
    write = _vector if table.metadata.format_version >= ROW_LINEAGE_VERSION else _positions
    names = [f"{name}-{number}" for number in range(len(deleted))]
    with _threads(len(deleted)) as threads:
        return list(threads.map(partial(write, _store(table, name)), names, deleted))


def copy_files(table: TableView, copies: Mapping[str, str]) -> int:
    """Copy files of the table byte for byte; returns the number of bytes. `copies`: new locations by location.

    A copy of an encrypted file is read with the same key, which is in the manifest.

    Raises:
        GiveUpError: a file is missing.
        RetryError: the store does not answer.
    """
    with _threads(len(copies)) as threads:
        return sum(threads.map(partial(_copy, table), copies, copies.values()))


def _threads(files: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(files, AT_ONCE)), thread_name_prefix="delete-files")


def _vector(store: ByteStore, name: str, rows: DeletedRows) -> dict[str, Any]:
    location, made = f"{name}.puffin", vector_file({rows.output: rows.positions})
    offset, length = made.blobs[rows.output]
    return content_file(
        rows.key,
        location,
        DELETION_VECTORS,
        _write(store, location, [made.data]),
        {"record-count": len(rows.positions)},
        **{
            "content": "position-deletes",
            "content-offset": offset,
            "content-size-in-bytes": length,
            "referenced-data-file": rows.output,
        },
    )


def _positions(store: ByteStore, name: str, rows: DeletedRows) -> dict[str, Any]:
    location, (data, metrics) = f"{name}.parquet", position_file(rows.output, rows.positions)
    more = {"content": "position-deletes", "referenced-data-file": rows.output}
    return content_file(rows.key, location, PARQUET, _write(store, location, [data]), to_json(metrics), **more)


def _copy(table: TableView, location: str, copy: str) -> int:
    store = _store(table, location)
    size = store.size(location)
    starts = range(0, size, BUFFER_BYTES)
    return _write(_store(table, copy), copy, (store.read(location, at, min(BUFFER_BYTES, size - at)) for at in starts))


def _write(store: ByteStore, location: str, pieces: Iterable[bytes]) -> int:
    file = store.create(location)
    try:
        for data in pieces:
            file.write(data)
        return file.finish()
    except BaseException:
        file.abort()
        raise


def _store(table: TableView, location: str) -> ByteStore:
    return byte_store_for(location, storage_of(table), vended_of(table.io))


def _as_read(file: FileEntry) -> DeleteFile:
    return DeleteFile(file.path, file.size, file.file_format)
