"""When a finished rewrite is sent, and what follows, by the decisions: beside writers whose commits are known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.commit.decisions import (
    ATTEMPTS,
    PASSES,
    SEARCHES,
    TURN_SECONDS,
    WAIT_SECONDS,
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
from compactor.events import CommitHeld, CommitWaits
from compactor.planning.commit_timing import MOMENT, writers_rhythm
from compactor.planning.rollbacks import Fate
from compactor.reasons import Reason
from tests.properties.table_history import NAME

NOW = 1_700_000_000.0
EVERY = 60.0
LOCKED = LaterError("another's turn", reason=Reason.FLINK_LOCK)
CONFLICT = ReplanError("touched", reason=Reason.CONFLICT)
SILENCE = RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE)
BEATEN = RetryError("others came first", reason=Reason.COMMIT_REFUSED)


def deletion(at: float) -> Snapshot:
    return Snapshot(
        snapshot_id=int(at), timestamp_ms=int(at * 1000), manifest_list="none", summary=Summary(Operation.DELETE)
    )


@dataclass
class Waiting:
    """A finished rewrite beside a row-level writer. Times are seconds since its beginning.

    `commits`: of the writer from then on; before, it has committed every minute. `silent`: the catalog does not answer.
    `slow`: seconds that each look takes. `frozen`: the process stands still, for so long, at a time.
    """

    commits: Collection[float] = ()
    before: Iterable[float] = tuple(-EVERY / 2 - number * EVERY for number in range(4))
    silent: Callable[[float], bool] = lambda _at: False
    slow: float = 0.0
    frozen: Mapping[float, float] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    operation: Operation = Operation.DELETE
    listed: int = 512
    looks: int = 0
    told: list[float] = field(default_factory=list)
    held: CommitHeld | None = None

    def __post_init__(self) -> None:
        self.at = 0.0

    def wait(self, hold_seconds: float) -> State:
        """Until it is prepared."""
        state, action = begin(Rules("run", NAME, hold_seconds=hold_seconds), NOW)
        while action.do is not Do.PREPARE:
            if isinstance(action.tell, CommitWaits):
                self.told.append(action.tell.seconds)
            self.held = action.tell if isinstance(action.tell, CommitHeld) else self.held
            self.at += action.wait
            self.at += self.frozen.get(self.at, 0.0)
            state, action = decide(state, self._seen(state, action), NOW + self.at)
        return state

    @property
    def seconds(self) -> float:
        return self.held.seconds if self.held else 0.0

    @property
    def after_writer(self) -> bool:
        return self.held is not None and self.held.after_writer

    def _seen(self, state: State, action: Action) -> Seen:
        if action.do is Do.LOOK:
            return Turn()
        self.looks += 1
        assert self.looks < 2000, "it waits without end"
        self.at += self.slow
        if self.silent(self.at):
            return Writers(silent=True, seconds=self.slow)
        known = state.hold.newest if state.hold else None
        return Writers(rhythm=writers_rhythm(self.history(), self.properties, known), seconds=self.slow)

    def history(self) -> list[Snapshot]:
        times = sorted([each for each in (*self.before, *self.commits) if each <= self.at], reverse=True)
        summary = Summary(self.operation)
        return [deletion(NOW + each).model_copy(update={"summary": summary}) for each in times][: self.listed]


def scheduled(last: float, every: float) -> list[float]:
    return [last - number * every for number in range(9)]


def test_a_wait_for_a_writer_that_does_not_come_ends_in_time() -> None:
    waiting = Waiting()
    waiting.wait(40.0)
    assert (waiting.seconds, waiting.after_writer, waiting.told) == (40.0, False, [40.0])


def test_the_writers_commit_ends_the_wait() -> None:
    waiting = Waiting(commits=[6.5])
    state = waiting.wait(40.0)
    assert (waiting.seconds, waiting.after_writer, waiting.looks) == (7.0, True, 8)
    assert state.good_until == NOW + 6.5 + MOMENT * EVERY


def test_a_commit_that_was_made_between_two_looks_is_followed_at_once() -> None:
    """Of a writer so frequent that the next one may have begun by the time of the look."""
    waiting = Waiting(commits=[1.5], before=[-2 - number * 3 for number in range(4)])
    waiting.wait(40.0)
    assert (waiting.seconds, waiting.after_writer) == (2.0, True)


def test_before_the_first_row_level_commit_an_append_is_followed_if_the_table_has_such_writers() -> None:
    merging = {"write.merge.mode": "merge-on-read"}
    waiting = Waiting([2.5], [-2.0, -6.0, -10.0], properties=merging, operation=Operation.APPEND)
    waiting.wait(40.0)
    assert (waiting.seconds, waiting.after_writer) == (3.0, True)
    without = Waiting([2.5], [-2.0, -6.0, -10.0], operation=Operation.APPEND)
    without.wait(40.0)
    assert without.held is None


@pytest.mark.parametrize(
    ("commits", "seconds", "after_writer", "told"),
    [
        ([34.5, 59.5], 60.0, True, [40.0, 59.5]),
        ([34.5, 37.5, 56.5], 57.0, True, None),
        ([34.5], 95.0, False, None),
    ],
    ids=["a late one", "an early one after a late one", "only a late one"],
)
def test_a_writer_that_is_behind_its_schedule_is_not_followed(
    commits: list[float], seconds: float, after_writer: bool, told: list[float] | None
) -> None:
    """It begins the next statement at once. The wait starts again."""
    waiting = Waiting(commits, [-number * 20.0 for number in range(1, 9)])
    waiting.wait(60.0)
    assert (waiting.seconds, waiting.after_writer) == (seconds, after_writer)
    assert told is None or waiting.told == told


def test_a_commit_that_is_seen_too_late_is_not_followed() -> None:
    """This process was stopped for a while: the next statement may have begun."""
    waiting = Waiting([4.5, 13.5], [-5.0 - number * 10 for number in range(9)], frozen={5.0: 6.0})
    waiting.wait(60.0)
    assert (waiting.seconds, waiting.after_writer) == (8.0 + 6.0, True)


def test_the_time_without_an_answer_of_the_catalog_does_not_count() -> None:
    waiting = Waiting(silent=lambda at: 3 <= at < 33)
    waiting.wait(40.0)
    assert (waiting.seconds, waiting.after_writer, waiting.told) == (33.0 + 40.0, False, [40.0, 40.0])


@pytest.mark.parametrize(("commits", "seconds"), [([34.5], 35.0), ([28.5, 32.5], 33.0), ([28.5, 79.5], 80.0)])
def test_when_the_catalog_answers_again_its_writer_begins_at_once(commits: list[float], seconds: float) -> None:
    """What was committed in the meantime is not followed."""
    waiting = Waiting(commits, [-26 - number * EVERY for number in range(6)], silent=lambda at: at < 30)
    waiting.wait(60.0)
    assert (waiting.seconds, waiting.after_writer) == (seconds, True)


@pytest.mark.parametrize(
    "silent", [lambda _: True, lambda at: at < 70, lambda at: at % 20 != 0], ids=["always", "for long", "often"]
)
def test_a_catalog_that_does_not_answer_ends_the_wait_in_time(silent: Callable[[float], bool]) -> None:
    waiting = Waiting(silent=silent)
    waiting.wait(40.0)
    assert (waiting.at, waiting.after_writer, waiting.looks) == (80.0, False, 81)


def test_an_answer_that_comes_late_is_no_answer() -> None:
    waiting = Waiting(scheduled(2.5, 30.0)[:1], scheduled(-1.0, 30.0), slow=TURN_SECONDS + 1)
    waiting.wait(60.0)
    assert not waiting.after_writer


def test_a_slow_look_at_a_table_without_row_level_writers_is_no_wait() -> None:
    waiting = Waiting(before=(), slow=1.5)
    waiting.wait(60.0)
    assert waiting.held is None


@pytest.mark.parametrize("listed", [1, 512], ids=["the newest snapshot alone", "all snapshots"])
def test_older_metadata_and_appends_are_no_commit(listed: int) -> None:
    """A catalog of several servers, or a writer's rollback; Nessie lists the newest snapshot alone."""
    waiting = Waiting(before=[-10 - number * 45.0 for number in range(4)], commits=[34.5], listed=listed)
    history = waiting.history

    def newest() -> list[Snapshot]:
        append = deletion(NOW + 11).model_copy(update={"summary": Summary(Operation.APPEND)})
        older = history()[1:] if listed > 1 and 2 < waiting.at < 9 else history()
        return [append, *older][:listed] if 11 <= waiting.at < 34.5 else older

    waiting.history = newest  # type: ignore[method-assign]
    state = waiting.wait(60.0)
    assert (waiting.seconds, waiting.after_writer) == (35.0, True)
    assert state.good_until is not None


