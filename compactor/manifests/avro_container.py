"""Split and join Avro object container files by blocks of bytes, without decompressing or decoding a record.

Source: Avro specification 1.12, "Object Container Files".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_CODEC: Final = "null"
_CODEC: Final = "avro.codec"
_SCHEMA: Final = "avro.schema"
_MAGIC: Final = b"Obj\x01"
_SYNC: Final = bytes(16)
_LAST_SHIFT: Final = 63


class ContainerError(Exception):
    """Reaction: **read it with another library**, whose error says more: the bytes are no container known here."""


@dataclass(frozen=True)
class Container:
    """One file: the schema text of its header, and of each block the number of records and the stored bytes."""

    schema: str
    stored: tuple[tuple[int, bytes], ...]
    codec: str = NO_CODEC

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(count for count, _ in self.stored)


def open_container(content: bytes) -> Container:
    """Split a file into blocks, without decompressing them.

    Raises:
        ContainerError: the file is damaged.
    """
    source = _Source(content)
    try:
        metadata = source.header()
        sync = source.take(len(_SYNC))
        stored = []
        while not source.at_end:
            count, length = source.long(), source.long()
            stored.append((count, source.take(length)))
            source.expect(sync)
        codec = metadata.get(_CODEC, NO_CODEC.encode()).decode()
        return Container(metadata[_SCHEMA].decode(), tuple(stored), codec)
    except Exception as error:  # e.g. no schema, or a header that is not UTF-8
        raise ContainerError(str(error)) from error


def schema_of(start: bytes) -> str:
    """The schema text of a file of which only the first bytes are at hand.

    Raises:
        ContainerError: the file is damaged, or its header is longer.
    """
    try:
        return _Source(start).header()[_SCHEMA].decode()
    except Exception as error:  # as above
        raise ContainerError(str(error)) from error


def join_containers(schema: str, containers: Sequence[Container], codec: str = NO_CODEC) -> bytes:
    """One file with all blocks as they are stored; `schema` must describe the same bytes, `codec` hold for all."""
    metadata = {_SCHEMA: schema, _CODEC: codec}
    parts = [_MAGIC, _long(len(metadata))]
    for text in (text for pair in metadata.items() for text in pair):
        parts += [_long(len(text.encode())), text.encode()]
    parts += [_long(0), _SYNC]
    for count, content in (block for container in containers for block in container.stored):
        parts += [_long(count), _long(len(content)), content, _SYNC]
    return b"".join(parts)


def _long(value: int) -> bytes:
    """A zigzag variable-length integer (Avro spec: binary encoding); only lengths and counts, never negative."""
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
            raise ContainerError("the file ends too early")
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

    def header(self) -> dict[str, bytes]:
        """The metadata, which come first."""
        self.expect(_MAGIC)
        found: dict[str, bytes] = {}
        while count := self.long():
            if count < 0:  # then the size of these pairs in bytes follows
                count = -count
                self.long()
            for _ in range(count):
                key = self.take(self.long()).decode()
                found[key] = self.take(self.long())
        return found
