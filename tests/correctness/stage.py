"""Where the cells are played: one Spark session, SQLite catalogs in a temporary folder, splices of any size allowed."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from compactor.iceberg.tables import Catalogs
from compactor.rewrite.splice.splice import SpliceLimits
from compactor.settings.tree import Settings
from compactor.spark.java_table import activate
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from tests.conftest import Lake

ANY_SIZE = SpliceLimits(min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=1e9, max_footer_bytes=2**40)
LIMITS_ARE_SET_IN = "compactor.rewrite.tasks.task_input"
NAMESPACE = "db"


@contextlib.contextmanager
def any_size_splices() -> Iterator[None]:
    """Row groups of test files are tiny: nothing but their size would speak against a splice."""
    module: Any = importlib.import_module(LIMITS_ARE_SET_IN)
    real = module.splice_task

    def without_size_limits(*arguments: Any, **more: Any) -> Any:
        return replace(real(*arguments, **more), limits=ANY_SIZE)

    module.splice_task = without_size_limits
    try:
        yield
    finally:
        module.splice_task = real


@dataclass
class Stage(Lake):
    """A `Lake` with a catalog of its own, so that several cells can run beside each other without SQLite's locks."""

    catalog_name: str = "lake"
    java_tables: dict[str, Any] = field(default_factory=dict)

    @property
    def catalog(self) -> Catalog:
        return self.catalogs.catalog(self.catalog_name)

    def name(self, table: str) -> TableName:
        return TableName(self.catalog_name, tuple(table.split("."))[:-1], table.rsplit(".", 1)[-1])


def java_catalog(stage: Lake, catalog_name: str) -> Any:
    """Iceberg's Java catalog behind Spark's."""
    activate(stage.session)
    return stage.session._jsparkSession.sessionState().catalogManager().catalog(catalog_name).icebergCatalog()


def java_table(stage: Lake, table: str) -> Any:
    """The table in the JVM, at its newest metadata."""
    activate(stage.session)
    kept = getattr(stage, "java_tables", {})
    if table in kept:
        kept[table].refresh()
        return kept[table]
    spark3_util = stage.session._jvm.org.apache.iceberg.spark.Spark3Util
    kept[table] = spark3_util.loadIcebergTable(stage.session._jsparkSession, stage.name(table).spark)
    return kept[table]


@contextlib.contextmanager
def open_stages(count: int = 1, folder: Path | None = None) -> Iterator[list[Stage]]:
    """`count` stages sharing one session; everything below `folder` (a temporary one) is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="correctness-") as made, any_size_splices():
        root = Path(made)
        names = [f"lake{number}" for number in range(count)]
        catalogs = {
            name: {"type": "sql", "uri": f"sqlite:///{root}/{name}.db", "warehouse": f"file://{root}/{name}"}
            for name in names
        }
        settings = Settings(
            catalogs=catalogs, spark={"master": "local[2]"}, policy={"min_row_group_size": 0, "min_input_files": 2}
        )
        session = spark_session(settings, "firnline-correctness")
        try:
            shared = Catalogs(settings.catalogs)
            stages = [Stage(root, settings, session, shared, name) for name in names]
            for stage in stages:
                session.sql(f"CREATE NAMESPACE IF NOT EXISTS {stage.catalog_name}.{NAMESPACE}")
            yield stages
        finally:
            session.stop()


class StagePool:
    """Hands each thread a stage of its own."""

    def __init__(self, stages: list[Stage]) -> None:
        self._free = list(stages)
        self._lock = threading.Semaphore(len(stages))

    @contextlib.contextmanager
    def stage(self) -> Iterator[Stage]:
        """A stage nobody else uses meanwhile."""
        with self._lock:
            taken = self._free.pop()
            try:
                yield taken
            finally:
                self._free.append(taken)
