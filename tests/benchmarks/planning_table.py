"""A table of a million files that do not exist: its metadata is written by Iceberg's Java writers, its data is not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from compactor.iceberg.tables import Catalogs, TableView
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from tests.services.s3_server import S3Server

COLUMNS = 20
BUCKETS = 8
SOURCE = Path(__file__).with_name("ManifestMaker.java")


def java_class(session: Any) -> Any:
    """`ManifestMaker`, compiled by the compiler that Spark brings along."""
    jvm = session._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text())
    return compiler.getClassLoader().loadClass("ManifestMaker")


def call(session: Any, java: Any, method: str, *arguments: Any) -> Any:
    """A static method of a class that Py4J does not find by name."""
    jvm = session._jvm
    found = next(each for each in java.getMethods() if each.getName() == method)
    values = session.sparkContext._gateway.new_array(jvm.java.lang.Object, len(arguments))
    for position, argument in enumerate(arguments):
        values[position] = argument
    return found.invoke(None, values)


@dataclass
class PlanningTable:
    """The table, its maker, and what reads it."""

    settings: Settings
    catalogs: Catalogs
    name: TableName
    session: Any
    java: Any
    partitions: int
    manifests: int = 0

    @classmethod
    def make(cls, folder: Path, partitions: int, name: str = "files") -> PlanningTable:
        """An empty table of 20 columns, by day and bucket, in a catalog of its own."""
        settings = Settings.model_validate(
            {
                "catalogs": {
                    "lake": {
                        "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse",
                    }
                },
                "spark": {"master": "local[*]", "conf": {"spark.driver.memory": "4g"}},
            }
        )  # fmt: skip
        session = spark_session(settings)
        catalogs = Catalogs(settings.catalogs)
        table = TableName.parse(f"lake.db.{name}", ("lake",))
        catalogs.catalog("lake").create_namespace_if_not_exists("db")
        columns = ["user_id BIGINT", "ts TIMESTAMP", *(f"n{number} BIGINT" for number in range(7))]
        columns += [f"d{number} DOUBLE" for number in range(6)] + [f"s{number} STRING" for number in range(5)]
        session.sql(
            f"CREATE TABLE {table.spark} ({', '.join(columns)}) USING iceberg "
            f"PARTITIONED BY (days(ts), bucket({BUCKETS}, user_id)) TBLPROPERTIES ('format-version' = '2')"
        )
        return cls(settings, catalogs, table, session, java_class(session), partitions)

    @property
    def view(self) -> TableView:
        """The table as PyIceberg sees it now."""
        return self.catalogs.load(self.name)

    def handle(self) -> Any:
        """Iceberg's Java table."""
        return self.session._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.session._jsparkSession, self.name.spark
        )

    def append(self, manifests: int, files: int, *, scattered: bool, small_every: int) -> None:
        """One commit of manifests; partitions whose number `small_every` divides hold small files."""
        gateway = self.session.sparkContext._gateway
        start = dt.date(2024, 1, 1)
        names = [
            f"ts_day={start + dt.timedelta(days=number // BUCKETS)}/user_id_bucket={number % BUCKETS}"
            for number in range(self.partitions)
        ]
        array = gateway.new_array(self.session._jvm.java.lang.String, len(names))
        for position, name in enumerate(names):
            array[position] = name
        given = (self.handle(), array, self.manifests, manifests, files, scattered, small_every)
        call(self.session, self.java, "append", *given)
        self.manifests += manifests

    def spark_files(self) -> None:
        """Spark's `files` table, with the columns that planning needs, read to its end."""
        columns = "file_path, file_size_in_bytes, record_count, partition, spec_id, content, sort_order_id"
        self.session.sql(f"SELECT {columns} FROM {self.name.spark}.files").write.format("noop").mode("overwrite").save()

    def java_plan(self) -> int:
        """Iceberg's own `planFiles`, run to its end in Java."""
        return int(call(self.session, self.java, "plan", self.handle()))

    def bucket_of(self, user: int) -> int:
        """The bucket of a user id."""
        return int(BucketTransform(BUCKETS).transform(LongType())(user) or 0)

    def in_s3(self, reader: S3Server, writer: S3Server, manifests: int) -> TableView:
        """The table's first manifests as objects; the view reads them through `reader`."""
        view = self.view
        folder = writer.folder()
        moved = []
        for number, manifest in enumerate(view.manifests()[:manifests]):
            content = Path(manifest.manifest_path.removeprefix("file:")).read_bytes()
            moved.append(writer.put(f"{folder}/{number}.avro", content))
        listed = view.manifests()[:manifests]
        for manifest, location in zip(listed, moved, strict=True):
            manifest._data[0] = location
        return S3View(view.name, view.metadata, view.metadata_location, load_file_io(reader.properties), listed=listed)


@dataclass(frozen=True)
class S3View(TableView):
    """A view whose manifests are elsewhere."""

    listed: Sequence[ManifestFile] = ()

    def manifests(self, snapshot: Snapshot | None = None) -> list[ManifestFile]:
        """Those that were moved."""
        del snapshot
        return list(self.listed)
