"""The tables of one sequence: two names in a real catalog, and what lies behind them at the moment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform

from compactor.locations import plain_path
from compactor.table_names import TableName
from tests.ledger.files import SCHEMA

CATALOG, NAMESPACE = "lake", "db"
BY_PART = PartitionField(2, 1000, IdentityTransform(), "p")
SPECS = {
    "p": PartitionSpec(BY_PART),
    "none": PartitionSpec(),
    "p, k_bucket": PartitionSpec(BY_PART, PartitionField(4, 1001, BucketTransform(2), "k_bucket")),
    "day_day": PartitionSpec(PartitionField(3, 1000, DayTransform(), "day_day")),
    "day": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day")),
}
TARGET = "write.target-file-size-bytes"


@dataclass
class Tables:
    """Names and tables.

    Attributes:
        taken: Names of tables that exist.
        left: Metadata files of tables that were dropped, for a catalog that is restored.
    """

    catalog: Catalog
    names: tuple[TableName, TableName]
    taken: set[TableName] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    _folders: set[Path] = field(default_factory=set)

    def create(self, name: TableName, version: int, spec: str, target: int) -> None:
        properties = {"format-version": str(version), TARGET: str(target)}
        table = self.catalog.create_table(name.identifier, SCHEMA, partition_spec=SPECS[spec], properties=properties)
        self._folders.add(Path(plain_path(table.location())))
        self.taken.add(name)

    def find(self, name: TableName) -> Table | None:
        """The table as it is now; None if there is none of this name."""
        return self.catalog.load_table(name.identifier) if name in self.taken else None

    def there(self) -> Iterator[tuple[TableName, Table]]:
        """The tables that exist."""
        for name in self.names:
            if name in self.taken:
                yield name, self.catalog.load_table(name.identifier)

    def drop(self, name: TableName) -> None:
        table = self.find(name)
        if table is not None:
            before = [entry.metadata_file for entry in table.metadata.metadata_log]
            self.left += [*before[-2:], table.metadata_location]
            self.catalog.drop_table(name.identifier)
            self.taken.remove(name)

    def register(self, name: TableName, which: int) -> None:
        """Restore a table from a metadata file, perhaps an old one, if one can still be read."""
        first = which % max(1, len(self.left))
        for location in (*self.left[first:], *self.left[:first]):
            if self._is_readable(location):
                self.catalog.register_table(name.identifier, location)
                self.taken.add(name)
                return

    def _is_readable(self, location: str) -> bool:
        """Whether all files of all its snapshots are there: an expiry by Spark deletes them."""
        if not Path(plain_path(location)).exists():
            return False
        properties: dict[str, Any] = dict(self.catalog.properties)
        table = StaticTable.from_metadata(location, properties)
        try:
            for snapshot in table.snapshots():
                for manifest in snapshot.manifests(table.io):
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                        Path(plain_path(entry.data_file.file_path)).stat()
        except FileNotFoundError:
            return False
        return True

    def rename(self, before: TableName, after: TableName) -> None:
        self.catalog.rename_table(before.identifier, after.identifier)
        self.taken = self.taken - {before} | {after}

    def swap(self) -> None:
        """Each table gets the name of the other."""
        first, second = (name.identifier for name in self.names)
        between = (*first[:-1], f"{first[-1]}_between")
        self.catalog.rename_table(first, between)
        self.catalog.rename_table(second, first)
        self.catalog.rename_table(between, second)

    def remove(self) -> None:
        """Drop all, and delete their files."""
        for name in self.taken:
            self.catalog.drop_table(name.identifier)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
