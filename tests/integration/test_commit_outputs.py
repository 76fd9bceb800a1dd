"""Outputs between their writing and their commit: a cleaner takes them, because to it they are orphans.

As `remove_orphan_files` with a short age does, or a lifecycle rule of the store. And: where outputs are put, and what
is told of each file that a run deletes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.events import Event, FileDeleted, GroupRewritten
from compactor.locations import plain_path
from compactor.planning.budget import Spent
from compactor.runs.results import RunResult
from tests.conftest import Lake
from tests.integration.table_kit import (
    BY_A,
    MERGE_ON_READ,
    append_rows,
    before_commit,
    conversion,
    create,
    delete_equal,
    planned,
    records_of,
    run,
    unreferenced,
)
from tests.slow import slow

pytestmark = pytest.mark.spark


def take(lake: Lake, table: str, partition: str = "") -> None:
    for path in unreferenced(lake, table):
        if partition in path:
            Path(path).unlink()


def partitions(result: RunResult) -> list[str]:
    return [group.planned.file_group.partition["a"] for group in result.groups]


@pytest.mark.parametrize(("version", "engine"), [(2, "auto"), *slow((3, "encode"), (3, "spark"))])
def test_an_output_that_was_taken_costs_its_file_group_only(
    lake: Lake, table_name: str, version: int, engine: str
) -> None:
    create(lake, table_name, version, "", BY_A, commits=3)
    rows = lake.rows(table_name)
    other = before_commit(lambda: take(lake, table_name, "a=p1"))
    result = run(lake, planned(lake, table_name, engine=engine), enabled=other)
    assert partitions(result) == ["p0"]
    (dropped,) = result.dropped
    assert (dropped.error.reason, dropped.error.reaction) == ("output_missing", "replan")
    assert "remove_orphan_files" in str(dropped.error)
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()
    assert partitions(run(lake, planned(lake, table_name))) == ["p1"]
    assert lake.rows(table_name) == rows


class Cleaner:
    """Takes delete files of a commit once, when they have just been written: costs are charged then."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.lake, self.table, self.taken = lake, table, list[str]()

    def charge(self, _spent: Spent) -> None:
        found = [path for path in unreferenced(self.lake, self.table) if "/deletes-" in path or "/converted-" in path]
        for path in found if not self.taken else ():
            Path(path).unlink()
            self.taken.append(path)


def test_positions_of_a_conversion_that_were_taken_are_written_again(lake: Lake, table_name: str) -> None:
    create(lake, table_name, 2, commits=3)
    delete_equal(lake, table_name, "id", [5])
    rows, cleaner = lake.rows(table_name), Cleaner(lake, table_name)
    result = conversion(lake, table_name, charge=cleaner.charge).convert()
    assert (result.snapshot_after is not None, len(cleaner.taken)) == (True, 3)
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()


def test_deletes_that_follow_their_rows_are_written_again_if_they_were_taken(lake: Lake, table_name: str) -> None:
    create(lake, table_name, 3, MERGE_ON_READ, BY_A, commits=3)
    plan, cleaner = planned(lake, table_name), Cleaner(lake, table_name)
    other = before_commit(lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 5"))
    result = run(lake, plan, enabled=other, charge=cleaner.charge)
    assert (partitions(result), result.dropped, len(cleaner.taken)) == (["p0", "p1"], (), 1)
    assert len(lake.rows(table_name)) == 27
    assert unreferenced(lake, table_name) == set()


FLAT = "'write.object-storage.enabled'='true', 'write.object-storage.partitioned-paths'='false'"


@pytest.mark.parametrize("engine", ["auto", *slow("spark")])
def test_a_partition_whose_folder_would_have_too_long_a_name_is_compacted(
    lake: Lake, table_name: str, engine: str
) -> None:
    """As an identity partition of URLs: the name of a folder has 255 bytes at most."""
    create(lake, table_name, 2, FLAT, BY_A)
    long = "http://example.com/" + "ä" * 200
    for number in range(3):
        append_rows(lake, table_name, [(number, long, number), (number, "short", number)])
    lake.sql(f"ALTER TABLE lake.{table_name} UNSET TBLPROPERTIES ('write.object-storage.enabled')")
    rows = lake.rows(table_name)
    assert sorted(partitions(run(lake, planned(lake, table_name, engine=engine)))) == sorted([long, "short"])
    assert lake.rows(table_name) == rows
    found = [plain_path(path) for path in lake.live_files(table_name)]
    assert (len(found), unreferenced(lake, table_name), records_of(lake, table_name)) == (2, set(), [])
    if engine == "auto":
        assert sum("/a=short/" in path for path in found) == 1, "others keep their folders"


def test_each_file_that_a_run_deletes_is_told(lake: Lake, table_name: str) -> None:
    """Outputs of a group that lost a race, and manifests of the attempts to commit."""
    create(lake, table_name, 2, "", BY_A, commits=3)
    heard: list[Event] = []
    before = files_of(lake, table_name)
    other = before_commit(lambda: lake.sql(f"DELETE FROM lake.{table_name} WHERE a = 'p1'"))
    written: set[str] = set()

    def listener(event: Event) -> None:
        heard.append(event)
        if isinstance(event, GroupRewritten):
            written.update(files_of(lake, table_name) - before)

    result = run(lake, planned(lake, table_name), enabled=other, listener=listener)
    assert partitions(result) == ["p0"]
    told = {plain_path(event.path): event for event in heard if isinstance(event, FileDeleted)}
    assert {event.run_id for event in told.values()} == {result.run_id}
    gone = {path for path in written if not Path(path).exists()}
    assert gone
    assert gone == {path for path, event in told.items() if event.reason == "not_committed"}
    assert not [path for path in told if Path(path).exists()]


def files_of(lake: Lake, table: str) -> set[str]:
    """Data files, by any name."""
    folder = Path(plain_path(lake.view(table).metadata.location)) / "data"
    return {str(path) for path in folder.rglob("*.parquet")}
