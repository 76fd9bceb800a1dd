"""Which values a column chunk cannot hold, by its bloom filter.

A filter that a writer made badly, or that is damaged, would hide rows: no checksum covers it. So one that is not as
every writer leaves it is not used.

Source: apache/parquet-format, BloomFilter.md: a split block filter of the XXH64 digests of plain-encoded values.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from compactor.rewrite.parquet.footer import BLOOM_BYTES, BLOOM_UNIONS
from compactor.rewrite.parquet.thrift import I32, STRUCT, ThriftError, decode_struct

_SALT: Final = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)
_WORDS: Final = 8  # of 32 bits in a block
_FIRST_OF_UNION: Final = 1  # split block, XXH64, uncompressed: the only ones that the format has
_EPOCH: Final = dt.date(1970, 1, 1)
_PLAIN: Final[Mapping[tuple[str, type], Callable[[Any], bytes]]] = {
    ("INT32", int): struct.Struct("<i").pack,
    ("INT64", int): struct.Struct("<q").pack,
    ("INT32", dt.date): lambda value: struct.pack("<i", (value - _EPOCH).days),
    ("BYTE_ARRAY", str): str.encode,
}


@dataclass(frozen=True, eq=False)
class BloomFilter:
    """The bitset: a row of eight words for each block."""

    words: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, data: bytes) -> BloomFilter | None:
        """The filter in these bytes, header and bitset; None for a kind that is not known, or damaged bytes.

        Each value sets one bit of every word of its block: no block has empty words beside others.
        """
        try:
            header, start = decode_struct(data)
            known = all(_FIRST_OF_UNION in header.require(each, STRUCT).fields for each in BLOOM_UNIONS)
            length = header.require(BLOOM_BYTES, I32)
        except ThriftError:
            return None
        if not known or length <= 0 or length % (4 * _WORDS) or len(data) - start != length:
            return None
        words = np.frombuffer(data, dtype="<u4", offset=start).reshape(-1, _WORDS)
        filled = np.count_nonzero(words, axis=1)
        return cls(words) if np.isin(filled, (0, _WORDS)).all() and filled.any() else None

    def may_hold(self, physical_type: str, values: Iterable[Any]) -> bool:
        """Whether a chunk of this physical type may hold one of the values. Never False for one that it holds."""
        for value in values:
            plain = _PLAIN.get((physical_type, type(value)))
            if plain is None:
                return True
            try:
                digest = xxhash.xxh64_intdigest(plain(value))
            except struct.error:  # too large for the column's type
                continue
            if self._has(digest):
                return True
        return False

    def _has(self, digest: int) -> bool:
        block = self.words[((digest >> 32) * len(self.words)) >> 32]
        bits = (np.uint32(digest & 0xFFFFFFFF) * _SALT) >> np.uint32(27)
        return bool(np.all((block >> bits) & np.uint32(1)))
