"""What a finished rewrite does next, until it is committed or must end: the one commit loop, as decisions. Pure.

     ┌──────── another's turn, a writer is expected
     ▼  │                                            ┌─── conflict
    LOOK ──► LOOK_AT_TABLE ──► (LOOK) ──► PREPARE ──► MAKE ──► SEND ──► SEARCH ──► WATCH ──► END
     ▲                                                ▲                    │         │
     │                                                └── beaten, refused ─┘         │
     └──── no answer, the moment has passed ◄──────────────── rolled back for a writer

`runs/committing.py` carries the actions out, one after the other, and tells what it has seen.

**How long a finished rewrite waits.** Until `State.ends`, ten minutes and twice `commit.hold_seconds` from its
beginning, in all waits together; then it is thrown away. Ten minutes for all that mostly passes by itself within
minutes: a lock, a branch that is to be published, a writer that must commit first (`policy.consecutive_replaces`), a
catalog, store or lock that does not answer, commits that others beat or the catalog rolls back for writers. Beside
them, the wait for the commit of a writer that deletes rows (`Hold`). A request that is under way is not interrupted.

**What is never done.** Nothing is sent after a stop, nor before what was sent last was looked for in the table. While
something that was sent can still land, the outcome is unknown, whatever was answered: only the table tells (sends.py);
but work that is planned again need not be settled (`_ended`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from compactor.errors import CommitUnknownError, FirnlineError, LaterError, ReplanError, RetryError
from compactor.events import CommitHeld, CommitWaits
from compactor.patience.backoff import SOON
from compactor.planning.commit_timing import Rhythm, good_until, wait_until
from compactor.planning.rollbacks import Fate
from compactor.reasons import Reason
from compactor.table_names import TableName

WAIT_SECONDS: Final = 600.0
"""How long a finished rewrite waits for its commit, beside the wait for a writer."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at the table: a catalog call each, without a read of the store while nothing changes. Twice as
often after a commit that may be rolled back: the next writer of a busy table begins soon.
"""
TURN_SECONDS: Final = 5.0
"""Between two looks while it is another's turn. A look that takes longer counts as time without an answer."""
ATTEMPTS: Final = 10
"""Attempts at one moment that others beat, or that are refused. Iceberg's default (`commit.retry.num-retries`, 4
retries) is too few beside a writer that commits every second; a table may ask for more.
"""
USUAL_RACES: Final = 2
"""So many lost races at a moment are usual beside a writer, and not told."""
SEARCHES: Final = 5
"""Looks for a commit whose outcome is unknown: it may land late, or the catalog may show it late or not answer."""
MISSES: Final = 2
"""Moments that a commit may miss; then it is sent whenever it is ready."""
TOLD_AGAIN: Final = 10.0
"""The longest duration of a wait is published again when it grows by so many seconds."""
PASSES: Final = frozenset(
    {
        Reason.UNAVAILABLE,
        Reason.CATALOG_UNAVAILABLE,
        Reason.TABLE_UNREADABLE,
        Reason.MANIFEST_UNREADABLE,
        Reason.LOCK_UNREADABLE,
        Reason.STATE_UNWRITABLE,
        Reason.FLINK_CONVERTER,
    }
)
"""Reasons of errors that pass by themselves, in most cases within minutes."""


class MissedError(RetryError):
    """The moment of the commit has passed: it is another's turn, or the next writer may have begun. It was not sent."""


class Do(Enum):
    """What is done next."""

    LOOK = "look whether another maintenance holds its lock"
    LOOK_AT_TABLE = "look at branches and at the commits of writers"
    PREPARE = "compare with the head, leave out what others have touched, write delete files"
    RENEW = "load the table again, with a new credential; then prepare"
    MAKE = "let Iceberg make and validate a snapshot for the newest head, and check it"
    SEND = "put the snapshot on record, confirm the lease, send it once"
    SEARCH = "look in the table for what was sent"
    WATCH = "look whether the catalog rolls the commit back for a writer"
    END = "report the outcome"


