"""Decode many manifests at once into columns; the bytes of column statistics are skipped, not decoded.

An Avro record is the concatenation of its fields, so a nested record has the same bytes as more fields of the outer
record. Manifests of one schema are joined into one Avro container with such a flat schema. DataFusion then decodes the
requested fields, skips the others, and the fixed cost of a call is paid once for many manifests. A manifest with an
unusual layout is refused (`UnusualManifestError`); PyIceberg, the reference decoder, then reads it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestFile
from pyiceberg.types import DecimalType, PrimitiveType, UUIDType
from pyiceberg.utils.decimal import bytes_to_decimal

from compactor.iceberg.manifest_entries import CONTENT, DELETE_FILE_PATH_FIELD, PARTITION, Content, Status
from compactor.iceberg.manifest_lists import first_row_id
from compactor.manifests.avro_container import Container, ContainerError, join_containers, open_container
from compactor.manifests.avro_datafusion import read_avro
from compactor.manifests.columns import SCHEMA, EntryColumns, Partitions, live_runs
from compactor.partitions import PartitionLayout

DATA_FILE: Final = 2  # field ids of the spec's manifest_entry
LOWER_BOUNDS: Final = 125
UPPER_BOUNDS: Final = 128
REFERENCED_DATA_FILE: Final = 143
BLOB: Final = (144, 145)  # offset and length of a deletion vector
_WANTED: Final = {
    0: pa.int32(),  # status
    1: pa.int64(),  # snapshot_id
    3: pa.int64(),  # sequence_number
    134: pa.int32(),  # content
    100: pa.string(),  # file_path
    101: pa.string(),  # file_format
    103: pa.int64(),  # record_count
    104: pa.int64(),  # file_size_in_bytes
    131: pa.binary(),  # key_metadata
    135: pa.list_(pa.int32()),  # equality_ids
    140: pa.int32(),  # sort_order_id
    142: pa.int64(),  # first_row_id
    REFERENCED_DATA_FILE: pa.string(),
}
_REQUIRED: Final = frozenset({0, 100, 101, 103, 104})
_FORMATS: Final = frozenset(each.value.lower() for each in FileFormat)
_MOST_COMBINATIONS: Final = 2**62
_MOST_FIXED_BYTES: Final = 64 * 1024  # of one partition value; nulls take as many, so few rows could fill memory


class UnusualManifestError(Exception):
    """Reaction: **read it with PyIceberg**: the manifest has not the layout that this decoder expects."""


@dataclass(frozen=True)
class RawManifest:
    """One manifest: its entry in the manifest list, and the bytes of its file."""

    manifest: ManifestFile
    content: bytes


def decode_manifests(raws: Sequence[RawManifest], layouts: Mapping[int, PartitionLayout]) -> list[EntryColumns]:
    """The entries of each manifest, in order, with inherited values (spec: sequence number and first row id).

    Raises:
        UnusualManifestError: one of the manifests has another layout than expected.
    """
    try:
        containers = [open_container(raw.content) for raw in raws]
    except ContainerError as error:  # the reference decoder decides whether the file is damaged
        raise UnusualManifestError(str(error)) from error
    groups: dict[tuple[int, ManifestContent, str, str], list[int]] = defaultdict(list)
    for index, (raw, container) in enumerate(zip(raws, containers, strict=True)):
        manifest = raw.manifest
        groups[manifest.partition_spec_id, manifest.content, container.schema, container.codec].append(index)
    found: dict[int, EntryColumns] = {}
    for (spec_id, *_), indexes in groups.items():
        manifests = [raws[index].manifest for index in indexes]
        decoded = _decode(manifests, [containers[index] for index in indexes], layouts[spec_id])
        found.update(zip(indexes, decoded, strict=True))
    return [found[index] for index in range(len(raws))]


def _decode(
    manifests: Sequence[ManifestFile], containers: Sequence[Container], layout: PartitionLayout
) -> list[EntryColumns]:
    """Manifests of one schema, codec and content."""
    counts = [container.count for container in containers]
    try:
        flat = _FlatSchema.of(containers[0].schema)
        if not flat.partition.keys() >= set(layout.field_ids) or not flat.names.keys() >= _REQUIRED:
            raise UnusualManifestError("fields are missing or do not fit the partition spec")  # noqa: TRY301
        joined = join_containers(flat.text, containers, containers[0].codec)
        table = read_avro(joined, flat.wanted(manifests[0].content, layout))
        if table.num_rows != sum(counts):
            raise UnusualManifestError("the number of entries differs from the blocks' counts")  # noqa: TRY301
        return _columns(_Read(flat, table), manifests, counts, layout)
    except Exception as error:  # DataFusion raises any class: the reference decoder decides about damage
        raise UnusualManifestError(str(error)) from error


@dataclass(frozen=True)
class _FlatSchema:
    """A manifest's Avro schema with the fields of `data_file` and its partition as fields of the entry itself."""

    text: str
    names: Mapping[int, str]
    partition: Mapping[int, str]

    @classmethod
    def of(cls, schema: str) -> _FlatSchema:
        fields: list[dict[str, Any]] = []
        names: dict[int, str] = {}
        partition: dict[int, str] = {}
        plain = _PlainTypes()
        for path, kind in _flattened(json.loads(schema), ()):
            name = f"field_{len(fields)}"
            fields.append({"name": name, "type": plain.of(kind)})
            of_partition = path[:-1] == (DATA_FILE, PARTITION)
            if (partition if of_partition else names).setdefault(path[-1], name) != name:
                raise UnusualManifestError(f"two fields with the id {path[-1]}")
        text = json.dumps({"type": "record", "name": "flat_entry", "fields": fields})
        return cls(text, names, partition)

    def wanted(self, content: ManifestContent, layout: PartitionLayout) -> list[str]:
        """Names of the columns to decode; bounds and blobs only in manifests that may hold position deletes."""
        ids = [*_WANTED, *((LOWER_BOUNDS, UPPER_BOUNDS, *BLOB) if content == ManifestContent.DELETES else ())]
        wanted = [self.names[field_id] for field_id in ids if field_id in self.names]
        return [*wanted, *(self.partition[field_id] for field_id in layout.field_ids)]


