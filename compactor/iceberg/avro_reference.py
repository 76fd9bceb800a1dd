"""Read Avro files with PyIceberg, plus what it lacks: damage raises an error, a missing codec means no compression.

Source: Avro specification 1.12, "Object Container Files"; PyIceberg 0.12, `avro/file.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, Self, TypeVar

from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile, Block
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import StructProtocol

D = TypeVar("D", bound=StructProtocol)

_CODEC: Final = "avro.codec"
_SCHEMA: Final = "avro.schema"
_META: Final = 1  # position in the header
_NANOSECONDS: Final = re.compile(r'"logicalType"\s*:\s*"timestamp-nanos"')


class CarefulDecoder(StreamingBinaryDecoder):
    """PyIceberg's Python decoder with a bounds check, for files that may be damaged; ten times slower.

    PyIceberg's compiled decoder reads beyond the end of a damaged file, which can end the process.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._size = len(content)

    def skip(self, n: int) -> None:
        """Skip `n` bytes.

        Raises:
            ValueError: fewer bytes are left.
        """
        if not 0 <= n <= self._size - self.tell():
            raise ValueError("the file ends too early")
        super().skip(n)


class CompleteAvroFile(AvroFile[D]):
    """Reads exactly the records of an Avro file, or raises an error.

    PyIceberg's `AvroFile` does not notice bytes after the records of a block, reads a truncated file as complete, stops
    at an empty block, fails on a file without a codec, and does not know timestamps in nanoseconds. Its compiled
    decoder gets only whole blocks that were compressed: a damaged one fails before it is decoded.
    """

    def __init__(
        self,
        input_file: InputFile,
        read_schema: Schema,
        read_types: dict[int, Callable[..., StructProtocol]],
        read_enums: dict[int, Callable[..., Enum]],
        *,
        careful: bool = False,
    ) -> None:
        super().__init__(input_file, read_schema, read_types, read_enums)
        self._block_decoder: Callable[[bytes], BinaryDecoder] = CarefulDecoder if careful else new_decoder
        self._size = self._block_size = 0

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            content = stream.read()
        self._size = len(content)
        self.decoder = CarefulDecoder(content)
        self.header = self._read_header()
        meta = {_CODEC: "null", **dict(self.header.meta.items())}
        # Read timestamps in nanoseconds as plain numbers, as partition values are kept.
        self.header[_META] = {**meta, _SCHEMA: _NANOSECONDS.sub('"unit": "nanoseconds"', meta[_SCHEMA])}
        self.schema = self.header.get_schema()
        self.reader = self._reader()
        return self

    def _reader(self) -> Reader:
        return resolve_reader(self.schema, self.read_schema or self.schema, self.read_types, self.read_enums)

    def _read_block(self) -> int:
        """Read the next block with records; return their number. Raises EOFError at the end of the file."""
        records = 0
        while not records:
            if self.block and self.block.block_decoder.tell() != self._block_size:
                raise ValueError("a block has bytes after its last record")
            if self.decoder.tell() == self._size:
                raise EOFError
            records, content = self._read_stored()
            codec = self.header.compression_codec()
            inflated = codec.decompress(content) if codec else content
            decoder = self._block_decoder(inflated) if codec else CarefulDecoder(inflated)
            self.block, self._block_size = Block(self.reader, records, decoder), len(inflated)
        return records

    def _read_stored(self) -> tuple[int, bytes]:
        """The number of records of a whole block, and its bytes as they are stored."""
        try:
            records, content = self.decoder.read_int(), self.decoder.read_bytes()
            sync = self.decoder.read(SYNC_SIZE)
        except EOFError:
            raise ValueError("the file ends too early") from None
        if sync != self.header.sync:
            raise ValueError("the sync marker after a block is missing")
        return records, content
