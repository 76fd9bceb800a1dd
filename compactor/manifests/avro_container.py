"""Avro object container files as blocks of bytes: taken apart and put together without inflating or decoding a record.

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
    """Reaction: **read it with another library**, whose message says more: the bytes are no container known here."""


@dataclass(frozen=True)
class Container:
    """A file: the schema as it stands in its header, (number of records, bytes as they are stored) of each block."""

    schema: str
    stored: tuple[tuple[int, bytes], ...]
    codec: str = NO_CODEC

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(count for count, _ in self.stored)


def open_container(content: bytes) -> Container:
    """Take a file apart; nothing is inflated.

    Raises:
        ContainerError: it is damaged.
    """
    source = _Source(content)
    try:
        source.expect(_MAGIC)
        metadata = source.metadata()
        sync = source.take(len(_SYNC))
        stored = []
        while not source.at_end:
            count, length = source.long(), source.long()
            stored.append((count, source.take(length)))
            source.expect(sync)
        codec = metadata.get(_CODEC, NO_CODEC.encode()).decode()
        return Container(metadata[_SCHEMA].decode(), tuple(stored), codec)
    except ContainerError:
        raise
    except Exception as error:  # no schema, a header that is no text
        raise ContainerError(str(error)) from error


def join_containers(schema: str, containers: Sequence[Container], codec: str = NO_CODEC) -> bytes:
    """One file of all blocks as they are stored, all by `codec`, under a schema that describes the same bytes."""
    metadata = {_SCHEMA: schema, _CODEC: codec}
    parts = [_MAGIC, _long(len(metadata))]
    for text in (text for pair in metadata.items() for text in pair):
        parts += [_long(len(text.encode())), text.encode()]
    parts += [_long(0), _SYNC]
    for count, content in (block for container in containers for block in container.stored):
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
