"""How long tests wait: for as long as `TEST_PATIENCE` says (seconds), generous for a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from deploy.demo import local_process

PATIENCE: Final = float(os.environ.get("TEST_PATIENCE", "240"))
local_process.START_SECONDS = PATIENCE  # of servers, which the demo starts for people

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found], seconds: float = PATIENCE, every: float = 0.2) -> Found:
    """Look until there is something; its absence is the test's failure, with what was seen last."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s for {what}; last seen: {found!r}")
        time.sleep(every)
