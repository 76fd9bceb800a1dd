"""The rows of the model: what is in each kind of file, and what a reader finds. Independent of the product.

A row is (number, key): the number is the row's own, keys repeat.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from compactor.iceberg.manifest_entries import Content, FileEntry

Row = tuple[int, int]
Rows = tuple[Row, ...]
UNPARTITIONED: Final = "[]"
_CACHED: Final = 4096


def data_bytes(rows: Iterable[Row]) -> bytes:
    return json.dumps(list(rows)).encode()


@lru_cache(_CACHED)
def data_rows(content: bytes) -> Rows:
    return tuple((number, key) for number, key in json.loads(content))


def key_bytes(keys: Iterable[int]) -> bytes:
    """Of an equality delete."""
    return json.dumps({"keys": sorted(keys)}).encode()


@lru_cache(_CACHED)
def deleted_keys(content: bytes) -> frozenset[int]:
    return frozenset(json.loads(content)["keys"])


@lru_cache(_CACHED)
def position_bytes(positions: tuple[tuple[str, int], ...]) -> bytes:
    """A position delete file, which may name several data files."""
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
    paths, places = zip(*sorted(positions), strict=True)
    buffer = io.BytesIO()
    pq.write_table(pa.table([pa.array(paths), pa.array(places)], schema=pa.schema(fields)), buffer)
    return buffer.getvalue()


@lru_cache(_CACHED)
def deleted_positions(content: bytes) -> Mapping[str, frozenset[int]]:
    """Of a position delete file, or a Puffin file of deletion vectors."""
    found: dict[str, set[int]] = {}
    if content.startswith(b"PFA1"):
        length = int.from_bytes(content[-12:-8], "little")
        for blob in json.loads(content[-12 - length : -12])["blobs"]:
            body = content[blob["offset"] + 8 : blob["offset"] + blob["length"] - 4]
            found[blob["properties"]["referenced-data-file"]] = set(BitMap64.deserialize(body))
    else:
        table = pq.ParquetFile(io.BytesIO(content)).read()
        for path, place in zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True):
            found.setdefault(path, set()).add(place)
    return {path: frozenset(places) for path, places in found.items()}


def deleted_in(file: FileEntry, deletes: Sequence[FileEntry], files: Mapping[str, bytes]) -> dict[int, bool]:
    """Places of deleted rows of a data file; True: some live delete deletes it by position (spec, scan planning)."""
    number, rows = file.data_sequence_number, data_rows(files[file.path])
    vectors = [each for each in deletes if each.is_deletion_vector and each.applies_to == file.path]
    found: dict[int, bool] = {}
    for each in deletes:
        if each.content is Content.EQUALITY_DELETES:
            if number < each.data_sequence_number and each.key in (file.key, (each.key.spec_id, UNPARTITIONED)):
                keys = deleted_keys(files[each.path])
                for place, (_, key) in enumerate(rows):
                    if key in keys:
                        found.setdefault(place, False)
            continue
        by_file = each.applies_to == file.path if each.applies_to else each.key == file.key
        if by_file and (each in vectors if vectors else number <= each.data_sequence_number):
            found |= dict.fromkeys(deleted_positions(files[each.path]).get(file.path, ()), True)
    return {place: by_position for place, by_position in found.items() if place < len(rows)}


def visible(live: Iterable[FileEntry], files: Mapping[str, bytes]) -> Counter[Row]:
    """The rows that a reader of these live files finds."""
    data, deletes = [], []
    for each in live:
        (data if each.content is Content.DATA else deletes).append(each)
    rows: Counter[Row] = Counter()
    for file in data:
        deleted = deleted_in(file, deletes, files) if deletes else {}
        rows.update(row for place, row in enumerate(data_rows(files[file.path])) if place not in deleted)
    return rows
