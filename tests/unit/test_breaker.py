"""A catalog that fails is left alone; a table that fails is not its catalog."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from compactor.patience.backoff import Backoff
from compactor.patience.breaker import Breaker, BreakerState

BREAKER = Breaker(failures=3, backoff=Backoff(first_seconds=5.0, longest_seconds=60.0), trial_seconds=100.0)


def opened(at: float = 0.0) -> Breaker:
    return BREAKER.failed("a", at).failed("b", at).failed("c", at)


def test_it_opens_after_failures_of_different_tables_in_a_row() -> None:
    assert BREAKER.failed("a", 0.0).failed("b", 0.0).state(0.0) is BreakerState.CLOSED
    assert opened().state(0.0) is BreakerState.OPEN


def test_one_table_that_fails_again_and_again_opens_nothing() -> None:
    breaker = BREAKER
    for second in range(100):
        breaker = breaker.failed("a", float(second))
    assert breaker.state(100.0) is BreakerState.CLOSED


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = BREAKER.failed("a", 0.0).failed("b", 0.0).succeeded().failed("c", 0.0).failed("d", 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_after_the_back_off_one_call_may_go() -> None:
    breaker = opened(at=10.0)
    assert not breaker.allows(14.9)
    assert breaker.seconds_to_wait(12.0) == 3.0
    assert breaker.allows(15.0)
    trial = breaker.started(15.0)
    assert not trial.allows(15.0)
    assert trial.succeeded() == BREAKER


def test_a_failed_trial_doubles_the_back_off() -> None:
    breaker = opened().started(5.0).failed("d", 6.0)
    assert not breaker.allows(15.9)
    assert breaker.allows(16.0)


def test_a_call_that_started_before_it_opened_changes_no_back_off() -> None:
    breaker = opened()
    assert breaker.failed("late", 4.0) == breaker


def test_a_trial_that_never_reports_lapses() -> None:
    trial = opened().started(5.0)
    assert not trial.allows(104.9)
    assert trial.seconds_to_wait(100.0) == 5.0
    assert trial.allows(105.0)


@dataclass(frozen=True)
class Step:
    seconds: float
    name: str
    outcome: str  # ok, failed, lost: the caller never reports


STEPS = st.lists(
    st.builds(
        Step,
        seconds=st.integers(0, 200).map(float),
        name=st.sampled_from("abcd"),
        outcome=st.sampled_from(["ok", "failed", "failed", "failed", "lost"]),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_is_never_shut_for_good_and_never_lets_two_trials_go(steps: list[Step]) -> None:
    breaker, now = BREAKER, 0.0
    for step in steps:
        now += step.seconds
        wait = breaker.seconds_to_wait(now)
        assert (wait == 0.0) == breaker.allows(now)
        assert wait <= max(breaker.backoff.longest_seconds, breaker.trial_seconds)
        assert breaker.allows(now + wait + 1e-6)
        if not breaker.allows(now):
            continue
        was_trial = breaker.state(now) is BreakerState.TRIAL
        breaker = breaker.started(now)
        assert breaker.allows(now) != was_trial
        if step.outcome == "ok":
            breaker = breaker.succeeded()
            assert breaker == BREAKER
        elif step.outcome == "failed":
            breaker = breaker.failed(step.name, now)
            assert not was_trial or breaker.state(now) is BreakerState.OPEN


@given(STEPS)
def test_while_it_is_shut_calls_are_as_rare_as_the_back_off_says(steps: list[Step]) -> None:
    breaker, now, last_trial = opened(), 0.0, 0.0
    for step in steps:
        now += step.seconds
        if breaker.allows(now):
            assert now - last_trial >= breaker.backoff.first_seconds
            last_trial, breaker = now, breaker.started(now).failed(step.name, now)
