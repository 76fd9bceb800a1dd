"""`firnline compact`: rewrite one table once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compactor.errors import InputError
from compactor.planning.plan_table import Request
from compactor.settings.spark_options import RunOptions
from compactor.settings.tree import load_settings, table_switch
from streaming.commands import reports
from streaming.commands.options import FAILED_SAFELY, OUTPUT, fail, print_json, result_console, rewrite_options
from streaming.commands.plan import plan_of, show_plan


@click.command()
@click.argument("table")
@rewrite_options
@click.option("--dry-run", is_flag=True, help="Only show the plan, as `plan` does.")
@OUTPUT
@click.pass_obj
def compact(
    config: Path | None, /, table: str, branch: str, dry_run: bool, output: str, options: RunOptions, **request: Any
) -> None:
    """Rewrite the due partitions of TABLE now, in one `replace` commit (a large run: several).

    Ignores `tables.include`; needs no Kafka.
    """
    from streaming.commands.compact_once import compact_once  # noqa: PLC0415 - start-up time: imports Spark

    settings = options.settings(load_settings(config))
    made, cache = plan_of(settings, table, branch, Request(**request), options)
    if dry_run:
        show_plan(made, output)
        return
    if table_switch(made.table.properties) is False:
        raise InputError(f"table {made.table.name} has the property firnline.enabled=false; unset it first")
    console = Console(stderr=True)
    with _progress(console) as progress:
        bar = progress.add_task("rewriting", total=sum(len(group.file_group.tasks) for group in made.groups), bytes=0)
        result = compact_once(
            settings,
            made,
            cache,
            run_id=str(uuid.uuid4()),
            progress=lambda done, total, _bytes: progress.update(bar, completed=done, total=total),
        )
    if output == "json":
        print_json(reports.run_document(result))
    else:
        reports.print_run(result_console(), result)
    if result.dropped:
        fail(result.dropped[0].error, FAILED_SAFELY)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
