"""The first day: many tables in debt at once. No hour has more than its caps, and no table starves."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.partitions import PartitionKey
from compactor.patience.holds import Holds
from compactor.planning.budget import CATALOG_CALLS, Grant, Spent, requests_of
from compactor.runs.dispatcher import TableQueue, settle
from compactor.runs.usage import HOUR, Cost
from compactor.runs.work_order import Limits
from compactor.settings.limits import LimitSettings
from compactor.table_names import TableName
from tests.slow import slow

MEBIBYTE = 1024 * 1024
FEW, TABLES, BUSY = 600, 3_000, 100
START = 1_767_225_600.0
KEY = PartitionKey(0, "[1]")
CAPS = {
    "bytes": Limits(LimitSettings(bytes_per_hour=60_000 * MEBIBYTE)),
    "requests": Limits(LimitSettings(requests_per_hour=60_000)),
    "catalog_calls": Limits(
        LimitSettings(catalog_calls_per_hour=300 * CATALOG_CALLS)
    ),  # below what one lane can use up
    "all": Limits(
        LimitSettings(
            bytes_per_hour=60_000 * MEBIBYTE,
            commits_per_table_and_hour=2,
            requests_per_hour=60_000,
            catalog_calls_per_hour=500 * CATALOG_CALLS,
        )
    ),
}


def debt(number: int, snapshot: int, files: int, size: int, since: float) -> TableDebt:
    counts = PartitionCounts(files, files, files * size, files * size)
    due = {KEY: PartitionDebt(KEY, {"p": 1}, None, counts, True, "test")}
    name = TableName("lake", ("db",), f"t{number:04d}")
    return TableDebt(name, snapshot, due, acted_on=True, due_since=since, counted_at=since)


@dataclass
class FirstDay:
    """The queue over its board, lane by lane, on a clock that jumps to the next thing that happens.

    What a run reads is not what the ledger made of it: up to a half less or more, but never more than its grant. It
    commits up to three times, within its grant.
    """

    limits: Limits
    lanes: int
    chance: random.Random
    tables: int = TABLES
    now: float = START
    starts: list[tuple[float, Cost]] = field(default_factory=list)
    ends: list[Cost] = field(default_factory=list)
    first_served: dict[str, float] = field(default_factory=dict)
    running: list[tuple[float, int, TableDebt, Spent]] = field(default_factory=list)
    again: deque[tuple[float, TableDebt]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.board = DebtBoard(Holds(lambda: self.now))
        self.queue = TableQueue(self.board, 1.0, self.limits)
        for number in range(self.tables):
            files, size = self.chance.randrange(2, 200), self.chance.randrange(1, 4 * MEBIBYTE)
            self.board.put(debt(number, 1, files, size, START))

    def run(self, until: float) -> None:
        """Until every table was served; busy ones are due again half a minute after their run.

        Where the limits let nothing start, two minutes pass before the dispatcher is asked again.
        """
        while len(self.first_served) < self.tables:
            assert self.now < until, f"{self.tables - len(self.first_served)} tables starve"
            while len(self.running) < self.lanes and (chosen := self.queue.choose(self.busy)) is not None:
                heapq.heappush(self.running, self._started(*chosen))
            next_look = self.running[0][0] if len(self.running) == self.lanes else self.now + 120
            while self.running and self.running[0][0] <= next_look:
                self.now, _, done, spent = heapq.heappop(self.running)
                self._ended(done, spent)
            self.now = next_look
            while self.again and self.again[0][0] <= self.now:
                _, old = self.again.popleft()
                number = int(old.table.name[1:])
                self.board.put(debt(number, (old.snapshot_id or 0) + 1, 300, 1000, self.now))

    @property
    def busy(self) -> set[TableName]:
        return {each.table for _, _, each, _ in self.running}

    def _started(self, chosen: TableDebt, grant: Grant) -> tuple[float, int, TableDebt, Spent]:
        counts = chosen.due[0].counts
        size = int(counts.small_bytes * self.chance.uniform(0.5, 1.5))
        files = max(2, int(counts.small_files * self.chance.uniform(0.5, 1.5)))
        if grant.bytes is not None:
            size = min(size, grant.bytes)
        requests = requests_of(files, 1, size)
        if grant.requests is not None:
            requests = min(requests, grant.requests)
        commits = self.chance.randrange(1, 4)  # a long run commits in parts
        if grant.commits is not None:
            commits = min(commits, grant.commits)
        spent = Spent(size, requests, CATALOG_CALLS, commits)
        self.starts.append((self.now, Cost(chosen.table, self.now, spent)))
        self.first_served.setdefault(chosen.table.name, self.now)
        return self.now + self.chance.uniform(1, 20), len(self.starts), chosen, spent

    def _ended(self, done: TableDebt, spent: Spent) -> None:
        run = Cost(done.table, self.now, spent)
        self.ends.append(run)
        self.queue.charge(run.table, run.spent)
        settle(self.board.holds, done)
        self.queue.ended(done.table)
        if int(done.table.name[1:]) < BUSY:
            self.again.append((self.now + 30, done))


def most_in_an_hour(runs: list[Cost], resource: str) -> int:
    """The most of one resource in any hour, by a window that slides over the runs."""
    window: deque[Cost] = deque()
    most = spent = 0
    for run in sorted(runs, key=lambda each: each.at):
        window.append(run)
        spent += getattr(run.spent, resource)
        while window[0].at <= run.at - HOUR:
            spent -= getattr(window.popleft().spent, resource)
        most = max(most, spent)
    return most


@pytest.mark.parametrize(
    ("which", "lanes", "tables"),
    [
        ("all", 8, FEW),
        *slow(("all", 8, TABLES), *((which, lanes, TABLES) for which in CAPS for lanes in (1, 4))),
    ],
)
def test_no_hour_has_more_than_its_caps_and_no_table_starves(which: str, lanes: int, tables: int) -> None:
    day = FirstDay(CAPS[which], lanes, random.Random(f"{which} {lanes}"), tables)
    day.run(until=START + 48 * HOUR)
    caps = {
        "bytes": day.limits.settings.bytes_per_hour,
        "requests": day.limits.settings.requests_per_hour,
        "catalog_calls": day.limits.settings.catalog_calls_per_hour,
    }
    started = [run for _, run in day.starts]
    for resource, cap in caps.items():
        if cap is not None:
            assert most_in_an_hour(day.ends, resource) <= cap
            assert most_in_an_hour(started, resource) <= cap, "also if all were spent at the start"
    if which != "all":
        assert most_in_an_hour(day.ends, which) > 0.8 * (caps[which] or 0), "a cap is there to be used"
    in_first_minutes = [run for run in started if run.at < START + 600]
    assert len(in_first_minutes) >= lanes
    most = day.limits.settings.commits_per_table_and_hour
    for number in range(BUSY if most is not None else 0):
        mine = [run for run in day.ends if run.table.name == f"t{number:04d}"]
        assert most_in_an_hour(mine, "commits") <= (most or 0)
    hours = (max(day.first_served.values()) - START) / HOUR
    print(f"{which}, {lanes} lanes: all {TABLES} tables served in {hours:.1f} h, {len(day.ends)} runs")
