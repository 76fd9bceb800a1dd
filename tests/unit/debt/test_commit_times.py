"""When a file was written, told from its snapshot or from the sequence number that a rewrite has kept."""

from __future__ import annotations

from pathlib import Path

from compactor.debt.table_changes import NO_COMMITS, CommitTimes
from tests.properties.table_history import TableHistory

WRITERS = CommitTimes({11: 1_000, 33: 3_000}, ((1, 1_000), (3, 3_000)))


def test_files_of_writers_are_as_old_as_their_commit() -> None:
    assert [WRITERS.written_ms(snapshot, sequence) for snapshot, sequence in ((11, 1), (33, 3))] == [1_000, 3_000]


def test_files_of_rewrites_are_as_old_as_the_newest_commit_they_can_hold() -> None:
    """Snapshots 22 and 44 are rewrites: planned at the commit before, or at a rewrite that followed it."""
    assert [WRITERS.written_ms(44, sequence) for sequence in (1, 2, 3, 4)] == [1_000, 1_000, 3_000, 3_000]


def test_of_expired_snapshots_nothing_is_known() -> None:
    assert WRITERS.written_ms(7, 0) == WRITERS.written_ms(None, 0) == NO_COMMITS.written_ms(11, 1) == 0


def test_they_are_read_from_the_tables_snapshots(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1])
    history.append_unreal("b", [1])
    view = history.view()
    times = CommitTimes.of(view.metadata)
    for number, snapshot in enumerate(view.metadata.snapshots, 1):
        assert times.written_ms(snapshot.snapshot_id, 0) == snapshot.timestamp_ms
        assert times.written_ms(None, number) == snapshot.timestamp_ms


REWRITES = CommitTimes({33: 3_000}, ((3, 3_000),), {22: 2_000, 44: 4_000})


def test_a_file_is_never_taken_for_older_than_it_may_be() -> None:
    """Else the output of a rewrite is as old as 1970, and due by its age at the next commit."""
    assert REWRITES.latest_ms(33, 3) == REWRITES.latest_ms(7, 3) == 3_000, "as it is known"
    assert REWRITES.latest_ms(44, 0) == 4_000, "V1 has no sequence numbers: the rewrite itself"
    assert REWRITES.latest_ms(44, 1) == 4_000, "its writers' snapshots have expired"
    assert REWRITES.latest_ms(7, 1) == 2_000, "older than all that is retained"
    assert NO_COMMITS.latest_ms(7, 1) == 0
