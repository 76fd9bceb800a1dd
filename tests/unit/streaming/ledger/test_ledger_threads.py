"""Threads that look at tables: hanging looks are replaced, and no catalog holds up another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Any

import pytest

from compactor.table_names import TableName
from streaming.ledger.ledger_threads import LOOK_SECONDS, MOST_HANGING, LedgerThreads
from streaming.ledger.table_record import Asked
from tests.unit.streaming.ledger.catalog_scene import EVENT, named
from tests.unit.streaming.ledger.scene import PATIENCE_SECONDS, until


class Looks:
    """In place of the driver: looks that hang while their table is held, and fail where the test says so.

    `now`: of the clock of the threads that look.
    """

    def __init__(self) -> None:
        self.tables: Any = self  # of the driver's tables, threads ask for the catalogs alone
        self.catalogs: dict[str, Queue[TableName]] = {"lake": Queue(), "other": Queue()}
        self.held: dict[str, threading.Event] = {}
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.stale: list[str] = []
        self.listings = 0
        self.failing: set[str] = set()
        self.now = 0.0
        self.started: list[LedgerThreads] = []

    def start(self, per_catalog: int = 1) -> LedgerThreads:
        driver: Any = self
        threads = LedgerThreads(driver, per_catalog)
        threads.ticks = lambda: self.now
        self.started.append(threads)
        threads.start()
        return threads

    def put(self, *names: str, catalog: str = "lake", held: bool = False) -> None:
        for name in names:
            if held:
                self.held[name] = threading.Event()
            self.catalogs[catalog].put(named(name, catalog))

    def take(self, catalog: str, timeout: float) -> tuple[TableName, Asked] | None:
        try:
            return self.catalogs[catalog].get(timeout=min(timeout, 0.01)), EVENT
        except Empty:
            return None

    def look(self, table: TableName, _asked: Asked) -> None:
        self.begun.append(table.name)
        if table.name in self.failing:
            raise RuntimeError("a bug")
        held = self.held.get(table.name)
        assert held is None or held.wait(PATIENCE_SECONDS)
        self.ended.append(table.name)

    def hangs(self, table: TableName, _error: object) -> None:
        self.stale.append(table.name)

    def list_if_due(self, catalog: str) -> None:
        self.listings += 1
        if catalog == "other":
            raise RuntimeError("a bug")

    def close(self) -> None:
        for each in self.held.values():
            each.set()


def alive(threads: LedgerThreads) -> int:
    return len(threads._seats)


@pytest.fixture
def looks() -> Iterator[Looks]:
    made = Looks()
    yield made
    for each in made.started:
        each.stop(PATIENCE_SECONDS)


def test_a_look_that_hangs_is_replaced_and_its_table_is_stale_until_it_ends(looks: Looks) -> None:
    threads = looks.start()
    looks.put("hangs", held=True)
    until(lambda: looks.begun)
    looks.now = LOOK_SECONDS
    threads.check()
    assert threads.hanging == ()
    looks.now += 1
    threads.check()
    threads.check()
    assert (threads.hanging, looks.stale) == ((named("hangs"),), ["hangs"])
    looks.put("t")
    until(lambda: looks.ended == ["t"])
    looks.held["hangs"].set()
    until(lambda: threads.hanging == ())
    until(lambda: alive(threads) == 2)


@pytest.mark.parametrize("per_catalog", [4, 10])
def test_after_a_store_was_slow_for_long_as_many_threads_look_as_before(looks: Looks, per_catalog: int) -> None:
    """More looks hang than threads are replaced: those that were not replaced go on after their look."""
    threads, most = looks.start(per_catalog), per_catalog + MOST_HANGING
    looks.put(*(f"t{number}" for number in range(most)), held=True)
    for begun in (per_catalog, most) if per_catalog > MOST_HANGING else (*range(per_catalog, most, per_catalog), most):
        until(lambda begun=begun: len(looks.begun) == begun)  # type: ignore[misc]
        looks.now += LOOK_SECONDS + 1
        threads.check()
    assert len(threads.hanging) == most
    looks.close()
    until(lambda: len(looks.ended) == most)
    until(lambda: alive(threads) == 2 * per_catalog)
    assert threads.hanging == ()


def test_no_catalog_and_no_unexpected_failure_holds_up_another_look(looks: Looks) -> None:
    threads = looks.start()
    threads.may_list = True
    looks.put("hangs", catalog="other", held=True)
    looks.failing = {"fails"}
    looks.put("fails", "t")
    until(lambda: looks.ended == ["t"] and looks.listings > 2)
    assert alive(threads) == 2


def test_stop_waits_for_no_look_that_hangs(looks: Looks) -> None:
    threads = looks.start()
    looks.put("hangs", held=True)
    until(lambda: looks.begun)
    looks.now += LOOK_SECONDS + 1
    threads.check()
    held = looks.held.pop("hangs")
    threads.stop(PATIENCE_SECONDS)
    until(lambda: alive(threads) == 1)
    held.set()


def test_listings_begin_when_the_stream_has_fixed_its_first_offsets(looks: Looks) -> None:
    threads = looks.start()
    looks.put("t")
    until(lambda: looks.ended == ["t"])
    time.sleep(0.3)
    assert looks.listings == 0
    threads.may_list = True
    until(lambda: looks.listings)
