"""Tables with columns of types that PyIceberg, Arrow or Spark do not know: copied, or left to who knows them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.locations import plain_path
from tests.conftest import Lake
from tests.integration.compact_check import COPIED
from tests.integration.table_kit import MERGE_ON_READ, engines, planned
from tests.integration.test_spark_misreads import java_table, register

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


def values(lake: Lake, table: str) -> list[str]:
    """The table's own columns: outputs hold row ids besides."""
    files = [pq.read_table(plain_path(file)) for file in lake.live_files(table)]
    own = [file.drop([name for name in file.column_names if name.startswith("_")]) for file in files]
    return sorted(repr(row) for file in own for row in file.to_pylist())


def with_column(lake: Lake, table: str, kind: str) -> None:
    """A table of format version 3 with a column of a type that neither PyIceberg nor Spark can create."""
    lake.sql(f"CREATE TABLE lake.{table} (id bigint) USING iceberg TBLPROPERTIES ('format-version'='3')")
    loaded, types = java_table(lake, table), lake.session._jvm.org.apache.iceberg.types.Types
    made = {
        "geometry": types.GeometryType.crs84,
        "geography": types.GeographyType.crs84,
        "unknown": types.UnknownType.get,
    }
    loaded.updateSchema().addColumn("x", made[kind]()).commit()


@pytest.mark.parametrize("kind", ["geometry", "geography", "unknown"])
def test_types_that_spark_does_not_read_are_copied(lake: Lake, table_name: str, kind: str) -> None:
    """Files have no column of type unknown. With a sort order, which only Spark can keep, the others are left alone."""
    with_column(lake, table_name, kind)
    kinds = [pa.int64()] if kind == "unknown" else [pa.int64(), pa.binary()]
    fields = [
        pa.field(name, each, metadata={"PARQUET:field_id": str(field_id)})
        for field_id, name, each in zip((1, 2), ("id", "x"), kinds, strict=False)
    ]
    for number in range(3):
        rows = {"id": [number, 7], "x": [b"\x01" * 21, None]}
        register(lake, table_name, pa.table({each.name: rows[each.name] for each in fields}, pa.schema(fields)))
    before = values(lake, table_name)
    result = lake.compact(table_name, force=True)
    assert engines(result) == COPIED
    assert values(lake, table_name) == before
    if kind == "unknown":
        return
    lake.sql(f"ALTER TABLE lake.{table_name} WRITE ORDERED BY id")
    assert "Spark cannot read" in next(iter(planned(lake, table_name, rewrite_all=True).unplanned.values()))


def test_variants_that_must_be_decoded_are_left_to_spark(lake: Lake, table_name: str) -> None:
    variants(lake, table_name, "id")
    before = lake.rows(table_name, VARIANT_ROWS)
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "sorted")}
    assert lake.rows(table_name, VARIANT_ROWS) == before
