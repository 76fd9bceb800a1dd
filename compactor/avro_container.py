"""Avro object container files as blocks of bytes: taken apart and put together without decoding a record.

Source: Avro specification 1.12, "Object Container Files".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from deflate import DeflateError, deflate_decompress
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.codec import Codec

_RAW_DEFLATE: Final = -15  # window bits: no zlib header around it
_MAGIC: Final = b"Obj\x01"
_SYNC: Final = bytes(16)
_LAST_SHIFT: Final = 63


_JAVA_BLOCK: Final = 64 * 1024
"""Bytes that Java's writer puts into a block, about."""
_ROOM: Final = 16
"""Times as large as it is stored a block may become: manifests become two to ten times as large."""
_MOST_ROOM: Final = 2**32 - 1  # what libdeflate's caller can ask for

Inflate = Callable[[bytes], bytearray]


def _inflate(content: bytes) -> bytearray:
    """By libdeflate, which takes less than half of zlib's time; of decoding a manifest, inflating is the largest part.

    It has to be told the most that may come out, which Avro does not store, and makes so much room: zlib inflates what
    becomes larger.
    """
    room = _JAVA_BLOCK + 2 * len(content) if len(content) < _JAVA_BLOCK else _ROOM * len(content)
    with suppress(DeflateError):
        return deflate_decompress(content, min(_MOST_ROOM, room))
    return bytearray(zlib.decompress(content, _RAW_DEFLATE))


def _by_pyiceberg(codec: type[Codec] | None) -> Inflate:
    return (lambda content: bytearray(codec.decompress(content))) if codec else bytearray


_CODECS: Final[Mapping[str, Inflate]] = {
    **{str(name): _by_pyiceberg(codec) for name, codec in KNOWN_CODECS.items()},
    "deflate": _inflate,
}


class ContainerError(Exception):
    """Reaction: **read it with another library**, whose message says more: the bytes are no container known here."""


@dataclass(frozen=True)
class Container:
    """A file: the schema as it stands in its header, (number of records, bytes as they are stored) of each block."""

    schema: str
    stored: tuple[tuple[int, bytes], ...]
    inflate: Inflate = bytearray

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(count for count, _ in self.stored)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks as they are stored."""
        return sum(len(content) for _, content in self.stored)

    def blocks(self) -> Iterator[tuple[int, bytearray]]:
        """(number of records, bytes) of each block, inflated one after the other: the last one is still in the cache.

        Raises:
            ContainerError: one cannot be inflated.
        """
        for count, content in self.stored:
            try:
                inflated = self.inflate(content)
            except Exception as error:  # each codec has errors of its own
                raise ContainerError(str(error)) from error
            yield count, inflated


def open_container(content: bytes) -> Container:
    """Take a file apart; nothing is inflated yet.

    Raises:
        ContainerError: it is damaged, or compressed by an unknown codec.
    """
    source = _Source(content)
    try:
        source.expect(_MAGIC)
        metadata = source.metadata()
        inflate = _CODECS[metadata.get("avro.codec", b"null").decode()]
        sync = source.take(len(_SYNC))
        stored = []
        while not source.at_end:
            count, length = source.long(), source.long()
            stored.append((count, source.take(length)))
            source.expect(sync)
        return Container(metadata["avro.schema"].decode(), tuple(stored), inflate)
    except ContainerError:
        raise
    except Exception as error:  # a codec that nobody knows, a header that is no text
        raise ContainerError(str(error)) from error


def join_containers(schema: str, containers: Sequence[Container]) -> bytes:
    """One uncompressed file of all blocks, under another schema that describes the same bytes.

    Raises:
        ContainerError: a block cannot be inflated.
    """
    metadata = {"avro.schema": schema.encode(), "avro.codec": b"null"}
    parts: list[bytes | bytearray] = [_MAGIC, _long(len(metadata))]
    for key, value in metadata.items():
        parts += [_long(len(key)), key.encode(), _long(len(value)), value]
    parts += [_long(0), _SYNC]
    for container in containers:
        for count, content in container.blocks():
            parts += [_long(count), _long(len(content)), content, _SYNC]
    return b"".join(parts)


def _long(value: int) -> bytes:
    """A zigzag variable-length integer (Avro spec: binary encoding); lengths and counts only, so never negative."""
    value <<= 1
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Source:
    """Bytes read from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._content)

    def take(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._content):
            raise ContainerError("it ends too early")
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def expect(self, expected: bytes) -> None:
        if self.take(len(expected)) != expected:
            raise ContainerError("not an Avro file, or a damaged one")

    def long(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte <= 0x7F:  # noqa: PLR2004 - seven bits a byte
                return (value >> 1) ^ -(value & 1)
            if shift > _LAST_SHIFT:
                raise ContainerError("a number of more than 64 bits")

    def metadata(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        while count := self.long():
            if count < 0:  # followed by the size of these pairs in bytes
                count = -count
                self.long()
            for _ in range(count):
                key = self.take(self.long()).decode()
                found[key] = self.take(self.long())
        return found
