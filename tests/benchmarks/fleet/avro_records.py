"""Manifests and manifest lists as plain records: read once, changed, written again with the same schema and codec."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro

OWN_KEYS = ("avro.schema", "avro.codec")


@dataclass(frozen=True)
class AvroRecords:
    """The content of one Avro file. `metadata`: the file's own, e.g. the partition spec of a manifest."""

    schema: Any
    metadata: dict[str, Any]
    codec: str
    records: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> AvroRecords:
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            metadata = {key: value for key, value in reader.metadata.items() if key not in OWN_KEYS}
            schema = fastavro.parse_schema(reader.writer_schema)
            return cls(schema, metadata, reader.codec, [dict(record) for record in reader])

    def write(self, path: Path, records: list[dict[str, Any]], **metadata: str) -> int:
        """Write a file of other records; returns its length."""
        out = io.BytesIO()
        fastavro.writer(out, self.schema, records, codec=self.codec, metadata={**self.metadata, **metadata})
        path.write_bytes(out.getbuffer())
        return out.tell()
