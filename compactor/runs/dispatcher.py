"""The dispatcher: which due table is rewritten next. Bounded, fair, one run per table at a time, backs off on failure.

A run starts when it will soon have a rewrite slot: with more runs beside each other, each would only be slower.

`work` gets a grant, what it may cost, and charges each cost when it arises; the limits of work_order.py count with
both.
`waiting` is pure; `Dispatcher` holds the threads. After a run, a table waits until the debt board has news of it (a
newer snapshot, or other due partitions); after a failure it waits for its back-off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

from compactor.debt.board import DebtBoard, TableDebt
from compactor.errors import FirnlineError, LaterError, StoppedError
from compactor.patience.backoff import LATER, Backoff
from compactor.patience.holds import Holds, Key, What
from compactor.planning.budget import Charge, Grant, Spent
from compactor.reasons import Reason
from compactor.redaction import hide
from compactor.runs.lifelines import Lifelines
from compactor.runs.slots import SlotPool
from compactor.runs.usage import HourOfUsage
from compactor.runs.work_order import STARVING_SECONDS, Budget, Limits, rank, reserved
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
LONGEST_FRUITLESS_SECONDS = 3600.0
"""A table whose run fails again waits as long as the run took, at most this: each attempt writes all outputs again,
also if the catalog refuses every commit."""
REQUEST_PAUSE_SECONDS = 10.0
"""Between two attempts at a request that must wait for a change of its table."""
NO_LIMITS = Limits()
LEFT_BEHIND = (Reason.FLINK_LOCK, Reason.UNPUBLISHED)
"""A lock or a branch for which a table waits may be of a job that is gone: such a table counts as late."""


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

    From the second failure on it waits at least as long as the run took, so that half of the time at most is in vain.
    """
    fruitless = min(took, LONGEST_FRUITLESS_SECONDS) if holds.tries(_key(debt)) else 0.0
    holds.fail(_key(debt), why, backoff, least_seconds=fruitless)


def hold_later(holds: Holds, debt: TableDebt, later: LaterError) -> None:
    """The table waits: for its next change or a time, or for the longest back-off; a request for a moment."""
    if later.seconds is None:
        seconds, basis = LATER.longest_seconds, None
    elif debt.requested:
        seconds, basis = min(later.seconds, REQUEST_PAUSE_SECONDS), None
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


