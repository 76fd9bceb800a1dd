"""PyIceberg's reader of Avro files, with what it lacks: an end to damage, and what writers may leave out.

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
    """PyIceberg's own, which does not read or step over what is not there.

    Its compiled decoder does: damaged lengths end the process. This one takes ten times as long.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._size = len(content)

    def skip(self, n: int) -> None:
        """Step over bytes.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= n <= self._size - self.tell():
            raise ValueError("it ends too early")
        super().skip(n)


class CompleteAvroFile(AvroFile[D]):
    """The records of an Avro file, all of them and nothing else, or an error.

    PyIceberg does not look whether bytes are left behind the records of a block, takes a file that is cut off for one
    that ends, an empty block for the end, a file without codec for compressed, and does not know timestamps in
    nanoseconds.
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
        self._decoder: Callable[[bytes], BinaryDecoder] = CarefulDecoder if careful else new_decoder
        self._size = self._block_size = 0

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            content = stream.read()
        self._size = len(content)
        self.decoder = self._decoder(content)
        self.header = self._read_header()
        meta = {_CODEC: "null", **dict(self.header.meta.items())}
        # As plain numbers, which is how partition values are wanted.
        self.header[_META] = {**meta, _SCHEMA: _NANOSECONDS.sub('"unit": "nanoseconds"', meta[_SCHEMA])}
        self.schema = self.header.get_schema()
        self.reader = self._reader()
        return self

    def _reader(self) -> Reader:
        return resolve_reader(self.schema, self.read_schema or self.schema, self.read_types, self.read_enums)

    def _read_block(self) -> int:
        """The next block that has records; EOFError where there is none."""
        while True:
            try:
                if self.block and self.decoder.read(SYNC_SIZE) != self.header.sync:
                    raise ValueError("the marker behind a block is missing")
                at_end = self.decoder.tell() == self._size
                records, content = (0, b"") if at_end else (self.decoder.read_int(), self.decoder.read_bytes())
            except EOFError:
                raise ValueError("it ends too early") from None
            if self.block and self.block.block_decoder.tell() != self._block_size:
                raise ValueError("bytes are left behind the records of a block")
            if at_end:
                raise EOFError
            codec = self.header.compression_codec()
            inflated = codec.decompress(content) if codec else content
            self.block, self._block_size = Block(self.reader, records, self._decoder(inflated)), len(inflated)
            if records:
                return records
