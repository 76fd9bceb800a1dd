"""A real PyIceberg table, and what can happen to it."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType

from compactor.iceberg.tables import TableView
from compactor.table_names import TableName

NAME = TableName("lake", ("db",), "t")
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "category", StringType(), required=False),
    NestedField(3, "day", DateType(), required=False),
    NestedField(4, "shard", IntegerType(), required=False),
)
BY_CATEGORY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "category"))
DAYS = (dt.date(2024, 1, 15), dt.date(1969, 12, 31))
EPOCH = dt.date(1970, 1, 1)
FIRST_UNREAL_ID = 1_000_000
"""Ids in files that exist in metadata only; their bounds say so, hence no filter over small ids opens them."""


class TableHistory:
    """One table and what can happen to it. Every method is one commit or more."""

    def __init__(self, folder: Path, format_version: int) -> None:
        self._format_version = format_version
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
        self.catalog.create_namespace("db")
        self.next_id = 0
        self._create()

    def _create(self) -> None:
        self.catalog.create_table(
            "db.t", SCHEMA, partition_spec=BY_CATEGORY, properties={"format-version": str(self._format_version)}
        )

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def view(self) -> TableView:
        table = self.table
        return TableView(NAME, table.metadata, table.metadata_location, table.io)

    def rows(self, categories: list[str]) -> pa.Table:
        first, self.next_id = self.next_id, self.next_id + len(categories)
        columns = {
            "id": pa.array(range(first, self.next_id), pa.int64()),
            "category": pa.array(categories, pa.string()),
            "day": pa.array([DAYS[i % 2] for i in range(len(categories))], pa.date32()),
            "shard": pa.array([i % 3 for i in range(len(categories))], pa.int32()),
        }
        wanted = self.table.schema().as_arrow()
        return pa.table({name: column for name, column in columns.items() if name in wanted.names})

    def append_unreal(
        self,
        category: str,
        sizes: list[int],
        *,
        deletes: bool = False,
        by_value: bool = False,
        branch: str | None = None,
        path: str | None = None,
    ) -> None:
        """Append files that exist in metadata alone: any size, any partition transform, delete files too.

        `by_value`: equality deletes of ids.
        """
        table = self.table
        values = {"category": category, "day": DAYS[0], "shard": len(category)}
        with table.transaction() as transaction:
            update = transaction.update_snapshot(branch=branch) if branch else transaction.update_snapshot()
            with update.fast_append() as append:
                for size in sizes:
                    append.append_data_file(
                        self._unreal_file(table, values, size, deletes=deletes, by_value=by_value, path=path)
                    )

    def _unreal_file(
        self, table: Table, values: dict[str, Any], size: int, *, deletes: bool, by_value: bool, path: str | None
    ) -> DataFile:
        content = DataFileContent.POSITION_DELETES if deletes else DataFileContent.DATA
        spec = table.spec()
        schema = table.schema()
        partition = []
        for field in spec.fields:
            source = schema.find_field(field.source_id)
            raw = values[source.name]
            raw = (raw - EPOCH).days if isinstance(raw, dt.date) else raw
            partition.append(field.transform.transform(source.field_type)(raw))
        bounds = {1: to_bytes(LongType(), FIRST_UNREAL_ID), 2: to_bytes(StringType(), values["category"])}
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES if by_value else content,
            equality_ids=[1] if by_value else None,
            file_path=path or f"file:///nowhere/{uuid.uuid4()}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            record_count=3,
            file_size_in_bytes=size,
            lower_bounds=bounds,
            upper_bounds=bounds,
            value_counts={1: 3, 2: 3},
            null_value_counts={1: 0, 2: 0},
        )
        file.spec_id = spec.spec_id
        return file

    def set_properties(self, properties: dict[str, str]) -> None:
        with self.table.transaction() as transaction:
            transaction.set_properties(properties)

    def change_spec(self) -> None:
        """A new default spec; old files keep theirs."""
        with self.table.update_spec() as update:
            update.add_field("shard", BucketTransform(4), "shard_bucket")

    def remove_main(self) -> None:
        """What `REPLACE TABLE` does: the same table, no current snapshot, the old snapshots still listed."""
        with self.table.transaction() as transaction:
            transaction._apply((RemoveSnapshotRefUpdate(ref_name="main"),), ())

    def recreate(self) -> None:
        self.catalog.drop_table("db.t")
        self._create()
