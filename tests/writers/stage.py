"""What all writers share: a broker, an S3 server, a REST catalog, the service, and a Spark session for tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from kafka.admin import KafkaAdminClient, NewTopic
from pyiceberg.table.snapshots import Operation

from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from deploy.demo.rest_catalog import files_on
from deploy.reporter.build import build
from tests.benchmarks.fleet.site import Service
from tests.conftest import Lake
from tests.services.kafka_broker import kafka_broker
from tests.services.quick_java import SPARK_CONF
from tests.services.reporter import REPORTER
from tests.services.rest_catalog import RestCatalog, shared_rest_catalog
from tests.services.s3_server import s3_server
from tests.writers.judgement import Commit

CATALOG: Final = "lake"
ROWS_TOPIC: Final = "rows"
"""What Kafka Connect and Spark read."""
CONTROL_TOPIC: Final = "control-iceberg"
COMMIT_TOPIC: Final = "iceberg-commits"
MIN_INPUT_FILES: Final = 8
NEVER: Final = 86_400.0  # seconds; the longest that the setting allows
FEW: Final = 0.0001  # looks a second that no event asks for


@dataclass(frozen=True)
class Target:
    """A table that a writer commits to, in the namespace `db`. `name`: of the writer, for people.

    `announced_by`: how firnline learns of its commits, in words. `upserts`: rows have an identity.
    """

    name: str
    table: str
    announced_by: str
    version: int = 2
    upserts: bool = False


@dataclass(frozen=True)
class Stage:
    """Everything, started. `reporter`: jar of the metrics reporter; `lake`: the catalog as a reader sees it."""

    folder: Path
    broker: str
    catalog: RestCatalog
    reporter: Path
    lake: Lake
    service: Service

    @cached_property
    def java_catalog(self) -> dict[str, str]:
        """Properties of the catalog for Iceberg's Java client, without its type."""
        return {"uri": self.catalog.uri, "warehouse": self.catalog.warehouse, **files_on(self.catalog.s3)}

    @cached_property
    def reporter_properties(self) -> dict[str, str]:
        """The catalog properties that a Java writer gets, and nothing else."""
        return {"metrics-reporter-impl": REPORTER, "firnline.kafka.bootstrap-servers": self.broker}

    def commits(self, table: str) -> list[Commit]:
        """All snapshots of a table in `db`. Nothing expires them."""
        snapshots = self.lake.catalogs.load(TableName(CATALOG, ("db",), table)).metadata.snapshots
        return [
            Commit(
                each.snapshot_id,
                each.sequence_number or 0,
                each.timestamp_ms / 1000,
                each.summary is None or each.summary.operation is not Operation.REPLACE,
            )
            for each in snapshots
        ]

    def total_records(self, table: str) -> int:
        """Rows that the current snapshot's summary names."""
        head = self.lake.catalogs.load(TableName(CATALOG, ("db",), table)).snapshot
        return 0 if head is None or head.summary is None else int(head.summary.get("total-records", "0") or 0)

    def rows(self, table: str) -> list[tuple[int, str]]:
        """All rows as Spark reads them, deletes applied."""
        self.lake.sql(f"REFRESH TABLE lake.db.{table}")
        return [(row.id, row.v) for row in self.lake.sql(f"SELECT id, v FROM lake.db.{table}")]

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Typed events of the service, in order."""
        return self.service.events(name)


@contextmanager
def staged(folder: Path, targets: Sequence[Target]) -> Iterator[Stage]:
    """Start everything. Tables are made before the service starts, and are empty."""
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_broker(folder / "broker"))
        s3_folder, catalog_folder = folder / "s3", folder / "catalog"
        for each in (s3_folder, catalog_folder):
            each.mkdir()
        s3 = stack.enter_context(s3_server(s3_folder))
        catalog = stack.enter_context(shared_rest_catalog(catalog_folder, s3))
        lake = _lake(folder, catalog)
        stack.callback(lake.session.stop)
        lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
        for target in targets:
            _create(lake, target)
        _create_topic(broker, ROWS_TOPIC, partitions=2)
        service = Service(folder / "service", _settings(folder / "service", broker, catalog))
        stack.callback(service.stop)
        service.wait_ready()
        yield Stage(folder, broker, catalog, build(folder / "reporter"), lake, service)


def _settings(folder: Path, broker: str, catalog: RestCatalog) -> dict[str, Any]:
    """The service's settings. No look without an event comes within a day, but those of the start."""
    return {
        "catalogs": {CATALOG: catalog.properties},
        "tables": {"include": ["db.*"]},
        "kafka": {"bootstrap_servers": broker, "commit_topic": COMMIT_TOPIC, "commit_topics": [CONTROL_TOPIC]},
        "spark": {"master": "local[2]", "conf": dict(SPARK_CONF)},
        "policy": {"min_input_files": MIN_INPUT_FILES},
        "state": {"checkpoint": f"file://{folder}/checkpoint"},
        "service": {
            "sweep_seconds": NEVER,
            "sweep_calls_per_second": FEW,
        },
        "http": {"host": "127.0.0.1", "port": 0},
        "logging": {"format": "json"},
    }


def _lake(folder: Path, catalog: RestCatalog) -> Lake:
    conf = {**SPARK_CONF, "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    settings = Settings(catalogs={CATALOG: catalog.properties}, spark={"master": "local[1]", "conf": conf})
    session = spark_session(settings, "firnline-test-writers")
    return Lake(folder, settings, session, Catalogs(settings.catalogs))


def _create(lake: Lake, target: Target) -> None:
    key = "id BIGINT NOT NULL" if target.upserts else "id BIGINT"
    lake.sql(
        f"CREATE TABLE lake.db.{target.table} ({key}, v STRING) USING iceberg PARTITIONED BY (bucket(2, id)) "
        f"TBLPROPERTIES ('format-version' = '{target.version}')"
    )
    if target.upserts:
        lake.sql(f"ALTER TABLE lake.db.{target.table} SET IDENTIFIER FIELDS id")


def _create_topic(broker: str, topic: str, partitions: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker)
    try:
        admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1)])
    finally:
        admin.close()
