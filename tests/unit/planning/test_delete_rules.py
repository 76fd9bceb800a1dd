"""Which delete files apply to nothing, and which of them a run answers for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.correctness.delete_rules import DeleteIndex, dangling, left_behind, vector_problems
from tests.correctness.metadata_reader import ADDED, DATA, EQUALITY_DELETES, POSITION_DELETES, Entry, SnapshotState

UNPARTITIONED, BY_K = 0, 1


def file(path: str, sequence_number: int, content: int = DATA, **more: Any) -> Entry:
    fields: dict[str, Any] = {
        "manifest": "m", "status": ADDED, "snapshot_id": 1, "file_sequence_number": sequence_number, "spec_id": BY_K,
        "partition": ("a",), "file_format": "parquet", "records": 1, "size": 1, "equality_ids": (),
        "sort_order_id": None, "referenced": None, "content_offset": None, "content_size": None, "first_row_id": None,
        **more,
    }  # fmt: skip
    return Entry(path=path, sequence_number=sequence_number, content=content, **fields)


def vector(referenced: str, sequence_number: int, **more: Any) -> Entry:
    blob = {"file_format": "puffin", "content_offset": 4, "content_size": 40, "referenced": referenced}
    return file(f"dv-{referenced}", sequence_number, POSITION_DELETES, **{**blob, **more})


def index(*entries: Entry) -> DeleteIndex:
    return DeleteIndex(SnapshotState({"snapshot-id": 1}, (), entries), frozenset({UNPARTITIONED}))


POSITION = file("p", 5, POSITION_DELETES)
EQUALITY = file("e", 5, EQUALITY_DELETES)
GLOBAL = replace(EQUALITY, spec_id=UNPARTITIONED, partition=())
OTHER_PARTITION = {"partition": ("b",)}


@pytest.mark.parametrize(
    ("delete", "data", "applies"),
    [
        (vector("x", 5), file("x", 5), True),
        (vector("x", 5), file("x", 6), False),
        (vector("x", 5), file("y", 5), False),
        (vector("x", 5), file("x", 5, **OTHER_PARTITION), False),
        (vector("x", 5), file("x", 5, spec_id=2), False),
        (POSITION, file("x", 5), True),
        (POSITION, file("x", 6), False),
        (POSITION, file("x", 5, **OTHER_PARTITION), False),
        (POSITION, file("output", 5, file_sequence_number=6), False),
        (replace(POSITION, referenced="x"), file("x", 4), True),
        (replace(POSITION, referenced="x"), file("y", 4), False),
        (replace(POSITION, spec_id=UNPARTITIONED, partition=()), file("x", 4), False),
        (EQUALITY, file("x", 4), True),
        (EQUALITY, file("x", 5), False),
        (EQUALITY, file("output", 4, file_sequence_number=9), True),
        (EQUALITY, file("x", 4, **OTHER_PARTITION), False),
        (GLOBAL, file("x", 4), True),
        (GLOBAL, file("x", 5), False),
    ],
)
def test_what_a_delete_file_applies_to(delete: Entry, data: Entry, applies: bool) -> None:
    assert dangling(index(delete, data)) == ([] if applies else [delete])
    assert dangling(index(delete)) == [delete]


X, Y, OUTPUT = file("x", 4), file("y", 4), file("output", 5, file_sequence_number=7)


@pytest.mark.parametrize(
    ("delete", "planned", "parent", "own", "options", "at_fault"),
    [
        (vector("x", 5), [X], [X], [OUTPUT], {}, [True]),
        (vector("x", 5), [X], [X], [X, OUTPUT], {}, []),
        (vector("x", 5), [], [], [OUTPUT], {}, [True]),
        (vector("x", 5), [], [], [OUTPUT], {"whole_table": False}, [True]),
        (vector("x", 5), [], [], [OUTPUT], {"last": False}, []),
        (vector("x", 5), [X], [], [OUTPUT], {}, [False]),
        (POSITION, [X, Y], [X, Y], [OUTPUT], {}, [True]),
        (POSITION, [X, Y], [X], [OUTPUT], {"removed": {"x"}}, [False]),
        (POSITION, [X, Y], [X], [OUTPUT], {}, [True]),
        (POSITION, [], [], [OUTPUT], {}, [True]),
        (POSITION, [], [], [OUTPUT], {"whole_table": False}, [False]),
        (EQUALITY, [X], [X], [OUTPUT], {}, [True]),
        (EQUALITY, [], [], [OUTPUT], {}, [True]),
        (GLOBAL, [X], [X], [OUTPUT], {}, [True]),
    ],
)
def test_what_a_run_answers_for(
    delete: Entry, planned: list[Entry], parent: list[Entry], own: list[Entry], options: dict[str, Any],
    at_fault: list[bool],
) -> None:  # fmt: skip
    given = {"removed": {"x", "y"}, "last": True, "whole_table": True, **options}
    removed = given.pop("removed")
    indexes = [index(delete, *data) for data in (planned, parent, own)]
    assert [left.finding for left in left_behind(*indexes, removed, **given)] == at_fault


def test_a_data_file_has_one_vector() -> None:
    two = index(vector("x", 5), replace(vector("x", 6), content_offset=44))
    assert len(list(vector_problems(two.state))) == 1
    assert list(vector_problems(index(vector("x", 5), vector("y", 5)).state)) == []
    assert len(list(vector_problems(index(vector("x", 5, content_offset=None)).state))) == 1
