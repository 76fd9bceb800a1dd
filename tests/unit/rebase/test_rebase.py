"""What commits since the plan did to the inputs of a file group, and which rows of its outputs are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.planner import FileGroup
from compactor.rebase.input_changes import InputChange, OthersChanges
from compactor.rebase.settle import Settled, settle
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, Positions
from compactor.rewrite.deletes.row_maps import InputRows, in_order, packed

KEY, OTHER = PartitionKey(0, "[1]"), PartitionKey(0, "[2]")
ROWS = 100


def entry(content: Content = Content.DATA, path: str = "a", **more: Any) -> FileEntry:
    values = {
        "manifest_path": "manifest", "status": Status.ADDED, "snapshot_id": 1, "data_sequence_number": 1,
        "content": content, "path": path, "file_format": "parquet", "key": KEY, "partition": (1,), "records": ROWS,
        "size": 100, "sort_order_id": None, "encrypted": False, "equality_ids": (), "applies_to": None,
    }  # fmt: skip
    return FileEntry(**{**values, **more})


def position(path: str, **more: Any) -> FileEntry:
    return entry(Content.POSITION_DELETES, path, **{"data_sequence_number": 5, "records": 2, **more})


def vector(path: str, offset: int = 4, **more: Any) -> FileEntry:
    return position(path, file_format="puffin", blob=(offset, 10), **{"applies_to": "a", **more})


def gone(file: FileEntry) -> FileEntry:
    return file._replace(status=Status.DELETED)


def change(changes: list[FileEntry], *deletes: FileEntry) -> InputChange | None:
    """What happened to file `a`, to which `deletes` applied at the plan."""
    group = FileGroup(KEY, {}, None, ((LiveFile(entry(), deletes), LiveFile(entry(path="b"))),), "")
    return OthersChanges(changes).of_inputs(group).get("a")


OLD, NEW = position("old", applies_to="a"), position("new", applies_to="a")
BY_VALUE = entry(Content.EQUALITY_DELETES, "by value", equality_ids=(1,), data_sequence_number=4)
SEEN: dict[str, tuple[list[FileEntry], tuple[FileEntry, ...], InputChange | None]] = {
    "nothing": ([], (OLD,), None),
    "of another file": ([position("new", applies_to="z")], (), None),
    "of another partition": ([position("new", key=OTHER)], (), None),
    "equality deletes": ([BY_VALUE], (), None),
    "older than the file": ([position("new", data_sequence_number=0)], (), None),
    "new deletes": ([NEW], (OLD,), InputChange(read=(NEW,))),
    "of the partition": ([position("new")], (OLD,), InputChange(read=(position("new"),))),
    "added and removed": ([NEW, gone(NEW)], (OLD,), None),
    "removed and added again": ([gone(OLD), OLD], (OLD,), None),
    "taken back": ([gone(OLD)], (OLD,), InputChange(whole=True)),
    "deletes merged": ([gone(OLD), NEW], (OLD,), InputChange(read=(NEW,), whole=True)),
    "first vector": ([vector("v2")], (OLD,), InputChange(read=(vector("v2"),), whole=True)),
    "next vector": ([gone(vector("v1")), vector("v2")], (vector("v1"),), InputChange(read=(vector("v2"),), whole=True)),
    "converted": ([gone(BY_VALUE), NEW], (BY_VALUE,), InputChange(read=(NEW,), whole=True, lost_equality=True)),
}  # fmt: skip


@pytest.mark.parametrize("case", SEEN)
def test_what_happened_to_an_input(case: str) -> None:
    changes, deletes, expected = SEEN[case]
    assert change(changes, *deletes) == expected


@pytest.mark.parametrize(
    "changes", [[entry()], [gone(entry())], [gone(entry()), entry()], [vector("v1"), vector("v2")]]
)
def test_what_no_delete_can_follow(changes: list[FileEntry]) -> None:
    found = change(changes)
    assert found is not None
    assert found.conflict


def test_new_deletes_that_name_rewritten_files_leave_with_them() -> None:
    changes = OthersChanges(
        [NEW, gone(OLD), position("all"), vector("v", applies_to="z"), position("x", applies_to="a")]
    )
    assert changes.new_ones_of({"a", "b"}) == [NEW, position("x", applies_to="a")]
    assert changes.new_ones(KEY) == [position("all")]


# --- which rows are deleted -------------------------------------------------------------------------------------------


def at(*positions: int) -> Positions:
    return np.array(positions, dtype=np.int64)


def rows(
    path: str,
    by_position: Positions = NO_POSITIONS,
    by_value: Positions = NO_POSITIONS,
    carried: Positions = NO_POSITIONS,
    carried_by_value: Positions = NO_POSITIONS,
) -> InputRows:
    return InputRows(
        path, ROWS, 0, *(packed(each, ROWS) for each in (by_position, by_value, carried, carried_by_value))
    )


def settled(
    inputs: list[InputRows], changes: dict[str, InputChange], deleted: Mapping[str, Positions]
) -> Settled | str:
    return settle([in_order(inputs)], changes, lambda wanted: {path: deleted[path] for path in wanted})


def test_new_deletes_follow_rows_and_join_the_carried_ones() -> None:
    found = settled([rows("b"), rows("a", carried=at(3))], {"a": InputChange(read=(NEW,))}, {"a": at(3, 7, 500)})
    assert isinstance(found, Settled)
    assert list(found.deleted[0]) == [103, 107]
    assert (found.carried, found.rebased, found.touched) == (1, 1, True)


def test_rows_that_the_output_lacks_are_not_deleted_again() -> None:
    found = settled([rows("a", at(0, 1), at(2))], {"a": InputChange(read=(NEW,))}, {"a": at(0, 2, 3)})
    assert isinstance(found, Settled)
    assert list(found.deleted[0]) == [0]


@pytest.mark.parametrize("carried", [True, False])
def test_deletes_that_were_taken_back_are_a_conflict(carried: bool) -> None:
    before = {"carried": at(3)} if carried else {"by_position": at(3)}
    changes = {"a": InputChange(read=(NEW,), whole=True)}
    assert isinstance(settled([rows("a", **before)], changes, {"a": at(3, 4)}), Settled)
    assert "taken back" in str(settled([rows("a", **before)], changes, {"a": at(4)}))


def test_a_conversion_must_name_the_rows_that_the_rewrite_left_out() -> None:
    changes = {"a": InputChange(read=(NEW,), whole=True, lost_equality=True)}
    found = settled([rows("a", by_value=at(5))], changes, {"a": at(5, 6)})
    assert isinstance(found, Settled)
    assert list(found.deleted[0]) == [5]
    assert "taken back" in str(settled([rows("a", by_value=at(5))], changes, {"a": at(6)}))


def test_a_vector_need_not_name_carried_rows_that_only_a_key_deletes() -> None:
    """Another writer's vector holds the positions of the one before it, and knows nothing of equality deletes."""
    given = [rows("a", carried=at(3), carried_by_value=at(5))]
    found = settled(given, {"a": InputChange(read=(NEW,), whole=True)}, {"a": at(3, 8)})
    assert isinstance(found, Settled)
    assert list(found.deleted[0]) == [3, 5, 8]
    assert (found.carried, found.rebased) == (2, 1)
    changes = {"a": InputChange(read=(NEW,), whole=True, lost_equality=True)}
    assert "taken back" in str(settled(given, changes, {"a": at(3, 8)}))
    converted = settled(given, changes, {"a": at(3, 5)})
    assert isinstance(converted, Settled)
    assert list(converted.deleted[0]) == [3, 5]


def test_without_changes_only_carried_rows_are_deleted() -> None:
    found = settle([in_order([rows("a", carried=at(1))]), in_order([rows("b"), rows("c", carried_by_value=at(0))])])
    assert isinstance(found, Settled)
    assert [list(each) for each in found.deleted] == [[1], [ROWS]]
    assert (found.carried, found.rebased, found.touched) == (2, 0, False)
