"""Back-off: how long to wait before the next attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MOST_DOUBLINGS: Final = 64  # 2.0 ** 1024 overflows, and no back-off needs so many


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first_seconds` after the first failure up to `longest_seconds`."""

    first_seconds: float
    longest_seconds: float

    def seconds(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row; 0 after none."""
        if failures < 1:
            return 0.0
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


SOON: Final = Backoff(first_seconds=0.25, longest_seconds=10.0)
"""Between attempts that somebody waits for: a commit, a credential."""
LATER: Final = Backoff(first_seconds=10.0, longest_seconds=600.0)
"""Between attempts that nobody waits for: a look, a search for a table, a batch of the history."""
