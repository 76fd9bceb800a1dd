"""Equality deletes applied by `encode`, against a model that compares rows one by one as the spec says."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from compactor.rewrite.deletes.equality_deletes import LOOKUP_ROWS, EncodeInput, EqualityDelete, InputFiles
from compactor.rewrite.encode.encode import EncodeTask, encode, encode_refusal
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.reading.schema import written_schema
from tests.properties.examples import examples
from tests.unit.failing import reason_of
from tests.unit.rewrite.encode_support import deletes as position_deletes

UTC = dt.UTC
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "boolean": (BooleanType(), [True, False, None]),
    "int": (IntegerType(), [-1, 0, 2**31 - 1, None]),
    "long": (LongType(), [-(2**63), 0, 2**63 - 1, None]),
    "decimal": (DecimalType(20, 2), [decimal.Decimal("1.10"), decimal.Decimal("-99999999999999999.99"), None]),
    "date": (DateType(), [dt.date(1969, 12, 31), dt.date(2026, 1, 1), None]),
    "timestamp": (
        TimestampType(),
        [dt.datetime.fromisoformat("1969-01-01T00:00:00.000001"), dt.datetime.fromisoformat("2026-01-01"), None],
    ),
    "timestamptz": (TimestamptzType(), [dt.datetime(2026, 1, 1, tzinfo=UTC), None]),
    "string": (StringType(), ["", "a", "ä😀", None]),
    "uuid": (UUIDType(), [uuid.UUID(int=1), uuid.UUID(int=2**128 - 1), None]),
    "fixed": (FixedType(3), [b"abc", b"\x00\xff\x80", None]),
    "binary": (BinaryType(), [b"", b"\xff", None]),
}
Row = tuple[Any, ...]


def written(path: Path, schema: Schema, rows: Sequence[Row], columns: Sequence[int] | None = None) -> Path:
    """A Parquet file of some columns, with field ids."""
    arrow = written_schema(schema, with_lineage=False).arrow
    chosen = range(len(arrow)) if columns is None else columns
    arrays = [_array([row[index] for row in rows], arrow.field(index).type) for index in chosen]
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema([arrow.field(index) for index in chosen])), path)
    return path


def _array(values: list[Any], arrow: pa.DataType) -> pa.Array:
    if isinstance(arrow, pa.UuidType):
        stored = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(arrow, stored)
    return pa.array(values, arrow)


def data_file(path: Path, rows: Sequence[Row], number: int, deletes: Sequence[EqualityDelete]) -> EncodeInput:
    newer = tuple(delete for delete in deletes if delete.sequence_number > number)
    return EncodeInput(str(path), path.stat().st_size, len(rows), number, equality_deletes=newer)


def delete_file(path: Path, number: int, field_ids: tuple[int, ...]) -> EqualityDelete:
    return EqualityDelete(str(path), path.stat().st_size, number, field_ids)


def task_of(folder: Path, schema: Schema, *inputs: EncodeInput) -> EncodeTask:
    return EncodeTask(InputFiles(inputs, schema.model_dump_json()), str(folder / "out.parquet"))


def encoded_rows(task: EncodeTask) -> tuple[EncodedFile, list[Row]]:
    result = encode(task)
    assert isinstance(result, EncodedFile), result
    if not result.rows:
        return result, []
    table = pq.read_table(task.output)
    return result, list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[tuple[int, list[Row]]], list[tuple[int, tuple[int, ...], list[Row]]]]:
    """A schema, data files (number, rows), delete files (number, compared field ids, rows)."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    schema = Schema(*(NestedField(10 + i, f"c{i}", KINDS[kind][0]) for i, kind in enumerate(kinds)))
    row = st.tuples(*(st.sampled_from(KINDS[kind][1]) for kind in kinds))
    number = st.integers(1, 5)
    files = draw(st.lists(st.tuples(number, st.lists(row, min_size=1, max_size=12)), min_size=1, max_size=4))
    ids = st.lists(st.sampled_from([field.field_id for field in schema.fields]), min_size=1, unique=True).map(tuple)
    deletes = draw(st.lists(st.tuples(number, ids, st.lists(row, min_size=1, max_size=4)), max_size=4))
    return schema, files, deletes


@settings(max_examples=examples(150), deadline=None)
@given(tables())
def test_rows_equal_in_the_compared_columns_go_if_the_delete_is_newer(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[Schema, list[tuple[int, list[Row]]], list[tuple[int, tuple[int, ...], list[Row]]]],
) -> None:
    schema, files, deletes = case
    folder = tmp_path_factory.mktemp("case")
    named = []
    for index, (number, ids, rows) in enumerate(deletes):
        path = written(folder / f"delete-{index}.parquet", schema, rows, sorted(each - 10 for each in ids))
        named.append(delete_file(path, number, ids))
    inputs = [
        data_file(written(folder / f"data-{index}.parquet", schema, rows), rows, number, named)
        for index, (number, rows) in enumerate(files)
    ]
    expected = [
        row
        for number, rows in files
        for row in rows
        if not any(
            deleted_at > number and any(all(row[i - 10] == gone[i - 10] for i in ids) for gone in gone_rows)
            for deleted_at, ids, gone_rows in deletes
        )
    ]
    task = task_of(folder, schema, *inputs)
    result, rows = encoded_rows(task)
    assert rows == expected
    assert result.rows_deleted == sum(len(rows) for _, rows in files) - len(expected)


SIMPLE = Schema(NestedField(1, "id", "long"), NestedField(2, "name", "string"))
ROWS: list[Row] = [(number, f"n{number % 3}") for number in range(10)]


