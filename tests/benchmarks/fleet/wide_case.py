"""Case d: one table whose million partitions all have debt; memory of the service before, at its peak and after."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.fleet.catalog_calls import by_kind
from tests.benchmarks.fleet.processes import DRIVER, JVM, Memory, Peaks, peaks, settle
from tests.benchmarks.fleet.site import CATALOG, Service, Site
from tests.benchmarks.fleet.waits import counted_at, wait_until
from tests.integration.service_process import ROOT

NAMESPACE = "wide"
ALL_DAY = ["00:00-12:00", "12:00-00:00"]
"""Hours in which no run starts: the files do not exist, so the table must not be rewritten."""
IDLE_SECONDS = 20.0
SETTLE_SECONDS = 600.0


def wide_table(site: Site, sizes: Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """The service starts without tables; then the table appears, and is counted and swept."""
    name = (NAMESPACE, f"t{sizes.wide_partitions}")
    location = _made(site, name, sizes.wide_partitions, say)
    sections: dict[str, Any] = {
        "tables": {"include": [f"{NAMESPACE}.*"]},
        "limits": {"quiet_hours": ALL_DAY},
        "service": {"sweep_seconds": sizes.sweep_seconds},
    }
    with site.service("wide", only=True, **sections) as (service, topic):
        settle(service.tree, SETTLE_SECONDS)
        time.sleep(IDLE_SECONDS)
        idle, start = service.tree.memory(), time.time()
        with peaks(service.tree, every=1.0) as most:
            site.pointers.add({name: location})
            site.announce(topic, name, None, start)
            site.producer.flush()
            full_name = f"{CATALOG}.{NAMESPACE}.{name[1]}"
            wait_until(service, lambda: counted_at(service, full_name, None) is not None, sizes.start_seconds)
            counted = counted_at(service, full_name, None)
            settle(service.tree, SETTLE_SECONDS)
        found = {
            "partitions": sizes.wide_partitions,
            "counted_after_seconds": None if counted is None else counted - start,
            **_above("first_count", idle, most),
            "after_first_count": _by_name(service.tree.memory()),
        }
        say(f"counted: {found['counted_after_seconds']} s; waiting for a sweep …")
        before = _looks(service, full_name)
        with peaks(service.tree, every=1.0) as most:
            swept = wait_until(service, lambda: _looks(service, full_name) > before, 2 * sizes.sweep_seconds)
            settle(service.tree, SETTLE_SECONDS)
        found |= {
            "idle": _by_name(idle),
            "looked_at_again": swept,
            **_above("next_sweep", idle, most),
            "calls": by_kind(site.proxy.between(start, time.time())),
            **service.end,
        }
        return found


def _looks(service: Service, table: str) -> int:
    return sum(event["table"] == table for event in service.events("TableLooked"))


def _made(site: Site, name: tuple[str, str], partitions: int, say: Callable[[str], None]) -> str:
    """The table's metadata location; made by a Spark process if the folder has none."""
    kept = site.fleet.folder / f"wide-{partitions}.json"
    if kept.exists():
        found: str = json.loads(kept.read_text())["metadata-location"]
        return found
    say(f"making a table of {partitions} partitions …")
    module = "tests.benchmarks.fleet.wide_table"
    arguments = [site.upstream, site.fleet.warehouse, *name, str(partitions)]
    with Path(site.folder / "wide-table.log").open("wb") as log:
        subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=log, stderr=log, check=True)
    location = site.catalog.load_table(name).metadata_location
    kept.write_text(json.dumps({"metadata-location": location}))
    return location


def _above(when: str, idle: dict[str, Memory], most: Peaks) -> dict[str, Any]:
    """Most memory of driver and JVM, and how much that is above idle."""
    found: dict[str, Any] = {f"most_at_{when}": dict(most.rss)}
    for process in (DRIVER, JVM):
        above = most.rss.get(process, 0.0) - idle.get(process, Memory()).rss
        found[f"{process}_above_idle_at_{when}".replace(" ", "_")] = above
    return found


def _by_name(memory: dict[str, Memory]) -> dict[str, float]:
    return {name: each.rss for name, each in memory.items()}
