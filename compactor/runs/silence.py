"""Whether a store answers no work any more: file groups or searches in a row that got no answer."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable

from compactor.rewrite.tasks.output_task import SILENCE


class Silence:
    """The pieces of work without an answer since the last one that was done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = 0
        self._unanswered: set[Hashable] = set()

    @property
    def done(self) -> int:
        """How many pieces of work were done so far. Who begins one notes it: see `note`."""
        return self._done

    def note(self, work: Hashable, done_before: int) -> None:
        """This piece got no answer. It says nothing about the store if another one was done while it was under way.

        `done_before`: how many were done before it began.
        """
        with self._lock:
            if self._done == done_before:
                self._unanswered.add(work)

    def end(self) -> None:
        """Some work was done: the store answers."""
        with self._lock:
            self._done += 1
            self._unanswered.clear()

    @property
    def has_begun(self) -> bool:
        """Whether some work got no answer, and none was done since: the store may be down."""
        with self._lock:
            return bool(self._unanswered)

    @property
    def is_of_all(self) -> bool:
        """Whether the store answers no work any more."""
        with self._lock:
            return len(self._unanswered) >= SILENCE


class Unanswered:
    """Data files without an answer, where the store answered nothing any more: the next run comes to them last.

    Else files in a place that is lost would end each run before it comes to the others. `work`: the table, for its
    runs; its conversions have their own. One thread at a time works on a table.
    """

    def __init__(self) -> None:
        self._files: dict[Hashable, frozenset[str]] = {}

    def note(self, work: Hashable, paths: Iterable[str]) -> None:
        """These files come last, until `forget`."""
        self._files[work] = frozenset(paths)

    def forget(self, work: Hashable) -> None:
        """The store answered until the end."""
        self._files.pop(work, None)

    def noted(self, work: Hashable) -> frozenset[str]:
        """The files that were noted last."""
        return self._files.get(work, frozenset())

    def of(self, work: Hashable, groups: Iterable[Iterable[str]]) -> frozenset[str]:
        """The files that come last. None, if each of the groups has one of them: then the first ones are tried again.

        `groups`: the data files of each file group or search.
        """
        files = self.noted(work)
        return frozenset() if all(not files.isdisjoint(paths) for paths in groups) else files
