"""The last hour's usage in a file beside the checkpoint: a restart does not begin a new hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from compactor.planning.budget import Spent
from compactor.runs.usage import HOUR, Cost
from compactor.storage.state_files import StateFile
from compactor.table_names import TableName

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
        self._file = StateFile(checkpoint, NAME, confirm, "limits.* count as if the last hour had cost nothing")
        self._ticks = ticks
        self._saved: list[Cost] = []
        self._next_save = ticks()

    def load(self, now: float) -> list[Cost]:
        """The usage of the hour before `now`.

        Raises:
            RetryError: the store does not answer.
        """
        costs = self._file.load(lambda tree: [_cost(row, now) for row in tree["runs"]]) or []
        return [cost for cost in costs if cost.at > now - HOUR]

    def save(self, costs: Callable[[], list[Cost]], *, at_once: bool = False) -> None:
        """Write the usage if it has changed, every few seconds. A failure is logged and stops nothing."""
        if not at_once and self._ticks() < self._next_save:
            return
        self._next_save = self._ticks() + SAVE_SECONDS
        current = costs()
        if [replace(cost, at=0.0) for cost in current] == [replace(cost, at=0.0) for cost in self._saved]:
            return
        if self._file.save({"version": VERSION, "runs": [_row(cost) for cost in current]}):
            self._saved = current


def _row(cost: Cost) -> dict[str, Any]:
    numbers = {name: getattr(cost.spent, name) for name in _NUMBERS}
    return {"table": cost.table.key, "at": cost.at, **numbers}


def _cost(row: Mapping[str, Any], now: float) -> Cost:
    at, numbers = row["at"], [row[name] for name in _NUMBERS]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not isinstance(at, int | float):
        raise ValueError(f"not a cost: {row}")
    return Cost(TableName.of_key(row["table"]), min(float(at), now), Spent(*numbers))
