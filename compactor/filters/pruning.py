"""Which partitions a filter can match: predicates select files, never rows."""

from __future__ import annotations

from collections.abc import Callable

from compactor.filters.where import Where, bind_where
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionKey

PartitionFilter = Callable[[PartitionKey], bool]


def partition_filter(table: TableView, where: str | Where | None) -> PartitionFilter:
    """A predicate over partitions that keeps every partition which may hold a row matching `where`.

    Raises:
        InputError: the text is not a filter over this table.
    """
    bound = where if isinstance(where, Where) else bind_where(table, where)
    if bound.keeps_everything:
        return lambda _key: True
    return bound.keeps
