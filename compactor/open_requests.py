"""Rewrites that people have asked for and that are not done yet, in a file beside the checkpoint.

The stream has read the event of a request long before the rewrite: without this file, a restart would lose it.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping

from compactor.in_flight import state_file_system
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
Requests = Mapping[TableName, tuple[str, ...]]
"""Filters by table, in the order in which they were asked for; an empty one selects everything."""


class OpenRequests:
    """One JSON file, written aside and moved. What cannot be read or written is logged and stops nothing."""

    def __init__(self, checkpoint: str) -> None:
        self._fs, self._folder = state_file_system(checkpoint)
        self._path = f"{self._folder}/requests.json"

    def load(self) -> Requests:
        """What the last process left undone."""
        try:
            with self._fs.open_input_stream(self._path) as stream:
                rows = json.loads(stream.readall())
            return {
                TableName(row["catalog"], tuple(row["namespace"]), row["name"]): tuple(row["filters"]) for row in rows
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError) as error:
            LOG.warning("%s cannot be read, what it asked for has to be asked for again: %s", self._path, error)
            return {}

    def save(self, requests: Requests) -> None:
        """All that is open now."""
        rows = [
            {"catalog": table.catalog, "namespace": table.namespace, "name": table.name, "filters": filters}
            for table, filters in requests.items()
        ]
        aside = f"{self._folder}/requests-{uuid.uuid4().hex}.tmp"
        try:
            self._fs.create_dir(self._folder, recursive=True)
            with self._fs.open_output_stream(aside) as stream:
                stream.write(json.dumps(rows).encode())
            self._fs.move(aside, self._path)
        except OSError as error:
            LOG.warning("%s cannot be written, a restart would forget open requests: %s", self._path, error)
