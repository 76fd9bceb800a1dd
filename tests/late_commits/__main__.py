"""Late commits: runs, stops, kills and sweeps beside a catalog that delays, repeats and reorders requests and answers.

\b
  python -m tests.late_commits                          20,000 histories
  python -m tests.late_commits --first 4711 --histories 1   one of them again
  python -m tests.late_commits --broken                 decide by wrong rules, see which histories notice

In each history every retained snapshot must be readable at any time, and what no snapshot needs must be gone at the
end. Exit code 1 if one fails, or a wrong rule is not noticed.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import click

from tests.late_commits.broken import RULES
from tests.late_commits.jobs import play

BATCH: Final = 250


@click.command(help=__doc__)
@click.option("--histories", default=20_000, show_default=True)
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--jobs", default=max(1, (os.cpu_count() or 2) // 2), show_default=True, help="Processes.")
@click.option("--broken", is_flag=True, help="Decide by each wrong rule until a history notices.")
def main(histories: int, first: int, jobs: int, broken: bool) -> None:
    seeds = range(first, first + histories)
    if broken:
        unnoticed = 0
        for rule in RULES:
            ends, failed = play(seeds, rule)
            unnoticed += not failed
            click.echo(f"{rule}: " + (f"noticed by history {sum(ends.values())}" if failed else "NOT NOTICED"))
        sys.exit(bool(unnoticed))
    started, ends, failed = time.monotonic(), Counter[str](), list[str]()
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(jobs) as pool:
        for found, wrong in pool.map(play, batches):
            ends += found
            failed += wrong
    click.echo(f"{len(seeds)} histories in {time.monotonic() - started:.0f} s: {dict(ends.most_common())}")
    for text in failed[:10]:
        click.echo(text)
    click.echo(
        f"{len(failed)} FAILED" if failed else "each table was readable at any time, and nothing was left behind"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