@dataclass(frozen=True)
class Action:
    """`wait`: seconds before it; a stop ends the wait. `error`: why it waits; at the end, why nothing was committed, or
    None: it has landed, or nothing was left to commit. `tell`: an event to publish.
    """

    do: Do
    wait: float = 0.0
    error: FirnlineError | None = None
    tell: CommitWaits | CommitHeld | None = None


class Answer(Enum):
    """What a catalog has answered to a commit. Only the table tells what is true of it."""

    ACCEPTED = "committed"
    BEATEN = "another commit came first"
    REFUSED = "not allowed"
    HOPELESS = "neither this snapshot nor another one of the same changes"
    UNKNOWN = "no answer, or one that says nothing"


class Found(Enum):
    """Outcome of a search for what was sent."""

    LANDED = "in the branch"
    ROLLED_BACK = "the branch goes on from its parent, or an older snapshot, without it"
    MISSING = "not in the branch"
    UNANSWERED = "the table cannot be read"


# --- what is seen -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """After LOOK. `theirs`: why another maintenance goes first."""

    theirs: LaterError | None = None


@dataclass(frozen=True)
class Writers:
    """After LOOK_AT_TABLE.

    Attributes:
        theirs: Why a writer goes first.
        rhythm: Of the table's row-level writers; None: there are none, or the catalog refuses and the commit itself
            will say why.
        silent: The catalog did not answer.
        seconds: How long the look took.
    """

    theirs: LaterError | None = None
    rhythm: Rhythm | None = None
    silent: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Ready:
    """After PREPARE, RENEW and MAKE. `left`: False if nothing is left to commit. `again`: MAKE must be done once more,
    because deletes had to be copied first.
    """

    left: bool = True
    again: bool = False


@dataclass(frozen=True)
class Failed:
    """An action has failed, or the run was stopped before it; this attempt was not sent, unless the error is a
    CommitUnknownError.
    """

    error: FirnlineError


@dataclass(frozen=True)
class Answered:
    """After SEND. `error`: for people, unless it was accepted."""

    answer: Answer
    error: FirnlineError | None = None


@dataclass(frozen=True)
class Searched:
    """After SEARCH; PREPARE and MAKE may find what was sent before, too. `can_land`: something that was sent can."""

    found: Found
    can_land: bool = False


@dataclass(frozen=True)
class Watched:
    """After WATCH. `seconds`: for how long it is worth watching, by the rhythm of all writers."""

    fate: Fate
    seconds: float = 0.0


Seen = Turn | Writers | Ready | Failed | Answered | Searched | Watched


