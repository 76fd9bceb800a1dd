"""Row lineage as column chunks: copied, made from the inherited values, or encoded with PyArrow if a file stores some.

A spliced file gets a new `first_row_id`, so values that its rows inherited must be stored. Consecutive ids and a
constant sequence number take a few hundred bytes per row group.
Sources: Iceberg spec, row lineage (reader and writer requirements of V3); Iceberg Java's ParquetValueReaders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.rewrite.parquet.footer import (
    MAGIC,
    ColumnChunk,
    ColumnField,
    FileField,
    Footer,
    GroupField,
    SchemaField,
    footer_bytes,
    footer_in,
)
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, Struct, structs
from compactor.rewrite.splice.inherited_chunks import MadeChunk, inherited_chunk
from compactor.rewrite.splice.lineage_schema import (
    LAST_UPDATED,
    LINEAGE_ELEMENTS,
    LINEAGE_NAMES,
    ROW_ID,
    arrow_fields,
    lineage_element,
    lineage_leaves,
)
from compactor.storage.byte_store import ByteStore

_ALL_ROWS: Final = 1 << 40  # one row group; longer ones than Arrow writes are refused (checks.py)
_PARQUET_VERSION: Final = 1
_MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RowLineage:
    """Values that the rows of a data file inherit from its manifest entry.

    Attributes:
        first_row_id: `_row_id` of its first row. None: no ids were assigned (its snapshot is older than the table's
            upgrade to V3), and readers return null lineage for all its rows, even if the file holds values.
        data_sequence_number: `_last_updated_sequence_number` of rows without a stored one.
    """

    first_row_id: int | None
    data_sequence_number: int


@dataclass(frozen=True, slots=True)
class MissingLineage:
    """A lineage column of one row group that must be written.

    Attributes:
        field_id: Field id of the column.
        rows: Rows in the row group.
        first: The value that the row group's first row inherits; None: all rows are null.
        chunk: The file's own column chunk, if any; its values override inherited ones.
    """

    field_id: int
    rows: int
    first: int | None
    chunk: ColumnChunk | None

    @property
    def inherited(self) -> pa.Array:
        """The inherited value of each row. Raises as `check`."""
        if self.first is None:
            return pa.nulls(self.rows, pa.int64())
        self.check()
        if self.field_id == ROW_ID:
            return pa.array(np.arange(self.first, self.first + self.rows, dtype=np.int64))
        return pa.array(np.full(self.rows, self.first, dtype=np.int64))

    def check(self) -> None:
        """Check that the inherited values fit 64 bits.

        Raises:
            GiveUpError: reason `malformed_lineage`: they do not.
        """
        if self.first is not None and not 0 <= self.first <= _MAX_LONG - self.rows:
            raise GiveUpError(f"Row lineage cannot start at {self.first}.", reason=Reason.MALFORMED_LINEAGE)


GroupLineage = Mapping[int, ColumnChunk | MissingLineage]
"""The lineage columns of one row group, by field id: the chunk to copy, or the column to write."""


def group_lineages(footer: Footer, lineage: RowLineage) -> list[GroupLineage]:
    """The lineage of each row group with rows, in order.

    A chunk is copied if its schema element equals the output's and its statistics say that it has no null.
    """
    leaves = lineage_leaves(footer)
    as_is = {field_id for field_id in leaves if lineage_element(footer, field_id) == LINEAGE_ELEMENTS[field_id]}
    found: list[GroupLineage] = []
    position = 0
    for group in footer.filled_row_groups:
        chunks = group.chunks
        row_id = None if lineage.first_row_id is None else lineage.first_row_id + position
        sequence = None if lineage.first_row_id is None else lineage.data_sequence_number
        firsts = {ROW_ID: row_id, LAST_UPDATED: sequence}
        own: dict[int, ColumnChunk | MissingLineage] = {}
        for field_id, first in firsts.items():
            chunk = chunks[leaves[field_id]] if field_id in leaves and first is not None else None
            if chunk is not None and field_id in as_is and _is_complete(chunk, group.num_rows):
                own[field_id] = chunk
            else:
                own[field_id] = MissingLineage(field_id=field_id, rows=group.num_rows, first=first, chunk=chunk)
        found.append(own)
        position += group.num_rows
    return found


def _is_complete(chunk: ColumnChunk, rows: int) -> bool:
    return chunk.null_count == 0 and chunk.metadata.get(ColumnField.NUM_VALUES, I64) == rows


# --- reading ---


def _read_lineage(store: ByteStore, location: str, footer: Footer, missing: MissingLineage) -> pa.Array:
    """The column's values, one per row: the file's own, else the inherited ones.

    Raises:
        GiveUpError: reason `malformed_lineage`: the chunk cannot be decoded, or has a wrong number of values.
    """
    inherited = missing.inherited
    if missing.chunk is None:
        return inherited
    chunk, pages = missing.chunk, missing.chunk.pages
    element = lineage_element(footer, missing.field_id)
    if element is None:
        raise GiveUpError(f"{location} has no column {missing.field_id}.", reason=Reason.MALFORMED_LINEAGE)
    # Iceberg's readers ignore annotations of the integers (DuckDB writes INT_64): leave them out.
    kept = (SchemaField.TYPE, SchemaField.REPETITION, SchemaField.NAME)
    leaf = Struct({number: element.fields[number] for number in kept})
    root = Struct({SchemaField.NAME: (BINARY, b"schema"), SchemaField.NUM_CHILDREN: (I32, 1)})
    moved = chunk.moved(len(MAGIC) - pages.offset, None, None, None)
    group = Struct(
        {
            GroupField.COLUMNS: structs([moved]),
            GroupField.TOTAL_BYTE_SIZE: (I64, pages.length),
            GroupField.NUM_ROWS: (I64, missing.rows),
        }
    )
    tree = Struct(
        {
            FileField.VERSION: (I32, _PARQUET_VERSION),
            FileField.SCHEMA: structs([root, leaf]),
            FileField.NUM_ROWS: (I64, missing.rows),
            FileField.ROW_GROUPS: structs([group]),
            FileField.CREATED_BY: (BINARY, footer.created_by),
        }
    )
    file = MAGIC + store.read(location, pages.offset, pages.length) + footer_bytes(tree)
    try:
        own = pq.read_table(pa.BufferReader(file), page_checksum_verification=True).column(0).combine_chunks()
        return pc.coalesce(own, inherited)
    except MemoryError:  # of Arrow too: says nothing about the file
        raise
    except (pa.ArrowException, OSError) as error:
        raise GiveUpError(
            f"The row lineage of {location} cannot be read: {error}", reason=Reason.MALFORMED_LINEAGE
        ) from error


# --- writing ---


def made_chunks(
    store: ByteStore, location: str, footer: Footer, missing: Sequence[MissingLineage]
) -> dict[int, MadeChunk]:
    """The chunks of one row group's lineage columns that cannot be copied, by field id. Raises as `_read_lineage`."""
    found: dict[int, MadeChunk] = {}
    values: dict[int, pa.Array] = {}
    for column in missing:
        if column.first is None or column.chunk is not None:
            values[column.field_id] = _read_lineage(store, location, footer, column)
        else:
            column.check()
            found[column.field_id] = inherited_chunk(column.field_id, column.first, column.rows)
    return found | _make_chunks(values) if values else found


