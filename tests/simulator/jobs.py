"""Plays histories one after the other."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from compactor.lease.owner import Owner
from tests.simulator.histories import History
from tests.simulator.schedule import simulated_stdlib
from tests.simulator.world import ViolationError

COLLECTED_EVERY: Final = 40


@dataclass
class Played:
    """What became of some histories. `longest`: simulated seconds of the longest wait of each kind."""

    events: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    def __add__(self, other: Played) -> Played:
        names = self.longest.keys() | other.longest.keys()
        return Played(
            self.events + other.events,
            self.failed + other.failed,
            self.stories + other.stories,
            {name: max(self.longest.get(name, 0.0), other.longest.get(name, 0.0)) for name in names},
            self.cpu_seconds + other.cpu_seconds,
        )

    @property
    def waits(self) -> list[tuple[str, float]]:
        """The longest first."""
        return sorted(self.longest.items(), key=lambda each: -each[1])


@contextmanager
def stage() -> Iterator[None]:
    """Where histories can be played: clocks, threads, processes and logs are theirs."""
    log = logging.getLogger("firnline")
    level, is_dead = log.level, Owner.is_dead
    log.setLevel(logging.CRITICAL + 1)
    with simulated_stdlib():
        gc.collect()
        gc.freeze()  # what is there stays: it need not be looked at again
        try:
            yield
        finally:
            gc.enable()
            gc.unfreeze()
            Owner.is_dead = is_dead  # type: ignore[method-assign]
            log.setLevel(level)


def play(seeds: Iterable[int], most_failures: int = 3, *, tell: bool = False) -> Played:
    """Play histories until so many have failed. `tell`: keep the stories of all."""
    found, began = Played(), time.process_time()
    with stage():
        gc.disable()  # it takes a tenth of the time, and frees little
        for seed in seeds:
            if seed % COLLECTED_EVERY == 0:
                gc.collect()
            history = played(seed)
            found += history if tell else replace(history, stories=[])
            if len(found.failed) >= most_failures:
                break
    found.cpu_seconds = time.process_time() - began
    return found


def played(seed: int) -> Played:
    """One history."""
    history, failed = History(seed), []
    Owner.is_dead = lambda owner: history.is_dead(owner)  # type: ignore[method-assign]  # noqa: PLW0108 - a method
    try:
        history.play()
    except ViolationError as error:
        failed.append(str(error))
    met = history.world.met
    in_question = met["conversion that met a commit"] + met["merge that met a commit"]
    counts = history.events + history.writers.done + history.world.landed + met
    counts["histories in which one of them did"] += in_question > 0
    return Played(counts, failed, [history.told], dict(history.waits))
