"""Files with field ids on some columns only: the name mapping of the table may know the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, NestedField, StructType

from compactor.reasons import Refusal
from compactor.rewrite.deletes.equality_deletes import EqualityDelete, InputFiles
from compactor.rewrite.deletes.key_search import search
from compactor.rewrite.tasks.spark_checks import misread_files
from compactor.storage.opening import byte_store_for
from tests.unit.rewrite.encode_support import as_input, column, encode_task, encoded, refused, write
from tests.unit.rewrite.live_file import live

SCHEMA = Schema(
    NestedField(1, "id", "long"),
    NestedField(2, "note", "string"),
    NestedField(3, "l", ListType(4, StructType(NestedField(5, "x", "long"), NestedField(6, "y", "long")))),
)
MAPPING = SCHEMA.name_mapping.model_dump_json()
ID = column("id", pa.int64(), 1)
X = column("x", pa.int64(), 5)


def listed(*columns: pa.Field, element: int | None = 4, ids: int | None = 3, name: str = "l") -> pa.Field:
    return column(name, pa.list_(column("item", pa.struct(columns), element)), ids)


@pytest.mark.parametrize(
    "stored",
    [
        [ID, column("note", pa.string(), None)],
        [column("id", pa.int64(), None), column("note", pa.string(), 2)],
        [ID, listed(X, column("y", pa.int64(), None), name="renamed")],
        [ID, listed(X, element=None)],
        [ID, listed(X, ids=None)],
    ],
)
def test_a_column_that_the_name_mapping_takes_for_a_missing_field(tmp_path: Path, stored: list[pa.Field]) -> None:
    """PyIceberg reads it, Iceberg's Java code does not: no engine may decide."""
    path = tmp_path / "1.parquet"
    source = write(path, pa.table([pa.nulls(1, each.type) for each in stored], schema=pa.schema(stored)))
    assert refused(encode_task(tmp_path, SCHEMA, [source], name_mapping_json=MAPPING)) == "partial_field_ids"
    store, files = byte_store_for(path.as_uri(), {}), [live(path.as_uri(), source.size)]
    found = misread_files(store, [SCHEMA], files, MAPPING)
    assert found is not None
    assert found.reason == "partial_field_ids"
    assert misread_files(store, [SCHEMA], files, None) is None


@pytest.mark.parametrize(
    "stored",
    [
        [ID, column("note", pa.string(), None), column("old", pa.string(), 2)],
        [ID, column("gone", pa.string(), None)],
        [ID, listed(X, column("gone", pa.int64(), None))],
        [ID, listed(X)],
    ],
)
def test_a_column_that_is_no_missing_field(tmp_path: Path, stored: list[pa.Field]) -> None:
    path = tmp_path / "1.parquet"
    source = write(path, pa.table([pa.nulls(1, each.type) for each in stored], schema=pa.schema(stored)))
    encoded(encode_task(tmp_path, SCHEMA, [source], name_mapping_json=MAPPING))
    store = byte_store_for(path.as_uri(), {})
    assert misread_files(store, [SCHEMA], [live(path.as_uri(), source.size)], MAPPING) is None


def test_keys_are_not_looked_for_in_such_a_file(tmp_path: Path) -> None:
    """Deletes would be converted without the rows that PyIceberg deletes by them."""
    stored = pa.schema([column("id", pa.int64(), None), column("note", pa.string(), 2)])
    write(tmp_path / "1.parquet", pa.table([[5], ["a"]], schema=stored))
    keys = write(tmp_path / "2.parquet", pa.table([[5]], schema=pa.schema([ID])))
    delete = EqualityDelete(keys.location, keys.size, 2, (1,))
    entry = as_input(tmp_path / "1.parquet", equality_deletes=(delete,))
    result = search(InputFiles((entry,), SCHEMA.model_dump_json(), name_mapping_json=MAPPING))
    assert isinstance(result, Refusal)
    assert result.reason == "partial_field_ids"
