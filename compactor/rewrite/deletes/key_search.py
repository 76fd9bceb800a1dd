"""Find or count the rows that deletes delete: of data files only key columns are read, of row groups that can hold one.

Runs on an executor: plain values in, plain values out. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from compactor.manifests.tails import of_all
from compactor.reasons import Refusal
from compactor.rewrite.deletes.equality_deletes import (
    EncodeInput,
    EqualityDeletes,
    InputFiles,
    Piece,
    check_same_deletes,
    compared_schema,
    positions_by_equality,
)
from compactor.rewrite.deletes.key_ranges import matching_row_groups
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, Positions, delete_refusal, deleted_positions
from compactor.rewrite.deletes.row_maps import packed
from compactor.rewrite.parquet.bloom_filter import BloomFilter
from compactor.rewrite.parquet.footer import bloom_filter_range
from compactor.rewrite.reading.files import FilePlan, tables
from compactor.rewrite.reading.memory import HostMemory, this_host
from compactor.rewrite.reading.schema import RefusedError, written_schema
from compactor.storage.byte_store import ByteStore, OutputFile

FETCHED_WHOLE: Final = 256 * 1024
"""Bytes of a file up to which one request for all of it costs less than requests for its footer and key columns."""
EXCLUDES: Final = 0.99
"""Share of the values that a chunk does not hold that its bloom filter excludes, as writers set it by default."""
FEWEST_BITS: Final = 8
"""Bits of a bloom filter for each value of the chunk below which it excludes far fewer: its size was capped."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """What a search found.

    Attributes:
        by_value: Packed positions of rows that equality deletes delete and position deletes do not, by data file.
        by_position: Packed positions that position deletes or a vector delete already, of the same data files.
        bytes_read: Of data files.
        reads: Requests for these bytes.
        row_groups_read: Row groups of which key columns were read.
    """

    by_value: Mapping[str, bytes]
    by_position: Mapping[str, bytes]
    bytes_read: int
    reads: int
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


def search(files: InputFiles, host: HostMemory | None = None) -> FoundRows | Refusal:
    """Find the rows. Waits until `host` (by default this one) has the memory for the deletes.

    Raises:
        GiveUpError: a data file or delete file is damaged, or contradicts its manifest entry.
        RetryError: the store does not answer.
    """
    try:
        refusal = files.deletes_refusal()
        if refusal is not None:
            return refusal
        with (host or this_host()).reserved(files.deletes_memory):
            return _found(files)
    except RefusedError as error:
        return error.refusal


def _found(files: InputFiles) -> FoundRows:
    store = files.store_for(files.inputs[0].location)
    rows = KeyRows(files, store, FETCHED_WHOLE)
    found = rows.deleted()
    known = deleted_positions(store, {path: files.position_deletes[path] for path in found})
    by_value, by_position = {}, {}
    for file in files.inputs:
        before = known.get(file.location, NO_POSITIONS)
        new = np.setdiff1d(found.get(file.location, NO_POSITIONS), before, assume_unique=True)
        if len(new):
            by_value[file.location] = packed(new, file.records)
            by_position[file.location] = packed(before, file.records)
    return FoundRows(by_value, by_position, rows.store.bytes_read, rows.store.reads, rows.row_groups_read)


def count_deleted(files: InputFiles) -> int | Refusal:
    """The number of rows of the inputs that their deletes delete. Of files in Parquet where deletes compare values.

    Raises:
        GiveUpError: a data file or delete file is damaged, or contradicts its manifest entry.
        RetryError: the store does not answer.
    """
    rows = 0
    if files.equality_deletes:
        found = search(files)
        if isinstance(found, Refusal):
            return found
        rows = sum(len(BitMap64.deserialize(positions)) for positions in found.by_value.values())
    refusal = delete_refusal(of_all(files.position_deletes.values()))
    if refusal is not None:
        return refusal
    with this_host().reserved(files.deletes_memory):
        by_position = deleted_positions(files.store_for(files.inputs[0].location), files.position_deletes)
    return rows + sum(
        int(np.searchsorted(by_position.get(file.location, NO_POSITIONS), file.records)) for file in files.inputs
    )


class KeyRows:
    """The rows of data files that equality deletes delete. `whole_bytes`: as in `InputFiles.reader`."""

    def __init__(self, files: InputFiles, store: ByteStore, whole_bytes: int) -> None:
        """Read the deletes.

        Raises:
            RefusedError: `equality_deletes`: they cannot be compared, or a file lacks one of another.
        """
        check_same_deletes(files.inputs)
        self.store = _Counted(store)
        self._files = files
        self._whole_bytes = whole_bytes
        self._deletes = EqualityDeletes(store, files.schema, files.equality_deletes)
        self._compared = written_schema(compared_schema(files.schema, self._deletes.field_ids), with_lineage=False)
        self.row_groups_read = 0

    def deleted(self) -> dict[str, Positions]:
        """Their positions by data file, ascending; files that lose none are left out.

        Raises:
            GiveUpError: a data file is unreadable.
        """
        return positions_by_equality(self._rows_to_compare(), self._deletes)

    def _rows_to_compare(self) -> Iterator[Piece]:
        """The rows of row groups that may hold a deleted key."""
        reader, keys = self._files.reader(self.store, self._compared, self._whole_bytes), self._deletes.values
        field_ids = [each.field_id for each in self._compared.iceberg.fields]
        for file in self._files.inputs:
            if not file.equality_deletes:
                continue
            opened, plan = reader.open(file.location, file.size)
            file.check_rows(opened.metadata.num_rows)
            groups = matching_row_groups(opened.metadata, _chunks(plan, field_ids), keys, partial(self._may_hold, file))
            self.row_groups_read += len(groups)
            for start, table in _rows_of(opened, file.location, plan.columns, groups):
                yield file, start, plan.projection.apply(table)

    def _may_hold(self, file: EncodeInput, chunk: pq.ColumnChunkMetaData, values: Sequence[Any]) -> bool:
        """Ask the chunk's bloom filter, where reading it probably saves more than it costs."""
        if file.size <= self._whole_bytes or not chunk.bloom_filter_offset:
            return True
        most = int(chunk.total_compressed_size * EXCLUDES ** len(values))
        if (chunk.bloom_filter_length or 0) >= most:
            return True
        at = bloom_filter_range(
            self.store, file.location, chunk.bloom_filter_offset, chunk.bloom_filter_length or 0, file.size
        )
        if at is None or at.length >= most or at.length * 8 < FEWEST_BITS * chunk.num_values:
            return True
        bloom = BloomFilter.of(self.store.read(file.location, at.offset, at.length))
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


def _chunks(plan: FilePlan, field_ids: Sequence[int]) -> dict[int, int]:
    """Field ids of compared columns (`field_ids`: of the projection's columns) → index of their chunk in row groups.

    Columns that the file lacks or that need a conversion are left out.
    """
    return {
        field_id: leaf
        for field_id, column in zip(field_ids, plan.projection.columns, strict=True)
        if column.position is not None and column.convert is None
        if (leaf := plan.sources[column.position].leaf) is not None
    }
