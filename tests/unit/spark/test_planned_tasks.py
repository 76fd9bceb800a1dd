"""Which planned files are listed without a filter, and what of their deletes is compared. Spark is not started."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.types import StringType

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.live_files import DeleteIndex, LiveFile
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.spark import planned_tasks as module
from compactor.spark.planned_tasks import Filter, has_stray, planned_scan_tasks
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