def _flattened(record: Mapping[str, Any], above: tuple[int, ...]) -> list[tuple[tuple[int, ...], Any]]:
    """(path of field ids, type) of each field, with the nested records `data_file` and `partition` flattened."""
    found: list[tuple[tuple[int, ...], Any]] = []
    for field in record["fields"]:
        if "field-id" not in field:
            raise UnusualManifestError("a field without an id")
        path = (*above, int(field["field-id"]))
        if path in ((DATA_FILE,), (DATA_FILE, PARTITION)):
            if not isinstance(field["type"], dict) or field["type"].get("type") != "record":
                raise UnusualManifestError("data_file or partition is not a required record")
            found.extend(_flattened(field["type"], path))
        else:
            found.append((path, field["type"]))
    return found


class _PlainTypes:
    """Types without logical types, since the partition layout says what the bytes mean.

    Every use of a named type becomes a definition with a new name: Java defines a type once and refers to it; PyIceberg
    repeats the definition, which Avro forbids.
    """

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._count = 0

    def of(self, kind: Any) -> Any:
        if isinstance(kind, list):
            return [self.of(each) for each in kind]
        if isinstance(kind, str):
            return self.of(self._named[kind]) if kind in self._named else kind
        if "name" in kind:
            self._named[kind["name"]] = kind
            self._count += 1
            kind = {**kind, "name": f"type_{self._count}"}
        if kind["type"] == "array":
            return {"type": "array", "items": self.of(kind["items"])}
        if kind["type"] == "record":
            fields = [
                {"name": f"f{each.get('field-id', f'at_{at}')}", "type": self.of(each["type"])}
                for at, each in enumerate(kind["fields"])
            ]
            return {"type": "record", "name": kind["name"], "fields": fields}
        if kind["type"] == "fixed":
            if not isinstance(kind["size"], int) or not 0 <= kind["size"] <= _MOST_FIXED_BYTES:
                raise UnusualManifestError(f"values of {kind['size']} bytes each")
            return {"type": "fixed", "name": kind["name"], "size": kind["size"]}
        return self.of(kind["type"])


@dataclass(frozen=True)
class _Read:
    """Decoded columns, by field id; a field that the manifests do not have is null."""

    flat: _FlatSchema
    table: pa.Table

    def column(self, field_id: int) -> Any:
        name = self.flat.names.get(field_id)
        if name is None:
            return pa.nulls(self.table.num_rows, _WANTED[field_id])
        return self.named(name).cast(_WANTED[field_id])

    def named(self, name: str) -> Any:
        return self.table.column(name).combine_chunks()

    def bounds(self, field_id: int) -> Any:
        """The bound of the deleted file paths for each row; null if there is none."""
        name = self.flat.names.get(field_id)
        if name is None:
            return pa.nulls(self.table.num_rows, pa.binary())
        if name not in self.table.column_names:
            raise UnusualManifestError("position deletes in a manifest of data files")
        column = self.named(name)
        pairs = pc.list_flatten(column)
        rows = pc.list_parent_indices(column)
        key, value = (f"f{field_id + part}" for part in (1, 2))  # their field ids follow that of the map
        mine = pc.equal(pc.struct_field(pairs, key), DELETE_FILE_PATH_FIELD)
        values: list[bytes | None] = [None] * self.table.num_rows
        found = zip(
            pc.filter(rows, mine).to_pylist(), pc.filter(pc.struct_field(pairs, value), mine).to_pylist(), strict=True
        )
        for row, value in found:
            values[row] = value
        return pa.array(values, pa.binary())


