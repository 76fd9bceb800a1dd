"""Case h: commits that each make one partition due; from the commit until its files are merged."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from tests.benchmarks.fleet.catalog_calls import by_kind
from tests.benchmarks.fleet.latency import Spread
from tests.benchmarks.fleet.processes import settle
from tests.benchmarks.fleet.site import CATALOG, Service, Site
from tests.benchmarks.fleet.tables import SCHEMA, small_files
from tests.benchmarks.fleet.waits import counted_at, first_counts, wait_until

NAMESPACE = "due"
FILES = 5  # policy.min_input_files
ROWS = 200
SETTLE_SECONDS = 120.0
MOST_SECONDS = 120.0
PAUSE_SECONDS = 3.0
"""Most seconds between a merge and the next commit: commits must not keep step with the service's batches."""
STAGES = ("plan_seconds", "rewrite_seconds", "commit_seconds")


def due_commits(site: Site, sizes: Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Commit → compacted of single commits, one after the other; real data files in tables that are acted on."""
    sections: dict[str, Any] = {
        "tables": {"include": [f"{NAMESPACE}.*"]},
        "policy": {"strategy": "threshold", "min_input_files": FILES},
        "service": {"sweep_seconds": sizes.sweep_seconds},
    }
    with site.service("due", only=True, **sections) as (service, topic):
        tables = _tables(site, sizes)
        for table in tables:
            site.announce(topic, _name(table), table.current_snapshot().snapshot_id, time.time())  # type: ignore[union-attr]
        first_counts(service, {_full_name(table) for table in tables}, sizes.start_seconds)
        settle(service.tree, SETTLE_SECONDS)
        say(f"{len(tables)} tables are counted; {sizes.due_commits} commits, one after the other …")
        start, pauses = time.time(), random.Random(1)
        merges = []
        for number in range(sizes.due_commits):
            table = tables[number % len(tables)]
            merges.append(_merge(site, service, topic, table, number // len(tables)))
            time.sleep(pauses.uniform(0, PAUSE_SECONDS))
            service.must_run()
        done = [merge for merge in merges if merge]
        return {
            "commits": len(merges),
            "never_compacted": len(merges) - len(done),
            "commit_to_compacted": Spread.of(merge["whole"] for merge in done),
            "commit_to_ledger": Spread.of(merge["ledger"] for merge in done),
            **{stage: Spread.of(merge[stage] for merge in done) for stage in STAGES},
            "rest": Spread.of(
                merge["whole"] - merge["ledger"] - sum(merge[stage] for stage in STAGES) for merge in done
            ),
            "calls": by_kind(site.proxy.between(start, time.time())),
        }


def _tables(site: Site, sizes: Namespace) -> list[Table]:
    """Tables whose partitions each have one file too few."""
    site.catalog.create_namespace_if_not_exists(NAMESPACE)
    parts = range(-(-sizes.due_commits // sizes.due_tables))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
    made = []
    for number in range(sizes.due_tables):
        location = f"file://{site.folder}/due/t{number:05d}"
        table = site.catalog.create_table((NAMESPACE, f"t{number:05d}"), SCHEMA, location, spec)
        for first in range(FILES - 1):
            table.append(small_files(parts, first * ROWS, ROWS))
        made.append(table)
    return made


def _merge(site: Site, service: Service, topic: str, table: Table, part: int) -> dict[str, float] | None:
    """Make a commit and wait for the merge; None if it did not come."""
    table.refresh()
    table.append(small_files([part], FILES * ROWS, ROWS))
    at = time.time()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    site.announce(topic, _name(table), snapshot.snapshot_id, at)
    site.producer.flush()

    def merged() -> dict[str, Any] | None:
        runs = service.events("RunCommitted")
        return next((run for run in runs if run["table"] == _full_name(table) and run["at"] > at), None)

    wait_until(service, lambda: merged() is not None, MOST_SECONDS, every=0.1)
    run, ledger = merged(), counted_at(service, _full_name(table), snapshot.snapshot_id)
    if run is None or ledger is None:
        return None
    return {"whole": run["at"] - at, "ledger": ledger - at, **{stage: run[stage] for stage in STAGES}}


def _name(table: Table) -> tuple[str, str]:
    namespace, name = table.name()[-2:]
    return namespace, name


def _full_name(table: Table) -> str:
    return ".".join((CATALOG, *_name(table)))
