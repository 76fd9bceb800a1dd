"""`firnline run` as a process of its own, and quick ingestion beside it: PyIceberg appends and canonical events.

The service runs in its own session, so that a test can kill it as a crash would: the Python process alone, without
warning. Its JVM then finds its standard input closed and ends by itself, as it does in production.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from click.testing import CliRunner
from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from compactor.commit.in_flight import InFlightRecords
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.owner import Owner
from compactor.locations import plain_path
from compactor.settings.origins import ENVIRONMENT_PREFIX
from compactor.settings.tree import Settings, load_settings
from compactor.table_names import TableName
from deploy.demo.local_process import free_port
from streaming.cli import main
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from tests.services.kafka_topics import records
from tests.services.processes import group_members, kill
from tests.services.quick_java import SPARK_CONF
from tests.services.waiting import PATIENCE, wait_for

ROOT = Path(__file__).resolve().parents[2]
STOP_PROMISE = max(30.0, PATIENCE / 8)  # seconds that SIGTERM may take; on a busy machine it takes longer
MIN_INPUT_FILES = 5
LEVELS = {"debug", "info", "warning", "warn", "error", "critical", "fatal"}
PAYLOAD_BYTES = 120  # a row, which does not compress
ROWS = pa.schema([pa.field("part", pa.string(), nullable=False), ("id", pa.int64()), ("payload", pa.string())])


def label(table: str) -> dict[str, str]:
    """The labels of a table's metrics."""
    return {"catalog": "lake", "table": f"lake.db.{table}"}


@dataclass(frozen=True)
class Metrics:
    """One scrape."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def total(self, name: str, **labels: str) -> float:
        """The sum over a metric's series that carry all of `labels`."""
        wanted = frozenset(labels.items())
        return sum(value for (one, has), value in self.samples.items() if one == name and wanted <= has)


class ServiceProcess:
    """One life of the service. `command` goes before the interpreter, e.g. to run it as somebody else. `port`: of its
    HTTP pages; without one, a free port.
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        *,
        observe: bool = False,
        command: Iterable[str] = (),
        port: int | None = None,
        **environment: str,
    ) -> None:
        self.port = port or free_port()
        self.log = log
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, sys.executable, "-m", "streaming.cli", "-c", str(config), "run", *(["--observe"] * observe)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env={
                    **kept,
                    "FIRNLINE_HTTP__HOST": "127.0.0.1",
                    "FIRNLINE_HTTP__PORT": str(self.port),
                    "PYTHONUNBUFFERED": "1",
                    "COLUMNS": "240",
                    **environment,
                },
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str] | None:
        """Status and body; None while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, HTTPException, OSError):
            return None

    def wait_ready(self) -> list[int]:
        """Wait for /readyz to say 200; returns the different answers on the way."""
        seen: list[int] = []

        def ready() -> bool:
            self.must_run()
            answer = self.get("/readyz")
            if answer is not None and answer[0] not in seen[-1:]:
                seen.append(answer[0])
            return seen[-1:] == [200]

        wait_for("/readyz to say 200", ready, every=0.05)
        return seen

    def metrics(self) -> Metrics:
        answer = self.get("/metrics")
        assert answer is not None, f"/metrics does not answer:\n{self.log_text[-3000:]}"
        assert answer[0] == 200
        return Metrics(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(answer[1])
                for sample in family.samples
            }
        )

    def wait_metric(self, name: str, at_least: float = 1, **labels: str) -> Metrics:
        """The first scrape in which the metric has come to `at_least`."""

        def look() -> Metrics | None:
            self.must_run()
            metrics = self.metrics()
            return metrics if metrics.total(name, **labels) >= at_least else None

        try:
            return wait_for(f"{name}{labels or ''} to reach {at_least}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text[-3000:]}") from None

    def must_run(self) -> None:
        assert self._process.poll() is None, f"the service ended ({self._process.returncode}):\n{self.log_text[-3000:]}"

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; returns exit code and seconds it took."""
        started = time.monotonic()
        self._process.terminate()
        code = self._process.wait(timeout=PATIENCE)
        return code, time.monotonic() - started

    def ended(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        return self._process.wait(timeout=PATIENCE)

    def pause(self, *, whole: bool) -> None:
        """Stop the Python process, or the `whole` service with its JVM and workers; `resume` lets it go on."""
        self._signal(signal.SIGSTOP, whole=whole)

    def resume(self, *, whole: bool) -> None:
        """See `pause`."""
        self._signal(signal.SIGCONT, whole=whole)

    def _signal(self, number: signal.Signals, *, whole: bool) -> None:
        (os.killpg if whole else os.kill)(self.pid, number)

    def kill(self) -> None:
        """Kill the Python process, nothing else; its JVM ends by itself."""
        self._process.kill()
        self._process.wait()
        wait_for("the killed service's JVM to end", lambda: not group_members(self.pid))

    def clean_up(self) -> None:
        """Leave nothing running, whatever the test did."""
        if self._process.poll() is None:
            self.resume(whole=True)
            self._process.terminate()
            try:
                self._process.wait(timeout=2 * STOP_PROMISE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        kill(group_members(self.pid))


def log_lines(text: str) -> list[dict[str, Any]]:
    """A log as JSON objects with the fields that each must have; nothing else may be in it."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert line["level"] in LEVELS, line
        assert {type(line[field]) for field in ("message", "logger", "timestamp")} == {str}, line
        assert "\n\tat " not in line["message"], line
    return lines


