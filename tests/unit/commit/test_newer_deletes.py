"""Delete files that a writer commits between the comparison and our commit must not leave with it. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from compactor.commit import updates as module
from compactor.commit.history import CommitSummary
from compactor.commit.updates import Changes, Replacement, ReplaceUpdate
from compactor.errors import ReplanError
from compactor.reasons import Reason

PLANNED, COMPARED = 5, 8
POSITIONS, KEYS = "POSITION_DELETES", "EQUALITY_DELETES"
NOTHING: Any = None
UNKNOWN = Changes([Replacement(NOTHING, (), 1)])
NEW = replace(UNKNOWN, compared=88, compared_number=COMPARED)


class JavaIterator:
    """The two methods of Java's iterators that are called."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = list(items)

    def hasNext(self) -> bool:  # noqa: N802 - Java's name
        return bool(self._items)

    def next(self) -> Any:
        return self._items.pop(0)


def removed_file(number: int, content: str) -> Any:
    return SimpleNamespace(
        dataSequenceNumber=lambda: number,
        content=lambda: SimpleNamespace(name=lambda: content),
        location=lambda: "file:///again.parquet",
    )


def made(monkeypatch: pytest.MonkeyPatch, removed: Sequence[tuple[int, str]], new: Changes) -> bool:
    """Whether Iceberg's snapshot, which removes these delete files (sequence number, content), is to be sent."""
    files = [removed_file(*each) for each in removed]
    snapshot = SimpleNamespace(
        parentId=lambda: 88,
        summary=lambda: {"removed-delete-files": str(len(files)), "deleted-data-files": "1"},
        removedDeleteFiles=lambda _io: SimpleNamespace(iterator=lambda: JavaIterator(files)),
    )
    update = SimpleNamespace(apply=lambda: snapshot)
    monkeypatch.setattr(module, "_rewrite_files", lambda *_: update)
    table: Any = SimpleNamespace(handle=SimpleNamespace(io=lambda: None), sequence_number=PLANNED)
    return ReplaceUpdate(table, new, CommitSummary("run-1")).make() is snapshot


@pytest.mark.parametrize(("new", "number"), [(NEW, COMPARED + 1), (UNKNOWN, PLANNED + 1)])
def test_a_position_delete_that_is_committed_once_more_after_the_comparison_does_not_leave(
    monkeypatch: pytest.MonkeyPatch, new: Changes, number: int
) -> None:
    """Iceberg removes both entries of its path. The newer one applies to a data file that came with it: the rows that
    it deletes there would come back.
    """
    with pytest.raises(ReplanError, match=r"again\.parquet was committed before the commit of run run-1") as error:
        made(monkeypatch, [(PLANNED - 1, POSITIONS), (number, POSITIONS)], new)
    assert error.value.reason is Reason.CONFLICT, "it is compared again"


@pytest.mark.parametrize(("new", "number"), [(NEW, COMPARED), (NEW, PLANNED), (UNKNOWN, PLANNED)])
def test_position_deletes_that_were_compared_leave(monkeypatch: pytest.MonkeyPatch, new: Changes, number: int) -> None:
    """E.g. a vector that another commit has added since the plan, and whose rows follow into the output."""
    assert made(monkeypatch, [(PLANNED, KEYS), (number, POSITIONS)], new)
