"""The driver of the one commit loop: it carries out what `commit/decisions.py` decides, and tells what it has seen.

What is committed is a `Committable`: rewritten file groups, a conversion, a merge of manifests. After another commit
it is prepared again for the new head and sent; no data file is written twice for it, and no row is searched twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Generic

from py4j.protocol import Py4JError

from compactor.commit.decisions import (
    ATTEMPTS,
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
from compactor.commit.history import committed_id, goes_on_without, rolled_back_with
from compactor.commit.sends import Sent, can_still_land, java_state_of
from compactor.commit.statistics import carry_statistics
from compactor.commit.updates import counts_of, told
from compactor.errors import CommitUnknownError, FirnlineError, LaterError, ReplanError, RetryError, StoppedError
from compactor.events import CommitRolledBack
from compactor.iceberg.tables import TableView
from compactor.planning.budget import COMMIT_CALLS, Spent
from compactor.planning.commit_timing import writers_rhythm
from compactor.planning.rollbacks import Fate, fate_of, watch_seconds
from compactor.reasons import Reason
from compactor.runs.committable import Committable, CommitTools, Head, Landed, P, Pending
from compactor.runs.dropped_groups import expiry_explained
from compactor.runs.turns import locked, unpublished_first, writer_first
from compactor.spark.java_table import (
    COMMIT_FAILED,
    JAVA_ERRORS,
    NOT_AUTHORIZED,
    exception_class,
    first_line,
)
from compactor.whole_numbers import whole_number

LOG = logging.getLogger("firnline")
REFUSALS: Final = {
    NOT_AUTHORIZED: Reason.CREDENTIALS_EXPIRED,
    "org.apache.iceberg.exceptions.ForbiddenException": Reason.ACCESS_DENIED,
    "org.apache.iceberg.exceptions.BadRequestException": Reason.COMMIT_REFUSED,
}
"""Answers to a commit that was not carried out: Java's login has expired or lacks a right.

REST catalogs before Iceberg 1.11 also answer 400 where a commit to another branch came first.
"""
HOPELESS: Final = ("java.lang.IllegalArgument", "org.apache.iceberg.exceptions.NoSuch")
"""Answers after which the same snapshot is not sent again, nor another one made: the next would be the same."""
RETRIES: Final = "commit.retry.num-retries"
CLOCK_SIGNS: Final = ("Invalid update timestamp", "Invalid snapshot timestamp", "sorted snapshot log entries")
CLOCK_REMEDY: Final = (
    "; the clocks of this host, the catalog and the writers differ by more than a minute: set them (NTP)"
)
"""Iceberg refuses a snapshot that is more than a minute older than the one before, or newer than the catalog's time."""
UNREADABLE: Final = (Py4JError, *JAVA_ERRORS, FirnlineError)
"""Errors of reading the table: the catalog or the store does not answer, or the table is gone."""


def commit(job: Committable[P], pending: Pending, tools: CommitTools) -> Landed[P] | None:
    """Commit what `job` prepares as one snapshot on the table's branch; None: nothing was left to commit.

    Raises:
        CommitUnknownError: whether it has landed is unknown, or what was sent can still land; delete nothing.
        FirnlineError: by class the reaction; nothing was committed.
    """
    loop = CommitLoop(job, pending, tools)
    try:
        return loop.run()
    except CommitDiffersError:
        raise
    except CommitUnknownError:
        pending.charge(Spent(commits=1))
        raise
    except BaseException as error:
        if not loop.sends or isinstance(error, FirnlineError):
            loop.clean_up()
            raise
        pending.charge(Spent(commits=1))
        raise CommitUnknownError(
            f"the commit of run {pending.run_id} was interrupted ({type(error).__name__}: {error}); nothing is deleted "
            "until the sweep finds out"
        ) from error
    finally:
        pending.watch.committing.clear()


