"""Rewrites that people requested and that are not done yet, in a file in the checkpoint's folder.

The stream reads a request's event long before the rewrite: without this file, a restart would lose the request.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from compactor.errors import RetryError
from compactor.reasons import Reason
from compactor.storage.state_files import StateFolder
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
NAME = "requests.json"
Requests = Mapping[TableName, tuple[str, ...]]
"""Filters by table, in the order of the requests; an empty filter selects the whole table."""


class OpenRequests:
    """One JSON file with one writer; a new version is written beside it and moved into place."""

    def __init__(self, checkpoint: str, confirm: Callable[[], None] = lambda: None) -> None:
        """`confirm`: called before each save; raises if another process writes the file now."""
        self._folder = StateFolder(checkpoint)
        self._confirm = confirm
        self._path = self._folder.file(NAME)

    def load(self) -> Requests:
        """Requests that the last process left open. A damaged file is moved aside and logged.

        Raises:
            RetryError: the store does not answer.
        """
        try:
            content = self._folder.read(NAME)
            try:
                return dict(map(_request, json.loads(content)))
            except (ValueError, TypeError, KeyError) as error:
                LOG.warning("%s is damaged: its requests are lost, send them again: %s", self._path, error)
                self._folder.rename(NAME, f"{NAME}.damaged")
                return {}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RetryError(
                f"open requests cannot be read from {self._path}: {error}; check state.checkpoint",
                reason=Reason.STATE_UNREADABLE,
            ) from error

    def save(self, requests: Requests) -> bool:
        """Keep all open requests; False (and logged) if they cannot be written: this process still serves them."""
        rows = [
            {"catalog": table.catalog, "namespace": table.namespace, "name": table.name, "filters": filters}
            for table, filters in requests.items()
        ]
        try:
            self._confirm()
            self._folder.write(NAME, json.dumps(rows).encode())
        except Exception as error:  # noqa: BLE001 - stores raise errors of their own
            LOG.warning("%s cannot be written; a restart would lose the open requests: %s", self._path, error)
            return False
        return True


def _request(row: Mapping[str, Any]) -> tuple[TableName, tuple[str, ...]]:
    lists, texts = (row["namespace"], row["filters"]), (row["catalog"], row["name"])
    if not all(isinstance(each, list) for each in lists) or not all(
        isinstance(text, str) for text in (*texts, *lists[0], *lists[1])
    ):
        raise ValueError(f"not a request: {row}")
    return TableName(row["catalog"], tuple(row["namespace"]), row["name"]), tuple(row["filters"])
