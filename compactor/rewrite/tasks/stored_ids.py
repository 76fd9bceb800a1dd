"""The field ids that a data or delete file stores, at any level: Parquet, Avro or ORC (Iceberg spec, Appendix A)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import orc

from compactor.errors import GiveUpError
from compactor.iceberg.manifest_entries import FileEntry
from compactor.manifests.avro_container import ContainerError, schema_of
from compactor.reasons import Reason
from compactor.rewrite.parquet.footer import SchemaField, read_footer
from compactor.rewrite.parquet.thrift import I32
from compactor.rewrite.reading.files import Ranges, named_errors
from compactor.rewrite.reading.schema import refused
from compactor.rewrite.reading.source_columns import children_in_arrow
from compactor.storage.byte_store import ByteStore

HEADER_BYTES: Final = 64 * 1024
"""Of an Avro file, at the first attempt: schemas are rarely larger."""
_AVRO_IDS: Final = frozenset({"field-id", "element-id", "key-id", "value-id"})
_ORC_ID: Final = b"iceberg.id"


def stored_ids(store: ByteStore, entry: FileEntry) -> frozenset[int]:
    """The field ids of all columns of a file that has ids of its own, at any level.

    Raises:
        RefusedError: `file_format`; `not_supported_by_arrow`.
        GiveUpError: the file is damaged or encrypted, or an error of the store.
        RetryError: the store does not answer.
    """
    read = _READERS.get(entry.file_format)
    if read is None:
        raise refused(Reason.FILE_FORMAT, f"{entry.path} is neither Parquet nor Avro nor ORC")
    return frozenset(read(store, entry.path, entry.size))


def _in_parquet(store: ByteStore, location: str, size: int) -> Iterator[int]:
    for element in read_footer(store, location, size).schema:
        field_id = element.get(SchemaField.FIELD_ID, I32)
        if field_id is not None and field_id >= 0:
            yield field_id


def _in_avro(store: ByteStore, location: str, size: int) -> list[int]:
    length = min(size, HEADER_BYTES)
    while True:
        try:
            return list(_avro_ids(json.loads(schema_of(store.read(location, 0, length)))))
        except (ContainerError, TypeError, ValueError) as error:
            if length == size:
                raise GiveUpError(f"{location} cannot be read: {error}", reason=Reason.UNREADABLE_DATA) from error
        length = min(size, 8 * length)


def _avro_ids(schema: Any) -> Iterator[int]:
    if isinstance(schema, list):
        for each in schema:
            yield from _avro_ids(each)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key in _AVRO_IDS:
                yield int(value)
            else:
                yield from _avro_ids(value)


def _in_orc(store: ByteStore, location: str, size: int) -> list[int]:
    with named_errors(location, Reason.UNREADABLE_FOOTER):
        return list(_orc_ids(orc.ORCFile(pa.PythonFile(Ranges(store, location, size), mode="r")).schema))


def _orc_ids(fields: Iterable[pa.Field]) -> Iterator[int]:
    for field in fields:
        field_id = (field.metadata or {}).get(_ORC_ID)
        if field_id is not None:
            yield int(field_id)
        yield from _orc_ids(children_in_arrow(field.type))


_READERS: Final[Mapping[str, Callable[[ByteStore, str, int], Iterable[int]]]] = {
    "parquet": _in_parquet,
    "avro": _in_avro,
    "orc": _in_orc,
}
