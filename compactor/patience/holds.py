"""Holds: why work on something waits, and until when. The only memory of what is not to be tried again yet.

A hold ends at its time, or when what it depends on has changed (its basis), or when it is released: the work was done.
A clock that is set back to before its begin ends it, too, unless it waits for no time: so none lasts for longer than it
should. How often the work has failed in a row is kept for an hour after its end, of a table until it succeeds: a run
may last for hours.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from compactor.patience.backoff import Backoff

KEPT_SECONDS: Final = 3600.0
"""After the end of a hold, in which another failure is the next one in a row."""


class What(StrEnum):
    """What is held.

    `files`, `search`: data files that are left out of rewrites, or out of conversions. `suspect`: data files that are
    rewritten alone. `look`: a table is not looked at.
    """

    CATALOG = "catalog"
    LOOK = "look"
    TABLE = "table"
    PARTITION = "partition"
    FILES = "files"
    SEARCH = "search"
    SUSPECT = "suspect"


class Key(NamedTuple):
    """`of`: name of a catalog or a table. `part`: of the table, the partition's key or the paths of the data files."""

    what: What
    of: Hashable
    part: Any = None


@dataclass(frozen=True)
class Hold:
    """Why work on `key` waits. Times in seconds since the epoch; `until` is infinite if only a change ends it.

    `basis`: what it depends on; another basis ends it. None: nothing. `tries`: failures in a row.
    """

    key: Key
    why: str
    since: float
    until: float = math.inf
    basis: object = None
    tries: int = 0

    def lasts(self, now: float) -> bool:
        """Whether its time is not over."""
        return math.isinf(self.until) or self.since <= now < self.until


class Holds:
    """All holds of a process. Thread-safe. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._lock = threading.RLock()
        self._known: dict[tuple[What, Hashable], dict[Any, Hold]] = {}

    def hold(self, key: Key, why: str, until: float = math.inf, basis: object = None, tries: int = 0) -> Hold:
        """Hold the work on `key` from now on. Replaces an earlier hold of the key."""
        made = Hold(key, why, self.clock(), until, basis, tries)
        self.put(key.what, key.of, [made])
        return made

    def put(self, what: What, of: Hashable, holds: Collection[Hold]) -> None:
        """As `hold`, many of one table or catalog."""
        with self._lock:
            self._known[what, of] = {**self.known(what, of), **{each.key.part: each for each in holds}}

    def fail(self, key: Key, why: str, backoff: Backoff, *, least_tries: int = 1, least_seconds: float = 0.0) -> Hold:
        """The work on `key` has failed once more: hold it for its back-off, at least for `least_seconds`. While it is
        held, nothing changes: that work began before the hold.

        `least_tries`: as so many failures in a row it counts at least.
        """
        with self._lock:
            if (lasting := self.held(key)) is not None and lasting.tries >= least_tries:
                return lasting
            tries = max(self.tries(key) + 1, least_tries)
            until = self.clock() + max(backoff.seconds(tries), least_seconds)
            return self.hold(key, why, until, tries=tries)

    def held(self, key: Key, basis: object = None) -> Hold | None:
        """The hold of `key`, if it lasts; `basis`: what the work depends on now."""
        found = self._known.get(key[:2], {}).get(key.part)
        if found is None or not found.lasts(self.clock()) or found.basis not in (None, basis):
            return None
        return found

    def tries(self, key: Key) -> int:
        """How often the work on `key` has failed in a row."""
        found = self._known.get(key[:2], {}).get(key.part)
        return 0 if found is None else found.tries

    def known(self, what: What, of: Hashable) -> Mapping[Any, Hold]:
        """Holds of one table or catalog by part, on any basis, also those that were over a while ago."""
        return self._known.get((what, of), {})

    def of(self, what: What, of: Hashable) -> Mapping[Any, Hold]:
        """As `known`, those that last."""
        now, known = self.clock(), self.known(what, of)
        return known if all(each.lasts(now) for each in known.values()) else _only(known, lambda each: each.lasts(now))

    def release(self, what: What, of: Hashable, parts: Collection[Any] | None = None) -> None:
        """The work was done, or there is none any more: forget the holds of these parts; None: of all."""
        with self._lock:
            known = self._known.pop((what, of), {})
            kept = {} if parts is None else _only(known, lambda each: each.key.part not in parts)
            if kept:
                self._known[what, of] = kept

    @property
    def waits(self) -> tuple[Hold, ...]:
        """The holds that a time will end, the next one first. Forgets those that were over long ago."""
        now = self.clock()
        with self._lock:
            kept = {
                place: _only(known, lambda each: each.key.what is What.TABLE or now < each.until + KEPT_SECONDS)
                for place, known in self._known.items()
            }
            self._known = {place: known for place, known in kept.items() if known}
        timed = (each for known in kept.values() for each in known.values() if not math.isinf(each.until))
        return tuple(sorted((each for each in timed if each.lasts(now)), key=lambda each: each.until))


def _only(known: Mapping[Any, Hold], wanted: Callable[[Hold], bool]) -> dict[Any, Hold]:
    return {part: each for part, each in known.items() if wanted(each)}
