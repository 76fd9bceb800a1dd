"""Unit costs of rewrites: a run by its outputs, on Spark; requests and processor time of a splice inside S3.

Also the cost of a micro-batch on Spark, because it needs the same session. Kafka's client is not in it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from compactor.events import ignore
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.rewrite.parquet.footer import read_footer
from compactor.rewrite.splice.splice import SpliceInput, SpliceLimits, splice
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING
from compactor.spark.session import spark_session
from compactor.storage.s3_store import S3ByteStore
from compactor.table_names import TableName
from deploy.demo.rest_catalog import SERVER
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.intake.event_query import HEARD_TYPES, EventDecoder, heard_of
from streaming.intake.event_sources import EventSources
from streaming.wiring import Rewriting, rewriting
from tests.benchmarks.bench_s3 import parquet_file
from tests.benchmarks.fleet.processes import DRIVER, JVM, WORKERS, Tree, processor_seconds
from tests.benchmarks.fleet.tables import Shape
from tests.benchmarks.scale.measured import CATALOG
from tests.benchmarks.scale.measured_looks import catalog
from tests.services.s3_server import S3Server, s3_server

WARM_UP, RUNS = 6, 8
PARTITIONS = 20
SHAPE = Shape(tables=WARM_UP + 2 * RUNS, partitions=PARTITIONS, history=23)
BATCHES, EVENTS = 6, 20_000
FILES, FILE_BYTES = 8, (8_000_000, 64_000_000)


@dataclass(frozen=True)
class Used:
    """Processor seconds by process. The catalog's server is not in it."""

    driver: float
    jvm: float
    workers: float


@dataclass(frozen=True)
class Processors:
    """This process, its JVM and its Python workers."""

    tree: Tree

    def of(self, work: Callable[[], object], times: int) -> Used:
        """What `work` takes, divided by `times`."""
        before, catalog_before = self.tree.processor_by_name(), self._catalog()
        work()
        time.sleep(1.5)  # Spark cleans up behind a job
        after = self.tree.processor_by_name()
        used = {name: after[name] - before.get(name, 0.0) for name in after}
        jvm = used.get(JVM, 0.0) - (self._catalog() - catalog_before)
        return Used(used.get(DRIVER, 0.0) / times, jvm / times, used.get(WORKERS, 0.0) / times)

    def _catalog(self) -> float:
        """The REST server's time: it is a child of this process, and no part of firnline."""
        for pid in self.tree.pids():
            if SERVER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return processor_seconds(pid)
        return 0.0


def measure(folder: Path) -> dict[str, Any]:
    """Processor seconds of all processes, and requests."""
    return {**_on_spark(folder), **_inside_s3(folder)}


def _on_spark(folder: Path) -> dict[str, float]:
    with catalog(folder, SHAPE) as site:
        settings = Settings.model_validate(
            {
                "catalogs": {CATALOG: site.properties},
                "spark": {"master": "local[2]"},
                "state": {"checkpoint": f"file://{folder}/checkpoint"},
                "service": {"manifest_disk_bytes": 0},
            }
        )
        with _session(settings) as session:
            processors = Processors(Tree(os.getpid()))
            processors.tree.watch()
            batches = _batches(session, processors)
            catalogs, cache = Catalogs(settings.catalogs), ManifestCache(64 << 20)
            parts = rewriting(
                settings, session, catalogs, cache, ignore, checkpoint=settings.state.checkpoint, beside_stream=False
            )
            names = [TableName(CATALOG, (namespace,), name) for namespace, name in site.fleet.shape.names]
            _run(parts, settings, names[:WARM_UP], None)
            narrow, wide = names[WARM_UP : WARM_UP + RUNS], names[WARM_UP + RUNS :]
            one = processors.of(lambda: _run(parts, settings, narrow, "part = 'p000'"), RUNS)
            all_ = processors.of(lambda: _run(parts, settings, wide, None), RUNS)
            parts.cluster.stop()
            processors.tree.leave()
            found = dict(batches)
            for process in ("driver", "jvm", "workers"):
                few, many = getattr(one, process), getattr(all_, process)
                output = max(0.0, many - few) / (PARTITIONS - 1)
                found[f"run_{process}"], found[f"run_output_{process}"] = max(0.0, few - output), output
            return found


