"""Hours in which runs may start: how much of a time lies outside quiet hours. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import time

DAY = 86_400.0


@dataclass(frozen=True)
class OpenHours:
    """`quiet`: spans of the day in which no run starts, (from, until) in seconds after midnight UTC, disjoint."""

    quiet: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, quiet_spans: Iterable[tuple[time, time]]) -> OpenHours:
        """From spans in UTC. One that ends before it starts spans midnight."""
        parts: list[tuple[float, float]] = []
        for start, end in ((_seconds(start), _seconds(end)) for start, end in quiet_spans):
            parts += [(start, end)] if start <= end else [(start, DAY), (0.0, end)]
        joined: list[tuple[float, float]] = []
        for start, end in sorted(parts):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((start, end))
        return cls(tuple(joined))

    def is_quiet(self, now: float) -> bool:
        """Whether no run may start now (seconds since the epoch)."""
        return any(start <= now % DAY < end for start, end in self.quiet)

    def seconds(self, since: float, now: float) -> float:
        """Seconds between two moments that lie outside quiet hours; 0 if `since` is later."""
        return max(0.0, now - since - (self._quiet_until(now) - self._quiet_until(since)))

    def _quiet_until(self, moment: float) -> float:
        """Quiet seconds since the epoch: those of whole days, and those of the day of `moment` before it."""
        days, rest = divmod(moment, DAY)
        a_day = sum(end - start for start, end in self.quiet)
        return days * a_day + sum(min(max(rest - start, 0.0), end - start) for start, end in self.quiet)


def _seconds(moment: time) -> float:
    return moment.hour * 3600.0 + moment.minute * 60.0 + moment.second
