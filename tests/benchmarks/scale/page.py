"""docs/scale.md, written from the model's answers. Pure: the same inputs give the same page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from tests.benchmarks.scale.files import Figures
from tests.benchmarks.scale.model import GIGABYTE, HOUR, Lake, Prices, Service
from tests.benchmarks.scale.queueing import Latency
from tests.benchmarks.scale.scenarios import (
    SILENT_SECONDS,
    Answer,
    answer,
    bench_fleet_case_a,
    by_services,
    hot_table,
    reference,
    settings,
    variations,
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
        "## Settings, one at a time\n\n" + _settings(main, figures, prices),
        "## What if\n\n" + _what_if(main, figures, prices),
        "## Latency\n\n" + _latency(main, figures),
        "## Unit costs\n\n" + _unit_costs(figures),
        "## Inputs that are assumptions\n\n" + _assumptions(lake, service),
        "## Prices\n\n" + _prices(price_file),
        TRUST,
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

- **Measured here:** the unit costs in the first table. The machine was shared and busy, so processor seconds are given,
  not wall time; on a quiet machine they are lower. Tables lay on local disk: calls to a real store add waiting, and
  some processor time, which is not in them. Memory was measured with a SQL catalog, looks with a REST catalog.
- **Counted, not timed:** requests of a splice, from a real S3 server on this machine. Requests of looks and commits
  follow from the code (one HEAD and one GET for each metadata object). A run makes 12 catalog calls by the estimate of
  `compactor/planning/budget.py`.
- **Extrapolated:** everything for more than one service; memory above 10,000 tables; executors above two cores. The
  model has no cost for Spark's scheduler with thousands of tasks a second, and none for the network.
- **Assumed:** all inputs in the list above. Rewritten bytes are a replay of the policy on equal files; your files are
  not equal. Every rewrite of a partition counts as a run of its own, the worst case.
- **Left out:** storage, traffic between zones, Kafka, the catalog's own machines, the history table, refresh hooks,
  merges of manifests, delete files, encrypted or sorted tables (engine `spark`).
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
        ("services in one `service.shard_group`", services_of(main)),
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
        "one service. The capacity of the catalog and the duration of a run are assumptions (below), so measure yours "
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
        for load in by_services(main.lake, figures.costs, main.service, SERVICES_SHOWN)
    ]
    heading = (
        "services", "driver's Python, cores", "JVM and query, cores", "look threads", "memory", "catalog calls/s, all",
    )  # fmt: skip
    events = main.lake.commits_per_hour / HOUR
    costs = figures.costs
    owner = costs.owner(main.load.services)
    return (
        f"{table(heading, rows)}\n\nOf one service, but for the last column. Each service reads the whole topic "
        f"({events:,.0f} events/s): that part is not divided. Finding an event's owner costs {seconds(owner)} with "
        f"{main.load.services} services and grows with their number, so hundreds of services stop helping. More than 1 "
        "core of Python in the driver is impossible: that many services are too few."
    )


def _settings(main: Answer, figures: Figures, prices: Prices) -> str:
    rows = [_line("default", main)]
    rows += [
        _line(name, answer(name, main.lake, figures.costs, prices, changed)) for name, changed in settings(main.service)
    ]
    return table(HEADING, rows) + LIMITS_TEXT


HEADING = ("", "services", "executors' cores", "catalog calls/s", "p50 / p99", "first to fill up", "dollars per month")
LIMITS_TEXT = """

