"""Where time goes: seconds per stage of one piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stages:
    """Stages that follow one another; each ends where the next begins."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self.seconds: dict[str, float] = {}

    def done(self, stage: str) -> None:
        """The time since the last stage, or since the start, was spent on this one."""
        now = self._clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now
