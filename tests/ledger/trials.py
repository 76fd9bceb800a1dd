"""Break the ledger on purpose, one way at a time, and play sequences until one fails.

The project is copied to a temporary folder and changed there, as `tests/mutations/` does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tests.ledger.mutations import MUTATIONS
from tests.ledger.play import Order
from tests.mutations.applying import applied
from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.trial import copied, environment

ROOT: Final = Path(__file__).parents[2]
BROKEN: Final = 2


@dataclass(frozen=True)
class Tried:
    """One mutation: whether a sequence failed, after how many, and how."""

    what: str
    verdict: str
    sequences: int
    seconds: float
    how: str

    @property
    def caught(self) -> bool:
        return self.verdict == "caught"


def try_mutations(console: Console, order: Order, match: str, output: str) -> int:
    """Try all whose words contain `match`; the exit code: 1 if one is not caught, 2 if one does not fit the code."""
    chosen = [mutation for mutation in MUTATIONS if match in mutation.what]
    try:
        with tempfile.TemporaryDirectory(prefix="ledger-mutations-") as folder:
            copy = copied(ROOT, Path(folder))
            tried = [_tried(copy, mutation, order, console) for mutation in chosen]
    except MutationError as error:
        console.print(f"[bold red]{error}", soft_wrap=True)
        return BROKEN
    if output == "json":
        click.echo(json.dumps([each.__dict__ for each in tried], indent=2))
    else:
        _show(console, tried)
    return int(not all(each.caught for each in tried))


def _tried(copy: Path, mutation: Mutation, order: Order, console: Console) -> Tried:
    started = time.monotonic()
    with applied(copy, mutation):
        document, tail = _played(copy, replace(order, sequences=order.sequences // 2, spark=False))
        if order.spark and document is not None and not document["failed"]:
            document, tail = _played(copy, order)
    seconds = time.monotonic() - started
    if document is None:
        done = Tried(mutation.what, "UNCLEAR", 0, seconds, tail)
    else:
        failed = document["failed"]
        how = _last_error(failed[0]) if failed else ""
        done = Tried(mutation.what, "caught" if failed else "NOT CAUGHT", document["sequences"], seconds, how)
    console.print(
        f"{done.verdict} after {done.sequences} sequences, {seconds:.0f} s: {done.what}: {done.how}", markup=False
    )
    return done


def _played(copy: Path, order: Order) -> tuple[dict[str, Any] | None, str]:
    """The result of playing in the copy; None if it did not run to an end. And the end of the output."""
    options = ["--sequences", order.sequences, "--steps", order.steps, "--seed", order.seed, "--jobs", 1, "--no-shrink"]
    options += ["--writers", "both" if order.spark else "pyiceberg", "--output", "json"]
    command = [sys.executable, "-m", "tests.ledger", *map(str, options)]
    done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, (done.stdout + done.stderr)[-2000:]
    return document, ""


def _last_error(text: str) -> str:
    """The line of a traceback that names the error."""
    lines = [line for line in text.splitlines() if "Error" in line.partition(":")[0] and not line.startswith(" ")]
    return lines[-1][:160] if lines else text[-160:]


def _show(console: Console, tried: list[Tried]) -> None:
    table = Table("broken", "", "sequences", "s", "how")
    for each in tried:
        style = "green" if each.caught else "bold red"
        table.add_row(each.what, f"[{style}]{each.verdict}[/]", str(each.sequences), f"{each.seconds:.0f}", each.how)
    console.print(table)
    console.print(f"{sum(each.caught for each in tried)} of {len(tried)} caught")