class Dispatcher:
    """Runs `work(debt, stopping, grant, charge)` for due tables in a few threads; on failure it raises FirnlineError.

    One thread chooses; others, started when they are needed, do the work. `slots`: without room in it no further run
    starts; None: only `concurrent_runs` counts.
    """

    def __init__(
        self,
        board: DebtBoard,
        work: Callable[[TableDebt, Callable[[], bool], Grant, Charge], object],
        *,
        concurrent_runs: int,
        first_backoff_seconds: float,
        limits: Limits = NO_LIMITS,
        usage: HourOfUsage | None = None,
        slots: SlotPool | None = None,
        may_start: Callable[[TableName], bool] = lambda _table: True,
        paused: Callable[[TableName], bool] = lambda _table: False,
        held_until: Callable[[TableName], float] = lambda _table: 0.0,
        lifelines: Lifelines | None = None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`usage`: what the last hour cost; an empty hour if None. Runs are charged there.

        `may_start`: whether a run of this table may begin now: it is this service's, and its catalog answers.

        `paused`: whether a person has paused the table: no run of it begins, and a running one is asked to end.
        `held_until`: when it was paused last (seconds since the epoch): until then it was not late.
        """
        self._board = board
        self._paused = paused
        self._held_until = held_until
        self._may_start = may_start
        self._work = work
        self._limit = concurrent_runs
        self._backoff = replace(LATER, first_seconds=first_backoff_seconds)
        self._limits = limits
        self._usage = usage or HourOfUsage()
        self._clock = board.holds.clock
        self._changed = threading.Condition()
        self._holds = board.holds
        self._running: set[TableName] = set()
        self._lost: set[TableName] = set()
        self._lifelines = lifelines or Lifelines()
        self._ticks = ticks
        self._beat = ticks()
        self._stopping = self._draining = False
        self._chooser = threading.Thread(target=self._choose_all, name="dispatcher", daemon=True)
        self._workers: list[threading.Thread] = []
        self._chosen: SimpleQueue[tuple[TableDebt, Grant] | None] = SimpleQueue()
        self._slots = slots
        if slots is not None:
            slots.when_freed(self.wake)

    def start(self) -> None:
        """Start choosing."""
        self._chooser.start()

    def wake(self) -> None:
        """The board has changed: look again."""
        with self._changed:
            self._changed.notify_all()

    def limit(self, limits: Limits) -> None:
        """Other limits hold from now on. What the last hour cost still counts."""
        with self._changed:
            self._limits = limits
            self._changed.notify_all()

    def drain(self) -> None:
        """Start no more runs; running ones go on to their ends."""
        with self._changed:
            self._draining = True

    @property
    def drained(self) -> bool:
        """Whether `drain` was called and no run is under way. A run that hangs and was given up is not waited for."""
        with self._changed:
            return self._draining and not self._running

    def stop(self, seconds: float) -> bool:
        """Take no more work, ask running work to end, and wait; False when something still runs after `seconds`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + seconds
        if self._chooser.ident is not None:
            self._chooser.join(max(0.0, deadline - time.monotonic()))  # it starts no more workers
        workers = list(self._workers)
        for _ in workers:
            self._chosen.put(None)
        for thread in workers:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in (self._chooser, *workers))

    @property
    def status(self) -> Work:
        """The queue now. Tables that fail repeatedly count as due, although most of the time they back off or run."""
        now, tables = self._clock(), self._open()
        with self._changed:
            ready = waiting(tables, self._holds, self._running)
            working = frozenset(table for table in self._running if not self._holds.tries(Key(What.TABLE, table)))
            running, lost = len(self._running), tuple(sorted(self._lost))
        unsettled = [debt for debt in tables if debt.acted_on and debt.has_work and not self._is_settled(debt)]
        limits = self._limits
        usage = limits.usage(self._usage.recent(now), now)
        ages = {debt.table: limits.hours.seconds(self._late_from(debt, now), now) for debt in unsettled}
        budgets, quiet = limits.budgets(usage), limits.is_quiet(now)
        limited, capped = (0, 0) if quiet else limits.held_back(ready, usage, now)
        return Work(
            queued=len(ready),
            running=running,
            oldest_due_seconds=max(ages.values(), default=0.0),
            lost=lost,
            working=working,
            late=sum(age > STARVING_SECONDS and table not in working for table, age in ages.items()),
            limited=limited,
            capped=capped,
            budgets=budgets,
            quiet=quiet,
        )

    @property
    def hangs_seconds(self) -> float:
        """How long the thread that chooses has not looked at the board: seconds at most, unless it hangs."""
        return self._ticks() - self._beat

    def _choose_all(self) -> None:
        while (chosen := self._next()) is not None:
            self._chosen.put(chosen)
            if len(self._workers) - len(self._lost) < len(self._running):
                worker = threading.Thread(target=self._serve, name=f"run-{len(self._workers)}", daemon=True)
                self._workers.append(worker)
                worker.start()

    def _serve(self) -> None:
        while (chosen := self._chosen.get()) is not None:
            debt, grant = chosen
            begun = self._ticks()
            try:
                self._work(debt, partial(self._must_stop, debt.table), grant, partial(self._charge, debt.table))
                settle(self._holds, settled_by(debt, self._board.get(debt.table)))
            except StoppedError as stopped:  # once the table is switched on again, the same snapshot is due
                self._holds.hold(_key(debt), str(stopped), self._clock() + self._backoff.first_seconds)
            except LaterError as later:
                hold_later(self._holds, debt, later)
                if later.reason not in LEFT_BEHIND:
                    self._board.left_to_others(debt.table)
            except Exception as error:
                if not isinstance(error, FirnlineError):  # else the worker published it as an event
                    LOG.exception("%s: the run failed with an unexpected error", debt.table)
                hold_failed(self._holds, debt, hide(str(error)), self._backoff, self._ticks() - begun)
            finally:
                self._end(debt.table)

    def _is_settled(self, debt: TableDebt) -> bool:
        hold = self._holds.held(_key(debt), known_of(debt))
        return hold is not None and hold.basis is not None

    def _must_stop(self, table: TableName) -> bool:
        return self._stopping or self._paused(table)

    def _late_from(self, debt: TableDebt, now: float) -> float:
        return max(debt.due_since or now, self._held_until(debt.table))

    def _open(self) -> tuple[TableDebt, ...]:
        """Tables with work that are not paused."""
        return tuple(debt for debt in self._board.with_work() if not self._paused(debt.table))

    def _end(self, table: TableName) -> None:
        self._lifelines.ended(table)  # and its slot: before another run of the table can begin
        if self._slots is not None:
            self._slots.end(str(table))
        with self._changed:
            if self._board.get(table) is None:
                self._holds.release(What.TABLE, table)  # it was dropped, or is another service's
            self._running.discard(table)
            self._lost.discard(table)
            self._usage.release(table)
            self._changed.notify_all()

    def _charge(self, table: TableName, spent: Spent) -> None:
        self._usage.charge(table, self._clock(), spent)

    def _next(self) -> tuple[TableDebt, Grant] | None:
        with self._changed:
            while not self._stopping:
                self._beat = self._ticks()
                self._give_up_lost()
                chosen = self._choose(self._clock())
                if chosen is not None:
                    return chosen
                self._changed.wait(timeout=1.0)  # back-offs end by the clock, not by a notification
            return None

    def _give_up_lost(self) -> None:
        """Release the lane and the slots of a run that hangs. Its table waits until its thread ends after all."""
        for table in [each for each in self._running if self._lifelines.is_lost(each)]:
            LOG.error(
                "%s: its run makes no progress and does not stop; it is given up. Its outputs are kept, because its "
                "commit may still arrive. Restart firnline to compact this table again", table,
            )  # fmt: skip
            self._running.discard(table)
            self._lost.add(table)
            self._usage.release(table)
            if self._slots is not None:
                self._slots.evict(str(table))

    def _choose(self, now: float) -> tuple[TableDebt, Grant] | None:
        """The first waiting table that slots and limits let start, now marked as running, with its grant; else None."""
        busy = len(self._running) >= self._limit or (self._slots is not None and not self._slots.has_room)
        if self._draining or busy:
            return None
        usage = self._limits.usage(self._usage.recent(now), now)
        tables = waiting(self._open(), self._holds, self._running | self._lost)
        allowed = self._limits.next_of(tables, usage, now, self._may_start)
        if allowed is None:
            return None
        grant = self._limits.grant(allowed, usage)
        self._running.add(allowed.table)
        self._lifelines.moved(allowed.table)
        if self._slots is not None:
            self._slots.announce(str(allowed.table))
        self._usage.reserve(reserved(allowed, grant, now))
        return allowed, grant
