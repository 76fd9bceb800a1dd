"""Seconds per stage of one piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stages:
    """Consecutive stages: each starts when the previous one ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self.seconds: dict[str, float] = {}

    def done(self, stage: str) -> None:
        """Add the time since the end of the previous stage (or the start) to `stage`."""
        now = self._clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now
