"""The sweep of in-flight records holds up neither the main loop nor the stop, whatever its catalogs do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from compactor.table_names import TableName
from streaming.service.in_flight_sweep import LONG_SECONDS, PAUSE_SECONDS, InFlightSweep, MayAsk, UnsteppedClock
from tests.integration.service_process import wait_for
from tests.unit.streaming.states import state_of

TABLE = TableName("lake", ("db",), "t")


class Scene:
    """A sweep whose catalog answers once it is released, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.began = 0
        self.released = threading.Event()
        self.silent = set[str]()
        self.asked = list[bool]()
        self.error: Exception | None = None
        self.in_flight = InFlightSweep(self, self)
        self.in_flight.ticks = lambda: self.now

    def available(self, catalog: str) -> bool:
        return catalog not in self.silent

    def sweep(self, _now: float, may_ask: MayAsk) -> None:
        self.began += 1
        assert self.released.wait(60)
        self.asked.append(may_ask(TABLE))
        if self.error is not None:
            raise self.error

    def ended(self) -> bool:
        return self.in_flight._since is None


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.released.set()


def test_one_sweep_at_a_time_and_none_is_waited_for(scene: Scene) -> None:
    for _ in range(3):
        scene.in_flight.check()
        scene.now += 10 * PAUSE_SECONDS
    wait_for("the sweep", lambda: scene.began == 1)
    scene.released.set()
    wait_for("its end", scene.ended)
    scene.in_flight.check()
    assert scene.began == 1, "the pause begins with its end"
    scene.now += PAUSE_SECONDS
    scene.in_flight.check()
    wait_for("the next sweep", lambda: scene.began == 2)


@pytest.mark.parametrize("error", [OSError("the folder"), ValueError("unexpected")])
def test_the_sweeps_outlive_an_error(scene: Scene, error: Exception) -> None:
    scene.error = error
    scene.released.set()
    for number in (1, 2):
        scene.in_flight.check()
        wait_for("its end", lambda number=number: len(scene.asked) == number and scene.ended())
        scene.now += PAUSE_SECONDS


def test_a_catalog_that_does_not_answer_is_not_asked(scene: Scene) -> None:
    scene.silent.add(TABLE.catalog)
    scene.released.set()
    scene.in_flight.check()
    wait_for("its end", scene.ended)
    assert scene.asked == [False]


def test_the_stop_does_not_wait_for_a_silent_catalog_and_no_further_table_is_asked(scene: Scene) -> None:
    scene.in_flight.check()
    scene.in_flight.stop(-1.0)
    scene.released.set()
    wait_for("its end", scene.ended)
    assert scene.asked == [False]
    scene.now += PAUSE_SECONDS
    scene.in_flight.check()
    assert scene.began == 1


def test_a_sweep_that_takes_long_is_shown_and_asks_for_no_new_process(scene: Scene) -> None:
    state = state_of(sweep=scene.in_flight)
    assert state.health.details == {}
    scene.in_flight.check()
    scene.now += LONG_SECONDS + 60
    health = state.health
    assert (health.live, health.ready) == (True, True)
    assert "takes 6 min" in health.details["in-flight sweep"]
    scene.released.set()
    wait_for("its end", scene.ended)
    assert state.health.details == {}


def test_a_clock_that_steps_forward_takes_no_grace_period_with_it() -> None:
    wall, steady = [1000.0], [5.0]
    clock = UnsteppedClock(lambda: wall[0], lambda: steady[0])
    wall[0], steady[0] = 1010.0, 15.0
    assert clock() == 1010.0
    wall[0], steady[0] = 90_000.0, 20.0
    assert clock() == 1015.0
    wall[0], steady[0] = 900.0, 25.0
    assert clock() == 900.0
