"""Is any row lost, changed or hidden by a compaction? Real tables, real writers, real engines, compared row by row.

\b
  python -m tests.correctness                        everything: the matrix, then 300 generated tables
  python -m tests.correctness --cases 0 --kinds day_bucket,vectors
  python -m tests.correctness --cases 0 --writers duckdb --engine splice
  python -m tests.correctness --no-matrix --cases 50 --first-seed 1000
  python -m tests.correctness --seed 1234            one generated table again, as its failure said
  python -m tests.correctness --list                 the kinds of tables and their writers

The matrix plays every kind of table with every writer that can make it, and compacts it with every engine. A forced
engine may refuse a table with a reason ("—"); anything else that is not exactly the same table is a failure. Exit
code 1 on any failure, with the command that plays it again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.conftest import Lake
from tests.correctness.checks import Outcome
from tests.correctness.generated import distinct_scripts, script_of
from tests.correctness.kinds import KINDS
from tests.correctness.matrix import ENGINES, Cell, cells_of, chosen, results_of
from tests.correctness.report import Case, print_cases, print_failures, print_matrix
from tests.correctness.scripts import WRITERS, Script
from tests.correctness.stage import StagePool, open_stages

FILTERS_PER_CASE = 4
TOLD_EVERY = 25  # items between two lines of progress where there is no terminal
Item = TypeVar("Item")
Done = TypeVar("Done")


def _names(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str | None], list[str]]:
    """Reads a comma-separated list, refusing names that are not known."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
        given = [name.strip() for name in (text or "").split(",") if name.strip()]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return given

    return read


@click.command(help=__doc__)
@click.option("--kinds", callback=_names(list(KINDS)), help="Kinds of tables, comma-separated; default all.")
@click.option("--writers", callback=_names(WRITERS), help="Writers of the matrix, comma-separated; default all.")
@click.option("--engine", "engines", callback=_names(ENGINES), help=f"Engines: {', '.join(ENGINES)}. Default: all of "
              "them in the matrix, auto for generated cases.")  # fmt: skip
@click.option("--matrix/--no-matrix", default=True, help="Play the matrix (default) or only generated cases.")
@click.option("--cases", default=300, show_default=True, help="How many tables to generate; 0 for none.")
@click.option("--first-seed", default=0, show_default=True, help="Where the seeds of generated cases begin.")
@click.option("--seed", type=int, help="Play this one generated case again, and print its script.")
@click.option("--jobs", default=2, show_default=True, help="Tables at work at once, in one Spark session.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where the temporary warehouse is made.")
@click.option("--list", "listing", is_flag=True, help="List the kinds and end.")
def main(
    kinds: list[str],
    writers: list[str],
    engines: list[str],
    matrix: bool,
    cases: int,
    first_seed: int,
    seed: int | None,
    jobs: int,
    folder: Path | None,
    listing: bool,
) -> None:
    if listing:
        for name, kind in KINDS.items():
            click.echo(f"{name:26} {kind.about} ({', '.join(kind.writers)})")
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    pairs = chosen(kinds, writers) if matrix and seed is None else []
    scripts = {seed: script_of(seed)} if seed is not None else distinct_scripts(first_seed, cases)
    if seed is not None:
        console.print(scripts[seed])
    with open_stages(jobs, folder) as stages:
        pool = StagePool(stages)

        def cell(pair: tuple[str, str], lake: Lake) -> list[Cell]:
            return cells_of(*pair, engines or ENGINES, lake)

        def case(item: tuple[int, Script], lake: Lake) -> list[Case]:
            results = results_of(item[1], "java", engines or ("auto",), lake, FILTERS_PER_CASE)
            return [Case(item[0], repr(item[1]), tuple(results))]

        cells = _play(console, "matrix", pool, pairs, cell, lambda new: print_failures(console, new, ()), jobs)
        items = list(scripts.items())
        played = _play(console, "cases", pool, items, case, lambda new: print_failures(console, (), new), jobs)
    played.sort(key=lambda one: one.seed)
    order = {pair: number for number, pair in enumerate(pairs)}
    cells.sort(key=lambda one: order[one.kind, one.writer])
    print_matrix(console, cells, engines or ENGINES)
    print_cases(console, played)
    results = [cell.result for cell in cells] + [result for one in played for result in one.results]
    sys.exit(1 if any(result.outcome is Outcome.FAILED for result in results) else 0)


def _play(
    console: Console,
    what: str,
    pool: StagePool,
    items: Sequence[Item],
    play: Callable[[Item, Lake], list[Done]],
    tell: Callable[[list[Done]], None],
    jobs: int,
) -> list[Done]:
    """Play all items, `jobs` at a time, with a progress bar; results in the order they were done, each told at once."""
    done: list[Done] = []
    if not items:
        return done
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    def on_a_stage(item: Item) -> list[Done]:
        with pool.stage() as lake:
            return play(item, lake)

    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(jobs) as threads:
        bar = progress.add_task(what, total=len(items))
        for number, future in enumerate(as_completed([threads.submit(on_a_stage, item) for item in items]), 1):
            finished = future.result()
            done.extend(finished)
            tell(finished)
            progress.advance(bar)
            if not console.is_terminal and number % TOLD_EVERY == 0:
                console.print(f"{what}: {number} of {len(items)}")
    return done


if __name__ == "__main__":
    main()
