"""Rewrite speed and what it buys: firnline, Spark's `rewrite_data_files` and a plain copy, side by side in one run.

The demo's table scaled up: bucket(4, id), 28 commits, 112 Parquet files. Each round measures all three in turn and
rolls the table back; medians over the rounds. Then the files that each engine wrote are scanned with three readers.

    python -m tests.benchmarks.bench_rewrite [--rounds 5] [--file-mb 7.6] [--commits 28] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as arrow_dataset
from rich.console import Console
from rich.table import Table

from compactor.in_flight import InFlightRecords, Owner
from compactor.manifests import ManifestCache
from compactor.plan_table import plan_table
from compactor.rewriter import Rewriter, RunResult
from compactor.settings import Settings
from compactor.spark_session import spark_session
from compactor.table_names import TableName
from compactor.tables import Catalogs
from streaming.demo.events_table import append_events, create_table, rows_per_commit
from tests.benchmarks.machine import description

NAME = TableName("lake", ("db",), "events")
COPY_BUFFER = 4 * 1024 * 1024
SCAN_ROUNDS = 7


@dataclass
class Bench:
    folder: Path
    session: Any
    catalogs: Catalogs
    settings: Settings
    first_snapshot: int = 0
    small_files: list[str] = field(default_factory=list)

    def files(self) -> list[str]:
        rows = self.session.sql(f"SELECT file_path FROM {NAME}.data_files").collect()
        return [row.file_path.removeprefix("file:") for row in rows]

    def roll_back(self) -> None:
        """The small files again; what the last rewrite wrote is deleted, so that the disk does not fill."""
        written = set(self.files())
        self.session.sql(f"CALL lake.system.rollback_to_snapshot('db.events', {self.first_snapshot})")
        for path in written - set(self.files()):
            Path(path).unlink()

    def copy(self) -> float:
        """Copy every file, byte by byte through memory (no reflink can help), and fsync each."""
        target = self.folder / "copy"
        target.mkdir()
        started = time.perf_counter()
        for number, path in enumerate(self.small_files):
            with Path(path).open("rb", buffering=0) as source, (target / str(number)).open("wb", buffering=0) as sink:
                while data := source.read(COPY_BUFFER):
                    sink.write(data)
                os.fsync(sink.fileno())
        seconds = time.perf_counter() - started
        shutil.rmtree(target)
        return seconds

    def firnline(self) -> RunResult:
        cache = ManifestCache(64 * 1024 * 1024)
        records = InFlightRecords(f"file://{self.folder}/in-flight", Owner.this_process(), 60, time.time)
        rewriter = Rewriter(self.session, self.catalogs, cache, records, slots=2, lease_seconds=60, check_seconds=15)
        return rewriter.run(plan_table(self.catalogs.load(NAME), self.settings.policy.for_table(NAME), cache))


def make_table(bench: Bench, commits: int, file_bytes: float) -> None:
    create_table(bench.session, NAME)
    rows = rows_per_commit(file_bytes)
    for commit in range(commits):
        append_events(bench.session, NAME, commit * rows, rows)
    bench.first_snapshot = bench.catalogs.load(NAME).snapshot.snapshot_id  # type: ignore[union-attr]
    bench.small_files = bench.files()


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - started, result


def rewrite_rounds(bench: Bench, rounds: int, console: Console) -> tuple[list[str], list[str]]:
    """Interleaved rounds after one that warms up; prints the table and returns the files each engine wrote last."""
    spark_call = "CALL lake.system.rewrite_data_files(table => 'db.events')"
    seconds: dict[str, list[float]] = {"copy + fsync": [], "firnline": [], "rewrite_data_files": []}
    parts: list[RunResult] = []
    for number in range(rounds + 1):
        os.sync()
        copied = bench.copy()
        os.sync()
        ours, result = timed(bench.firnline)
        engines = {group.engine.engine.value for group in result.groups}
        assert len(bench.files()) == 4, f"{len(bench.files())} files after the rewrite"
        bench.roll_back()
        os.sync()
        theirs, _ = timed(lambda: bench.session.sql(spark_call).collect())
        assert len(bench.files()) == 4, f"{len(bench.files())} files after rewrite_data_files"
        bench.roll_back()
        console.print(f"round {number}: copy {copied:.2f} s, firnline {ours:.2f} s {engines}, Spark {theirs:.2f} s")
        if number:
            for name, value in zip(seconds, (copied, ours, theirs), strict=True):
                seconds[name].append(value)
            parts.append(result)
    _print_rewrites(console, seconds, parts)
    return _kept(bench, bench.firnline, "firnline"), _kept(
        bench, lambda: bench.session.sql(spark_call).collect(), "spark"
    )


def _kept(bench: Bench, rewrite: Callable[[], Any], name: str) -> list[str]:
    """Rewrite once more and keep copies of the outputs for the scans."""
    rewrite()
    folder = bench.folder / f"kept-{name}"
    folder.mkdir()
    kept = [shutil.copy(path, folder / f"{number}.parquet") for number, path in enumerate(sorted(bench.files()))]
    bench.roll_back()
    return [str(path) for path in kept]


def _print_rewrites(console: Console, seconds: dict[str, list[float]], parts: list[RunResult]) -> None:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    table = Table(title=f"112 small files into 4, medians of {len(parts)} interleaved rounds")
    for heading in ("", "median s", "min s", "max s", "x copy", "x firnline"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in seconds.items():
        table.add_row(
            name, f"{medians[name]:.2f}", f"{min(values):.2f}", f"{max(values):.2f}",
            f"{medians[name] / medians['copy + fsync']:.2f}", f"{medians[name] / medians['firnline']:.1f}",
        )  # fmt: skip
    console.print(table)
    stages = {
        "plan": [result.plan_seconds for result in parts],
        "rewrite": [result.rewrite_seconds for result in parts],
        "commit": [result.commit_seconds for result in parts],
    }
    console.print(
        "firnline: " + ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in stages.items())
    )
    copy_ratio = medians["firnline"] / medians["copy + fsync"]
    spark_ratio = medians["rewrite_data_files"] / medians["firnline"]
    console.print(f"goals: {copy_ratio:.2f}x copy (<= 1.5), {spark_ratio:.1f}x faster than Spark (>= 12)")


def scans(bench: Bench, ours: list[str], theirs: list[str], console: Console) -> None:
    """Full scans and a filtered one, of the files each engine wrote; interleaved, medians."""
    readers: dict[str, Callable[[list[str]], Any]] = {
        "DuckDB": lambda files: duckdb.sql(f"SELECT sum(hash(columns(*))) FROM read_parquet({files})").fetchall(),
        "PyArrow": lambda files: arrow_dataset.dataset(files).to_table().num_rows,
        "Spark": lambda files: bench.session.read.parquet(*files).write.format("noop").mode("overwrite").save(),
    }
    table = Table(title=f"scan of all columns, medians of {SCAN_ROUNDS} interleaved rounds")
    for heading in ("reader", "firnline's files s", "Spark's files s", "ratio (<= 1.10)"):
        table.add_column(heading, justify="left" if heading == "reader" else "right")
    for name, read in readers.items():
        rounds = [(timed(read, ours)[0], timed(read, theirs)[0]) for _ in range(SCAN_ROUNDS + 1)][1:]
        mine = statistics.median(first for first, _ in rounds)
        other = statistics.median(second for _, second in rounds)
        table.add_row(name, f"{mine:.2f}", f"{other:.2f}", f"{mine / other:.2f}")
    console.print(table)
    query = "SELECT count(*), sum(hash(columns(*))::hugeint) FROM read_parquet({}, hive_partitioning = false)"
    equal = {str(duckdb.sql(query.format(files)).fetchall()) for files in (ours, theirs, bench.small_files)}
    console.print(f"contents of small, firnline's and Spark's files equal: {len(equal) == 1}")
    assert len(equal) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file-mb", type=float, default=7.6)
    parser.add_argument("--commits", type=int, default=28)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        settings = Settings(catalogs={"lake": properties}, spark={"master": "local[2]"})
        session = spark_session(settings, "firnline-benchmark")
        bench = Bench(folder, session, Catalogs(settings.catalogs), settings)
        seconds, _ = timed(lambda: make_table(bench, options.commits, options.file_mb * 1e6))
        total = sum(Path(path).stat().st_size for path in bench.small_files)
        console.print(description(folder))
        console.print(f"{len(bench.small_files)} files, {total / 1e6:.0f} MB, written in {seconds:.0f} s by Spark")
        ours, theirs = rewrite_rounds(bench, options.rounds, console)
        scans(bench, ours, theirs, console)
        session.stop()


if __name__ == "__main__":
    main()
