"""Rewrite speed and what it buys: firnline, Spark's `rewrite_data_files`, Polars, PyArrow and a plain copy, in one run.

Cases: (a) 112 files of 7.6 MB in 4 buckets; (b) 2,000 files of 104 KB; (c) as (a), a tenth of the rows deleted by
position; (d) as (a), with equality deletes; (f) as (a), 0.1 % and 1 % of the rows deleted, format versions 2 and 3; (c)
and (f) are scanned with and without deletes; (g) the equality deletes of (d), and as many of the newest rows, converted
to positions without rewriting data. Each round measures all rivals in turn and rolls the table back; medians over the
rounds. Spark runs (a) and (b) twice: in this session, which has rewritten the table before, and in a new one, as a
scheduled job does. The files of (a) and (b) that firnline and Spark wrote are then scanned with three readers. Nothing
is reflinked; every rival's files are synced to the disk.

    python -m tests.benchmarks.bench_rewrite [a b c d f g] [--rounds 5] [--file-mb 7.6] [--commits 28] [--folder DIR]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
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

from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import plan_table
from compactor.runs.results import RunResult
from compactor.table_names import TableName
from tests.benchmarks.conversion_rounds import conversion_rounds
from tests.benchmarks.delete_scans import Rewritten, compare
from tests.benchmarks.harness import (
    bench_folder,
    local_lake,
    medians,
    options_of,
    rewriter_of,
    rounds,
    show_pairs,
    show_rounds,
    timed,
)
from tests.benchmarks.rewrite_cases import CASES, Case
from tests.conftest import Lake

COPY_BUFFER = 4 * 1024 * 1024
SCAN_ROUNDS = 15
CORES = 2
SCAN_GOAL = 1.05
COPY = "copy + fsync"
WARM = "rewrite_data_files"
ANEW = "rewrite_data_files, new session"


@dataclass(frozen=True)
class AnewRun:
    """A rewrite in a process of its own: seconds before the call, which no rival is charged with, and of the call."""

    start_seconds: float
    seconds: float


@dataclass
class Bench:
    """One case's table, and what each rival does with it."""

    lake: Lake
    case: Case
    first_snapshot: int = 0
    small_files: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.lake.folder

    @property
    def name(self) -> TableName:
        return TableName("lake", ("db",), self.case.table)

    def files(self) -> list[str]:
        rows = self.lake.sql(f"SELECT file_path FROM {self.name}.data_files")
        return [row.file_path.removeprefix("file:") for row in rows]

    def make(self, file_bytes: float, commits: int) -> None:
        self.case.make(self.lake.session, self.lake.catalogs, self.name, file_bytes, commits)
        self.first_snapshot = self.lake.catalogs.load(self.name).snapshot.snapshot_id  # type: ignore[union-attr]
        self.small_files = self.files()

    def roll_back(self, *, clean: bool = True) -> None:
        """The small files again; `clean`: what the last rewrite wrote is deleted, so that the disk does not fill."""
        written = set(self.files())
        self.lake.sql(f"CALL lake.system.rollback_to_snapshot('db.{self.name.name}', {self.first_snapshot})")
        for path in written - set(self.files()) if clean else ():
            Path(path).unlink()

    def contents(self) -> Any:
        """What must be the same after a rewrite: counts and checksums by Spark's own read, lineage included."""
        lineage = ", _row_id, _last_updated_sequence_number" if self.case.lineage else ""
        return self.lake.sql(f"SELECT count(*), sum(crc32(to_json(struct(*{lineage})))) FROM {self.name}")

    def copy(self) -> None:
        """Copy every file, byte by byte through memory (no reflink can help), and fsync each."""
        target = self.new_folder()
        for number, path in enumerate(self.small_files):
            with Path(path).open("rb", buffering=0) as source, (target / str(number)).open("wb", buffering=0) as sink:
                while data := source.read(COPY_BUFFER):
                    sink.write(data)
                os.fsync(sink.fileno())

    def new_folder(self) -> Path:
        """Where rivals that make no commit write."""
        target = self.folder / "copy"
        target.mkdir()
        return target

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder / "copy")

    def by_bucket(self) -> list[list[str]]:
        buckets: dict[str, list[str]] = {}
        for path in self.small_files:
            buckets.setdefault(path.rsplit("/", 2)[-2], []).append(path)
        return list(buckets.values())

    def pyarrow(self) -> None:
        """Decode and encode with PyArrow, a bucket a thread, as many threads as cores."""
        target = self.new_folder()

        def one(numbered: tuple[int, list[str]]) -> None:
            number, paths = numbered
            table = pa.concat_tables(pq.ParquetFile(path).read(use_threads=False) for path in paths)
            pq.write_table(table, target / str(number), compression="zstd", compression_level=3)
            _sync(target / str(number))

        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(one, enumerate(self.by_bucket())))

    def polars(self) -> None:
        """Decode and encode with Polars, which uses every core by itself."""
        target = self.new_folder()
        for number, paths in enumerate(self.by_bucket()):
            frame = pl.read_parquet(paths, hive_partitioning=False)
            frame.write_parquet(target / str(number), compression="zstd", compression_level=3)
            _sync(target / str(number))

    @property
    def small_bytes(self) -> int:
        return sum(Path(path).stat().st_size for path in self.small_files)

    def firnline(self, carried: float | None = None) -> RunResult:
        """A rewrite as the settings say, or with another `carried_delete_ratio`."""
        cache = ManifestCache(64 * 1024 * 1024)
        policy = self.lake.settings.policy.for_table(self.name)
        if carried is not None:
            policy = policy.model_copy(update={"carried_delete_ratio": carried})
        return rewriter_of(self.lake, cache).run(plan_table(self.lake.catalogs.load(self.name), policy, cache))

    def both_ways(self) -> Rewritten:
        """The table rewritten with deleted rows in its files, and without."""
        snapshots = []
        for carried in (None, 0.0):
            self.roll_back(clean=False)
            snapshots.append(self.firnline(carried).snapshot_after)
        rows = self.lake.sql(f"SELECT count(*) AS rows FROM {self.name}")[0].rows
        return Rewritten(self.name, self.lake.catalogs.load(self.name).metadata_location, *snapshots, rows)

    def spark(self) -> None:
        self.lake.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{self.name.name}')")

    def spark_anew(self) -> AnewRun:
        """The same call, the first of a new session: what a scheduled job runs, whose code is not yet compiled."""
        given = json.dumps([self.lake.settings.model_dump(mode="json"), f"db.{self.name.name}", vectorized(self.case)])
        command = [sys.executable, "-m", "tests.benchmarks.spark_anew", given]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        return AnewRun(*json.loads(done.stdout.splitlines()[-1]))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def vectorized(case: Case) -> str:
    """Iceberg 1.11's vectorized reader of row ids does not free its memory (apache/iceberg 17296): with row lineage,
    Spark reads rows one by one, the rival too.
    """
    return str(not case.lineage).lower()


