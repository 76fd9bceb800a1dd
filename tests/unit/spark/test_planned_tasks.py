"""Which planned files are listed without a filter, and what of their deletes is compared. Spark is not started."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.types import StringType

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.live_files import DeleteIndex, LiveFile
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.spark import planned_tasks as module
from compactor.spark.planned_tasks import Filter, has_stray, overlooked_delete, planned_scan_tasks
from tests.properties.table_history import TableHistory
from tests.unit.rewrite.live_file import live

GLOBAL, OWN, OTHER = PartitionKey(0, "[]"), PartitionKey(1, '["a"]'), PartitionKey(1, '["b"]')
LAYOUTS = {0: PartitionLayout(0, (), (), ()), 1: PartitionLayout(1, ("category",), (StringType(),), ())}
DATA = live("data", key=OWN).entry


def by_value(key: PartitionKey, path: str = "by-value", number: int = 5) -> FileEntry:
    return live(path, key=key, content=Content.EQUALITY_DELETES, equality_ids=(1,), data_sequence_number=number).entry


def by_position(key: PartitionKey, path: str = "by-position", **more: Any) -> FileEntry:
    return live(path, key=key, content=Content.POSITION_DELETES, data_sequence_number=5, **more).entry


def file(*deletes: FileEntry, shared: bool = False) -> LiveFile:
    """`shared`: its deletes are ends of tuples that data files share, as those of large tables are."""
    return DeleteIndex(deletes, LAYOUTS, own=0 if shared else 64).live_file(DATA)


NAMED = by_position(OWN, "named", applies_to="data")
VECTOR = by_position(OWN, "vector", applies_to="data", file_format="puffin", blob=(4, 10))
OF_PARTITION = (NAMED, by_position(OWN), by_value(OWN), by_value(OTHER))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("deletes", "stray"),
    [
        ((), False),
        (OF_PARTITION, False),
        ((VECTOR, *OF_PARTITION), False),
        ((by_position(OTHER, applies_to="data"),), True),
        ((*OF_PARTITION, by_value(GLOBAL, "global")), True),
        ((by_value(GLOBAL, "global"), VECTOR), True),
        ((by_value(GLOBAL, "global", number=1), *OF_PARTITION), False),
    ],
)
def test_a_filtered_scan_may_miss_deletes_of_other_partitions_and_equality_deletes_of_other_specs(
    deletes: Sequence[FileEntry], stray: bool, shared: bool
) -> None:
    """A global equality delete may hold columns that it does not compare: their bounds need not meet the filter."""
    assert has_stray(file(*deletes, shared=shared)) is stray


def test_files_with_a_global_equality_delete_are_listed_without_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    view, listed = history.view(), list[tuple[bool, set[str]]]()
    key = PartitionKey(view.metadata.default_spec_id, '["a"]')
    plain, hit = live("plain", key=key), live("hit", key=key)
    hit = hit._replace(deletes=(by_value(PartitionKey(key.spec_id + 1, "[]")),))

    def found(_table: Any, kept: Filter | None, paths: Collection[str]) -> dict[str, Any]:
        listed.append((kept is None, set(paths)))
        return dict.fromkeys(paths)

    monkeypatch.setattr(module, "_listed", found)
    assert view.snapshot is not None
    handle = SimpleNamespace(snapshot=lambda _: view.snapshot)
    table: Any = SimpleNamespace(handle=handle, view=view, snapshot_id=view.snapshot.snapshot_id)
    assert planned_scan_tasks(table, [plain, hit]).keys() == {"plain", "hit"}
    assert listed == [(False, {"plain"}), (True, {"hit"})]


class ScanTask:
    """A scan task of Java with these deletes, in the order of Java. Counts the calls."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self.calls = 0

    def deletes(self) -> ScanTask:
        self.calls += 1
        return self

    def size(self) -> int:
        self.calls += 1
        return len(self._paths)

    def get(self, index: int) -> Any:
        self.calls += 1
        return SimpleNamespace(location=partial(self._location, index))

    def _location(self, index: int) -> str:
        self.calls += 1
        return self._paths[index]


def test_thousands_of_deletes_of_the_partition_are_not_compared_through_py4j() -> None:
    """Each data file would take as many calls as its partition has position deletes: minutes for a table."""
    of_partition = [by_position(OWN, f"by-position-{number}") for number in range(1000)]
    named = [by_position(OWN, f"named-{number}", applies_to="data") for number in range(2)]
    nothing, task = ScanTask(), ScanTask("by-value", *(each.path for each in (*of_partition, *named)))
    assert overlooked_delete(nothing, file(*of_partition)) is None
    assert overlooked_delete(task, file(*of_partition, *named)) is None
    assert (nothing.calls, task.calls) == (0, 2 + 2 * len(named))


def test_a_delete_that_names_the_file_must_be_in_the_scan_task() -> None:
    planned = file(NAMED, by_position(OWN), by_value(OWN))
    assert overlooked_delete(ScanTask("by-value", "by-position"), planned) == "named"
    assert overlooked_delete(ScanTask("by-value", "by-position", "named"), planned) is None
    assert overlooked_delete(ScanTask("by-value"), file(VECTOR, NAMED)) == "vector"
