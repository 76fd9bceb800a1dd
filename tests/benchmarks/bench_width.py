"""Wide tables: which engine `auto` takes for 10, 200 and 2,000 columns, and what its files cost their readers.

Files are written by PyIceberg, rewritten by firnline and by Spark's `rewrite_data_files`, then opened and scanned with
three readers, interleaved; medians, as ratios to Spark's files.

    python -m tests.benchmarks.bench_width [10 200 2000] [--files 16] [--file-mb 8] [--rounds 7]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from compactor.commit.in_flight import InFlightRecords
from compactor.iceberg.tables import Catalogs
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from tests.benchmarks.machine import description

BYTES_PER_VALUE = 8
GOAL = 1.10


def make_table(catalogs: Catalogs, name: TableName, width: int, files: int, file_bytes: float) -> int:
    """A table of `width` columns of doubles that hardly compress; returns its snapshot."""
    names = [f"c{number:04d}" for number in range(width)]
    schema = pa.schema([(column, pa.float64()) for column in names])
    table = catalogs.catalog("lake").create_table(name.identifier, schema)
    rows = max(1, round(file_bytes / (width * BYTES_PER_VALUE)))
    random = np.random.default_rng(width)
    for _ in range(files):
        table.append(pa.table([random.random(rows) for _ in names], schema=schema))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return int(snapshot.snapshot_id)


def kept(session: Any, name: TableName, folder: Path) -> list[str]:
    """Copies of the table's files, so that it can be rolled back."""
    folder.mkdir()
    rows = session.sql(f"SELECT file_path FROM {name}.data_files ORDER BY file_path").collect()
    paths = [row.file_path.removeprefix("file:") for row in rows]
    return [str(shutil.copy(path, folder / f"{number}.parquet")) for number, path in enumerate(paths)]


def readers(session: Any, columns: list[str]) -> dict[str, Callable[[list[str]], Any]]:
    few = ", ".join(f"sum({name})" for name in columns[:3])  # a sum: a count, least or greatest stands in statistics

    def spark(files: list[str], *names: str) -> None:
        session.read.parquet(*files).select(*names).write.format("noop").mode("overwrite").save()

    return {
        "DuckDB, open": lambda files: duckdb.sql(f"SELECT count(*) FROM read_parquet({files})").fetchall(),
        "DuckDB, 3 columns": lambda files: duckdb.sql(f"SELECT {few} FROM read_parquet({files})").fetchall(),
        "DuckDB, all": lambda files: duckdb.sql(f"SELECT sum(columns(*)) FROM read_parquet({files})").fetchall(),
        "PyArrow, open": lambda files: [pq.read_metadata(path).num_rows for path in files],
        "PyArrow, 3 columns": lambda files: arrow_dataset.dataset(files).to_table(columns=columns[:3]),
        "PyArrow, all": lambda files: arrow_dataset.dataset(files).to_table(),
        "Spark, open": lambda files: session.read.parquet(*files).count(),
        "Spark, 3 columns": lambda files: spark(files, *columns[:3]),
        "Spark, all": lambda files: spark(files, "*"),
    }


def timed(read: Callable[[list[str]], Any], paths: list[str]) -> float:
    started = time.perf_counter()
    read(paths)
    return time.perf_counter() - started


def footer_bytes(paths: list[str]) -> int:
    return max(pq.read_metadata(path).serialized_size for path in paths)


def measure(bench: Any, width: int, options: argparse.Namespace, console: Console) -> None:
    session, catalogs, settings, folder = bench
    name = TableName("lake", ("db",), f"wide_{width}")
    snapshot = make_table(catalogs, name, width, options.files, options.file_mb * 1e6)
    cache = ManifestCache(1 << 26)
    records = InFlightRecords(f"file://{folder}/in-flight", Owner.this_process(), 60, time.time)
    rewriter = Rewriter(session, catalogs, cache, records, slots=SlotPool(2), lease_seconds=60, check_seconds=15)
    plan = plan_table(catalogs.load(name), settings.policy.for_table(name), cache, Request(force=True))
    result = rewriter.run(plan)
    ours = kept(session, name, folder / f"ours-{width}")
    session.sql(f"CALL lake.system.rollback_to_snapshot('db.{name.name}', {snapshot})")
    session.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{name.name}')").collect()
    theirs = kept(session, name, folder / f"theirs-{width}")
    console.print(f"\n{width} columns: {options.files} files of {plan.bytes / options.files / 1e6:.1f} MB")
    for group in result.groups:
        console.print(f"  engine {group.rewritten.engine} ({group.rewritten.reason}), {result.rewrite_seconds:.2f} s")
    for who, paths in (("firnline", ours), ("Spark", theirs)):
        metadata = pq.read_metadata(paths[0])
        size = sum(Path(path).stat().st_size for path in paths)
        console.print(
            f"  {who}: {len(paths)} files, {size / 1e6:.1f} MB, {metadata.num_row_groups} row groups, footer "
            f"{footer_bytes(paths):,} bytes = {100 * footer_bytes(paths) / size:.2f} %",
            highlight=False,
        )
    table = Table("reader", "firnline's files s", "Spark's files s", f"ratio (<= {GOAL})", title=f"{width} columns")
    for reader, read in readers(session, [f"c{number:04d}" for number in range(width)]).items():
        rounds = [  # in turn the first
            (timed(read, ours), timed(read, theirs)) if number % 2 else (timed(read, theirs), timed(read, ours))[::-1]
            for number in range(options.rounds + 1)
        ][1:]  # after one that warms up
        mine, other = (statistics.median(column) for column in zip(*rounds, strict=True))
        table.add_row(reader, f"{mine:.4f}", f"{other:.4f}", f"{mine / other:.2f}")
    console.print(table)
    equal = {
        str(duckdb.sql(f"SELECT count(*), sum(hash(columns(*))::hugeint) FROM read_parquet({files})").fetchall())
        for files in (ours, theirs)
    }
    assert len(equal) == 1, "contents differ"
    session.sql(f"DROP TABLE {name} PURGE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("widths", nargs="*", type=int, default=[10, 200, 2000])
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--file-mb", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        settings = Settings(
            catalogs={"lake": properties},
            spark={"master": "local[2]", "conf": {"spark.driver.memory": "6g", "spark.sql.codegen.maxFields": "100"}},
        )
        session = spark_session(settings, "firnline-width")
        console.print(description(folder))
        session.sql("CREATE NAMESPACE lake.db")
        for width in options.widths:
            measure((session, Catalogs(settings.catalogs), settings, folder), width, options, console)
        session.stop()


if __name__ == "__main__":
    main()
