"""Make thousands of tables in seconds: one is written by PyIceberg, the others are copies that a catalog cannot tell.

A copy has a UUID, a location, a metadata file, a manifest list and manifests of its own. Its data files are those of
the pattern, and so are the manifest lists of its older snapshots. It accepts commits like any other table.

The copies are registered in the database of Iceberg's `JdbcCatalog` (the REST server's, or PyIceberg's SQL catalog,
which has the same tables).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from compactor.errors import InputError
from compactor.locations import plain_path
from tests.benchmarks.fleet.avro_records import AvroRecords

PATTERN = ("pattern", "pattern")
SCHEMA = Schema(
    NestedField(1, "part", StringType(), required=True),
    NestedField(2, "id", LongType()),
    NestedField(3, "payload", StringType()),
)
ROWS = pa.schema([pa.field("part", pa.string(), nullable=False), ("id", pa.int64()), ("payload", pa.string())])
MERGED_AT = 16
"""Manifests that the pattern's writer merges into one, so that the copies do not all have one manifest a snapshot."""
BUSY_SECONDS = 30.0


@dataclass(frozen=True)
class Shape:
    """What all tables of a fleet have in common. `history`: commits of one small file each, all retained."""

    tables: int = 1000
    partitions: int = 20
    history: int = 24
    files: int = 2
    rows: int = 50
    namespaces: int = 10

    def name(self, number: int) -> tuple[str, str]:
        """Namespace and name of a table."""
        return f"db{number % self.namespaces}", f"t{number:05d}"

    @property
    def names(self) -> list[tuple[str, str]]:
        return [self.name(number) for number in range(self.tables)]


@dataclass(frozen=True)
class Fleet:
    """Tables in a folder: warehouse, and what each table was when it was made."""

    folder: Path
    shape: Shape
    heads: Mapping[tuple[str, str], str]
    """Metadata location of each table without any of the commits that were made in advance."""

    @property
    def warehouse(self) -> str:
        return f"file://{self.folder}/warehouse"

    @property
    def database(self) -> Path:
        return self.folder / "rest.db"

    @classmethod
    def make(cls, folder: Path, shape: Shape) -> Fleet:
        """The fleet of a folder, made if it is not there.

        Raises:
            InputError: the folder holds a fleet of another shape.
        """
        made = folder / "fleet.json"
        if made.exists():
            tree = json.loads(made.read_text())
            if Shape(**tree["shape"]) != shape:
                raise InputError(f"{folder} holds a fleet of another shape, {tree['shape']}; name another folder")
            return cls(folder, shape, dict(zip(shape.names, tree["heads"], strict=True)))
        shutil.rmtree(folder / "warehouse", ignore_errors=True)
        (folder / "warehouse").mkdir(parents=True)
        pattern = Pattern.of(write_pattern(folder, shape))
        heads = {name: pattern.copy(folder / "warehouse" / name[0] / name[1]) for name in shape.names}
        made.write_text(json.dumps({"shape": asdict(shape), "heads": list(heads.values())}))
        return cls(folder, shape, heads)


def write_pattern(folder: Path, shape: Shape) -> str:
    """A table written by PyIceberg's own commits; returns its metadata location."""
    (folder / "pattern.db").unlink(missing_ok=True)
    catalog = SqlCatalog(
        "pattern", uri=f"sqlite:///{folder}/pattern.db", warehouse=f"file://{folder}/warehouse", type="sql"
    )
    try:
        catalog.create_namespace(PATTERN[0])
        table = catalog.create_table(
            PATTERN,
            SCHEMA,
            partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part")),
            properties={
                "format-version": "2",
                "commit.manifest-merge.enabled": "true",
                "commit.manifest.min-count-to-merge": str(MERGED_AT),
            },
        )
        for number in range(shape.files):
            table.append(small_files(range(shape.partitions), number * shape.partitions * shape.rows, shape.rows))
        for number in range(shape.history):
            first = (shape.files + number) * shape.partitions * shape.rows
            table.append(small_files([number % shape.partitions], first, shape.rows))
        return table.metadata_location
    finally:
        catalog.close()


