"""Real parts for the tests: one Spark session, one broker, fresh catalogs and warehouses.

A service is taken from (1) an address in the environment, (2) testcontainers where a daemon and the image are there,
(3) the local process the demo uses. The header of the test run says which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from compactor.in_flight import InFlightRecords, Owner
from compactor.manifest_cache import ManifestCache
from compactor.plan_table import Request, plan_table
from compactor.rewriter import Rewriter
from compactor.run_result import RunResult
from compactor.settings import Settings
from compactor.spark_session import spark_session
from compactor.table_names import TableName
from compactor.tables import Catalogs, TableView
from tests.services.s3_server import s3_source

pytest_plugins = ["tests.services.fixtures"]

KAFKA_IMAGE = "apache/kafka:4.1.1"


def pytest_report_header() -> str:
    return f"kafka broker: {_broker_source()}; S3: {s3_source()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2 --dist loadgroup`: what shares Spark and servers runs in one process, the rest beside it."""
    for item in items:
        if item.path.parent.name in {"contracts", "integration"}:
            item.add_marker(pytest.mark.xdist_group("services"))


def _broker_source() -> str:
    if os.environ.get("TEST_KAFKA"):
        return f"address from TEST_KAFKA ({os.environ['TEST_KAFKA']})"
    if shutil.which("docker"):
        inspected = subprocess.run(["docker", "image", "inspect", KAFKA_IMAGE], capture_output=True, check=False)
        if inspected.returncode == 0:
            return f"testcontainers ({KAFKA_IMAGE})"
    return "local process (KRaft, Maven jars)"


@dataclass
class Lake:
    """A SQLite catalog and a local warehouse, seen by Spark as catalog `lake` and by PyIceberg."""

    folder: Path
    settings: Settings
    session: Any
    catalogs: Catalogs

    @property
    def catalog(self) -> Catalog:
        return self.catalogs.catalog("lake")

    def name(self, table: str) -> TableName:
        return TableName.parse(table, ["lake"])

    def view(self, table: str) -> TableView:
        return self.catalogs.load(self.name(table))

    def sql(self, text: str) -> list[Any]:
        return list(self.session.sql(text).collect())

    def live_files(self, table: str) -> list[str]:
        return [row.file_path for row in self.sql(f"SELECT file_path FROM lake.{table}.data_files")]

    def rows(self, table: str, columns: str = "*") -> list[Any]:
        """All rows as Spark reads them, in a stable order, for comparing before and after."""
        return sorted((tuple(row) for row in self.sql(f"SELECT {columns} FROM lake.{table}")), key=repr)

    def in_flight(self) -> InFlightRecords:
        import time  # noqa: PLC0415

        return InFlightRecords(f"file://{self.folder}/in-flight", Owner.this_process(), 60, time.time)

    def compact(self, table: str, *, slots: int = 2, **request: Any) -> RunResult:
        """Plan and rewrite in this session. Policy overrides go through `settings` of the fixture."""
        cache = ManifestCache(64 * 1024 * 1024)
        view = self.view(table)
        plan = plan_table(view, self.settings.policy.for_table(view.name), cache, Request(**request))
        rewriter = Rewriter(
            self.session, self.catalogs, cache, self.in_flight(), slots=slots, lease_seconds=60, check_seconds=15
        )
        return rewriter.run(plan)


def lake_settings(folder: Path, **sections: Any) -> Settings:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return Settings(catalogs={"lake": properties}, spark={"master": "local[2]"}, **sections)


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One session for the whole run: starting Spark costs seconds. Tests take namespaces or tables of their own."""
    folder = tmp_path_factory.mktemp("lake")
    settings = lake_settings(folder, policy={"min_row_group_size": 0})
    session = spark_session(settings, "firnline-tests")
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    yield Lake(folder, settings, session, Catalogs(settings.catalogs))
    session.stop()


@pytest.fixture
def table_name() -> str:
    """A table name nobody else uses."""
    return f"db.t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bootstrap address; see the module's docstring for where it comes from."""
    given = os.environ.get("TEST_KAFKA")
    if given:
        yield given
    elif _broker_source().startswith("testcontainers"):
        yield from _container_broker()
    else:
        from streaming.demo.broker import embedded_broker  # noqa: PLC0415

        with embedded_broker(tmp_path_factory.mktemp("kafka")) as address:
            yield address


def _container_broker() -> Iterator[str]:
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.waiting_utils import wait_for_logs  # noqa: PLC0415

    from streaming.demo.local_process import free_port  # noqa: PLC0415

    port = free_port()
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(9092, port)
    for key, value in {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    }.items():
        container = container.with_env(key, value)
    with container:
        wait_for_logs(container, "Kafka Server started", timeout=60)
        yield f"127.0.0.1:{port}"