@dataclass
class Loop:
    """A commit, and how its actions end: a list for each, the last one for all that follow. Each takes a second.

    `done`: the actions. `can_land`: what was sent still can.
    """

    rules: Rules = field(default_factory=lambda: Rules("run", NAME))
    can_land: bool = False
    now: float = NOW
    waited: float = 0.0
    done: list[Do] = field(default_factory=list)
    outcome: FirnlineError | None = None
    state: State | None = None

    def play(self, **ends: list[Seen]) -> Loop:
        left = {Do[name.upper()]: list(seen) for name, seen in ends.items()}
        usual: dict[Do, Seen] = {
            Do.LOOK: Turn(),
            Do.LOOK_AT_TABLE: Writers(),
            Do.PREPARE: Ready(),
            Do.RENEW: Ready(),
            Do.MAKE: Ready(),
            Do.SEND: Answered(Answer.ACCEPTED),
            Do.SEARCH: Searched(Found.LANDED),
            Do.WATCH: Watched(Fate.NEWEST, 30.0),
        }
        state, action = begin(self.rules, self.now)
        while action.do is not Do.END:
            self.waited += action.wait
            self.now += action.wait + 1
            self.done.append(action.do)
            assert len(self.done) < 3000, "it does not end"
            queue = left.get(action.do, [])
            seen = (queue.pop(0) if len(queue) > 1 else queue[0]) if queue else usual[action.do]
            if isinstance(seen, Searched):
                seen = replace(seen, can_land=self.can_land)
            state, action = decide(state, seen, self.now)
        self.outcome, self.state = action.error, state
        return self

    @property
    def sent(self) -> int:
        return self.done.count(Do.SEND)

    @property
    def landed(self) -> bool:
        return self.state is not None and self.state.landed