@contextmanager
def _session(settings: Settings) -> Iterator[SparkSession]:
    session = spark_session(settings)
    try:
        yield session
    finally:
        session.stop()


def _run(parts: Rewriting, settings: Settings, names: list[TableName], where: str | None) -> None:
    for name in names:
        table = parts.catalogs.load(name)
        policy = settings.policy.for_table(name, table.properties)
        plan = plan_table(table, policy, parts.cache, Request(where=where, force=True))
        result = parts.rewriter.run(plan, enabled=lambda name=name: bool(parts.catalogs.load(name)))  # type: ignore[misc]
        assert len(result.groups) == (PARTITIONS if where is None else 1)


def _batches(session: SparkSession, processors: Processors) -> dict[str, float]:
    """A job as each micro-batch has one, with few events and with many."""
    changed = TableChanged(
        source="bench", event_id="e" * 36, catalog=CATALOG, namespace=("db",), name="t00000", timestamp_ms=1,
        snapshot_id=1, operation="append",
    )  # fmt: skip
    value = canonical.encode(changed, sender="bench")[1]

    def job(events: int) -> None:
        read = session.range(0, events, 1, 1).select(
            F.lit(value).alias("value"),
            F.lit(len(value)).alias("bytes"),
            F.lit(1).cast("long").alias("timestamp_ms"),
        )
        types = from_arrow_schema(HEARD_TYPES)
        rows = read.mapInArrow(EventDecoder(EventSources((CATALOG,)), EVERYTHING).rows, types).collect()
        assert len([heard_of(row) for row in rows]) == events

    def jobs(events: int) -> None:
        for _ in range(BATCHES):
            job(events)

    jobs(1)
    jobs(EVENTS)
    few, many = processors.of(lambda: jobs(1), BATCHES), processors.of(lambda: jobs(EVENTS), BATCHES)
    return {
        "batch_driver": few.driver,
        "batch_spark": few.jvm + few.workers,
        "event_row": max(0.0, many.driver - few.driver) / EVENTS,
        "event_on_spark": max(0.0, many.jvm + many.workers - few.jvm - few.workers) / EVENTS,
    }


def _inside_s3(folder: Path) -> dict[str, Any]:
    """Splices of eight files into one, inside an S3 server: its requests by kind, and this process' time."""
    scratch = folder / "s3"
    scratch.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with s3_server(scratch) as server:
        for size in FILE_BYTES:
            data = parquet_file(size, 1)
            place = server.folder()
            inputs = [SpliceInput(server.put(f"{place}/{number}.parquet", data), len(data)) for number in range(FILES)]
            requests, seconds = _spliced(server, inputs, f"{place}/out.parquet")
            total = sum(source.size for source in inputs)
            found[str(size)] = {"requests": dict(requests), "files": FILES, "bytes": total, "seconds": seconds}
    one = found[str(FILE_BYTES[0])]["requests"]
    return {
        "splice_in_s3": found,
        "splice_file": sum(each["seconds"] / FILES for each in found.values()) / len(found),
        # Each input: its footer and its indexes are read, its row groups are one copied range.
        "splice_gets_file": float(one["GET"] // FILES),
        "splice_copies_file": one["COPY"] / FILES,
        "splice_gets_output": float(one["GET"] % FILES + one["HEAD"]),
        "splice_puts_output": float(one["PUT"] + one["POST"]),
    }


def _spliced(server: S3Server, inputs: list[SpliceInput], output: str) -> tuple[Counter[str], float]:
    store = S3ByteStore(server.properties)
    requests: Counter[str] = Counter()

    def sent(request: Any, **_more: Any) -> None:
        copied = "x-amz-copy-source" in {name.lower() for name in request.headers}
        requests["COPY" if copied else request.method] += 1

    store.client.meta.events.register("before-send.s3", sent)
    started = time.process_time()
    footers = [read_footer(store, source.location, source.size) for source in inputs]
    splice(store, inputs, output, SpliceLimits(), footers=footers)
    return requests, time.process_time() - started
