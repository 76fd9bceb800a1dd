"""Which `replace` snapshots follow one another."""

from __future__ import annotations

import math

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.iceberg.other_compactors import RUN_ID
from compactor.planning.replace_order import Tail, may_follow, tail_of


def snapshot(kind: str, number: int) -> Snapshot:
    touched = {"files": {"deleted-data-files": "4"}, "deletes": {"removed-delete-files": "2"}}.get(kind, {})
    operation = Operation.APPEND if kind == "append" else Operation.REPLACE
    return Snapshot(
        snapshot_id=number + 1,
        parent_snapshot_id=number or None,
        timestamp_ms=10_000 * number,
        manifest_list="x",
        summary=Summary(operation, **touched),
    )


def tail(*kinds: str, listed: int | None = None) -> Tail:
    """Of a history in the order of its commits, ten seconds apart. `listed`: the newest so many; None: all."""
    snapshots = [snapshot(kind, number) for number, kind in enumerate(kinds)]
    return tail_of(snapshots[::-1][:listed])


def test_the_tail_ends_at_the_last_commit_of_another_kind() -> None:
    assert tail() == Tail()
    assert tail("files", "append") == Tail()
    assert tail("append", "files") == Tail(1, manifests=False, at=10.0)
    assert tail("append", "files", "deletes") == Tail(2, manifests=False, at=20.0)
    assert tail("append", "files", "manifests") == Tail(2, manifests=True, at=20.0)


@pytest.mark.parametrize(
    ("last", "manifests", "seconds"),
    [
        ("files", False, 0),  # no limit: files may follow files
        ("files", True, 100),
        ("manifests", False, 100),
        ("manifests", True, 100),
        ("append", True, 0),
        ("append", False, 0),
    ],
)
def test_manifests_and_files_do_not_follow_each_other_at_once(last: str, manifests: bool, seconds: float) -> None:
    end = tail("append", last)
    assert end.wait_seconds(manifests=manifests, most=None, seconds=100, now=end.at) == seconds
    assert end.wait_seconds(manifests=manifests, most=None, seconds=100, now=end.at + 101) == 0
    assert end.wait_seconds(manifests=manifests, most=None, seconds=100, now=end.at - 50) == seconds, "a clock is wrong"
    assert end.wait_seconds(manifests=manifests, most=None, seconds=0, now=end.at) == 0


def test_a_commit_of_a_run_may_follow_as_long_as_the_limit_is_not_reached() -> None:
    newest_first = [snapshot(kind, number) for number, kind in enumerate(("append", "files", "deletes"))][::-1]
    assert may_follow(newest_first, None, "ours")
    assert may_follow(newest_first, 3, "ours")
    assert not may_follow(newest_first, 2, "ours"), "both are counted"
    assert not may_follow(newest_first[:1], 3, "ours"), "the catalog lists the newest snapshot alone"
    assert may_follow([], 1, "ours")
    summary = Summary(Operation.REPLACE, **{"deleted-data-files": "4", RUN_ID: "ours"})
    first_part = newest_first[0].model_copy(update={"summary": summary})
    assert may_follow([first_part], 3, "ours"), "what was before it is not asked again"
    assert not may_follow([first_part], 1, "ours")
    assert not may_follow([first_part], 3, "another run")


@pytest.mark.parametrize(
    ("kinds", "listed", "left"),
    [
        (("append",), None, 2),
        (("append", "files"), None, 1),
        (("append", "files", "files", "files"), None, 0),
        (("append", "files"), 1, 0),  # Nessie lists the newest alone, and so does a table after `retain_last` 1
        (("append", "files", "files"), 2, 0),
        (("append", "files"), 2, 1),
        (("files",), 1, 1),  # the table's first snapshot: none came before
        (("files", "append"), 1, 2),  # a writer's commit ends the wait, whatever came before
        (("files", "append", "files"), 2, 1),
    ],
)
def test_a_limit_has_no_time_and_replaces_that_the_table_does_not_list_may_be_as_many(
    kinds: tuple[str, ...], listed: int | None, left: int
) -> None:
    end = tail(*kinds, listed=listed)
    assert end.commits_left(2) == left
    assert end.wait_seconds(manifests=False, most=2, seconds=0, now=1e9) == (0 if left else math.inf)
    assert end.commits_left(None) is None
    assert end.wait_seconds(manifests=False, most=None, seconds=0, now=1e9) == 0