MISSING = Searched(Found.MISSING)


def test_nothing_disturbs() -> None:
    loop = Loop().play()
    assert (loop.done, loop.landed) == ([Do.LOOK, Do.PREPARE, Do.MAKE, Do.SEND, Do.SEARCH], True)


def test_a_lock_is_waited_for_until_the_deadline() -> None:
    loop = Loop(Rules("run", NAME, hold_seconds=60.0)).play(look=[Turn(LOCKED)])
    assert isinstance(loop.outcome, LaterError)
    assert loop.outcome.reason is Reason.FLINK_LOCK
    assert loop.now == pytest.approx(NOW + WAIT_SECONDS + 120.0, abs=TURN_SECONDS + 1)


def test_a_merge_of_manifests_waits_for_nobody() -> None:
    loop = Loop(Rules("run", NAME, waits=False)).play(look=[Turn(LOCKED)])
    assert (loop.done, loop.outcome) == ([Do.LOOK], LOCKED)


def test_a_lock_that_is_taken_while_a_writer_goes_first_is_seen() -> None:
    loop = Loop().play(
        prepare=[Failed(MissedError("a branch")), Ready()], look_at_table=[Writers(LOCKED)] * 9 + [Writers()]
    )
    waits = [number for number, each in enumerate(loop.done) if each is Do.LOOK_AT_TABLE]
    assert len(waits) == 10
    assert {loop.done[number - 1] for number in waits} == {Do.LOOK}
    assert loop.landed


def test_work_that_is_planned_again_need_not_be_settled() -> None:
    """On a table of format version 1 what was sent can land as long as its parent is listed."""
    prepare = [Ready(), Failed(CONFLICT)]
    loop = Loop(can_land=True).play(
        send=[Answered(Answer.BEATEN, BEATEN)], make=[Ready(), Failed(CONFLICT)], prepare=prepare, search=[MISSING]
    )
    assert loop.outcome is CONFLICT


def test_what_waits_for_nobody_ends_at_the_first_silence_or_refusal() -> None:
    rules, refused = Rules("run", NAME, waits=False), RetryError("Forbidden", reason=Reason.ACCESS_DENIED)
    loop = Loop(rules).play(prepare=[Failed(SILENCE)])
    assert (loop.outcome, loop.done) == (SILENCE, [Do.LOOK, Do.PREPARE])
    loop = Loop(rules).play(send=[Answered(Answer.REFUSED, refused)], search=[MISSING])
    assert (loop.outcome, loop.sent) == (refused, 1)


def test_a_lock_that_is_taken_during_the_hold_is_waited_for_and_then_a_writer_again() -> None:
    held = Loop(Rules("run", NAME, hold_seconds=60.0))
    behind = writers_rhythm([deletion(NOW - 10 - 20 * number) for number in range(6)], {})
    held.play(look=[Turn(), Turn(LOCKED), Turn()], look_at_table=[Writers(rhythm=behind)] * 15 + [Writers()])
    assert held.landed
    assert held.done.count(Do.LOOK) > 2


