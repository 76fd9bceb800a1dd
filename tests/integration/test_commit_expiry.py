"""What Iceberg's `expireSnapshots` deletes: each file that an expired snapshot has removed, also if it is live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactor.locations import plain_path
from tests.conftest import Lake
from tests.correctness.stage import any_size_splices
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append,
    append_and_expire,
    before_commit,
    create,
    delete_equal,
    hundreds,
    of_three_files,
    planned,
    run,
    unreferenced,
)

pytestmark = pytest.mark.spark


def delete_files(lake: Lake, table: str) -> list[Any]:
    return lake.sql(f"SELECT * FROM lake.{table}.delete_files")


def and_appended(rows: list[Any]) -> list[Any]:
    return sorted([*rows, (77, "p0", 77)], key=repr)


def test_a_delete_file_of_rewritten_and_other_files_outlives_the_commit(lake: Lake, table_name: str) -> None:
    create(lake, table_name, 2, f"{MERGE_ON_READ}, 'write.delete.granularity'='partition'")
    hundreds(lake, table_name)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id % 100 = 7")
    rows, plan = lake.rows(table_name), of_three_files(planned(lake, table_name))
    with any_size_splices():
        (group,) = run(lake, plan).groups
    assert (group.rows_carried, len(delete_files(lake, table_name))) == (3, 2)
    append_and_expire(lake, table_name)
    assert lake.rows(table_name) == and_appended(rows)
    lake.compact(table_name, force=True, rewrite_all=True)
    assert (lake.rows(table_name), delete_files(lake, table_name)) == (and_appended(rows), [])


def test_a_vector_that_leaves_takes_no_other_with_it(lake: Lake, table_name: str) -> None:
    """One commit gives vectors to two outputs; later one of them gets another vector."""
    create(lake, table_name, 3, MERGE_ON_READ, BY_A, commits=3)
    other = before_commit(lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (4, 5)"))
    assert sum(group.rows_rebased for group in run(lake, planned(lake, table_name), enabled=other).groups) == 6
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 7")
    rows = lake.rows(table_name)
    assert len(rows) == 21
    append_and_expire(lake, table_name)
    assert lake.rows(table_name) == and_appended(rows)


def test_the_copy_of_an_equality_delete_is_as_the_file_was(lake: Lake, table_name: str) -> None:
    """Iceberg removes a delete that arrives while the commit is made, because all data that it sees is newer."""
    create(lake, table_name, commits=3)
    plan, before = planned(lake, table_name), list[Any]()

    def other() -> None:
        delete_equal(lake, table_name, "id", [5])
        append(lake, table_name)
        before.extend(delete_files(lake, table_name))

    run(lake, plan, enabled=before_commit(other))
    (file,), (copy,) = before, delete_files(lake, table_name)
    assert copy.file_path != file.file_path
    assert Path(plain_path(copy.file_path)).read_bytes() == Path(plain_path(file.file_path)).read_bytes()
    assert {**copy.asDict(recursive=True), "file_path": ""} == {**file.asDict(recursive=True), "file_path": ""}
    rows = lake.rows(table_name)
    assert len(rows) == 28
    append_and_expire(lake, table_name)
    assert lake.rows(table_name) == and_appended(rows)
    assert unreferenced(lake, table_name) == set()
