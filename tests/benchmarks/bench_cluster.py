"""Slots of a real Spark cluster: how soon they follow its executors, and how much of their time is used.

A standalone master with workers of one core each, from PySpark's own jars. For each number of executors: (a) one table
with many output tasks, (b) many tables at once through the dispatcher. Used is the time between start and end of Spark
tasks, from Spark's own event log, of slots times duration of the rewrite phase (a: of the run; b: from the first plan
to the last output). Beside it stands the part in which the tasks wrote outputs; the rest is Spark's start of a task.
After each case the rows are compared with the first state, and the tables are rolled back.

    python -m tests.benchmarks.bench_cluster [--executors 1 2 4] [--tasks 64] [--tables 16] [--file-mb 4] [--files 4]
        [--engine auto|encode] [--folder DIR]

More executors than cores make each task slower; the slots' time is counted all the same.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.events import Event, GroupRewritten, RunPlanned
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.planning.budget import Charge, Grant
from compactor.planning.plan_table import Request, plan_table
from compactor.runs.dispatcher import Dispatcher, TableQueue
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.spark.cluster import ClusterWatch
from compactor.table_names import TableName
from streaming.wiring import rewrite_slots
from tests.benchmarks.harness import bench_folder, local_lake, options_of, rewriter_of
from tests.conftest import Lake
from tests.services.spark_cluster import SparkCluster, spark_cluster

EVENT_LOG = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
GOAL = 0.9
GOAL_SECONDS = 10.0
ROW_BYTES = 4096
SCHEMA = pa.schema([pa.field("part", pa.int64(), nullable=False), ("id", pa.int64()), ("payload", pa.binary())])


@dataclass
class Times:
    """When the rewrite phase began and ended (seconds since the epoch), and how long its tasks wrote, from events."""

    first: float = 0.0
    last: float = 0.0
    worked: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: Event) -> None:
        with self.lock:
            now = time.time()
            if isinstance(event, RunPlanned):
                self.first = self.first or now
            elif isinstance(event, GroupRewritten):
                self.last, self.worked = now, self.worked + event.seconds

    @property
    def seconds(self) -> float:
        return self.last - self.first


@dataclass(frozen=True)
class Measured:
    """One case: what it was, its times, and the slots it had."""

    what: str
    times: Times
    slots: int

    def line(self, tasks: list[tuple[float, float]]) -> str:
        """What is printed, given start and end of all Spark tasks."""
        times, whole = self.times, self.slots * self.times.seconds
        held = sum(max(0.0, min(end, times.last) - max(start, times.first)) for start, end in tasks)
        verdict = "met" if held / whole >= GOAL else "MISSED"
        return (
            f"{self.what}: {times.seconds:.1f} s on {self.slots} slots; Spark tasks ran {held:.1f} s, "
            f"{held / whole:.1%} of slot time (goal {GOAL:.0%}: {verdict}); outputs were written {times.worked:.1f} s, "
            f"{times.worked / whole:.1%}"
        )


def spark_tasks(folder: Path) -> list[tuple[float, float]]:
    """Start and end of each Spark task in seconds since the epoch, from the event log of a session that has ended."""
    lines = (line for file in folder.iterdir() for line in file.open(encoding="utf-8"))
    ended = (json.loads(line)["Task Info"] for line in lines if '"SparkListenerTaskEnd"' in line)
    return [(info["Launch Time"] / 1000, info["Finish Time"] / 1000) for info in ended]


@dataclass
class Bench:
    lake: Lake
    slots: SlotPool
    options: argparse.Namespace

    def __post_init__(self) -> None:
        self.cache = ManifestCache(64 * 1024 * 1024)
        self.known: dict[str, tuple[int, int]] = {}
        self.rewrite_seconds = 0.0
        self.measured: list[Measured] = []

    def make(self, table: str, parts: int) -> TableName:
        """A table with `--files` files of `--file-mb` in each of so many partitions."""
        self.lake.sql(
            f"CREATE TABLE lake.db.{table} (part bigint NOT NULL, id bigint, payload binary) USING iceberg "
            "PARTITIONED BY (part)"
        )
        made = self.lake.catalog.load_table(("db", table))
        rows = int(self.options.file_mb * 1e6 / ROW_BYTES)
        random = np.random.default_rng(7)
        for _ in range(self.options.files):
            for first in range(0, parts, 16):
                here = range(first, min(parts, first + 16))
                payload = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(ROW_BYTES),
                    rows * len(here),
                    [None, pa.py_buffer(random.bytes(rows * len(here) * ROW_BYTES))],
                )
                columns = [np.repeat(np.array(here), rows), np.arange(rows * len(here)), payload.cast(pa.binary())]
                made.append(pa.table(columns, schema=SCHEMA))
        self.known[table] = self.contents(table)
        return TableName("lake", ("db",), table)

    def contents(self, table: str) -> tuple[int, int]:
        """Rows and a checksum of them, without the payload's order."""
        read = self.lake.catalog.load_table(("db", table)).scan(selected_fields=("part", "id")).to_arrow()
        return read.num_rows, int(np.sum(read["part"].to_numpy() * 31 + read["id"].to_numpy()))

    def run(self, name: TableName, rewriter: Rewriter) -> int:
        """Plan and rewrite; returns the number of outputs."""
        request = Request(force=True, engine=self.options.engine)
        plan = plan_table(self.lake.catalogs.load(name), self.lake.settings.policy.for_table(name), self.cache, request)
        result = rewriter.run(plan)
        assert not result.dropped, result.dropped[0].error
        self.rewrite_seconds = result.rewrite_seconds
        return sum(group.rewritten.files_out for group in result.groups)

    def one_table(self, name: TableName) -> Times:
        times = Times()
        outputs = self.run(name, rewriter_of(self.lake, self.cache, self.slots, listener=times))
        times.first = times.last - self.rewrite_seconds
        self.check_and_roll_back(name)
        assert outputs == self.options.tasks
        return times

    def many_tables(self, names: list[TableName]) -> Times:
        times, board, key = Times(), DebtBoard(), PartitionKey(0, "[0]")
        rewriter = rewriter_of(self.lake, self.cache, self.slots, listener=times)

        def work(debt: TableDebt, _stopping: Any, _grant: Grant, _charge: Charge) -> None:
            self.run(debt.table, rewriter)

        dispatcher = Dispatcher(TableQueue(board, 600), work, concurrent_runs=16, slots=self.slots)
        for name in names:
            partition = PartitionDebt(key, {"part": 0}, None, PartitionCounts(4, 4, 4, 4), True, "benchmark")
            board.put(TableDebt(name, 1, {key: partition}, acted_on=True, due_since=time.time()))
        dispatcher.start()
        while dispatcher.status.queued or dispatcher.status.running:
            time.sleep(0.05)
        assert dispatcher.stop(60)
        for name in names:
            self.check_and_roll_back(name)
        return times

    def check_and_roll_back(self, name: TableName) -> None:
        assert self.contents(name.name) == self.known[name.name], f"{name} has other rows than before"
        table = self.lake.catalogs.load(name)
        assert table.snapshot is not None
        assert table.snapshot.summary is not None
        assert table.snapshot.summary.operation.value == "replace", f"{name} was not rewritten"
        parent = table.snapshot.parent_snapshot_id
        self.lake.session.sql(f"CALL lake.system.rollback_to_snapshot('db.{name.name}', {parent})").collect()

    def note(self, what: str, times: Times) -> None:
        self.measured.append(Measured(what, times, self.slots.book.capacity))


