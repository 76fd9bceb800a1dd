"""The dispatcher: which due table is rewritten next. Bounded, fair, one run per table at a time, backs off on failure.

A run starts when it will soon have a rewrite slot: with more runs beside each other, each would only be slower.

`work` gets a grant, what it may cost, and charges each cost when it arises; the limits of work_order.py count with
both.
`TableQueue` decides; `Dispatcher` holds the threads. After a run, a table waits until the debt board has news of it (a
newer snapshot, or other due partitions); after a failure it waits for its back-off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from compactor.debt.board import DebtBoard, TableDebt
from compactor.errors import FirnlineError, LaterError, StoppedError
from compactor.patience.backoff import LATER, Backoff
from compactor.patience.holds import Holds, Key, What
from compactor.planning.budget import Charge, Grant, Spent
from compactor.reasons import Reason
from compactor.redaction import hide
from compactor.runs.lifelines import Lifelines
from compactor.runs.slots import SlotPool
from compactor.runs.usage import HOUR, HourOfUsage
from compactor.runs.work_order import STARVING_SECONDS, Budget, Limits, rank, reserved
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
NO_LIMITS = Limits()
NO_LIMIT_OF_SLOTS = 1_000_000
CHOOSER = "dispatcher"
LEFT_BEHIND = (Reason.FLINK_LOCK, Reason.UNPUBLISHED)
"""A lock or a branch for which a table waits may be of a job that is gone: such a table counts as late."""


class Ends(Enum):
    """How a dispatcher ends."""

    DRAINED = auto()
    STOPPED = auto()


@dataclass(frozen=True)
class Work:
    """The dispatcher's queue, without tables that are paused. Times in seconds.

    Attributes:
        oldest_due_seconds: How long the table that has waited longest is due, without quiet hours.
        lost: Tables whose runs hang and were given up.
        working: Tables that run and whose last run did not fail.
        late: Tables that have been due for more than an hour without quiet hours, less those in `working`.
        limited: Tables that could run now, but that the budgets of the hour hold back.
        capped: Other tables that could run now, but whose commits of the last hour leave no room for one more.
        budgets: The budgets of the hour that are limited.
        quiet: Whether these are quiet hours.
    """

    queued: int = 0
    running: int = 0
    oldest_due_seconds: float = 0.0
    lost: tuple[TableName, ...] = ()
    working: frozenset[TableName] = frozenset()
    late: int = 0
    limited: int = 0
    capped: int = 0
    budgets: tuple[Budget, ...] = ()
    quiet: bool = False


def waiting(tables: tuple[TableDebt, ...], holds: Holds, running: Collection[TableName]) -> list[TableDebt]:
    """Tables that are due or requested, switched on, neither running nor held, in the order of `rank`."""
    ready = (debt for debt in tables if debt.acted_on and debt.table not in running and _may_run(debt, holds))
    now = holds.clock()
    return sorted(ready, key=lambda debt: rank(debt, now))


def _may_run(debt: TableDebt, holds: Holds) -> bool:
    """A request waits for a time, not for a change of the table."""
    if debt.requested:
        return holds.held(_key(debt)) is None
    return debt.has_work and holds.held(_key(debt), known_of(debt)) is None


def _key(debt: TableDebt) -> Key:
    return Key(What.TABLE, debt.table)


def known_of(debt: TableDebt) -> object:
    """All that a run knows of the board: it need not run again before that changes.

    After a rollback to the snapshot before the run, only the time of the count differs; after a change of the settings,
    only the basis (declined partitions are due again) or what is due of the manifests.
    """
    return debt.snapshot_id, debt.counted_at, debt.due, debt.basis, debt.due_manifests


def settle(holds: Holds, debt: TableDebt) -> None:
    """A run has left nothing to do for `debt`."""
    holds.hold(_key(debt), "nothing is left to do until it changes", basis=known_of(debt))


def hold_failed(holds: Holds, debt: TableDebt, why: str, backoff: Backoff, took: float = 0.0) -> None:
    """One more failure: the table waits for its back-off. `took`: seconds that the run took.

    From the second failure on it waits at least as long as the run took, at most an hour, so that half of the time at
    most is in vain: each attempt writes all outputs again, also if the catalog refuses every commit.
    """
    fruitless = min(took, HOUR) if holds.tries(_key(debt)) else 0.0
    holds.fail(_key(debt), why, backoff, least_seconds=fruitless)


def hold_later(holds: Holds, debt: TableDebt, later: LaterError, moment: float) -> None:
    """The table waits: for its next change or a time, or for the longest back-off; a request for a moment (seconds)."""
    if later.seconds is None:
        seconds, basis = LATER.longest_seconds, None
    elif debt.requested:
        seconds, basis = min(later.seconds, moment), None
    else:
        seconds, basis = later.seconds, known_of(debt)
    holds.hold(_key(debt), str(later), holds.clock() + seconds, basis)


def settled_by(run: TableDebt, board: TableDebt | None) -> TableDebt:
    """The debt that a run for `run` leaves nothing to do for: without the partitions that it left alone.

    `board`: the table's debt after the run. If it was counted again, or more is due, the run did not know that.
    """
    if board is None or (board.snapshot_id, board.counted_at) != (run.snapshot_id, run.counted_at):
        return run
    known = {partition.key: partition for partition in run.due}
    is_part = all(known.get(partition.key) == partition for partition in board.due)
    return replace(run, partitions=board.partitions) if is_part else run


@dataclass(frozen=True)
class Gate:
    """Which tables may be worked on now; all, but where the service says otherwise.

    Attributes:
        may_start: Whether a run of this table may begin now: it is this service's, and its catalog answers.
        paused: Whether a person has paused the table: no run of it begins, and a running one is asked to end.
        held_until: When it was paused last (seconds since the epoch): until then it was not late.
    """

    may_start: Callable[[TableName], bool] = lambda _table: True
    paused: Callable[[TableName], bool] = lambda _table: False
    held_until: Callable[[TableName], float] = lambda _table: 0.0


class TableQueue:
    """The tables on the board in the order in which they are worked on. Runs are charged to `usage`, an empty hour if
    None. `limits` can change; what the last hour cost still counts.
    """

    def __init__(
        self,
        board: DebtBoard,
        first_backoff_seconds: float,
        limits: Limits = NO_LIMITS,
        usage: HourOfUsage | None = None,
        gate: Gate = Gate(),
    ) -> None:
        self.board = board
        self.limits = limits
        self.usage = usage or HourOfUsage()
        self.gate = gate
        self._backoff = replace(LATER, first_seconds=first_backoff_seconds)

    def choose(self, busy: Collection[TableName]) -> tuple[TableDebt, Grant] | None:
        """The first table that the limits let start, with its grant, which is reserved; None: there is none.

        `busy`: tables that run or hang.
        """
        now = self.board.holds.clock()
        usage = self.limits.usage(self.usage.recent(now), now)
        tables = waiting(self._open(), self.board.holds, busy)
        allowed = self.limits.next_of(tables, usage, now, self.gate.may_start)
        if allowed is None:
            return None
        grant = self.limits.grant(allowed, usage)
        self.usage.reserve(reserved(allowed, grant, now))
        return allowed, grant

    def charge(self, table: TableName, spent: Spent) -> None:
        """A run has cost this."""
        self.usage.charge(table, self.board.holds.clock(), spent)

    def note(self, debt: TableDebt, error: Exception | None, took: float) -> None:
        """A run for `debt` has ended after `took` seconds. `error`: how it failed; None: it did not."""
        board, holds = self.board, self.board.holds
        if error is None:
            settle(holds, settled_by(debt, board.get(debt.table)))
        elif isinstance(error, StoppedError):  # once the table is switched on again, the same snapshot is due
            holds.hold(_key(debt), str(error), holds.clock() + self._backoff.first_seconds)
        elif isinstance(error, LaterError):
            hold_later(holds, debt, error, self._backoff.first_seconds)
            if error.reason not in LEFT_BEHIND:
                board.left_to_others(debt.table)
        else:
            hold_failed(holds, debt, hide(str(error)), self._backoff, took)

    def ended(self, table: TableName) -> None:
        """No run of the table is under way any more."""
        if self.board.get(table) is None:
            self.board.holds.release(What.TABLE, table)  # it was dropped, or is another service's
        self.usage.release(table)

    def status(self, running: Collection[TableName], lost: Collection[TableName]) -> Work:
        """The queue now. Tables that fail repeatedly count as due, although most of the time they back off or run."""
        holds, limits, tables = self.board.holds, self.limits, self._open()
        now = holds.clock()
        ready = waiting(tables, holds, running)
        working = frozenset(table for table in running if not holds.tries(Key(What.TABLE, table)))
        unsettled = [debt for debt in tables if debt.acted_on and debt.has_work and not _is_settled(debt, holds)]
        usage = limits.usage(self.usage.recent(now), now)
        ages = {debt.table: limits.hours.seconds(self._late_from(debt, now), now) for debt in unsettled}
        quiet = limits.is_quiet(now)
        limited, capped = (0, 0) if quiet else limits.held_back(ready, usage, now)
        return Work(
            queued=len(ready),
            running=len(running),
            oldest_due_seconds=max(ages.values(), default=0.0),
            lost=tuple(sorted(lost)),
            working=working,
            late=sum(age > STARVING_SECONDS and table not in working for table, age in ages.items()),
            limited=limited,
            capped=capped,
            budgets=limits.budgets(usage),
            quiet=quiet,
        )

    def _late_from(self, debt: TableDebt, now: float) -> float:
        return max(debt.due_since or now, self.gate.held_until(debt.table))

    def _open(self) -> tuple[TableDebt, ...]:
        """Tables with work that are not paused."""
        return tuple(debt for debt in self.board.with_work() if not self.gate.paused(debt.table))


def _is_settled(debt: TableDebt, holds: Holds) -> bool:
    hold = holds.held(_key(debt), known_of(debt))
    return hold is not None and hold.basis is not None


class Dispatcher:
    """Runs `work(debt, stopping, grant, charge)` for due tables; on failure it raises FirnlineError.

    One thread chooses, and each run has another. `slots`: without room in it no further run starts; None: only
    `concurrent_runs` counts.
    """

    def __init__(
        self,
        queue: TableQueue,
        work: Callable[[TableDebt, Callable[[], bool], Grant, Charge], object],
        *,
        concurrent_runs: int,
        slots: SlotPool | None = None,
        lifelines: Lifelines | None = None,
    ) -> None:
        self._queue = queue
        self._work = work
        self._most = concurrent_runs
        self._slots = slots or SlotPool(NO_LIMIT_OF_SLOTS)
        self._lifelines = lifelines or Lifelines()
        self._changed = threading.Condition()
        self._running: set[TableName] = set()
        self._lost: set[TableName] = set()
        self._ends: Ends | None = None
        self._threads = {threading.Thread(target=self._choose_all, name=CHOOSER, daemon=True)}
        self._lifelines.moved(CHOOSER)
        self._slots.when_freed(self.wake)

    def start(self) -> None:
        """Start choosing."""
        (chooser,) = self._threads
        chooser.start()

    def wake(self) -> None:
        """The board has changed: look again."""
        with self._changed:
            self._changed.notify_all()

    def limit(self, limits: Limits) -> None:
        """Other limits hold from now on."""
        self._queue.limits = limits
        self.wake()

    def drain(self) -> None:
        """Start no more runs; running ones go on to their ends."""
        with self._changed:
            self._ends = self._ends or Ends.DRAINED

    @property
    def drained(self) -> bool:
        """Whether `drain` was called and no run is under way. A run that hangs and was given up is not waited for."""
        with self._changed:
            return self._ends is not None and not self._running

    def stop(self, seconds: float) -> bool:
        """Take no more work, ask running work to end, and wait; False when something still runs after `seconds`."""
        with self._changed:
            self._ends = Ends.STOPPED
            self._changed.notify_all()
            threads = [thread for thread in self._threads if thread.ident is not None]
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @property
    def status(self) -> Work:
        """The queue now."""
        with self._changed:
            running, lost = set(self._running), set(self._lost)
        return self._queue.status(running, lost)

    @property
    def hangs_seconds(self) -> float:
        """How long the thread that chooses has not looked at the board: seconds at most, unless it hangs."""
        return self._lifelines.silent_seconds(CHOOSER)

    @property
    def _is_stopped(self) -> bool:
        return self._ends is Ends.STOPPED

    def _choose_all(self) -> None:
        while not self._is_stopped:
            with self._changed:
                self._lifelines.moved(CHOOSER)
                self._give_up_lost()
                if not self._start_next() and not self._is_stopped:
                    self._changed.wait(timeout=1.0)  # back-offs end by the clock, not by a notification

    def _start_next(self) -> bool:
        """Start the run of the first waiting table that slots and limits let start; whether there is one."""
        if self._ends or len(self._running) >= self._most or not self._slots.has_room:
            return False
        chosen = self._queue.choose(self._running | self._lost)
        if chosen is None:
            return False
        table = chosen[0].table
        self._running.add(table)
        self._lifelines.moved(table)
        self._slots.announce(str(table))
        run = threading.Thread(target=self._run, args=chosen, name=f"run-{table.name}", daemon=True)
        run.start()
        self._threads = {run, *(thread for thread in self._threads if thread.is_alive())}
        return True

    def _run(self, debt: TableDebt, grant: Grant) -> None:
        table, begun, failed = debt.table, time.monotonic(), None
        try:
            try:
                self._work(debt, partial(self._must_stop, table), grant, partial(self._queue.charge, table))
            except Exception as error:
                failed = error
                if not isinstance(error, FirnlineError):  # else the worker published it as an event
                    LOG.exception("%s: the run failed with an unexpected error", table)
            self._queue.note(debt, failed, time.monotonic() - begun)
        finally:
            self._end(table)

    def _end(self, table: TableName) -> None:
        self._lifelines.ended(table)  # and its slot: before another run of the table can begin
        self._slots.end(str(table))
        with self._changed:
            self._queue.ended(table)
            self._running.discard(table)
            self._lost.discard(table)
            self._changed.notify_all()

    def _must_stop(self, table: TableName) -> bool:
        return self._is_stopped or self._queue.gate.paused(table)

    def _give_up_lost(self) -> None:
        """Release the lane and the slots of a run that hangs. Its table waits until its thread ends after all."""
        for table in [each for each in self._running if self._lifelines.is_lost(each)]:
            LOG.error(
                "%s: its run makes no progress and does not stop; it is given up. Its outputs are kept, because its "
                "commit may still arrive. Restart firnline to compact this table again", table,
            )  # fmt: skip
            self._running.discard(table)
            self._lost.add(table)
            self._queue.usage.release(table)
            self._slots.evict(str(table))