@pytest.mark.parametrize("reason", sorted(PASSES))
def test_what_does_not_answer_is_asked_again_until_the_deadline(reason: Reason) -> None:
    silence = RetryError("no answer", reason=reason)
    loop = Loop().play(prepare=[Failed(silence), Failed(silence), Ready()])
    assert (loop.landed, loop.done.count(Do.PREPARE)) == (True, 3)
    loop = Loop().play(prepare=[Failed(silence)])
    assert loop.outcome is silence
    assert WAIT_SECONDS <= loop.now - NOW <= WAIT_SECONDS + 5


@pytest.mark.parametrize("error", [GiveUpError("damaged"), RetryError("x", reason=Reason.SPARK_LOST), CONFLICT])
def test_an_error_that_no_wait_mends_ends_it(error: FirnlineError) -> None:
    loop = Loop().play(prepare=[Failed(error)])
    assert (loop.outcome, loop.done) == (error, [Do.LOOK, Do.PREPARE])


def test_after_a_conflict_it_is_prepared_again_at_once() -> None:
    loop = Loop().play(make=[Failed(CONFLICT), Ready(again=True), Ready()])
    assert (loop.landed, loop.waited) == (True, 0.0)
    assert loop.done.count(Do.PREPARE) == 2
    loop = Loop().play(make=[Failed(CONFLICT)])
    assert (loop.outcome, loop.done.count(Do.MAKE), loop.waited) == (CONFLICT, ATTEMPTS, 0.0)


def test_a_credential_that_ends_is_renewed() -> None:
    ended = Failed(RetryError("expired", reason=Reason.CREDENTIALS_EXPIRED))
    loop = Loop().play(make=[ended, ended, Ready()])
    assert (loop.landed, loop.done.count(Do.RENEW), loop.done.count(Do.PREPARE)) == (True, 2, 1)
    assert Loop().play(make=[ended]).outcome is ended.error


def test_copies_of_deletes_are_made_in_each_attempt_until_there_are_too_many() -> None:
    loop = Loop().play(make=[Ready(again=True)])
    assert isinstance(loop.outcome, ReplanError)
    assert loop.done.count(Do.MAKE) == ATTEMPTS


@pytest.mark.parametrize("attempts", [ATTEMPTS, 14])
def test_a_lost_race_is_run_again_with_what_is_prepared(attempts: int) -> None:
    rules = Rules("run", NAME, attempts=attempts)
    beaten = Answered(Answer.BEATEN, BEATEN)
    loop = Loop(rules).play(
        send=[beaten, beaten, Answered(Answer.ACCEPTED)], search=[MISSING, MISSING, Searched(Found.LANDED)]
    )
    assert (loop.landed, loop.sent, loop.done.count(Do.PREPARE), loop.done.count(Do.LOOK)) == (True, 3, 1, 3)
    loop = Loop(rules).play(send=[beaten], search=[MISSING])
    assert (loop.outcome, loop.sent) == (BEATEN, attempts)


@pytest.mark.parametrize("answer", Answer)
def test_what_has_landed_has_landed_whatever_was_answered(answer: Answer) -> None:
    loop = Loop().play(send=[Answered(answer, BEATEN)])
    assert (loop.landed, loop.outcome, loop.sent) == (True, None, 1)


@pytest.mark.parametrize(
    ("answer", "searches"),
    [(Answer.ACCEPTED, SEARCHES), (Answer.UNKNOWN, SEARCHES), (Answer.REFUSED, SEARCHES + 1), (Answer.HOPELESS, 1)],
)
def test_a_commit_that_is_not_found_is_unknown_or_has_failed(answer: Answer, searches: int) -> None:
    """Only after an answer that says no, and only if nothing that was sent can land any more, it is known."""
    rules = Rules("run", NAME, attempts=1)
    fails = answer in (Answer.REFUSED, Answer.HOPELESS)
    loop = Loop(rules).play(send=[Answered(answer, BEATEN)], search=[MISSING])
    assert loop.done.count(Do.SEARCH) == searches
    assert isinstance(loop.outcome, CommitUnknownError) != fails
    loop = Loop(rules, can_land=True).play(send=[Answered(answer, BEATEN)], search=[MISSING])
    assert isinstance(loop.outcome, CommitUnknownError)
    assert "others came first" in str(loop.outcome)


def test_a_table_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    unanswered = [Searched(Found.UNANSWERED)]
    for answer in Answer:
        loop = Loop().play(send=[Answered(answer, BEATEN)], search=unanswered)
        assert (isinstance(loop.outcome, CommitUnknownError), loop.sent) == (True, 1)


