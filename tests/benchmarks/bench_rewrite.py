"""Rewrite speed and what it buys: firnline, Spark's `rewrite_data_files`, Polars, PyArrow and a plain copy, in one run.

Cases: (a) 112 files of 7.6 MB in 4 buckets; (b) 2,000 files of 104 KB; (c) as (a), a tenth of the rows deleted by
position; (d) as (a), with equality deletes; (e) as (a), format version 3, where Spark reads row by row; (f) as (a),
0.1 % and 1 % of the rows deleted, format versions 2 and 3; (c) and (f) are scanned with and without deletes; (g) the
equality deletes of (d), and as many of the newest rows, converted to positions without rewriting data. Each round
measures all rivals in turn and rolls the table back; medians over the rounds. Spark runs (a) and (b) twice: in this
session, which has rewritten the table before, and in a new one, as a scheduled job does. The files of (a) and (b) that
firnline and Spark wrote are then scanned with three readers. Nothing is reflinked; every rival's files are synced to
the disk.

    python -m tests.benchmarks.bench_rewrite [a b c d e f g] [--rounds 5] [--file-mb 7.6] [--commits 28] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from compactor.commit.in_flight import InFlightRecords
from compactor.iceberg.tables import Catalogs
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import plan_table
from compactor.runs.results import RunResult
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings, Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from tests.benchmarks.conversion_rounds import conversion_rounds
from tests.benchmarks.delete_scans import Rewritten, compare
from tests.benchmarks.machine import description
from tests.benchmarks.rewrite_cases import CASES, Case

COPY_BUFFER = 4 * 1024 * 1024
SCAN_ROUNDS = 15
CORES = 2
SCAN_GOAL = 1.05
WARM = "rewrite_data_files"
ANEW = "rewrite_data_files, new session"


@dataclass(frozen=True)
class AnewRun:
    """A rewrite in a process of its own: seconds before the call, which no rival is charged with, and of the call."""

    start_seconds: float
    seconds: float


@dataclass
class Bench:
    folder: Path
    session: Any
    catalogs: Catalogs
    settings: Settings
    case: Case
    first_snapshot: int = 0
    small_files: list[str] = field(default_factory=list)

    @property
    def name(self) -> TableName:
        return TableName("lake", ("db",), self.case.table)

    def files(self) -> list[str]:
        rows = self.session.sql(f"SELECT file_path FROM {self.name}.data_files").collect()
        return [row.file_path.removeprefix("file:") for row in rows]

    def make(self, file_bytes: float, commits: int) -> None:
        self.case.make(self.session, self.catalogs, self.name, file_bytes, commits)
        self.first_snapshot = self.catalogs.load(self.name).snapshot.snapshot_id  # type: ignore[union-attr]
        self.small_files = self.files()

    def roll_back(self) -> None:
        """The small files again; what the last rewrite wrote is deleted, so that the disk does not fill."""
        written = set(self.files())
        table = f"{self.name.namespace[0]}.{self.name.name}"
        self.session.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {self.first_snapshot})")
        for path in written - set(self.files()):
            Path(path).unlink()

    def contents(self) -> Any:
        """What must be the same after a rewrite: counts and checksums by Spark's own read, lineage included."""
        lineage = ", _row_id, _last_updated_sequence_number" if self.case.lineage else ""
        row = f"struct(*{lineage})"
        return self.session.sql(f"SELECT count(*), sum(crc32(to_json({row}))) FROM {self.name}").collect()

    def copy(self) -> None:
        """Copy every file, byte by byte through memory (no reflink can help), and fsync each."""
        target = self.folder / "copy"
        target.mkdir()
        for number, path in enumerate(self.small_files):
            with Path(path).open("rb", buffering=0) as source, (target / str(number)).open("wb", buffering=0) as sink:
                while data := source.read(COPY_BUFFER):
                    sink.write(data)
                os.fsync(sink.fileno())

    def by_bucket(self) -> list[list[str]]:
        buckets: dict[str, list[str]] = {}
        for path in self.small_files:
            buckets.setdefault(path.rsplit("/", 2)[-2], []).append(path)
        return list(buckets.values())

    def pyarrow(self) -> None:
        """Decode and encode with PyArrow, a bucket a thread, as many threads as cores."""
        target = self.folder / "copy"
        target.mkdir()

        def one(numbered: tuple[int, list[str]]) -> None:
            number, paths = numbered
            table = pa.concat_tables(pq.ParquetFile(path).read(use_threads=False) for path in paths)
            pq.write_table(table, target / str(number), compression="zstd", compression_level=3)
            _sync(target / str(number))

        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(one, enumerate(self.by_bucket())))

    def polars(self) -> None:
        """Decode and encode with Polars, which uses every core by itself."""
        target = self.folder / "copy"
        target.mkdir()
        for number, paths in enumerate(self.by_bucket()):
            frame = pl.read_parquet(paths, hive_partitioning=False)
            frame.write_parquet(target / str(number), compression="zstd", compression_level=3)
            _sync(target / str(number))

    @property
    def small_bytes(self) -> int:
        return sum(Path(path).stat().st_size for path in self.small_files)

    def remove_copy(self) -> None:
        shutil.rmtree(self.folder / "copy")

    def rewriter(self, cache: ManifestCache) -> Rewriter:
        records = InFlightRecords(f"file://{self.folder}/in-flight", Owner.this_process(), 60, time.time)
        return Rewriter(
            self.session, self.catalogs, cache, records, slots=SlotPool(2), lease_seconds=60, check_seconds=15,
            commit=CommitSettings(hold_seconds=0),
        )  # fmt: skip

    def firnline(self, carried: float | None = None) -> RunResult:
        """A rewrite as the settings say, or with another `carried_delete_ratio`."""
        cache = ManifestCache(64 * 1024 * 1024)
        rewriter = self.rewriter(cache)
        view, policy = self.catalogs.load(self.name), self.settings.policy.for_table(self.name)
        if carried is not None:
            policy = policy.model_copy(update={"carried_delete_ratio": carried})
        return rewriter.run(plan_table(view, policy, cache))

    def both_ways(self) -> Rewritten:
        """The table rewritten with deleted rows in its files, and without."""
        snapshots = []
        for carried in (None, 0.0):
            table = f"{self.name.namespace[0]}.{self.name.name}"
            self.session.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {self.first_snapshot})")
            snapshots.append(self.firnline(carried).snapshot_after)
        view = self.catalogs.load(self.name)
        rows = self.session.sql(f"SELECT count(*) AS rows FROM {self.name}").collect()[0].rows
        return Rewritten(self.name, view.metadata_location, *snapshots, rows)

    def spark(self) -> None:
        self.session.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{self.name.name}')").collect()

    def spark_anew(self) -> AnewRun:
        """The same call, the first of a new session: what a scheduled job runs, whose code is not yet compiled."""
        vectorized = self.session.conf.get("spark.sql.iceberg.vectorization.enabled")
        given = json.dumps([self.settings.model_dump(mode="json"), f"db.{self.name.name}", vectorized])
        command = [sys.executable, "-m", "tests.benchmarks.spark_anew", given]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        return AnewRun(*json.loads(done.stdout.splitlines()[-1]))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - started, result


