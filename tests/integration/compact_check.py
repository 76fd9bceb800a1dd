"""`compact` on a whole table: rows are the same for every reader, one `replace`, nothing left to do or left behind."""

from __future__ import annotations

import duckdb
import pytest

from compactor.locations import plain_path
from compactor.runs.results import RunResult
from tests.conftest import Lake
from tests.integration.table_kit import (
    data_files,
    engines,
    records_of,
    unquoted,
    unreferenced,
)
from tests.slow import slow

COPIED = {("splice", "row_groups_copied")}
REQUESTED = {("spark", "requested")}
WITH_SPARK_SLOW = pytest.mark.parametrize("engine", ["auto", *slow("spark")])
"""Spark's engine leaves these to Iceberg's own writer."""
COMPARED = {("encode", "equality_deletes")}
NO_EQUALITY_DELETES = "PyIceberg does not yet support equality deletes"


def py_rows(lake: Lake, table: str) -> list[str]:
    """All rows as PyIceberg reads them, in a stable order; NaN equals NaN in text."""
    read = lake.catalog.load_table(lake.name(unquoted(table)).identifier).scan().to_arrow()
    return sorted(repr(tuple(row.values())) for row in read.to_pylist())


def duckdb_ids(lake: Lake, table: str) -> list[int]:
    paths = [plain_path(path) for path in lake.live_files(table)]
    read = duckdb.read_parquet(paths, hive_partitioning=False, union_by_name=True)
    return sorted(row[0] for row in read.select("id").fetchall())


def compact_and_check(
    lake: Lake,
    table: str,
    files: int,
    expected: set[tuple[str, str]],
    *,
    columns: str = "*",
    engine: str = "auto",
    unreadable: str | None = None,
    in_duckdb: bool = False,
    deleted: int = 0,
) -> RunResult:
    """Compact everything there is; the table must be the same for every reader. `unreadable`: PyIceberg's excuse."""
    name = unquoted(table)
    before, snapshots = repr(lake.rows(table, columns)), len(lake.view(name).metadata.snapshots)
    if unreadable:
        with pytest.raises(ValueError, match=unreadable):
            py_rows(lake, table)
    py_before = None if unreadable else py_rows(lake, table)
    result = lake.compact(name, force=True, engine=engine)
    assert engines(result) == expected, (engines(result), [str(drop.error) for drop in result.dropped])
    assert repr(lake.rows(table, columns)) == before
    if py_before is not None:
        assert py_rows(lake, table) == py_before
    assert data_files(lake, table) == files
    after = lake.view(name)
    assert after.snapshot.snapshot_id == result.snapshot_after
    assert after.snapshot.summary.operation.value == "replace"
    assert len(after.metadata.snapshots) == snapshots + 1
    assert sum(group.rewritten.rows_deleted for group in result.groups) == deleted
    if in_duckdb:
        assert duckdb_ids(lake, table) == sorted(row[0] for row in lake.rows(table, "id"))
    assert lake.compact(name, force=True).snapshot_after is None
    assert records_of(lake, table) == []
    assert unreferenced(lake, table) == set()
    return result
