"""Positions → the bytes of a delete file: a Puffin file of deletion vectors (V3), a Parquet file of positions (V2).

Source: Puffin spec, file structure and blob type `deletion-vector-v1`; Iceberg spec, "Position Delete Files".
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from compactor.iceberg.manifest_entries import DELETE_FILE_PATH_FIELD
from compactor.rewrite.deletes.deletion_vectors import MAGIC, VECTOR_MAGIC, VECTOR_TYPE
from compactor.rewrite.parquet.column_metrics import ColumnMetrics

POSITION_FIELD: Final = 2147483545  # reserved field id of a position delete's pos (spec, reserved field ids)
ROW_POSITION_FIELD: Final = 2147483645  # of `_pos`, which a vector is an index of
NOT_YET_KNOWN: Final = -1  # snapshot and sequence number of a vector are inherited from its manifest
LONG_BYTES: Final = 8
CODEC: Final = "zstd"


@dataclass(frozen=True)
class VectorFile:
    """The bytes of a Puffin file, and (offset, length) of the vector of each data file."""

    data: bytes
    blobs: Mapping[str, tuple[int, int]]


def vector_file(deleted: Mapping[str, BitMap64]) -> VectorFile:
    """A Puffin file with one vector for each data file."""
    data = bytearray(MAGIC)
    blobs: dict[str, tuple[int, int]] = {}
    described = []
    for path, positions in sorted(deleted.items()):
        body = VECTOR_MAGIC + positions.serialize()
        blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
        blobs[path] = (len(data), len(blob))
        described.append(
            {
                "type": VECTOR_TYPE,
                "fields": [ROW_POSITION_FIELD],
                "snapshot-id": NOT_YET_KNOWN,
                "sequence-number": NOT_YET_KNOWN,
                "offset": len(data),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        data += blob
    footer = json.dumps({"blobs": described, "properties": {"created-by": "firnline"}}).encode()
    data += MAGIC + footer + len(footer).to_bytes(4, "little") + bytes(4) + MAGIC
    return VectorFile(bytes(data), blobs)


def position_file(path: str, positions: BitMap64) -> tuple[bytes, ColumnMetrics]:
    """A position delete file of one data file, and its metrics. Equal bounds of the path: it names no other file."""
    rows = len(positions)
    # The path once, as a dictionary: repeated as text, that of 15 million rows exceeds the 2 GiB of an Arrow column.
    paths = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), rows), pa.array([path]))
    table = pa.table(
        [paths, pa.array(np.asarray(positions.to_array()).view(np.int64))],
        schema=pa.schema(
            [_column("file_path", paths.type, DELETE_FILE_PATH_FIELD), _column("pos", pa.int64(), POSITION_FIELD)]
        ),
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression=CODEC, use_dictionary=["file_path"], store_schema=False)
    ids = (DELETE_FILE_PATH_FIELD, POSITION_FIELD)
    metrics = ColumnMetrics(
        record_count=rows,
        column_sizes={},
        value_counts=dict.fromkeys(ids, rows),
        null_value_counts=dict.fromkeys(ids, 0),
        nan_value_counts={},
        lower_bounds={DELETE_FILE_PATH_FIELD: path.encode(), POSITION_FIELD: _long(positions.min())},
        upper_bounds={DELETE_FILE_PATH_FIELD: path.encode(), POSITION_FIELD: _long(positions.max())},
    )
    return buffer.getvalue(), metrics


def _column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})


def _long(value: int) -> bytes:
    return value.to_bytes(LONG_BYTES, "little", signed=True)
