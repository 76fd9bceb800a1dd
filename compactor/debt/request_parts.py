"""Requests that are done in parts, because a limit cut a run or another commit overtook it: how far they have come."""

from __future__ import annotations

from collections.abc import Collection

from compactor.table_names import TableName


class RequestParts:
    """The files that the last part of each open request has left. The debt board guards it."""

    def __init__(self) -> None:
        self._left: dict[TableName, dict[str, int]] = {}

    def has_begun(self, table: TableName, filter_text: str) -> bool:
        """Whether a part of the request was done, and another one follows."""
        return filter_text in self._left.get(table, {})

    def goes_on(self, table: TableName, filter_text: str, files_left: int) -> bool:
        """Whether another part follows one that has left so many files.

        Each part must leave fewer files than the one before: beside a writer that adds them faster than the parts merge
        them, a request would never end.
        """
        left = self._left.setdefault(table, {})
        before = left.get(filter_text)
        if files_left == 0 or (before is not None and files_left >= before):
            return False
        left[filter_text] = files_left
        return True

    def keep(self, table: TableName, filters: Collection[str]) -> None:
        """Forget the table's requests except these: they are done, or they were dropped."""
        left = {text: files for text, files in self._left.pop(table, {}).items() if text in filters}
        if left:
            self._left[table] = left
