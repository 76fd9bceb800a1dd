"""Wait for what the service does, with a limit: what takes longer is reported, not an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tests.benchmarks.fleet.commits import Commit
from tests.benchmarks.fleet.latency import counted_by_table
from tests.benchmarks.fleet.site import Service

LOOK_SECONDS = 0.5
DRAIN_SECONDS = 120.0


def wait_until(service: Service, done: Callable[[], bool], seconds: float, every: float = LOOK_SECONDS) -> bool:
    """Whether it came to be in time, and the service was still there."""
    deadline = time.monotonic() + seconds
    while not done():
        if not service.running or time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def first_counts(service: Service, tables: Collection[str], seconds: float) -> dict[str, float]:
    """When each of these tables was counted for the first time; waits for all."""
    counted: dict[str, float] = {}

    def all_counted() -> bool:
        for event in service.events("LedgerUpdated"):
            if event["snapshot_id"] is not None and event["table"] in tables:
                counted.setdefault(event["table"], event["at"])
        return len(counted) == len(tables)

    wait_until(service, all_counted, seconds)
    return counted


def drained(service: Service, chains: Sequence[Sequence[Commit]], seconds: float = DRAIN_SECONDS) -> bool:
    """Wait until the ledger has counted the last commit of each table."""
    commits = [commit for chain in chains for commit in chain]
    last = [chain[-1] for chain in chains if chain]

    def all_counted() -> bool:
        counted = counted_by_table(service.events("LedgerUpdated"), commits)
        return all(any(each.number >= commit.number for each in counted[commit.table]) for commit in last)

    return wait_until(service, all_counted, seconds)


def counted_at(service: Service, table: str, snapshot_id: int | None) -> float | None:
    """When the ledger had counted this snapshot of a table (None: any)."""
    updates: list[dict[str, Any]] = service.events("LedgerUpdated")
    wanted = (each["at"] for each in updates if each["table"] == table and _is(each["snapshot_id"], snapshot_id))
    return next(wanted, None)


def _is(counted: int | None, snapshot_id: int | None) -> bool:
    return counted is not None and snapshot_id in (None, counted)