def test_a_row_that_two_kinds_of_deletes_name_is_counted_once(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", SIMPLE, ROWS)
    gone = delete_file(written(tmp_path / "gone.parquet", SIMPLE, [(3, None), (4, None)], [0]), 2, (1,))
    positions = tmp_path / "positions.parquet"
    by_position = position_deletes(positions, [(str(data), 4), (str(data), 5)])
    source = replace(data_file(data, ROWS, 1, [gone]), position_deletes=(by_position,))
    result, rows = encoded_rows(task_of(tmp_path, SIMPLE, source))
    assert [row[0] for row in rows] == [0, 1, 2, 6, 7, 8, 9]
    assert result.rows_deleted == 3


def test_more_rows_than_are_looked_up_at_once(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", "long"))
    rows = LOOKUP_ROWS + 5
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"id": range(rows)}, schema=written_schema(schema, with_lineage=False).arrow), path)
    gone = [(number,) for number in (0, 65536, LOOKUP_ROWS - 1, LOOKUP_ROWS, rows - 1)]
    delete = delete_file(written(tmp_path / "gone.parquet", schema, gone), 2, (1,))
    small = written(tmp_path / "small.parquet", schema, [(0,), (7,)])
    inputs = (
        EncodeInput(str(path), path.stat().st_size, rows, 1, equality_deletes=(delete,)),
        EncodeInput(str(small), small.stat().st_size, 2, 1, equality_deletes=(delete,)),
    )
    result, kept = encoded_rows(task_of(tmp_path, schema, *inputs))
    assert result.rows_deleted == len(gone) + 1
    assert set(range(rows)) - {row[0] for row in kept[:-1]} == {row[0] for row in gone}
    assert kept[-1] == (7,)


def test_a_column_that_data_files_lack_has_its_default(tmp_path: Path) -> None:
    """A delete may be newer, and a data file older, than a column."""
    schema = Schema(*SIMPLE.fields, NestedField(3, "kind", "string", initial_default="old"))
    data = written(tmp_path / "data.parquet", SIMPLE, ROWS)
    gone = written(tmp_path / "gone.parquet", schema, [(3, None, "old"), (4, None, "new")], [0, 2])
    source = data_file(data, ROWS, 1, [delete_file(gone, 2, (1, 3))])
    _, rows = encoded_rows(task_of(tmp_path, schema, source))
    assert [row[0] for row in rows] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_narrower_type_in_the_delete_file_is_widened(tmp_path: Path) -> None:
    narrow = Schema(NestedField(1, "id", "int"))
    data = written(tmp_path / "data.parquet", SIMPLE, ROWS)
    gone = written(tmp_path / "gone.parquet", narrow, [(3,)])
    source = data_file(data, ROWS, 1, [delete_file(gone, 2, (1,))])
    _, rows = encoded_rows(task_of(tmp_path, SIMPLE, source))
    assert [row[0] for row in rows] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_what_arrow_compares_otherwise_than_java_is_refused(tmp_path: Path) -> None:
    inner = StructType(NestedField(5, "inner", "long"))
    schema = Schema(*SIMPLE.fields, NestedField(3, "ratio", "double"), NestedField(4, "nested", inner))
    data = written(tmp_path / "data.parquet", SIMPLE, ROWS)
    for ids, file_format, reason in (
        ((3,), "parquet", "equality_deletes"),
        ((5,), "parquet", "equality_deletes"),
        ((4,), "parquet", "equality_deletes"),
        ((1,), "avro", "delete_file_format"),
    ):
        delete = EqualityDelete("nowhere", 1, 2, ids, file_format)
        task = task_of(tmp_path, schema, data_file(data, ROWS, 1, [delete]))
        assert [reason_of(encode_refusal(task)), reason_of(encode(task))] == [reason] * 2


@pytest.mark.parametrize("text", [b"\xff", "\ufffd".encode()])
def test_text_that_java_would_read_as_another_is_refused(tmp_path: Path, text: bytes) -> None:
    data = written(tmp_path / "data.parquet", SIMPLE, ROWS)
    path = tmp_path / "gone.parquet"
    field = written_schema(SIMPLE, with_lineage=False).arrow.field(1)
    pq.write_table(pa.Table.from_arrays([pa.array([text]).view(pa.string())], schema=pa.schema([field])), path)
    task = task_of(tmp_path, SIMPLE, data_file(data, ROWS, 1, [delete_file(path, 2, (2,))]))
    assert reason_of(encode(task)) == "equality_deletes"


def test_a_delete_file_without_a_compared_column_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "data.parquet", SIMPLE, ROWS)
    gone = written(tmp_path / "gone.parquet", SIMPLE, [(3, "n0")], [0])
    task = task_of(tmp_path, SIMPLE, data_file(data, ROWS, 1, [delete_file(gone, 2, (1, 2))]))
    assert reason_of(encode(task)) == "equality_deletes"


def test_a_file_without_a_delete_that_its_neighbours_have_is_refused(tmp_path: Path) -> None:
    """Sequence numbers alone decide which delete applies; a plan that contradicts them is refused."""
    data = [written(tmp_path / f"{name}.parquet", SIMPLE, ROWS) for name in "ab"]
    delete = delete_file(written(tmp_path / "gone.parquet", SIMPLE, [(3, None)], [0]), 2, (1,))
    inputs = (data_file(data[0], ROWS, 1, [delete]), data_file(data[1], ROWS, 1, []))
    assert reason_of(encode(task_of(tmp_path, SIMPLE, *inputs))) == "equality_deletes"
