"""docs/scale.md, written from the model's answers. Pure: the same inputs give the same page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from tests.benchmarks.scale.files import Figures
from tests.benchmarks.scale.model import GIGABYTE, HOUR, Lake, Prices, Service
from tests.benchmarks.scale.model import load as load_of
from tests.benchmarks.scale.queueing import Latency
from tests.benchmarks.scale.scenarios import (
    Answer,
    answer,
    bench_fleet_case_a,
    reference,
)

WIDTH = 120
NOT_MEASURED = "not measured"
SERVICES_SHOWN = (1, 4, 16, 64, 256)


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """Three digits that mean something, thousands separated."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "without end"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.{digits}f}"


def seconds(value: float) -> str:
    """A time in a unit that suits it."""
    for unit, size in (("h", HOUR), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= 2 * size or (size <= 1.0 and value >= size):
            return f"{number(value / size)} {unit}"
    return f"{number(value / 1e-9)} ns"


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def dollars(value: float) -> str:
    return f"${value:,.0f}"


def simulated(latency: Latency) -> str:
    """p50 / p99; or that the queue grows."""
    if latency.counted < latency.events:
        return "the queue grows"
    return f"{latency.p50:.1f} s / {latency.p99:.1f} s"


def services_of(found: Answer) -> str:
    count = found.load.services
    return str(count) if found.suffices else f"no number suffices ({count} come nearest)"


def page(figures: Figures, prices: Prices, price_file: dict[str, Any], lake: Lake | None = None) -> str:
    """The whole page."""
    lake, service = lake or reference(), Service()
    main = answer("reference", lake, figures.costs, prices, service)
    parts = [
        HEAD.format(tables=f"{lake.tables:,}", commits=f"{lake.commits_per_hour:,.0f}", day=figures.measured_on),
        "## The answer\n\n" + _answer(main),
        "## What fills up first\n\n" + _limits(main),
        "## More services\n\n" + _services(main, figures),
        "## Latency\n\n" + _latency(main, figures),
        TRUST.format(prices=price_file["about"], cloud=price_file["cloud"], read_on=price_file["read_on"]),
    ]
    return "\n\n".join(wrapped(block) for part in parts for block in part.strip().split("\n\n")) + "\n"


def wrapped(block: str) -> str:
    """A paragraph in lines of the docs' width; tables, lists and headings as they are."""
    if block.startswith(("|", "#", "- ")):
        return block
    return fill(" ".join(block.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


HEAD = """
# Scale

What firnline needs on a lake that is larger than any machine here: {tables} tables, {commits} commits per hour, 1 PB.
This page is generated: `make generate` writes it, and a test compares it with the model.
**It is a calculation, not a measurement.** The unit costs were measured on one machine with two cores ({day}). All
figures for more than one service are extrapolated from them. No cluster of this size was there to check them.

`make scale-model ARGS="--tables 5000 --commits-per-hour 20000"` answers for your lake; `--output json` prints all
figures. The model is `tests/benchmarks/scale/model.py`, closed formulas; the queue of one service is simulated by
`queueing.py` beside it.
"""

TRUST = """
## How far to trust this

- **Measured:** the unit costs in `tests/benchmarks/scale/unit_costs.json`, in processor seconds, on local disk; a real
  store adds waiting. `make bench-unit-costs ARGS=--keep` measures them anew.
- **Extrapolated:** everything for more than one service, memory above 10,000 tables, executors above two cores.
- **Assumed:** how much the catalog can do, how long its calls and a run take, sizes and numbers of files, how busy a
  service may be. `make scale-model ARGS=--help` lists these inputs. Every rewrite of a partition counts as a run of its
  own, the worst case.
- **Prices:** {prices} {cloud}; read on {read_on}; sources in `tests/benchmarks/scale/prices.json`.
- **Left out:** storage, traffic between zones, Kafka, the catalog's own machines, the history table, refresh hooks,
  merges of manifests, delete files, the engine `spark`.
"""


def _answer(main: Answer) -> str:
    load, bill, asked = main.load, main.bill, main.load.requests
    calls = (
        f"{load.catalog_calls:,.0f}: {load.event_looks:,.0f} for events, {load.sweep_looks:,.0f} without one, the rest "
        f"for {load.rewrites.runs:,.0f} runs a second"
    )
    requests = (
        f"{asked.gets:,.0f} GET or HEAD; {asked.puts:,.0f} PUT, POST or COPY ({asked.copies:,.0f} copied inputs, "
        f"{asked.outputs:,.0f} outputs, {asked.encoded_parts:,.0f} encoded parts, {asked.metadata:,.0f} metadata)"
    )
    paid = (
        f"{dollars(bill.total)}: services {dollars(bill.services)}, executors {dollars(bill.executors)}, requests "
        f"{dollars(bill.requests)}, catalog {dollars(bill.catalog)}"
    )
    rows = [
        ("services that divide the tables (`service.shard`)", services_of(main)),
        ("cores and memory of each", f"{main.cores_each} cores, {load.memory / GIGABYTE:.1f} GB"),
        ("cores of all executors", f"{main.executor_cores} (slots in use: {load.slots:.0f})"),
        ("catalog calls a second", calls),
        ("requests to the store a second", requests),
        ("rewritten", f"{load.rewrites.bytes / 1e6:,.0f} MB/s, {load.rewrites.files:,.0f} files/s"),
        ("ledger's state on disk, each service", f"{load.disk / 1e6:,.0f} MB"),
        ("event → ledger, simulated, p50 / p99", simulated(main.latency)),
        ("first start: all tables counted after", f"{seconds(main.first.seconds)}, limited by {main.first.bound}"),
        ("dollars per month", paid),
    ]
    kinds = "; ".join(
        f"{each.tables:,} tables with {3600 * main.lake.rate(each):,.1f} commits per hour each"
        for each in main.lake.classes
    )
    text = (
        f"The lake: {kinds}. Each table has {main.lake.partitions} partitions with debt. A commit adds one file of "
        f"{main.lake.file_bytes / 1024:.0f} KiB to each of {main.lake.commit_partitions} partitions, so "
        f"{main.lake.commits_per_hour * main.lake.commit_partitions * main.lake.file_bytes / 1e12:.1f} TB arrive per "
        f"hour. The services have default settings and are at most {share(main.service.busy)} busy on average."
    )
    return f"{text}\n\n{table(('', 'model'), rows)}"


def _limits(main: Answer) -> str:
    rows = [
        (each.resource, f"{number(each.used)} of {number(each.of)}", share(each.share), each.remedy)
        for each in main.limits
    ]
    first, own = main.first_limit, main.first_divided
    return (
        f"{table(('resource', 'used', 'share', 'what gives more of it'), rows)}\n\n"
        f"First is **{first.resource}**: {first.remedy}. Of the resources that more services divide, "
        f"**{own.resource}** is the fullest, and so sets the number of services: {own.remedy}. The catalog is shared "
        "by all services, and each decodes all events: more services do not help there. All other rows are those of "
        "one service. The capacity of the catalog and the duration of a run are assumptions, so measure yours "
        "first; of what was measured here, the driver's core is the scarcest."
    )


def _services(main: Answer, figures: Figures) -> str:
    rows = [
        (
            str(load.services),
            number(load.driver),
            number(load.jvm),
            number(load.threads),
            f"{load.memory / GIGABYTE:.1f} GB",
            f"{load.catalog_calls:,.0f}",
        )
        for load in (load_of(main.lake, figures.costs, main.service, count) for count in SERVICES_SHOWN)
    ]
    heading = (
        "services", "driver's Python, cores", "JVM and query, cores", "look threads", "memory", "catalog calls/s, all",
    )  # fmt: skip
    events = main.lake.commits_per_hour / HOUR
    costs = figures.costs
    owner = costs.event.whose(main.load.services)
    return (
        f"{table(heading, rows)}\n\nOf one service, but for the last column. Each service reads the whole topic "
        f"({events:,.0f} events/s): that part is not divided. Finding an event's owner costs {seconds(owner)} with "
        f"{main.load.services} services and grows with their number, so hundreds of services stop helping. More than 1 "
        "core of Python in the driver is impossible: that many services are too few."
    )


FLEET = (
    ("a", "30 commits/s over 100 tables: event → ledger, p50", "case_a_p50_seconds", "s"),
    ("a", "the same, p99", "case_a_p99_seconds", "s"),
    ("c", "sweep of 10,000 unchanged tables", "case_c_sweep_seconds", "s"),
    ("c", "catalog calls of that sweep", "case_c_catalog_calls", ""),
    ("d", "a table of a million partitions: driver's memory above idle", "case_d_driver_bytes_above_idle", "bytes"),
    ("e", "idle with 1,000 tables: part of a core", "case_e_core_share", ""),
    ("e", "idle: resident memory of all processes", "case_e_resident_bytes", "bytes"),
    ("h", "commit → compacted, p50", "case_h_p50_seconds", "s"),
    ("h", "the same, p99", "case_h_p99_seconds", "s"),
)


def _latency(main: Answer, figures: Figures) -> str:
    rows = []
    for case, what, name, unit in FLEET:
        value = figures.fleet[name]
        rows.append((case, what, NOT_MEASURED if value is None else f"{number(value)} {unit}".strip()))
    when = figures.fleet["measured_on"]
    measured = "They are not measured yet." if when is None else f"Measured on {when}: {figures.fleet['machine']}."
    fleet = bench_fleet_case_a(figures.costs)
    return (
        f"Simulated for one of {main.load.services} services at the reference lake: {simulated(main.latency)} "
        f"({main.latency.events:,} events, {main.latency.looks:,} looks in five minutes). Most of it is the wait for "
        f"the next micro-batch. For case a of `make bench-fleet` (one service, a quiet machine) the simulation says "
        f"{simulated(fleet)}.\n\nFigures of `make bench-fleet` on real processes. {measured}\n\n"
        f"{table(('case', 'what', 'measured'), rows)}"
    )
