"""A deadline: when something ends, by which clock, and why. Every wait in it takes its time from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Deadline:
    """`ends`: by `ticks`, a steady clock in seconds. `why`: what ends then, for messages."""

    ends: float
    ticks: Callable[[], float]
    why: str = ""

    @classmethod
    def after(cls, seconds: float, ticks: Callable[[], float], why: str) -> Deadline:
        """The deadline in so many seconds."""
        return cls(ticks() + seconds, ticks, why)

    @property
    def left(self) -> float:
        """Seconds until it."""
        return max(0.0, self.ends - self.ticks())

    @property
    def is_over(self) -> bool:
        """Whether nothing may wait any more."""
        return self.left <= 0


NEVER: Final = Deadline(math.inf, lambda: 0.0)