def rivals_of(bench: Bench) -> dict[str, Callable[[], Any]]:
    rivals: dict[str, Callable[[], Any]] = {COPY: bench.copy, "firnline": bench.firnline, WARM: bench.spark}
    if bench.case.arrow_rivals:
        rivals |= {"PyArrow": bench.pyarrow, "Polars": bench.polars, ANEW: bench.spark_anew}
    return rivals


def rewrite_rounds(bench: Bench, count: int, console: Console) -> None:
    """Interleaved rounds after one that warms up; every rewrite's contents are compared once."""
    parts: list[RunResult] = []
    starts: list[float] = []
    before = bench.contents()

    def after(number: int, name: str, seconds: float, result: Any) -> float | None:
        console.print(f"round {number}: {name} {seconds:.2f} s")
        if name in {"firnline", WARM, ANEW}:
            assert len(bench.files()) < len(bench.small_files), f"{name} left {len(bench.files())} files"
            assert number or bench.contents() == before, f"{name} changed the table"
            bench.roll_back()
        else:
            bench.remove_folder()
        if isinstance(result, RunResult):
            parts.append(result)
        if not isinstance(result, AnewRun):
            return None
        starts.append(result.start_seconds)
        return result.seconds

    _print_rewrites(bench, console, rounds(rivals_of(bench), count, after), parts[1:])
    if starts:
        console.print(f"a new session starts in {statistics.median(starts):.1f} s, which no row contains")


