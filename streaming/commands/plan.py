"""`firnline plan`: show what `compact` would do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.settings.policy import refused_properties
from compactor.settings.spark_options import RunOptions
from compactor.settings.tree import Settings, load_settings
from compactor.table_names import TableName
from streaming.commands import reports
from streaming.commands.console import result_console
from streaming.commands.options import OUTPUT, print_result, rewrite_options
from streaming.commands.progress import progress_display, reads_shown
from streaming.logs.events import LOG
from streaming.wiring import manifest_cache


@click.command()
@click.argument("table")
@rewrite_options
@click.option("--explain", is_flag=True, help="Also show the time per stage and where manifests were read from.")
@OUTPUT
@click.pass_obj
def plan(
    config: Path | None, /, table: str, branch: str, output: str, options: RunOptions, explain: bool, **request: Any
) -> None:
    """Show what `compact` would do to TABLE (namespace.table or catalog.namespace.table). Writes nothing."""
    settings = load_settings(config)
    made, _ = plan_of(settings, table, branch, Request(**request), options, output)
    show_plan(made, output)
    if explain and output != "json":
        reports.print_planning(result_console(), made)


def plan_of(
    settings: Settings, text: str, branch: str, request: Request, options: RunOptions, output: str
) -> tuple[TablePlan, ManifestCache]:
    """Plan the table that `text` names, with a progress display.

    Also return the manifest cache, which is closed at the end of the command.

    Raises:
        InputError: the table's name, the branch, the filter or an option is invalid.
        RetryError: the catalog or the store does not answer.
    """
    cache = click.get_current_context().with_resource(manifest_cache(settings))
    catalogs = Catalogs(settings.catalogs)
    table = catalogs.load(TableName.parse(text, catalogs.names), branch)
    for refused in refused_properties(table.properties):
        LOG.warning("table property not used", extra={"table": str(table.name), "reason": refused})
    values = options.values(settings.policy.for_table(table.name, table.properties))
    request = replace(request, rewrite_all=options.rewrite_all)
    with progress_display(output) as progress:
        cache.use_reader(reads_shown(progress))
        return plan_table(table, values, cache, request), cache


def show_plan(made: TablePlan, output: str) -> None:
    """Print a plan, with the engines that the files' footers allow."""
    made = reports.with_footers_read(made)
    print_result(output, reports.plan_document(made), lambda: reports.print_plan(result_console(), made))
