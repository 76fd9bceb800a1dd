"""Cases that share one service over the fleet: its start, commits (a), a sweep (c), idle (e)."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.fleet.catalog_calls import LISTS, LOOKS, Call, by_kind
from tests.benchmarks.fleet.commits import commits_of
from tests.benchmarks.fleet.latency import batches, latencies
from tests.benchmarks.fleet.processes import Memory, machine_seconds, peaks, settle
from tests.benchmarks.fleet.site import CATALOG, Service, Site, interleaved
from tests.benchmarks.fleet.waits import LOOK_SECONDS, drained, first_counts

SHARED = ("a", "c", "e")
"""In this order: idling comes last."""
QUIET_SECONDS = 20.0
SETTLE_SECONDS = 300.0


@dataclass
class FleetCases:
    """The chosen cases, run one after the other. `say` prints a line of progress, `results` takes what each found."""

    site: Site
    sizes: Namespace
    say: Callable[[str], None]
    results: dict[str, Any]

    def run(self, cases: Collection[str]) -> None:
        sections: dict[str, Any] = {"service": {"sweep_seconds": self.sizes.sweep_seconds}}
        with self.site.service("fleet", **sections) as (service, topic):
            self.results["start"] = self._start(service)
            for case in (each for each in SHARED if each in cases):
                self.say(f"case {case} …")
                self.results[case] = {"a": self._commits, "c": self._sweep, "e": self._idle}[case](service, topic)
                service.must_run()

    def _start(self, service: Service) -> dict[str, Any]:
        """Until each table is counted for the first time."""
        ready, tables = time.time(), {f"{CATALOG}.{'.'.join(name)}" for name in self.site.fleet.heads}
        counted = first_counts(service, tables, self.sizes.start_seconds)
        if len(counted) < len(tables):
            self.say(f"only {len(counted)} of {len(tables)} tables were counted")
        settle(service.tree, SETTLE_SECONDS)
        calls = self.site.proxy.between(service.started, time.time())
        return {
            "ready_seconds": ready - service.started,
            "tables": len(counted),
            "counted_seconds": max(counted.values(), default=ready) - ready,
            "calls": by_kind(calls),
            "memory": _memory(service.tree.memory()),
        }

    def _commits(self, service: Service, topic: str) -> dict[str, Any]:
        """(a) Commits of many tables at an even rate."""
        sizes = self.sizes
        tables = self.site.fleet.shape.names[: sizes.busy_tables]
        total = int(sizes.rate * sizes.seconds)
        share = [total // len(tables) + (number < total % len(tables)) for number in range(len(tables))]
        started = time.monotonic()
        chains = [commits_of(self.site.fleet, table, count) for table, count in zip(tables, share, strict=True)]
        self.say(f"{total} commits of {len(tables)} tables are at hand after {time.monotonic() - started:.0f} s")
        settle(service.tree, SETTLE_SECONDS)
        before, all_before, start = service.tree.processor_seconds(), machine_seconds(), time.time()
        with peaks(service.tree, every=2.0) as most:
            published = self.site.play(topic, interleaved(chains), sizes.rate)
            used, seconds = service.tree.processor_seconds() - before, time.time() - start
            used_by_all = machine_seconds() - all_before
            drained(service, chains)
        end = time.time()
        calls = self.site.proxy.between(start, end)
        found = latencies(published, service.events("LedgerUpdated"), calls, end)
        return {
            "events": len(published),
            "seconds": published[-1].at - published[0].at,
            "event_to_ledger": found.event_to_ledger,
            "not_counted": found.missing,
            "event_to_catalog_call": found.event_to_catalog,
            "catalog_call": found.catalog_call,
            "catalog_answer_to_ledger": found.catalog_to_ledger,
            "batches": batches(service.events(), start, end),
            "looks": sum(start <= event["at"] <= end for event in service.events("LedgerUpdated")),
            "calls": by_kind(calls),
            "cores": used / seconds,
            "cores_of_the_machine": used_by_all / seconds,
            "most_memory": {**most.rss, "total_pss": most.total_pss},
        }

    def _sweep(self, service: Service, _topic: str) -> dict[str, Any]:
        """(c) A sweep of unchanged tables, requested by a signal, as the catalog sees it."""
        start = time.time()
        service.sweep()
        processor = service.tree.processor_seconds()
        calls, end = self._until_all_are_seen(start)
        used = service.tree.processor_seconds() - processor
        return {
            "tables": len({call.table for call in calls if call.kind in LOOKS}),
            "seconds": end - start,
            "calls": len(calls),
            "calls_by_kind": by_kind(calls),
            "processor_seconds": used,
            "batches": batches(service.events(), start, time.time()),
        }

    def _until_all_are_seen(self, start: float) -> tuple[list[Call], float]:
        """Calls of a sweep, and when the first look at the last table was answered."""
        wanted = {".".join(name) for name in self.site.fleet.heads}
        deadline = time.monotonic() + self.sizes.start_seconds
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.time()
            calls = self.site.proxy.between(start, now)
            first: dict[str, float] = {}
            for call in calls:
                if call.kind in LOOKS and call.table in wanted:
                    first.setdefault(call.table, call.answered)
            latest = max((call.answered for call in calls), default=start)
            if len(first) == len(wanted) or now - latest > 3 * QUIET_SECONDS or time.monotonic() > deadline:
                end = max(first.values(), default=start)
                time.sleep(QUIET_SECONDS)  # calls beside the looks, or a second look at a table
                return self.site.proxy.between(start, end + QUIET_SECONDS), end

    def _idle(self, service: Service, _topic: str) -> dict[str, Any]:
        """(e) Nothing happens, sweeps apart."""
        settle(service.tree, SETTLE_SECONDS)
        before, all_before, start = service.tree.processor_by_name(), machine_seconds(), time.time()
        most = Memory()
        while (left := start + self.sizes.idle_seconds - time.time()) > 0:
            time.sleep(min(left, 10.0))
            most = max(most, sum(service.tree.memory().values(), Memory()), key=lambda each: each.pss)
            service.must_run()
        after, end = service.tree.processor_by_name(), time.time()
        calls = self.site.proxy.between(start, end)
        used = {name: after[name] - before.get(name, 0.0) for name in after}
        return {
            "seconds": end - start,
            "sweeps": _sweeps(calls),
            "processor_seconds": used,
            "processor_seconds_of_the_machine": machine_seconds() - all_before,
            "percent_of_a_core": 100 * sum(used.values()) / (end - start),
            "memory": _memory(service.tree.memory()),
            "most_pss": most.pss,
            "calls": by_kind(calls),
        }


def _sweeps(calls: list[Call]) -> int:
    """Lists of namespaces that follow no other within ten seconds."""
    times = sorted(call.started for call in calls if call.kind == LISTS)
    return sum(index == 0 or at - times[index - 1] > 10 for index, at in enumerate(times))


def _memory(found: dict[str, Memory]) -> dict[str, Any]:
    total = sum(found.values(), Memory())
    return {"total_rss": total.rss, "total_pss": total.pss, **{name: each.rss for name, each in found.items()}}
