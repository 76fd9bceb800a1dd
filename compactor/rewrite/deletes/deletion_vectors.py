"""V3 deletion vectors → the positions to remove from each data file.

A Puffin file holds the vectors of many data files; only the requested ones are read. It must have a vector for each
data file that its manifest entries list. Unlike in a position delete file, a missing vector is an error.

Source: Puffin spec, file structure and blob type `deletion-vector-v1`; Iceberg's BitmapPositionDeleteIndex (Java).
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from pyiceberg.table.puffin import Footer, PuffinBlobMetadata
from pyroaring import BitMap64

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.rewrite.reading.files import WHOLE_FILE_BYTES
from compactor.storage.byte_store import ByteStore

MAGIC: Final = b"PFA1"
VECTOR_MAGIC: Final = bytes((0xD1, 0xD3, 0x39, 0x64))
VECTOR_TYPE: Final = "deletion-vector-v1"

_TAIL: Final = 12  # payload size, flags, magic
_HEAD: Final = 8  # of a blob: length of magic and vector, magic
_CHECKSUM: Final = 4
_COMPRESSED_FOOTER: Final = 1


def vector_positions(
    store: ByteStore, location: str, size: int, paths: Sequence[str]
) -> Iterable[tuple[str, npt.NDArray[np.int64]]]:
    """(path, ascending positions) for each of `paths`, from one Puffin file of `size` bytes.

    Raises:
        GiveUpError: `unreadable_delete_file`: not a Puffin file, damaged, not exactly one vector for each path, or a
            vector with another number of positions than its footer says; or an error of the store.
    """
    whole = store.read(location, 0, size) if size <= WHOLE_FILE_BYTES else None

    def read(offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > size:
            raise _unreadable(location, "the file is too short")
        return store.read(location, offset, length) if whole is None else whole[offset : offset + length]

    tail = read(size - _TAIL, _TAIL)
    if tail[-4:] != MAGIC or tail[4] & _COMPRESSED_FOOTER:
        raise _unreadable(location, "it has no Puffin footer that can be read")
    length = int.from_bytes(tail[:4], "little")
    found = _vectors(location, read(size - _TAIL - length, length))
    for path in paths:
        vectors = found[path]
        if len(vectors) != 1:
            raise _unreadable(location, f"it has {len(vectors)} deletion vectors for {path}")
        yield path, _positions(location, vectors[0], read(vectors[0].offset, vectors[0].length))


def _vectors(location: str, payload: bytes) -> Mapping[str | None, list[PuffinBlobMetadata]]:
    """The deletion vectors in a footer, by data file; there may be thousands."""
    try:
        blobs = Footer.model_validate_json(payload).blobs
    except ValueError as error:
        raise _unreadable(location, f"its footer is invalid: {error}") from error
    found: dict[str | None, list[PuffinBlobMetadata]] = defaultdict(list)
    for blob in blobs:
        if blob.type == VECTOR_TYPE:
            found[blob.properties.get("referenced-data-file")].append(blob)
    return found


def _positions(location: str, blob: PuffinBlobMetadata, data: bytes) -> npt.NDArray[np.int64]:
    body = data[4:-_CHECKSUM]
    sound = (
        blob.compression_codec is None  # as the spec requires
        and len(data) >= _HEAD + _CHECKSUM
        and int.from_bytes(data[:4], "big") == len(body)
        and body.startswith(VECTOR_MAGIC)
        and int.from_bytes(data[-_CHECKSUM:], "big") == zlib.crc32(body)
    )
    if not sound:
        raise _unreadable(location, "a deletion vector is damaged")
    try:
        found = np.asarray(BitMap64.deserialize(body[len(VECTOR_MAGIC) :]).to_array(), dtype=np.uint64)
    except ValueError as error:
        raise _unreadable(location, f"a deletion vector is not a bitmap: {error}") from error
    if blob.properties.get("cardinality", str(len(found))) != str(len(found)):
        raise _unreadable(location, f"a deletion vector has {len(found)} positions, but its footer says otherwise")
    return found.astype(np.int64)


def _unreadable(location: str, why: str) -> GiveUpError:
    return GiveUpError(
        f"The deletion vectors in {location} cannot be used: {why}.", reason=Reason.UNREADABLE_DELETE_FILE
    )
