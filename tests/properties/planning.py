"""Files and inventories for the planner's properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.types import IntegerType

from compactor.debt.board import PartitionCounts
from compactor.debt.table_changes import counts_of
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import FileSizes
from compactor.manifests.live_files import LiveFile, LiveFiles
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.planning.inventory import Inventory
from compactor.planning.planner import Plan

KEY = PartitionKey(0, "[1]")
LAYOUT = PartitionLayout(0, ("bucket",), (IntegerType(),), (0,))
RECORDS = 100


def data_file(number: int, size: int, deleted: Sequence[int] = (), records: int = RECORDS) -> LiveFile:
    """A data file of so many rows, with a delete file for every count of rows in `deleted`."""
    path = f"file-{number:04d}"
    deletes = tuple(
        delete_file(records, 1000 * number + position, applies_to=path) for position, records in enumerate(deleted)
    )
    return LiveFile(_entry(path, size, records, Content.DATA, None), deletes)


def delete_file(records: int, number: int, *, applies_to: str | None) -> FileEntry:
    return _entry(f"delete-{number:07d}", 1, records, Content.POSITION_DELETES, applies_to)


def counted(files: Iterable[LiveFile], sizes: FileSizes) -> PartitionCounts:
    """What the ledger holds of a partition with these files; a delete file that applies to several counts once."""
    entries = {each.path: each for file in files for each in (file.entry, *file.deletes)}
    return sum((counts_of(entry, sizes) for entry in entries.values()), PartitionCounts())


def after(files: Sequence[LiveFile], plan: Plan, serial: Iterator[int]) -> tuple[LiveFile, ...]:
    """The files after a run: those that it left alone, then its outputs, in arrival order, without deleted rows."""
    gone = {file.entry.path for group in plan.groups for file in group.files}
    made = [sum(file.size for file in task) for group in plan.groups for task in group.tasks]
    return (*(file for file in files if file.entry.path not in gone), *(data_file(next(serial), size) for size in made))


def inventory_of(files: tuple[LiveFile, ...]) -> Inventory:
    return inventory_with({KEY: LiveFiles.of(files)})


def inventory_with(partitions: Mapping[PartitionKey, LiveFiles]) -> Inventory:
    table: Any = None
    return Inventory(table, 1, partitions, partitions, {0: LAYOUT})


def _entry(path: str, size: int, records: int, content: Content, applies_to: str | None) -> FileEntry:
    return FileEntry(
        manifest_path="manifest",
        status=Status.ADDED,
        snapshot_id=1,
        data_sequence_number=1,
        content=content,
        path=path,
        file_format="parquet",
        key=KEY,
        partition=(1,),
        records=records,
        size=size,
        sort_order_id=None,
        encrypted=False,
        equality_ids=(),
        applies_to=applies_to,
    )
