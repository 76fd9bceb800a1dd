"""`firnline convert`: replace a table's equality deletes by deletes of positions, without rewriting data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from compactor.commit.in_flight import new_run_id
from compactor.errors import InputError
from compactor.iceberg.other_compactors import flink_converts, other_compactors, unlisted_before
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.opening import known_deployment
from compactor.lease.right import CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.planning.conversion import MAYBE_BESIDE, Conversion, not_beside, plan_conversion
from compactor.planning.inventory import take_inventory
from compactor.runs.convert import ConversionResult, Converting, nothing_converted
from compactor.settings.tree import Settings, load_settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from streaming.commands.console import result_console, styled
from streaming.commands.options import OUTPUT, print_result
from streaming.commands.progress import in_attempts, progress_display
from streaming.commands.streams import printable
from streaming.logs.events import log_event
from streaming.wiring import check_switch, check_turn, rewriting

CACHE_BYTES = 64 * 1024 * 1024
Check = Callable[[TableView], None]


@click.command("convert")
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Only show how many data files would be searched.")
@click.option(
    "--force",
    is_flag=True,
    help="Convert although another compactor or Flink's converter worked on the table in the last day, or may have.",
)
@OUTPUT
@click.pass_obj
def convert(config: Path | None, /, table: str, dry_run: bool, force: bool, output: str) -> None:
    """Replace the equality deletes of TABLE by deletion vectors (V3) or position deletes (V2), in one commit.

    Reads the key columns of the data files to which equality deletes apply, and of these only row groups whose
    statistics and bloom filters do not exclude the keys. No data file is rewritten. Readers then need no comparison of
    values, and PyIceberg can read the table. Needs no Kafka.

    \b
        firnline -c firnline.yaml convert db.upserts
        firnline -c firnline.yaml convert db.upserts --dry-run

    Equality deletes that Arrow and Iceberg compare differently (floating point) stay; the reason is printed.
    """  # noqa: D301 - \b keeps click from re-wrapping
    settings = load_settings(config)
    catalogs, cache = Catalogs(settings.catalogs), ManifestCache(CACHE_BYTES)
    name = TableName.parse(table, settings.catalogs)
    view = catalogs.load(name)
    conversion = plan_conversion(take_inventory(view, cache))
    if dry_run:
        _show_plan(view, conversion, output)
        return
    if not conversion.deletes:
        _show(nothing_converted(view, conversion, new_run_id(view)), output)
        return
    check = partial(_check, settings, view if force else None)
    check(view)
    _show(_run(settings, catalogs, cache, view, output, check), output)


def _check(settings: Settings, stopped: TableView | None, view: TableView) -> None:
    """Make sure that the table's equality deletes may be converted now.

    `stopped`: the user says that compactors that had committed to the table when it looked so have stopped.

    Raises:
        InputError: the table is switched off, or another program works on it.
        LaterError, RetryError: as `check_turn`.
    """
    check_switch(view)
    known = stopped.snapshot.snapshot_id if stopped and stopped.snapshot else None
    if flink_converts(takewhile(lambda each: each.snapshot_id != known, view.history)):
        raise InputError(
            f"Flink's converter works on {view.name}: its next run converts these deletes. If firnline is to do so, "
            "stop that job and give --force"
        )
    now = time.time()
    last = max((each.last for each in other_compactors(stopped.metadata, now)), default=0.0) if stopped else 0.0
    others = [each for each in other_compactors(view.metadata, now) if each.last > last]
    if others:
        raise InputError(
            f"{not_beside(others[0].name)}. Stop that compactor, make sure that no rewrite of it is under way, and "
            "give --force"
        )
    if unlisted_before(view.history, now, known) is not None:
        raise InputError(
            f"{view.name}: {MAYBE_BESIDE}; or make sure that no rewrite of another compactor is under way, and give "
            "--force"
        )
    check_turn(settings, view)


def _run(
    settings: Settings, catalogs: Catalogs, cache: ManifestCache, view: TableView, output: str, check: Check
) -> ConversionResult:
    """Convert in a Spark session of its own.

    The commit that ended an attempt may be a compactor's first of several: each attempt asks as the first one does.

    Raises:
        InputError, LaterError: as `_check`; nothing was converted.
        FirnlineError: by class the reaction; the table is as it was.
    """
    session = spark_session(settings)
    try:
        checkpoint = settings.state.checkpoint.rstrip("/")
        right = CommitRight(known_deployment(checkpoint))
        parts = rewriting(
            settings, session, catalogs, cache, log_event, checkpoint=checkpoint, beside_stream=False, right=right
        )
        parts.sweep(time.time())
        with progress_display(output) as progress:
            bar = progress.add_task("searching", total=None)

            def moved(done: int, total: int) -> None:
                progress.update(bar, completed=done, total=total)

            def converted(now: TableView) -> ConversionResult:
                conversion = plan_conversion(take_inventory(now, cache))
                if now is not view and conversion.deletes:
                    check(now)
                return Converting(parts.rewriter, now, conversion, new_run_id(now), progress=moved).convert()

            return in_attempts(converted, view, catalogs)
    finally:
        session.stop()


def _show_plan(view: TableView, conversion: Conversion, output: str) -> None:
    files = conversion.files
    document: dict[str, Any] = {
        "table": str(view.name),
        "equality_delete_files": len(conversion.deletes),
        "files_to_search": len(files),
        "bytes_of_files": conversion.bytes,
        "not_convertible": conversion.refused,
        "why": conversion.why,
    }
    if conversion.deletes:
        found = (
            f"{len(conversion.deletes)} equality delete files; the key columns of {len(files)} data files "
            f"({decimal(document['bytes_of_files'])}) would be searched"
        )
    elif conversion.refused:
        found = f"none of {conversion.refused} equality delete files can be converted: {conversion.why}"
    else:
        found = "no equality deletes"
    print_result(output, document, lambda: click.echo(printable(f"{view.name}: {found}")))


def _show(result: ConversionResult, output: str) -> None:
    print_result(output, {**asdict(result), "table": str(result.table)}, lambda: _print(result))


def _print(result: ConversionResult) -> None:
    console, name = result_console(), styled(str(result.table), "bold")
    if result.snapshot_after is not None:
        console.print(
            name,
            f": snapshot {result.snapshot_after}: {result.deletes_removed} equality delete files converted, "
            f"{result.rows:,} rows of {result.files_hit} data files deleted by position",
            sep="",
        )
    else:
        console.print(name, ": nothing was converted" if result.deletes_left else ": no equality deletes", sep="")
    if result.files_searched:
        share = result.bytes_read / max(1, result.bytes_searched)
        console.print(
            f"{result.files_searched} data files searched, {decimal(result.bytes_read)} read ({share:.1%}), "
            f"{result.seconds:.1f} s",
        )
    if result.deletes_left:
        console.print(styled(f"{result.deletes_left} not converted", "red"), f": {result.why}", sep="")
