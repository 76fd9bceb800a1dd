"""Measure the service on a fleet of tables: latency, catalog calls, processor time and memory.

Everything is real: a Kafka broker, Iceberg's REST catalog server behind a proxy that adds some milliseconds to each
call and notes it, `firnline run` in a process of its own on two cores, tables on local files. The tables are copies of
one table that PyIceberg wrote (tests/benchmarks/fleet/tables.py). Commits of case a are made in advance; to play one
sets the table's pointer and publishes the event. Nothing here fails because something is slow.

Cases:
  a  commits of many tables at an even rate: event → ledger, and where the time goes
  b  many events of one table at once: looks at the table
  c  a sweep of unchanged tables: seconds and catalog calls
  e  idle: processor time of all processes of the service, and memory by process

The chosen cases share one service, in the order b a c e. Before them, all tables are counted for the first time.

`event → ledger` is exact for each event: from its publication (the commit is current before) until the service
published the first count of the table at that commit or a later one. It is split by the catalog's calls, as the proxy
saw them: until the call that found the commit, the call, from its answer to the ledger.

    python -m tests.benchmarks.bench_fleet a c --tables 1000 --folder DIR [--output json]

With --folder, the tables and their commits are kept there, and the next run begins at once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.fleet.catalog_calls import proxy_cost
from tests.benchmarks.fleet.latency import Spread
from tests.benchmarks.fleet.service_cases import CASES, FleetCases, Sizes
from tests.benchmarks.fleet.site import site
from tests.benchmarks.fleet.tables import Fleet, Shape
from tests.benchmarks.machine import description


def main() -> None:
    options = _options()
    console = Console(stderr=True, width=140, highlight=False)
    with _folder(options.folder) as folder, tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        console.print(description(folder))
        results = _run(options, folder, Path(scratch), console)
    if options.output == "json":
        print(json.dumps(results, default=_plain))
    else:
        show(results, Console(width=140, highlight=False))


def _run(options: argparse.Namespace, folder: Path, scratch: Path, console: Console) -> dict[str, Any]:
    started = time.monotonic()
    shape = Shape(tables=options.tables, partitions=options.partitions, history=options.history)
    fleet = Fleet.make(folder / f"{shape.tables}-{shape.partitions}-{shape.history}", shape)
    console.print(f"{shape.tables} tables of {shape.partitions} partitions after {time.monotonic() - started:.0f} s")
    cases = "".join(options.cases)
    sizes = Sizes(
        rate=options.rate,
        seconds=options.seconds,
        busy_tables=min(options.busy_tables, options.tables),
        events=options.events,
        idle_seconds=options.idle_seconds,
        sweep_seconds=options.sweep_seconds,
        start_seconds=options.start_seconds,
    )
    with site(scratch, fleet, options.delay_ms, options.settings) as where:
        results: dict[str, Any] = {"shape": asdict(shape), "proxy": proxy_cost(where.proxy, where.upstream)}
        console.print(f"proxy: {_text(results['proxy'])}")
        return results | FleetCases(where, sizes, console.print).run(cases)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help=f"Of {' '.join(sorted(CASES))}; all.")
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--tables", type=int, default=1000)
    fleet.add_argument("--partitions", type=int, default=20, help="Of each table; each has small files.")
    fleet.add_argument("--history", type=int, default=24, help="Snapshots of a table before the first case.")
    fleet.add_argument("--folder", type=Path, help="Keep the tables here. Else a temporary folder.")
    fleet.add_argument("--scratch", type=Path, help="Folder for broker, checkpoints and logs; else a temporary one.")
    fleet.add_argument("--delay-ms", type=float, default=5.0, help="What the proxy adds to each call of the catalog.")
    fleet.add_argument("--settings", type=json.loads, default={}, help="More settings of the service, as JSON.")
    fleet.add_argument("--start-seconds", type=float, default=1800.0, help="Most seconds of a first count or a sweep.")
    sizes = parser.add_argument_group("sizes of the cases")
    sizes.add_argument("--rate", type=float, default=30.0, help="a: commits a second.")
    sizes.add_argument("--seconds", type=float, default=300.0, help="a: how long.")
    sizes.add_argument("--busy-tables", type=int, default=100, help="a: tables that are committed to.")
    sizes.add_argument("--events", type=int, default=1000, help="b: events of one table.")
    sizes.add_argument("--sweep-seconds", type=float, default=300.0, help="Interval of sweeps; c waits for one.")
    sizes.add_argument("--idle-seconds", type=float, default=300.0, help="e: how long.")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    options.cases = options.cases or sorted(CASES)
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; cases are {' '.join(sorted(CASES))}")
    return options


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()


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
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return ", ".join(
            f"{key.replace('_', ' ')} ({_text(each)})"
            if isinstance(each, dict)
            else f"{key.replace('_', ' ')} {_text(each)}"
            for key, each in value.items()
        )
    return str(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(type(value))


if __name__ == "__main__":
    main()
