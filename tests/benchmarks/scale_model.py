"""What firnline needs on a large lake: services, executors, catalog calls, requests, memory, dollars per month.

A calculation from the unit costs in tests/benchmarks/scale/unit_costs.json, measured by `make bench-unit-costs`, and
the list prices in prices.json. docs/scale.md is what `--page` prints.

    python -m tests.benchmarks.scale_model [--tables 100000] [--commits-per-hour 1000000] [--output json | --page]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace

from rich.console import Console
from rich.table import Table

from tests.benchmarks.scale.files import read_figures, read_prices
from tests.benchmarks.scale.model import Lake, Service
from tests.benchmarks.scale.page import page, services_of, share, simulated
from tests.benchmarks.scale.scenarios import Answer, answer, reference

OF_THE_LAKE = (
    "partitions", "commit_partitions", "file_bytes", "target_bytes", "snapshots", "manifests", "encoded",
    "catalog_capacity", "catalog_seconds", "store_seconds", "copy_bytes_second", "run_seconds", "batch_seconds",
    "catalogs", "namespaces",
)  # fmt: skip


def main() -> None:
    options = _options()
    figures, (prices, price_file) = read_figures(), read_prices()
    lake = reference(options.tables, options.commits_per_hour)
    lake = replace(lake, **{name: getattr(options, name) for name in OF_THE_LAKE})
    if options.page:
        print(page(figures, prices, price_file, lake), end="")
        return
    service = Service(**{each.name: getattr(options, each.name) for each in fields(Service)})
    found = answer("your lake", lake, figures.costs, prices, service, options.services)
    if options.output == "json":
        print(json.dumps(found.document(), indent=2))
    else:
        show(found, Console(width=120, highlight=False))


def show(found: Answer, console: Console) -> None:
    load, bill = found.load, found.bill
    made = Table(
        "", "model", title=f"{found.lake.tables:,} tables, {found.lake.commits_per_hour:,.0f} commits per hour"
    )
    for name, text in (
        ("services", f"{services_of(found)}, {found.cores_each} cores and {load.memory / 1e9:.1f} GB each"),
        ("executors' cores", str(found.executor_cores)),
        ("catalog calls a second", f"{load.catalog_calls:,.1f}"),
        ("requests a second", f"{load.requests.gets:,.1f} GET or HEAD, {load.requests.puts:,.1f} PUT or COPY"),
        ("event → ledger, p50 / p99", simulated(found.latency)),
        ("first start", f"{found.first.seconds:,.0f} s, limited by {found.first.bound}"),
        ("dollars per month", f"{bill.total:,.0f}"),
    ):
        made.add_row(name, text)
    for each in found.limits:
        made.add_row(f"  {each.resource}", f"{share(each.share)} in use; more by: {each.remedy}")
    console.print(made)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--commits-per-hour", type=float, default=1e6)
    parser.add_argument("--services", type=int, help="Else the fewest that suffice.")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--page", action="store_true", help="Print docs/scale.md; uses default settings.")
    known = {each.name: each.default for each in fields(Lake)}
    for group, names in (
        ("the lake", {name: known[name] for name in OF_THE_LAKE}),
        ("settings of each service", {each.name: each.default for each in fields(Service)}),
    ):
        inputs = parser.add_argument_group(group)
        for name, default in names.items():
            kind = int if isinstance(default, int) else float
            inputs.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
