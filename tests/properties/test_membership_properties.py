"""No two services own a table at the same time, whatever is killed, paused or cut off: against a model of the broker.

The model follows Kafka's group coordinator: a member is removed when its heartbeats stop for a session, or when it
does not ask to join within the longest time of a rebalance; a generation begins when all others have asked. An answer
can be lost, or arrive late because its member was paused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.shards import Shard
from compactor.table_names import TableName
from streaming.kafka.membership import HEARTBEAT_SECONDS, NO_GENERATION, SESSION_SECONDS, SETTLE_SECONDS, Membership
from tests.properties.examples import examples

TABLES = [TableName("lake", ("db",), f"t{number}") for number in range(12)]
SECONDS = 150


@dataclass
class Service:
    """`asked`: when it asked to join the next generation, if it has. `inbox`: answers that it has not read yet."""

    name: str
    membership: Membership
    alive: bool = True
    paused_until: int = 0
    cut_until: int = 0
    asked: int | None = None
    next_heartbeat: int = 0
    inbox: deque[tuple[tuple[str, ...], int, int]] = field(default_factory=deque)


@dataclass
class Broker:
    """`heard`: the time of each member's last sign. `rebalancing`: since when the group waits for its members."""

    heard: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    generation: int = 0
    rebalancing: int | None = None

    def rebalance(self, now: int) -> None:
        if self.rebalancing is None:
            self.rebalancing = now

    def step(self, services: dict[str, Service], now: int) -> None:
        for name, heard in list(self.heard.items()):
            waits = name in self.asked
            if not waits and now >= heard + SESSION_SECONDS:
                del self.heard[name]
                self.rebalance(now)
        if self.rebalancing is None:
            return
        if now < self.rebalancing + SESSION_SECONDS and not set(self.heard) <= set(self.asked):
            return
        members = tuple(sorted(self.asked))
        self.heard = dict.fromkeys(members, now)
        self.generation, self.rebalancing = self.generation + 1, None
        for name, asked in self.asked.items():
            if now >= services[name].cut_until:  # else the answer is lost
                services[name].inbox.append((members, self.generation, asked))
        self.asked = {}


def step(service: Service, broker: Broker, now: int) -> None:
    """What a service does in one second."""
    if not service.alive or now < service.paused_until:
        return
    while service.inbox:
        members, generation, asked = service.inbox.popleft()
        service.asked = None
        service.membership = service.membership.joins(service.name, members, generation, asked, now)
    service.membership = service.membership.ticks(now)
    if now < service.cut_until:
        service.asked = None  # the connection breaks: it asks again later
        return
    if service.asked is not None:
        if service.name not in broker.asked:  # removed meanwhile, or the answer was lost
            service.asked = None
        return
    if now < service.next_heartbeat and service.membership.generation != NO_GENERATION:
        return
    service.next_heartbeat = now + int(HEARTBEAT_SECONDS)
    if service.name in broker.heard and service.membership.generation == broker.generation:  # accepted
        broker.heard[service.name] = now
        service.membership = service.membership.hears(now)
        if broker.rebalancing is None:
            return
    elif service.name not in broker.heard:
        service.membership = service.membership.loses()
    broker.rebalance(now)
    service.asked = now
    broker.asked[service.name] = broker.heard[service.name] = now


# Faults begin soon after a service starts or another fault ends: while the group changes.
FAULT = st.tuples(st.integers(-2, 6), st.integers(0, 3), st.sampled_from(["kill", "pause", "cut"]), st.integers(1, 60))
START = st.lists(st.integers(0, 30), min_size=2, max_size=4)


def simulate(starts: list[int], faults: list[tuple[int, int, str, int]], until: int = SECONDS + 100) -> list[Service]:
    """Run the services; fail when a table has two owners. `faults`: second, service, what, for how many seconds."""
    services = {f"s{number}": Service(f"s{number}", Membership(f"s{number}")) for number in range(len(starts))}
    broker = Broker()
    begins = {f"s{number}": second for number, second in enumerate(starts)}
    for now in range(until):
        for second, which, what, seconds in faults:
            service = services.get(f"s{which}")
            if service is None or second != now:
                continue
            if what == "kill":
                service.alive = False
            elif what == "pause":
                service.paused_until = now + seconds
            else:
                service.cut_until = now + seconds
        # A service acts on what it last read, so ask before it reads on: the worst moment.
        acting = [
            (name, service.membership.shard(now))
            for name, service in services.items()
            if now >= begins[name] and service.alive and now >= service.paused_until
        ]
        check(acting, now)
        for name, service in services.items():
            if now >= begins[name]:
                step(service, broker, now)
        broker.step(services, now)
    return list(services.values())


def timed(starts: list[int], faults: list[tuple[int, int, str, int]]) -> list[tuple[int, int, str, int]]:
    """Faults with their seconds: each begins near a start, or near the end of the fault before."""
    made, ends = [], sorted(starts)
    for number, (offset, which, what, seconds) in enumerate(faults):
        begin = max(0, ends[number % len(ends)] + offset)
        made.append((begin, which, what, seconds))
        ends.append(begin + seconds)
    return [fault for fault in made if fault[0] + fault[3] < SECONDS]


def check(acting: list[tuple[str, Shard]], now: int) -> None:
    for table in TABLES:
        owners = [name for name, shard in acting if shard.owns(table)]
        assert len(owners) <= 1, f"second {now}: {table} is owned by {owners}"


@settings(max_examples=examples(150))
@given(START, st.lists(FAULT, max_size=6))
def test_no_table_has_two_owners(starts: list[int], faults: list[tuple[int, int, str, int]]) -> None:
    simulate(starts, timed(starts, faults))


@settings(max_examples=examples(60))
@given(START, st.lists(FAULT, max_size=6))
def test_no_table_is_forgotten_once_the_faults_are_over(
    starts: list[int], faults: list[tuple[int, int, str, int]]
) -> None:
    """100 s after the last fault, each table has an owner if a service is left."""
    services = simulate(starts, timed(starts, faults))
    now = SECONDS + 99
    shards = [service.membership.shard(now) for service in services if service.alive]
    for table in TABLES if shards else ():
        assert sum(shard.owns(table) for shard in shards) == 1


def test_the_tables_of_a_killed_service_move_within_a_minute() -> None:
    assert SESSION_SECONDS + HEARTBEAT_SECONDS + SETTLE_SECONDS < 60
    for second in range(100, 103):
        services = simulate([0, 0, 0], [(second, 1, "kill", 1)], until=second + 60)
        shards = [service.membership.shard(second + 59) for service in services if service.alive]
        assert len(shards) == 2
        assert all(sum(shard.owns(table) for shard in shards) == 1 for table in TABLES)
