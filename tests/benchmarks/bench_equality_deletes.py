"""Measure what equality delete files cost a scan of one partition, as a ratio to the same data without them.

Iceberg's Java writers write the delete files, as Flink does. Each number of delete files is one snapshot of a table.
Each round scans all snapshots in turn, so that a slow phase of the machine affects all of them. Every scan loads and
plans the table again; Spark's executor cache of deletes is on, as by default, and empty. `sum` reads one column, `all`
reads every column. `cpu` is the processor time of Spark's JVM, in steps of 10 ms: it varies less on a busy machine.
The answer of PyIceberg for the same table is printed too.

    python -m tests.benchmarks.bench_equality_deletes [--tables 2/60 20/2 200/8] [--deletes 1 3 10 30 100]
        [--keys 250] [--keys-at-ten 25 2500 25000] [--rounds 7] [--output json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from rich.console import Console
from rich.table import Table

from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from tests.benchmarks.machine import description
from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter

BYTES_PER_ROW = 100
TEN = 10
WARM_UP = 2
EXECUTOR_CACHE = "spark.sql.iceberg.executor-cache.enabled"  # on in Spark, off in sessions of firnline
USER_TICKS, SYSTEM_TICKS = 11, 12  # of /proc/PID/stat, counted from the field after the name
SCANS = {
    "sum": "SELECT sum(amount) FROM {}",
    "all": "SELECT sum(amount), max(day), count(kind), max(note), max(code), sum(id) FROM {}",
}


@dataclass(frozen=True)
class Measured:
    """Medians of the scans of one snapshot; the ratios are to the snapshot without delete files."""

    megabytes: float
    data_files: int
    delete_files: int
    keys_each: int
    scan: str
    seconds: float
    cpu_seconds: float
    ratio: float
    cpu_ratio: float


@dataclass(frozen=True)
class TableState:
    """A snapshot of a table with so many equality delete files of so many keys."""

    table: str
    delete_files: int
    keys_each: int
    snapshot_id: int


def main() -> None:
    options = _options()
    console = Console(width=120, stderr=options.output == "json")
    with tempfile.TemporaryDirectory() as folder:
        lake = _lake(Path(folder), cached=not options.without_cache)
        console.print(description(Path(folder)))
        found: list[Measured] = []
        for megabytes, files in options.tables:
            table = f"db.mb_{round(megabytes)}"
            rows = _make(lake, table, megabytes, files)
            states = list(_states(lake, table, rows, options))
            written = lake.sql(f"SELECT file_size_in_bytes AS size FROM lake.{table}.data_files")
            size = sum(file.size for file in written) / 1e6
            found += _measure(lake, states, size, len(written), options.rounds)
            console.print(f"PyIceberg, with delete files: {_pyiceberg(lake, table)}")
            console.print(_shown([each for each in found if each.megabytes == size]))
        if options.output == "json":
            print(json.dumps([asdict(each) for each in found]))
        lake.session.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = [(2.0, 60), (20.0, 2), (200.0, 8)]
    parser.add_argument("--tables", type=_size, nargs="+", default=tables, help="Megabytes/data files.")
    parser.add_argument("--deletes", type=int, nargs="+", default=[1, 3, 10, 30, 100])
    parser.add_argument("--keys", type=int, default=250, help="Keys in a delete file.")
    parser.add_argument("--keys-at-ten", type=int, nargs="*", default=[25, 2500, 25000])
    parser.add_argument("--without-cache", action="store_true", help="Each task reads the delete files by itself.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", choices=["text", "json"], default="text")
    return parser.parse_args()


def _size(text: str) -> tuple[float, int]:
    megabytes, _, files = text.partition("/")
    return float(megabytes), int(files)


def _lake(folder: Path, *, cached: bool) -> Lake:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/warehouse"}
    settings = Settings(catalogs={"lake": properties}, spark={"master": "local[2]"})
    session = spark_session(settings, "firnline-bench-equality-deletes")
    session.conf.set(EXECUTOR_CACHE, str(cached).lower())
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    return Lake(folder, settings, session, Catalogs(settings.catalogs))


def _make(lake: Lake, table: str, megabytes: float, files: int) -> int:
    """One partition of so many files of events, keyed by `id`; how many rows."""
    rows = int(megabytes * 1e6 / BYTES_PER_ROW)
    lake.sql(
        f"CREATE TABLE lake.{table} (id bigint, day int, kind string, code string, note string, amount double, "
        "part int) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('format-version'='2', 'write.distribution-mode'='none')"
    )
    lake.sql(
        f"INSERT INTO lake.{table} SELECT id, cast(id % 365 AS int), concat('kind-', id % 20), "
        "substr(sha1(cast(id AS string)), 1, 16), substr(sha2(cast(id + 1 AS string), 512), 1, 110), "
        f"rand(1) * 1000, 0 FROM range(0, {rows}, 1, {files})"
    )
    return rows


def _states(lake: Lake, table: str, rows: int, options: argparse.Namespace) -> Iterator[TableState]:
    """The table without delete files, then with ever more of them, then ten of other sizes."""
    random = np.random.default_rng(1)
    clean = _head(lake, table)
    yield TableState(table, 0, options.keys, clean)
    written = 0
    for count in sorted(options.deletes):
        while written < count:
            _delete(lake, table, random.integers(0, rows, options.keys))
            written += 1
        yield TableState(table, count, options.keys, _head(lake, table))
    for keys in options.keys_at_ten:
        lake.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {clean})")
        for _ in range(TEN):
            _delete(lake, table, random.integers(0, rows, keys))
        yield TableState(table, TEN, keys, _head(lake, table))


def _head(lake: Lake, table: str) -> int:
    return int(lake.view(table).metadata.current_snapshot_id or 0)


def _delete(lake: Lake, table: str, keys: Any) -> None:
    """One equality delete file in one commit."""
    writer = JavaWriter(lake, table)
    kinds = schema_to_pyarrow(writer.schema)
    columns = {field.name: pa.nulls(len(keys), field.type) for field in kinds}
    columns["id"] = pa.array(keys)
    columns["part"] = pa.array(np.zeros(len(keys), dtype=np.int32))
    writer.delete_equal(pa.table(columns, schema=kinds), ["id"])


def _measure(lake: Lake, states: list[TableState], size: float, files: int, rounds: int) -> list[Measured]:
    """All states in turn, round after round; the first two rounds warm up and are left out."""
    taken: dict[tuple[TableState, str], list[tuple[float, float]]] = {
        (state, scan): [] for state in states for scan in SCANS
    }
    for number in range(rounds + WARM_UP):
        for (state, scan), times in taken.items():
            one = _scan(lake, state, SCANS[scan])
            if number >= WARM_UP:
                times.append(one)
    medians = {
        key: (statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times))
        for key, times in taken.items()
    }

    def measured(state: TableState, scan: str) -> Measured:
        (wall, cpu), (bare_wall, bare_cpu) = medians[state, scan], medians[states[0], scan]
        return Measured(
            size, files, state.delete_files, state.keys_each, scan, wall, cpu, wall / bare_wall, cpu / bare_cpu
        )

    return [measured(*key) for key in medians]


def _scan(lake: Lake, state: TableState, query: str) -> tuple[float, float]:
    """Seconds on the clock and of the JVM's processor time, of one scan that finds no delete file in memory."""
    jvm = lake.session._jvm
    cache = jvm.org.apache.iceberg.spark.SparkExecutorCache.get()
    if cache is not None:
        cache.invalidate(f"lake.{state.table}")
    lake.sql(f"REFRESH TABLE lake.{state.table}")
    jvm.System.gc()
    started, cpu = time.perf_counter(), _cpu_seconds(jvm)
    lake.sql(query.format(f"lake.{state.table} VERSION AS OF {state.snapshot_id}"))
    return time.perf_counter() - started, _cpu_seconds(jvm) - cpu


