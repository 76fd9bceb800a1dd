"""Requests that are done in parts, because a limit cut a run or another commit overtook it: how far they have come."""

from __future__ import annotations

from compactor.table_names import TableName


class RequestParts:
    """The files that the last part of each request has left. One thread at a time works on one table."""

    def __init__(self) -> None:
        self._left: dict[tuple[TableName, str], int] = {}

    def has_begun(self, table: TableName, filter_text: str) -> bool:
        """Whether a part of the request was done, and another one follows."""
        return (table, filter_text) in self._left

    def goes_on(self, table: TableName, filter_text: str, files_left: int) -> bool:
        """Whether another part follows one that has left so many files.

        Each part must leave fewer files than the one before: beside a writer that adds them faster than the parts merge
        them, a request would never end.
        """
        before = self._left.get((table, filter_text))
        if files_left == 0 or (before is not None and files_left >= before):
            return False
        self._left[table, filter_text] = files_left
        return True

    def ended(self, table: TableName, filter_text: str) -> None:
        """The request is done, or cannot be."""
        self._left.pop((table, filter_text), None)
