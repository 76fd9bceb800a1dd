"""Whether a store answers no work any more: pieces of work in a row that got no answer."""

from __future__ import annotations

import threading

from compactor.rewrite.tasks.output_task import SILENCE


class Unavailable:
    """Counts the pieces of work without an answer since the last one that was done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0

    def note(self) -> None:
        """A piece of work got no answer."""
        with self._lock:
            self._in_a_row += 1

    def end(self) -> None:
        """Some work was done: the store answers."""
        with self._lock:
            self._in_a_row = 0

    @property
    def is_certain(self) -> bool:
        """Whether no further work is to be begun."""
        return self._in_a_row >= SILENCE
