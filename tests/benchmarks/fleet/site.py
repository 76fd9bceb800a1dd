"""Where a fleet is measured: a broker, Iceberg's REST catalog behind the proxy, and services that use them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaProducer
from pyiceberg.catalog import Catalog, load_catalog

from compactor.settings.origins import ENVIRONMENT_PREFIX
from deploy.demo.rest_catalog import rest_catalog
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from tests.benchmarks.fleet.catalog_calls import CallLog, catalog_proxy
from tests.benchmarks.fleet.commits import Commit
from tests.benchmarks.fleet.processes import Tree
from tests.benchmarks.fleet.tables import Fleet, Pointers, pointers, write_ahead
from tests.integration.service_process import ROOT, STOP_PROMISE, free_port, group_members
from tests.services.kafka_broker import kafka_broker

CATALOG = "fleet"
SERVER_CATALOG = "rest_backend"  # the name under which Iceberg's server keeps its tables
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Published:
    """An event that was published: the commit that it names, and when."""

    commit: Commit
    at: float


class Service:
    """One life of the service, and the typed events that it has written."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log, self._events = folder / "service.log", folder / "events.jsonl"
        self._read, self._found = 0, list[dict[str, Any]]()
        config = folder / "firnline.yaml"
        config.write_text(yaml.safe_dump(settings))
        self._events.touch()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
        module = "tests.benchmarks.fleet.watched_service"
        self.started = time.time()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(config), str(self._events)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self.tree = Tree(self._process.pid)
        self.tree.watch()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The events so far, of one class if named, in order."""
        with self._events.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._read += len(complete)
        self._found += map(json.loads, complete.splitlines())
        return [event for event in self._found if not name or event["event"] == name]

    @property
    def ends_with(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    @property
    def end(self) -> dict[str, str]:
        """How the service ended; empty while it runs."""
        if self.running:
            return {}
        lines = self.log.read_text(errors="replace").splitlines()
        telling = [line for line in lines if "OutOfMemoryError" in line]
        return {"the_service_ended": (telling[0] if telling else self.ends_with)[:1000]}

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def must_run(self) -> None:
        assert self.running, f"the service ended ({self._process.returncode}):\n{self.ends_with}"

    def wait_ready(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while b"ready: " not in self.log.read_bytes():
            self.must_run()
            assert time.monotonic() < deadline, f"the service is not ready after {seconds} s:\n{self.ends_with}"
            time.sleep(LOOK_SECONDS)

    def sweep(self) -> None:
        """Let it look at all tables now."""
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """SIGTERM; whatever is left after twice the promised time is killed."""
        self.tree.leave()
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(timeout=2 * STOP_PROMISE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in group_members(self._process.pid):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Site:
    """The fleet's surroundings while they run."""

    folder: Path
    fleet: Fleet
    broker: str
    upstream: str
    proxy: CallLog
    pointers: Pointers
    sections: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def producer(self) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self.broker.split(","), acks=1, linger_ms=0)

    @cached_property
    def catalog(self) -> Catalog:
        """The REST catalog, directly."""
        return load_catalog(CATALOG, type="rest", uri=self.upstream, warehouse=self.fleet.warehouse)

    def settings(self, folder: Path, topic: str, **sections: dict[str, Any]) -> dict[str, Any]:
        """A settings file: the defaults, on this site. `sections` are merged into it."""
        tree: dict[str, Any] = {
            "catalogs": {CATALOG: {"type": "rest", "uri": self.proxy.uri, "warehouse": self.fleet.warehouse}},
            "kafka": {
                "bootstrap_servers": self.broker,
                "commit_topic": topic,
                "dead_letter_topic": f"{topic}-dead",
            },
            "spark": {"master": "local[2]"},
            "state": {"checkpoint": f"file://{folder}/checkpoint"},
            "http": {"host": "127.0.0.1", "port": free_port()},
            "logging": {"format": "json"},
        }
        for given in (self.sections, sections):
            for name, values in given.items():
                tree[name] = {**tree.get(name, {}), **values}
        return tree

    @contextmanager
    def service(self, name: str, *, only: bool = False, **sections: dict[str, Any]) -> Iterator[tuple[Service, str]]:
        """A service that is ready, with a checkpoint of its own, and its topic, which is new.

        The fleet's tables are as they were made; with `only` there are none, but those that a case adds.
        """
        self.pointers.reset({} if only else self.fleet.heads)
        topic = f"commits-{name}-{uuid.uuid4().hex[:8]}"
        folder = self.folder / f"service-{name}"
        service = Service(folder, self.settings(folder, topic, **sections))
        try:
            service.wait_ready()
            yield service, topic
        finally:
            service.stop()

    def publish(self, topic: str, commit: Commit) -> Published:
        """Make the commit current, then publish its event, as a writer would."""
        self.pointers.set(commit.table, commit.metadata_location)
        at = time.time()
        self.announce(topic, commit.table, commit.snapshot_id, at)
        return Published(commit, at)

    def announce(self, topic: str, table: tuple[str, str], snapshot_id: int | None, at: float) -> None:
        """Publish an event."""
        namespace, name = table
        changed = TableChanged(
            source="bench",
            event_id=str(uuid.uuid4()),
            catalog=CATALOG,
            namespace=(namespace,),
            name=name,
            timestamp_ms=int(at * 1000),
            snapshot_id=snapshot_id,
            operation="append",
        )
        key, value = canonical.encode(changed, sender="bench")
        self.producer.send(topic, key=key, value=value)

    def play(self, topic: str, commits: Sequence[Commit], rate: float) -> list[Published]:
        """Publish commits in order, `rate` a second, at even distances."""
        started, found = time.monotonic(), []
        for number, commit in enumerate(commits):
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
            found.append(self.publish(topic, commit))
        self.producer.flush()
        return found


def interleaved(chains: Sequence[Sequence[Commit]], seed: int = 1) -> list[Commit]:
    """All commits in one order: tables at random, each table's commits in theirs."""
    turns = [number for number, chain in enumerate(chains) for _ in chain]
    random.Random(seed).shuffle(turns)
    left = [iter(chain) for chain in chains]
    return [next(left[number]) for number in turns]


@contextmanager
def site(folder: Path, fleet: Fleet, delay_ms: float, sections: dict[str, Any]) -> Iterator[Site]:
    """Start broker, catalog and proxy; put the fleet into the catalog."""
    write_ahead(fleet.database)
    files = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with (
        kafka_broker(folder / "broker") as broker,
        rest_catalog(fleet.folder, fleet.warehouse, files) as upstream,
        catalog_proxy(folder / "proxy", upstream, delay_ms) as proxy,
        pointers(fleet.database, SERVER_CATALOG) as tables,
    ):
        made = Site(folder, fleet, broker, upstream, proxy, tables, sections)
        for namespace in sorted({namespace for namespace, _ in fleet.heads}):
            made.catalog.create_namespace_if_not_exists(namespace)
        tables.reset(fleet.heads)
        yield made
        made.producer.close(timeout=5)
