"""Small Parquet files to splice, and footers that are edited as a test says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.parquet.thrift import (
    BINARY,
    LIST,
    STRUCT,
    Struct,
    ThriftList,
)
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.splice import SpliceInput, splice
from compactor.storage.local_store import LocalByteStore

STORE = LocalByteStore()
ANY_SIZE = SpliceLimits(min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=100.0)
ROWS = 60


def table(first: int, rows: int = ROWS) -> pa.Table:
    schema = pa.schema(
        [
            pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
            for number, (name, kind) in enumerate([("id", pa.int64()), ("text", pa.string()), ("part", pa.int32())], 1)
        ]
    )
    ids = range(first, first + rows)
    return pa.table([list(ids), [f"t{i}" for i in ids], [i % 3 for i in ids]], schema=schema)


def write(path: Path, first: int = 0, rows: int = ROWS, **options: Any) -> Path:
    settings = {
        "row_group_size": 25,
        "write_page_index": True,
        "max_rows_per_page": 10,
        "store_schema": False,
        "bloom_filter_options": {"id": {"ndv": 100, "fpp": 0.1}, "part": {"ndv": 100, "fpp": 0.1}},
    }
    pq.write_table(table(first, rows), path, **(settings | options))
    return path


def footer_of(path: Path) -> Footer:
    return read_footer(STORE, str(path), path.stat().st_size)


def join(folder: Path, *paths: Path, limits: SpliceLimits = ANY_SIZE, **more: Any) -> Any:
    inputs = [SpliceInput(str(path), path.stat().st_size) for path in paths]
    return splice(STORE, inputs, str(folder / "out.parquet"), limits, **more)


def with_fields(footer: Footer, changes: dict[int, tuple[int, Any]]) -> Footer:
    return replace(footer, tree=footer.tree.with_fields(changes))


def with_chunk(footer: Footer, edit: Callable[[Struct], Struct], column: int = 1) -> Footer:
    """The footer with one column chunk of the last row group edited."""
    groups = list(footer.tree.elements(4, STRUCT))
    chunks = list(groups[-1].elements(1, STRUCT))
    chunks[column] = edit(chunks[column])
    groups[-1] = groups[-1].with_fields({1: (LIST, ThriftList(STRUCT, chunks))})
    return with_fields(footer, {4: (LIST, ThriftList(STRUCT, groups))})


def with_metadata(footer: Footer, changes: dict[int, tuple[int, Any]], column: int = 1) -> Footer:
    return with_chunk(
        footer, lambda chunk: chunk.with_fields({3: (STRUCT, chunk.require(3, STRUCT).with_fields(changes))}), column
    )


def with_schema(footer: Footer, edit: Callable[[Struct], Struct], element: int = 2) -> Footer:
    elements = list(footer.schema)
    elements[element] = edit(elements[element])
    return with_fields(footer, {2: (LIST, ThriftList(STRUCT, elements))})


def with_key_values(footer: Footer, **pairs: str) -> Footer:
    entries = [Struct({1: (BINARY, k.encode()), 2: (BINARY, v.encode())}) for k, v in pairs.items()]
    return with_fields(footer, {5: (LIST, ThriftList(STRUCT, entries))})
