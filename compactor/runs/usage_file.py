"""The last hour's usage in a file beside the checkpoint: a restart does not begin a new hour."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from compactor.errors import RetryError
from compactor.planning.budget import Spent
from compactor.reasons import Reason
from compactor.runs.usage import HOUR, Cost
from compactor.storage.state_files import StateFolder
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
NAME: Final = "usage.json"
VERSION: Final = 1
SAVE_SECONDS: Final = 5.0
"""Between two writes of the file: what a crash can lose of the hour's usage. A running run is in it with its grant."""
_NUMBERS: Final = ("bytes", "requests", "catalog_calls", "commits")


class UsageFile:
    """One JSON file, written by the active service. `ticks`: a steady clock in seconds."""

    def __init__(
        self,
        checkpoint: str,
        confirm: Callable[[], None] = lambda: None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`confirm`: called before each save; raises if another process writes the file now."""
        self._folder = StateFolder(checkpoint)
        self._path = self._folder.file(NAME)
        self._confirm = confirm
        self._ticks = ticks
        self._saved: list[Cost] = []
        self._next_save = ticks()

    def load(self, now: float) -> list[Cost]:
        """The usage of the hour before `now`. A damaged file is moved aside and logged; the hour then starts from zero.

        Raises:
            RetryError: the store does not answer.
        """
        try:
            content = self._folder.read(NAME)
            try:
                rows = json.loads(content)["runs"]
                costs = [_cost(row, now) for row in rows]
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                LOG.warning("%s is damaged: limits.* count from now on, as if the last hour had cost nothing: %s",
                            self._path, error)  # fmt: skip
                self._folder.rename(NAME, f"{NAME}.damaged")
                return []
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryError(
                f"the last hour's usage cannot be read from {self._path}: {error}; check state.checkpoint",
                reason=Reason.STATE_UNREADABLE,
            ) from error
        return [cost for cost in costs if cost.at > now - HOUR]

    def save(self, costs: Callable[[], list[Cost]], *, at_once: bool = False) -> None:
        """Write the usage if it has changed, every few seconds. A failure is logged and stops nothing."""
        if not at_once and self._ticks() < self._next_save:
            return
        self._next_save = self._ticks() + SAVE_SECONDS
        current = costs()
        if [replace(cost, at=0.0) for cost in current] == [replace(cost, at=0.0) for cost in self._saved]:
            return
        rows = [_row(cost) for cost in current]
        try:
            self._confirm()
            self._folder.write(NAME, json.dumps({"version": VERSION, "runs": rows}).encode())
        except Exception as error:  # noqa: BLE001 - stores raise errors of their own
            LOG.warning("%s cannot be written; after a restart limits.* would start from zero: %s", self._path, error)
            return
        self._saved = current


def _row(cost: Cost) -> dict[str, Any]:
    numbers = {name: getattr(cost.spent, name) for name in _NUMBERS}
    return {"table": cost.table.key, "at": cost.at, **numbers}


def _cost(row: Mapping[str, Any], now: float) -> Cost:
    at, numbers = row["at"], [row[name] for name in _NUMBERS]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not isinstance(at, int | float):
        raise ValueError(f"not a cost: {row}")
    return Cost(TableName.of_key(row["table"]), min(float(at), now), Spent(*numbers))