# --- the state --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """What is known before.

    Attributes:
        waits: Whether it waits for its turn, for row-level writers and for an answer; a merge of manifests does not.
        hold_seconds: How long it waits for such a writer; 0: not.
        watched: Whether the catalog may roll the commit back for a writer.
        attempts: As `ATTEMPTS`, of this table.
    """

    run_id: str
    table: TableName
    waits: bool = True
    hold_seconds: float = 0.0
    watched: bool = False
    attempts: int = ATTEMPTS

    @property
    def longest_wait(self) -> float:
        """Seconds that all waits together may last."""
        return WAIT_SECONDS + 2 * self.hold_seconds


@dataclass(frozen=True)
class Hold:
    """The wait for a writer's commit. It follows that, unless the writer is behind its schedule, or the catalog did not
    answer meanwhile: then the writer may begin the next one at once, and the wait starts again.

    Attributes:
        began: When.
        ends: When it ends if no writer commits.
        latest: When it ends in any case: twice `commit.hold_seconds` after it began.
        newest: The writers' rhythm at the last look.
        silent: Seconds without an answer of the catalog, since the newest commit.
        silent_since: When the catalog did not answer first, if it has not answered since.
        told: The end that was published last.
        after_writer: Whether a writer's commit has ended it.
    """

    began: float
    ends: float
    latest: float
    newest: Rhythm | None = None
    silent: float = 0.0
    silent_since: float | None = None
    told: float | None = None
    after_writer: bool = False

    def seen(self, seen: Writers, now: float, most_seconds: float) -> tuple[Hold, float | None]:
        """After a look, and until when to wait; None: commit now."""
        rhythm, silent = seen.rhythm, seen.seconds if seen.seconds > TURN_SECONDS else 0.0
        if self.silent_since is not None:
            silent = now - self.silent_since
        followed = self.newest is not None and rhythm is not None and rhythm.last > self.newest.last
        behind = rhythm is not None and followed and rhythm.behind
        in_time = rhythm is not None and now <= rhythm.moment_ends  # this process may have been stopped since
        in_all = silent + (0.0 if followed else self.silent)
        ends = min(self.latest, now + most_seconds) if silent or behind else self.ends
        after = followed and in_time and not behind and not in_all
        hold = replace(self, ends=ends, newest=rhythm, silent=in_all, silent_since=None, after_writer=after)
        return hold, None if after else wait_until(rhythm, now, ends - now, in_all)


@dataclass(frozen=True)
class State:
    """How far the commit is. Times are seconds since the epoch by a steady clock.

    Attributes:
        ends: Its deadline.
        then: What follows the next look at the lock: PREPARE, or MAKE if what is prepared still fits; None: a look at
            the table.
        missed: Moments that were missed.
        good_until: When the moment has passed; None: it may be sent at any time.
        silences: Errors that pass by themselves.
        attempts: At this moment, that others beat or that were refused.
        sent: Something was sent.
        answer: To what was sent last, until its outcome is known.
        searches: Looks for it.
        ending: How it ends, unless the last look tells that what was sent has landed, or can.
        landed: It is in the table.
        watched_until: When the watch of a commit ends.
    """

    rules: Rules
    ends: float
    then: Do | None = None
    missed: int = 0
    hold: Hold | None = None
    good_until: float | None = None
    silences: int = 0
    attempts: int = 0
    sent: bool = False
    answer: Answered | None = None
    searches: int = 0
    ending: Action | None = None
    landed: bool = False
    watched_until: float | None = None


Next = tuple[State, Action]


def begin(rules: Rules, now: float) -> Next:
    """The state of a commit that begins to wait, and what it does first."""
    return State(rules, now + rules.longest_wait), Action(Do.LOOK)


def decide(state: State, seen: Seen, now: float) -> Next:
    """What to do after what was seen at this moment."""
    match seen:
        case Turn():
            decided = _turn(state, seen, now)
        case Writers():
            decided = _writers(state, seen, now)
        case Ready():
            decided = _ready(state, seen, now)
        case Failed():
            decided = _failed(state, seen.error, now)
        case Answered():
            decided = _answered(state, seen)
        case Searched():
            decided = _searched(state, seen, now)
        case Watched():
            decided = _watched(state, seen, now)
    return decided


# --- when to send -----------------------------------------------------------------------------------------------------


def _turn(state: State, seen: Turn, now: float) -> Next:
    """A lock may be taken during the wait for a writer: it is looked at before and after."""
    if seen.theirs is not None:
        return _theirs(state, seen.theirs, now)
    if state.then is not None:
        return state, Action(state.then)
    rules = state.rules
    at_table = rules.waits and (rules.hold_seconds > 0 or state.missed)
    return state, Action(Do.LOOK_AT_TABLE if at_table else Do.PREPARE)


def _theirs(state: State, theirs: LaterError, now: float) -> Next:
    """Wait while it is another's turn. A lock may be taken during it. What was prepared is not sent after that."""
    if not state.rules.waits:
        return _end(state, theirs)
    if now >= state.ends:
        late = f"the rewrite was not committed in time: {theirs}"
        return _end(state, LaterError(late, reason=theirs.reason, seconds=WAIT_SECONDS))
    return _anew(state), Action(Do.LOOK, _at_most(state, TURN_SECONDS, now))