@pytest.mark.parametrize("last", [Failed(GiveUpError("damaged")), Failed(StoppedError("stopped")), Ready(left=False)])
def test_before_it_ends_it_looks_for_what_was_sent(last: Seen) -> None:
    beaten, again = Answered(Answer.BEATEN, BEATEN), [Ready(), Failed(SILENCE)]
    prepare: list[Seen] = [Ready(), last]
    error = last.error if isinstance(last, Failed) else None
    loop = Loop().play(send=[beaten], make=again, prepare=prepare, search=[MISSING])
    assert (loop.outcome, loop.landed, loop.done[-1]) == (error, False, Do.SEARCH)
    loop = Loop().play(send=[beaten], make=again, prepare=prepare, search=[MISSING, Searched(Found.LANDED)])
    assert (loop.outcome, loop.landed) == (None, True)
    loop = Loop(can_land=True).play(send=[beaten], make=again, prepare=prepare, search=[MISSING])
    assert isinstance(loop.outcome, CommitUnknownError) or (error is None and loop.outcome is None)


def test_a_commit_that_is_interrupted_is_not_looked_for() -> None:
    unknown = CommitUnknownError("interrupted")
    loop = Loop().play(send=[Failed(unknown)])
    assert (loop.outcome, loop.done[-1]) == (unknown, Do.SEND)


def test_a_moment_that_has_passed_is_waited_for_twice() -> None:
    """Then it is sent whenever it is ready."""
    rules = Rules("run", NAME, hold_seconds=10.0)
    rhythm = writers_rhythm([deletion(NOW - 1 - 8 * number) for number in range(6)], {})
    missed = MissedError("another's turn")
    loop = Loop(rules).play(prepare=[Failed(missed), Failed(missed), Ready()], look_at_table=[Writers(rhythm=rhythm)])
    assert (loop.landed, loop.done.count(Do.PREPARE)) == (True, 3)
    assert loop.state is not None
    assert (loop.state.missed, loop.state.good_until) == (2, None)


def test_what_was_prepared_too_late_is_not_sent() -> None:
    state, _ = begin(Rules("run", NAME, hold_seconds=10.0), NOW)
    state = replace(state, then=Do.MAKE, good_until=NOW + 5)
    assert decide(state, Ready(), NOW + 5)[1].do is Do.SEND
    after, action = decide(state, Ready(), NOW + 6)
    assert (after.missed, after.then, action.do) == (1, None, Do.LOOK)


WATCHED = Rules("run", NAME, hold_seconds=60.0, watched=True)


@pytest.mark.parametrize(("fate", "sent"), [(Fate.STAYS, 1), (Fate.ROLLED_BACK, 2)])
def test_the_next_commit_ends_the_watch(fate: Fate, sent: int) -> None:
    """What was rolled back is sent again at once: the writer has just committed."""
    newest = Watched(Fate.NEWEST, 30.0)
    loop = Loop(WATCHED).play(watch=[newest, newest, Watched(fate), Watched(Fate.STAYS)])
    assert (loop.landed, loop.sent, loop.done.count(Do.WATCH)) == (True, sent, 2 + sent)
    assert loop.done.count(Do.LOOK_AT_TABLE) == 1, "not again after a rollback"


@pytest.mark.parametrize(("most", "seconds"), [(60.0, 30.0), (7.0, 7.0)])
def test_a_watch_ends_although_no_writer_comes(most: float, seconds: float) -> None:
    loop = Loop(replace(WATCHED, hold_seconds=most)).play()
    assert loop.landed
    assert loop.done.count(Do.WATCH) == pytest.approx(seconds / 1.5, abs=2)
    assert Loop(WATCHED).play(watch=[Watched(Fate.NEWEST, 0.0)]).done.count(Do.WATCH) == 1


def test_a_run_that_must_stop_watches_no_longer() -> None:
    loop = Loop(WATCHED).play(watch=[Watched(Fate.NEWEST, 30.0), Failed(StoppedError("stopped"))])
    assert (loop.landed, loop.outcome) == (True, None)


def test_what_is_rolled_back_until_the_deadline_is_given_up() -> None:
    loop = Loop(WATCHED).play(watch=[Watched(Fate.ROLLED_BACK)])
    assert loop.sent > 5
    assert loop.now < NOW + WATCHED.longest_wait + 20
    state = State(WATCHED, NOW)
    ended, action = decide(decide(state, Watched(Fate.ROLLED_BACK), NOW)[0], MISSING, NOW)
    assert (action.do, ended.landed) == (Do.END, False)
    assert "again and again" in str(action.error)


def test_a_commit_that_was_rolled_back_before_it_was_seen_is_sent_again() -> None:
    loop = Loop().play(search=[Searched(Found.ROLLED_BACK), Searched(Found.LANDED)])
    assert (loop.landed, loop.sent) == (True, 2)