def _columns(
    read: _Read, manifests: Sequence[ManifestFile], counts: Sequence[int], layout: PartitionLayout
) -> list[EntryColumns]:
    status = read.column(0).cast(pa.int8())
    content = pc.fill_null(read.column(134), 0).cast(pa.int8())
    records = read.column(103)
    fields = [read.named(read.flat.partition[field_id]) for field_id in layout.field_ids]
    index, partitions = _partitions(fields, sum(counts), layout)
    columns = {
        "status": status,
        "content": content,
        "snapshot_id": pc.coalesce(read.column(1), _repeated([each.added_snapshot_id for each in manifests], counts)),
        "data_sequence_number": _sequence_numbers(read.column(3), status, manifests, counts),
        "path": read.column(100),
        "file_format": pc.utf8_lower(read.column(101)),
        "partition": pa.array(index, pa.int32()),
        "records": records,
        "size": read.column(104),
        "sort_order_id": read.column(140),
        "encrypted": pc.is_valid(read.column(131)),
        "equality_ids": read.column(135),
        "applies_to": _applies_to(read, content),
        "first_row_id": _first_row_ids(read.column(142), status, records, manifests, counts),
        "blob": _blobs(read),
    }
    _check_codes(columns)
    rows = pa.record_batch([columns[name] for name in SCHEMA.names], SCHEMA)
    made, start = [], 0
    runs = live_runs(index, status.to_numpy(), content.to_numpy(), counts)
    for manifest, count, own_runs in zip(manifests, counts, runs, strict=True):
        prefix, own = _shortened(rows.slice(start, count))
        made.append(EntryColumns(manifest.manifest_path, own, partitions, own_runs, prefix=prefix))
        start += count
    return made


def _check_codes(columns: Mapping[str, Any]) -> None:
    """Check that codes are known: an unknown code means damage, or a format newer than this decoder."""
    for name, codes in (("status", len(Status)), ("content", len(CONTENT))):
        ends = pc.min_max(columns[name]).as_py()
        if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < codes:
            raise UnusualManifestError(f"an entry of unknown {name}")
    if not _FORMATS.issuperset(pc.unique(columns["file_format"]).to_pylist()):
        raise UnusualManifestError("a file of unknown format")


def _shortened(rows: pa.RecordBatch) -> tuple[str, pa.RecordBatch]:
    """The common start of all paths, and the rows with the rest; the first and last path in order suffice."""
    paths = rows.column("path")
    ends = pc.min_max(paths)
    prefix = commonprefix([ends["min"].as_py() or "", ends["max"].as_py() or ""])  # noqa: RUF071 - characters are meant
    if not prefix or paths.null_count:
        return "", rows
    place = SCHEMA.get_field_index("path")
    return prefix, rows.set_column(place, SCHEMA.field("path"), pc.utf8_slice_codeunits(paths, len(prefix)))


def _repeated(values: Sequence[int | None], counts: Sequence[int]) -> Any:
    indexes = np.repeat(np.arange(len(counts)), counts)
    return pa.array(values, pa.int64()).take(pa.array(indexes))


def _sequence_numbers(own: Any, status: Any, manifests: Sequence[ManifestFile], counts: Sequence[int]) -> Any:
    """An added entry inherits the manifest's number (spec: sequence number inheritance); 0 in format version 1."""
    of_manifest = _repeated([manifest.sequence_number or 0 for manifest in manifests], counts)
    inherits = pc.or_(pc.equal(of_manifest, 0), pc.equal(status, Status.ADDED.value))
    return pc.coalesce(own, pc.if_else(inherits, of_manifest, 0))


