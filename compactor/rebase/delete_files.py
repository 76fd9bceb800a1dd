"""Read delete files of other commits, and write those of a group's outputs, in the driver.

One Puffin file holds the vectors of a commit (V3); each output has a position delete file of its own (V2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from compactor.storage.byte_store import ByteStore
from compactor.storage.opening import byte_store_for


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
    """Write delete files for outputs; returns their content-file JSON. `name`: location, without a suffix.

    Raises:
        RetryError: the store does not answer.
    """
    if not deleted:
        return []
    store = _store(table, name)
    if table.metadata.format_version >= ROW_LINEAGE_VERSION:
        return _vectors(store, f"{name}.puffin", deleted)
    return [_position_deletes(store, f"{name}-{number}.parquet", rows) for number, rows in enumerate(deleted)]


def _vectors(store: ByteStore, location: str, deleted: Sequence[DeletedRows]) -> list[dict[str, Any]]:
    made = vector_file({rows.output: rows.positions for rows in deleted})
    size = _write(store, location, made.data)
    return [
        content_file(
            rows.key,
            location,
            DELETION_VECTORS,
            size,
            {"record-count": len(rows.positions)},
            **{
                "content": "position-deletes",
                "content-offset": made.blobs[rows.output][0],
                "content-size-in-bytes": made.blobs[rows.output][1],
                "referenced-data-file": rows.output,
            },
        )
        for rows in deleted
    ]


def _position_deletes(store: ByteStore, location: str, rows: DeletedRows) -> dict[str, Any]:
    data, metrics = position_file(rows.output, rows.positions)
    more = {"content": "position-deletes", "referenced-data-file": rows.output}
    return content_file(rows.key, location, PARQUET, _write(store, location, data), to_json(metrics), **more)


def _write(store: ByteStore, location: str, data: bytes) -> int:
    file = store.create(location)
    try:
        file.write(data)
        return file.finish()
    except BaseException:
        file.abort()
        raise


def _store(table: TableView, location: str) -> ByteStore:
    return byte_store_for(location, storage_of(table), vended_of(table.io))


def _as_read(file: FileEntry) -> DeleteFile:
    return DeleteFile(file.path, file.size, file.file_format)
