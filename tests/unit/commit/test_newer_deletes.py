"""Delete files that a writer commits between the comparison and our commit must not leave with it. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from compactor.commit import snapshots as module
from compactor.commit.snapshots import NO_DELETES, Changes, CommitSummary, NewDeletes, Replacement, Snapshots
from compactor.errors import ReplanError
from compactor.reasons import Reason

PLANNED, COMPARED = 5, 8
POSITIONS, KEYS = "POSITION_DELETES", "EQUALITY_DELETES"
NEW = NewDeletes(compared=77, compared_number=COMPARED)
NOTHING: Any = None


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


def made(monkeypatch: pytest.MonkeyPatch, removed: Sequence[tuple[int, str]], new: NewDeletes) -> bool:
    """Whether Iceberg's snapshot, which removes these delete files (sequence number, content), is to be sent."""
    files = [removed_file(*each) for each in removed]
    snapshot = SimpleNamespace(
        parentId=lambda: 88,
        summary=lambda: {"removed-delete-files": str(len(files))},
        removedDeleteFiles=lambda _io: SimpleNamespace(iterator=lambda: JavaIterator(files)),
    )
    update = SimpleNamespace(apply=lambda: snapshot)
    monkeypatch.setattr(module, "_rewrite_files", lambda *_: update)
    table: Any = SimpleNamespace(handle=SimpleNamespace(io=lambda: None), sequence_number=PLANNED)
    changes = Changes([Replacement(NOTHING, (), 1)], NOTHING, NOTHING, new)
    return Snapshots(table, changes, CommitSummary("run-1")).make() is snapshot


@pytest.mark.parametrize(("new", "number"), [(NEW, COMPARED + 1), (NO_DELETES, PLANNED + 1)])
def test_a_position_delete_that_is_committed_once_more_after_the_comparison_does_not_leave(
    monkeypatch: pytest.MonkeyPatch, new: NewDeletes, number: int
) -> None:
    """Iceberg removes both entries of its path. The newer one applies to a data file that came with it: the rows that
    it deletes there would come back.
    """
    with pytest.raises(ReplanError, match=r"again\.parquet was committed before the commit of run run-1") as error:
        made(monkeypatch, [(PLANNED - 1, POSITIONS), (number, POSITIONS)], new)
    assert error.value.reason is Reason.CONFLICT, "it is compared again"


@pytest.mark.parametrize(("new", "number"), [(NEW, COMPARED), (NEW, PLANNED), (NO_DELETES, PLANNED)])
def test_position_deletes_that_were_compared_leave(
    monkeypatch: pytest.MonkeyPatch, new: NewDeletes, number: int
) -> None:
    """E.g. a vector that another commit has added since the plan, and whose rows follow into the output."""
    assert made(monkeypatch, [(PLANNED, KEYS), (number, POSITIONS)], new)