def _writers(state: State, seen: Writers, now: float) -> Next:
    if seen.theirs is not None:
        return _theirs(state, seen.theirs, now)
    rules, most = state.rules, state.rules.hold_seconds
    if not most:
        return state, Action(Do.PREPARE)
    began, wait = now - seen.seconds, _at_most(state, LOOK_SECONDS, now)
    latest = min(began + 2 * most, state.ends)
    hold = state.hold or Hold(began, min(began + most, latest), latest)
    if seen.silent and now < hold.latest:
        since = began if hold.silent_since is None else hold.silent_since
        return replace(state, hold=replace(hold, silent_since=since)), Action(Do.LOOK_AT_TABLE, wait)
    hold, until = hold.seen(seen, now, most)
    if until is not None:
        tell = hold.told is None or until > hold.told + TOLD_AGAIN
        waits = CommitWaits(rules.run_id, rules.table, until - now) if tell else None
        state = replace(state, hold=replace(hold, told=until if tell else hold.told))
        return state, Action(Do.LOOK_AT_TABLE, wait, tell=waits)
    good = good_until(seen.rhythm, now) if state.missed < MISSES else None
    state = replace(state, hold=None, good_until=good)
    if hold.told is None and not hold.silent:
        return state, Action(Do.PREPARE)
    held = CommitHeld(rules.run_id, rules.table, now - hold.began, after_writer=hold.after_writer)
    return replace(state, then=Do.PREPARE), Action(Do.LOOK, tell=held)


def _anew(state: State) -> State:
    """All that was prepared or waited for is out of date."""
    return replace(state, then=None, hold=None, good_until=None, attempts=0)


def _missed(state: State, error: MissedError, now: float) -> Next:
    """Wait for the next moment."""
    state = replace(_anew(state), missed=state.missed + 1)
    if now >= state.ends:
        return _end(state, error)
    return state, Action(Do.LOOK, _at_most(state, SOON.seconds(state.missed), now))


def _at_most(state: State, seconds: float, now: float) -> float:
    return min(seconds, max(0.0, state.ends - now))


# --- one attempt ------------------------------------------------------------------------------------------------------


def _ready(state: State, seen: Ready, now: float) -> Next:
    """Prepared, or made: what was made is sent, unless its moment has passed."""
    if not seen.left:
        return _end(state, None)
    if state.then is Do.MAKE and not seen.again:
        if state.good_until is not None and now > state.good_until:
            late = f"the commit of run {state.rules.run_id} was prepared too late after a writer's commit"
            return _missed(state, MissedError(late, reason=Reason.COMMIT_REFUSED), now)
        return state, Action(Do.SEND)
    if seen.again:
        what = f"new deletes or a rollback arrived in each attempt to commit run {state.rules.run_id}"
        return _attempt(state, Action(Do.MAKE), ReplanError(what, reason=Reason.CONFLICT), now)
    return replace(state, then=Do.MAKE), Action(Do.MAKE)


def _failed(state: State, error: FirnlineError, now: float) -> Next:
    """By class and reason: try again what may succeed, at once or later; else end."""
    if state.landed or state.ending is not None:
        return _ended(state, state.ending, Searched(Found.UNANSWERED))
    was_prepared, state = state.then is Do.MAKE, replace(state, then=None)
    if isinstance(error, MissedError):
        return _missed(state, error, now)
    if was_prepared and isinstance(error, ReplanError) and error.reason is Reason.CONFLICT:
        return _attempt(replace(state, then=Do.PREPARE), Action(Do.LOOK), error, now)
    if isinstance(error, RetryError) and error.reason is Reason.CREDENTIALS_EXPIRED:
        wait = _at_most(state, SOON.seconds(state.attempts), now)
        return _attempt(state, Action(Do.RENEW, wait), error, now)
    passes = isinstance(error, RetryError) and error.reason in PASSES and state.rules.waits
    if not passes or now >= state.ends:
        return _end(state, error)
    state = replace(_anew(state), silences=state.silences + 1)
    return state, Action(Do.LOOK, _at_most(state, SOON.seconds(state.silences), now), error)


def _attempt(state: State, action: Action, error: FirnlineError, now: float) -> Next:
    """The next attempt at this moment, unless there were too many, or it is too late: the table is too busy now."""
    state = replace(state, attempts=state.attempts + 1)
    if state.attempts >= state.rules.attempts or now + action.wait > state.ends:
        return _end(state, error)
    return state, action


def _answered(state: State, seen: Answered) -> Next:
    """Look in the table after every answer. A refusal may answer a retry of the HTTP client, whose first request
    was committed; and a catalog has reported success without a commit (apache/iceberg 17202).
    """
    state = replace(state, sent=True, answer=seen, searches=0)
    if seen.answer is Answer.HOPELESS:
        return _end(state, seen.error)
    return state, Action(Do.SEARCH)