def grow(cluster: SparkCluster, watch: ClusterWatch, slots: SlotPool, executors: int, console: Console) -> None:
    """Add workers, and print how soon the slots follow."""
    wanted = max(1, executors - 1)
    started = time.monotonic()
    missing = executors - cluster.cores
    if missing > 0:
        cluster.add_workers(*[1] * missing)
    registered = _until(lambda: watch._spark.read().cores == executors)
    _until(lambda: slots.book.capacity == wanted and watch.state.executors.cores == executors)
    ended = time.monotonic()
    console.print(
        f"\n{executors} executors of one core: {wanted} slots {ended - registered:.1f} s after the last executor "
        f"registered (goal {GOAL_SECONDS:.0f} s: {'met' if ended - registered <= GOAL_SECONDS else 'MISSED'}), "
        f"{ended - started:.1f} s after the first worker process was started"
    )


def _until(happened: Any, seconds: float = 300) -> float:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return time.monotonic()


def shrink(cluster: SparkCluster, slots: SlotPool, console: Console) -> None:
    """Kill workers down to one."""
    before = time.monotonic()
    while cluster.workers[:-1] and cluster.cores > 1:
        cluster.workers.pop().kill()
        _until(lambda: cluster.cores <= len(cluster.workers))
    lost = time.monotonic()
    _until(lambda: slots.book.capacity == 1)
    console.print(
        f"\nworkers killed down to one: 1 slot {time.monotonic() - lost:.1f} s after the master missed the last"
        f" one, {time.monotonic() - before:.1f} s after the first kill"
    )


def measure(lake: Lake, cluster: SparkCluster, options: argparse.Namespace, console: Console) -> list[Measured]:
    """All cases, for each number of executors."""
    slots, watch = rewrite_slots(lake.session)
    bench = Bench(lake, slots, options)
    one = bench.make("one", options.tasks)
    parts = max(1, options.tasks // options.tables)
    many = [bench.make(f"many{number}", parts) for number in range(options.tables)]
    console.print(
        f"{options.tasks} output tasks of {options.files * options.file_mb:.0f} MB, in one table and in "
        f"{options.tables} tables"
    )
    for executors in options.executors:
        grow(cluster, watch, slots, executors, console)
        bench.many_tables(many)  # warms up the executors
        bench.note(f"{executors} executors, one table, {options.tasks} output tasks", bench.one_table(one))
        bench.note(f"{executors} executors, {options.tables} tables at once", bench.many_tables(many))
    shrink(cluster, slots, console)
    watch.stop()
    return bench.measured


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--tables", type=int, default=16)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--file-mb", type=float, default=4)
    parser.add_argument("--engine", choices=["auto", "encode"], default="auto")
    options = parser.parse_args()
    with bench_folder(options.folder) as (folder, console), spark_cluster(folder / "spark") as cluster:
        log = folder / "event-log"
        log.mkdir()
        conf = {**cluster.conf, **EVENT_LOG, "spark.eventLog.dir": str(log)}
        sections = {"spark": {"master": cluster.master, "conf": conf}, "policy": {"min_row_group_size": 0}}
        with local_lake(folder, **sections) as lake:
            found = measure(lake, cluster, options, console)
        tasks = spark_tasks(log)
        for measured in found:
            console.print(f"\n{measured.line(tasks)}")


if __name__ == "__main__":
    main()
