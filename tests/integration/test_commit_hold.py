"""A finished rewrite is committed right after a row-level commit of another writer."""

from __future__ import annotations

import threading
import time

import pytest

from compactor.events import CommitHeld, Event
from compactor.settings.tree import CommitSettings
from tests.conftest import Lake
from tests.integration.table_kit import MERGE_ON_READ, create, insert, planned, run
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


def test_a_rewrite_of_a_table_that_is_only_appended_to_waits_for_nobody(lake: Lake, table_name: str) -> None:
    create(lake, table_name)
    insert(lake, table_name, 6)
    events: list[Event] = []
    run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=3600), listener=events.append)
    assert not [event for event in events if isinstance(event, CommitHeld)]