def _make_chunks(columns: Mapping[int, pa.Array]) -> dict[int, MadeChunk]:
    """Encode one row group's lineage columns (64-bit integers by field id, of equal length) as column chunks."""
    ids = list(columns)
    packed = [field_id for field_id in ids if columns[field_id].null_count == 0]
    table = pa.table(list(columns.values()), schema=pa.schema(arrow_fields(ids)))
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=_ALL_ROWS,
        store_schema=False,
        compression="zstd",
        write_page_index=True,
        use_dictionary=[LINEAGE_NAMES[field_id] for field_id in packed if field_id == LAST_UPDATED],
        column_encoding={LINEAGE_NAMES[field_id]: "DELTA_BINARY_PACKED" for field_id in packed if field_id == ROW_ID}
        or None,
    )
    file = sink.getvalue().to_pybytes()
    (group,) = footer_in(file).row_groups
    return {field_id: _made(file, chunk) for field_id, chunk in zip(ids, group.chunks, strict=True)}


def _made(file: bytes, chunk: ColumnChunk) -> MadeChunk:
    pages, column_index, offset_index = chunk.pages, chunk.column_index, chunk.offset_index
    if column_index is None or offset_index is None:
        raise AssertionError("PyArrow was asked for page indexes")
    return MadeChunk(
        chunk=chunk,
        data=file[pages.offset : pages.end],
        column_index=file[column_index.offset : column_index.end],
        offset_index=file[offset_index.offset : offset_index.end],
    )
