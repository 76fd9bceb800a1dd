"""`firnline assess`: replay a table's history and compare its cost with alternatives. Read-only, no Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.progress import track

from compactor.errors import FirnlineError, InputError
from compactor.iceberg.tables import Catalogs, file_sizes
from compactor.planning.tiered_policy import policy_of
from compactor.reasons import Reason
from compactor.settings.problems import explained
from compactor.settings.tree import Settings, load_settings
from compactor.settings.yaml_file import read_file
from compactor.table_names import TableName
from compactor.whatif.assessment import Prices, Scenario, assess
from compactor.whatif.table_history import commits_of
from streaming.commands import reports
from streaming.commands.console import PlainConsole, columns, result_console
from streaming.commands.options import OUTPUT, numbers, print_error, print_result
from streaming.ledger.watched_tables import NO_TABLES, watched_tables
from streaming.wiring import manifest_cache

DEFAULT_CRONS = "10,60"


def read_prices(path: Path | None) -> Prices | None:
    """Read prices from a YAML file.

    Raises:
        InputError: the file is not a YAML map of known keys.
    """
    if path is None:
        return None
    sources = read_file(path, "price file")
    try:
        return Prices.model_validate(sources.values)
    except ValidationError as error:
        problems = "\n  ".join(explained(error, Prices, sources))
        raise InputError(f"price file {path} is not valid:\n  {problems}", reason=Reason.BAD_OPTION) from None


@click.command("assess")
@click.argument("tables", nargs=-1)
@click.option("--cron", "crons", default=DEFAULT_CRONS, show_default=True, callback=numbers(int, 1),
              help="Compare with Spark's rewrite_data_files, run every N commits; comma-separated.")  # fmt: skip
@click.option("--commits", "most", type=click.IntRange(2), help="Read only the newest N snapshots.")
@click.option("--prices", type=click.Path(dir_okay=False, path_type=Path), help="YAML file: get_per_1000, "
              "put_per_1000, rewrite_per_gb, full_scans_per_day. Adds costs to the result.")  # fmt: skip
@OUTPUT
@click.pass_obj
def assess_tables(
    config: Path | None, /, tables: tuple[str, ...], crons: tuple[int, ...], most: int | None, prices: Path | None,
    output: str,
) -> None:  # fmt: skip
    """Replay the snapshot history of TABLES (default: all): small files, bytes, requests, costs.

    Compares what happened with Spark's action on a schedule and with firnline. Reads metadata only.
    """
    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    bill = read_prices(prices)
    names = [TableName.parse(text, catalogs.names) for text in tables] or watched_tables(settings, catalogs)
    console = PlainConsole(stderr=True)
    documents, failed = [], []
    for name in track(names, "reading history", console=console, transient=True, disable=not console.is_terminal):
        try:
            documents.append(document(name, _assessed(settings, catalogs, name, crons, most), bill))
        except FirnlineError as error:
            failed.append((name, error))

    def show_all() -> None:
        for each in documents:
            show(result_console(), each)
        if not names:
            click.echo(NO_TABLES)

    print_result(output, {"tables": documents, "errors": reports.error_documents(failed)}, show_all)
    for _, other in failed[1:]:
        print_error(other)
    if failed:
        raise failed[0][1]


def _assessed(
    settings: Settings, catalogs: Catalogs, name: TableName, crons: tuple[int, ...], most: int | None
) -> tuple[Scenario, ...]:
    view = catalogs.load(name)
    values = settings.policy.for_table(name, view.properties)
    sizes = file_sizes(values, view.properties)
    with manifest_cache(settings) as cache:
        commits = commits_of(view, cache, most)
    return assess(commits, values, sizes, policy_of(values, sizes), crons, settings.service.sweep_seconds)


def document(name: TableName, scenarios: tuple[Scenario, ...], prices: Prices | None) -> dict[str, Any]:
    outcome = scenarios[0].outcome
    return {
        "table": str(name),
        "commits": outcome.arrivals,
        "days": round(scenarios[0].days, 3),
        "bytes_in": outcome.bytes_in,
        "scenarios": [_scenario(each, prices) for each in scenarios],
    }


def _scenario(scenario: Scenario, prices: Prices | None) -> dict[str, Any]:
    outcome = scenario.outcome
    return {
        "name": scenario.name,
        "mean_small_files": round(outcome.mean_small_files, 2),
        "most_small_files": outcome.most_small_files,
        "small_files_at_the_end": scenario.last_small_files,
        "files_at_the_end": outcome.files,
        "write_amplification": round(scenario.rewritten / outcome.bytes_in, 3) if outcome.bytes_in else 0.0,
        "bytes_rewritten": scenario.rewritten,
        "rewrite_commits": outcome.rewrites,
        "requests": scenario.gets + scenario.puts,
        "requests_per_scan": round(scenario.scan_gets),
        "cost": None if prices is None else round(scenario.cost(prices), 2),
        "small_files": list(outcome.small_files),
    }


def show(console: PlainConsole, found: dict[str, Any]) -> None:
    with_bill = any(each["cost"] is not None for each in found["scenarios"])
    rows = (
        (
            each["name"],
            f"{each['mean_small_files']:,.1f}",
            f"{each['most_small_files']:,}",
            f"{each['small_files_at_the_end']:,}",
            f"{each['write_amplification']:.2f}",
            f"{each['rewrite_commits']:,}",
            f"{each['requests']:,}",
            f"{each['requests_per_scan']:,}",
            *([f"{each['cost']:,.2f}"] if with_bill else []),
        )
        for each in found["scenarios"]
    )
    table = columns(
        ("", "mean", "most", "end", "WA", "rewrites", "requests", "a scan", *(["cost"] if with_bill else [])),
        rows,
        left={""},
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"{found['table']}: {found['commits']:,} commits in {found['days']:.2f} days, "
        f"{found['bytes_in'] / 1024**2:,.1f} MB",
        caption="Small files after each commit: mean, most, at the end. WA: bytes rewritten per byte written. "
        "Requests: of the rewrites, and of one scan of everything.",
    )
    console.print(table)
