"""Rows that equality deletes delete, found by key columns alone: against a plain comparison of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyroaring import BitMap64

from compactor.rewrite.deletes import key_search
from compactor.rewrite.deletes.equality_deletes import EncodeInput, EqualityDelete, InputFiles
from compactor.rewrite.deletes.key_ranges import Values
from compactor.rewrite.deletes.key_search import FoundRows, count_deleted, search
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.deletes.row_maps import unpacked
from compactor.rewrite.deletes.written_deletes import position_file
from tests.unit.failing import reason_of

SCHEMA = Schema(
    NestedField(1, "id", "long", required=False),
    NestedField(2, "s", "string", required=False),
    NestedField(3, "x", "double", required=False),
    NestedField(4, "d", "date", required=False),
)
COLUMNS = {1: ("id", pa.int64()), 2: ("s", pa.string())}
GROUP_ROWS = 3
VALUES = {1: st.none() | st.integers(-3, 12), 2: st.none() | st.sampled_from(["", "a", "b", "é", "\U0001f600"])}
ROW = st.tuples(VALUES[1], VALUES[2])
DELETE = st.tuples(st.sampled_from([(1,), (2,), (1, 2)]), st.lists(ROW, max_size=3), st.integers(1, 4))


def field(field_id: int) -> pa.Field:
    name, kind = COLUMNS[field_id]
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


def written(path: Path, ids: tuple[int, ...], rows: list[Any], **options: Any) -> int:
    columns = [[row[field_id - 1] for row in rows] for field_id in ids]
    pq.write_table(pa.table(columns, schema=pa.schema([field(each) for each in ids])), path, **options)
    return path.stat().st_size


def searched(data: Path, keys: list[int]) -> FoundRows:
    """The rows of `data` that a delete of these ids deletes."""
    path = data.with_name("keys.parquet")
    delete = EqualityDelete(f"file://{path}", written(path, (1,), [(each,) for each in keys]), 2, (1,))
    return found_by(data, delete)


def found_by(data: Path, delete: EqualityDelete) -> FoundRows:
    rows = pq.read_metadata(data).num_rows
    entry = EncodeInput(f"file://{data}", data.stat().st_size, rows, 1, equality_deletes=(delete,))
    result = search(InputFiles((entry,), SCHEMA.model_dump_json()))
    assert isinstance(result, FoundRows)
    return result


def positions(result: FoundRows) -> list[int]:
    return [each for packed in result.by_value.values() for each in unpacked(packed).tolist()]


@given(
    st.lists(st.tuples(st.lists(ROW, max_size=10), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(DELETE, min_size=1, max_size=3),
    st.sets(st.integers(0, 9)),
    st.booleans(),
    st.booleans(),
)
def test_the_rows_are_those_of_a_plain_comparison(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[list[Any], int]],
    deletes: list[tuple[tuple[int, ...], list[Any], int]],
    gone: set[int],
    statistics: bool,
    filters: bool,
) -> None:
    """Statistics and bloom filters only save reading: with `filters` they are asked at any cost."""
    folder = tmp_path_factory.mktemp("search")
    by_value = []
    for number, (ids, rows, sequence_number) in enumerate(deletes):
        path = folder / f"delete-{number}.parquet"
        size = written(path, ids, rows)
        by_value.append((EqualityDelete(f"file://{path}", size, sequence_number, ids), ids, rows))
    inputs, expected = [], {}
    for number, (rows, sequence_number) in enumerate(files):
        path = folder / f"data-{number}.parquet"
        options: dict[str, Any] = {"bloom_filter_options": {"id": True, "s": True}} if filters and rows else {}
        size = written(path, (1, 2), rows, row_group_size=GROUP_ROWS, write_statistics=statistics, **options)
        location, known = f"file://{path}", {each for each in gone if each < len(rows)} if number == 0 else set()
        position_deletes: tuple[DeleteFile, ...] = ()
        if known:
            data, _ = position_file(location, BitMap64(known))
            (folder / "positions.parquet").write_bytes(data)
            position_deletes = (DeleteFile(f"file://{folder}/positions.parquet", len(data)),)
        applying = [each for each in by_value if each[0].sequence_number > sequence_number]
        inputs.append(
            EncodeInput(
                location, size, len(rows), sequence_number, None, position_deletes, tuple(each[0] for each in applying)
            )
        )
        found = {
            position
            for position, row in enumerate(rows)
            for _, ids, keys in applying
            if any(all(row[each - 1] == key[each - 1] for each in ids) for key in keys)
        } - known
        if found:
            expected[location] = (found, known)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_search, "FETCHED_WHOLE", 0)
        patched.setattr(key_search, "EXCLUDES", 1e9 if filters else 0.99)
        task = InputFiles(tuple(inputs), SCHEMA.model_dump_json())
        result, counted = search(task), count_deleted(task)
    assert isinstance(result, FoundRows)
    assert counted == len([each for each in gone if each < len(files[0][0])]) + sum(
        len(found) for found, _ in expected.values()
    )
    assert {
        location: (set(unpacked(positions).tolist()), set(unpacked(result.by_position[location]).tolist()))
        for location, positions in result.by_value.items()
    } == expected


def test_positions_beyond_the_end_of_a_file_are_no_deleted_rows(tmp_path: Path) -> None:
    """Of data files in other formats only positions are looked at, never the file."""
    location, delete = f"file://{tmp_path}/data.orc", tmp_path / "positions.parquet"
    data, _ = position_file(location, BitMap64([1, 2, 77]))
    delete.write_bytes(data)
    file = EncodeInput(location, 1, 3, position_deletes=(DeleteFile(f"file://{delete}", len(data)),))
    assert count_deleted(InputFiles((file,), SCHEMA.model_dump_json())) == 2


PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "none"}


def test_row_groups_whose_statistics_exclude_the_keys_are_not_read(tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    rows = [(number, "x" * 50 + str(number * 7919 % 10007)) for number in range(100_000)]
    size = written(data, (1, 2), rows, row_group_size=10_000, **PLAIN)
    result = searched(data, [55_000, 55_001, 10**9])
    assert positions(result) == [55_000, 55_001]
    assert result.row_groups_read == 1
    assert result.bytes_read < 0.05 * size


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("other", ["a.b", "a"])
def test_statistics_of_a_column_with_the_same_path_do_not_count(tmp_path: Path, other: str, turned: bool) -> None:
    """Column `a.b` has the path of column `b` in struct `a`; two columns may even have one name."""
    data = tmp_path / "data.parquet"
    struct = pa.struct([pa.field("b", pa.int64())])
    columns = [
        (pa.field(other, pa.int64(), metadata={b"PARQUET:field_id": b"1"}), pa.array([4, 5, 6])),
        (pa.field("a", struct), pa.array([{"b": 100}, {"b": 200}, {"b": 300}], struct))
        if other == "a.b"
        else (pa.field("a", pa.int64()), pa.array([100, 200, 300])),
    ]
    fields, values = zip(*(reversed(columns) if turned else columns), strict=True)
    pq.write_table(pa.table(list(values), schema=pa.schema(list(fields))), data)
    assert positions(searched(data, [5])) == [1]


@pytest.mark.parametrize("filters", [True, False])
def test_row_groups_whose_bloom_filter_excludes_the_keys_are_not_read(tmp_path: Path, filters: bool) -> None:
    """The keys are spread over all row groups: statistics exclude none."""
    data = tmp_path / "data.parquet"
    rows = [(number * 7919 % 100_003, "x" * 50 + str(number)) for number in range(100_000)]
    options: dict[str, Any] = {"bloom_filter_options": {"id": True}} if filters else {}
    written(data, (1, 2), rows, row_group_size=10_000, **PLAIN, **options)
    result = searched(data, [rows[55_000][0], rows[55_001][0], 10**9])
    assert positions(result) == [55_000, 55_001]
    if filters:
        assert result.row_groups_read < 4
        assert result.bytes_read < 0.7 * 100_000 * 8
    else:
        assert result.row_groups_read == 10
        assert result.bytes_read > 100_000 * 8


def test_a_filter_of_a_column_that_was_widened_is_not_asked(tmp_path: Path) -> None:
    """The file has 4-byte ids, the keys 8 bytes: their digests differ."""
    data = tmp_path / "data.parquet"
    narrow = pa.schema([pa.field("id", pa.int32(), metadata={b"PARQUET:field_id": b"1"})])
    ids = [number * 7919 % 100_003 for number in range(100_000)]
    pq.write_table(pa.table([ids], schema=narrow), data, use_dictionary=False, bloom_filter_options={"id": True})
    assert positions(searched(data, [ids[77]])) == [77]


def test_a_filter_that_does_not_know_the_values_that_are_there_is_not_trusted(tmp_path: Path) -> None:
    """A writer's mistake: the filter is that of another column."""
    data, other = tmp_path / "data.parquet", tmp_path / "other.parquet"
    rows = [(number * 7919 % 100_003, "x") for number in range(100_000)]
    for path, each in ((data, rows), (other, [(-number - 1, "x") for number, _ in rows])):
        written(path, (1, 2), each, bloom_filter_options={"id": True}, **PLAIN)
    chunk, wrong = (pq.read_metadata(path).row_group(0).column(0) for path in (data, other))
    assert chunk.bloom_filter_length == wrong.bloom_filter_length
    with data.open("r+b") as file, other.open("rb") as filters:
        file.seek(chunk.bloom_filter_offset)
        filters.seek(wrong.bloom_filter_offset)
        file.write(filters.read(wrong.bloom_filter_length))
    assert positions(searched(data, [rows[77][0]])) == [77]


