"""At most one service may commit at any time, whatever is paused, cut off or killed, and however its clock runs.

The real `LeaseHolder` runs against a model of a store with conditional writes. Each call to the store is a point at
which the process can be paused: other processes then go on, before or after the store has done what it was asked, and
the answer may be lost. Real time passes only there and between steps; each process sees it through a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.errors import RetryError, StoppedError
from compactor.lease.decisions import POLL_SECONDS, RENEW_SECONDS, TAKEOVER_SECONDS, VALID_SECONDS, Watch
from compactor.lease.document import Lease, decode
from compactor.lease.holder import LeaseHolder
from compactor.lease.owner import Owner
from compactor.lease.store import Stored, Version
from tests.properties.examples import examples

Answer = TypeVar("Answer")
ELSEWHERE = Owner("another.host", "boot", "namespace", 1, "1")
FASTEST = 1.2
"""The rates of two clocks differ by up to 1.2 / 0.85: a little less than TAKEOVER_SECONDS / VALID_SECONDS."""
SLOWEST = 0.85


@dataclass(frozen=True)
class Pause:
    """What happens before and after the store does one call: seconds pass, then a process with this number steps."""

    before: tuple[tuple[float, int], ...] = ()
    after: tuple[tuple[float, int], ...] = ()
    lost: bool = False


numbers = st.sampled_from([0, 1, 0, 1, 2])
meanwhile = st.lists(st.tuples(st.sampled_from([0, 1, 20, 33, 46, 60]), numbers), min_size=1, max_size=4).map(tuple)
pauses = st.builds(
    Pause,
    before=st.just(()) | meanwhile,
    after=st.just(()) | meanwhile,
    lost=st.sampled_from([False, False, False, False, False, True]),
)


@dataclass
class World:
    """Real time, the document, the processes, and what will happen to the next calls."""

    script: Iterator[Pause]
    now: float = 0.0
    document: Stored | None = None
    processes: list[Process] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)

    def pass_time(self, seconds: float) -> None:
        """Time is seen in small steps, so that a claim is checked at each of them."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.check()
        self.check()

    def check(self) -> None:
        active = [process.number for process in self.processes if process.holder.active]
        assert len(active) <= 1, f"at {self.now}: {active} hold the lease"

    def goes_on(self, meanwhile: tuple[tuple[float, int], ...]) -> None:
        """What happens while one process is paused; the others may be paused in their turn."""
        for seconds, number in meanwhile:
            self.pass_time(seconds)
            if not self.processes[number].paused:
                self.processes[number].step()


@dataclass(eq=False)
class ModelStore:
    """As one process sees the store."""

    world: World
    process: Process
    location = "model"
    conditional = True

    def read(self) -> Stored | None:
        return self._called(lambda: self.world.document)

    def replace(self, content: bytes, expected: Version | None) -> Version | None:
        def swap() -> Version | None:
            found = self.world.document
            if (found.version if found else None) != expected:
                return None
            self.world.document = Stored(content, int(expected or 0) + 1)
            return self.world.document.version

        return self._called(swap)

    def _called(self, call: Callable[[], Answer]) -> Answer:
        world, pause = self.world, next(self.world.script, Pause())
        self.process.paused = True
        world.goes_on(pause.before)
        answer = call()
        world.goes_on(pause.after)
        self.process.paused = False
        if pause.lost:
            raise OSError("no answer")
        return answer


@dataclass(eq=False)
class Process:
    """One service. `rate`: seconds of its clock in a second."""

    number: int
    world: World
    rate: float
    paused: bool = False

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.holder = LeaseHolder(
            ModelStore(self.world, self), owner=ELSEWHERE, clock=lambda: 1000 + self.rate * self.world.now
        )
        self.standby = True

    def step(self) -> None:
        """What it does when it is its turn: look, or renew as right before a commit."""
        world = self.world
        with suppress(OSError, RetryError):
            if self.standby:
                self.standby = not self.holder.look()
                return
            try:
                self.holder.confirm()
            except StoppedError:
                self.restart()
                return
            token = token_of(world.document)
            assert self.holder.active
            assert token >= max(world.confirmed, default=0), "a deposed service was allowed to commit"
            world.confirmed.append(token)
            world.check()


def token_of(document: Stored | None) -> int:
    lease = decode(document.content) if document else None
    assert lease is not None
    return lease.token


