"""Stopping: steps run in the reverse order of the start, and a step that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from streaming.logs.events import LOG


class StopSteps:
    """Add a step for each part that is started; `run` them all once."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def add(self, name: str, step: Callable[[], object]) -> None:
        """`step` runs before all steps that were added earlier."""
        self._stack.callback(_run, name, step)

    def run(self) -> None:
        """Run all steps, the last one first."""
        self._stack.close()


def _run(name: str, step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - a signal to the process group ends Spark's JVM at the same moment
        LOG.debug("%s had stopped already: %s", name, error)
