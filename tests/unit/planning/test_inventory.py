"""Which delete files a filtered inventory accounts for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform, VoidTransform

from compactor.filters.where import bind_where
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.cache import ManifestCache
from compactor.planning.inventory import applies_within, prune_files, take_inventory
from tests.properties.filters import partition_field, table_view
from tests.properties.table_history import FIRST_UNREAL_ID, TableHistory

BY_INT = PartitionSpec(partition_field("int", IdentityTransform(), 1000, "part"), spec_id=1)
NOWHERE = PartitionSpec(spec_id=0)
VOID = PartitionSpec(partition_field("int", VoidTransform(), 1000, "part"), spec_id=2)
FILTERED = bind_where(table_view(NOWHERE, BY_INT, VOID), "int_column = 5")


def accounted_for(spec_id: int, partition: tuple[Any, ...], content: Content) -> bool:
    layout = FILTERED.table.layout(spec_id)
    key = layout.key(partition)
    delete = FileEntry(
        "m", Status.ADDED, 1, 1, content, "f", "parquet", key, partition, 1, 1, None,
        encrypted=False, equality_ids=(), applies_to=None,
    )  # fmt: skip
    return applies_within({key} if FILTERED.keeps(key) else frozenset(), delete, layout)


def test_which_deletes_are_accounted_for_when_manifests_are_skipped() -> None:
    equality, position = Content.EQUALITY_DELETES, Content.POSITION_DELETES
    assert accounted_for(1, (5,), equality)
    assert accounted_for(1, (5,), position)
    assert not accounted_for(1, (6,), equality)
    assert not accounted_for(1, (6,), position)
    assert accounted_for(0, (), position)
    assert not accounted_for(0, (), equality)  # global: it applies to skipped files too
    assert not accounted_for(2, (None,), equality)
    for spec in (NOWHERE, VOID):
        assert FILTERED.keeps_manifest(SimpleNamespace(partition_spec_id=spec.spec_id, partitions=None))  # type: ignore[arg-type]


def test_without_a_filter_all_deletes_are_accounted_for(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    for category in "ab":
        history.append_unreal(category, [1], deletes=True)
    view = history.view()
    for where, accounted in [(None, 2), ("", 2), ("true", 2), ("category = 'a'", 1)]:
        inventory = take_inventory(view, ManifestCache(1 << 20), bind_where(view, where))
        assert len(inventory.deletes) == accounted


@pytest.mark.parametrize(("where", "left"), [("id = 5", []), (f"id >= {FIRST_UNREAL_ID}", [2, 1])])
def test_files_whose_bounds_rule_out_a_match_are_pruned(tmp_path: Path, where: str, left: list[int]) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10, 10])
    history.append_unreal("b", [10])
    view = history.view()
    bound = bind_where(view, where)
    pruned = prune_files(take_inventory(view, ManifestCache(1 << 20), bound), bound)
    assert [len(files) for files in pruned.selected.values()] == left
