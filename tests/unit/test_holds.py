"""How long something is held, and what ends that."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from compactor.patience.backoff import LATER, Backoff
from compactor.patience.holds import KEPT_SECONDS, Holds, Key, What

A, B = Key(What.TABLE, "a"), Key(What.TABLE, "b")


class Timed(Holds):
    """On a clock that the test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        super().__init__(lambda: self.now)


def test_a_hold_ends_at_its_time_and_a_clock_that_is_set_back_ends_it_too() -> None:
    holds = Timed()
    made = holds.hold(A, "no answer", until=1060.0)
    for now, lasts in ((1000.0, True), (1059.9, True), (1060.0, False), (999.9, False)):
        holds.now = now
        assert holds.held(A) == (made if lasts else None)
    assert holds.held(B) is None


def test_another_basis_ends_it_whatever_the_clock_says() -> None:
    holds = Timed()
    holds.hold(A, "nothing to do", basis=("snapshot", 1))
    holds.now = 0.0
    assert holds.held(A, ("snapshot", 1)) is not None
    assert holds.held(A, ("snapshot", 2)) is None
    assert holds.waits == (), "no time ends it"


@given(st.lists(st.floats(0, 3000), max_size=30))
def test_failures_in_a_row_are_counted_and_no_hold_is_longer_than_it_may_be(waits: list[float]) -> None:
    holds, backoff, tries = Timed(), Backoff(1.0, 100.0), 0
    for wait in waits:
        before = holds.held(A)
        hold = holds.fail(A, "no answer", backoff)
        tries += before is None
        assert (hold.tries, holds.held(A)) == (tries, hold)
        assert hold.until <= holds.now + backoff.seconds(tries)  # a difference of large numbers is not exact
        holds.now += wait
    holds.release(What.TABLE, "a")
    assert holds.fail(A, "no answer", backoff).tries == 1


def test_parts_are_held_and_released_one_by_one() -> None:
    holds = Timed()
    for part, until in ((1, 1010.0), (2, 1020.0), (3, math.inf)):
        holds.hold(Key(What.PARTITION, "a", part), f"{part}", until)
    assert [hold.why for hold in holds.waits] == ["1", "2"]
    holds.now = 1010.0
    assert holds.of(What.PARTITION, "a").keys() == {2, 3}
    holds.release(What.PARTITION, "a", [2])
    assert holds.known(What.PARTITION, "a").keys() == {1, 3}


def test_what_was_over_long_ago_is_forgotten() -> None:
    holds, look = Timed(), Key(What.LOOK, "a")
    until = holds.fail(look, "no answer", LATER).until
    holds.fail(A, "no answer", LATER)
    holds.now = until + KEPT_SECONDS - 1
    assert (holds.waits, holds.tries(look)) == ((), 1)
    holds.now += 1
    assert (holds.waits, holds.tries(look)) == ((), 0)
    assert holds.tries(A) == 1, "a run of the table may take longer"
