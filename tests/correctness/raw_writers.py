"""Parquet by writers that know nothing of Iceberg, registered in a table through Java's `DataFiles` builder.

With field ids (PyArrow, DuckDB) files are read by id; without (Polars, PyArrow) through the table's name mapping.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.locations import plain_path
from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter

NAME_MAPPING = "schema.name-mapping.default"


def _pyarrow(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path)


def _pyarrow_new_pages(rows: pa.Table, path: Path) -> None:
    """Version 2 pages, page indexes, no dictionaries, several row groups."""
    pq.write_table(
        rows, path, compression="zstd", data_page_version="2.0", write_page_index=True, use_dictionary=False,
        row_group_size=max(1, rows.num_rows // 3), write_batch_size=2, data_page_size=64,
    )  # fmt: skip


def _pyarrow_gzip(rows: pa.Table, path: Path) -> None:
    """Bloom filters, and decimals as integers."""
    pq.write_table(rows, path, compression="gzip", store_decimal_as_integer=True, bloom_filter_options={"id": True})


def _pyarrow_without_statistics(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, compression="none", write_statistics=False)


def _without_ids(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows.cast(_bare(rows.schema)), path, compression="snappy")


def _bare(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_bare_field(field) for field in schema])


def _bare_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _bare_type(field.type), field.nullable)


def _bare_type(kind: pa.DataType) -> pa.DataType:
    """The type without the field ids of what is nested in it."""
    if pa.types.is_struct(kind):
        return pa.struct([_bare_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_large_list(kind):
        return pa.large_list(_bare_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_bare_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_bare_field(kind.key_field), _bare_field(kind.item_field))
    return kind


def _polars(rows: pa.Table, path: Path) -> None:
    pl.from_arrow(rows.cast(_bare(rows.schema))).write_parquet(path, compression="zstd", row_group_size=4)


def _duckdb(rows: pa.Table, path: Path) -> None:
    """DuckDB's own encoder, with dictionaries and bloom filters."""
    with duckdb.connect() as connection:
        connection.register("given", rows)
        ids = ", ".join(f'"{field.name}": {_ids(field)}' for field in rows.schema)
        connection.execute(
            f"COPY given TO '{path}' (FORMAT parquet, CODEC snappy, ROW_GROUP_SIZE 2048, FIELD_IDS {{{ids}}})"
        )


def _ids(field: pa.Field) -> str:
    """DuckDB's notation of a column's field id and of those nested in it."""
    own = int(field.metadata[b"PARQUET:field_id"])
    kind = field.type
    children: list[tuple[str, pa.Field]] = []
    if pa.types.is_struct(kind):
        children = [(kind.field(index).name, kind.field(index)) for index in range(kind.num_fields)]
    elif pa.types.is_large_list(kind) or pa.types.is_list(kind):
        children = [("element", kind.value_field)]
    elif pa.types.is_map(kind):
        children = [("key", kind.key_field), ("value", kind.item_field)]
    if not children:
        return str(own)
    nested = ", ".join(f'"{name}": {_ids(child)}' for name, child in children)
    return f"{{__duckdb_field_id: {own}, {nested}}}"


RAW_WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {
    "pyarrow": _pyarrow,
    "pyarrow-pages": _pyarrow_new_pages,
    "pyarrow-gzip": _pyarrow_gzip,
    "pyarrow-bare": _pyarrow_without_statistics,
    "duckdb": _duckdb,
    "polars": _polars,
    "no-ids": _without_ids,
}
WITHOUT_IDS = {"polars", "no-ids"}


def append_raw(lake: Lake, table: str, rows: pa.Table, writer: str) -> None:
    """Write `rows` with one of `RAW_WRITERS`, a file per partition, and commit the files."""
    java = JavaWriter(lake, table)
    if writer in WITHOUT_IDS:
        _set_name_mapping(java)
    commit = java.table.newAppend()
    for part in java.split(rows):
        commit.appendFile(_registered(java, part, writer))
    commit.commit()


def _registered(java: JavaWriter, rows: pa.Table, writer: str) -> Any:
    location = str(java.table.locationProvider().newDataLocation(f"{writer}-{uuid.uuid4()}.parquet"))
    path = Path(plain_path(location))
    path.parent.mkdir(parents=True, exist_ok=True)
    RAW_WRITERS[writer](rows, path)
    iceberg, spec = java.iceberg, java.table.spec()
    input_file = java.table.io().newInputFile(location)
    config = iceberg.MetricsConfig.forTable(java.table)
    if writer in WITHOUT_IDS:
        mapping = iceberg.mapping.NameMappingParser.fromJson(java.table.properties()[NAME_MAPPING])
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(input_file, config, mapping)
    else:
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(input_file, config)
    builder = getattr(iceberg, "DataFiles$Builder")(spec).withInputFile(input_file).withMetrics(metrics)
    if spec.isPartitioned():
        builder = builder.withPartition(java.partition(java._records(rows), spec))
    return builder.build()


def _set_name_mapping(java: JavaWriter) -> None:
    if NAME_MAPPING in java.table.properties():
        return
    mapping = java.iceberg.mapping.MappingUtil.create(java.table.schema())
    text = java.iceberg.mapping.NameMappingParser.toJson(mapping)
    java.table.updateProperties().set(NAME_MAPPING, text).commit()
    java.table.refresh()