def _print_rewrites(bench: Bench, console: Console, seconds: dict[str, list[float]], parts: list[RunResult]) -> None:
    case, middle = bench.case, medians(seconds)
    outputs = sum(group.rewritten.files_out for group in parts[-1].groups)
    title = f"({case.letter}) {case.title}: {len(bench.small_files)} into {outputs}, {len(parts)} rounds"
    show_rounds(console, title, seconds, COPY, "firnline")
    stages = {"plan": "plan_seconds", "rewrite": "rewrite_seconds", "commit": "commit_seconds"}
    spent = {name: statistics.median(getattr(part, stage) for part in parts) for name, stage in stages.items()}
    groups = [group.rewritten for part in parts for group in part.groups]
    engines = sorted({f"{group.engine} ({group.reason})" for group in groups})
    console.print(f"firnline: {', '.join(f'{name} {value:.2f} s' for name, value in spent.items())}; {engines}")
    if {group.engine for group in groups} != {case.engine}:
        console.print(f"[red]expected the {case.engine} engine[/]")
    goals = []
    if case.goal_copies is not None:
        goals.append(f"{middle['firnline'] / middle[COPY]:.2f} x copy (<= {case.goal_copies})")
    if case.goal_spark is not None:
        spark = (f"{middle[name] / middle['firnline']:.1f} x {name}" for name in (WARM, ANEW) if name in middle)
        goals.append(f"{', '.join(spark)} (>= {case.goal_spark})")
    lineage = ", row lineage among them" if case.lineage else ""
    console.print(f"goals: {', '.join(goals)}; contents equal in Spark's own read{lineage}")


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
        "Spark": lambda files: bench.lake.session.read.parquet(*files).write.format("noop").mode("overwrite").save(),
    }
    pairs = {
        name: tuple(rounds({"ours": lambda: read(ours), "theirs": lambda: read(theirs)}, SCAN_ROUNDS).values())  # noqa: B023 - called at once
        for name, read in readers.items()
    }
    title = f"({bench.case.letter}) scan of all columns, medians of {SCAN_ROUNDS} interleaved rounds"
    show_pairs(console, title, "firnline's files", "Spark's files", SCAN_GOAL, pairs)
    sizes = [sum(Path(path).stat().st_size for path in files) for files in (ours, theirs)]
    console.print(f"bytes: firnline {sizes[0]:,}, Spark {sizes[1]:,}")
    query = "SELECT count(*), sum(hash(columns(*))::hugeint) FROM read_parquet({}, hive_partitioning = false)"
    equal = {str(duckdb.sql(query.format(files)).fetchall()) for files in (ours, theirs, bench.small_files)}
    assert len(equal) == 1, "contents differ in DuckDB"
    console.print("contents of small, firnline's and Spark's files equal in DuckDB")


def play(lake: Lake, case: Case, options: Any, console: Console) -> None:
    """Make the table of a case, measure, drop it."""
    lake.session.conf.set("spark.sql.iceberg.vectorization.enabled", vectorized(case))
    bench = Bench(lake, case)
    seconds, _ = timed(bench.make, options.file_mb * 1e6, options.commits)
    console.print(
        f"\n({case.letter}) {case.title}: {len(bench.small_files)} files, {bench.small_bytes / 1e6:.0f} MB, written in "
        f"{seconds:.0f} s by Spark"
    )
    (conversion_rounds if case.converted else rewrite_rounds)(bench, options.rounds, console)
    if case.scans:
        scans(bench, console)
    if case.carried:
        compare(lake, bench.both_ways(), console)
    lake.sql(f"DROP TABLE {bench.name} PURGE")


def main() -> None:
    letters = sorted({case.letter for case in CASES})
    parser = options_of(__doc__, *letters)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file-mb", type=float, default=7.6)
    parser.add_argument("--commits", type=int, default=28)
    options = parser.parse_args()
    wanted = options.cases or ["a"]
    if not set(wanted) <= set(letters):
        parser.error(f"cases are {', '.join(letters)}")
    with (
        bench_folder(options.folder) as (folder, console),
        local_lake(folder, spark={"master": f"local[{CORES}]"}) as lake,
    ):
        for case in CASES:
            if case.letter in wanted:
                play(lake, case, options, console)


if __name__ == "__main__":
    main()
