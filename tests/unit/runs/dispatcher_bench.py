"""A dispatcher whose work a test does step by step, and tables with debt for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.partitions import PartitionKey
from compactor.patience.holds import Hold, Holds, What
from compactor.planning.budget import Charge, Grant, Spent
from compactor.runs.dispatcher import Dispatcher, Gate, TableQueue
from compactor.runs.lifelines import Lifelines
from compactor.runs.slots import SlotPool
from compactor.runs.usage import HourOfUsage
from compactor.runs.work_order import Limits
from compactor.settings.limits import LimitSettings
from compactor.table_names import TableName

KEY = PartitionKey(0, "[1]")
PATIENCE = 10.0


def debt(name: str, snapshot: int = 1, *, due: bool = True, since: float | None = 0.0, small: int = 5) -> TableDebt:
    partition = PartitionDebt(KEY, {"p": 1}, None, PartitionCounts(small, small, small, small), due, "test")
    return TableDebt(
        TableName("lake", ("db",), name), snapshot, {KEY: partition}, acted_on=True, due_since=since if due else None
    )


class Bench:
    """A dispatcher over a board, its work done step by step: every call waits until it is told how it ends."""

    def __init__(
        self,
        lanes: int,
        slots: SlotPool | None = None,
        limits: LimitSettings = LimitSettings(),  # noqa: B008
    ) -> None:
        self.board = DebtBoard(Holds(lambda: self.now))
        self.refused: set[str] = set()
        self.paused: set[str] = set()
        self.held_until = 0.0
        self.cost: Spent | None = None
        self.usage = HourOfUsage()
        self.now = 100.0
        self.calls: list[str] = []
        self.running: list[str] = []
        self.most_at_once: dict[str, int] = {}
        self.stop_seen = threading.Event()
        self.steady = 0.0
        self.lifelines = Lifelines(lambda: self.steady)
        self._endings: dict[str, Exception | None] = {}
        self._closing = False
        self._changed = threading.Condition()
        gate = Gate(
            may_start=lambda table: table.name not in self.refused,
            paused=lambda table: table.name in self.paused,
            held_until=lambda _table: self.held_until,
        )
        queue = TableQueue(self.board, 10, Limits(limits), self.usage, gate)
        self.dispatcher = Dispatcher(queue, self._work, concurrent_runs=lanes, slots=slots, lifelines=self.lifelines)

    def _work(self, debt: TableDebt, stopping: Callable[[], bool], _grant: Grant, charge: Charge) -> None:
        name = debt.table.name
        with self._changed:
            self.calls.append(name)
            self.running.append(name)
            self.most_at_once[name] = max(self.most_at_once.get(name, 0), self.running.count(name))
            self._changed.notify_all()
            while name not in self._endings and not self._closing:
                if stopping():
                    self.stop_seen.set()
                self._changed.wait(0.01)
            self.running.remove(name)
            ending = self._endings.pop(name, None)
            self._changed.notify_all()
        if self.cost is not None:
            charge(self.cost)
        if ending is not None:
            raise ending

    def put(self, *debts: TableDebt) -> None:
        for one in debts:
            self.board.put(one)
        self.dispatcher.wake()

    def end(self, name: str, ending: Exception | None = None) -> None:
        """Let the running call of `name` end, and wait until the dispatcher has taken note."""
        table = debt(name).table
        before = self.ended(table)
        with self._changed:
            self._endings[name] = ending
            self._changed.notify_all()
        self.until(lambda: self.ended(table) is not before)

    def ended(self, table: TableName) -> Hold | None:
        """What the last run of the table has left."""
        return self.board.holds.known(What.TABLE, table).get(None)

    def close(self) -> bool:
        """Let all calls end, also those that only begin now; whether the dispatcher has stopped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self.dispatcher.stop(PATIENCE)

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def called(self, calls: int) -> None:
        self.until(lambda: len(self.calls) >= calls)

    def nothing_more(self, calls: int) -> None:
        """A wake changes nothing: still `calls` calls."""
        self.dispatcher.wake()
        time.sleep(0.05)
        assert len(self.calls) == calls