class CommitLoop(Generic[P]):
    """One commit.

    Attributes:
        prepared: Of the attempts that are not cleaned up yet.
        snapshot: The newest one that was made. `before`: the snapshots before it (`rolled_back_with`).
        sends: What was sent, each with its attempt, the snapshots before it, and Iceberg's object.
        landed: What was found.
        seconds: How long it took, without waits for others.
    """

    def __init__(self, job: Committable[P], pending: Pending, tools: CommitTools) -> None:
        self.job, self.pending, self.tools = job, pending, tools
        self.java, self.table = pending.java, pending.java.view
        self.since_epoch = tools.clock() - tools.ticks()
        self.prepared: list[P] = []
        self.prepares = 0
        self.snapshot: Any = None
        self.before: tuple[int, ...] = ()
        self.sends: dict[Sent, tuple[P, tuple[int, ...], Any]] = {}
        self.landed: Landed[P] | None = None
        self.seconds = 0.0

    def run(self) -> Landed[P] | None:
        """Do what is decided, until the end. Raises as `commit`."""
        tools, table = self.tools, self.table
        state, action = begin(
            Rules(
                self.pending.run_id,
                table.name,
                waits=self.job.waits_for_writers,
                hold_seconds=tools.settings.hold_seconds if self.job.waits_for_writers else 0.0,
                watched=bool(tools.settings.hold_seconds) and self.job.summary.rollback_on_conflict,
                attempts=max(ATTEMPTS, 1 + (whole_number(table.properties.get(RETRIES, "")) or 0)),
            ),
            self._now(),
        )
        while action.do is not Do.END:
            seen = self._seen(state, action)
            state, action = decide(state, seen, self._now())
        if action.error is not None:
            raise action.error
        landed = self.landed if state.landed else None
        if landed is None:
            self.clean_up()
        elif self.pending.record is not None and tools.records is not None:
            tools.records.note_committed(self.pending.run_id, landed.prepared.files)
        return landed

    def _now(self) -> float:
        return self.tools.ticks() + self.since_epoch

    def _seen(self, state: State, action: Action) -> Seen:
        """Carry an action out."""
        do, pending = action.do, self.pending
        self.job.stage = "hold" if do in (Do.LOOK, Do.LOOK_AT_TABLE, Do.WATCH) else "commit"
        self.tools.lifelines.moved(self.table.name)
        if action.tell is not None:
            self.tools.listener(action.tell)
        if action.error is not None:
            message = "%s: run %s is not committed yet: %s; next attempt in %.1f s"
            LOG.info(message, self.table.name, pending.run_id, action.error, action.wait)
        if do is not Do.SEARCH:  # the outcome of what was sent before is known
            pending.watch.committing.clear()
            if action.wait and pending.watch.stopped.wait(action.wait):
                return Failed(self._stopped())
        elif action.wait:
            time.sleep(action.wait)
        started = self.tools.ticks()
        try:
            with expiry_explained(self.table, self.java.snapshot_id, self.tools.catalogs):  # no wait helps
                return self._carried_out(state, do)
        except CommitDiffersError:
            raise
        except FirnlineError as error:
            return Failed(error)
        finally:
            self.seconds += self.tools.ticks() - started if self.job.stage == "commit" else 0.0

    def _carried_out(self, state: State, do: Do) -> Seen:
        match do:
            case Do.LOOK:
                seen: Seen = Turn(locked(self.table.name, self.tools.locks))
            case Do.LOOK_AT_TABLE:
                seen = self._look_at_table(state)
            case Do.WATCH:
                seen = self._watch(state)
            case Do.SEARCH:
                seen = self._search(state.answer is not None and state.answer.answer is Answer.ACCEPTED)
            case Do.SEND:
                seen = self._send()
            case Do.MAKE:
                seen = self._make()
            case _:
                if do is Do.RENEW:
                    self.java.load_anew()
                seen = self._prepare()
        return seen

    def _stopped(self) -> StoppedError:
        return StoppedError(f"{self.table.name} was switched off or paused before the commit; it was not sent")

    # --- looks --------------------------------------------------------------------------------------------------------

    def _loaded(self) -> TableView:
        self.pending.charge(Spent(catalog_calls=1))
        return self.tools.catalogs.load(self.table.name, self.table.ref)

    def _look_at_table(self, state: State) -> Writers:
        asked = self.tools.ticks()
        try:
            view = self._loaded()
            rhythm = writers_rhythm(view.history, view.properties, state.hold.newest if state.hold else None)
        except RetryError:
            return Writers(silent=True, seconds=self.tools.ticks() - asked)
        except FirnlineError:
            return Writers()  # the commit itself will say why
        theirs = self._others_first(view) if state.missed else None  # before, PREPARE asks: the plan may be void
        return Writers(theirs, rhythm, seconds=self.tools.ticks() - asked)

    def _others_first(self, view: TableView) -> LaterError | None:
        most = self.tools.most_replaces(view)
        return unpublished_first(view, self._now()) or writer_first(view, most, self.pending.run_id)

    def _watch(self, state: State) -> Watched:
        """Whether another commit builds on ours or has taken its place. Where that cannot be told, it is not watched.
        The sweep looks once more when all writers must have ended.
        """
        landed = self.landed
        if landed is None:
            return Watched(Fate.STAYS)
        try:
            history = list(self._loaded().history)
        except FirnlineError as error:  # while the catalog does not answer, no writer commits either
            goes_on = state.watched_until is not None and isinstance(error, RetryError)
            return Watched(Fate.NEWEST if goes_on else Fate.STAYS)
        fate = fate_of(history, landed.snapshot_id, self.before)
        if fate is Fate.ROLLED_BACK:
            self._rolled_back(landed.snapshot_id)
        return Watched(fate, watch_seconds(history, self._now()))

    def _rolled_back(self, snapshot_id: int) -> None:
        self.tools.listener(CommitRolledBack(self.pending.run_id, self.table.name, snapshot_id))

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _prepare(self) -> Seen:
        java, job = self.java, self.job
        self._begin_attempt()
        java.refresh()
        java.check_unchanged()
        if (known := self._sent_before()) is not None:
            return known
        now = self.tools.catalogs.load(self.table.name, self.table.ref)
        head = Head(now, self.prepares + 1, java, self.tools.cache)
        if job.waits_for_writers:
            _ = head.changes  # raises where the plan cannot be committed any more: that waits for nobody's turn
            if (later := self._others_first(now)) is not None:
                raise MissedError(str(later), reason=later.reason)
        self.prepares += 1
        prepared = job.prepare(head)
        if prepared is None:
            return Ready(left=False)
        self.prepared.append(prepared)
        return Ready()

    def _begin_attempt(self) -> None:
        """The run may have been stopped since, or the table switched off or paused."""
        if self.pending.watch.stopped.is_set() or not self.pending.switches.on:
            raise self._stopped()
        self.pending.charge(Spent(catalog_calls=COMMIT_CALLS))

    def _sent_before(self) -> Searched | None:
        """What was sent before, if the table lists it now, as read last.

        Raises:
            ReplanError: it was committed, and is in the branch no more: an expiry of that snapshot may delete its
                files. It is not sent again.
        """
        if not self.sends:
            return None
        snapshot_id = committed_id(self.java, self.sends, self.job.summary)
        if snapshot_id is not None:
            return self._has_landed(snapshot_id)
        listed = next((each for each in self.sends if self.java.handle.snapshot(each.snapshot_id) is not None), None)
        if listed is not None:
            raise ReplanError(
                f"{self.table.name} was rolled back past snapshot {listed.snapshot_id}, which has the outputs of run "
                f"{self.pending.run_id}; the next run writes others",
                reason=Reason.HISTORY_GAP,
            )
        return None

    def _make(self) -> Seen:
        java, prepared = self.java, self.prepared[-1]
        if self.sends:
            self._begin_attempt()
        java.refresh()
        if (known := self._sent_before()) is not None:  # Iceberg deletes what it has merged before when it merges again
            return known
        snapshot = prepared.update.make()
        if snapshot is None:
            return Ready(again=True)
        if (known := self._sent_before()) is not None:
            return known
        java.check_unchanged()  # `make` has refreshed the table: check the metadata that is sent against
        head = java.handle.snapshot(self.table.ref)
        if head is None or snapshot.parentId() != head.snapshotId():
            what = f"another commit came before that of run {self.pending.run_id}"
            raise ReplanError(what, reason=Reason.CONFLICT)
        prepared.check_outputs()
        self.snapshot = snapshot
        return Ready()

    def _send(self) -> Seen:
        """Send the snapshot once, against the metadata for which it was made. Whatever is answered, it may still land
        (`sends.py`). It is on record before; the lease is confirmed last: that may take long, and nothing may come
        between it and the commit.
        """
        java, snapshot, pending = self.java, self.snapshot, self.pending
        pending.watch.committing.set()  # from here on it is not interrupted
        if pending.watch.stopped.is_set() or pending.switches.stopping():
            raise self._stopped()
        sending, self.before = Sent.of(snapshot), rolled_back_with(java, snapshot)
        try:
            java.with_snapshot(snapshot)
        except JAVA_ERRORS as error:
            raise _hopeless(error, pending.run_id) from error
        self._put_on_record(sending)
        self.sends[sending] = self.prepared[-1], self.before, snapshot
        try:
            java.send(snapshot)
        except JAVA_ERRORS as error:
            return _answer(error, pending.run_id)
        shown = "the catalog reported success, but the table does not show the commit"
        return Answered(Answer.ACCEPTED, FirnlineError(shown))

    def _put_on_record(self, sending: Sent) -> None:
        """Put it on the record of the outputs, then make sure that this service may still commit."""
        record, records = self.pending.record, self.tools.records
        if record is None or records is None:
            self.tools.right.confirm()
            return
        records.renew(record, sending=sending)
        try:
            self.tools.right.confirm()
        except FirnlineError:
            records.note_unsent(record.run_id, sending)
            raise

    # --- the outcome --------------------------------------------------------------------------------------------------

    def _search(self, accepted: bool) -> Searched:
        """Look for what was sent. The catalog may not answer, or the table is gone."""
        try:
            self.java.refresh()
            snapshot_id = committed_id(self.java, self.sends, self.job.summary)
            is_gone = snapshot_id is None and accepted and goes_on_without(self.java, self.before)
            can_land = self._can_still_land()
        except UNREADABLE:
            return Searched(Found.UNANSWERED)
        if snapshot_id is not None:
            return self._has_landed(snapshot_id)
        if not is_gone:
            return Searched(Found.MISSING, can_land)
        self._rolled_back(int(self.snapshot.snapshotId()))
        return Searched(Found.ROLLED_BACK, can_land)

    def _has_landed(self, snapshot_id: int) -> Searched:
        """Note it, and do what follows a commit.

        Raises:
            CommitDiffersError: it is another snapshot than the one that was checked.
        """
        of = {each.snapshot_id: made for each, made in self.sends.items()}
        prepared, self.before, _ = of[snapshot_id]
        self.pending.charge(Spent(commits=1))
        snapshot, planned = self.java.handle.snapshot(snapshot_id), prepared.update.planned
        # None: a catalog that lists the newest snapshot alone; what was sent has been checked
        if snapshot is not None and planned is not None and counts_of(snapshot) != planned:
            raise CommitDiffersError(
                f"snapshot {snapshot_id} of run {self.pending.run_id} did {told(counts_of(snapshot))}, but the plan "
                f"would {told(planned)}; roll the table back to snapshot {self.java.snapshot_id} and report this"
            )
        self.landed = Landed(snapshot_id, prepared, self.seconds)
        sent = [made for each, (*_, made) in self.sends.items() if each.snapshot_id == snapshot_id]
        self.clean_up(sent if snapshot is None else [snapshot])
        carry_statistics(self.java, snapshot_id, self.tools.right.confirm)
        return Searched(Found.LANDED)

    def _can_still_land(self) -> bool:
        """Whether something that was sent can, as the table was read last."""
        state = java_state_of(self.java) if self.sends else None
        return state is not None and any(can_still_land(each, state) for each in self.sends)

    def clean_up(self, landed: Sequence[Any] = ()) -> None:
        """Delete the metadata files that were written, except what the table lists, its head or `landed`.

        `landed` was just found in the table; empty: nothing was. Where a catalog does not list it any more, all that
        was sent with its id is kept. Snapshots share manifests: while one that was sent can
        still land, none is deleted. Files that stay do no harm.
        """
        with suppress(*UNREADABLE):
            if not landed and self.sends:
                self.java.refresh()
            if self._can_still_land():
                return
            head = self.java.handle.snapshot(self.table.ref)
            used = [each for each in (head, *landed) if each is not None]
            while self.prepared:
                self.prepared.pop().update.clean_up(used, sent=bool(self.sends))


class CommitDiffersError(FirnlineError):
    """Reaction: **give up**: a snapshot of ours is another one than the one that was checked."""

    reason = Reason.COMMIT_DIFFERS


def _answer(error: Exception, run_id: str) -> Answered:
    kind, message = exception_class(error), first_line(error)
    if kind.startswith(HOPELESS):
        return Answered(Answer.HOPELESS, _hopeless(error, run_id))
    if kind == COMMIT_FAILED:
        beaten = f"run {run_id} was not committed: other commits came first in all attempts"
        return Answered(Answer.BEATEN, RetryError(beaten, reason=Reason.COMMIT_REFUSED))
    if kind in REFUSALS:
        refused = f"the catalog refuses to commit run {run_id}: {message}"
        return Answered(Answer.REFUSED, RetryError(refused, reason=REFUSALS[kind]))
    return Answered(Answer.UNKNOWN, FirnlineError(message))


def _hopeless(error: Exception, run_id: str) -> RetryError:
    message = first_line(error)
    remedy = CLOCK_REMEDY if any(sign in message for sign in CLOCK_SIGNS) else ""
    return RetryError(f"run {run_id} could not be committed: {message}{remedy}", reason=Reason.COMMIT_FAILED)
