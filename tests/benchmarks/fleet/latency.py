"""From published commits and the service's events to latencies: event → ledger, and where the time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.fleet.catalog_calls import LOOKS, Call
from tests.benchmarks.fleet.commits import Commit
from tests.benchmarks.fleet.site import CATALOG, Published


@dataclass(frozen=True)
class Spread:
    """Percentiles of some measurements."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        return cls(len(found), *(percentile(found, share) for share in (0.5, 0.95, 0.99, 1.0)))

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f}, p95 {self.p95:.2f}, p99 {self.p99:.2f}, max {self.max:.2f}"


def percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed; NaN if there is none."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else math.nan


@dataclass(frozen=True)
class Counted:
    """When the ledger had counted a table up to one of its commits (-1: the table as it was made)."""

    at: float
    number: int


def counted_by_table(
    updates: Iterable[Mapping[str, Any]], commits: Iterable[Commit], catalog: str = CATALOG
) -> dict[tuple[str, str], list[Counted]]:
    """What the ledger counted of each table, in order. `updates`: events of class LedgerUpdated."""
    numbers = {(commit.table, commit.snapshot_id): commit.number for commit in commits}
    found: dict[tuple[str, str], list[Counted]] = defaultdict(list)
    for update in updates:
        of, _, rest = update["table"].partition(".")
        namespace, _, name = rest.partition(".")
        if of == catalog and update["snapshot_id"] is not None:
            table = (namespace, name)
            found[table].append(Counted(update["at"], numbers.get((table, update["snapshot_id"]), -1)))
    return found


def counted_at(published: Published, counted: Sequence[Counted]) -> float | None:
    """The first time at which the ledger had counted the commit or a later one of its table."""
    return next((each.at for each in counted if each.number >= published.commit.number), None)


@dataclass(frozen=True)
class Latencies:
    """Seconds of each published event; `missing`: events whose commit was not counted until the end."""

    event_to_ledger: Spread
    missing: int
    event_to_catalog: Spread
    catalog_call: Spread
    catalog_to_ledger: Spread


def latencies(
    published: Sequence[Published], updates: Iterable[Mapping[str, Any]], calls: Iterable[Call], until: float
) -> Latencies:
    """Join events with what counted them. An event that was not counted `until` then enters with the time it waited.

    `event_to_catalog`: until the call of the catalog that the counting look made; `catalog_to_ledger`: from its answer
    until the count was published.
    """
    counted = counted_by_table(updates, [each.commit for each in published])
    looks: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.kind in LOOKS:
            looks[call.table].append(call)
    whole, before, during, after, missing = [], [], [], [], 0
    for each in published:
        at = counted_at(each, counted[each.commit.table])
        if at is None:
            missing += 1
            whole.append(until - each.at)
            continue
        whole.append(max(0.0, at - each.at))
        look = _look(looks[".".join(each.commit.table)], each.at, at)
        if look is not None:
            before.append(look.started - each.at)
            during.append(look.answered - look.started)
            after.append(at - look.answered)
    return Latencies(Spread.of(whole), missing, *map(Spread.of, (before, during, after)))


def _look(calls: Sequence[Call], published: float, counted: float) -> Call | None:
    """The first call that had to find the commit, else one under way at its publication, which may have found it."""
    possible = [call for call in calls if call.answered >= published and call.answered <= counted]
    return next((call for call in possible if call.started >= published), possible[0] if possible else None)


def batches(events: Iterable[Mapping[str, Any]], start: float, end: float) -> dict[str, Any]:
    """Micro-batches that ended in a span, by query."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["event"] == "BatchFinished" and start <= event["at"] <= end and event["input_rows"]:
            found[event["query"]].append(event)
    return {
        query: {
            "batches": len(each),
            "rows": sum(event["input_rows"] for event in each),
            "seconds": Spread.of(event["seconds"] for event in each),
        }
        for query, each in found.items()
    }
