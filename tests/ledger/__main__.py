"""The ledger under random histories of tables: after each step its counts equal a full recount.

\b
  python -m tests.ledger                               500 sequences of 20 steps, PyIceberg and Spark
  python -m tests.ledger --writers pyiceberg           without Spark, 20 times as fast
  python -m tests.ledger --seed 7 --jobs 1             the same sequences every time
  python -m tests.ledger --mutations                   break the ledger on purpose, see which sequences notice

A failing sequence is made as short as possible and printed. Exit code 1 if a sequence fails, or a mutation is not
noticed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tests.ledger.jobs import document_of, play_in_processes
from tests.ledger.play import Order
from tests.ledger.trials import try_mutations


def show(console: Console, document: dict[str, Any]) -> None:
    table = Table(title=f"{document['sequences']} sequences, {document['steps']} steps, {document['seconds']:.0f} s")
    table.add_column("what")
    table.add_column("times", justify="right")
    for heading, key in (("operations", "operations"), ("counts by their reason", "counts_by_reason")):
        table.add_row(f"[bold]{heading}[/]", "")
        for name, times in document[key].items():
            table.add_row(f"  {name}", str(times))
    console.print(table)
    for text in document["failed"]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    sound = "[green]after each step the counts equalled a recount[/]"
    console.print("[red]FAILED[/]" if document["failed"] else sound)


@click.command(help=__doc__)
@click.option("--sequences", default=500, show_default=True)
@click.option("--steps", default=20, show_default=True, help="Most steps of a sequence.")
@click.option("--seed", default=1, show_default=True)
@click.option("--writers", type=click.Choice(["pyiceberg", "both"]), default="both", show_default=True)
@click.option("--jobs", default=max(1, (os.cpu_count() or 2) // 2), show_default=True, help="Processes.")
@click.option("--shrink/--no-shrink", default=True, show_default=True, help="Make a failing sequence short.")
@click.option("--mutations", is_flag=True, help="Break the ledger in each listed way, and play until it is noticed.")
@click.option("--match", default="", help="Only mutations whose words contain this text.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    sequences: int,
    steps: int,
    seed: int,
    writers: str,
    jobs: int,
    shrink: bool,
    mutations: bool,
    match: str,
    output: str,
) -> None:
    console = Console(stderr=output == "json", width=None if sys.stdout.isatty() else 160)
    order = Order(sequences, steps, seed, spark=writers == "both", shrink=shrink)
    if mutations:
        sys.exit(try_mutations(console, order, match))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ledger-", ignore_cleanup_errors=True) as folder:
        played = play_in_processes(console, order, jobs, Path(folder))
    document = document_of(played, order, time.monotonic() - started)
    if output == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(console, document)
    sys.exit(int(bool(document["failed"])))


if __name__ == "__main__":
    main()
