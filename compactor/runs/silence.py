"""Whether a store answers no work any more: file groups or searches in a row that got no answer."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Final

SILENCE: Final = 3
"""Pieces of work that got no answer at first, with none done in between: the store answers none any more."""


class Silence:
    """The pieces of work since the last one that was done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unanswered: set[Hashable] = set()

    def note(self, work: Hashable) -> None:
        """The first attempt at this piece got no answer. Second attempts follow each other: they do not count."""
        with self._lock:
            self._unanswered.add(work)

    def end(self) -> None:
        """Some work was done: the store answers."""
        with self._lock:
            self._unanswered.clear()

    @property
    def is_of_all(self) -> bool:
        """Whether the store answers no work any more."""
        with self._lock:
            return len(self._unanswered) >= SILENCE