def _cpu_seconds(jvm: Any) -> float:
    """Processor time of Spark's JVM so far."""
    name = str(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getName())
    fields = Path(f"/proc/{name.partition('@')[0]}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")


def _pyiceberg(lake: Lake, table: str) -> str:
    try:
        return f"{len(lake.catalog.load_table(lake.name(table).identifier).scan().to_arrow())} rows"
    except Exception as error:  # noqa: BLE001 - what it says is the measurement
        return f"{type(error).__name__}: {error}"


def _shown(found: list[Measured]) -> Table:
    shown = Table(title=f"{found[0].megabytes:.1f} MB in {found[0].data_files} data files, Spark")
    for heading in ("delete files", "keys each"):
        shown.add_column(heading, justify="right")
    for scan in SCANS:
        for heading in ("seconds", "ratio", "cpu", "cpu ratio"):
            shown.add_column(f"{scan}: {heading}", justify="right")
    scans = [[each for each in found if each.scan == scan] for scan in SCANS]
    for row in zip(*scans, strict=True):
        figures = [
            f"{figure:.2f}" for each in row for figure in (each.seconds, each.ratio, each.cpu_seconds, each.cpu_ratio)
        ]
        shown.add_row(str(row[0].delete_files), str(row[0].keys_each), *figures)
    return shown


if __name__ == "__main__":
    main()
