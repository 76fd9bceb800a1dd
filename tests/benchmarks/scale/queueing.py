"""One service's event → ledger latency, by discrete events: batches, lanes, look threads, Python's lock. Pure, seeded.

Events arrive at random. A micro-batch takes all that are there; a table that several of them name is looked at once.
A look waits for the catalog and the store on a thread of its own, then needs the driver's core, which all threads
share. Sweeps ask for every table at once, in a lane of their own behind the events.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from streaming.ledger.catalog_tables import PAUSE_SECONDS
from streaming.ledger.rhythm import RARELY
from tests.benchmarks.scale.model import Lake, Service, UnitCosts, beside_looks

MOST_BACKGROUND = 0.95
"""A driver that has no time for looks at all is not simulated."""

Step = tuple[float, int, int, tuple[float, ...]]
"""When, a number that keeps the order, which table, and the times of the events that it answers."""


@dataclass(frozen=True)
class Station:
    """One service as the simulation sees it. Rates by second, times in seconds.

    Attributes:
        classes: (tables, commits a second to each of them).
        trigger: Seconds between two micro-batches; `batch`: from the end of the interval until the driver has the rows.
        threads: Looks at the same time.
        wait: Wall time of catalog and store of one look; `sweep_wait`: of an unchanged table.
        look, further, unchanged: Processor seconds of the driver.
        background: Part of the driver's core that other work takes (whose table an event is, the inbox, own commits).
    """

    classes: tuple[tuple[int, float], ...]
    trigger: float
    batch: float
    threads: int
    wait: float
    sweep_wait: float
    look: float
    further: float
    unchanged: float
    sweep: float
    background: float = 0.0


@dataclass(frozen=True)
class Latency:
    """Event → ledger in seconds, and what was simulated."""

    events: int
    counted: int
    looks: int
    p50: float
    p99: float
    most: float


def station(lake: Lake, costs: UnitCosts, service: Service, services: int) -> Station:
    """One of `services` services, with its share of each class."""
    classes = tuple((max(1, round(each.tables / services)), lake.rate(each)) for each in lake.classes if each.commits)
    return Station(
        classes=classes,
        trigger=service.trigger_seconds,
        batch=lake.batch_seconds,
        threads=service.looks_per_catalog * lake.catalogs,
        wait=lake.catalog_seconds + lake.store_seconds,
        sweep_wait=lake.catalog_seconds,
        look=costs.look.of(lake.snapshots),
        further=costs.look.further_snapshot,
        unchanged=costs.look.unchanged,
        sweep=RARELY * service.sweep_seconds,
        background=min(MOST_BACKGROUND, beside_looks(lake, costs, service, services)),
    )


@dataclass
class _Run:
    """State of one simulation. Heaps of steps: looks that wait (`answers`), that have the core (`ends`), that rest."""

    station: Station
    random: random.Random
    free: int
    now: float = 0.0
    core_free: float = 0.0
    looks: int = 0
    waiting: dict[int, list[float]] = field(default_factory=dict)
    swept: dict[int, None] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    again: dict[int, list[float]] = field(default_factory=dict)
    resting: dict[int, float] = field(default_factory=dict)
    answers: list[Step] = field(default_factory=list)
    ends: list[Step] = field(default_factory=list)
    later: list[Step] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def push(self, steps: list[Step], at: float, table: int, events: Sequence[float]) -> None:
        heapq.heappush(steps, (at, next(self.numbers), table, tuple(events)))

    def due(self, steps: list[Step]) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Take the steps of this moment."""
        while steps and steps[0][0] <= self.now:
            *_, table, events = heapq.heappop(steps)
            yield table, events

    def ask(self, table: int, events: Sequence[float]) -> None:
        if table in self.busy:
            self.again.setdefault(table, []).extend(events)
        elif self.resting.get(table, 0.0) > self.now:
            self.push(self.later, self.resting[table], table, events)
        else:
            self.swept.pop(table, None)
            self.waiting.setdefault(table, []).extend(events)

    def sweep(self) -> None:
        """All tables at once: more than the service asks for at a time."""
        tables = sum(each for each, _ in self.station.classes)
        self.swept.update(
            dict.fromkeys(each for each in range(tables) if each not in self.waiting and each not in self.busy)
        )

    def advance(self) -> None:
        """All that happens at this moment, then new looks on the free threads."""
        one = self.station
        for table, events in self.due(self.later):
            self.ask(table, events)
        for table, events in self.due(self.answers):
            work = one.look + one.further * (len(events) - 1) if events else one.unchanged
            self.core_free = max(self.core_free, self.now) + work / (1 - one.background)
            self.push(self.ends, self.core_free, table, events)
        for table, events in self.due(self.ends):
            self.latencies += [self.now - at for at in events]
            self.free += 1
            self.busy.discard(table)
            self.resting[table] = self.now + PAUSE_SECONDS
            if table in self.again:
                self.push(self.later, self.resting[table], table, self.again.pop(table))
        while self.free and (self.waiting or self.swept):
            self._start()

    def _start(self) -> None:
        first = next(iter(self.waiting or self.swept))
        events = self.waiting.pop(first, [])
        self.swept.pop(first, None)
        self.free -= 1
        self.looks += 1
        self.busy.add(first)
        waits = self.station.wait if events else self.station.sweep_wait
        self.push(self.answers, self.now + self.random.expovariate(1 / waits), first, events)


def arrivals(one: Station, seconds: float, numbers: random.Random) -> list[tuple[float, int]]:
    """(time, table) of every event, in order."""
    found = []
    first = 0
    for tables, rate in one.classes:
        at = numbers.expovariate(tables * rate) if rate else math.inf
        while at < seconds:
            found.append((at, first + numbers.randrange(tables)))
            at += numbers.expovariate(tables * rate)
        first += tables
    return sorted(found)


def simulate(one: Station, seconds: float, seed: int = 1) -> Latency:
    """Latencies of the events of so many seconds. The last ones are followed for `seconds` more at most."""
    numbers = random.Random(seed)
    events = arrivals(one, seconds, numbers)
    run = _Run(one, numbers, free=one.threads)
    batches = [each * one.trigger + one.batch for each in range(1, math.ceil(seconds / one.trigger) + 1)]
    sweeps = [each * one.sweep for each in range(1, int(seconds / one.sweep) + 1)]
    batches.reverse()
    sweeps.reverse()
    position = 0
    while coming := [each[-1] for each in (batches, sweeps) if each] + [
        each[0][0] for each in (run.answers, run.ends, run.later) if each
    ]:
        run.now = min(coming)
        if run.now > 2 * seconds + one.trigger:
            break
        if sweeps and sweeps[-1] <= run.now:
            sweeps.pop()
            run.sweep()
        if batches and batches[-1] <= run.now:
            batches.pop()
            taken: dict[int, list[float]] = {}
            while position < len(events) and events[position][0] <= run.now - one.batch:
                at, table = events[position]
                taken.setdefault(table, []).append(at)
                position += 1
            for table, times in taken.items():
                run.ask(table, times)
        run.advance()
    latencies = sorted(run.latencies)
    return Latency(
        events=len(events),
        counted=len(latencies),
        looks=run.looks,
        p50=quantile(latencies, 0.5),
        p99=quantile(latencies, 0.99),
        most=latencies[-1] if latencies else 0.0,
    )


def quantile(ascending: Sequence[float], part: float) -> float:
    """The value below which `part` of the values lie; 0 without values."""
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))] if ascending else 0.0
