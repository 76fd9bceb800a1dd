"""What a manifest entry says of a file against the file itself: it exists, and its size and row count are right."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyarrow import orc
from pyroaring import BitMap64

from tests.correctness.metadata_reader import Entry, local_path

PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = bytes((0xD1, 0xD3, 0x39, 0x64))
TAIL = 12  # of a Puffin file: length of the footer's payload, flags, magic


def file_problems(entry: Entry) -> Iterator[str]:
    """Sentences on one entry."""
    path = local_path(entry.path)
    if not path.is_file():
        yield f"{entry.label}: the file does not exist"
        return
    size = path.stat().st_size
    if size != entry.size:
        yield f"{entry.label}: {entry.size} bytes in the manifest, {size} on disk"
    try:
        rows = _vector_rows(entry, path) if entry.is_vector else _rows(entry, path)
    except (OSError, ValueError) as error:
        yield f"{entry.label}: cannot be read: {error}"
        return
    if rows != entry.records:
        yield f"{entry.label}: {entry.records} rows in the manifest, {rows} in the file"


def _rows(entry: Entry, path: Path) -> int:
    if entry.file_format == "parquet":
        return int(pq.read_metadata(path).num_rows)
    if entry.file_format == "orc":
        return int(orc.ORCFile(path).nrows)
    with path.open("rb") as file:
        return sum(block.num_records for block in fastavro.block_reader(file))


def _vector_rows(entry: Entry, path: Path) -> int:
    """Positions in a deletion vector (Puffin spec, `deletion-vector-v1`), read where the manifest says it is.

    Raises:
        ValueError: no valid vector of the referenced data file is there.
    """
    content = path.read_bytes()
    start, length = entry.content_offset or 0, entry.content_size or 0
    blob = content[start : start + length]
    body = blob[4:-4]
    if len(blob) != length or int.from_bytes(blob[:4], "big") != len(body) or body[:4] != VECTOR_MAGIC:
        raise ValueError(f"no deletion vector of {length} bytes at {start}")
    if int.from_bytes(blob[-4:], "big") != zlib.crc32(body):
        raise ValueError("the deletion vector's checksum is wrong")
    rows = len(BitMap64.deserialize(body[4:]))
    listed = [each for each in _blobs(content) if (each["offset"], each["length"]) == (start, length)]
    if not listed:
        raise ValueError(f"the Puffin footer lists no blob of {length} bytes at {start}")
    properties = listed[0].get("properties") or {}
    if properties.get("referenced-data-file") != entry.referenced:
        raise ValueError(f"the Puffin footer names {properties.get('referenced-data-file')} as its data file")
    if properties.get("cardinality") != str(rows):
        raise ValueError(f"{properties.get('cardinality')} positions in the Puffin footer, {rows} in the vector")
    return rows


def _blobs(content: bytes) -> list[dict[str, Any]]:
    if content[:4] != PUFFIN_MAGIC or content[-4:] != PUFFIN_MAGIC:
        raise ValueError("not a Puffin file")
    length = int.from_bytes(content[-TAIL : 4 - TAIL], "little")
    blobs: list[dict[str, Any]] = json.loads(content[-TAIL - length : -TAIL])["blobs"]
    return blobs
