"""Histories of services beside a catalog that delays, repeats and loses requests, writers of every kind, and deaths.

\b
  python -m tests.simulator                               2,000 histories
  python -m tests.simulator --seed 4711 --histories 1     one of them again, and its steps
  python -m tests.simulator --mutation all                break each rule, and see which histories notice

After each commit the rows are those of a serial database; nothing that a snapshot needs is deleted; each output is on
record before its first byte; at the end the debt is paid, and nothing is left behind. Exit code 1 if one fails, or a
broken rule is not noticed.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import monotonic
from typing import Final

import click

from tests.simulator.jobs import Played, play
from tests.simulator.profiles import is_about

BATCH: Final = 100
"""Histories that one of several processes plays at a time."""
MOST_BYTES: Final = 4_000_000_000
"""Of memory: a history that does not end stops there."""


@click.command(help=__doc__)
@click.option("--histories", default=2_000, show_default=True)
@click.option("--seed", default=1, show_default=True, help="Of the first history.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--mutation", default="", help="Broken rules, by the ends of their names with commas, or `all`.")
@click.option("--profile", default="", help="Only histories of this profile (profiles.py).")
@click.option("--tell", is_flag=True, help="Print the steps of each history.")
def main(histories: int, seed: int, jobs: int, mutation: str, profile: str, tell: bool) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    seeds = [each for each in range(seed, seed + histories) if is_about(profile, each)]
    if mutation:
        from tests.simulator.mutations import noticed_by  # noqa: PLC0415 - they are imported with all that they break

        sys.exit(noticed_by(mutation, seeds))
    started = monotonic()
    if jobs == 1:
        found = play(seeds, tell=tell)
    else:
        batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
        with ProcessPoolExecutor(jobs) as pool:
            found = sum(pool.map(partial(play, tell=tell), batches), Played())
    for text in found.stories if tell else found.failed[:3]:
        click.echo(text)
    _report(found, len(seeds), monotonic() - started)
    sys.exit(bool(found.failed))


def _report(found: Played, histories: int, seconds: float) -> None:
    rate = 60 * histories / found.cpu_seconds if found.cpu_seconds else 0.0
    click.echo(f"{histories} histories in {seconds:.0f} s, {rate:,.0f} a minute of one core: {_told(found.events)}")
    click.echo("longest waits, in simulated seconds: " + ", ".join(f"{what} {most:.0f}" for what, most in found.waits))
    click.echo(f"{len(found.failed)} FAILED" if found.failed else "all invariants hold")


def _told(events: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in events.most_common())


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        command = [sys.executable, "-m", "tests.simulator", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this very program
    main()
