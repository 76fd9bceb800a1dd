"""Small real files for the tables: data files of any spec, position deletes and equality deletes, in Parquet."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType

from compactor.locations import plain_path

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", StringType(), required=False),
    NestedField(3, "day", DateType(), required=False),
    NestedField(4, "k", IntegerType(), required=False),
)
PARTS = ("a", "b", "ü·")
DAYS = (dt.date(2024, 1, 15), dt.date(1969, 12, 31))
EPOCH = dt.date(1970, 1, 1)
_PATH_ID, _POSITION_ID = b"2147483546", b"2147483545"  # field ids of position delete files (spec)
_IDS = itertools.count()
Values = dict[str, Any]


def values_of(part: str) -> Values:
    """The values of the partition columns of all rows of one file."""
    number = PARTS.index(part)
    return {"p": part, "day": DAYS[number % 2], "k": number}


def rows(table: Table, part: str, count: int) -> pa.Table:
    """New rows of one partition, with the columns that the table has now."""
    names = {field.name: field for field in table.schema().fields}
    values = values_of(part)
    ids = list(itertools.islice(_IDS, count))
    columns = {
        name: pa.array(ids if field.field_id == 1 else [values.get(_first_name(field.field_id))] * count, kind.type)
        for (name, field), kind in zip(names.items(), table.schema().as_arrow(), strict=True)
    }
    return pa.table(columns, schema=table.schema().as_arrow())


def _first_name(field_id: int) -> str:
    """The name that a column had when the table was made; empty for a column that was added."""
    found = SCHEMA._lazy_id_to_field.get(field_id)
    return "" if found is None else found.name


def data_file(table: Table, part: str, count: int) -> DataFile:
    """A data file of `count` rows of one partition of the table's default spec."""
    made = rows(table, part, count)
    spec = table.spec()
    ids = made.column(next(field.name for field in table.schema().fields if field.field_id == 1))
    first, last = ids[0].as_py(), ids[-1].as_py()
    nulls = {field.field_id: made.column(field.name).null_count for field in table.schema().fields}
    return _file(
        table,
        made,
        spec,
        _partition(table, spec, values_of(part)),
        DataFileContent.DATA,
        lower_bounds={1: to_bytes(LongType(), first), 2: to_bytes(StringType(), part)},
        upper_bounds={1: to_bytes(LongType(), last), 2: to_bytes(StringType(), part)},
        value_counts=dict.fromkeys(nulls, count),
        null_value_counts=nulls,
    )


def position_deletes(table: Table, file: DataFile, positions: Sequence[int]) -> DataFile:
    """A delete file that takes these rows from one data file."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": _PATH_ID}),
            pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": _POSITION_ID}),
        ]
    )
    made = pa.table({"file_path": [file.file_path] * len(positions), "pos": list(positions)}, schema)
    spec = table.specs()[file.spec_id]
    bound = {int(_PATH_ID): file.file_path.encode()}
    return _file(
        table,
        made,
        spec,
        file.partition,
        DataFileContent.POSITION_DELETES,
        lower_bounds=bound,
        upper_bounds=bound,
    )


def equality_deletes(table: Table, part: str, count: int) -> DataFile:
    """A delete file of `count` ids in one partition of the default spec. The ids are of no row."""
    column = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    made = pa.table({"id": [-1 - number for number in range(count)]}, pa.schema([column]))
    partition = _partition(table, table.spec(), values_of(part))
    return _file(table, made, table.spec(), partition, DataFileContent.EQUALITY_DELETES, equality_ids=[1])


def _partition(table: Table, spec: PartitionSpec, values: Values) -> Record:
    schema, found = table.schema(), []
    for field in spec.fields:
        source = schema._lazy_id_to_field.get(field.source_id)
        if source is None:  # only void fields outlive their column
            found.append(None)
            continue
        raw = values.get(_first_name(field.source_id))
        raw = (raw - EPOCH).days if isinstance(raw, dt.date) else raw
        found.append(field.transform.transform(source.field_type)(raw))
    return Record(*found)


def _file(
    table: Table, made: pa.Table, spec: PartitionSpec, partition: Record, content: DataFileContent, **more: Any
) -> DataFile:
    location = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    path = Path(plain_path(location))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, path)
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=made.num_rows,
        file_size_in_bytes=path.stat().st_size,
        **more,
    )
    file.spec_id = spec.spec_id
    return file
