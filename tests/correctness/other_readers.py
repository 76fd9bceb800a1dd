"""Readers of other makes, in an environment of their own: DuckDB, Polars, ClickHouse and Daft read tables through
Iceberg's metadata, deletes included.

A process reads lines (reader, metadata file) and answers with rows as JSON, or the error. DuckDB's Iceberg extension
exists for few versions, so all versions are fixed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactor.locations import plain_path

DUCKDB = ("duckdb==1.5.5", "duckdb-extension-iceberg==1.5.5", "duckdb-extension-avro==1.5.5")
PACKAGES = (*DUCKDB, "polars==2.1.0", "chdb==4.4.0", "daft==0.7.26", "pyiceberg[pyarrow]==0.12.0")
READERS = ("duckdb", "polars", "clickhouse", "daft")
CONNECTED = """
import glob, json, os, sys

def connected():
    import duckdb, duckdb_extension_avro, duckdb_extension_iceberg
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    for module in (duckdb_extension_avro, duckdb_extension_iceberg):
        (path,) = glob.glob(os.path.dirname(module.__file__) + "/**/*.duckdb_extension", recursive=True)
        connection.execute(f"LOAD '{path}'")
    connection.execute("SET enable_progress_bar = false")
    return connection
"""
"""A connection of DuckDB with its Iceberg extension."""
SCRIPT = (
    CONNECTED
    + """
def by_duckdb(metadata, columns):
    return connected().execute(f"SELECT {', '.join(columns)} FROM iceberg_scan('{metadata}')").fetchall()

def by_polars(metadata, columns):
    import polars
    return polars.scan_iceberg(metadata).select(columns).collect().rows()

def by_clickhouse(metadata, columns):
    import chdb
    folder = os.path.dirname(os.path.dirname(metadata))
    name = os.path.relpath(metadata, folder)
    table = f"icebergLocal('{folder}', Parquet, SETTINGS iceberg_metadata_file_path = '{name}')"
    sql = f"SELECT {', '.join(columns)} FROM {table}"
    return [tuple(json.loads(line)) for line in str(chdb.query(sql, "JSONCompactEachRow")).splitlines()]

def by_daft(metadata, columns):
    import daft
    from pyiceberg.table import StaticTable
    found = daft.read_iceberg(StaticTable.from_metadata(metadata)).select(*columns).to_pydict()
    return list(zip(*(found[each] for each in columns)))

for line in sys.stdin:
    reader, metadata, columns = json.loads(line)
    try:
        rows = globals()["by_" + reader](metadata, columns)
        answer = {"rows": sorted([list(row) for row in rows], key=repr)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:400]}
    sys.__stdout__.write(json.dumps(answer) + "\\n")
    sys.__stdout__.flush()
"""
)


@dataclass(frozen=True)
class OtherReaders:
    """The process."""

    process: subprocess.Popen[str]

    def read(self, reader: str, metadata: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]] | str:
        """The rows, sorted; or why it cannot read them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([reader, plain_path(metadata), columns]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer.get("error") or [tuple(row) for row in answer["rows"]]


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """The Python of an environment with these packages, made in `folder` unless it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


@contextmanager
def other_readers(folder: Path) -> Iterator[OtherReaders]:
    """Start the process."""
    with subprocess.Popen(
        [environment(folder, PACKAGES), "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd="/",  # ClickHouse reads only files below the working folder
    ) as process:
        try:
            yield OtherReaders(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
