"""Rewrite slots: how many Spark jobs of rewrites may run at once, shared fairly by all runs of the process.

A slot is room for one Spark task. `SlotBook` is the bookkeeping, pure; `SlotPool` adds waiting threads. The next free
slot goes to the waiting run that holds the fewest. Only rewrites take slots: planning and committing do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

LOOK_SECONDS = 0.5
"""Between two looks at whether a waiting run was stopped."""

LEAST_AHEAD = 2
"""Runs that prepare while one slot is busy: planning a small table takes about as long as rewriting it."""


@dataclass(frozen=True)
class SlotBook:
    """Who holds slots and who waits for one.

    Attributes:
        capacity: Slots in all. After a decrease more can be in use: running tasks are not interrupted.
        most: Slots that one run holds at once; None: all.
        held: Slots by run.
        waiting: Runs that wait, in the order in which they asked.
        expected: Runs that were announced and have not asked yet: they still plan.
        evicted: Runs that hang and were given up: until their end they get no slot.
    """

    capacity: int
    most: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    expected: frozenset[str] = frozenset()
    evicted: frozenset[str] = frozenset()

    @property
    def in_use(self) -> int:
        """Slots that runs hold."""
        return sum(self.held.values())

    @property
    def free(self) -> int:
        """Slots that no run holds."""
        return max(0, self.capacity - self.in_use)

    @property
    def next(self) -> str | None:
        """The run that gets a slot now: of those that wait and may have one more, the run that holds the fewest."""
        if not self.free:
            return None
        allowed = [run for run in self.waiting if self.most is None or self.held.get(run, 0) < self.most]
        return min(allowed, key=lambda run: self.held.get(run, 0), default=None)  # the first of equals waits longest

    @property
    def has_room(self) -> bool:
        """Whether one more run may start: as many as there are slots, at least two, plan or wait without holding one.

        They take the slots of runs that end or commit, so that no slot is idle while the next run plans.
        """
        without = self.expected | {run for run in self.waiting if run not in self.held}
        return self.capacity > 0 and len(without) < max(LEAST_AHEAD, self.capacity)

    def announced(self, run: str) -> SlotBook:
        """A run begins to plan."""
        return replace(self, expected=self.expected | {run})

    def ended(self, run: str) -> SlotBook:
        """A run has ended, whether it asked for slots or not."""
        return replace(self, expected=self.expected - {run}, evicted=self.evicted - {run})

    def asked(self, run: str) -> SlotBook:
        """A run wants one more slot."""
        return replace(self, waiting=(*self.waiting, run), expected=self.expected - {run})

    def withdrawn(self, run: str) -> SlotBook:
        """A waiting run wants one slot less."""
        place = self.waiting.index(run)
        return replace(self, waiting=(*self.waiting[:place], *self.waiting[place + 1 :]))

    def granted(self, run: str) -> SlotBook:
        """A waiting run gets one of the free slots."""
        return replace(self.withdrawn(run), held={**self.held, run: self.held.get(run, 0) + 1})

    def released(self, run: str) -> SlotBook:
        """A run gives one slot back, unless it was given up."""
        left = {each: count - (each == run) for each, count in self.held.items()}
        return replace(self, held={each: count for each, count in left.items() if count})

    def given_up(self, run: str) -> SlotBook:
        """A run hangs: it holds no slot and waits for none."""
        return replace(
            self,
            held={each: count for each, count in self.held.items() if each != run},
            waiting=tuple(each for each in self.waiting if each != run),
            expected=self.expected - {run},
            evicted=self.evicted | {run},
        )

    def resized(self, capacity: int) -> SlotBook:
        """The cluster has grown or shrunk."""
        return replace(self, capacity=capacity)


class SlotPool:
    """The slots of the process. Thread-safe.

    Args:
        capacity: Slots at the start.
        most: Slots that one run holds at once (`service.max_concurrent_file_group_rewrites`); None: all.
    """

    def __init__(self, capacity: int, most: int | None = None) -> None:
        self._book = SlotBook(capacity, most)
        self._changed = threading.Condition()
        self._freed: Callable[[], None] = lambda: None

    @property
    def book(self) -> SlotBook:
        """The bookkeeping at this moment."""
        return self._book

    @property
    def has_room(self) -> bool:
        """Whether one more run may start."""
        return self._book.has_room

    @property
    def share(self) -> int:
        """Slots that one run can hold at once."""
        book = self._book
        return max(1, book.capacity if book.most is None else min(book.most, book.capacity))

    def when_freed(self, call: Callable[[], None]) -> None:
        """`call` is called when there is room for another run again; it must return at once."""
        self._freed = call

    def resize(self, capacity: int) -> None:
        """Change the number of slots. Tasks that run beyond it end by themselves."""
        self._change(lambda book: book.resized(capacity))

    def announce(self, run: str) -> None:
        """A run begins: keep a slot in mind for it while it plans."""
        self._change(lambda book: book.announced(run))

    def end(self, run: str) -> None:
        """An announced run has ended."""
        self._change(lambda book: book.ended(run))

    def evict(self, run: str) -> None:
        """Take the slots of a run that hangs. Until its `end` it gets no other."""
        self._change(lambda book: book.given_up(run))

    def acquire(self, run: str, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait for a slot; False if `stopped` became true first, or the run was given up (`evict`).

        Every slot must be given back by `release`.
        """
        with self._changed:
            if run in self._book.evicted:
                return False
            self._apply(lambda book: book.asked(run))
            while self._book.next != run and not stopped() and run not in self._book.evicted:
                self._changed.wait(LOOK_SECONDS)
            if run in self._book.evicted:
                return False
            has_slot = self._book.next == run
            room = self._apply(lambda book: book.granted(run) if has_slot else book.withdrawn(run))
        if room:
            self._freed()
        return has_slot

    def release(self, run: str) -> None:
        """Give a slot back."""
        self._change(lambda book: book.released(run))

    def _change(self, change: Callable[[SlotBook], SlotBook]) -> None:
        """Apply a change of the book. `_freed` may wait for who calls us: it is called without the lock."""
        with self._changed:
            room = self._apply(change)
        if room:
            self._freed()

    def _apply(self, change: Callable[[SlotBook], SlotBook]) -> bool:
        """Apply a change of the book while the lock is held; whether there is room for another run again."""
        had_room = self._book.has_room
        self._book = change(self._book)
        self._changed.notify_all()
        return self._book.has_room and not had_room
