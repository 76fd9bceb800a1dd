"""The one commit loop under any sequence of observations: it ends in time, and never says what is not known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.commit.decisions import (
    SEARCHES,
    TURN_SECONDS,
    Action,
    Answer,
    Answered,
    Do,
    Failed,
    Found,
    MissedError,
    Ready,
    Rules,
    Searched,
    Seen,
    State,
    Turn,
    Watched,
    Writers,
    begin,
    decide,
)
from compactor.errors import (
    CommitUnknownError,
    FirnlineError,
    GiveUpError,
    LaterError,
    ReplanError,
    RetryError,
    StoppedError,
)
from compactor.planning.commit_timing import Rhythm
from compactor.planning.rollbacks import Fate
from compactor.reasons import Reason
from tests.properties.examples import examples
from tests.properties.table_history import NAME

NOW = 1_700_000_000.0
SHORTEST = 0.5
"""Seconds that an action takes at least: each is a call of the catalog, the store, or both."""
LONGEST = 30.0
THEIRS = LaterError("another's turn", reason=Reason.FLINK_LOCK)
ERRORS = (
    ReplanError("touched", reason=Reason.CONFLICT),
    ReplanError("replaced", reason=Reason.TABLE_REPLACED),
    RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE),
    RetryError("expired", reason=Reason.CREDENTIALS_EXPIRED),
    RetryError("lost", reason=Reason.SPARK_LOST),
    MissedError("another's turn"),
    GiveUpError("damaged"),
    StoppedError("switched off"),
)
FAILED = st.sampled_from([Failed(error) for error in ERRORS])
STOPPED = Failed(StoppedError("stopped during the wait"))


@dataclass
class World:
    """What is true: how many requests are under way that can still land, and whether ours is in the branch."""

    data: st.DataObject
    rules: Rules
    now: float = NOW
    under_way: int = 0
    in_branch: bool = False
    known: bool = True
    """Whether the outcome of all that was sent was looked for, since the newest send."""
    stopped: bool = False
    sends: int = 0
    waited: float = 0.0
    done: list[Action] = field(default_factory=list)
    moods: dict[str, Any] = field(default_factory=dict)

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def pick(self, what: str, strategy: st.SearchStrategy[Any]) -> Any:
        """Drawn; after sixty actions always the same."""
        if len(self.done) < 60 or what not in self.moods:
            self.moods[what] = self.draw(strategy)
        return self.moods[what]

    def lands(self) -> None:
        """Something that is under way may arrive at any time."""
        if self.under_way and not self.in_branch and self.pick("arrives", st.integers(0, 3)) == 0:
            self.under_way -= 1
            self.in_branch = True

    def act(self, action: Action) -> Seen:
        self.done.append(action)
        assert action.wait >= 0
        assert len(self.done) < 5000, "it does not end"
        self.waited += action.wait
        self.now += action.wait + self.pick("takes", st.sampled_from([SHORTEST, 1.0, 5.0, LONGEST]))
        self.lands()
        if (
            action.wait
            and action.do is not Do.SEARCH
            and (self.stopped or self.pick("stopped", st.integers(0, 9)) == 0)
        ):
            self.stopped = True
            return STOPPED
        return getattr(self, f"_{action.do.name.lower()}")()  # type: ignore[no-any-return]

    def _look(self) -> Seen:
        return self.pick("look", st.sampled_from([Turn(), Turn(THEIRS)]) | FAILED)  # type: ignore[no-any-return]

    def _look_at_table(self) -> Seen:
        rhythm = st.builds(
            lambda ago, every, behind: Rhythm(self.now - ago, every, behind),
            st.floats(0, 200),
            st.floats(1, 100),
            st.booleans(),
        )
        looks = st.builds(
            Writers, st.sampled_from([None, None, THEIRS]), st.none() | rhythm, st.booleans(), st.floats(0, 9)
        )
        return self.draw(looks) if len(self.done) < 60 else self.pick("writers", looks)  # type: ignore[no-any-return]

    def _prepare(self) -> Seen:
        if self.in_branch and self.sends:
            return self._search()
        return self.pick("prepare", st.sampled_from([Ready(), Ready(), Ready(), Ready(left=False)]) | FAILED)  # type: ignore[no-any-return]

    _renew = _prepare

    def _make(self) -> Seen:
        if self.in_branch and self.sends:
            return self._search()
        return self.pick("make", st.sampled_from([Ready(), Ready(), Ready(again=True)]) | FAILED)  # type: ignore[no-any-return]

    def _send(self) -> Seen:
        assert self.known, "it is not known what has become of what was sent before"
        assert not self.stopped, "it was stopped"
        before = self.draw(st.none() | FAILED) if len(self.done) < 60 else None
        if before is not None:
            self.stopped = self.stopped or isinstance(before.error, StoppedError)
            return before  # type: ignore[no-any-return]
        self.sends += 1
        self.known = False
        fate = self.pick("fate", st.sampled_from(["lands", "under way", "lost"]))
        if fate == "lands" and not self.in_branch:
            self.in_branch = True
        elif fate != "lost":
            self.under_way += 1
        answers = [Answered(each, RetryError(each.value, reason=Reason.COMMIT_REFUSED)) for each in Answer]
        interrupted = Failed(CommitUnknownError("interrupted"))
        return self.pick("answer", st.sampled_from([*answers, interrupted]))  # type: ignore[no-any-return]

    def _search(self) -> Seen:
        if self.pick("unanswered", st.integers(0, 5)) == 0:
            return Searched(Found.UNANSWERED, can_land=bool(self.under_way))
        self.known = True
        return Searched(Found.LANDED if self.in_branch else Found.MISSING, can_land=bool(self.under_way))

    def _watch(self) -> Seen:
        fate = self.draw(st.sampled_from(list(Fate))) if len(self.done) < 60 else Fate.NEWEST
        if fate is Fate.ROLLED_BACK:
            self.in_branch = False
        return Watched(fate, self.draw(st.sampled_from([0.0, 30.0])))


RULES = st.builds(
    lambda hold, watched, attempts, waits: Rules("run", NAME, waits, hold if waits else 0.0, watched, attempts),
    st.sampled_from([0.0, 10.0, 60.0]),
    st.booleans(),
    st.sampled_from([3, 10]),
    st.sampled_from([True, True, True, False]),
)


def played(rules: Rules, data: st.DataObject) -> tuple[World, State, FirnlineError | None]:
    world = World(data, rules)
    state, action = begin(rules, world.now)
    while action.do is not Do.END:
        seen = world.act(action)
        if isinstance(seen, Failed) and isinstance(seen.error, StoppedError):
            world.stopped = True
        state, action = decide(state, seen, world.now)
    return world, state, action.error


@settings(max_examples=examples(1600))
@given(RULES, st.data())
def test_it_ends_in_time_and_says_only_what_is_known(rules: Rules, data: st.DataObject) -> None:
    """And: it sends nothing after a stop, nor while the outcome of what it has sent before is not known."""
    world, state, error = played(rules, data)
    assert world.waited <= rules.longest_wait + world.sends * SEARCHES * 2, "all waits together"
    last = LONGEST * 12 + SEARCHES * 2
    assert world.now <= NOW + rules.longest_wait + last, "what is under way at the deadline is ended"
    if state.landed:
        assert (error, world.sends > 0) == (None, True)
    elif world.in_branch or world.under_way:
        assert isinstance(error, CommitUnknownError), "it may land, or has landed"
    if not world.sends:
        assert not isinstance(error, CommitUnknownError), "nothing was sent"


@given(st.lists(FAILED | st.just(Ready()), max_size=30), st.sampled_from([Do.PREPARE, Do.MAKE]))
def test_what_is_sent_was_prepared_since_the_last_conflict(seen: list[Seen], at: Do) -> None:
    """Each conflict, missed moment or time without an answer leads back to a comparison with the head."""
    state, action = begin(Rules("run", NAME), NOW)
    now, compared, queue = NOW, False, list(seen)
    usual: dict[Do, Seen] = {Do.LOOK: Turn(), Do.LOOK_AT_TABLE: Writers(), Do.SEND: STOPPED}
    while action.do is not Do.END:
        now += action.wait + 1
        answer = queue.pop(0) if action.do is at and queue else usual.get(action.do, Ready())
        if action.do in (Do.PREPARE, Do.RENEW):
            compared = isinstance(answer, Ready)
        if isinstance(answer, Failed) and action.do is not Do.SEND:
            compared = False
        assert action.do is not Do.SEND or compared
        state, action = decide(state, answer, now)


@given(st.floats(0, 800), st.sampled_from([0.0, 10.0, 60.0]))
def test_no_wait_passes_the_deadline(at: float, hold: float) -> None:
    rules = Rules("run", NAME, hold_seconds=hold)
    state, _ = begin(rules, NOW)
    now = NOW + at
    looks: list[Seen] = [Turn(THEIRS), Writers(THEIRS), Writers(silent=True), *map(Failed, ERRORS)]
    for seen in looks:
        _, action = decide(replace(state, missed=1), seen, now)
        assert action.do is Do.END or now + action.wait <= max(state.ends, now)
        assert action.wait <= max(TURN_SECONDS, 10.0)
