"""Whether a catalog answers: one that does not is left alone for a while, and then tried by one call. No clock."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.errors import FirnlineError
from compactor.patience.backoff import Backoff
from compactor.reasons import Reason

BACKOFF = Backoff(first_seconds=2.0, longest_seconds=60.0)
SILENT_AFTER = 3
"""Failures in a row after which a catalog is called silent: one table that fails says little about its catalog."""


@dataclass
class CatalogCalls:
    """`failures`: calls in a row that got no answer. Times are of the ticks."""

    failures: int = 0
    _not_before: float = float("-inf")
    _trial_until: float = float("-inf")

    @property
    def answered(self) -> bool:
        """Whether the catalog answered last."""
        return self.failures < SILENT_AFTER

    def may_begin(self, ticks: float) -> bool:
        """Whether a call may begin now."""
        return ticks >= max(self._not_before, self._trial_until)

    def begins(self, ticks: float) -> None:
        """A call begins. While the catalog is silent, it is a trial, and others wait for its end."""
        if not self.answered:
            self._trial_until = ticks + BACKOFF.seconds(self.failures)

    def ended(self, error: FirnlineError | None, ticks: float, least_failures: int = 1) -> None:
        """A call ended. One that began before the catalog was left alone, and fails too, changes nothing."""
        self._trial_until = float("-inf")
        if error is None or error.reason is not Reason.CATALOG_UNAVAILABLE:
            self.failures, self._not_before = 0, float("-inf")
        elif ticks >= self._not_before:
            self.failures = max(self.failures + 1, least_failures)
            self._not_before = ticks + BACKOFF.seconds(self.failures)
