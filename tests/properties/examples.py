"""How many examples a property test tries: `make test` an eighth, `make test-slow` and `make test-mutations` all."""

from __future__ import annotations

import os
from typing import Final

ALL: Final = os.environ.get("TEST_EXAMPLES") == "all"
FEWEST: Final = 10


def examples(count: int) -> int:
    """`count` with TEST_EXAMPLES=all, else an eighth of it, but not fewer than 10."""
    return count if ALL else max(FEWEST, count // 8)
