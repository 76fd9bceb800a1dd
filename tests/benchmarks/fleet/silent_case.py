"""Case f: a second catalog that accepts connections and never answers, beside commits of the first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.fleet.catalog_calls import by_kind, catalog_proxy
from tests.benchmarks.fleet.catalog_proxy import NO_ANSWER
from tests.benchmarks.fleet.commits import Commit, commits_of
from tests.benchmarks.fleet.latency import Latencies, batches, latencies
from tests.benchmarks.fleet.processes import machine_seconds, settle
from tests.benchmarks.fleet.site import CATALOG, Service, Site, interleaved
from tests.benchmarks.fleet.sizes import Sizes
from tests.benchmarks.fleet.waits import drained, first_counts

SILENT = "silent"
OTHERS = "db[1-9]*.*"
"""Tables that neither catalog shows: both show the tables of one namespace."""
SETTLE_SECONDS = 120.0
EVENTS_PER_SECOND = 1.0


def silent_catalog(site: Site, sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    """Event → ledger of the first catalog's tables, while both answer and while the second is silent."""
    shown = [name for name in site.fleet.shape.names if name[0] == "db0"]
    tables = shown[: sizes.busy_tables]
    share = max(1, int(sizes.rate * sizes.silent_seconds) // len(tables))
    chains = [commits_of(site.fleet, table, 2 * share) for table in tables]
    with catalog_proxy(site.folder / "silent-proxy", site.upstream, site.delay_ms) as second:
        sections: dict[str, Any] = {
            "catalogs": {SILENT: {"type": "rest", "uri": second.uri, "warehouse": site.fleet.warehouse}},
            "tables": {"exclude": [OTHERS]},
            "service": {"sweep_seconds": min(sizes.sweep_seconds, sizes.silent_seconds)},
        }
        with site.service("silent", **sections) as (service, topic):
            names = {f"{catalog}.{'.'.join(name)}" for catalog in (CATALOG, SILENT) for name in shown}
            counted = first_counts(service, names, sizes.start_seconds)
            say(f"{len(counted)} tables of two catalogs are counted; commits while both answer …")
            settle(service.tree, SETTLE_SECONDS)
            normal = _play(site, service, topic, [chain[:share] for chain in chains], sizes.rate)
            say("commits while the second catalog is silent …")
            second.go_silent()
            at = time.time()
            ended = threading.Event()
            writer = threading.Thread(target=_announce, args=(site, topic, shown, ended), daemon=True)
            writer.start()
            silent = _play(site, service, topic, [chain[share:] for chain in chains], sizes.rate)
            ended.set()
            writer.join()
            unanswered = [call for call in second.between(at, time.time()) if call.status == NO_ANSWER]
            return {
                "tables": len(counted),
                "both_answer": normal[0].event_to_ledger,
                "second_is_silent": silent[0].event_to_ledger,
                "not_counted_while_silent": silent[0].missing,
                "ratio_p50": silent[0].event_to_ledger.p50 / normal[0].event_to_ledger.p50,
                "ratio_p99": silent[0].event_to_ledger.p99 / normal[0].event_to_ledger.p99,
                "calls_without_answer": by_kind(unanswered),
                "batches_both_answer": normal[1],
                "batches_second_is_silent": silent[1],
            }


def _play(
    site: Site, service: Service, topic: str, chains: list[list[Commit]], rate: float
) -> tuple[Latencies, dict[str, Any]]:
    start, before = time.time(), machine_seconds()
    published = site.play(topic, interleaved(chains), rate)
    drained(service, chains)
    end = time.time()
    found = latencies(published, service.events("LedgerUpdated"), site.proxy.between(start, end), end)
    cores = (machine_seconds() - before) / (end - start)
    return found, {"cores_of_the_machine": cores, **batches(service.events(), start, end)}


def _announce(site: Site, topic: str, tables: list[tuple[str, str]], ended: threading.Event) -> None:
    """Events of the silent catalog's tables."""
    number = 0
    while not ended.wait(1 / EVENTS_PER_SECOND):
        site.announce(topic, tables[number % len(tables)], None, time.time(), SILENT)
        number += 1
