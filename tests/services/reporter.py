"""Iceberg's metrics reporter of firnline: its jar, and a catalog in memory that uses it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compactor.errors import InputError
from deploy.reporter.build import build, find_compiler
from tests.services.java_process import JavaProcess
from tests.services.kafka_topics import records

REPORTER = "io.firnline.iceberg.KafkaMetricsReporter"
NUMBERS = ("Sent", "Dropped", "Failed", "Pending")
BEANS = "io.firnline.iceberg:type=KafkaMetricsReporter,*"


def built_reporter(folder: Path) -> Path:
    """The jar, built from the sources; the test is skipped where there is no JDK."""
    try:
        find_compiler()
    except InputError as error:
        pytest.skip(str(error))
    return build(folder)


def properties(broker: str, topic: str, **more: str) -> dict[str, str]:
    """Catalog properties. Names have dots: pass `more` as **{"firnline.reports": "all"}."""
    return {
        "metrics-reporter-impl": REPORTER,
        "firnline.kafka.bootstrap-servers": broker,
        "firnline.kafka.topic": topic,
        **more,
    }


def new_topic() -> str:
    return f"commits-{uuid.uuid4().hex[:12]}"


@dataclass
class Catalog:
    """Iceberg's catalog in memory: real commits, in milliseconds."""

    jvm: JavaProcess
    properties: dict[str, str]
    name: str = "lake"
    java: Any = field(init=False)

    def __post_init__(self) -> None:
        self.java = self.jvm.java.org.apache.iceberg.inmemory.InMemoryCatalog()
        self.java.initialize(self.name, self.jvm.map(self.properties))

    def table(self, name: str) -> Any:
        """A new table, unpartitioned."""
        iceberg = self.jvm.java.org.apache.iceberg
        namespace = iceberg.catalog.Namespace.of(self._texts("db"))
        if not self.java.namespaceExists(namespace):
            self.java.createNamespace(namespace)
        columns = self.jvm.java.java.util.ArrayList()
        columns.add(iceberg.types.Types.NestedField.required(1, "id", iceberg.types.Types.LongType.get()))
        return self.java.createTable(iceberg.catalog.TableIdentifier.of(namespace, name), iceberg.Schema(columns))

    def append(self, table: Any) -> int:
        """Commit one file that does not exist; the snapshot's id."""
        file = (
            self.jvm.java.org.apache.iceberg.DataFiles.builder(table.spec())
            .withPath(f"/data/{uuid.uuid4().hex}.parquet")
            .withFileSizeInBytes(10)
            .withRecordCount(1)
            .build()
        )
        table.newFastAppend().appendFile(file).commit()
        return int(table.currentSnapshot().snapshotId())

    def _texts(self, *values: str) -> Any:
        made = self.jvm.gateway.new_array(self.jvm.java.java.lang.String, len(values))
        for position, value in enumerate(values):
            made[position] = value
        return made


def numbers(jvm: JavaProcess) -> dict[str, int]:
    """Sums over all senders of the JVM, from their MBeans: Sent, Dropped, Failed, Pending, and how many senders."""
    server = jvm.java.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    beans = list(server.queryNames(jvm.java.javax.management.ObjectName(BEANS), None))
    found = {name: sum(int(server.getAttribute(bean, name)) for bean in beans) for name in NUMBERS}
    return found | {"senders": len(beans)}


def producers(jvm: JavaProcess) -> list[str]:
    """Versions of the Kafka producers that are open in the JVM, from Kafka's own MBeans."""
    server = jvm.java.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    pattern = jvm.java.javax.management.ObjectName("kafka.producer:type=app-info,id=*")
    return [str(server.getAttribute(bean, "Version")) for bean in server.queryNames(pattern, None)]


def documents(broker: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in records(topic, bootstrap_servers=broker)]
