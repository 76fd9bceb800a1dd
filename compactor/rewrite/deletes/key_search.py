"""Find or count the rows that deletes delete: of data files only key columns are read, of row groups that can hold one.

Runs on an executor: plain values in, plain values out. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyroaring import BitMap64

from compactor.credentials.vended import VendedCredential
from compactor.iceberg.opaque_types import parsed_schema
from compactor.manifests.tails import of_all
from compactor.reasons import Refusal
from compactor.rewrite.deletes.equality_deletes import (
    EncodeInput,
    EqualityDeletes,
    Piece,
    check_same_deletes,
    compared_schema,
    deletes_memory,
    equality_refusal,
    positions_by_equality,
)
from compactor.rewrite.deletes.key_ranges import matching_row_groups
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, delete_refusal, deleted_positions
from compactor.rewrite.deletes.row_maps import packed
from compactor.rewrite.parquet.bloom_filter import BloomFilter
from compactor.rewrite.parquet.footer import bloom_filter_range
from compactor.rewrite.reading.files import FilePlan, FileReader, tables
from compactor.rewrite.reading.memory import HostMemory, this_host
from compactor.rewrite.reading.projection import Projection
from compactor.rewrite.reading.schema import RefusedError, written_schema
from compactor.storage.byte_store import ByteStore, OutputFile
from compactor.storage.opening import byte_store_for

FETCHED_WHOLE: Final = 256 * 1024
"""Bytes of a file up to which one request for all of it costs less than requests for its footer and key columns."""
EXCLUDES: Final = 0.99
"""Share of the values that a chunk does not hold that its bloom filter excludes, as writers set it by default."""
FEWEST_BITS: Final = 8
"""Bits of a bloom filter for each value of the chunk below which it excludes far fewer: its size was capped."""


@dataclass(frozen=True, slots=True)
class KeySearch:
    """Data files of one partition, with the equality deletes that apply to them.

    Attributes:
        inputs: In any order.
        schema_json: The table's Iceberg schema at the planned snapshot.
        partition_constants: (source field id, value) of identity partition fields, for files that lack the column.
        name_mapping_json: The table's `schema.name-mapping.default`, for files without field ids.
        storage: FileIO properties.
        vended: The credential, if the catalog vends it.
    """

    inputs: tuple[EncodeInput, ...]
    schema_json: str
    partition_constants: tuple[tuple[int, object], ...] = ()
    name_mapping_json: str | None = None
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    vended: VendedCredential | None = None


@dataclass(frozen=True, slots=True)
class FoundRows:
    """What a search found.

    Attributes:
        by_value: Packed positions of rows that equality deletes delete and position deletes do not, by data file.
        by_position: Packed positions that position deletes or a vector delete already, of the same data files.
        bytes_read: Of data files.
        reads: Requests for these bytes.
        row_groups: Of the data files.
        row_groups_read: Of which key columns were read.
    """

    by_value: Mapping[str, bytes]
    by_position: Mapping[str, bytes]
    bytes_read: int
    reads: int
    row_groups: int
    row_groups_read: int


class _Counted(ByteStore):
    """A byte store that counts what is read. It only reads."""

    def __init__(self, store: ByteStore) -> None:
        self._store = store
        self.bytes_read = self.reads = 0

    def size(self, location: str) -> int:
        return self._store.size(location)

    def read(self, location: str, offset: int, length: int) -> bytes:
        data = self._store.read(location, offset, length)
        self.bytes_read += len(data)
        self.reads += 1
        return data

    def create(self, location: str) -> OutputFile:
        raise AssertionError(location)

    def delete(self, location: str) -> None:
        raise AssertionError(location)

    def exists(self, location: str) -> bool:
        return self._store.exists(location)


def search_refusal(task: KeySearch) -> Refusal | None:
    """Why the deletes cannot be compared, by the schema and the formats of delete files alone; reads no file."""
    by_value = of_all(each.equality_deletes for each in task.inputs)
    by_position = of_all(each.position_deletes for each in task.inputs)
    return equality_refusal(parsed_schema(task.schema_json), by_value) or delete_refusal(by_position)


def search(task: KeySearch, host: HostMemory | None = None) -> FoundRows | Refusal:
    """Find the rows. Waits until `host` (by default this one) has the memory for the deletes.

    Raises:
        GiveUpError: a data file or delete file is damaged, or contradicts its manifest entry.
        RetryError: the store does not answer.
    """
    refusal = search_refusal(task)
    if refusal is not None:
        return refusal
    store = byte_store_for(task.inputs[0].location, dict(task.storage), task.vended)
    try:
        with (host or this_host()).reserved(deletes_memory(task.inputs)):
            return _Search(task, store).run()
    except RefusedError as error:
        return error.refusal


def count_deleted(task: KeySearch) -> int | Refusal:
    """The number of rows of the inputs that their deletes delete. Of files in Parquet where deletes compare values.

    Raises:
        GiveUpError: a data file or delete file is damaged, or contradicts its manifest entry.
        RetryError: the store does not answer.
    """
    refusal, rows = search_refusal(task), 0
    if refusal is not None:
        return refusal
    if any(file.equality_deletes for file in task.inputs):
        found = search(task)
        if isinstance(found, Refusal):
            return found
        rows = sum(len(BitMap64.deserialize(positions)) for positions in found.by_value.values())
    store = byte_store_for(task.inputs[0].location, dict(task.storage), task.vended)
    with this_host().reserved(deletes_memory(task.inputs)):
        by_position = deleted_positions(store, {file.location: file.position_deletes for file in task.inputs})
    return rows + sum(
        int(np.searchsorted(by_position.get(file.location, NO_POSITIONS), file.records)) for file in task.inputs
    )


class _Search:
    def __init__(self, task: KeySearch, store: ByteStore) -> None:
        self._task = task
        self._store = store
        self._counted = _Counted(store)
        schema = parsed_schema(task.schema_json)
        check_same_deletes(task.inputs)
        deletes = dict.fromkeys(of_all(file.equality_deletes for file in task.inputs))
        self._deletes = EqualityDeletes(store, schema, deletes)
        self._values = self._deletes.values
        mapping = None if task.name_mapping_json is None else list(parse_mapping_from_json(task.name_mapping_json))
        compared = written_schema(compared_schema(schema, self._deletes.field_ids), with_lineage=False)
        self._field_ids = tuple(each.field_id for each in compared.iceberg.fields)
        self._reader = FileReader(
            self._counted,
            compared,
            dict(task.partition_constants),
            mapping,
            whole_bytes=FETCHED_WHOLE,
        )
        self._groups = self._groups_read = 0

    def run(self) -> FoundRows:
        found = positions_by_equality(self._rows_to_compare(), self._deletes)
        hit = [file for file in self._task.inputs if file.location in found]
        known = deleted_positions(self._store, {file.location: file.position_deletes for file in hit})
        by_value, by_position = {}, {}
        for file in hit:
            before = known.get(file.location, NO_POSITIONS)
            new = np.setdiff1d(found[file.location], before, assume_unique=True)
            if len(new):
                by_value[file.location] = packed(new, file.records)
                by_position[file.location] = packed(before, file.records)
        counted = self._counted
        return FoundRows(by_value, by_position, counted.bytes_read, counted.reads, self._groups, self._groups_read)

    def _rows_to_compare(self) -> Iterator[Piece]:
        """The rows of row groups that may hold a deleted key."""
        for file in self._task.inputs:
            if not file.equality_deletes:
                continue
            opened, plan, projection = self._reader.open(file.location, file.size)
            metadata = opened.metadata
            file.check_rows(metadata.num_rows)
            chunks = _chunks(plan, projection, self._field_ids)
            groups = matching_row_groups(metadata, chunks, self._values, partial(self._may_hold, file))
            self._groups += metadata.num_row_groups
            self._groups_read += len(groups)
            for start, table in _rows_of(opened, file.location, plan.columns, groups):
                yield file, start, projection.apply(table)

    def _may_hold(self, file: EncodeInput, chunk: pq.ColumnChunkMetaData, values: Sequence[Any]) -> bool:
        """Ask the chunk's bloom filter, where reading it probably saves more than it costs."""
        if file.size <= FETCHED_WHOLE or not chunk.bloom_filter_offset:
            return True
        most = int(chunk.total_compressed_size * EXCLUDES ** len(values))
        if (chunk.bloom_filter_length or 0) >= most:
            return True
        at = bloom_filter_range(
            self._counted, file.location, chunk.bloom_filter_offset, chunk.bloom_filter_length or 0, file.size
        )
        if at is None or at.length >= most or at.length * 8 < FEWEST_BITS * chunk.num_values:
            return True
        bloom = BloomFilter.of(self._counted.read(file.location, at.offset, at.length))
        try:
            known = (chunk.statistics.min, chunk.statistics.max) if chunk.statistics.has_min_max else ()
        except (OverflowError, ValueError):  # Python has no such value
            return True
        if bloom is None or not all(bloom.may_hold(chunk.physical_type, [each]) for each in known):
            return True  # it does not even know the values that are there (or they are cut off): not to be trusted
        return bloom.may_hold(chunk.physical_type, values)


def _rows_of(
    file: pq.ParquetFile, location: str, columns: Sequence[str] | None, groups: Sequence[int]
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of some row groups, each table with the position of its first row in the file."""
    starts = np.cumsum([0, *(file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups))])
    for group in groups:
        position = int(starts[group])
        for table in tables(file, location, columns, [group]):
            yield position, table
            position += table.num_rows


def _chunks(plan: FilePlan, projection: Projection, field_ids: Sequence[int]) -> dict[int, int]:
    """Field ids of compared columns (`field_ids`: of the projection's columns) → index of their chunk in row groups.

    Columns that the file lacks or that need a conversion are left out.
    """
    return {
        field_id: leaf
        for field_id, column in zip(field_ids, projection.columns, strict=True)
        if column.position is not None and column.convert is None
        if (leaf := plan.sources[column.position].leaf) is not None
    }
