"""Circuit breaker of one catalog: after failures in a row no call goes to it, except one trial per back-off. Pure.

It counts names, not failures: one table that fails again and again says nothing about its catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from compactor.patience.backoff import Backoff

DEFAULT_BACKOFF: Final = Backoff(first_seconds=5.0, longest_seconds=60.0)
DEFAULT_FAILURES: Final = 3


class BreakerState(StrEnum):
    """`closed`: all calls may go. `open`: none. `trial`: the back-off is over, one call may go and decides."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class Breaker:
    """Whether calls may go to a catalog. All times in seconds of one clock that never goes back (monotonic).

    `failures`: this many different names must fail in a row, without a success between them. `trial_seconds`: a trial
    that was let through and never reported lapses after this time, so that a lost caller does not block the catalog;
    longer than the longest call.
    """

    failures: int = DEFAULT_FAILURES
    backoff: Backoff = DEFAULT_BACKOFF
    trial_seconds: float = 180.0
    failed_names: frozenset[str] = frozenset()
    opened: int = 0  # times in a row that it opened without a success
    retry_at: float = 0.0
    trial_until: float | None = None

    def state(self, now: float) -> BreakerState:
        if not self.opened:
            return BreakerState.CLOSED
        return BreakerState.TRIAL if now >= self.retry_at and not self._trial_runs(now) else BreakerState.OPEN

    def allows(self, now: float) -> bool:
        """Whether a call may go now. Report `started` before the call and its outcome after it."""
        return self.state(now) is not BreakerState.OPEN

    def seconds_to_wait(self, now: float) -> float:
        """Until a call may go; 0 if one may go now."""
        if self.allows(now):
            return 0.0
        return max(self.retry_at, self.trial_until or 0.0) - now

    def started(self, now: float) -> Breaker:
        """A call goes. If it is the trial, no second one may go beside it."""
        if self.state(now) is not BreakerState.TRIAL:
            return self
        return replace(self, trial_until=now + self.trial_seconds)

    def succeeded(self) -> Breaker:
        """The catalog answered, also if it has no such table: all calls may go."""
        return replace(self, failed_names=frozenset(), opened=0, retry_at=0.0, trial_until=None)

    def failed(self, name: str, now: float) -> Breaker:
        """A call for `name` failed for a reason that concerns the whole catalog (`catalog_unavailable`).

        The outcome of a call that started before it opened changes nothing: only a trial does.
        """
        if self.opened:
            return self if self.trial_until is None else self._open(now)
        failed = self.failed_names | {name}
        return self._open(now) if len(failed) >= self.failures else replace(self, failed_names=failed)

    def _open(self, now: float) -> Breaker:
        opened = self.opened + 1
        wait = self.backoff.seconds(opened)
        return replace(self, failed_names=frozenset(), opened=opened, retry_at=now + wait, trial_until=None)

    def _trial_runs(self, now: float) -> bool:
        return self.trial_until is not None and now < self.trial_until