def _first_row_ids(
    own: Any, status: Any, records: Any, manifests: Sequence[ManifestFile], counts: Sequence[int]
) -> Any:
    """As `manifest_entries._inherit_row_ids`: live files without an id continue from the manifest's first id."""
    firsts = [first_row_id(manifest) for manifest in manifests]
    if not any(first is not None for first in firsts):
        return pa.nulls(len(own), pa.int64())
    takes = pc.and_(pc.is_null(own), pc.not_equal(status, Status.DELETED.value)).to_numpy(zero_copy_only=False)
    taken = np.where(takes, records.to_numpy(), 0)
    before = np.cumsum(taken) - taken
    starts = np.cumsum([0, *counts])[:-1]
    within = before - np.repeat(np.append(before, 0)[starts], counts)
    inherited = pc.add(_repeated(firsts, counts), pa.array(within, pa.int64()))
    has_ids = pc.is_valid(_repeated(firsts, counts))
    ids = pc.if_else(pa.array(takes), inherited, own)
    return pc.if_else(has_ids, ids, pa.scalar(None, pa.int64()))


def _applies_to(read: _Read, content: Any) -> Any:
    """The one data file that a position delete names: its reference, else equal bounds of the deleted file paths."""
    is_positions = pc.equal(content, CONTENT.index(Content.POSITION_DELETES))
    if not pc.any(is_positions).as_py():
        return pa.nulls(len(content), pa.string())
    named = read.column(REFERENCED_DATA_FILE)
    named = pc.if_else(pc.equal(named, ""), pa.scalar(None, pa.string()), named)
    lower, upper = read.bounds(LOWER_BOUNDS), read.bounds(UPPER_BOUNDS)
    equal = pc.fill_null(pc.equal(lower, upper), fill_value=False)
    bound = pc.if_else(equal, lower, pa.scalar(None, pa.binary())).cast(pa.string())
    return pc.if_else(is_positions, pc.coalesce(named, bound), pa.scalar(None, pa.string()))


def _blobs(read: _Read) -> Any:
    """[offset, length] of a deletion vector in its file; null for all other files."""
    names = [read.flat.names.get(field_id) for field_id in BLOB]
    kind = SCHEMA.field("blob").type
    if not all(name in read.table.column_names for name in names):
        return pa.nulls(read.table.num_rows, kind)
    offset, length = (read.named(str(name)).cast(pa.int64()) for name in names)
    there = pc.and_(pc.is_valid(offset), pc.is_valid(length)).to_numpy(zero_copy_only=False)
    pairs = np.stack([column.filter(pa.array(there)).to_numpy() for column in (offset, length)], axis=1)
    ends = np.concatenate([[0], 2 * np.cumsum(there)]).astype(np.int32)
    return pa.ListArray.from_arrays(ends, pairs.ravel(), type=kind, mask=pa.array(~there))


def _partitions(fields: Sequence[Any], rows: int, layout: PartitionLayout) -> tuple[npt.NDArray[Any], Partitions]:
    """The partition index of each row, and the distinct partitions: each value becomes text once, not once per row."""
    codes = np.zeros(rows, dtype=np.int64)
    combinations = 1
    for field in fields:
        distinct, field_codes = _distinct(field)
        combinations *= distinct
        if combinations > _MOST_COMBINATIONS:
            _, codes = np.unique(codes, return_inverse=True)
            combinations = (int(codes.max()) + 1 if rows else 1) * distinct
        codes = codes * distinct + field_codes
    _, firsts, index = np.unique(codes, return_index=True, return_inverse=True)
    values = [field.take(pa.array(firsts)).to_pylist() for field in fields]
    tuples = zip(*values, strict=True) if fields else [()] * len(firsts)
    texts = [
        layout.key(_decoded(kind, value) for kind, value in zip(layout.types, one, strict=True)).values
        for one in tuples
    ]
    merged: dict[str, int] = {}
    same = np.array([merged.setdefault(text, len(merged)) for text in texts], dtype=np.int64)
    return (same[index] if rows else index), Partitions(layout, list(merged))


def _distinct(field: Any) -> tuple[int, npt.NDArray[Any]]:
    """The number of distinct values, and the index of each row's value. Floats are compared by their bits."""
    if pa.types.is_floating(field.type):
        field = field.view(pa.int64() if pa.types.is_float64(field.type) else pa.int32())
    encoded = field.dictionary_encode(null_encoding="encode")
    return max(1, len(encoded.dictionary)), encoded.indices.to_numpy(zero_copy_only=False)


def _decoded(kind: PrimitiveType, value: Any) -> Any:
    """A partition value as PyIceberg decodes it."""
    if value is None:
        return None
    if isinstance(kind, DecimalType) and isinstance(value, bytes):
        return bytes_to_decimal(value, kind.scale)
    if isinstance(kind, UUIDType) and isinstance(value, bytes):
        return UUID(bytes=value)
    return value
