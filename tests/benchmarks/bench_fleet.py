"""Measure the service on a fleet of tables: latency, catalog calls, processor time and memory.

Everything is real: a Kafka broker, Iceberg's REST catalog server behind a proxy that adds some milliseconds to each
call and notes it, `firnline run` in a process of its own on two cores, tables on local files. The tables are copies of
one table that PyIceberg wrote (tests/benchmarks/fleet/tables.py). Commits of case a are made in advance; to play one
sets the table's pointer and publishes the event. Nothing here fails because something is slow.

Cases:
  a  commits of many tables at an even rate: event → ledger, and where the time goes
  c  a sweep of unchanged tables: seconds and catalog calls
  d  one table with a million partitions in debt: memory of driver and JVM, idle and at their peak
  e  idle: processor time of all processes of the service, and memory by process
  h  commits that each make a partition due: commit → compacted, with real files and real rewrites

Of the chosen cases, a c e share one service, in this order, after it has counted all tables for the first time. d and h
have a service of their own each, and as much to do as their sizes say: begin with small ones.

`event → ledger` is exact for each event: from its publication (the commit is current before) until the service
published the first count of the table at that commit or a later one. It is split by the catalog's calls, as the proxy
saw them: until the call that found the commit, the call, from its answer to the ledger.

    python -m tests.benchmarks.bench_fleet a c --tables 1000 --folder DIR

With --folder, the tables and their commits are kept there, and the next run begins at once.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.fleet.catalog_calls import proxy_cost
from tests.benchmarks.fleet.due_case import due_commits
from tests.benchmarks.fleet.latency import Spread
from tests.benchmarks.fleet.service_cases import SHARED, FleetCases
from tests.benchmarks.fleet.site import site
from tests.benchmarks.fleet.tables import Fleet, Shape
from tests.benchmarks.fleet.wide_case import wide_table
from tests.benchmarks.harness import bench_folder, options_of

ALONE = {"d": wide_table, "h": due_commits}
CASES = (*SHARED, *ALONE)


def main() -> None:
    options = _options()
    results: dict[str, Any] = {}
    with bench_folder(options.scratch, stderr=True) as (scratch, console):
        folder = options.folder.resolve() if options.folder else scratch / "fleet"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _run(options, folder, scratch, console, results)
        finally:  # what was measured before an error is worth its minutes
            show(results, Console(width=140, highlight=False))


def _run(options: argparse.Namespace, folder: Path, scratch: Path, console: Console, results: dict[str, Any]) -> None:
    """Run the chosen cases; each adds to `results`."""
    started = time.monotonic()
    shape = Shape(tables=options.tables, partitions=options.partitions, history=options.history)
    fleet = Fleet.make(folder / f"{shape.tables}-{shape.partitions}-{shape.history}", shape)
    console.print(f"{shape.tables} tables of {shape.partitions} partitions after {time.monotonic() - started:.0f} s")
    with site(scratch, fleet, options.delay_ms, options.settings) as where:
        results |= {"shape": asdict(shape), "proxy": proxy_cost(where.proxy, where.upstream)}
        console.print(f"proxy: {_text(results['proxy'])}")
        if shared := set(SHARED) & set(options.cases):
            FleetCases(where, options, console.print, results).run(shared)
        for case in (each for each in ALONE if each in options.cases):
            console.print(f"case {case} …")
            results[case] = ALONE[case](where, options, console.print)


def _options() -> argparse.Namespace:
    parser = options_of(__doc__, *sorted(CASES))
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--tables", type=int, default=1000)
    fleet.add_argument("--partitions", type=int, default=20, help="Of each table; each has small files.")
    fleet.add_argument("--history", type=int, default=24, help="Snapshots of a table before the first case.")
    fleet.add_argument("--scratch", type=Path, help="Folder for broker, checkpoints and logs; --folder keeps tables.")
    fleet.add_argument("--delay-ms", type=float, default=5.0, help="What the proxy adds to each call of the catalog.")
    fleet.add_argument("--settings", type=json.loads, default={}, help="More settings of the service, as JSON.")
    fleet.add_argument("--start-seconds", type=float, default=1800.0, help="Most seconds of a first count or a sweep.")
    sizes = parser.add_argument_group("sizes of the cases")
    sizes.add_argument("--rate", type=float, default=30.0, help="a: commits a second.")
    sizes.add_argument("--seconds", type=float, default=300.0, help="a: how long.")
    sizes.add_argument("--busy-tables", type=int, default=100, help="a: tables that are committed to.")
    sizes.add_argument("--sweep-seconds", type=float, default=300.0, help="Interval of sweeps; c waits for one.")
    sizes.add_argument("--idle-seconds", type=float, default=300.0, help="e: how long.")
    sizes.add_argument("--wide-partitions", type=int, default=1_000_000, help="d: partitions of the one table.")
    sizes.add_argument("--due-commits", type=int, default=200, help="h: commits, one after the other.")
    sizes.add_argument("--due-tables", type=int, default=4, help="h: tables that they are spread over.")
    options = parser.parse_args()
    options.busy_tables = min(options.busy_tables, options.tables)
    options.cases = options.cases or list(SHARED)
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; cases are {' '.join(sorted(CASES))}")
    return options


def show(results: dict[str, Any], console: Console) -> None:
    """Each case with its figures, one a line."""
    for case, found in results.items():
        if not isinstance(found, dict):
            console.print(f"{case}: {_text(found)}")
            continue
        console.print(f"{case}:")
        for name, value in found.items():
            console.print(f"  {name.replace('_', ' ')}: {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Spread):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        shown = {key.replace("_", " "): _text(each) for key, each in value.items()}
        return ", ".join(f"{key} ({each})" if "," in each else f"{key} {each}" for key, each in shown.items())
    return str(value)


if __name__ == "__main__":
    main()
