"""Watch a commit that the catalog may roll back for a writer, until another commit builds on it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from compactor.errors import FirnlineError, RetryError
from compactor.iceberg.tables import TableView
from compactor.patience.deadline import Deadline
from compactor.planning.rollbacks import Fate, fate_of, watch_seconds

LOOK_SECONDS: Final = 0.5
"""Between two looks at the table: a catalog call each. The next writer of a busy table begins soon."""


@dataclass(frozen=True)
class RollbackWatch:
    """Watches a commit.

    Attributes:
        look: The table as it is now.
        stopped: Waits so many seconds; whether the run must stop.
        moved: Called after each look: a run that waits does not hang.
        clock: Seconds since the epoch, to compare with the times of commits.
        deadline: Of the commit.
    """

    look: Callable[[], TableView]
    stopped: Callable[[float], bool]
    moved: Callable[[], object]
    clock: Callable[[], float]
    deadline: Deadline

    def rolled_back(self, snapshot_id: int, before: Collection[int], most_seconds: float) -> bool:
        """Wait until another commit builds on the snapshot or has taken its place; whether it has.

        `before`: see `fate_of`. False also where that cannot be told: the catalog does not answer, the run must stop,
        or no writer comes. The sweep looks once more when all writers must have ended.
        """
        try:
            table = self.look()
            seconds = min(most_seconds, watch_seconds(table.history, self.clock()), self.deadline.left)
            watched = Deadline.after(seconds, self.deadline.ticks, "the watch of a commit")
            fate = fate_of(table.history, snapshot_id, before)
            while fate is Fate.NEWEST and not watched.is_over and not self.stopped(LOOK_SECONDS):
                self.moved()
                with suppress(RetryError):  # the catalog does not answer: no writer commits either
                    fate = fate_of(self.look().history, snapshot_id, before)
        except FirnlineError:
            return False
        return fate is Fate.ROLLED_BACK
