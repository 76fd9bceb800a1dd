"""Where the rows of each input are in an output: a delete that names a row of an input can follow it there. Pure.

Rows keep their order, so the map of an input is the place of its first row and the rows that the output lacks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pyroaring import BitMap64

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, Positions

NONE: Final = b""
"""No positions, packed."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Where one output holds the rows of one input.

    Attributes:
        location: Of the input.
        rows: Of the input, deleted ones included.
        start: The place of its first kept row in the output.
        by_position: Packed positions that position deletes or a vector removed: the output lacks these rows.
        by_value: Packed positions that only equality deletes removed: the output lacks these rows too.
        carried: Packed positions of rows that the output holds although position deletes or a vector delete them: the
            commit deletes them there.
        carried_by_value: The same of rows that only equality deletes delete.
    """

    location: str
    rows: int
    start: int = 0
    by_position: bytes = NONE
    by_value: bytes = NONE
    carried: bytes = NONE
    carried_by_value: bytes = NONE

    @property
    def dropped(self) -> Positions:
        """Positions of the rows that the output lacks, ascending."""
        return np.union1d(unpacked(self.by_position), unpacked(self.by_value))

    @property
    def kept(self) -> int:
        """Rows of the input that the output holds."""
        return self.rows - len(self.dropped)

    def moved(self, positions: Positions) -> Positions:
        """Positions in the output of rows of the input; rows that the output lacks are left out."""
        dropped = self.dropped
        there = np.setdiff1d(positions, dropped, assume_unique=True) if len(dropped) else positions
        return self.start + there - np.searchsorted(dropped, there)

    @property
    def all_carried(self) -> Positions:
        """Positions of all deleted rows that the output holds, ascending."""
        return np.union1d(unpacked(self.carried), unpacked(self.carried_by_value))

    @property
    def carried_there(self) -> BitMap64:
        """Positions in the output of the deleted rows that it holds."""
        if self.by_position or self.by_value:
            return bitmap(self.moved(self.all_carried))
        found = BitMap64()
        for rows in filter(None, (self.carried, self.carried_by_value)):
            found |= BitMap64.deserialize(rows).shift(self.start)
        return found


def packed(positions: Positions, rows: int) -> bytes:
    """Ascending positions of a file with so many rows as a compressed bitmap, without positions behind its end."""
    within = positions[: np.searchsorted(positions, rows)]
    return bytes(bitmap(within).serialize()) if len(within) else NONE


def unpacked(positions: bytes) -> Positions:
    """Ascending positions."""
    if not positions:
        return NO_POSITIONS
    return np.asarray(BitMap64.deserialize(positions).to_array(), dtype=np.uint64).astype(np.int64)


def bitmap(positions: Positions) -> BitMap64:
    """Positions, none of them negative, as a bitmap. pyroaring reads an `array` four times as fast as NumPy's."""
    return BitMap64(array("Q", positions.astype(np.uint64).tobytes()))


def in_order(inputs: Iterable[InputRows]) -> tuple[InputRows, ...]:
    """The inputs of an output that holds their rows one after the other."""
    placed: list[InputRows] = []
    start = 0
    for each in inputs:
        placed.append(replace(each, start=start))
        start += each.kept
    return tuple(placed)


def check_rows(output: str, inputs: Iterable[InputRows], rows: int) -> None:
    """Check that an output holds as many rows as its inputs have kept.

    Raises:
        GiveUpError: it does not: deletes could not follow the rows.
    """
    kept = sum(each.kept for each in inputs)
    if kept != rows:
        raise GiveUpError(
            f"{output} holds {rows} rows, but {kept} rows of its inputs were kept", reason=Reason.ROW_COUNT_MISMATCH
        )
