"""A finished rewrite is committed right after a row-level commit of another writer."""

from __future__ import annotations

import threading
import time

import pytest

from compactor.events import CommitHeld, CommitWaits, Event
from compactor.settings.tree import CommitSettings
from tests.conftest import Lake
from tests.integration.table_kit import MERGE_ON_READ, create, planned, run
from tests.slow import slow

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", [2, *slow(3)])
def test_a_rewrite_is_committed_right_after_the_writers_next_commit(lake: Lake, table_name: str, version: int) -> None:
    """The writer has deleted a row some seconds ago, and deletes another one while the rewrite waits for it."""
    create(lake, table_name, version, MERGE_ON_READ, commits=6)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id = 0")
    time.sleep(6)
    events, writers = list[Event](), list[threading.Timer]()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, CommitWaits) and not writers:
            writers.append(threading.Timer(1, lake.sql, (f"DELETE FROM lake.{table_name} WHERE id = 9",)))
            writers[0].start()

    result = run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=60), listener=listen)
    writers[0].join()
    (held,) = (event for event in events if isinstance(event, CommitHeld))
    assert held.after_writer
    assert result.snapshot_after is not None
    assert sum(group.rows_rebased for group in result.groups) == 6
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted([*range(1, 9)] * 6)


def test_a_rewrite_of_a_table_that_is_only_appended_to_waits_for_nobody(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=6)
    events: list[Event] = []
    run(lake, planned(lake, table_name), commit=CommitSettings(hold_seconds=3600), listener=events.append)
    assert not [event for event in events if isinstance(event, CommitHeld)]
