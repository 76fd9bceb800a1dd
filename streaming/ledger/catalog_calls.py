"""Whether a catalog answers: one that does not is held for a while after each failure, and then tried by one call."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactor.errors import FirnlineError
from compactor.patience.backoff import LATER
from compactor.patience.holds import Holds, Key, What
from compactor.reasons import Reason

BACKOFF = replace(LATER, first_seconds=2.0, longest_seconds=60.0)
SILENT_AFTER = 3
"""Failures in a row after which a catalog is called silent: one table that fails says little about its catalog."""


@dataclass
class CatalogCalls:
    """Holds the catalog `name`. Times are of the ticks."""

    name: str
    holds: Holds
    _trial_until: float = float("-inf")

    @property
    def failures(self) -> int:
        """Calls in a row that got no answer."""
        return self.holds.tries(Key(What.CATALOG, self.name))

    @property
    def answered(self) -> bool:
        """Whether the catalog answered last."""
        return self.failures < SILENT_AFTER

    def may_begin(self, ticks: float) -> bool:
        """Whether a call may begin now."""
        return ticks >= self._trial_until and self.holds.held(Key(What.CATALOG, self.name)) is None

    def begins(self, ticks: float) -> None:
        """A call begins. While the catalog is silent, it is a trial, and others wait for its end."""
        if not self.answered:
            self._trial_until = ticks + BACKOFF.seconds(self.failures)

    def ended(self, error: FirnlineError | None, least_failures: int = 1) -> None:
        """A call ended. One that began before the catalog was held, and fails too, changes nothing."""
        self._trial_until = float("-inf")
        if error is None or error.reason is not Reason.CATALOG_UNAVAILABLE:
            self.holds.release(What.CATALOG, self.name)
        else:
            self.holds.fail(Key(What.CATALOG, self.name), str(error), BACKOFF, least_tries=least_failures)
