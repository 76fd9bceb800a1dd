"""`firnline debt`: count the small files of tables; show why they are small."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from compactor.errors import FirnlineError
from compactor.iceberg.tables import Catalogs
from compactor.runs.file_holds import Wait, told_waits
from compactor.runs.pauses import Pause, PauseFolder
from compactor.settings.tree import Settings, load_settings
from compactor.table_names import TableName
from streaming.commands import reports
from streaming.commands.console import result_console
from streaming.commands.options import OUTPUT, exit_code, not_empty, print_error, print_result
from streaming.commands.pause import pause_text
from streaming.commands.progress import progress_display, reads_shown, shown
from streaming.ledger.watched_tables import NO_TABLES, watched_tables
from streaming.logs.events import LOG
from streaming.wiring import manifest_cache


@click.command()
@click.argument("table", required=False, callback=not_empty("all tables"))
@click.option("--why", is_flag=True, help="Also show why the files are small, and how writers can avoid it.")
@OUTPUT
@click.pass_obj
def debt(config: Path | None, table: str | None, why: bool, output: str) -> None:
    """Count small files per partition and bucket of TABLE, or of all tables. Reads metadata only."""
    settings = load_settings(config)
    pauses = _pauses(settings)
    catalogs = Catalogs(settings.catalogs)
    names = [TableName.parse(table, catalogs.names)] if table else watched_tables(settings, catalogs)
    with manifest_cache(settings) as cache, progress_display(output) as progress:
        counted = shown(progress, names, "counting tables")
        cache.use_reader(reads_shown(progress))
        waits = _waits(settings) if why else ()
        documents, failed = reports.debt_documents(
            settings, catalogs, cache, counted, why=why, pauses=pauses, waits=waits
        )

    def show() -> None:
        reports.print_debt(result_console(), documents)
        if not names:
            click.echo(NO_TABLES)
        for each in pauses:
            click.echo(f"paused: {pause_text(each)}")

    print_result(output, {"tables": documents, "errors": reports.error_documents(failed)}, show)
    for _, error in failed:
        print_error(error)
    if failed:
        sys.exit(exit_code(failed[0][1]))


def _waits(settings: Settings) -> Sequence[Wait]:
    """What the service waits for. Beside a checkpoint that cannot be read here, nothing is known of it."""
    try:
        return told_waits(settings.state.checkpoint) if settings.state.checkpoint else ()
    except (OSError, ValueError) as error:
        LOG.warning("it is not known what the service waits for: %s", error)
        return ()


def _pauses(settings: Settings) -> tuple[Pause, ...]:
    """Pauses that hold now. Beside a checkpoint that cannot be read here there are none: counting needs none."""
    try:
        known = PauseFolder(settings.state.checkpoint).load() if settings.state.checkpoint else ()
    except (FirnlineError, OSError) as error:
        LOG.warning("it is not known which tables are paused: %s", error)
        return ()
    now = time.time()
    return tuple(each for each in known if each.holds(now))