def small_files(parts: Iterable[int], first: int, rows: int) -> pa.Table:
    """Rows for one small file of each of these partitions."""
    numbers = random.Random(first)
    names = [f"p{part:03d}" for part in parts for _ in range(rows)]
    payload = [numbers.randbytes(20).hex() for _ in names]
    return pa.table([names, list(range(first, first + len(names))), payload], schema=ROWS)


@dataclass(frozen=True)
class Pattern:
    """A table to copy: its metadata as text, and its current manifests."""

    metadata: str
    manifests: AvroRecords

    @classmethod
    def of(cls, metadata_location: str) -> Pattern:
        text = Path(plain_path(metadata_location)).read_text()
        tree = json.loads(text)
        head = snapshot_of(tree)
        listed = AvroRecords.read(Path(plain_path(head["manifest-list"])))
        return cls(text, listed)

    def copy(self, folder: Path) -> str:
        """Make a table in `folder`; returns its metadata location."""
        home = folder / "metadata"
        home.mkdir(parents=True)
        records = []
        for record in self.manifests.records:
            source = Path(plain_path(record["manifest_path"]))
            os.link(source, home / source.name)
            records.append({**record, "manifest_path": f"file://{home}/{source.name}"})
        own = str(uuid.uuid4())
        snapshots = home / f"snap-{own}.avro"
        self.manifests.write(snapshots, records)
        tree = json.loads(self.metadata)
        tree |= {"table-uuid": own, "location": f"file://{folder}"}
        snapshot_of(tree)["manifest-list"] = f"file://{snapshots}"
        path = home / f"{len(tree['metadata-log']):05d}-{own}.metadata.json"
        path.write_text(json.dumps(tree, separators=(",", ":")))
        return f"file://{path}"


def snapshot_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """The current snapshot in a metadata file."""
    current = metadata["current-snapshot-id"]
    found: dict[str, Any] = next(each for each in metadata["snapshots"] if each["snapshot-id"] == current)
    return found


@dataclass(frozen=True)
class Pointers:
    """The tables' metadata locations in the database of a `JdbcCatalog`, changed beside the server that uses it."""

    database: sqlite3.Connection
    catalog: str

    def reset(self, heads: Mapping[tuple[str, str], str]) -> None:
        """Make these all tables that there are."""
        with self.database:
            self.database.execute("DELETE FROM iceberg_tables WHERE catalog_name = ?", (self.catalog,))
        self.add(heads)

    def add(self, heads: Mapping[tuple[str, str], str]) -> None:
        """Register tables with their metadata locations."""
        columns = {row[1] for row in self.database.execute("PRAGMA table_info(iceberg_tables)")}
        names = ["catalog_name", "table_namespace", "table_name", "metadata_location"]
        names += ["iceberg_type"] if "iceberg_type" in columns else []
        rows = [(self.catalog, *name, location, "TABLE")[: len(names)] for name, location in heads.items()]
        text = f"INSERT OR REPLACE INTO iceberg_tables ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        with self.database:
            self.database.executemany(text, rows)

    def set(self, name: tuple[str, str], location: str) -> None:
        """Make `location` the table's current metadata."""
        text = "UPDATE iceberg_tables SET metadata_location = ? WHERE table_namespace = ? AND table_name = ?"
        with self.database:
            changed = self.database.execute(f"{text} AND catalog_name = ?", (location, *name, self.catalog)).rowcount
        if changed != 1:
            raise InputError(f"table {'.'.join(name)} is not in the catalog's database")


def write_ahead(database: Path) -> None:
    """Let the database be read and written at the same time; call it before a server opens the file."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


@contextmanager
def pointers(database: Path, catalog: str) -> Iterator[Pointers]:
    """The database, open until the end of the block."""
    with closing(sqlite3.connect(database, timeout=BUSY_SECONDS, check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        yield Pointers(connection, catalog)
