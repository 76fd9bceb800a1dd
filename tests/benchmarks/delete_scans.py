"""Scans of a table whose outputs hold deleted rows, beside the same rows without deletes, in three engines.

Two rewrites of the same small files: one as the settings say, one that decodes (`policy.carried_delete_ratio: 0`). Each
is a snapshot of the table, so every engine reads it through Iceberg's metadata, deletes included. DuckDB with its
Iceberg extension runs in an environment of its own, because the extension exists for few versions.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from compactor.iceberg.tables import Catalogs
from compactor.table_names import TableName
from tests.benchmarks.harness import rounds, show_pairs
from tests.conftest import Lake
from tests.correctness.other_readers import CONNECTED, DUCKDB, environment

ROUNDS = 5
GOAL = 1.10
DUCKDB_READER = (
    CONNECTED
    + """
import time
connection = connected()
for line in sys.stdin:
    metadata, snapshot = line.split()
    scan = f"iceberg_scan('{metadata}', snapshot_from_id = {snapshot})"
    started = time.perf_counter()
    rows = connection.execute(f"SELECT count(*), sum(hash(columns(*))) FROM {scan}").fetchone()
    print("read", time.perf_counter() - started, rows[0], flush=True)
"""
)


@dataclass(frozen=True)
class Rewritten:
    """Snapshots of one table: with deleted rows in its files, and the same rows without deletes."""

    name: TableName
    metadata: str
    carried: int
    clean: int
    rows: int


Read = Callable[[int], tuple[float, int]]
"""Scan a snapshot: seconds, and rows."""


def compare(lake: Lake, tables: Rewritten, console: Console) -> None:
    """Print the medians of interleaved scans of all columns."""
    title = f"scan of all columns of {tables.rows:,} rows, medians of {ROUNDS} interleaved rounds"
    with _duckdb(lake.folder, tables) as duckdb:
        readers: Mapping[str, Read] = {
            "DuckDB": duckdb,
            "PyArrow (PyIceberg)": lambda snapshot: _pyiceberg(lake.catalogs, tables.name, snapshot),
            "Spark": lambda snapshot: _spark(lake.session, tables.name, snapshot),
        }
        pairs = {name: _rounds(read, tables) for name, read in readers.items()}
    show_pairs(console, title, "with deletes", "without", GOAL, pairs)


def _rounds(read: Read, tables: Rewritten) -> tuple[list[float], ...]:
    """Seconds of both."""

    def after(_number: int, _name: str, _seconds: float, result: tuple[float, int]) -> float:
        seconds, rows = result
        assert rows == tables.rows, f"{rows} rows, not {tables.rows}"
        return seconds

    return tuple(rounds({"": lambda: read(tables.carried), " ": lambda: read(tables.clean)}, ROUNDS, after).values())


def _spark(session: Any, name: TableName, snapshot: int) -> tuple[float, int]:
    """Columns are hashed, so that all are read; the number of rows comes with them."""
    frame = session.read.option("snapshot-id", snapshot).table(str(name))
    started = time.perf_counter()
    row = frame.selectExpr("xxhash64(*) AS hash").selectExpr("count(*) AS rows", "bit_xor(hash)").collect()[0]
    return time.perf_counter() - started, row.rows


def _pyiceberg(catalogs: Catalogs, name: TableName, snapshot: int) -> tuple[float, int]:
    table = catalogs.catalog(name.catalog).load_table(name.identifier)
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in table.scan(snapshot_id=snapshot).to_arrow_batch_reader())
    return time.perf_counter() - started, rows


def _duckdb(folder: Path, tables: Rewritten) -> AbstractContextManager[Read]:
    @contextmanager
    def reader() -> Any:
        python = environment(folder / "duckdb", DUCKDB)
        with subprocess.Popen(
            [python, "-c", DUCKDB_READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            asked, answers = process.stdin, process.stdout

            def read(snapshot: int) -> tuple[float, int]:
                asked.write(f"{tables.metadata} {snapshot}\n")
                asked.flush()
                for line in answers:  # DuckDB prints lines of its own, e.g. of a slow query
                    if line.startswith("read "):
                        _, seconds, rows = line.split()
                        return float(seconds), int(rows)
                raise AssertionError(f"DuckDB ended: {process.wait()}")

            yield read
            asked.close()

    return reader()
