"""A real Kafka Connect worker (distributed mode) in its own process, with Iceberg's sink as its plugin."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from compactor.spark.java import java_home
from deploy.demo.local_process import free_port, local_process
from tests.services.quick_java import quick_java
from tests.services.writer_jars import CONNECT_JARS, SINK_JARS, storage_jars, writer_jars

SINK = "org.apache.iceberg.connect.IcebergSinkConnector"
WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
# The file's name must end with .properties: the sink finds it in the command line, and takes its brokers from it.
PROPERTIES = """\
bootstrap.servers={broker}
group.id=connect
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
offset.flush.interval.ms=5000
plugin.path={plugins}
plugin.discovery=service_load
"""


@dataclass(frozen=True)
class ConnectWorker:
    """Its REST API, and its log."""

    uri: str
    log: Path

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a connector, or change its settings."""
        self._call(f"/connectors/{name}/config", "PUT", dict(settings))

    def remove(self, name: str) -> None:
        """Stop a connector; its tasks end with what they have committed."""
        self._call(f"/connectors/{name}", "DELETE")

    def states(self, name: str) -> list[str]:
        """States of the connector and of its tasks, e.g. `RUNNING`; none before it has been assigned."""
        return [part["state"] for part in self._parts(name)]

    def failures(self, name: str) -> list[str]:
        """What the connector and its tasks say that have failed."""
        return [part.get("trace", "")[:1000] for part in self._parts(name) if part["state"] == "FAILED"]

    def _parts(self, name: str) -> list[dict[str, str]]:
        """The connector, then its tasks."""
        statuses = self._call("/connectors?expand=status")
        if name not in statuses:
            return []
        status = statuses[name]["status"]
        return [status["connector"], *status["tasks"]]

    def _call(self, path: str, method: str = "GET", body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - http
            f"{self.uri}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error
        return json.loads(text) if text else None


def sink_settings(table: str, topic: str, catalog: Mapping[str, str], control_topic: str) -> dict[str, str]:
    """Settings of a sink that commits to one table every five seconds. `catalog`: properties of Iceberg's client."""
    return {
        "connector.class": SINK,
        "tasks.max": "2",
        "topics": topic,
        "consumer.override.auto.offset.reset": "earliest",
        "iceberg.tables": table,
        "iceberg.catalog": "lake",
        **{f"iceberg.catalog.{name}": value for name, value in catalog.items()},
        "iceberg.control.topic": control_topic,
        "iceberg.control.commit.interval-ms": "5000",
    }


@contextmanager
def kafka_connect(folder: Path, broker: str, more_jars: Sequence[Path] = ()) -> Iterator[ConnectWorker]:
    """Run a worker. `more_jars` are put beside those of Iceberg's sink.

    Raises:
        GiveUpError: the process did not start; the message contains the end of its log.
    """
    plugins = folder / "plugins"
    sink = plugins / "iceberg-sink"
    sink.mkdir(parents=True)
    for jar in [*writer_jars(SINK_JARS), *storage_jars(), *more_jars]:
        (sink / jar.name).symlink_to(jar)
    port = free_port()
    properties = folder / "worker.properties"
    properties.write_text(PROPERTIES.format(broker=broker, port=port, plugins=plugins))
    jars = ":".join(map(str, writer_jars(CONNECT_JARS)))
    command = [str(java_home() / "bin" / "java"), "-Xmx768m", "-cp", jars, WORKER, str(properties)]
    worker = ConnectWorker(f"http://127.0.0.1:{port}", folder / "connect.log")
    with quick_java(local_process("connect", command, folder, lambda: _answers(worker.uri))):
        yield worker


def _answers(uri: str) -> bool:
    """Whether the worker has joined its group: before, it knows no connectors."""
    try:
        with urllib.request.urlopen(f"{uri}/connectors", timeout=5) as answer:  # noqa: S310 - http
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False