@dataclass
class Site:
    """A catalog, a warehouse, two topics and a settings file of one test's own; services are started on it."""

    folder: Path
    broker: str
    sections: Mapping[str, Any] = field(default_factory=dict)
    topic: str = field(default_factory=lambda: f"commits-{uuid.uuid4().hex[:8]}")
    services: list[ServiceProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_config()
        self.catalogs = Catalogs(self.settings.catalogs)
        self.catalogs.catalog("lake").create_namespace_if_not_exists("db")

    def write_config(self) -> None:
        """The settings file for services that are started from now on."""
        self.config.write_text(yaml.safe_dump(self._tree()))

    def _tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "catalogs": {
                "lake": {
                    "type": "sql",
                    "uri": f"sqlite:///{self.folder}/catalog.db",
                    "warehouse": f"file://{self.folder}/warehouse",
                }
            },
            "tables": {"include": ["db.*"]},
            "kafka": {
                "bootstrap_servers": self.broker,
                "commit_topic": self.topic,
                "dead_letter_topic": f"{self.topic}-dead",
            },
            "spark": {"master": "local[2]", "conf": dict(SPARK_CONF)},
            "policy": {"strategy": "threshold"},
            "state": {"checkpoint": f"file://{self.folder}/checkpoint"},
            "service": {"sweep_seconds": 5},
        }
        for section, values in self.sections.items():
            tree[section] = {**tree.get(section, {}), **values} if isinstance(values, dict) else values
        return tree

    @property
    def config(self) -> Path:
        return self.folder / "firnline.yaml"

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self.config, {})

    @cached_property
    def producer(self) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self.broker.split(","), acks="all")

    def start(self, **options: Any) -> ServiceProcess:
        service = ServiceProcess(self.config, self.folder / f"service-{len(self.services)}.log", **options)
        self.services.append(service)
        return service

    def started(self, **options: Any) -> ServiceProcess:
        """A service that is ready."""
        service = self.start(**options)
        service.wait_ready()
        return service

    def close(self) -> None:
        for service in self.services:
            service.clean_up()
        if "producer" in self.__dict__:
            self.producer.close(timeout=3)

    # Tables

    def name(self, table: str) -> TableName:
        return TableName("lake", ("db",), table)

    def view(self, table: str) -> TableView:
        return self.catalogs.load(self.name(table))

    def create(self, table: str, **properties: str) -> None:
        schema = Schema(
            NestedField(1, "part", StringType(), required=True),
            NestedField(2, "id", LongType()),
            NestedField(3, "payload", StringType()),
        )
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
        given = {"firnline.policy.min_row_group_size": "0", **properties}
        self.catalogs.catalog("lake").create_table(("db", table), schema, partition_spec=spec, properties=given)

    def set_properties(self, table: str, **properties: str) -> None:
        with self.catalogs.catalog("lake").load_table(("db", table)).transaction() as change:
            change.set_properties(properties)

    def append(self, table: str, commits: int = 6, parts: int = 4, rows: int = 1000) -> list[TableChanged]:
        """`commits` appends, each one file per partition; returns the events that a writer would publish.

        A table that is not there is created.
        """
        if not self.catalogs.catalog("lake").table_exists(("db", table)):
            self.create(table)
        loaded = self.catalogs.catalog("lake").load_table(("db", table))
        events = []
        for _ in range(commits):
            first = loaded.current_snapshot().sequence_number * 1_000_000 if loaded.current_snapshot() else 0
            columns = [
                [f"p{number % parts:02d}" for number in range(parts * rows)],
                list(range(first, first + parts * rows)),
                [random.randbytes(PAYLOAD_BYTES).hex() for _ in range(parts * rows)],
            ]
            loaded.append(pa.table(columns, schema=ROWS))
            snapshot = loaded.current_snapshot()
            events.append(self.event(table, snapshot_id=snapshot.snapshot_id, timestamp_ms=snapshot.timestamp_ms))
        return events

    def event(self, table: str, *, catalog: str | None = "lake", **values: Any) -> TableChanged:
        given = {"timestamp_ms": int(time.time() * 1000), "operation": "append", **values}
        return TableChanged("test", str(uuid.uuid4()), catalog, ("db",), table, **given)

    def publish(self, *events: TableChanged) -> None:
        for event in events:
            key, value = canonical.encode(event)
            self.send(value, key)

    def send(self, value: bytes | None, key: bytes | None = None, headers: Iterable[tuple[str, bytes]] = ()) -> None:
        self.producer.send(self.topic, key=key, value=value, headers=list(headers)).get(timeout=30)

    def announce(self, event: TableChanged) -> None:
        """Send an event without waiting for the broker's answer, as a writer does that must not be held up."""
        key, value = canonical.encode(event)
        self.producer.send(self.topic, key=key, value=value)

    def records(self, topic: str) -> list[Any]:
        """Everything on a topic, in order."""
        return records(topic, bootstrap_servers=self.broker.split(","))

    # What a table looks like to a reader

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        read = self.catalogs.catalog("lake").load_table(("db", table)).scan().to_arrow()
        return sorted(zip(*(read.column(name).to_pylist() for name in ("part", "id", "payload")), strict=True))

    def live_files(self, table: str) -> set[str]:
        return files_of(self.view(table), only_current=True)

    def is_compacted(self, table: str) -> bool:
        """Whether no partition is due. A sweep may find some of several commits before the others are made: their
        files are merged alone.
        """
        files = Counter(path.rpartition("/")[0] for path in self.live_files(table))
        return max(files.values()) < MIN_INPUT_FILES

    def unreferenced(self, table: str) -> set[str]:
        """Files in the table's data folder that no retained snapshot holds."""
        view = self.view(table)
        folder = Path(plain_path(view.metadata.location)) / "data"
        return {str(path) for path in folder.rglob("*") if path.is_file()} - files_of(view)

    def operations(self, table: str) -> list[str]:
        return [snapshot.summary.operation.value for snapshot in self.view(table).metadata.snapshots]

    def in_flight(self) -> InFlightRecords:
        return InFlightRecords(f"file://{self.folder}/checkpoint/in-flight", Owner.this_process(), 60, time.time)

    def outputs_in_flight(self) -> list[Path]:
        """Outputs noted by a run under way that have begun to exist."""
        return [
            path
            for record in self.in_flight().all()
            for path in map(Path, map(plain_path, record.files))
            if path.exists()
        ]


def files_of(view: TableView, *, only_current: bool = False) -> set[str]:
    """Paths of the live data files of the current snapshot, or of all."""
    snapshots = [view.snapshot] if only_current else view.metadata.snapshots
    return {
        plain_path(entry.data_file.file_path)
        for snapshot in snapshots
        if snapshot is not None
        for manifest in view.manifests(snapshot)
        for entry in manifest.fetch_manifest_entry(view.io, discard_deleted=True)
    }


@contextmanager
def site(folder: Path, broker: str, **sections: Any) -> Iterator[Site]:
    """A site that leaves nothing running."""
    made = Site(folder, broker, sections)
    try:
        yield made
    finally:
        made.close()


def firnline(config: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the CLI to its end."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "streaming.cli", "-c", str(config), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**kept, "COLUMNS": "240", **environment},
    )


def in_process(config: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `firnline`, without the seconds that a process needs to start. Not for `run`, which owns its process."""
    done = CliRunner().invoke(main, ["-c", str(config), *arguments], env=environment)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """Its standard output as JSON: nothing else may be printed there."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
