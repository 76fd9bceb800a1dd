"""Measure what equality delete files cost a scan of one partition, as a ratio to the same data without them.

Iceberg's Java writers write the delete files, as Flink does. Each number of delete files is one snapshot of a table.
Each round scans all snapshots in turn, so that a slow phase of the machine affects all of them. Every scan loads and
plans the table again; Spark's executor cache of deletes is on, as by default, and empty. `sum` reads one column, `all`
reads every column. `cpu` is the processor time of Spark's JVM, in steps of 10 ms: it varies less on a busy machine.

    python -m tests.benchmarks.bench_equality_deletes [--tables 2/60 20/2 200/8] [--deletes 1 3 10 30 100]
        [--keys 250] [--keys-at-ten 25 2500 25000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from rich.console import Console

from tests.benchmarks.fleet.processes import processor_seconds
from tests.benchmarks.harness import bench_folder, local_lake, options_of, show, timed
from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter

BYTES_PER_ROW = 100
TEN = 10
WARM_UP = 2
EXECUTOR_CACHE = "spark.sql.iceberg.executor-cache.enabled"  # on in Spark, off in sessions of firnline
SCANS = {
    "sum": "SELECT sum(amount) FROM {}",
    "all": "SELECT sum(amount), max(day), count(kind), max(note), max(code), sum(id) FROM {}",
}


@dataclass(frozen=True)
class TableState:
    """A snapshot of a table with so many equality delete files of so many keys."""

    table: str
    delete_files: int
    keys_each: int
    snapshot_id: int


def main() -> None:
    options = _options()
    with bench_folder(options.folder) as (folder, console), local_lake(folder) as lake:
        lake.session.conf.set(EXECUTOR_CACHE, str(not options.without_cache).lower())
        for megabytes, files in options.tables:
            table = f"db.mb_{round(megabytes)}"
            rows = _make(lake, table, megabytes, files)
            _measure(lake, list(_states(lake, table, rows, options)), options.rounds, console)


def _options() -> argparse.Namespace:
    parser = options_of(__doc__)
    tables = [(2.0, 60), (20.0, 2), (200.0, 8)]
    parser.add_argument("--tables", type=_size, nargs="+", default=tables, help="Megabytes/data files.")
    parser.add_argument("--deletes", type=int, nargs="+", default=[1, 3, 10, 30, 100])
    parser.add_argument("--keys", type=int, default=250, help="Keys in a delete file.")
    parser.add_argument("--keys-at-ten", type=int, nargs="*", default=[25, 2500, 25000])
    parser.add_argument("--without-cache", action="store_true", help="Each task reads the delete files by itself.")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def _size(text: str) -> tuple[float, int]:
    megabytes, _, files = text.partition("/")
    return float(megabytes), int(files)


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


def _measure(lake: Lake, states: list[TableState], count: int, console: Console) -> None:
    """All states in turn, round after round; the first two rounds warm up and are left out."""
    taken: dict[tuple[TableState, str], list[tuple[float, float]]] = {
        (state, scan): [] for state in states for scan in SCANS
    }
    for number in range(count + WARM_UP):
        for (state, scan), times in taken.items():
            one = _scan(lake, state, SCANS[scan])
            if number >= WARM_UP:
                times.append(one)
    middle = {key: [statistics.median(each) for each in zip(*times, strict=True)] for key, times in taken.items()}
    rows = []
    for state in states:
        row: list[object] = [state.delete_files, state.keys_each]
        for scan in SCANS:
            figures = zip(middle[state, scan], middle[states[0], scan], strict=True)
            row += [figure for seconds, bare in figures for figure in (seconds, seconds / bare)]
        rows.append(row)
    kinds = [f"{scan}: {heading}" for scan in SCANS for heading in ("seconds", "ratio", "cpu", "cpu ratio")]
    sizes = [
        file.size for file in lake.sql(f"SELECT file_size_in_bytes AS size FROM lake.{states[0].table}.data_files")
    ]
    title = f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} data files, Spark"
    show(console, title, ("delete files", "keys each", *kinds), rows)


def _scan(lake: Lake, state: TableState, query: str) -> tuple[float, float]:
    """Seconds on the clock and of the JVM's processor time, of one scan that finds no delete file in memory."""
    jvm = lake.session._jvm
    cache = jvm.org.apache.iceberg.spark.SparkExecutorCache.get()
    if cache is not None:
        cache.invalidate(f"lake.{state.table}")
    lake.sql(f"REFRESH TABLE lake.{state.table}")
    jvm.System.gc()
    cpu = _cpu_seconds(jvm)
    seconds, _ = timed(lake.sql, query.format(f"lake.{state.table} VERSION AS OF {state.snapshot_id}"))
    return seconds, _cpu_seconds(jvm) - cpu


def _cpu_seconds(jvm: Any) -> float:
    """Processor time of Spark's JVM so far."""
    return processor_seconds(int(jvm.java.lang.ProcessHandle.current().pid()))


if __name__ == "__main__":
    main()
