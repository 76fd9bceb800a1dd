"""Positions of position delete files: matching paths, row groups that are read, refused files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.deletes.position_deletes import DeleteFile, delete_refusal, deleted_positions, kept_rows
from compactor.storage.local_store import LocalByteStore
from tests.unit.failing import fails
from tests.unit.rewrite.encode_support import column, deletes

STORE = LocalByteStore()
FORMATS = {"PARQUET": None, "puffin": None, "ORC": "delete_file_format"}


def found(wanted: dict[str, list[DeleteFile]]) -> dict[str, list[int]]:
    return {path: positions.tolist() for path, positions in deleted_positions(STORE, wanted).items()}


def test_positions_are_sorted_without_repetition_over_all_delete_files(tmp_path: Path) -> None:
    one = deletes(tmp_path / "1.parquet", [("a", 5), ("b", 0), ("a", 3), ("a", 5)])
    two = deletes(tmp_path / "2.parquet", [("a", 4), ("a", 3), ("c", 9)])
    assert found({"a": [one, two], "b": [one, two], "d": [one]}) == {"a": [3, 4, 5], "b": [0]}


def test_a_delete_file_counts_only_for_the_files_it_is_listed_for(tmp_path: Path) -> None:
    old = deletes(tmp_path / "1.parquet", [("a", 1), ("b", 2)])
    new = deletes(tmp_path / "2.parquet", [("a", 3), ("b", 4)])
    assert found({"a": [old, new], "b": [new]}) == {"a": [1, 3], "b": [4]}


def test_paths_are_compared_to_the_byte(tmp_path: Path) -> None:
    spelled = ["file:/d/a.parquet", "file:///d/a.parquet", "/d/a.parquet", "file:/d/a.parquet ", "file:/D/a.parquet"]
    file = deletes(tmp_path / "1.parquet", [(path, n) for n, path in enumerate(spelled)])
    for n, path in enumerate(spelled):
        assert found({path: [file]}) == {path: [n]}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"store_schema": True},
        {"write_statistics": False},
        {"use_dictionary": False, "column_encoding": {"file_path": "DELTA_BYTE_ARRAY"}, "data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"file_path": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
)
def test_every_way_to_store_the_paths(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = [(f"f{n % 7}-ü", n) for n in range(1000)]
    file = deletes(tmp_path / "1.parquet", rows, row_group_size=100, **options)
    assert found({"f3-ü": [file], "f9-ü": [file]}) == {"f3-ü": [n for n in range(1000) if n % 7 == 3]}


def test_large_strings_and_no_field_ids(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"pos": pa.array([4], pa.int32()), "file_path": pa.array(["a"], pa.large_string())}), path)
    assert found({"a": [DeleteFile(str(path), path.stat().st_size)]}) == {"a": [4]}


def test_columns_go_by_id_and_deleted_rows_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    schema = pa.schema(
        [
            column("pos", pa.string(), 1),
            column("row", pa.struct([column("file_path", pa.string(), 2)]), 2147483544),
            column("p", pa.int64(), 2147483545),
            column("f", pa.string(), 2147483546),
        ]
    )
    row = {"pos": "x", "row": {"file_path": "b"}, "p": 8, "f": "a"}
    pq.write_table(pa.Table.from_pylist([row], schema=schema), path, store_schema=False)
    assert found({"a": [DeleteFile(str(path), path.stat().st_size)]}) == {"a": [8]}


@pytest.mark.parametrize("name", ["row.file_path", "pos"])
def test_columns_that_cannot_be_told_apart_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "1.parquet"
    row = pa.struct([column("file_path", pa.string(), 2)])
    fields = [
        column(name, pa.string(), 2147483546),
        column("row", row, 2147483544),
        column("pos", pa.int64(), 2147483545),
    ]
    columns = [pa.array(["a"]), pa.array([{"file_path": "z"}], row), pa.array([8])]
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), path, store_schema=False)
    with fails("unreadable_delete_file"):
        found({"a": [DeleteFile(str(path), path.stat().st_size)]})


def test_row_groups_that_cannot_hold_the_path_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    rows = [("a", 1), ("b", 2), ("c", 3)]
    file = deletes(path, rows, row_group_size=1, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    place = data.index(b"\x01\x00\x00\x00c")
    data[place + 4] = ord("x")  # the page of "c" no longer fits its checksum
    path.write_bytes(data)
    assert found({"a": [file], "b": [file]}) == {"a": [1], "b": [2]}
    with fails("corrupt_page"):
        found({"c": [file]})


def test_statistics_that_are_no_text_exclude_nothing(tmp_path: Path) -> None:
    """Some writers cut them inside a character."""
    path = tmp_path / "1.parquet"
    file = deletes(path, [("a", 1), ("bü", 2)], use_dictionary=False, compression="none", store_schema=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    cut = data[footer:].replace("bü".encode(), b"b\xc3\xc3")
    assert cut != data[footer:]
    path.write_bytes(data[:footer] + cut)
    assert found({"a": [file], "bü": [file]}) == {"a": [1], "bü": [2]}


@pytest.mark.parametrize(
    "table",
    [
        {"file_path": ["a"]},
        {"pos": [1]},
        {"file_path": ["a"], "pos": [None]},
        {"file_path": ["a"], "pos": [-1]},
        {"file_path": [None], "pos": [1]},
    ],
)
def test_delete_files_that_make_no_sense(tmp_path: Path, table: dict[str, list[Any]]) -> None:
    path = tmp_path / "1.parquet"
    kinds = {"file_path": pa.string(), "pos": pa.int64()}
    pq.write_table(pa.table({name: pa.array(values, kinds[name]) for name, values in table.items()}), path)
    with fails("unreadable_delete_file"):
        found({"a": [DeleteFile(str(path), path.stat().st_size)]})


def test_formats() -> None:
    reasons = [getattr(delete_refusal([DeleteFile("x", 1, name)]), "reason", None) for name in FORMATS]
    assert reasons == list(FORMATS.values())


def test_masks_by_position() -> None:
    positions = np.array([0, 5, 9, 10, 30])
    kept = [kept_rows(positions, start, 5) for start in range(0, 40, 5)]
    gone = [
        start + n
        for start, mask in zip(range(0, 40, 5), kept, strict=True)
        if mask is not None
        for n, keep in enumerate(mask.to_pylist())
        if not keep
    ]
    assert gone == positions.tolist()
    assert kept[3] is None
