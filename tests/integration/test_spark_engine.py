"""The `spark` engine: rows that Iceberg's reader deletes wrongly stay, and no memory is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, LongType, NestedField, StringType, StructType

from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter
from tests.integration.table_kit import conversion, create, data_files, engines, planned, upgrade
from tests.slow import slow

pytestmark = pytest.mark.spark

BY_ID = SortOrder(SortField(1, IdentityTransform()))
FIXED = FixedType(3)
COLUMNS = {
    "alone": (NestedField(2, "k", FIXED),),
    "one of two": (NestedField(2, "k", FIXED), NestedField(3, "s", StringType())),
    "in a struct": (NestedField(2, "r", StructType(NestedField(3, "k", FIXED))),),
}
COMPARED = {"alone": ["k"], "one of two": ["k", "s"], "in a struct": ["r.k"]}


def rows_of(schema: Schema, keys: Sequence[bytes]) -> pa.Table:
    values: dict[str, Any] = {
        "id": range(len(keys)), "k": keys, "s": ["x"] * len(keys), "r": [{"k": key} for key in keys]
    }  # fmt: skip
    arrow = schema_to_pyarrow(schema)
    return pa.table({name: pa.array(values[name], arrow.field(name).type) for name in arrow.names}, schema=arrow)


def delete_by_fixed(lake: Lake, table: str, case: str, deletes: Sequence[Sequence[bytes]]) -> None:
    """A sorted table, 27 rows: aaa, bbb and ccc, nine of each; one equality delete file for each of `deletes`."""
    schema = Schema(NestedField(1, "id", LongType()), *COLUMNS[case])
    lake.catalog.create_table(lake.name(table).identifier, schema, sort_order=BY_ID)
    writer = JavaWriter(lake, table)
    for _ in range(3):
        writer.append(rows_of(schema, [b"aaa", b"bbb", b"ccc"] * 3))
    for keys in deletes:
        writer.delete_equal(rows_of(schema, keys), COMPARED[case])


@pytest.mark.parametrize(
    ("case", "deletes"),
    [
        ("alone", [[b"aaa", b"bbb"]]),
        *slow(("alone", [[b"aaa", b"ccc"], [b"bbb", b"ccc"]]), ("one of two", [[b"aaa", b"bbb"]])),
    ],
)
def test_equality_deletes_by_fixed_values_are_left_to_a_conversion(
    lake: Lake, table_name: str, case: str, deletes: Sequence[Sequence[bytes]]
) -> None:
    """Iceberg 1.11 reads all keys of a delete file as its last one (apache/iceberg 11239): rows would come back."""
    delete_by_fixed(lake, table_name, case, deletes)
    plan = planned(lake, table_name)
    assert not plan.groups
    assert "convert these deletes first" in next(iter(plan.unplanned.values()))
    left = 27 - 9 * len({key for keys in deletes for key in keys})
    assert conversion(lake, table_name).convert().rows == 27 - left
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "sorted")}
    assert sum(group.rewritten.rows_out for group in result.groups) == left


@pytest.mark.slow
def test_equality_deletes_by_fixed_values_in_a_struct_are_left_alone(lake: Lake, table_name: str) -> None:
    delete_by_fixed(lake, table_name, "in a struct", [[b"aaa", b"bbb"]])
    assert "convert these deletes first" in next(iter(planned(lake, table_name).unplanned.values()))


@pytest.mark.parametrize("version", [2, 3])
def test_it_leaves_no_memory_behind(lake: Lake, table_name: str, version: int) -> None:
    """What Iceberg's reader takes beside the heap, it gives back; that of 1.11 does not where it reads row ids."""
    create(lake, table_name)
    if version == 3:
        upgrade(lake, table_name)
    for _ in range(3):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id, 'x', id FROM range(20000)")
    allocator = lake.session._jvm.org.apache.iceberg.arrow.ArrowAllocation.rootAllocator()
    before = allocator.getAllocatedMemory()
    result = lake.compact(table_name, force=True, engine="spark")
    assert {group.rewritten.engine for group in result.groups} == {"spark"}
    assert data_files(lake, table_name) == 1
    assert allocator.getAllocatedMemory() == before
