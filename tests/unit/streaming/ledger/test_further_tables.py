"""Tables that the events of a batch name beyond one each: what is kept of them when there are many."""

from __future__ import annotations

from typing import Any

import pytest

from compactor.table_names import TableName
from streaming.ledger import further_tables
from streaming.ledger.further_tables import Groups, Row, bounded


def row(name: str, timestamp_ms: int = 5, snapshot_id: int | None = None, **columns: Any) -> Row:
    values = {"catalog": "lake", "namespace": ("db",), "name": name, "writes": True, "metadata_location": None}
    return {**values, "source": "nessie", "timestamp_ms": timestamp_ms, "snapshot_id": snapshot_id, **columns}


def located(file: str, timestamp_ms: int) -> Row:
    return {"source": "s3", "timestamp_ms": timestamp_ms, "metadata_location": f"s3://b/t/metadata/{file}"}


@pytest.fixture
def _one_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(further_tables, "MOST_FURTHER", 1)


FIRST, SECOND = row("first"), row("second")


@pytest.mark.usefixtures("_one_further")
def test_what_is_joined_has_the_newest_time_and_no_snapshot_that_hides_a_newer_one() -> None:
    """A look is left out for a snapshot that was counted, also if the table was rolled back to it since."""
    later = [row("t", 7, 1), row("t", 9, 2), row("t", 8, 1)]
    assert [*bounded([[FIRST, SECOND], *([FIRST, each] for each in later)])][-1] == row("t", 9, None)
    assert [*bounded([[FIRST, SECOND], [FIRST, row("t", 7, 1)], [FIRST, row("t", 9, 1)]])][-1] == row("t", 9, 1)


@pytest.mark.usefixtures("_one_further")
def test_a_rewrite_and_a_commit_of_a_writer_are_not_joined() -> None:
    events = [[FIRST, SECOND], [FIRST, row("t")], [FIRST, row("t", writes=False)]]
    assert [*bounded(events)] == [FIRST, SECOND, FIRST, FIRST, row("t"), {"source": "nessie", "left_out": 1}]


@pytest.mark.usefixtures("_one_further")
def test_metadata_files_of_one_folder_are_joined() -> None:
    events = [[FIRST, SECOND], [FIRST, located("1.json", 1), located("3.json", 3), located("2.json", 2)]]
    assert [*bounded(events)][3:] == [located("3.json", 3)]


@pytest.mark.usefixtures("_one_further")
def test_the_first_table_of_an_event_is_never_left_out() -> None:
    """So nothing is left out of events that name one table, nor a requested rewrite."""
    rows = [row(f"t{number}", request="id = 1") for number in range(9)]
    assert [*bounded([each] for each in rows)] == rows
    assert [*bounded([])] == []


def test_groups_of_tables_are_cut_when_there_is_no_more_room() -> None:
    a, b, c, d = (TableName("lake", ("db",), name) for name in "abcd")
    groups = Groups(_room=3)
    for tables in ((a, b, c), (a, b, c), (d, a, b, c), (d, a, c), (d, a), (c,)):
        groups.add(tables)
    assert groups.events == {(a, b, c): 2, (d, a): 2, (d,): 1, (c,): 1}
    assert groups.left_out == 4
