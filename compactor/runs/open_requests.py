"""Rewrites that people requested and that are not done yet, in a file in the checkpoint's folder.

The stream reads a request's event long before the rewrite: without this file, a restart would lose the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compactor.storage.state_files import StateFile
from compactor.table_names import TableName

NAME = "requests.json"
Requests = Mapping[TableName, tuple[str, ...]]
"""Filters by table, in the order of the requests; an empty filter selects the whole table."""


class OpenRequests:
    """One JSON file with one writer; a new version is written beside it and moved into place."""

    def __init__(self, checkpoint: str, confirm: Callable[[], None] = lambda: None) -> None:
        """`confirm`: called before each save; raises if another process writes the file now."""
        self._file = StateFile(checkpoint, NAME, confirm, "its requests are lost, send them again")

    def load(self) -> Requests:
        """Requests that the last process left open.

        Raises:
            RetryError: the store does not answer.
        """
        return self._file.load(lambda rows: dict(map(_request, rows))) or {}

    def save(self, requests: Requests) -> bool:
        """Keep all open requests; False (and logged) if they cannot be written: this process still serves them."""
        rows = [
            {"catalog": table.catalog, "namespace": table.namespace, "name": table.name, "filters": filters}
            for table, filters in requests.items()
        ]
        return self._file.save(rows)


def _request(row: Mapping[str, Any]) -> tuple[TableName, tuple[str, ...]]:
    lists, texts = (row["namespace"], row["filters"]), (row["catalog"], row["name"])
    if not all(isinstance(each, list) for each in lists) or not all(
        isinstance(text, str) for text in (*texts, *lists[0], *lists[1])
    ):
        raise ValueError(f"not a request: {row}")
    return TableName(row["catalog"], tuple(row["namespace"]), row["name"]), tuple(row["filters"])
