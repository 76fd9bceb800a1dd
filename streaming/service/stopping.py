"""The stop of the service: steps in the reverse order of the start, each with its time; one that hangs is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from streaming.logs.events import LOG

WORK_SECONDS: Final = 20.0
"""Of the 30 s that SIGTERM is given: until when rewrites and streams must stop."""
SPARK_SECONDS: Final = 25.0
STOP_SECONDS: Final = 28.0
LEAST_SECONDS: Final = 0.3
"""For a step that comes late, because those before it hung."""


class StopSteps:
    """What the stop does."""

    def __init__(self) -> None:
        self._steps = ExitStack()
        self._began: float | None = None

    def begin(self) -> None:
        """The time of the stop begins, although `close` is called later. Called by a signal handler."""
        self._began = self._began or time.monotonic()

    def left(self, seconds: float = WORK_SECONDS) -> float:
        """How much of the first `seconds` of the stop is left."""
        now = time.monotonic()
        return max(LEAST_SECONDS, (self._began or now) + seconds - now)

    def add(self, name: str, step: Callable[[], object], by: float = WORK_SECONDS) -> None:
        """At the stop, call `step` before all steps that were added earlier; one that fails stops no other.

        `by`: seconds after the begin of the stop, after which a step that hangs is left behind: a broker, catalog or
        store that does not answer, or Spark.
        """

        def run() -> None:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a signal to the process group ends Spark's JVM at the same moment
                LOG.debug("%s had stopped already: %s", name, error)

        def run_in_time() -> None:
            thread = threading.Thread(target=run, name=f"stop-{name}", daemon=True)
            thread.start()
            thread.join(self.left(by) + LEAST_SECONDS)
            if thread.is_alive():
                LOG.warning("%s did not stop in time; the service ends without it", name)

        self._steps.callback(run_in_time)

    def close(self) -> None:
        """Stop everything that was started."""
        self.begin()
        self._steps.close()
