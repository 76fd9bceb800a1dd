"""Which row groups can hold a row that equality deletes delete, by the statistics of the compared columns.

A row group is skipped only if every delete is excluded by a compared column: by its statistics, or by what knows more
of its values. Types whose order in Parquet and in Python may differ are not compared.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_COMPARED: Final = (bool, int, str, dt.date)
"""Python types of statistics whose order is that of the column's values. `datetime` is a `date`, but left out."""


@dataclass(frozen=True)
class Values:
    """The values of one compared column in the deletes: sorted, without nulls."""

    ordered: Sequence[Any]
    has_null: bool

    @classmethod
    def of(cls, values: pa.Array) -> Values | None:
        """None if the values have no order that statistics share, or Python has no such value (dates after 9999)."""
        try:
            found = values.drop_null().to_pylist()
        except (OverflowError, ValueError):
            return None
        if any(not isinstance(value, _COMPARED) or isinstance(value, dt.datetime) for value in found):
            return None
        return cls(sorted(found), values.null_count > 0)

    def candidates(self, statistics: pq.Statistics | None) -> Sequence[Any] | None:
        """The values that a column chunk with these statistics may hold; None: all of them, and a null perhaps."""
        if statistics is None:
            return None
        if self.has_null and (not statistics.has_null_count or statistics.null_count):
            return None
        if not statistics.has_min_max:
            return self.ordered if statistics.num_values != 0 else ()
        try:
            low, high = statistics.min, statistics.max
        except (OverflowError, ValueError):  # Python has no such value
            return self.ordered
        if not self.ordered or not isinstance(low, type(self.ordered[0])) or not isinstance(high, type(low)):
            return self.ordered
        return self.ordered[bisect_left(self.ordered, low) : bisect_right(self.ordered, high)]


def _in_any(_chunk: pq.ColumnChunkMetaData, _values: Sequence[Any]) -> bool:
    return True


def matching_row_groups(
    metadata: pq.FileMetaData,
    columns: Mapping[int, int],
    deletes: Sequence[Mapping[int, Values | None]],
    may_hold: Callable[[pq.ColumnChunkMetaData, Sequence[Any]], bool] = _in_any,
) -> list[int]:
    """Indexes of the row groups that may hold a deleted row.

    Args:
        metadata: Of the data file.
        columns: Compared columns that the file has: field id → index of its chunk in each row group.
        deletes: For each set of compared columns, the values of each; None: unknown.
        may_hold: Whether a column chunk may hold one of the values that its statistics allow.
    """
    if not metadata.created_by:
        return [*range(metadata.num_row_groups)]  # a writer without a name may order texts wrongly (PARQUET-251, 297)
    found = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)

        def may_match(field_id: int, values: Values | None, group: pq.RowGroupMetaData = group) -> bool:
            leaf = columns.get(field_id)
            if values is None or leaf is None or leaf >= group.num_columns:
                return True
            chunk = group.column(leaf)
            left = values.candidates(chunk.statistics)
            return left is None or (len(left) > 0 and may_hold(chunk, left))

        if any(all(may_match(*each) for each in keys.items()) for keys in deletes):
            found.append(index)
    return found
