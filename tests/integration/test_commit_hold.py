"""A finished rewrite is committed right after a row-level commit of another writer."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from compactor.events import CommitHeld, CommitWaits, Event
from compactor.planning.commit_timing import SHORTEST_MOMENT
from compactor.runs import run as run_module
from compactor.runs.commit_groups import Committed
from compactor.settings.tree import CommitSettings
from tests.conftest import Lake
from tests.integration.table_kit import MERGE_ON_READ, create, insert, planned, run, unreferenced
from tests.slow import slow

pytestmark = pytest.mark.spark


def delete(lake: Lake, table: str, key: int) -> float:
    """Delete a row; when it was committed."""
    lake.sql(f"DELETE FROM lake.{table} WHERE id = {key}")
    return lake.view(table).metadata.snapshots[-1].timestamp_ms / 1000


@pytest.mark.parametrize("version", [2, *slow(3)])
def test_a_rewrite_is_committed_right_after_the_writers_next_commit(lake: Lake, table_name: str, version: int) -> None:
    """The writer deletes a row every four seconds; the rewrite is done in the middle and waits for the next one."""
    create(lake, table_name, version, MERGE_ON_READ)
    insert(lake, table_name, 6)
    events: list[Event] = []
    for key in range(3):
        last = delete(lake, table_name, key)
        time.sleep(max(0.0, last + (4 if key < 2 else 2) - time.time()))
    writer = threading.Timer(max(0.0, last + 5 - time.time()), delete, (lake, table_name, 3))
    writer.start()
    result = run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=30), listener=events.append)
    writer.join()
    (held,) = (event for event in events if isinstance(event, CommitHeld))
    assert held.after_writer
    assert result.snapshot_after is not None
    operations = [snapshot.summary.operation.value for snapshot in lake.view(table_name).metadata.snapshots]
    assert operations[-2:] in (["overwrite", "replace"], ["delete", "replace"])
    assert sum(group.rows_rebased for group in result.groups) == 6
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted([*range(4, 10)] * 6)


@pytest.mark.slow  # its writer keeps a rhythm of four seconds only where nothing runs beside it
def test_a_commit_that_is_prepared_too_late_waits_for_the_next_moment(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog or the store is slow: when the first attempt is ready, the writer's next statement may have begun."""
    create(lake, table_name, 2, MERGE_ON_READ)
    insert(lake, table_name, 6)
    committed, finished, deleted = run_module.commit_groups, threading.Event(), set(range(3))
    attempts: list[float] = []
    for key in range(3):
        last = delete(lake, table_name, key)
        time.sleep(max(0.0, last + (4 if key < 2 else 2) - time.time()))

    def slow_at_first(*args: Any) -> Committed:
        attempts.append(time.time())
        time.sleep(SHORTEST_MOMENT + 0.2 if len(attempts) == 1 else 0)
        return committed(*args)

    def write() -> None:
        at = last
        for key in range(3, 9):
            if finished.wait(max(0.0, at + 4 - time.time())):
                return
            at = delete(lake, table_name, key)
            deleted.add(key)

    monkeypatch.setattr(run_module, "commit_groups", slow_at_first)
    events: list[Event] = []
    writer = threading.Thread(target=write)
    writer.start()
    run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=30), listener=events.append)
    finished.set()
    writer.join()
    assert [event.after_writer for event in events if isinstance(event, CommitHeld)][:2] == [True, True]
    assert len(attempts) == 2
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted(
        [each for each in range(10) if each not in deleted] * 6
    )
    assert unreferenced(lake, table_name) == set()


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, *slow(2)])
def test_a_rewrite_waits_after_the_first_row_level_commit_too(lake: Lake, table_name: str, before: int) -> None:
    """The second writer may be under way. It commits while the rewrite waits; `before`: commits before that."""
    create(lake, table_name, 2, MERGE_ON_READ)
    insert(lake, table_name, 6)
    for key in range(before):
        last = delete(lake, table_name, key)
        time.sleep(max(0.0, last + (6 if before == 1 else 15) - time.time()))
    writers: list[threading.Timer] = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, CommitWaits):
            writers.append(threading.Timer(1, delete, (lake, table_name, 9)))
            writers[-1].start()

    events: list[Event] = []
    run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=60), listener=listen)
    (held,) = (event for event in events if isinstance(event, CommitHeld))
    for writer in writers:
        writer.join()
    assert held.after_writer
    assert sorted({row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")}) == [*range(before, 9)]


def test_a_rewrite_of_a_table_that_is_only_appended_to_waits_for_nobody(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name, 6)
    events: list[Event] = []
    run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=3600), listener=events.append)
    assert not [event for event in events if isinstance(event, CommitHeld)]
