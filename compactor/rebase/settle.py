"""Which rows of a group's outputs its commit deletes: those that the rewrite carries, and those deleted since the plan.

Pure, but for `read`, which reads delete files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap64

from compactor.iceberg.manifest_entries import FileEntry
from compactor.rebase.input_changes import InputChange
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, Positions
from compactor.rewrite.deletes.row_maps import InputRows, bitmap, unpacked

ReadPositions = Callable[[Mapping[str, tuple[FileEntry, ...]]], Mapping[str, Positions]]
"""Delete files by data file → the positions that they delete there, ascending; files without any are left out."""


@dataclass(frozen=True)
class Settled:
    """What the commit of a group must do besides replacing its files.

    Attributes:
        deleted: For each output, the positions to delete.
        carried: Rows that were deleted at the plan, and are deleted in the outputs.
        rebased: Rows that other commits deleted since the plan.
        touched: Whether other commits touched the group.
    """

    deleted: tuple[BitMap64, ...]
    carried: int = 0
    rebased: int = 0
    touched: bool = False


def settle(
    outputs: Sequence[Sequence[InputRows]],
    changes: Mapping[str, InputChange] | None = None,
    read: ReadPositions = lambda _wanted: {},
) -> Settled | str:
    """The deletes of a group's outputs, or why it cannot be committed.

    Args:
        outputs: The inputs of each output.
        changes: What other commits did to inputs; None: nothing.
        read: Reads the delete files that `changes` names.
    """
    touched, changes = changes is not None, changes or {}
    conflict = next((each.conflict for each in changes.values() if each.conflict), None)
    if conflict is not None:
        return conflict
    found = read({path: each.read for path, each in changes.items() if each.read})
    deleted: list[BitMap64] = []
    carried = 0
    for inputs in outputs:
        mine = BitMap64()
        for each in inputs:
            there = each.carried_there
            carried += len(there)
            if each.location in changes:
                now = _deleted_now(each, changes[each.location], found.get(each.location, NO_POSITIONS))
                if isinstance(now, str):
                    return now
                there = bitmap(each.moved(now))
            mine |= there
        deleted.append(mine)
    return Settled(tuple(deleted), carried, sum(map(len, deleted)) - carried, touched)


def _deleted_now(rows: InputRows, change: InputChange, found: Positions) -> Positions | str:
    """Positions of an input that are deleted now, or why they are unknown."""
    now = found[: np.searchsorted(found, rows.rows)]
    expected = [rows.by_position, rows.carried] if change.whole else []
    if change.lost_equality:
        expected += [rows.by_value, rows.carried_by_value]
    if any(len(np.setdiff1d(unpacked(before), now, assume_unique=True)) for before in expected):
        return f"deletes of {rows.location}, which the rewrite had applied, were taken back"
    return np.union1d(rows.all_carried, now)
