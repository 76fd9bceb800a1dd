"""Many data files with many deletes: memory and the input of a task grow with their number, not with their pairs."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import DeleteIndex, LiveFile, LiveFiles
from compactor.planning.dangling_deletes import coverable_deletes, dangling_deletes
from compactor.planning.inventory import Inventory
from compactor.rewrite.tasks.task_input import input_files
from compactor.table_names import TableName
from tests.properties.planning import KEY, LAYOUT, data_file, delete_file

COMMITS = 300
SCHEMA = Schema(NestedField(1, "id", LongType()))
SPEC = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
METADATA = new_table_metadata(SCHEMA, SPEC, UNSORTED_SORT_ORDER, "file:///t", {})
TABLE = TableView(TableName("lake", ("db",), "t"), METADATA, "", PyArrowFileIO())
KINDS = [Content.EQUALITY_DELETES, Content.POSITION_DELETES]


def upserts(commits: int, kind: Content = Content.EQUALITY_DELETES) -> Inventory:
    """Each commit adds a data file and a delete file, which applies to all older data files of the partition."""
    deletes = tuple(
        delete_file(1, number, applies_to=None)._replace(content=kind, data_sequence_number=number, equality_ids=(1,))
        for number in range(commits)
    )
    index = DeleteIndex(deletes, {0: LAYOUT})
    files = [
        index.live_file(data_file(number, 10).entry._replace(data_sequence_number=number)) for number in range(commits)
    ]
    partitions = {KEY: LiveFiles.of(files)}
    return Inventory(None, 1, partitions, partitions, {0: LAYOUT}, deletes)  # type: ignore[arg-type]


def entries(inventory: Inventory) -> list[FileEntry]:
    return [file.entry for file in inventory.partitions[KEY]]


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    kept = work()
    _, found = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept
    return found


def test_inventory_and_dangling_deletes_take_memory_for_files_not_for_pairs() -> None:
    def both(commits: int) -> object:
        inventory = upserts(commits)
        return inventory, coverable_deletes(inventory, entries(inventory))

    assert peak(lambda: both(2 * COMMITS)) < 3 * peak(lambda: both(COMMITS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_input_of_a_task_grows_with_files_not_with_pairs(kind: Content) -> None:
    def size(commits: int) -> int:
        files: list[LiveFile] = list(upserts(commits, kind).partitions[KEY])
        return len(pickle.dumps(input_files(TABLE, files).inputs))

    assert size(2 * COMMITS) < 2.5 * size(COMMITS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_delete_leaves_with_the_last_of_the_many_files_that_it_applies_to(kind: Content) -> None:
    inventory = upserts(COMMITS, kind)
    every = entries(inventory)
    newest, oldest = every[-1], every[0]
    only_the_first = dangling_deletes(
        coverable_deletes(inventory, every[:200]), {each.path for each in every[:100]}, set()
    )
    own = kind is Content.POSITION_DELETES  # it applies to data of its own commit too
    assert only_the_first == inventory.deletes[: 101 - own]
    assert (
        dangling_deletes(coverable_deletes(inventory, every[1:]), {newest.path}, set()) == inventory.deletes[: 1 - own]
    )
    assert (
        dangling_deletes(coverable_deletes(inventory, every), {each.path for each in every}, set()) == inventory.deletes
    )
    assert len(coverable_deletes(inventory, every[1:])) == 1 - own
    assert oldest.data_sequence_number == 0