def rivals_of(bench: Bench) -> dict[str, Callable[[], Any]]:
    rivals: dict[str, Callable[[], Any]] = {"copy + fsync": bench.copy, "firnline": bench.firnline}
    if bench.case.arrow_rivals:
        rivals |= {"PyArrow": bench.pyarrow, "Polars": bench.polars}
    rivals[WARM] = bench.spark
    return {**rivals, ANEW: bench.spark_anew} if bench.case.arrow_rivals else rivals


def rewrite_rounds(bench: Bench, rounds: int, console: Console) -> None:
    """Interleaved rounds after one that warms up; every rewrite's contents are compared once."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals_of(bench)}
    parts: list[RunResult] = []
    starts: list[float] = []
    before = bench.contents()
    for number in range(rounds + 1):
        shown = []
        for name, rival in rivals_of(bench).items():
            os.sync()
            taken, result = timed(rival)
            if isinstance(result, AnewRun):
                taken = result.seconds
                starts.append(result.start_seconds)
            shown.append(f"{name} {taken:.2f}")
            if name in {"firnline", WARM, ANEW}:
                assert len(bench.files()) < len(bench.small_files), f"{name} left {len(bench.files())} files"
                assert number or bench.contents() == before, f"{name} changed the table"
                bench.roll_back()
            else:
                bench.remove_copy()
            if number:
                seconds[name].append(taken)
            if number and isinstance(result, RunResult):
                parts.append(result)
        console.print(f"round {number}: {', '.join(shown)} s", highlight=False)
    _print_rewrites(bench, console, seconds, parts)
    if starts:
        console.print(f"a new session starts in {statistics.median(starts):.1f} s, which no row contains")


def _print_rewrites(bench: Bench, console: Console, seconds: dict[str, list[float]], parts: list[RunResult]) -> None:
    case = bench.case
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    copied, ours = medians["copy + fsync"], medians["firnline"]
    outputs = sum(group.rewritten.files_out for group in parts[-1].groups)
    table = Table(title=f"({case.letter}) {case.title}: {len(bench.small_files)} into {outputs}, {len(parts)} rounds")
    for heading in ("", "median s", "min s", "max s", "x copy", "x firnline"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, values in seconds.items():
        median = medians[name]
        shown = (median, min(values), max(values), median / copied, median / ours)
        table.add_row(name, *(f"{value:.2f}" for value in shown))
    console.print(table)
    stages = {"plan": "plan_seconds", "rewrite": "rewrite_seconds", "commit": "commit_seconds"}
    spent = {name: statistics.median(getattr(part, stage) for part in parts) for name, stage in stages.items()}
    engines = sorted(
        {f"{group.rewritten.engine} ({group.rewritten.reason})" for part in parts for group in part.groups}
    )
    console.print(f"firnline: {', '.join(f'{name} {value:.2f} s' for name, value in spent.items())}; {engines}")
    if {group.rewritten.engine for part in parts for group in part.groups} != {case.engine}:
        console.print(f"[red]expected the {case.engine} engine[/]")
    goals = []
    if case.goal_copies is not None:
        goals.append(f"{ours / copied:.2f} x copy (<= {case.goal_copies})")
    if case.goal_spark is not None:
        spark = ", ".join(f"{medians[name] / ours:.1f} x {name}" for name in (WARM, ANEW) if name in medians)
        goals.append(f"{spark} (>= {case.goal_spark})")
    lineage = ", row lineage among them" if case.lineage else ""
    console.print(f"goals: {', '.join(goals)}; contents equal in Spark's own read{lineage}", highlight=False)


def _kept(bench: Bench, rewrite: Callable[[], Any], name: str) -> list[str]:
    """Rewrite once more and keep copies of the outputs for the scans."""
    rewrite()
    folder = bench.folder / f"kept-{name}-{bench.case.letter}"
    folder.mkdir()
    kept = [shutil.copy(path, folder / f"{number}.parquet") for number, path in enumerate(sorted(bench.files()))]
    bench.roll_back()
    return [str(path) for path in kept]


def scans(bench: Bench, console: Console) -> None:
    """Full scans of the files each engine wrote; interleaved, medians."""
    ours, theirs = _kept(bench, bench.firnline, "firnline"), _kept(bench, bench.spark, "spark")
    readers: dict[str, Callable[[list[str]], Any]] = {
        "DuckDB": lambda files: duckdb.sql(f"SELECT sum(hash(columns(*))) FROM read_parquet({files})").fetchall(),
        # Batch by batch, as a query reads: a table of 2 GB would time the allocator and the kernel's pages.
        "PyArrow": lambda files: sum(batch.num_rows for batch in arrow_dataset.dataset(files).to_batches()),
        "Spark": lambda files: bench.session.read.parquet(*files).write.format("noop").mode("overwrite").save(),
    }
    table = Table(title=f"({bench.case.letter}) scan of all columns, medians of {SCAN_ROUNDS} interleaved rounds")
    for heading in ("reader", "firnline's files s", "Spark's files s", f"ratio (<= {SCAN_GOAL})", "ratio of the best"):
        table.add_column(heading, justify="left" if heading == "reader" else "right")
    for name, read in readers.items():
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        for number in range(SCAN_ROUNDS + 1):  # in turn the first, after one that warms up
            both = (("ours", ours), ("theirs", theirs))
            for whose, files in both if number % 2 else both[::-1]:
                taken, _ = timed(read, files)
                seconds[whose] += [taken] if number else []
        mine, other = (statistics.median(seconds[whose]) for whose in ("ours", "theirs"))
        best = min(seconds["ours"]) / min(seconds["theirs"])
        table.add_row(name, f"{mine:.3f}", f"{other:.3f}", f"{mine / other:.2f}", f"{best:.2f}")
    console.print(table)
    sizes = [sum(Path(path).stat().st_size for path in files) for files in (ours, theirs)]
    console.print(f"bytes: firnline {sizes[0]:,}, Spark {sizes[1]:,}", highlight=False)
    query = "SELECT count(*), sum(hash(columns(*))::hugeint) FROM read_parquet({}, hive_partitioning = false)"
    equal = {str(duckdb.sql(query.format(files)).fetchall()) for files in (ours, theirs, bench.small_files)}
    console.print(f"contents of small, firnline's and Spark's files equal in DuckDB: {len(equal) == 1}")
    assert len(equal) == 1


def main() -> None:
    letters = [case.letter for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["a"], metavar="CASE", help="letters; default a")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file-mb", type=float, default=7.6)
    parser.add_argument("--commits", type=int, default=28)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if not set(options.cases) <= set(letters):
        parser.error(f"cases are {', '.join(letters)}")
    console = Console(width=120)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        settings = Settings(catalogs={"lake": properties}, spark={"master": f"local[{CORES}]"})
        session = spark_session(settings, "firnline-benchmark")
        console.print(description(folder))
        for case in CASES:
            if case.letter not in options.cases:
                continue
            # Iceberg 1.11's vectorized reader of row ids does not free its memory (apache/iceberg 17296): the rounds of
            # (e) would end for want of it. So Spark reads rows one by one there, the rival too.
            session.conf.set("spark.sql.iceberg.vectorization.enabled", str(not case.lineage).lower())
            bench = Bench(folder, session, Catalogs(settings.catalogs), settings, case)
            seconds, _ = timed(bench.make, options.file_mb * 1e6, options.commits)
            total = bench.small_bytes
            console.print(
                f"\n({case.letter}) {case.title}: {len(bench.small_files)} files, {total / 1e6:.0f} MB, written in "
                f"{seconds:.0f} s by Spark"
            )
            if case.converted:
                conversion_rounds(bench, options.rounds, console)
            else:
                rewrite_rounds(bench, options.rounds, console)
            if case.scans:
                scans(bench, console)
            if case.carried:
                compare(session, bench.catalogs, folder, bench.both_ways(), console)
            session.sql(f"DROP TABLE {bench.name} PURGE")
        session.stop()


if __name__ == "__main__":
    main()
