"""Small Parquet files to splice, and footers that are edited as a test says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.footer import Footer, footer_bytes, read_footer
from compactor.rewrite.parquet.thrift import BINARY, STRUCT, Field, Struct, structs
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.splice import SpliceInput, splice
from compactor.storage.byte_store import OutputFile
from compactor.storage.local_store import LocalByteStore
from tests.unit.rewrite.encode_support import column

STORE = LocalByteStore()
ANY_SIZE = SpliceLimits(min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=100.0)
ROWS = 60


def table(first: int, rows: int = ROWS) -> pa.Table:
    schema = pa.schema([column("id", pa.int64(), 1), column("text", pa.string(), 2), column("part", pa.int32(), 3)])
    ids = range(first, first + rows)
    return pa.table([list(ids), [f"t{i}" for i in ids], [i % 3 for i in ids]], schema=schema)


LAYOUT: dict[str, Any] = {
    "row_group_size": 25,
    "write_page_index": True,
    "max_rows_per_page": 10,
    "store_schema": False,
    "bloom_filter_options": {"id": {"ndv": 100, "fpp": 0.1}},
}


def write(path: Path, first: int = 0, rows: int = ROWS, **options: Any) -> Path:
    filters = {name: {"ndv": 100, "fpp": 0.1} for name in ("id", "part")}
    pq.write_table(table(first, rows), path, **(LAYOUT | {"bloom_filter_options": filters} | options))
    return path


def footer_of(path: Path) -> Footer:
    return read_footer(STORE, str(path), path.stat().st_size)


def join(folder: Path, *paths: Path, limits: SpliceLimits = ANY_SIZE, **more: Any) -> Any:
    inputs = [SpliceInput(str(path), path.stat().st_size) for path in paths]
    return splice(STORE, inputs, str(folder / "out.parquet"), limits, **more)


def write_footer(path: Path, tree: Struct) -> None:
    """Replace the footer of a file, not its pages."""
    path.write_bytes(path.read_bytes()[: footer_of(path).data_end] + footer_bytes(tree))


def noted_copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """All ranges that are copied from now on."""
    found: list[tuple[str, int, int]] = []
    real = LocalByteStore.create

    def create(store: LocalByteStore, location: str) -> OutputFile:
        file = real(store, location)
        copy = file.copy_range
        file.copy_range = lambda *arguments: (found.append(arguments), copy(*arguments))[1]  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(LocalByteStore, "create", create)
    return found


def with_fields(footer: Footer, changes: dict[int, Field]) -> Footer:
    return replace(footer, tree=footer.tree.with_fields(changes))


def with_chunk(footer: Footer, edit: Callable[[Struct], Struct], column: int = 1) -> Footer:
    """The footer with one column chunk of the last row group edited."""
    *groups, last = footer.tree.elements(4, STRUCT)
    chunks = list(last.elements(1, STRUCT))
    chunks[column] = edit(chunks[column])
    return with_fields(footer, {4: structs([*groups, last.with_fields({1: structs(chunks)})])})


def with_metadata(footer: Footer, changes: dict[int, Field], column: int = 1) -> Footer:
    return with_chunk(
        footer, lambda chunk: chunk.with_fields({3: (STRUCT, chunk.require(3, STRUCT).with_fields(changes))}), column
    )


def with_schema(footer: Footer, edit: Callable[[Struct], Struct], element: int = 2) -> Footer:
    elements = list(footer.schema)
    elements[element] = edit(elements[element])
    return with_fields(footer, {2: structs(elements)})


def with_key_values(footer: Footer, **pairs: str) -> Footer:
    entries = [Struct({1: (BINARY, k.encode()), 2: (BINARY, v.encode())}) for k, v in pairs.items()]
    return with_fields(footer, {5: structs(entries)})