def _searched(state: State, seen: Searched, now: float) -> Next:
    if seen.found is Found.LANDED:
        return _landed(state, now)
    if state.ending is not None:
        return _ended(state, state.ending, seen)
    if seen.found is Found.ROLLED_BACK:
        return _rolled_back(state, now)
    return _not_found(replace(state, searches=state.searches + 1), seen.found is Found.MISSING, now)


def _not_found(state: State, is_missing: bool, now: float) -> Next:
    answer, error = (state.answer.answer, state.answer.error) if state.answer else (None, None)
    if state.searches < SEARCHES and not (is_missing and answer is Answer.BEATEN):
        return state, Action(Do.SEARCH, SOON.seconds(state.searches))
    if error is None or not is_missing or answer not in (Answer.BEATEN, Answer.REFUSED):
        return state, Action(Do.END, error=_unknown(state, error))
    if answer is Answer.REFUSED and not state.rules.waits:
        return _end(state, error)
    # what is prepared is made once more for the new head: Iceberg validates what came in between
    told = error if state.attempts >= USUAL_RACES else None
    again = Action(Do.LOOK, SOON.seconds(state.attempts + 1), told)
    return _attempt(replace(state, then=Do.MAKE, answer=None), again, error, now)


# --- the outcome ------------------------------------------------------------------------------------------------------


def _landed(state: State, now: float) -> Next:
    watched = state.rules.watched and state.ending is None and now < state.ends
    return replace(state, landed=True, answer=None), Action(Do.WATCH if watched else Do.END)


def _watched(state: State, seen: Watched, now: float) -> Next:
    """Until another commit builds on ours, or has taken its place, or no writer is expected any more."""
    if seen.fate is Fate.ROLLED_BACK:
        return _rolled_back(state, now)
    until = state.watched_until
    if until is None:
        until = min(now + min(state.rules.hold_seconds, seen.seconds), state.ends)
    if seen.fate is Fate.STAYS or now >= until:
        return state, Action(Do.END)
    return replace(state, watched_until=until), Action(Do.WATCH, LOOK_SECONDS / 2)


def _rolled_back(state: State, now: float) -> Next:
    """Send it again right after the writer's commit: its next statement has not begun."""
    state = State(state.rules, state.ends, then=Do.PREPARE, sent=True)
    if now >= state.ends:
        what = f"{state.rules.table}: the catalog rolls the commit back again and again for writers: they commit too"
        return _end(state, RetryError(f"{what} often now", reason=Reason.COMMIT_REFUSED))
    return state, Action(Do.LOOK)


def _end(state: State, error: FirnlineError | None) -> Next:
    """End without a commit. If something was sent, one look tells whether it has landed since, or still can."""
    end = Action(Do.END, error=error)
    if not state.sent or isinstance(error, CommitUnknownError):
        return state, end
    return replace(state, ending=end), Action(Do.SEARCH)


def _ended(state: State, end: Action | None, seen: Searched) -> Next:
    """What a catalog has accepted is not gone because the table does not show it.

    Where nothing is left, or the work is planned again, what was sent need not be settled: it can land in the place of
    the next commit, not beside it, and its files stay on record.
    """
    if end is None:
        return state, Action(Do.END)
    is_over = not seen.can_land or end.error is None or isinstance(end.error, ReplanError)
    is_gone = seen.found in (Found.MISSING, Found.ROLLED_BACK) and is_over
    accepted = state.answer is not None and state.answer.answer is Answer.ACCEPTED
    return state, end if is_gone and not accepted else Action(Do.END, error=_unknown(state, end.error))


def _unknown(state: State, error: FirnlineError | None) -> CommitUnknownError:
    what = f"whether run {state.rules.run_id} was committed is unknown"
    unknown = CommitUnknownError(
        f"{what}{f' ({error})' if error else ''}; nothing is deleted until the sweep finds out",
        reason=error.reason if isinstance(error, RetryError) else None,
    )
    unknown.__cause__ = error
    return unknown
