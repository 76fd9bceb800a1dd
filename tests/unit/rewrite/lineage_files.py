"""Parquet files with and without row lineage, and the values that their rows inherit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.parquet.footer import ColumnChunk, Footer, read_footer
from compactor.rewrite.parquet.thrift import (
    LIST,
    STRUCT,
    Struct,
    ThriftList,
)
from compactor.rewrite.splice.checks import SpliceLimits, refusal
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.lineage_schema import LAST_UPDATED, ROW_ID
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput, splice
from compactor.storage.local_store import LocalByteStore

STORE = LocalByteStore()
ANY_SIZE = SpliceLimits(min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=100.0)
IDS = {"id": 1, "text": 2, "_row_id": ROW_ID, "_last_updated_sequence_number": LAST_UPDATED}
TYPES = {"text": pa.large_string()}
Values = Sequence[int | None] | None
INHERITED = RowLineage(1000, 7)


@dataclass(frozen=True)
class File:
    """A written file: rows, stored lineage (None: no such column), and the values of its manifest entry."""

    rows: int
    row_ids: Values = None
    sequences: Values = None
    inherited: RowLineage = INHERITED

    @property
    def expected(self) -> list[tuple[int | None, int | None]]:
        """(id, sequence number) of every row (spec: row lineage, reader requirements)."""
        first = self.inherited.first_row_id
        if first is None:
            return [(None, None)] * self.rows
        ids = self.row_ids or [None] * self.rows
        numbers = self.sequences or [None] * self.rows
        return [
            (first + row if ids[row] is None else ids[row], numbers[row] or self.inherited.data_sequence_number)
            for row in range(self.rows)
        ]


def arrow_table(file: File, order: Sequence[str] = tuple(IDS)) -> pa.Table:
    columns: dict[str, Sequence[Any] | None] = {
        "id": range(file.rows),
        "text": [f"t{row}" for row in range(file.rows)],
        "_row_id": file.row_ids,
        "_last_updated_sequence_number": file.sequences,
    }
    fields = [
        pa.field(name, TYPES.get(name, pa.int64()), metadata={"PARQUET:field_id": str(IDS[name])})
        for name in order
        if columns[name] is not None
    ]
    return pa.table([pa.array(columns[field.name], field.type) for field in fields], schema=pa.schema(fields))


def write(path: Path, file: File, order: Sequence[str] = tuple(IDS), **options: Any) -> Path:
    defaults = {
        "row_group_size": 25,
        "write_page_index": True,
        "max_rows_per_page": 10,
        "store_schema": False,
        "bloom_filter_options": {"id": {"ndv": 100, "fpp": 0.1}},
    }
    pq.write_table(arrow_table(file, order), path, **(defaults | options))
    return path


def join(path: Path, parts: Sequence[tuple[Path, RowLineage | None]], **more: Any) -> SplicedFile:
    inputs = [SpliceInput(str(part), part.stat().st_size, lineage) for part, lineage in parts]
    return splice(STORE, inputs, str(path), ANY_SIZE, **more)


def footer_of(path: Path) -> Footer:
    return read_footer(STORE, str(path), path.stat().st_size)


def lineage_of(path: Path) -> list[tuple[int | None, int | None]]:
    found = pq.read_table(path, columns=["_row_id", "_last_updated_sequence_number"], page_checksum_verification=True)
    return list(zip(*found.to_pydict().values(), strict=True))


def reason(*footers: Footer) -> str | None:
    found = refusal(footers, ANY_SIZE, lineage=True)
    assert found is None or found.sentence
    return found.reason if found else None


def chunks(footer: Footer) -> list[ColumnChunk]:
    return [chunk for group in footer.row_groups for chunk in group.chunks]


def structs(*values: Struct) -> tuple[int, ThriftList]:
    return LIST, ThriftList(STRUCT, values)


MERGED = File(60, [None if row % 3 else 500 - row for row in range(60)], [None, 3] * 30)
PLAIN = File(60, inherited=RowLineage(100, 5))
COMPLETE = File(60, [900 - row for row in range(60)], [4] * 60)


def with_last_chunk(footer: Footer, changes: dict[int, Any], metadata: dict[int, Any] | None = None) -> Footer:
    *groups, last = footer.tree.elements(4, STRUCT)
    *before, chunk = last.elements(1, STRUCT)
    if metadata:
        changes = changes | {3: (STRUCT, chunk.require(3, STRUCT).with_fields(metadata))}
    edited = last.with_fields({1: structs(*before, chunk.with_fields(changes))})
    return replace(footer, tree=footer.tree.with_fields({4: structs(*groups, edited)}))
