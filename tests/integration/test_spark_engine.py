"""The `spark` engine in a process that lives for months."""

from __future__ import annotations

import pytest

from tests.conftest import Lake
from tests.integration.table_kit import create, data_files, upgrade

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", [2, 3])
def test_it_leaves_no_memory_behind(lake: Lake, table_name: str, version: int) -> None:
    """What Iceberg's reader takes beside the heap, it gives back; that of 1.11 does not where it reads row ids."""
    create(lake, table_name)
    if version == 3:
        upgrade(lake, table_name)
    for _ in range(3):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id, 'x', id FROM range(50000)")
    allocator = lake.session._jvm.org.apache.iceberg.arrow.ArrowAllocation.rootAllocator()
    before = allocator.getAllocatedMemory()
    result = lake.compact(table_name, force=True, engine="spark")
    assert {group.rewritten.engine for group in result.groups} == {"spark"}
    assert data_files(lake, table_name) == 1
    assert allocator.getAllocatedMemory() == before
