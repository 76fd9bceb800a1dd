"""What the metrics reporter adds to a commit of Spark, beside the commit's own time. Wanted: at most 1 ms.

Spark SQL commits one row at a time: with a broker that answers, with one that is not there, and with one that never
answers while the queue is full. Rounds are interleaved; figures are medians. The first report of each case is shown
apart: it starts the thread that sends.

    python -m tests.benchmarks.bench_reporter [--commits 40]
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactor.spark.java import SPARK_JARS, fetch_jars, pyspark_jars
from deploy.demo.local_process import free_port
from deploy.reporter.build import build, compile_sources, find_compiler
from tests.benchmarks.harness import bench_folder, options_of, show
from tests.services.java_process import JavaProcess, java_process
from tests.services.kafka_broker import kafka_broker
from tests.services.reporter import new_topic, numbers, properties

SOURCE = Path(__file__).with_name("TimedReporter.java")
QUEUE = 1000
WANTED_MS = 1.0
WARM_UP = 5


@dataclass
class Figures:
    """Milliseconds: `report` and `commit` (Iceberg's own clock) of each commit, `statement` of each INSERT."""

    first: float = 0.0
    report: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    statement: list[float] = field(default_factory=list)


def session(jvm: JavaProcess, folder: Path, catalogs: dict[str, dict[str, str]]) -> Any:
    """Spark in that JVM, with a Hadoop catalog for each case."""
    builder = (
        jvm.java.org.apache.spark.sql.SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false")
    )
    for name, given in catalogs.items():
        builder = builder.config(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        more = {"type": "hadoop", "warehouse": f"file://{folder}/{name}"}
        for key, value in (given | more).items():
            builder = builder.config(f"spark.sql.catalog.{name}.{key}", value)
    return builder.getOrCreate()


def taken(jvm: JavaProcess) -> list[tuple[float, float]]:
    lines = str(jvm.java.TimedReporter.taken()).splitlines()
    return [(int(report) / 1e6, int(commit) / 1e6) for report, commit in (line.split() for line in lines)]


def insert(jvm: JavaProcess, spark: Any, case: str, found: Figures) -> None:
    begin = time.perf_counter()
    spark.sql(f"INSERT INTO {case}.db.t VALUES (1)")
    found.statement.append((time.perf_counter() - begin) * 1000)
    for report, commit in taken(jvm):
        found.report.append(report)
        found.commit.append(commit)


def fill_queue(jvm: JavaProcess, given: dict[str, str]) -> None:
    """Reports until the queue is full: the thread waits for the broker that never answers."""
    reporter = jvm.java.io.firnline.iceberg.KafkaMetricsReporter()
    reporter.initialize(jvm.map(given))
    metrics = jvm.java.org.apache.iceberg.metrics
    report = (
        metrics.ImmutableCommitReport.builder()
        .tableName("lake.db.t")
        .snapshotId(1)
        .sequenceNumber(1)
        .operation("append")
        .commitMetrics(metrics.ImmutableCommitMetricsResult.builder().build())
        .build()
    )
    for _ in range(QUEUE + 2):
        reporter.report(report)


@contextmanager
def benchmark_jvm(folder: Path) -> Iterator[JavaProcess]:
    jars = fetch_jars(SPARK_JARS)
    reporter = build(folder)
    classes = folder / "classes"
    compile_sources(find_compiler(), SOURCE, [*jars, reporter], classes)
    (iceberg,) = (jar for jar in jars if jar.name.startswith("iceberg-spark-runtime"))
    with java_process(folder, [pyspark_jars() / "*", iceberg, reporter, classes]) as jvm:
        yield jvm


def measure(commits: int, folder: Path) -> tuple[dict[str, Figures], dict[str, int]]:
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_broker(folder / "kafka"))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        jvm = stack.enter_context(benchmark_jvm(folder))
        timed = {"metrics-reporter-impl": "TimedReporter"}
        patient = {"firnline.kafka.options.max.block.ms": "3600000"}
        cases: dict[str, dict[str, str]] = {
            "none": {},
            "here": properties(broker, new_topic()) | timed,
            "away": properties(f"127.0.0.1:{free_port()}", new_topic()) | timed | patient,
            "full": properties(f"127.0.0.1:{silent.getsockname()[1]}", new_topic()) | timed | patient,
        }
        spark = session(jvm, folder, cases)
        figures = {case: Figures() for case in cases}
        fill_queue(jvm, cases["full"])
        for case in cases:
            spark.sql(f"CREATE TABLE {case}.db.t (id BIGINT) USING iceberg")
            for number in range(WARM_UP):
                insert(jvm, spark, case, figures[case])
                if number == 0 and figures[case].report:
                    figures[case].first = figures[case].report[0]
            figures[case] = Figures(first=figures[case].first)
        for _ in range(commits):
            for case, found in figures.items():
                insert(jvm, spark, case, found)
        counted = numbers(jvm)
        spark.stop()
    return figures, counted


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--commits", type=int, default=40, help="commits of each case")
    options = parser.parse_args()
    words = {
        "none": "without the reporter", "here": "broker answers", "away": "broker is not there",
        "full": "broker never answers, queue full",
    }  # fmt: skip
    with bench_folder(options.folder) as (folder, console):
        figures, counted = measure(options.commits, folder)
        rows = [
            [words[case], f"{statistics.median(found.statement):.1f}", *_reports(found)]
            for case, found in figures.items()
        ]
        headings = ("", "INSERT", "Iceberg's commit", "report()", "longest", "first")
        show(console, f"median of {options.commits} commits, in ms", headings, rows)
        worst = max(statistics.median(found.report) for found in figures.values() if found.report)
        console.print(f"wanted: at most {WANTED_MS:g} ms; worst median: {worst:.3f} ms; reports: {counted}")


def _reports(found: Figures) -> list[str]:
    if not found.report:
        return ["-"] * 4
    report = (statistics.median(found.report), max(found.report), found.first)
    return [f"{statistics.median(found.commit):.1f}", *(f"{each:.3f}" for each in report)]


if __name__ == "__main__":
    main()
