"""Break the ledger on purpose, one way at a time, and play sequences until one fails.

The project is copied to a temporary folder and changed there, as `tests/mutations/` does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.ledger.mutations import MUTATIONS
from tests.ledger.play import Order
from tests.mutations.applying import applied
from tests.mutations.trial import copied, environment

ROOT: Final = Path(__file__).parents[2]


def try_mutations(console: Console, order: Order, match: str) -> int:
    """Try all whose words contain `match`, and print how each was caught; the exit code: 1 if one is not caught.

    Raises:
        MutationError: one does not fit the code.
    """
    chosen = [mutation for mutation in MUTATIONS if match in mutation.what]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="ledger-mutations-") as folder:
        copy = copied(ROOT, Path(folder))
        for mutation in chosen:
            with applied(copy, mutation):
                error = _failure(copy, replace(order, sequences=order.sequences // 2, spark=False))
                if not error and order.spark:
                    error = _failure(copy, order)
            caught += bool(error)
            console.print(f"{'caught' if error else 'NOT CAUGHT'}: {mutation.what}: {error}", markup=False)
    console.print(f"{caught} of {len(chosen)} caught")
    return int(caught < len(chosen))


def _failure(copy: Path, order: Order) -> str:
    """The error of the sequence that fails when the copy is played; empty if none does.

    Raises:
        RuntimeError: it was not played to an end.
    """
    options = ["--sequences", order.sequences, "--steps", order.steps, "--seed", order.seed, "--jobs", 1, "--no-shrink"]
    options += ["--writers", "both" if order.spark else "pyiceberg", "--output", "json"]
    command = [sys.executable, "-m", "tests.ledger", *map(str, options)]
    done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False)
    try:
        failed = json.loads(done.stdout)["failed"]
    except ValueError as error:
        raise RuntimeError((done.stdout + done.stderr)[-2000:]) from error
    lines = failed[0].splitlines() if failed else []
    named = [line for line in lines if "Error" in line.partition(":")[0] and not line.startswith(" ")]
    return (named or lines or [""])[-1][:160]
