"""Helpers of the tests of `encode`: Parquet files with field ids, output tasks, and reading back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from compactor.rewrite.deletes.equality_deletes import EncodeInput, InputFiles
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.encode.encode import EncodeTask, encode
from compactor.rewrite.encode.writer import EncodedFile
from tests.unit.failing import reason_of

FIELD_ID = b"PARQUET:field_id"
IDS = Schema(NestedField(1, "id", "long", required=True))


def column(name: str, arrow: pa.DataType, field_id: int | None, *, nullable: bool = True) -> pa.Field:
    metadata = None if field_id is None else {FIELD_ID: str(field_id).encode()}
    return pa.field(name, arrow, nullable=nullable, metadata=metadata)


def write(path: Path, table: pa.Table, **options: Any) -> EncodeInput:
    pq.write_table(table, path, **{"store_schema": False} | options)
    return as_input(path)


def as_input(path: Path, **details: Any) -> EncodeInput:
    rows = pq.ParquetFile(path).metadata.num_rows
    return EncodeInput(**{"location": str(path), "size": path.stat().st_size, "records": rows} | details)


def deletes(path: Path, rows: Sequence[tuple[str, int]], **options: Any) -> DeleteFile:
    schema = pa.schema(
        [
            column("file_path", pa.string(), 2147483546, nullable=False),
            column("pos", pa.int64(), 2147483545, nullable=False),
        ]
    )
    table = pa.table([[name for name, _ in rows], [position for _, position in rows]], schema=schema)
    pq.write_table(table, path, **{"store_schema": False} | options)
    return DeleteFile(str(path), path.stat().st_size)


def encode_task(folder: Path, schema: Schema, inputs: Sequence[EncodeInput], **details: Any) -> EncodeTask:
    of_files = {name: details.pop(name) for name in ("name_mapping_json", "partition_constants") if name in details}
    files = InputFiles(tuple(inputs), schema.model_dump_json(), **of_files)
    return EncodeTask(files, **{"output": str(folder / "out.parquet")} | details)


def encoded(work: EncodeTask) -> tuple[EncodedFile, pa.Table]:
    result = encode(work)
    assert isinstance(result, EncodedFile), result
    table = pq.ParquetFile(work.output).read()
    assert table.num_rows == result.rows == result.metrics.record_count
    return result, table


def ids_file(path: Path, first: int, rows: int, **options: Any) -> EncodeInput:
    schema = pa.schema([column("id", pa.int64(), 1, nullable=False)])
    return write(path, pa.table([np.arange(first, first + rows)], schema=schema), **options)


def refused(work: Any) -> str:
    reason = reason_of(encode(work))
    assert not Path(work.output).exists()
    return reason
