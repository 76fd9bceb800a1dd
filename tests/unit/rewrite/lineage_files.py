"""Parquet files with and without row lineage, and the values that their rows inherit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.parquet.footer import ColumnChunk, Footer
from compactor.rewrite.parquet.thrift import STRUCT, Field
from compactor.rewrite.splice.checks import refusal
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.lineage_schema import LAST_UPDATED, ROW_ID
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput, splice
from tests.unit.rewrite.encode_support import column
from tests.unit.rewrite.splice_files import ANY_SIZE, LAYOUT, STORE, with_chunk

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
    fields = [column(name, TYPES.get(name, pa.int64()), IDS[name]) for name in order if columns[name] is not None]
    return pa.table([pa.array(columns[field.name], field.type) for field in fields], schema=pa.schema(fields))


def write(path: Path, file: File, order: Sequence[str] = tuple(IDS), **options: Any) -> Path:
    pq.write_table(arrow_table(file, order), path, **(LAYOUT | options))
    return path


def join(path: Path, parts: Sequence[tuple[Path, RowLineage | None]], **more: Any) -> SplicedFile:
    inputs = [SpliceInput(str(part), part.stat().st_size, lineage) for part, lineage in parts]
    return splice(STORE, inputs, str(path), ANY_SIZE, **more)


def lineage_of(path: Path) -> list[tuple[int | None, int | None]]:
    found = pq.read_table(path, columns=["_row_id", "_last_updated_sequence_number"], page_checksum_verification=True)
    return list(zip(*found.to_pydict().values(), strict=True))


def reason(*footers: Footer) -> str | None:
    found = refusal(footers, ANY_SIZE, lineage=True)
    assert found is None or found.sentence
    return found.reason if found else None


def chunks(footer: Footer) -> list[ColumnChunk]:
    return [chunk for group in footer.row_groups for chunk in group.chunks]


MERGED = File(60, [None if row % 3 else 500 - row for row in range(60)], [None, 3] * 30)
PLAIN = File(60, inherited=RowLineage(100, 5))
COMPLETE = File(60, [900 - row for row in range(60)], [4] * 60)


def with_last_chunk(footer: Footer, changes: dict[int, Field], metadata: dict[int, Field] | None = None) -> Footer:
    return with_chunk(
        footer,
        lambda chunk: chunk.with_fields(
            changes | {3: (STRUCT, chunk.require(3, STRUCT).with_fields(metadata))} if metadata else changes
        ),
        column=-1,
    )