steps = st.lists(st.tuples(numbers, st.sampled_from([0, 2, 10, 31, 46, 90]), st.booleans()), min_size=3, max_size=30)
scripts = st.lists(pauses, min_size=5, max_size=60)
rates = st.lists(st.floats(SLOWEST, FASTEST), min_size=3, max_size=3)


@settings(max_examples=examples(1000), deadline=None)
@given(steps=steps, rates=rates, script=scripts)
def test_at_most_one_process_may_act_at_any_time(
    steps: list[tuple[int, float, bool]], rates: list[float], script: list[Pause]
) -> None:
    world = World(iter(script))
    world.processes = [Process(number, world, rate) for number, rate in enumerate(rates)]
    for number, seconds, killed in steps:
        world.pass_time(seconds)
        if killed and seconds > 80:
            world.processes[number].restart()
        world.processes[number].step()
    assert world.confirmed == sorted(world.confirmed)


@settings(max_examples=examples(300), deadline=None)
@given(
    steps=steps,
    script=scripts,
    jumps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 50.0, 1000.0])), max_size=40),
)
def test_a_deposed_process_commits_nothing_even_if_its_clock_stood_still(
    steps: list[tuple[int, float, bool]], script: list[Pause], jumps: list[tuple[int, float]]
) -> None:
    """Clocks here run as they like, as those of suspended machines: only the store's conditional writes are left."""
    world = World(iter(script))
    world.check = lambda: None  # type: ignore[method-assign]  # two may think that they hold it; one can renew it
    clocks = [0.0, 0.0, 0.0]

    def clock_of(number: int) -> Callable[[], float]:
        return lambda: clocks[number]

    world.processes = [Process(number, world, 1.0) for number in range(3)]
    leaps = iter(jumps)
    for number, _, _ in steps:
        leap = next(leaps, (0, 0.0))
        clocks[leap[0]] += leap[1]
        process = world.processes[number]
        process.holder._clock = clock_of(number)
        process.step()
    assert world.confirmed == sorted(world.confirmed)


@settings(max_examples=examples(100), deadline=None)
@given(rate=st.floats(SLOWEST, FASTEST), polls=st.integers(1, 60))
def test_a_standby_never_replaces_a_holder_that_renews_in_time(rate: float, polls: int) -> None:
    world = World(iter(()))
    world.processes = [Process(0, world, 1.0), Process(1, world, rate), Process(2, world, 1.0)]
    holder, standby = world.processes[:2]
    holder.step()
    for number in range(polls):
        world.pass_time(POLL_SECONDS)
        standby.step()
        if number % int(RENEW_SECONDS / POLL_SECONDS) == 0:
            holder.step()
    assert (holder.standby, standby.standby) == (False, True)


@given(rate=st.floats(SLOWEST, FASTEST), dies=st.sampled_from([True, False]))
def test_a_standby_takes_over_from_a_silent_holder_within_a_minute_and_at_once_after_a_clean_stop(
    rate: float, dies: bool
) -> None:
    world = World(iter(()))
    world.processes = [Process(0, world, 1.0), Process(1, world, rate), Process(2, world, 1.0)]
    holder, standby = world.processes[:2]
    holder.step()
    standby.step()
    if not dies:
        holder.holder.release()
    ended = world.now
    while standby.standby:
        world.pass_time(POLL_SECONDS)
        standby.step()
    assert world.now - ended <= ((TAKEOVER_SECONDS / rate + 2 * POLL_SECONDS) if dies else POLL_SECONDS)
    assert token_of(world.document) == 2


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_change_of_the_document_starts_the_count_again(first: float, later: float) -> None:
    lease = Lease(1, 0, "a", ELSEWHERE, 0.0, "d")
    watch = Watch().sees(b"1", first)
    assert watch.sees(b"1", first + later) == watch
    assert watch.may_take(lease, first + later, owner_dead=False) == (first + later - first >= TAKEOVER_SECONDS)
    changed = watch.sees(b"2", first + later)
    assert not changed.may_take(lease, first + later, owner_dead=False)
    assert changed.may_take(lease, first + later, owner_dead=True)
    assert changed.may_take(replace(lease, released=True), first + later, owner_dead=False)
    assert Watch().sees(None, first).may_take(None, first, owner_dead=False)


def test_the_constants_leave_room_for_clocks_that_run_differently() -> None:
    assert TAKEOVER_SECONDS / VALID_SECONDS > FASTEST / SLOWEST
    assert 2 * RENEW_SECONDS < VALID_SECONDS
