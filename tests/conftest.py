"""Real parts for the tests: one Spark session, one broker, fresh catalogs and warehouses.

A service is taken from (1) an address in the environment, (2) testcontainers where a daemon and the image are there,
(3) the local process the demo uses: tests/services/. The header of the test run says which.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from pyiceberg.catalog import Catalog
from xdist.scheduler import LoadScopeScheduling

from compactor import redaction
from compactor.commit.in_flight import InFlightRecords
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.runs.results import RunResult
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings, Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from tests.correctness.metadata_reader import TableMetadata
from tests.properties.examples import ALL
from tests.services.kafka_broker import kafka_source
from tests.services.quick_java import SPARK_CONF
from tests.services.rest_catalog import rest_catalog_source
from tests.services.s3_server import s3_source

# The same examples every time in CI, fresh ones elsewhere; no deadline, machines are shared.
hypothesis_settings.register_profile(
    "firnline",
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() == "true",
    max_examples=100 if ALL else 50,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("firnline")
hypothesis_settings.register_profile(  # that a test fails is enough
    "mutations",
    hypothesis_settings.get_profile("firnline"),
    phases=[Phase.explicit, Phase.generate],
)


pytest_plugins = ["tests.services.fixtures"]


def pytest_configure() -> None:
    """Without a handler, Python prints warnings of threads between two tests."""
    logging.getLogger().addHandler(logging.NullHandler())


def pytest_report_header() -> str:
    return f"kafka broker: {kafka_source()}; S3: {s3_source()}; REST catalog: {rest_catalog_source()}"


GROUPS = {
    "services": ("cluster", "foreign_topics", "operations", "service"),
    "servers": (
        "commands",
        "conditional_load",
        "connection_checks",
        "packaging",
        "reporter",
        "s3_store",
    ),
    "runs": (
        "assess",
        "broken_rules",
        "chaos",
        "commit",
        "compact",
        "conversion",
        "correctness",
        "deletion_vectors",
        "dry_run",
        "rolled_back",
    ),
}
"""Groups of integration tests, by the first words of their file names. `services` start `firnline run` and mostly wait.
`servers` start other servers and processes. `runs` share a Spark session; all other files, `tables`, share another."""


def _group(nodeid: str) -> str:
    """The tests that run in one process: a group of integration tests, or a file."""
    if nodeid.startswith("tests/contracts/"):
        return "servers"
    if not nodeid.startswith("tests/integration/"):
        return nodeid.partition("::")[0]
    file = nodeid.removeprefix("tests/integration/test_")
    return next((group for group, names in GROUPS.items() if file.startswith(names)), "tables")


LONG = ("tables", "runs", "services", "servers", "tests/properties/test_simulator.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first; all other files fill the processes up at the end."""
    rank = {group: number for number, group in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(_group(item.nodeid), len(LONG)))


class _FourProcesses(LoadScopeScheduling):
    """With `-n 4`: each group in one process, which starts its session, broker or server once.

    All other tests go, by file, to the process that is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # else groups of few tests would begin last
    return _FourProcesses(config, log)


@pytest.fixture(autouse=True)
def _secrets_of_this_test() -> Iterator[None]:
    """A process hides every secret it has seen. Secrets of one test must not hide texts of the next."""
    before, redaction._known = redaction._known, redaction._Known()
    yield
    redaction._known = before


@pytest.fixture(autouse=True)
def _log_of_this_test() -> Iterator[None]:
    """A command that runs in this process sets up its log. Threads that end later must not print by it."""
    root, firnline = logging.getLogger(), logging.getLogger("firnline")
    before = [*root.handlers], root.level, firnline.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:], level, of_firnline, sys.excepthook, threading.excepthook = before
    root.setLevel(level)
    firnline.setLevel(of_firnline)


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

    def metadata(self, table: str) -> TableMetadata:
        """The table's newest metadata file, read by neither firnline nor Spark; the catalog says which it is."""
        return TableMetadata.read(self.catalog.load_table(self.name(table).identifier).metadata_location)

    def live_files(self, table: str) -> list[str]:
        metadata = self.metadata(table.replace("`", ""))
        head = metadata.head()
        return [] if head is None else [entry.path for entry in metadata.state(head).data]

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
            self.session,
            self.catalogs,
            cache,
            self.in_flight(),
            slots=SlotPool(slots),
            lease_seconds=60,
            check_seconds=3600,
            commit=CommitSettings(hold_seconds=0),  # the tests' own deletes are no writer to wait for
        )
        return rewriter.run(plan)


def lake_settings(folder: Path, **sections: Any) -> Settings:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return Settings(catalogs={"lake": properties}, spark={"master": "local[2]", "conf": SPARK_CONF}, **sections)


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
