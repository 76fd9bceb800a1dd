"""`firnline history`: show why partitions were rewritten or not. Reads the history table; needs no service."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich import filesize
from rich.box import SIMPLE_HEAD
from rich.table import Table

from compactor.errors import InputError
from compactor.history.decisions import DELETED, DONE, DROPPED, SKIPPED
from compactor.history.table import HistoryQuery
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from streaming.commands.console import PlainConsole, result_console, styled
from streaming.commands.options import OUTPUT, not_empty, print_result
from streaming.wiring import history_table

UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def moment(text: str, now: float) -> float:
    """Parse `30d` (before `now`) or a date or time in ISO 8601 (default UTC) to seconds since the epoch.

    Raises:
        ValueError, OverflowError: `text` is neither, or it is no time in the years 1 to 9999.
    """
    ago = re.fullmatch(r"(\d+)\s*([mhdw])", text.strip())
    if ago is not None:
        return dt.datetime.fromtimestamp(now - int(ago[1]) * UNIT_SECONDS[ago[2]], dt.UTC).timestamp()
    given = dt.datetime.fromisoformat(text.strip())
    return (given if given.tzinfo else given.replace(tzinfo=dt.UTC)).timestamp()


def _moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return moment(text, time.time())
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is not a time; write 30d, 12h, 2024-01-15 or 2024-01-15T10:00") from None


@click.command("history")
@click.argument("table")
@click.option(
    "--since", default="30d", show_default=True, callback=_moment, help="30d, 12h, 90m, or a time (ISO, UTC)."
)
@click.option("--until", callback=_moment, help="End, in the same form. Default: now.")
@click.option("--partition", metavar="TEXT", callback=not_empty("all partitions"),
              help="Only partitions whose text contains TEXT, e.g. day=2024-01-15.")  # fmt: skip
@click.option("--decision", type=click.Choice([DONE, DROPPED, SKIPPED, DELETED]), help="Only decisions of this kind.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most rows to show.")
@OUTPUT
@click.pass_obj
def history(
    config: Path | None, /, table: str, since: float, until: float | None, partition: str | None, decision: str | None,
    limit: int, output: str,
) -> None:  # fmt: skip
    """Show what was decided about TABLE, and why, newest first: done, dropped, skipped, deleted. Needs history.table.

    With --partition, decisions about the whole table (empty partition) are shown too.
    """
    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    kept = history_table(settings, catalogs)
    if kept is None:
        raise InputError("history.table is not set: nothing is recorded; e.g. history: {table: ops.firnline_history}")
    name = TableName.parse(table, catalogs.names)
    found = kept.read(
        HistoryQuery(table=name, since=since, until=until, partition=partition, decision=decision, limit=limit)
    )
    decisions = {"table": str(name), "decisions": [document(row) for row in found]}
    print_result(output, decisions, lambda: show(result_console(), name, found))


def document(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON document of one decision: the columns of the history table, the time in ISO 8601."""
    return {**row, "decided_at": row["decided_at"].isoformat()}


def show(console: PlainConsole, name: TableName, rows: Iterable[Mapping[str, Any]]) -> None:
    table = Table(title=f"{name}: decisions, newest first", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("decided at (UTC)", "partition", "decision", "why", "files", "size", "engine", "seconds", "run"):
        justify: Any = "right" if heading in {"files", "size", "seconds"} else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading not in {"partition", "why"})
    for row in rows:
        table.add_row(
            row["decided_at"].strftime("%Y-%m-%d %H:%M:%S"),
            row["partition"] or "",
            f"{row['decision']}: {row['reason']}",
            row["why"],
            _became(row["files_in"], row["files_out"]),
            filesize.decimal(row["bytes_in"]) if row["bytes_in"] is not None else "",
            row["engine"] or "",
            f"{row['seconds']:.2f}" if row["seconds"] is not None else "",
            (row["run_id"] or "")[:8],
        )
    if table.row_count:
        console.print(table)
    else:
        console.print(styled(str(name), "bold"), ": no decisions in this time", sep="")


def _became(before: int | None, after: int | None) -> str:
    if before is None:
        return ""
    return f"{before:,}" if after is None else f"{before:,} -> {after:,}"
