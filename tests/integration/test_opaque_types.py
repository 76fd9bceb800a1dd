"""Tables with columns of types that PyIceberg, Arrow or Spark do not know: copied, or left to who knows them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import GeometryType, LongType, NestedField, PrimitiveType, UnknownType

from compactor.iceberg.opaque_types import OpaqueType
from tests.conftest import Lake
from tests.integration.compact_check import COPIED
from tests.integration.table_kit import MERGE_ON_READ, engines, planned
from tests.integration.test_spark_misreads import register, stored_rows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("tiny_files_spliced")]

VARIANTS = (
    "NULL",
    "parse_json('null')",
    "parse_json('{\"a\": 1}')",
    "parse_json('[1, \"x\", 2.5]')",
    "parse_json('7')",
)


def variants(lake: Lake, table: str, order: str = "") -> None:
    """Four files of rows with a variant, one row deleted."""
    lake.sql(
        f"CREATE TABLE lake.{table} (id int, v variant, s struct<w: variant>) USING iceberg "
        f"TBLPROPERTIES ('format-version'='3', {MERGE_ON_READ})"
    )
    if order:
        lake.sql(f"ALTER TABLE lake.{table} WRITE ORDERED BY {order}")
    for file in range(4):
        rows = [f"({file * 10 + at}, {value}, named_struct('w', {value}))" for at, value in enumerate(VARIANTS)]
        lake.sql(f"INSERT INTO lake.{table} VALUES {', '.join(rows)}")
    lake.sql(f"DELETE FROM lake.{table} WHERE id = 12")


VARIANT_ROWS = "id, to_json(v), to_json(s.w), _row_id, _last_updated_sequence_number"


def test_variants_are_copied(lake: Lake, table_name: str) -> None:
    """PyIceberg cannot parse the type; copying row groups needs no understanding of a column."""
    variants(lake, table_name)
    before = lake.rows(table_name, VARIANT_ROWS)
    result = lake.compact(table_name, force=True, engine="auto")
    assert {group.rewritten.engine for group in result.groups} == {"splice"}
    assert lake.rows(table_name, VARIANT_ROWS) == before
    assert len(before) == 19


@pytest.mark.parametrize("kind", [GeometryType(), OpaqueType("geography(srid:4326)"), UnknownType()], ids=str)
def test_types_that_spark_does_not_read_are_copied(lake: Lake, table_name: str, kind: PrimitiveType) -> None:
    """Files have no column of type unknown. With a sort order, which only Spark can keep, the others are left alone."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", kind))
    table = lake.catalog.create_table(lake.name(table_name).identifier, schema, properties={"format-version": "3"})
    kinds = [pa.int64()] if isinstance(kind, UnknownType) else [pa.int64(), pa.binary()]
    fields = [
        pa.field(name, each, metadata={"PARQUET:field_id": str(field_id)})
        for field_id, name, each in zip((1, 2), ("id", "x"), kinds, strict=False)
    ]
    for number in range(3):
        rows = {"id": [number, 7], "x": [b"\x01" * 21, None]}
        register(lake, table_name, pa.table({each.name: rows[each.name] for each in fields}, pa.schema(fields)))
    before = stored_rows(lake, table_name)
    result = lake.compact(table_name, force=True)
    assert engines(result) == COPIED
    assert stored_rows(lake, table_name) == before
    if isinstance(kind, UnknownType):
        return
    table.refresh()
    table.update_sort_order().asc("id", IdentityTransform()).commit()
    assert "Spark cannot read" in next(iter(planned(lake, table_name, rewrite_all=True).unplanned.values()))


def test_variants_that_must_be_decoded_are_left_to_spark(lake: Lake, table_name: str) -> None:
    variants(lake, table_name, "id")
    before = lake.rows(table_name, VARIANT_ROWS)
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "sorted")}
    assert lake.rows(table_name, VARIANT_ROWS) == before