`limits.catalog_calls_per_hour`, `limits.requests_per_hour` and `limits.bytes_per_hour` cap runs of **each** service, so
divide what the lake may cost by the number of services. Runs that they hold back wait: debt grows, the ledger's latency
does not. `commit.groups` and `commit.bytes` matter for large runs only: at the reference lake a run has one file group.
"""


def _line(name: str, found: Answer) -> tuple[str, ...]:
    first = found.first_limit
    return (
        name,
        services_of(found),
        str(found.executor_cores),
        f"{found.load.catalog_calls:,.0f}",
        simulated(found.latency),
        f"{first.resource}, {share(first.share)}",
        dollars(found.bill.total),
    )


def _what_if(main: Answer, figures: Figures, prices: Prices) -> str:
    found = [answer(name, lake, figures.costs, prices, main.service) for name, lake in variations(main.lake)]
    rows = [_line("reference", main), *(_line(each.name, each) for each in found)]
    text = "\n\n".join(_cases(main, figures, found[0]))
    return f"{table(HEADING, rows)}\n\n{text}"


def _cases(main: Answer, figures: Figures, ten: Answer) -> list[str]:
    costs, services = figures.costs, main.load.services
    hot = hot_table(main.lake, costs, main.service, services)
    owner, events = costs.owner(ten.load.services), ten.lake.commits_per_hour / HOUR
    ten_times = (
        f"**10 times the commits**: {ten.first_limit.resource} is first, {share(ten.first_limit.share)}. "
        f"{ten.load.rewrites.runs:,.0f} runs a second cause most of it. More services stop helping: each of "
        f"{ten.load.services} finds the owner of {events:,.0f} events a second, {number(events * owner)} cores of "
        "Python. Commit less often first: half as many commits of twice the size are about half as many looks and runs."
    )
    idle = (
        "**Commits to one partition**: a partition of a busy table then rests longer than "
        "`policy.settle_after_seconds` after each commit, and settling merges follow. Settings that fit the writers "
        "save more than any number of services."
    )
    one_table = (
        f"**One hot table**, {hot.commits_second:.0f} commits a second: one look for {hot.commits_a_look:.0f} commits, "
        f"and {number(hot.alone)} cores of Python in its service, which is then {share(hot.driver)} busy. Events of "
        f"that service: {simulated(hot.latency)}. A table belongs to one service and has one commit lane: no setting "
        "divides it. A longer `service.trigger_seconds` saves catalog calls, but each commit's manifest list is read."
    )
    first = (
        f"**First start**: every table is counted once: {main.first.catalog_calls:,} catalog calls and "
        f"{main.first.gets:,.0f} requests to the store. It takes {seconds(main.first.seconds)} with {services} "
        f"services, limited by {main.first.bound}. Events have a lane of their own before it."
    )
    larger = (
        "**Larger lakes**: the formulas say how many services suffice on average. They do not say that a Kafka group "
        "of hundreds of members, or a catalog with thousands of calls a second, works well."
    )
    lost = "**A lost service**: there is only one."
    if main.lost is not None:
        lost = (
            f"**A lost service**: its tables have no owner for at most {SILENT_SECONDS:.0f} s. Then the others count "
            f"them, {seconds(main.lost.counting_seconds)} beside their own work, and each is "
            f"{share(main.lost.driver_after)} busy. Its running rewrites are lost work."
        )
    return [ten_times, idle, one_table, first, _never_compacted(main), lost, larger]


def _never_compacted(main: Answer) -> str:
    found, executors = main.backlog, 1_000
    return (
        f"**A lake that was never compacted**: all of its {main.lake.bytes / 1e15:g} PB in files of "
        f"{main.lake.file_bytes / 1024:.0f} KiB are {number(found.files)} files. To list them takes "
        f"{number(found.counting_seconds / HOUR)} core hours of all services together, to merge them "
        f"{number(found.core_seconds / HOUR)} core hours: {seconds(found.core_seconds / executors)} with {executors:,} "
        f"executor cores, if nothing else is slow. {number(found.gets)} GET, {number(found.puts)} PUT, "
        f"{dollars(found.dollars)} once. `limits.bytes_per_hour` spreads it."
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


NAMES = {
    "event_on_spark": "an event: JVM and decoding worker",
    "event_row": "an event: its row in the driver",
    "event_decode": "an event: the decoder alone (part of the first)",
    "event_owner": "an event: whose table",
    "event_owner_member": "the same, more for each service of the group",
    "event_inbox": "an event of an own table: inbox",
    "batch_driver": "a micro-batch: driver",
    "batch_spark": "a micro-batch: JVM and worker",
    "look_unchanged": "a look at an unchanged table (REST, 304)",
    "look_new_snapshot": "a look at a new snapshot, {} snapshots in the metadata",
    "look_further_snapshot": "each further commit that a look finds",
    "first_count_table": "a first count: the table",
    "first_count_manifest": "a first count: each manifest",
    "first_count_partition": "a first count: each partition with its files",
    "run_driver": "a run: driver (load, plan, check, commit)",
    "run_jvm": "a run: JVM",
    "run_workers": "a run: Python workers",
    "run_output_driver": "each output of a run: driver",
    "run_output_jvm": "each output of a run: JVM",
    "run_output_workers": "each output of a run: Python workers",
    "splice_file": "a splice inside S3: each input file",
}
SIZES = {
    "memory_table": "driver's memory for a table",
    "memory_partition": "driver's memory for a partition with debt",
    "disk_table": "state on disk for a table",
    "disk_partition": "state on disk for a partition",
}
REQUESTS = {
    "splice_gets_file": "GET for each input of a splice",
    "splice_copies_file": "COPY for each input",
    "splice_gets_output": "GET and HEAD for each output",
    "splice_puts_output": "PUT and POST for each output",
}


def _unit_costs(figures: Figures) -> str:
    measured = figures.measured
    rows = []
    for name, what in NAMES.items():
        if name == "look_new_snapshot":
            found = sorted((int(count), cost) for count, cost in measured[name].items())
            rows += [(what.format(f"{count:,}"), seconds(cost)) for count, cost in found]
        else:
            rows.append((what, seconds(measured[name])))
    rows += [(what, f"{number(measured[name])} bytes") for name, what in SIZES.items()]
    rows += [(what, number(measured[name])) for name, what in REQUESTS.items()]
    taken = [(f"`{name}`", f"{each['value']:.3g}", each["from"]) for name, each in figures.taken.items()]
    return (
        f"Measured by `make bench-unit-costs`, {figures.measured_on}: {figures.machine}. Processor seconds (user and "
        f"system) of firnline's own processes. {figures.remarks}\n\n"
        f"{table(('one of', 'cost'), rows)}\n\nTaken from other pages:\n\n{table(('', 'value', 'from'), taken)}"
    )


def _assumptions(lake: Lake, service: Service) -> str:
    rows = [
        ("`catalog_capacity`", f"{lake.catalog_capacity:,.0f} calls/s", "all catalogs together; yours may do less"),
        ("`catalog_seconds`", seconds(lake.catalog_seconds), "wall time of one call"),
        ("`store_seconds`", seconds(lake.store_seconds), "wall time of a look's reads: two objects"),
        ("`batch_seconds`", seconds(lake.batch_seconds), "wall time of a small micro-batch"),
        ("`run_seconds`", seconds(lake.run_seconds), "wall time of a small run, plan to commit"),
        ("`copy_bytes_second`", f"{lake.copy_bytes_second / 1e6:.0f} MB/s", "what one slot copies inside the store"),
        ("`encoded`", f"{lake.encoded:g}", "times that a byte is decoded and encoded; later rewrites copy it"),
        ("`manifests`, `snapshots`", f"{lake.manifests}, {lake.snapshots}", "of each table"),
        ("`busy`", share(service.busy), "how full a resource may be on average"),
        ("memory of a service", f"{service.memory / GIGABYTE:.0f} GB", "limit of the pod"),
    ]
    return table(("input", "value", "what it is"), rows)


def _prices(tree: dict[str, Any]) -> str:
    rows = []
    for name, each in tree["prices"].items():
        value = f"${each['dollars']:g}" if "dollars" in each else f"{each['bytes'] / 1024**3:g} GiB"
        source = f"<{each['source']}>" if each["source"].startswith("http") else each["source"]
        rows.append((f"`{name}`", value, each["per"], each["dated"], source))
    return (
        f"{tree['about']} {tree['cloud']}; read on {tree['read_on']}. They are in "
        f"`tests/benchmarks/scale/prices.json`.\n\n{table(('input', 'value', 'for', 'dated', 'source'), rows)}"
    )