def test_a_filter_beside_dates_that_python_does_not_know_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dates after the year 9999 are in the statistics."""
    for name in ("FETCHED_WHOLE", "FEWEST_BITS"):
        monkeypatch.setattr(key_search, name, 0)
    data, keys = tmp_path / "data.parquet", tmp_path / "keys.parquet"
    schema = pa.schema([pa.field("d", pa.date32(), metadata={b"PARQUET:field_id": b"4"})])
    days = pa.array([*range(20_000), 2**22], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table([days], schema=schema), data, bloom_filter_options={"d": {"ndv": 100}})
    assert pq.read_metadata(data).row_group(0).column(0).bloom_filter_offset
    pq.write_table(pa.table([days.slice(77, 1)], schema=schema), keys)
    assert positions(found_by(data, EqualityDelete(f"file://{keys}", keys.stat().st_size, 2, (4,)))) == [77]


def test_keys_that_cannot_be_compared_are_refused() -> None:
    source = EncodeInput("file:///data", 1, 1, equality_deletes=(EqualityDelete("file:///nowhere", 1, 2, (3,)),))
    assert reason_of(search(InputFiles((source,), SCHEMA.model_dump_json()))) == "equality_deletes"


def test_values_whose_order_statistics_do_not_share_are_not_compared() -> None:
    assert Values.of(pa.array([1.5])) is None
    assert Values.of(pa.array([b"a"])) is None
    assert Values.of(pa.array([2**22], pa.int32()).cast(pa.date32())) is None, "a date after the year 9999"
    found = Values.of(pa.array([3, None, 1]))
    assert found == Values([1, 3], True)
