"""Variants are copied like any column; files that were shredded in different ways are not joined."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from compactor.reasons import Reason, Refusal
from compactor.rewrite.splice.checks import refusal
from tests.unit.rewrite.splice_files import ANY_SIZE, footer_of, join

VALUES = {
    "texts": "('t' || i)::VARIANT",
    "numbers": "i::VARIANT",
    "objects": '(\'{"a": \' || i || \', "b": "x"}\')::JSON::VARIANT',
    "nulls": "CASE WHEN i % 2 = 0 THEN ('t' || i)::VARIANT END",
}


def written(path: Path, values: str, first: int) -> Path:
    rows = f"SELECT i AS id, {VALUES[values]} AS v FROM range({first}, {first + 500}) t(i)"
    duckdb.sql(f"COPY ({rows}) TO '{path}' (FORMAT parquet, FIELD_IDS {{id: 1, v: 2}})")
    return path


def rows_of(*paths: Path) -> list[tuple[int, str | None]]:
    read = duckdb.read_parquet([str(path) for path in paths])
    return sorted(read.project("id, v::JSON::VARCHAR").fetchall())


@pytest.mark.parametrize("values", VALUES)
def test_variants_are_copied(tmp_path: Path, values: str) -> None:
    files = [written(tmp_path / f"{first}.parquet", values, first) for first in (0, 500)]
    spliced = join(tmp_path, *files)
    assert (spliced.rows, spliced.column_sizes.keys()) == (1000, {1, 2})
    assert rows_of(tmp_path / "out.parquet") == rows_of(*files)


def test_files_shredded_in_different_ways_are_not_joined(tmp_path: Path) -> None:
    footers = [footer_of(written(tmp_path / f"{values}.parquet", values, 0)) for values in ("texts", "numbers")]
    found = refusal(footers, ANY_SIZE)
    assert isinstance(found, Refusal)
    assert found.reason is Reason.SCHEMA_DIFFERS
